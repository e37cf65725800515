//! The TokenSpeed engine wire: its schema and its msgpack codec, byte for byte what msgspec writes.
//!
//! No I/O and no async live here. A frontend sends [`EngineRequest`]s and receives [`EngineOutput`]s; the engine does the
//! reverse; both exchange the [`handshake`] messages first. Each type that crosses the wire implements [`Wire`].
//!
//! Decoding is safe on hostile bytes: nesting is bounded ([`msgpack::MAX_DEPTH`]), nothing is allocated for a length that
//! the rest of the input cannot hold, and every fault is an [`Error`].
//!
//! The public API is that of the published crate `tokenspeed-wire` 0.1.0; what stands beside it is marked in the
//! changelog.
//!
//! ```
//! use ts_wire::{EngineRequest, SamplingParams, TokenizedGenerateReqInput};
//!
//! let mut request = TokenizedGenerateReqInput::new("r1", SamplingParams::default());
//! request.input_ids = Some(vec![1, 2, 3]);
//! let message = EngineRequest::Add(Box::new(request));
//! let frames = message.to_frames();
//! assert_eq!(frames[0], b"\x00"[..]);
//! assert_eq!(EngineRequest::from_frames(&frames)?, message);
//! # Ok::<(), ts_wire::Error>(())
//! ```
#![forbid(unsafe_code)]

pub mod codec;
pub mod control;
pub mod error;
pub mod frames;
pub mod handshake;
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
