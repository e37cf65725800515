//! The [`Wire`] trait and the struct layouts msgspec uses.

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::msgpack::{Decoder, Encoder, Kind};

/// A type with a msgpack encoding shared with the Python side.
pub trait Wire: Sized {
    /// Append this value to a message.
    fn encode(&self, encoder: &mut Encoder);

    /// Read one value of this type.
    ///
    /// # Errors
    /// The next value is not of this type.
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self>;

    /// Append an array of values. Token ids have a bulk form of it.
    fn encode_all(values: &[Self], encoder: &mut Encoder) {
        encoder.array_len(values.len());
        for value in values {
            value.encode(encoder);
        }
    }

    /// Read an array of values. Token ids have a bulk form of it.
    ///
    /// # Errors
    /// The next value is no array of this type.
    fn decode_all(decoder: &mut Decoder<'_>) -> Result<Vec<Self>> {
        let length = decoder.array_len()?;
        // An announced length is backed by at least as many bytes, but a value here may be much larger than its form.
        let mut values = Vec::with_capacity(length.min(4096));
        decoder.nested(|inner| {
            for _ in 0..length {
                values.push(Self::decode(inner)?);
            }
            Ok(())
        })?;
        Ok(values)
    }
}

/// Encode a value as a message: the msgpack buffer, then its out-of-band frames.
pub fn encode_frames<T: Wire>(value: &T) -> Vec<Bytes> {
    let mut encoder = Encoder::new();
    value.encode(&mut encoder);
    encoder.into_frames()
}

/// Decode a message from its frames, failing on bytes after the value.
///
/// # Errors
/// The frames are no message of this type.
pub fn decode_frames<T: Wire>(frames: &[Bytes]) -> Result<T> {
    let mut decoder = Decoder::new(frames);
    let value = T::decode(&mut decoder)?;
    decoder.finish()?;
    Ok(value)
}

/// Decode a message that is a single msgpack buffer.
///
/// # Errors
/// The bytes are no message of this type.
pub fn decode_bytes<T: Wire>(bytes: &[u8]) -> Result<T> {
    let mut decoder = Decoder::over(bytes);
    let value = T::decode(&mut decoder)?;
    decoder.finish()?;
    Ok(value)
}

impl Wire for bool {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.bool(*self);
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self> {
        decoder.bool()
    }
}

impl Wire for i64 {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.int(*self);
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self> {
        decoder.integer()?.narrow("i64")
    }
}

impl Wire for u64 {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.uint(*self);
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self> {
        decoder.integer()?.narrow("u64")
    }
}

impl Wire for i32 {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.int(i64::from(*self));
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self> {
        decoder.integer()?.narrow("i32")
    }

    fn encode_all(values: &[Self], encoder: &mut Encoder) {
        encoder.token_ids(values);
    }

    fn decode_all(decoder: &mut Decoder<'_>) -> Result<Vec<Self>> {
        let mut values = Vec::new();
        decoder.token_ids(&mut values)?;
        Ok(values)
    }
}

impl Wire for f64 {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.float(*self);
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self> {
        decoder.float()
    }
}

impl Wire for String {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.str(self);
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self> {
        decoder.str().map(str::to_owned)
    }
}

