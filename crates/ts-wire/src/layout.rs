//! The two layouts a schema struct has on the wire, and the macros that give a
//! struct one of them.
//!
//! An **array struct** is `[tag?, fields in declaration order]`: names never
//! travel, order is the contract. It grows only at its end, so a shorter array
//! takes the defaults of the fields it lacks, and what follows the fields we
//! know is checked and skipped. A **map struct** goes by field name, in any
//! order; unknown names are ignored, and of a name given twice the last counts.
//!
//! ```text
//! array_struct! {
//!     /// With a tag (tokens `tagged "Name"`); without the words: untagged.
//!     pub struct Name tagged "Name" {
//!         /// Required: it has no default.
//!         pub count: i64,
//!         /// Taken as `None` when an older peer does not send it.
//!         pub note: Option<String> = None,
//!     }
//! }
//! ```
//! `defaulted` before the attributes also implements `Default`; every field
//! then needs one.

use crate::codec::Wire;
use crate::error::{Error, Result};
use crate::msgpack::Decoder;

/// Reads the fields of an array struct in order.
pub(crate) struct ArrayReader<'d, 'f> {
    decoder: &'d mut Decoder<'f>,
    left: usize,
}

impl<'d, 'f> ArrayReader<'d, 'f> {
    /// Read the header and, for a tagged struct, check the tag.
    pub(crate) fn open(decoder: &'d mut Decoder<'f>, tag: Option<&'static str>) -> Result<Self> {
        let left = decoder.array_len()?;
        let mut reader = Self { decoder, left };
        if let Some(expected) = tag {
            if reader.left == 0 {
                return Err(Error::MissingField("tag"));
            }
            reader.left -= 1;
            let found = reader.decoder.str().map_err(|e| e.in_field("tag"))?;
            if found != expected {
                return Err(wrong_tag(expected, found));
            }
        }
        Ok(reader)
    }

    /// The next field, or `None` where the array ends before it.
    pub(crate) fn field<T: Wire>(&mut self, name: &'static str) -> Result<Option<T>> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        match T::decode(self.decoder) {
            Ok(value) => Ok(Some(value)),
            Err(error) => Err(error.in_field(name)),
        }
    }

    /// Claim the next field, for the caller to read it with the decoder; `None`
    /// where the array ends before it.
    pub(crate) fn raw(&mut self) -> Option<&mut Decoder<'f>> {
        self.left = self.left.checked_sub(1)?;
        Some(self.decoder)
    }

    /// The decoder, at the field that was claimed.
    pub(crate) fn decoder(&mut self) -> &mut Decoder<'f> {
        self.decoder
    }

    /// Check and skip what a newer peer appended.
    pub(crate) fn close(self) -> Result<()> {
        for _ in 0..self.left {
            self.decoder.skip()?;
        }
        Ok(())
    }
}

/// How much of a foreign tag an error repeats: it is the peer's text.
const TAG_SHOWN: usize = 64;

/// The error for a tag that is not `expected`.
pub(crate) fn wrong_tag(expected: &'static str, found: &str) -> Error {
    Error::Tag { expected, found: found.chars().take(TAG_SHOWN).collect() }
}

/// `value`, or the field's default, or the error for a field without one.
macro_rules! field_or {
    ($value:expr, $name:expr) => {
        match $value {
            Some(value) => value,
            None => return Err($crate::error::Error::MissingField($name)),
        }
    };
    ($value:expr, $name:expr, $default:expr) => {
        match $value {
            Some(value) => value,
            None => $default,
        }
    };
}
pub(crate) use field_or;

/// Define a struct that travels as an array. See the module.
macro_rules! array_struct {
    (
        defaulted
        $(#[$meta:meta])*
        pub struct $name:ident $(tagged $tag:tt)? {
            $($(#[$field_meta:meta])* pub $field:ident: $ty:ty = $default:expr),* $(,)?
        }
    ) => {
        $crate::layout::array_struct! {
            $(#[$meta])*
            pub struct $name $(tagged $tag)? {
                $($(#[$field_meta])* pub $field: $ty = $default),*
            }
        }
        $crate::layout::default_from_fields!($name { $($field = $default),* });
    };
    (
        $(#[$meta:meta])*
        pub struct $name:ident $(tagged $tag:tt)? {
            $($(#[$field_meta:meta])* pub $field:ident: $ty:ty $(= $default:expr)?),* $(,)?
        }
    ) => {
        $(#[$meta])*
        pub struct $name {
            $($(#[$field_meta])* pub $field: $ty),*
        }

        impl $crate::codec::Wire for $name {
            fn encode(&self, encoder: &mut $crate::msgpack::Encoder) {
                let names: &[&str] = &[$($tag,)? $(stringify!($field)),*];
                encoder.array_len(names.len());
                $(encoder.str($tag);)?
                $(self.$field.encode(encoder);)*
            }

            fn decode(decoder: &mut $crate::msgpack::Decoder<'_>) -> $crate::error::Result<Self> {
                let tag: &[&'static str] = &[$($tag)?];
                let mut reader =
                    $crate::layout::ArrayReader::open(decoder, tag.first().copied())?;
                let value = Self {
                    $($field: $crate::layout::field_or!(
                        reader.field(stringify!($field))?,
                        stringify!($field)
                        $(, $default)?
                    )),*
                };
                reader.close()?;
                Ok(value)
            }
        }
    };
}
pub(crate) use array_struct;

/// Define a struct that travels as a map keyed by field name. See the module.
macro_rules! map_struct {
    (
        defaulted
        $(#[$meta:meta])*
        pub struct $name:ident {
            $($(#[$field_meta:meta])* pub $field:ident: $ty:ty = $default:expr),* $(,)?
        }
    ) => {
        $crate::layout::map_struct! {
            $(#[$meta])*
            pub struct $name {
                $($(#[$field_meta])* pub $field: $ty = $default),*
            }
        }
        $crate::layout::default_from_fields!($name { $($field = $default),* });
    };
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $($(#[$field_meta:meta])* pub $field:ident: $ty:ty $(= $default:expr)?),* $(,)?
        }
    ) => {
        $(#[$meta])*
        pub struct $name {
            $($(#[$field_meta])* pub $field: $ty),*
        }

        impl $crate::codec::Wire for $name {
            fn encode(&self, encoder: &mut $crate::msgpack::Encoder) {
                let names: &[&str] = &[$(stringify!($field)),*];
                encoder.map_len(names.len());
                $(
                    encoder.str(stringify!($field));
                    self.$field.encode(encoder);
                )*
            }

            fn decode(decoder: &mut $crate::msgpack::Decoder<'_>) -> $crate::error::Result<Self> {
                $(let mut $field: Option<$ty> = None;)*
                for _ in 0..decoder.map_len()? {
                    match decoder.str()? {
                        $(stringify!($field) => {
                            let value = <$ty as $crate::codec::Wire>::decode(decoder);
                            $field = Some(value.map_err(|e| e.in_field(stringify!($field)))?);
                        })*
                        _ => decoder.skip()?,
                    }
                }
                Ok(Self {
                    $($field: $crate::layout::field_or!(
                        $field,
                        stringify!($field)
                        $(, $default)?
                    )),*
                })
            }
        }
    };
}
pub(crate) use map_struct;

/// `Default` out of the defaults of the fields.
macro_rules! default_from_fields {
    ($name:ident { $($field:ident = $default:expr),* }) => {
        impl Default for $name {
            /// Every field as the schema has it when the sender leaves it out.
            fn default() -> Self {
                Self { $($field: $default),* }
            }
        }
    };
}
pub(crate) use default_from_fields;
