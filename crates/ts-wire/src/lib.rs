//! The TokenSpeed engine wire: schema and byte-exact msgpack codec.
//!
//! A frontend and an engine exchange these messages over ZMQ. This crate turns
//! messages into frames and back, byte for byte as the engine's own encoder
//! writes them; it does no I/O.
//!
//! | socket | frontend to engine | engine to frontend |
//! |---|---|---|
//! | handshake | [`HandshakeInitMessage`] | [`ReadyMessage`]: HELLO, READY |
//! | input | [`EngineRequest`]: ADD, ABORT, CONTROL | [`EngineCoreReadyResponse`], once |
//! | output | | [`EngineOutput`]: batches, control replies, the end |
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
//!
//! # Receiving fast
//!
//! [`EngineOutput`] owns everything in it. A receiver that only hands rows on
//! reads [`OutputView`] instead: [`BatchView`] checks a batch once and walks its
//! rows in place, with the request id as a `&str` and the token ids to append
//! wherever they belong. It accepts exactly the same messages. See
//! [`output::BatchView`] for an example.
//!
//! # Hostile input
//!
//! Any bytes may arrive. Decoding never panics; untyped values nest at most
//! [`msgpack::MAX_DEPTH`] levels; no length is believed beyond what the rest of
//! the message can hold, so memory stays within a small multiple of the message;
//! trailing bytes and unknown tags are errors.
//!
//! # Compatibility
//!
//! The public API is that of the published crate `tokenspeed-wire` 0.1.0. Beside
//! it stand the views, [`msgpack::MAX_DEPTH`], `Decoder::over`,
//! `Decoder::position`, `token_ids` of the encoder and the decoder,
//! `Encoder::floats`, and `Default` for [`BatchTokenIDOutSlim`].
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
pub use frames::{ENGINE_CORE_DEAD, EngineOutput, EngineRequest, OutputView, engine_identity};
pub use handshake::{EngineCoreReadyResponse, HandshakeAddresses, HandshakeInitMessage, ReadyMessage};
pub use multimodal::{EncodeRequest, Modality, MultimodalDataItem, MultimodalInputs, ShmTensorHandle};
pub use output::{BatchTokenIDOutSlim, BatchView, RequestOutput, RowView};
pub use request::{SessionParams, TokenizedGenerateReqInput};
pub use sampling::SamplingParams;
pub use tensor::Tensor;
pub use value::Value;