impl<T: Wire> Wire for Option<T> {
    fn encode(&self, encoder: &mut Encoder) {
        match self {
            Some(value) => value.encode(encoder),
            None => encoder.nil(),
        }
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self> {
        if decoder.take_nil()? { Ok(None) } else { T::decode(decoder).map(Some) }
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn encode(&self, encoder: &mut Encoder) {
        T::encode_all(self, encoder);
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self> {
        T::decode_all(decoder)
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.array_len(2);
        self.0.encode(encoder);
        self.1.encode(encoder);
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self> {
        match decoder.array_len()? {
            2 => decoder.nested(|inner| Ok((A::decode(inner)?, B::decode(inner)?))),
            length => Err(Error::Invalid(format!("expected a pair, found an array of {length}"))),
        }
    }
}

/// A Python `dict`: a msgpack map whose entries keep their wire order.
#[derive(Debug, Clone, PartialEq)]
pub struct Dict<K, V>(pub Vec<(K, V)>);

impl<K, V> Default for Dict<K, V> {
    fn default() -> Self {
        Dict(Vec::new())
    }
}

impl<K, V> Dict<K, V> {
    /// The value for `key`, if present.
    pub fn get<Q>(&self, key: &Q) -> Option<&V>
    where
        Q: ?Sized,
        K: std::borrow::Borrow<Q>,
        Q: PartialEq,
    {
        self.0.iter().rev().find(|(k, _)| k.borrow() == key).map(|(_, v)| v)
    }
}

impl<K: Wire, V: Wire> Wire for Dict<K, V> {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.map_len(self.0.len());
        for (key, value) in &self.0 {
            key.encode(encoder);
            value.encode(encoder);
        }
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self> {
        let length = decoder.map_len()?;
        let mut entries = Vec::with_capacity(length.min(4096));
        decoder.nested(|inner| {
            for _ in 0..length {
                entries.push((K::decode(inner)?, V::decode(inner)?));
            }
            Ok(())
        })?;
        Ok(Dict(entries))
    }
}

/// A Python `str | list[str]` field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StrOrList {
    /// A single string.
    One(String),
    /// A list of strings.
    Many(Vec<String>),
}

impl Wire for StrOrList {
    fn encode(&self, encoder: &mut Encoder) {
        match self {
            StrOrList::One(text) => text.encode(encoder),
            StrOrList::Many(texts) => texts.encode(encoder),
        }
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self> {
        match decoder.peek_kind()? {
            Kind::Array => Wire::decode(decoder).map(StrOrList::Many),
            _ => Wire::decode(decoder).map(StrOrList::One),
        }
    }
}

/// Reads the elements of an array struct in order: short arrays end early, long ones are skipped to their end.
pub(crate) struct ArrayFields<'d, 'f> {
    decoder: &'d mut Decoder<'f>,
    left: usize,
}

impl<'d, 'f> ArrayFields<'d, 'f> {
    /// Start with the array's header.
    pub(crate) fn begin(decoder: &'d mut Decoder<'f>) -> Result<Self> {
        let left = decoder.array_len()?;
        Ok(Self { decoder, left })
    }

    /// The tag, which comes first in a tagged struct.
    pub(crate) fn tag(&mut self, expected: &'static str) -> Result<()> {
        if self.left == 0 {
            return Err(Error::MissingField("tag"));
        }
        self.left -= 1;
        match self.decoder.str()? {
            found if found == expected => Ok(()),
            found => Err(Error::Tag { expected, found: found.chars().take(80).collect() }),
        }
    }

    /// The next field, `None` where the array has ended.
    pub(crate) fn next<T: Wire>(&mut self, name: &'static str) -> Result<Option<T>> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        self.decoder.nested(T::decode).map(Some).map_err(|error| error.in_field(name))
    }

    /// Skip what newer peers have appended.
    pub(crate) fn finish(self) -> Result<()> {
        (0..self.left).try_for_each(|_| self.decoder.nested(Decoder::skip))
    }
}

/// Declares a struct of the wire with its fields in wire order, and derives [`Wire`] for it.
///
/// The layout is `array("Tag")`, `array` or `map`. A field with `= value` has that default where a peer leaves it out.
macro_rules! wire_struct {
    (
        $(#[$meta:meta])*
        pub struct $name:ident: array $(($tag:literal))? {
            $( $(#[$doc:meta])* pub $field:ident: $type:ty $(= $default:expr)?, )*
        }
    ) => {
        $crate::codec::wire_struct!(@struct $(#[$meta])* $name { $( $(#[$doc])* $field: $type, )* });

        impl $crate::codec::Wire for $name {
            fn encode(&self, encoder: &mut $crate::msgpack::Encoder) {
                let fields = [$( stringify!($field), )*].len();
                let tags: &[&str] = &[$( $tag )?];
                encoder.array_len(tags.len() + fields);
                tags.iter().for_each(|tag| encoder.str(tag));
                $( $crate::codec::Wire::encode(&self.$field, encoder); )*
            }

            fn decode(decoder: &mut $crate::msgpack::Decoder<'_>) -> $crate::error::Result<Self> {
                let mut fields = $crate::codec::ArrayFields::begin(decoder)?;
                $( fields.tag($tag)?; )?
                $(
                    let $field = match fields.next(stringify!($field))? {
                        Some(value) => value,
                        None => $crate::codec::wire_struct!(@default $field $(= $default)?),
                    };
                )*
                fields.finish()?;
                Ok(Self { $( $field, )* })
            }
        }
    };
    (
        $(#[$meta:meta])*
        pub struct $name:ident: map {
            $( $(#[$doc:meta])* pub $field:ident: $type:ty $(= $default:expr)?, )*
        }
    ) => {
        $crate::codec::wire_struct!(@struct $(#[$meta])* $name { $( $(#[$doc])* $field: $type, )* });

        impl $crate::codec::Wire for $name {
            fn encode(&self, encoder: &mut $crate::msgpack::Encoder) {
                encoder.map_len([$( stringify!($field), )*].len());
                $(
                    encoder.str(stringify!($field));
                    $crate::codec::Wire::encode(&self.$field, encoder);
                )*
            }

            fn decode(decoder: &mut $crate::msgpack::Decoder<'_>) -> $crate::error::Result<Self> {
                $( let mut $field: Option<$type> = None; )*
                let length = decoder.map_len()?;
                for _ in 0..length {
                    match decoder.str()? {
                        $(
                            stringify!($field) => {
                                let value = decoder.nested($crate::codec::Wire::decode);
                                $field = Some(value.map_err(|error| error.in_field(stringify!($field)))?);
                            }
                        )*
                        _ => decoder.nested($crate::msgpack::Decoder::skip)?,
                    }
                }
                Ok(Self {
                    $(
                        $field: match $field {
                            Some(value) => value,
                            None => $crate::codec::wire_struct!(@default $field $(= $default)?),
                        },
                    )*
                })
            }
        }
    };
    (@struct $(#[$meta:meta])* $name:ident { $( $(#[$doc:meta])* $field:ident: $type:ty, )* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq)]
        pub struct $name {
            $( $(#[$doc])* pub $field: $type, )*
        }
    };
    (@default $field:ident = $default:expr) => { $default };
    (@default $field:ident) => { return Err($crate::error::Error::MissingField(stringify!($field))) };
}

pub(crate) use wire_struct;
