//! The TokenSpeed engine wire: schema and byte-exact msgpack codec.
//!
//! A frontend and an engine exchange these messages over ZMQ. This crate turns
//! messages into frames and back, byte for byte as the engine's own encoder
//! writes them; it does no I/O.
#![forbid(unsafe_code)]

pub mod codec;
pub mod control;
pub mod error;
pub mod frames;
pub mod handshake;
mod layout;
pub mod msgpack;
pub mod multimodal;
pub mod output;
pub mod request;
pub mod sampling;
pub mod tensor;
pub mod value;

pub use codec::{Dict, StrOrList, Wire, decode_bytes, decode_frames, encode_frames};
pub use control::{ControlOutput, ControlRequest};
pub use error::{Error, Result};
pub use frames::{ENGINE_CORE_DEAD, EngineOutput, EngineRequest, engine_identity};
pub use handshake::{EngineCoreReadyResponse, HandshakeAddresses, HandshakeInitMessage, ReadyMessage};
pub use multimodal::{EncodeRequest, Modality, MultimodalDataItem, MultimodalInputs, ShmTensorHandle};
pub use output::{BatchTokenIDOutSlim, RequestOutput};
pub use request::{SessionParams, TokenizedGenerateReqInput};
pub use sampling::SamplingParams;
pub use tensor::Tensor;
pub use value::Value;
