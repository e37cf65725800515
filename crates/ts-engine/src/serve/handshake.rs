//! HELLO, INIT, READY, registration; and the two sockets that come out of it. The only file that names ZMQ calls.

use std::time::{Duration, Instant};

use bytes::Bytes;
use ts_wire::handshake::{STATUS_HELLO, STATUS_READY};
use ts_wire::{
    EngineCoreReadyResponse, HandshakeAddresses, HandshakeInitMessage, ReadyMessage, decode_bytes, encode_frames,
    engine_identity,
};

use super::{EngineConfig, EngineError, TICK};
use crate::model::ModelSpec;
use crate::scheduler::Scheduler;

/// Largest frame that is taken in.
const MAX_FRAME_BYTES: i64 = 64 << 20;
/// How long a closing socket may still deliver.
const LINGER_MS: i32 = 1000;

trait Doing<T> {
    fn doing(self, what: impl Into<String>) -> Result<T, EngineError>;
}

impl<T> Doing<T> for zmq::Result<T> {
    fn doing(self, what: impl Into<String>) -> Result<T, EngineError> {
        self.map_err(|source| EngineError::Socket { doing: what.into(), source })
    }
}

/// The sockets of a registered engine.
pub(super) struct Sockets {
    input: zmq::Socket,
    output: zmq::Socket,
}

/// Dials the frontend and registers. `stopping` is asked while it waits.
pub(super) fn register(
    config: &EngineConfig,
    spec: &ModelSpec,
    stopping: &dyn Fn() -> bool,
) -> Result<Sockets, EngineError> {
    let context = zmq::Context::new();
    let identity = engine_identity(config.index);
    let handshake = socket(&context, zmq::DEALER)?;
    handshake.set_identity(&identity).doing("set the identity")?;
    connect(&handshake, &config.handshake)?;
    send(&handshake, &status(STATUS_HELLO))?;
    let addresses = wait_for_init(&handshake, config, stopping)?;
    send(&handshake, &status(STATUS_READY))?;
    // The engines look at the addresses only after READY went out.
    let input_address = addresses.inputs.first().ok_or(EngineError::NoAddress("input"))?;
    let output_address = addresses.outputs.first().ok_or(EngineError::NoAddress("output"))?;

    let input = socket(&context, zmq::DEALER)?;
    input.set_identity(&identity).doing("set the identity")?;
    connect(&input, input_address)?;
    send(&input, &registration(config, spec))?;
    let output = socket(&context, zmq::PUSH)?;
    connect(&output, output_address)?;
    Ok(Sockets { input, output })
}

fn socket(context: &zmq::Context, kind: zmq::SocketType) -> Result<zmq::Socket, EngineError> {
    let socket = context.socket(kind).doing("make a socket")?;
    socket.set_linger(LINGER_MS).doing("set the linger time")?;
    socket.set_maxmsgsize(MAX_FRAME_BYTES).doing("limit the frame size")?;
    // Without it libzmq never reaches a `[::1]`; IPv4 addresses go on working with it.
    socket.set_ipv6(true).doing("enable IPv6")?;
    Ok(socket)
}

fn connect(socket: &zmq::Socket, address: &str) -> Result<(), EngineError> {
    socket.connect(address).doing(format!("connect to {address}"))
}

fn send<T: ts_wire::Wire>(socket: &zmq::Socket, message: &T) -> Result<(), EngineError> {
    // A fresh socket queues what its peer is not there for yet: this does not block.
    socket.send_multipart(encode_frames(message).iter().map(Bytes::as_ref), zmq::DONTWAIT).doing("send to the frontend")
}

fn status(status: &str) -> ReadyMessage {
    ReadyMessage {
        status: Some(status.to_owned()),
        local: Some(true),
        headless: Some(true),
        parallel_config_hash: None,
    }
}

fn wait_for_init(
    handshake: &zmq::Socket,
    config: &EngineConfig,
    stopping: &dyn Fn() -> bool,
) -> Result<HandshakeAddresses, EngineError> {
    let limit = config.handshake_timeout;
    let deadline = Instant::now() + limit;
    loop {
        if stopping() {
            return Err(EngineError::Stopped);
        }
        if Instant::now() >= deadline {
            return Err(EngineError::HandshakeTimeout { address: config.handshake.clone(), limit });
        }
        if !wait(handshake, zmq::POLLIN, TICK)? {
            continue;
        }
        let frames = handshake.recv_multipart(zmq::DONTWAIT).doing("receive INIT")?;
        let init: HandshakeInitMessage = decode_bytes(frames.last().map_or(&[], Vec::as_slice))?;
        return Ok(init.addresses);
    }
}

