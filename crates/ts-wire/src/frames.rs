//! Messages as the frames of the input and the output socket.

use bytes::Bytes;

use crate::codec::{Wire, decode_bytes, decode_frames, encode_frames};
use crate::control::{ControlOutput, ControlRequest};
use crate::error::{Error, Result};
use crate::msgpack::Decoder;
use crate::output::{BatchTokenIDOutSlim, BatchView, KnownRids};
use crate::request::TokenizedGenerateReqInput;

/// Type byte of an ADD message.
pub const REQ_TYPE_ADD: u8 = 0;
/// Type byte of an ABORT message.
pub const REQ_TYPE_ABORT: u8 = 1;
/// Type byte of a CONTROL message.
pub const REQ_TYPE_CONTROL: u8 = 2;

/// The frame an engine sends on its output socket when it shuts down. It is
/// ASCII, not msgpack, and names no engine.
pub const ENGINE_CORE_DEAD: &[u8] = b"ENGINE_CORE_DEAD";

/// The ZMQ routing identity of engine `engine_index`: its index as two
/// little-endian bytes.
pub fn engine_identity(engine_index: u16) -> [u8; 2] {
    engine_index.to_le_bytes()
}

/// A message on the engine's input socket: `[type byte, payload, aux...]`.
#[derive(Debug, Clone, PartialEq)]
pub enum EngineRequest {
    /// Start a request.
    Add(Box<TokenizedGenerateReqInput>),
    /// Abort requests by id.
    Abort(Vec<String>),
    /// A control operation.
    Control(Box<ControlRequest>),
}

/// A message on the engine's output socket: `[payload, aux...]`.
#[derive(Debug, Clone, PartialEq)]
pub enum EngineOutput {
    /// One step's outputs.
    Batch(Box<BatchTokenIDOutSlim>),
    /// A control operation's reply.
    Control(Box<ControlOutput>),
    /// The engine shut down.
    Dead,
}

/// A message on the engine's output socket, with a batch left in place: what a
/// receiver on the hot path reads instead of an [`EngineOutput`].
#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "it lives on the stack of its reader, and nearly all are batches")]
pub enum OutputView<'a> {
    /// One step's outputs.
    Batch(BatchView<'a>),
    /// A control operation's reply.
    Control(Box<ControlOutput>),
    /// The engine shut down.
    Dead,
}

// === impl EngineRequest ===

impl EngineRequest {
    /// The message's frames.
    pub fn to_frames(&self) -> Vec<Bytes> {
        match self {
            Self::Add(request) => typed(&[REQ_TYPE_ADD], request.as_ref()),
            Self::Abort(rids) => typed(&[REQ_TYPE_ABORT], rids),
            Self::Control(request) => typed(&[REQ_TYPE_CONTROL], request.as_ref()),
        }
    }

    /// Decode a message from its frames.
    ///
    /// # Errors
    ///
    /// When the type frame is not one known byte, the payload is missing, or it
    /// does not decode.
    pub fn from_frames(frames: &[Bytes]) -> Result<Self> {
        let [kind, message @ ..] = frames else {
            return Err(Error::Invalid("a request without frames".to_owned()));
        };
        if message.is_empty() {
            return Err(Error::Invalid("a request without a payload".to_owned()));
        }
        match kind.as_ref() {
            [REQ_TYPE_ADD] => Ok(Self::Add(Box::new(decode_frames(message)?))),
            [REQ_TYPE_ABORT] => Ok(Self::Abort(decode_frames(message)?)),
            [REQ_TYPE_CONTROL] => Ok(Self::Control(Box::new(decode_frames(message)?))),
            [other] => Err(Error::Invalid(format!("unknown request type {other}"))),
            other => Err(Error::Invalid(format!("a type frame of {} bytes instead of 1", other.len()))),
        }
    }
}

/// A payload behind its type frame.
fn typed<T: Wire>(kind: &'static [u8; 1], payload: &T) -> Vec<Bytes> {
    let mut frames = encode_frames(payload);
    frames.insert(0, Bytes::from_static(kind));
    frames
}

// === impl EngineOutput ===

impl EngineOutput {
    /// The message's frames.
    pub fn to_frames(&self) -> Vec<Bytes> {
        match self {
            Self::Batch(batch) => encode_frames(batch.as_ref()),
            Self::Control(reply) => encode_frames(reply.as_ref()),
            Self::Dead => vec![Bytes::from_static(ENGINE_CORE_DEAD)],
        }
    }

    /// Decode a message from its frames: the sentinel if it is alone, else by
    /// the tag.
    ///
    /// # Errors
    ///
    /// When there is no frame, the tag is unknown, or the payload does not
    /// decode.
    pub fn from_frames(frames: &[Bytes]) -> Result<Self> {
        match frames {
            [] => return Err(Error::Invalid("an output without frames".to_owned())),
            [only] if only.as_ref() == ENGINE_CORE_DEAD => return Ok(Self::Dead),
            _ => {}
        }
        if ControlOutput::knows(Decoder::new(frames).peek_tag()?) {
            return Ok(Self::Control(Box::new(decode_frames(frames)?)));
        }
        Ok(Self::Batch(Box::new(decode_frames(frames)?)))
    }
}

// === impl OutputView ===

impl<'a> OutputView<'a> {
    /// Read a message of `1 + aux` frames from its first one. No output refers
    /// to its auxiliary frames; they only keep the sentinel from being one.
    ///
    /// # Errors
    ///
    /// As [`EngineOutput::from_frames`]; a batch is also refused when its
    /// columns differ in length.
    pub fn parse(message: &'a [u8], aux: usize) -> Result<Self> {
        Self::parse_after(message, aux, &KnownRids::default())
    }

    /// The same; a batch is read by [`BatchView::parse_after`].
    ///
    /// # Errors
    ///
    /// As [`OutputView::parse`].
    pub fn parse_after(message: &'a [u8], aux: usize, known: &KnownRids) -> Result<Self> {
        if aux == 0 && message == ENGINE_CORE_DEAD {
            return Ok(Self::Dead);
        }
        if ControlOutput::knows(Decoder::over(message).peek_tag()?) {
            return Ok(Self::Control(Box::new(decode_bytes(message)?)));
        }
        BatchView::parse_after(message, known).map(Self::Batch)
    }
}
