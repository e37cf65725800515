//! Tensors: `[dtype, shape, data]`, the data inline or in a frame of its own.

use bytes::Bytes;

use crate::codec::Wire;
use crate::error::{Error, Result};
use crate::msgpack::{Decoder, Encoder, Kind};

/// Extension code of a tensor's bytes inside the msgpack buffer. Codes 1 and 2
/// stand for pickled values, which this wire never carries and we never read.
pub const RAW_VIEW_EXT: i8 = 3;

/// A CPU tensor's description and bytes. Neither the element type nor the
/// number of bytes is checked against the shape: the engine does that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// torch's name of the element type without `torch.` (`bfloat16`), or a
    /// numpy type string (`<f4`).
    pub dtype: String,
    /// Dimensions, outermost first.
    pub shape: Vec<i64>,
    /// The elements, C-contiguous and little-endian. Shares the frame it was
    /// received in.
    pub data: Bytes,
}

impl Wire for Tensor {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.array_len(3);
        encoder.str(&self.dtype);
        self.shape.encode(encoder);
        encoder.raw_view(RAW_VIEW_EXT, &self.data);
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self> {
        let len = decoder.array_len()?;
        if len != 3 {
            return Err(Error::Invalid(format!("a tensor of {len} elements instead of 3")));
        }
        Ok(Self {
            dtype: Wire::decode(decoder).map_err(|e| e.in_field("dtype"))?,
            shape: Wire::decode(decoder).map_err(|e| e.in_field("shape"))?,
            data: decode_data(decoder).map_err(|e| e.in_field("data"))?,
        })
    }
}

fn decode_data(decoder: &mut Decoder<'_>) -> Result<Bytes> {
    if decoder.peek_kind()? == Kind::Int {
        let index = decoder.integer()?.narrow("frame index")?;
        return decoder.frame(index);
    }
    match decoder.ext()? {
        (RAW_VIEW_EXT, data) => Ok(data),
        (code, _) => Err(Error::Invalid(format!("extension code {code} in a tensor"))),
    }
}
