//! Images, video and audio of a request, and the encode request that hands one
//! item to an encode node.

use crate::codec::{Dict, StrOrList, Wire};
use crate::error::{Error, Result};
use crate::layout::{array_struct, map_struct};
use crate::msgpack::{Decoder, Encoder};
use crate::tensor::Tensor;
use crate::value::Value;

/// What an item is. Travels as the number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Modality {
    /// A still image.
    Image = 1,
    /// Video.
    Video = 2,
    /// Audio.
    Audio = 3,
}

impl Wire for Modality {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.int(*self as i64);
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self> {
        match decoder.i64()? {
            1 => Ok(Self::Image),
            2 => Ok(Self::Video),
            3 => Ok(Self::Audio),
            other => Err(Error::Invalid(format!("unknown modality {other}"))),
        }
    }
}

map_struct! {
    /// A tensor in a POSIX shared-memory segment of the same host; the engine
    /// unlinks it. The one payload struct that travels as a map.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ShmTensorHandle {
        /// The segment's name.
        pub shm_name: String,
        /// Dimensions, outermost first.
        pub shape: Vec<i64>,
        /// torch's name of the element type.
        pub dtype: String,
    }
}

array_struct! {
    /// One image, video or piece of audio. An untagged array of 10.
    #[derive(Debug, Clone, PartialEq)]
    pub struct MultimodalDataItem {
        /// What it is.
        pub modality: Modality,
        /// Identifies the content for prefix matching.
        pub hash: Option<u64> = None,
        /// The token id that stands for it in the prompt.
        pub pad_value: Option<i64> = None,
        /// Token ranges `(start, end)` it covers in the prompt.
        pub offsets: Option<Vec<(i64, i64)>> = None,
        /// Its features; exactly one of this and `feature_shm` is set.
        pub feature: Option<Tensor> = None,
        /// Its features in shared memory.
        pub feature_shm: Option<ShmTensorHandle> = None,
        /// Tensors only the model knows, such as the grid of an image.
        pub model_specific_data: Dict<String, Tensor> = Dict::default(),
        /// The engine's own; `None` on the wire.
        pub encoded: Option<Tensor> = None,
        /// The engine's own; `None` on the wire.
        pub encoded_deepstack: Option<Tensor> = None,
        /// Where the encode node's embedding arrives: `bootstrap_room`,
        /// `bootstrap_host`, `bootstrap_port`.
        pub encode_handshake: Option<Dict<Value, Value>> = None,
    }
}

array_struct! {
    /// The multimodal part of a request. An untagged array of 7.
    #[derive(Debug, Clone, PartialEq)]
    pub struct MultimodalInputs {
        /// The items, in prompt order.
        pub mm_items: Vec<MultimodalDataItem>,
        /// Placeholder token of images.
        pub im_token_id: Option<i64> = None,
        /// Placeholder token of video.
        pub video_token_id: Option<i64> = None,
        /// M-RoPE positions.
        pub mrope_positions: Option<Tensor> = None,
        /// M-RoPE position delta.
        pub mrope_position_delta: Option<Tensor> = None,
        /// M-RoPE position delta as a number.
        pub mrope_position_delta_scalar: Option<i64> = None,
        /// Retired; `None`.
        pub mrope_position_delta_repeated_cache: Option<Tensor> = None,
    }
}

array_struct! {
    /// One item for an encode node, which ships the embedding to the prefill
    /// ranks waiting under `bootstrap_room`. A tagged array of 8, sent without
    /// a type frame to the encode node's own socket.
    #[derive(Debug, Clone, PartialEq)]
    pub struct EncodeRequest tagged "EncodeRequest" {
        /// Unused: `request_id` names the request.
        pub rid: Option<StrOrList>,
        /// Unused across processes.
        pub http_worker_ipc: Option<String>,
        /// The frontend's id of the request.
        pub request_id: String,
        /// The encode node's bootstrap server.
        pub bootstrap_host: String,
        /// Its port.
        pub bootstrap_port: i64,
        /// The room the prefill ranks receive the embedding under.
        pub bootstrap_room: u64,
        /// The items; frontends send one per request.
        pub items: Vec<MultimodalDataItem>,
    }
}
