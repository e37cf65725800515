//! Tensors as the Python codec carries them (`MsgpackEncoder` in `io_struct.py`; wire contract, section 4.4).

use bytes::Bytes;

use crate::codec::{ArrayFields, Wire};
use crate::error::{Error, Result};
use crate::msgpack::{Decoder, Encoder, Kind};

/// Ext code of an inline tensor buffer (`CUSTOM_TYPE_RAW_VIEW`). Codes 1 and 2 are reserved for pickled payloads, which
/// this protocol never carries.
pub const RAW_VIEW_EXT: i8 = 3;

/// A CPU tensor's metadata and bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// torch dtype name or numpy type string.
    pub dtype: String,
    /// Dimensions, outermost first.
    pub shape: Vec<i64>,
    /// Contiguous element bytes. Shares the received frame; no copy.
    pub data: Bytes,
}

impl Wire for Tensor {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.array_len(3);
        self.dtype.encode(encoder);
        self.shape.encode(encoder);
        encoder.tensor_data(RAW_VIEW_EXT, &self.data);
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self> {
        let mut fields = ArrayFields::begin(decoder)?;
        let dtype = fields.next("dtype")?.ok_or(Error::MissingField("dtype"))?;
        let shape = fields.next("shape")?.ok_or(Error::MissingField("shape"))?;
        let Data(data) = fields.next("data")?.ok_or(Error::MissingField("data"))?;
        fields.finish()?;
        Ok(Self { dtype, shape, data })
    }
}

/// Tensor bytes in either form: inline, or the number of the frame that holds them.
struct Data(Bytes);

impl Wire for Data {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.tensor_data(RAW_VIEW_EXT, &self.0);
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self> {
        if decoder.peek_kind()? == Kind::Int {
            let number: usize = decoder.integer()?.narrow("frame number")?;
            let frame = decoder.frame(number).filter(|_| number > 0);
            return match frame {
                Some(frame) => Ok(Data(frame.clone())),
                None => Err(Error::Invalid(format!("tensor data is in frame {number}, which the message lacks"))),
            };
        }
        match decoder.ext()? {
            (RAW_VIEW_EXT, data) => Ok(Data(data)),
            (code, _) => Err(Error::Invalid(format!("tensor data has the extension code {code}, not {RAW_VIEW_EXT}"))),
        }
    }
}
