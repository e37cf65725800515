use rmp::Marker;

use crate::error::{Error, Result};

/// The msgpack type of the next value, for fields that take more than one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `nil`
    Nil,
    /// `true` or `false`.
    Bool,
    /// Any integer format.
    Int,
    /// float32 or float64.
    Float,
    /// A string.
    Str,
    /// A binary value.
    Bin,
    /// An array.
    Array,
    /// A map.
    Map,
    /// An extension value.
    Ext,
}

/// An integer as read from the wire, before it is narrowed to the schema's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Integer {
    /// A value of a signed format.
    Signed(i64),
    /// A value of an unsigned format, positive fixint included.
    Unsigned(u64),
}

// === impl Kind ===

impl Kind {
    /// The kind's name as error messages give it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Nil => "nil",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Float => "float",
            Self::Str => "str",
            Self::Bin => "bin",
            Self::Array => "array",
            Self::Map => "map",
            Self::Ext => "ext",
        }
    }

    /// The kind a marker begins; `None` for the byte msgpack never uses.
    pub(super) fn of(marker: Marker) -> Option<Self> {
        use Marker as M;
        Some(match marker {
            M::Null => Self::Nil,
            M::True | M::False => Self::Bool,
            M::FixPos(_) | M::FixNeg(_) => Self::Int,
            M::U8 | M::U16 | M::U32 | M::U64 => Self::Int,
            M::I8 | M::I16 | M::I32 | M::I64 => Self::Int,
            M::F32 | M::F64 => Self::Float,
            M::FixStr(_) | M::Str8 | M::Str16 | M::Str32 => Self::Str,
            M::Bin8 | M::Bin16 | M::Bin32 => Self::Bin,
            M::FixArray(_) | M::Array16 | M::Array32 => Self::Array,
            M::FixMap(_) | M::Map16 | M::Map32 => Self::Map,
            M::FixExt1 | M::FixExt2 | M::FixExt4 | M::FixExt8 | M::FixExt16 => Self::Ext,
            M::Ext8 | M::Ext16 | M::Ext32 => Self::Ext,
            M::Reserved => return None,
        })
    }
}

// === impl Integer ===

impl Integer {
    /// Narrow to any integer type.
    ///
    /// # Errors
    ///
    /// [`Error::IntRange`], with `target` as the type's name, when the value
    /// does not fit.
    pub fn narrow<T: TryFrom<i128>>(self, target: &'static str) -> Result<T> {
        let value = match self {
            Self::Signed(value) => i128::from(value),
            Self::Unsigned(value) => i128::from(value),
        };
        T::try_from(value).map_err(|_| Error::IntRange { value, target })
    }
}
