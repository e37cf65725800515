//! Untyped values, for fields the Python schema types as `dict` or `Any`.

use bytes::Bytes;

use crate::codec::Wire;
use crate::error::Result;
use crate::msgpack::{Decoder, Encoder, Integer, Kind};

/// Any msgpack value.
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
    /// An extension value.
    Ext(i8, Bytes),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::Str(text.to_owned())
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        // As the wire reads it back: what is not negative comes in an unsigned format.
        Value::Int(u64::try_from(value).map_or(Integer::Signed(value), Integer::Unsigned))
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Value::Float(value)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Value::Bool(value)
    }
}

impl Wire for Value {
    fn encode(&self, encoder: &mut Encoder) {
        match self {
            Value::Nil => encoder.nil(),
            Value::Bool(value) => encoder.bool(*value),
            Value::Int(Integer::Signed(value)) => encoder.int(*value),
            Value::Int(Integer::Unsigned(value)) => encoder.uint(*value),
            Value::Float(value) => encoder.float(*value),
            Value::Str(text) => encoder.str(text),
            Value::Bin(bytes) => encoder.bin(bytes),
            Value::Array(values) => values.encode(encoder),
            Value::Map(entries) => {
                encoder.map_len(entries.len());
                for (key, value) in entries {
                    key.encode(encoder);
                    value.encode(encoder);
                }
            }
            Value::Ext(code, data) => encoder.ext(*code, data),
        }
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self> {
        Ok(match decoder.peek_kind()? {
            Kind::Nil => {
                decoder.take_nil()?;
                Value::Nil
            }
            Kind::Bool => Value::Bool(decoder.bool()?),
            Kind::Int => Value::Int(decoder.integer()?),
            Kind::Float => Value::Float(decoder.float()?),
            Kind::Str => Value::Str(decoder.str()?.to_owned()),
            Kind::Bin => Value::Bin(decoder.bin()?),
            Kind::Array => Value::Array(Wire::decode(decoder)?),
            Kind::Map => Value::Map(crate::codec::Dict::decode(decoder)?.0),
            Kind::Ext => {
                let (code, data) = decoder.ext()?;
                Value::Ext(code, data)
            }
        })
    }
}