fn registration(config: &EngineConfig, spec: &ModelSpec) -> EngineCoreReadyResponse {
    let tokens = spec.kv_pages.saturating_mul(spec.page_size);
    EngineCoreReadyResponse {
        max_model_len: spec.max_model_len as i64,
        num_gpu_blocks: spec.kv_pages as i64,
        prefix_granularity: spec.page_size as i64,
        dtype: spec.dtype.to_owned(),
        vllm_version: format!("tokenspeed-{}", env!("CARGO_PKG_VERSION")),
        world_size: i64::from(config.dp_size),
        data_parallel_size: i64::from(config.dp_size),
        data_parallel_rank: i64::from(config.dp_rank),
        max_num_seqs: spec.max_running as i64,
        max_num_batched_tokens: spec.max_batched_tokens as i64,
        instance_id: spec.name.clone(),
        kv_cache_size_tokens: Some(tokens as i64),
        kv_cache_max_concurrency: Some(tokens as f64 / spec.max_model_len.max(1) as f64),
        ..EngineCoreReadyResponse::default()
    }
}

/// Whether one of `events` is there within `limit`.
fn wait(socket: &zmq::Socket, events: zmq::PollEvents, limit: Duration) -> Result<bool, EngineError> {
    let millis = i64::try_from(limit.as_millis()).unwrap_or(i64::MAX);
    match socket.poll(events, millis) {
        // A signal: the caller looks around and comes back.
        Err(zmq::Error::EINTR) => Ok(false),
        other => other.map(|ready| ready > 0).doing("wait for a socket"),
    }
}

impl Sockets {
    /// A message that is there, its first `most` frames.
    pub(super) fn receive(&self, most: usize) -> Result<Option<Vec<Bytes>>, EngineError> {
        let mut frames = Vec::new();
        loop {
            match self.input.recv_bytes(zmq::DONTWAIT) {
                Ok(frame) if frames.len() < most => frames.push(Bytes::from(frame)),
                Ok(_) => {}
                Err(zmq::Error::EAGAIN) if frames.is_empty() => return Ok(None),
                Err(zmq::Error::EINTR) => continue,
                Err(source) => return Err(EngineError::Socket { doing: "receive".into(), source }),
            }
            if !self.input.get_rcvmore().doing("receive")? {
                return Ok(Some(frames));
            }
        }
    }

    /// Sends what there is. `false` when the frontend does not read and something is left.
    pub(super) fn send_all(&self, scheduler: &mut Scheduler) -> Result<bool, EngineError> {
        while scheduler.outputs() > 0 {
            // Asked first, so that no message has to be put back.
            if !wait(&self.output, zmq::POLLOUT, Duration::ZERO)? {
                return Ok(false);
            }
            let Some(output) = scheduler.take_output() else { break };
            self.output.send_multipart(output.to_frames().iter().map(Bytes::as_ref), 0).doing("send an output")?;
        }
        Ok(true)
    }

    /// Sleeps until there is input, at most `limit`; shorter than a millisecond without regard to input.
    pub(super) fn wait_input(&self, limit: Duration) -> Result<(), EngineError> {
        if limit < Duration::from_millis(2) {
            std::thread::sleep(limit.min(Duration::from_millis(1)));
            return Ok(());
        }
        // Polling counts in milliseconds; the rest is slept.
        wait(&self.input, zmq::POLLIN, limit - Duration::from_millis(1)).map(drop)
    }

    /// Sleeps until the frontend reads again, or (if `input`) has something to say.
    pub(super) fn wait_output(&self, limit: Duration, input: bool) -> Result<(), EngineError> {
        let millis = i64::try_from(limit.as_millis()).unwrap_or(i64::MAX);
        let mut items = vec![self.output.as_poll_item(zmq::POLLOUT)];
        if input {
            items.push(self.input.as_poll_item(zmq::POLLIN));
        }
        match zmq::poll(&mut items, millis) {
            Err(zmq::Error::EINTR) => Ok(()),
            other => other.map(drop).doing("wait for a socket"),
        }
    }

    /// Closes them, with a last word or at once.
    pub(super) fn close(self, last: Option<&[u8]>) {
        let closed = match last {
            Some(last) => self.output.send(last, zmq::DONTWAIT),
            None => self.output.set_linger(0).and(self.input.set_linger(0)),
        };
        if let Err(error) = closed {
            tracing::debug!(%error, "could not close the sockets in order");
        }
    }
}
