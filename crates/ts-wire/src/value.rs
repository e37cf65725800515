//! Untyped values, for fields the schema types as `dict` or `Any`.

use bytes::Bytes;

use crate::codec::Wire;
use crate::error::Result;
use crate::msgpack::{Decoder, Encoder, Integer, Kind, MAX_DEPTH, too_deep};

/// Any msgpack value.
///
/// Decoding takes at most [`MAX_DEPTH`] nested arrays and maps. A value built
/// here may be deeper, but no decoder of this crate will read it.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// `nil`
    Nil,
    /// A boolean.
    Bool(bool),
    /// An integer.
    Int(Integer),
    /// A float.
    Float(f64),
    /// A string.
    Str(String),
    /// A binary value.
    Bin(Bytes),
    /// An array.
    Array(Vec<Value>),
    /// A map, in wire order.
    Map(Vec<(Value, Value)>),
    /// An extension value: its code and its data.
    Ext(i8, Bytes),
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::Str(value.to_owned())
    }
}

impl From<i64> for Value {
    /// As it would be read back: non-negative integers travel unsigned.
    fn from(value: i64) -> Self {
        Self::Int(match u64::try_from(value) {
            Ok(unsigned) => Integer::Unsigned(unsigned),
            Err(_) => Integer::Signed(value),
        })
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Float(value)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl Value {
    /// Read a value that already lies inside `depth` arrays and maps.
    fn decode_inside(decoder: &mut Decoder<'_>, depth: usize) -> Result<Self> {
        let kind = decoder.peek_kind()?;
        if matches!(kind, Kind::Array | Kind::Map) && depth >= MAX_DEPTH {
            return Err(too_deep());
        }
        Ok(match kind {
            Kind::Nil => {
                decoder.take_nil()?;
                Self::Nil
            }
            Kind::Bool => Self::Bool(decoder.bool()?),
            Kind::Int => Self::Int(decoder.integer()?),
            Kind::Float => Self::Float(decoder.float()?),
            Kind::Str => Self::Str(decoder.str()?.to_owned()),
            Kind::Bin => Self::Bin(decoder.bin()?),
            Kind::Array => {
                let len = decoder.array_len()?;
                let mut values = Vec::with_capacity(len.min(PREALLOCATED));
                for _ in 0..len {
                    values.push(Self::decode_inside(decoder, depth + 1)?);
                }
                Self::Array(values)
            }
            Kind::Map => {
                let len = decoder.map_len()?;
                let mut entries = Vec::with_capacity(len.min(PREALLOCATED));
                for _ in 0..len {
                    let key = Self::decode_inside(decoder, depth + 1)?;
                    entries.push((key, Self::decode_inside(decoder, depth + 1)?));
                }
                Self::Map(entries)
            }
            Kind::Ext => {
                let (code, data) = decoder.ext()?;
                Self::Ext(code, data)
            }
        })
    }
}

/// Elements allocated before any was read; [`MAX_DEPTH`] containers may be open
/// at once, so the sender's word buys little.
const PREALLOCATED: usize = 32;

impl Wire for Value {
    fn encode(&self, encoder: &mut Encoder) {
        match self {
            Self::Nil => encoder.nil(),
            Self::Bool(value) => encoder.bool(*value),
            Self::Int(Integer::Signed(value)) => encoder.int(*value),
            Self::Int(Integer::Unsigned(value)) => encoder.uint(*value),
            Self::Float(value) => encoder.float(*value),
            Self::Str(value) => encoder.str(value),
            Self::Bin(value) => encoder.bin(value),
            Self::Array(values) => values.encode(encoder),
            Self::Map(entries) => {
                encoder.map_len(entries.len());
                for (key, value) in entries {
                    key.encode(encoder);
                    value.encode(encoder);
                }
            }
            Self::Ext(code, data) => encoder.ext(*code, data),
        }
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self> {
        Self::decode_inside(decoder, 0)
    }
}
