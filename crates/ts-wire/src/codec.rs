//! The [`Wire`] trait, its implementations for plain types, and messages as
//! frames.

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::msgpack::{Decoder, Encoder, Kind, numbers};

/// A type with a msgpack encoding shared with the engine.
pub trait Wire: Sized {
    /// Append this value to a message.
    fn encode(&self, encoder: &mut Encoder);

    /// Read one value of this type.
    ///
    /// # Errors
    ///
    /// When the input is no msgpack or not of this type.
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self>;

    /// Append an array of this type. Numbers override it with a faster loop.
    #[doc(hidden)]
    fn encode_array(values: &[Self], encoder: &mut Encoder) {
        encoder.array_len(values.len());
        for value in values {
            value.encode(encoder);
        }
    }

    /// Read an array of this type. Numbers override it with a faster loop.
    #[doc(hidden)]
    fn decode_array(decoder: &mut Decoder<'_>) -> Result<Vec<Self>> {
        let len = decoder.array_len()?;
        let mut values = Vec::with_capacity(len.min(PREALLOCATED));
        for _ in 0..len {
            values.push(Self::decode(decoder)?);
        }
        Ok(values)
    }
}

/// Elements of unknown size allocated before any was read. A length is the
/// sender's word; larger arrays grow as their elements arrive.
const PREALLOCATED: usize = 1024;

/// A message's frames: the msgpack buffer, then the out-of-band frames.
pub fn encode_frames<T: Wire>(value: &T) -> Vec<Bytes> {
    let mut encoder = Encoder::new();
    value.encode(&mut encoder);
    encoder.into_frames()
}

/// Decode a message from its frames. Out-of-band frames that nothing refers to
/// are ignored.
///
/// # Errors
///
/// When the message is not a `T`, or bytes follow it.
pub fn decode_frames<T: Wire>(frames: &[Bytes]) -> Result<T> {
    decode_all(Decoder::new(frames))
}

/// Decode a message that is a single msgpack buffer.
///
/// # Errors
///
/// As [`decode_frames`].
pub fn decode_bytes<T: Wire>(bytes: &[u8]) -> Result<T> {
    decode_all(Decoder::over(bytes))
}

fn decode_all<T: Wire>(mut decoder: Decoder<'_>) -> Result<T> {
    let value = T::decode(&mut decoder)?;
    decoder.finish()?;
    Ok(value)
}

/// A Python `dict`: a map whose entries keep their wire order, duplicates
/// included.
#[derive(Debug, Clone, PartialEq)]
pub struct Dict<K, V>(pub Vec<(K, V)>);

/// A Python `str | list[str]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StrOrList {
    /// A single string.
    One(String),
    /// A list of strings.
    Many(Vec<String>),
}

// === impl Dict ===

impl<K, V> Default for Dict<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K, V> Dict<K, V> {
    /// The value for `key`, if present.
    pub fn get<Q: ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: PartialEq<Q>,
    {
        let (_, value) = self.0.iter().find(|(candidate, _)| candidate == key)?;
        Some(value)
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
        let len = decoder.map_len()?;
        let mut entries = Vec::with_capacity(len.min(PREALLOCATED));
        for _ in 0..len {
            entries.push((K::decode(decoder)?, V::decode(decoder)?));
        }
        Ok(Self(entries))
    }
}

// === impl StrOrList ===

impl Wire for StrOrList {
    fn encode(&self, encoder: &mut Encoder) {
        match self {
            Self::One(value) => encoder.str(value),
            Self::Many(values) => values.encode(encoder),
        }
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self> {
        match decoder.peek_kind()? {
            Kind::Array => Vec::decode(decoder).map(Self::Many),
            _ => String::decode(decoder).map(Self::One),
        }
    }
}

// === impl Wire for plain types ===

impl Wire for bool {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.bool(*self);
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self> {
        decoder.bool()
    }
}

impl Wire for i32 {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.int(i64::from(*self));
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self> {
        decoder.i32()
    }

    fn encode_array(values: &[Self], encoder: &mut Encoder) {
        encoder.token_ids(values);
    }

    fn decode_array(decoder: &mut Decoder<'_>) -> Result<Vec<Self>> {
        let mut values = Vec::new();
        decoder.token_ids(&mut values)?;
        Ok(values)
    }
}

impl Wire for i64 {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.int(*self);
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self> {
        decoder.i64()
    }
}

impl Wire for u32 {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.uint(u64::from(*self));
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self> {
        decoder.integer()?.narrow("u32")
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

impl Wire for f64 {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.float(*self);
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self> {
        decoder.float()
    }

    fn encode_array(values: &[Self], encoder: &mut Encoder) {
        encoder.floats(values);
    }

    fn decode_array(decoder: &mut Decoder<'_>) -> Result<Vec<Self>> {
        let len = decoder.array_len()?;
        // At most eight times what is left of the message.
        let mut values = Vec::with_capacity(len);
        numbers::read_floats(decoder, len, |value| values.push(value))?;
        Ok(values)
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

/// `None` is `nil`.
impl<T: Wire> Wire for Option<T> {
    fn encode(&self, encoder: &mut Encoder) {
        match self {
            Some(value) => value.encode(encoder),
            None => encoder.nil(),
        }
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self> {
        if decoder.take_nil()? {
            return Ok(None);
        }
        T::decode(decoder).map(Some)
    }
}

/// Lists, tuples and sets are all arrays.
impl<T: Wire> Wire for Vec<T> {
    fn encode(&self, encoder: &mut Encoder) {
        T::encode_array(self, encoder);
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self> {
        T::decode_array(decoder)
    }
}

/// A pair is an array of two.
impl<A: Wire, B: Wire> Wire for (A, B) {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.array_len(2);
        self.0.encode(encoder);
        self.1.encode(encoder);
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self> {
        match decoder.array_len()? {
            2 => Ok((A::decode(decoder)?, B::decode(decoder)?)),
            len => Err(Error::Invalid(format!("a pair of {len} elements instead of 2"))),
        }
    }
}
