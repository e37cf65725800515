//! ZMQ message framing on the frontend–engine sockets (wire contract, sections 4 and 6).

use bytes::Bytes;

use crate::codec::{Wire, decode_frames, encode_frames};
use crate::control::{ControlOutput, ControlRequest};
use crate::error::{Error, Result};
use crate::msgpack::Decoder;
use crate::output::BatchTokenIDOutSlim;
use crate::request::TokenizedGenerateReqInput;

/// Type byte of an ADD message.
pub const REQ_TYPE_ADD: u8 = 0;
/// Type byte of an ABORT message.
pub const REQ_TYPE_ABORT: u8 = 1;
/// Type byte of a CONTROL message.
pub const REQ_TYPE_CONTROL: u8 = 2;
/// The frame an engine sends on its output socket when it shuts down in order. It names no engine.
pub const ENGINE_CORE_DEAD: &[u8] = b"ENGINE_CORE_DEAD";

/// The ZMQ routing identity of engine `engine_index`: its index as two little-endian bytes.
pub fn engine_identity(engine_index: u16) -> [u8; 2] {
    engine_index.to_le_bytes()
}

/// A message on the engine's input socket.
#[derive(Debug, Clone, PartialEq)]
pub enum EngineRequest {
    /// Start a request.
    Add(Box<TokenizedGenerateReqInput>),
    /// Abort requests by id.
    Abort(Vec<String>),
    /// A control operation.
    Control(Box<ControlRequest>),
}

impl EngineRequest {
    /// The message's frames: the type byte, the payload, its tensors.
    pub fn to_frames(&self) -> Vec<Bytes> {
        match self {
            EngineRequest::Add(request) => framed(REQ_TYPE_ADD, request.as_ref()),
            EngineRequest::Abort(rids) => framed(REQ_TYPE_ABORT, rids),
            EngineRequest::Control(request) => framed(REQ_TYPE_CONTROL, request.as_ref()),
        }
    }

    /// Decode a message from its frames.
    ///
    /// # Errors
    /// The type frame is not one byte that names a type, or the payload is not of that type.
    pub fn from_frames(frames: &[Bytes]) -> Result<Self> {
        let [kind, payload @ ..] = frames else {
            return Err(Error::Invalid("a message without frames".into()));
        };
        if payload.is_empty() {
            return Err(Error::Invalid("a message without a payload frame".into()));
        }
        match kind.as_ref() {
            [REQ_TYPE_ADD] => decode_frames(payload).map(|request| EngineRequest::Add(Box::new(request))),
            [REQ_TYPE_ABORT] => decode_frames(payload).map(EngineRequest::Abort),
            [REQ_TYPE_CONTROL] => decode_frames(payload).map(|request| EngineRequest::Control(Box::new(request))),
            [other] => Err(Error::Invalid(format!("unknown message type {other:#04x}"))),
            other => Err(Error::Invalid(format!("a type frame of {} bytes", other.len()))),
        }
    }
}

fn framed<T: Wire>(kind: u8, payload: &T) -> Vec<Bytes> {
    const KINDS: [u8; 3] = [REQ_TYPE_ADD, REQ_TYPE_ABORT, REQ_TYPE_CONTROL];
    let mut frames = encode_frames(payload);
    let index = usize::from(kind);
    frames.insert(0, Bytes::from_static(KINDS.get(index..=index).unwrap_or_default()));
    frames
}

/// A message on the engine's output socket.
#[derive(Debug, Clone, PartialEq)]
pub enum EngineOutput {
    /// One step's outputs.
    Batch(Box<BatchTokenIDOutSlim>),
    /// A control operation's reply.
    Control(Box<ControlOutput>),
    /// The engine shut down.
    Dead,
}

impl EngineOutput {
    /// The message's frames.
    pub fn to_frames(&self) -> Vec<Bytes> {
        match self {
            EngineOutput::Batch(batch) => encode_frames(batch.as_ref()),
            EngineOutput::Control(reply) => encode_frames(reply.as_ref()),
            EngineOutput::Dead => vec![Bytes::from_static(ENGINE_CORE_DEAD)],
        }
    }

    /// Decode a message from its frames.
    ///
    /// # Errors
    /// It is neither the shutdown sentinel, nor a batch, nor a reply that we know.
    pub fn from_frames(frames: &[Bytes]) -> Result<Self> {
        if let [only] = frames
            && only.as_ref() == ENGINE_CORE_DEAD
        {
            return Ok(EngineOutput::Dead);
        }
        let tag = Decoder::new(frames).peek_tag()?;
        if ControlOutput::knows(tag) {
            decode_frames(frames).map(|reply| EngineOutput::Control(Box::new(reply)))
        } else {
            decode_frames(frames).map(|batch| EngineOutput::Batch(Box::new(batch)))
        }
    }
}
