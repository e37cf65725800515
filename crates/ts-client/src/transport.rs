//! The three sockets towards the engines. This is the only file that names ZMQ.
//!
//! The transport is libzmq, through the `zmq` crate. It is the reference implementation and what the engines
//! themselves run, and it has what this client needs: a limit on message sizes, sends that say at once whether the
//! peer is there and takes the message (`ROUTER_MANDATORY` with `DONTWAIT`), events about connections, heartbeats,
//! keep-alive, and answers to a peer's heartbeats. The alternatives were tried against hostile and ordinary peers:
//! `zeromq` 0.7 (pure Rust) aborts the process when a peer announces a frame of 1 TiB, has no limit on sizes, does not
//! know heartbeats, and shows a lost peer only to who is polling it; `omq-tokio` 0.33 passes those tests, with a
//! hundred thousand lines of young code. libzmq costs a C++ compiler at build time (it is vendored) and a hop between
//! threads, about 3 µs per message; an engine sends one message per step.
//!
//! All sockets of a client belong to one thread ([`crate::driver`]); nothing here blocks but [`Sockets::wait`].

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;

use crate::address::{self, Bindable};
use crate::config::{ClientConfig, Tuning};
use crate::error::TransportError;

/// Largest message accepted on the handshake and input sockets: both carry one small struct per engine.
const MAX_HANDSHAKE_BYTES: i64 = 1 << 20;
/// Longest multipart message read from any socket, in frames; the rest of a longer one is thrown away.
const MAX_FRAMES: usize = 64;
const MONITOR: &str = "inproc://ts-client-input-events";

/// A connection, by the file descriptor that it has while it lasts.
pub(crate) type Connection = i32;

/// The sockets, bound.
pub(crate) struct Sockets {
    handshake: zmq::Socket,
    input: zmq::Socket,
    output: zmq::Socket,
    events: zmq::Socket,
    wake: WakeReceiver,
    /// The last field: sockets close before their context ends.
    _context: zmq::Context,
}

/// What was bound, and what engines are told to dial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bound {
    pub(crate) handshake: String,
    pub(crate) input: String,
    pub(crate) output: String,
}

/// Interrupts [`Sockets::wait`] from any thread.
#[derive(Debug, Clone)]
pub(crate) struct Wake {
    pending: Arc<AtomicBool>,
    stream: Arc<UnixStream>,
}

#[derive(Debug)]
struct WakeReceiver {
    pending: Arc<AtomicBool>,
    stream: UnixStream,
}

/// What [`Sockets::wait`] woke up for.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Readable {
    pub(crate) handshake: bool,
    pub(crate) input: bool,
    pub(crate) output: bool,
    pub(crate) events: bool,
}

/// A message from an engine's DEALER: who says so, over which connection, and the first frame after the identity.
#[derive(Debug)]
pub(crate) struct Letter {
    pub(crate) identity: Vec<u8>,
    pub(crate) connection: Option<Connection>,
    /// `None` unless exactly one frame followed the identity.
    pub(crate) payload: Option<Vec<u8>>,
}

/// A message from an engine's PUSH.
pub(crate) struct Output {
    first: zmq::Message,
    /// Frames beside the first.
    pub(crate) aux: usize,
    /// The connection it came over.
    pub(crate) connection: Option<Connection>,
}

/// Something that happened to a connection of the input socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionEvent {
    /// A peer finished the ZMTP handshake.
    Opened(Connection),
    /// A peer is gone.
    Closed(Connection),
}

/// How a send without waiting ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The message is with the socket library.
    Done,
    /// The peer's queue is full; nothing was taken.
    Full,
    /// No such peer is connected; nothing was taken.
    Unroutable,
}

// === impl Sockets ===

impl Sockets {
    /// Bind the three sockets.
    pub(crate) fn bind(config: &ClientConfig, tuning: &Tuning) -> Result<(Self, Bound, Wake), TransportError> {
        let context = zmq::Context::new();
        let handshake = Endpoint::new(&context, zmq::ROUTER, MAX_HANDSHAKE_BYTES)?;
        let input = Endpoint::new(&context, zmq::ROUTER, MAX_HANDSHAKE_BYTES)?;
        let output = Endpoint::new(&context, zmq::PULL, i64::try_from(tuning.max_output_bytes).unwrap_or(i64::MAX))?;
        for router in [&handshake.socket, &input.socket] {
            // A restarted engine has its old identity, and its old connection may not have been noticed as gone.
            router.set_router_handover(true).map_err(failed("set ROUTER_HANDOVER"))?;
            router.set_router_mandatory(true).map_err(failed("set ROUTER_MANDATORY"))?;
        }
        input.socket.set_sndhwm(i32::from(tuning.send_queue_messages.max(1))).map_err(failed("set SNDHWM"))?;
        let linger = milliseconds(tuning.close_timeout);
        input.socket.set_linger(linger).map_err(failed("set LINGER"))?;
        if let Some(heartbeat) = tuning.heartbeat {
            for endpoint in [&input, &output] {
                endpoint.set_heartbeat(heartbeat.interval, heartbeat.timeout)?;
            }
        }
        let events = watch_connections(&context, &input.socket)?;
        let handshake_bound = handshake.bind(&config.handshake_address)?;
        let input_bound = input.bind(&config.input_address)?;
        let output_bound = output.bind(&config.output_address)?;
        let advertise = tuning.advertise.as_deref();
        let bound = Bound {
            handshake: handshake_bound,
            input: address::advertised(&input_bound, advertise)?,
            output: address::advertised(&output_bound, advertise)?,
        };
        let (wake, receiver) = wake_pair()?;
        let sockets = Self {
            handshake: handshake.socket,
            input: input.socket,
            output: output.socket,
            events,
            wake: receiver,
            _context: context,
        };
        Ok((sockets, bound, wake))
    }

    /// Sleep until a socket has something, someone wakes us, or the time is over.
    pub(crate) fn wait(&mut self, limit: Duration) -> Readable {
        let mut items = [
            self.handshake.as_poll_item(zmq::POLLIN),
            self.input.as_poll_item(zmq::POLLIN),
            self.output.as_poll_item(zmq::POLLIN),
            self.events.as_poll_item(zmq::POLLIN),
            zmq::PollItem::from_fd(self.wake.stream.as_raw_fd(), zmq::POLLIN),
        ];
        let limit = if limit.is_zero() { 0 } else { i64::from(milliseconds(limit)).max(1) };
        // A signal is the one thing that ends a poll with an error; the caller looks at everything anyway.
        let _interrupted = zmq::poll(&mut items, limit);
        let [handshake, input, output, events, wake] = items.map(|item| item.is_readable());
        if wake {
            self.wake.clear();
        }
        Readable { handshake, input, output, events }
    }

    /// The next message on the handshake socket, if there is one.
    pub(crate) fn next_handshake(&mut self) -> Option<Letter> {
        next_letter(&self.handshake)
    }

    /// The next message on the input socket, if there is one.
    pub(crate) fn next_input(&mut self) -> Option<Letter> {
        next_letter(&self.input)
    }

    /// The next message on the output socket, if there is one.
    pub(crate) fn next_output(&mut self) -> Option<Output> {
        let mut first = self.output.recv_msg(zmq::DONTWAIT).ok()?;
        let mut aux = 0;
        let mut more = first.get_more();
        while more {
            let Ok(frame) = self.output.recv_msg(zmq::DONTWAIT) else { break };
            aux += 1;
            more = frame.get_more();
        }
        let connection = connection_of(&mut first);
        Some(Output { first, aux, connection })
    }

    /// The next event about the input socket's connections, if there is one.
    pub(crate) fn next_event(&mut self) -> Option<ConnectionEvent> {
        loop {
            let frames = multipart(&self.events)?;
            // A frame of event number (u16) and value (u32), then the endpoint.
            let Some([a, b, c, d, e, f]) = frames.first().and_then(|frame| <[u8; 6]>::try_from(frame.as_slice()).ok())
            else {
                continue;
            };
            let connection = Connection::from_ne_bytes([c, d, e, f]);
            match zmq::SocketEvent::from_raw(u16::from_ne_bytes([a, b])) {
                zmq::SocketEvent::DISCONNECTED => return Some(ConnectionEvent::Closed(connection)),
                zmq::SocketEvent::HANDSHAKE_SUCCEEDED => return Some(ConnectionEvent::Opened(connection)),
                _ => {}
            }
        }
    }

    /// Send `INIT` or another single frame to a peer of the handshake socket.
    pub(crate) fn send_handshake(&mut self, identity: &[u8], payload: &[u8]) -> Sent {
        send(&self.handshake, identity, std::iter::once(zmq::Message::from(payload)))
    }

    /// Send a message to an engine's input.
    pub(crate) fn send_input(&mut self, identity: &[u8], frames: &[Bytes]) -> Sent {
        send(&self.input, identity, frames.iter().map(|frame| zmq::Message::from(frame.as_ref())))
    }
}

impl Output {
    /// The first frame.
    pub(crate) fn payload(&self) -> &[u8] {
        &self.first
    }
}

// === a socket before it is bound ===

struct Endpoint {
    socket: zmq::Socket,
}

impl Endpoint {
    fn new(context: &zmq::Context, kind: zmq::SocketType, max_bytes: i64) -> Result<Self, TransportError> {
        let socket = context.socket(kind).map_err(failed("make a socket"))?;
        socket.set_maxmsgsize(max_bytes).map_err(failed("set MAXMSGSIZE"))?;
        socket.set_linger(0).map_err(failed("set LINGER"))?;
        // Half a ZMTP handshake holds a connection no longer than this.
        socket.set_handshake_ivl(5_000).map_err(failed("set HANDSHAKE_IVL"))?;
        socket.set_backlog(1_024).map_err(failed("set BACKLOG"))?;
        // A host that is gone without a FIN is noticed on an idle connection after 15 + 3 * 5 seconds.
        socket.set_tcp_keepalive(1).map_err(failed("set TCP_KEEPALIVE"))?;
        socket.set_tcp_keepalive_idle(15).map_err(failed("set TCP_KEEPALIVE_IDLE"))?;
        socket.set_tcp_keepalive_intvl(5).map_err(failed("set TCP_KEEPALIVE_INTVL"))?;
        socket.set_tcp_keepalive_cnt(3).map_err(failed("set TCP_KEEPALIVE_CNT"))?;
        Ok(Self { socket })
    }

    fn set_heartbeat(&self, interval: Duration, timeout: Duration) -> Result<(), TransportError> {
        self.socket.set_heartbeat_ivl(milliseconds(interval)).map_err(failed("set HEARTBEAT_IVL"))?;
        self.socket.set_heartbeat_timeout(milliseconds(timeout)).map_err(failed("set HEARTBEAT_TIMEOUT"))
    }

    /// Bind, and say what was bound.
    fn bind(&self, address: &str) -> Result<String, TransportError> {
        let Bindable { address: bindable, ipv6 } = address::prepare(address)?;
        if ipv6 {
            self.socket.set_ipv6(true).map_err(failed("set IPV6"))?;
        }
        self.socket
            .bind(&bindable)
            .map_err(|error| TransportError::Address { address: address.to_owned(), reason: error.to_string() })?;
        match self.socket.get_last_endpoint() {
            Ok(Ok(bound)) => Ok(bound),
            _ => Ok(bindable),
        }
    }
}

fn failed(operation: &'static str) -> impl Fn(zmq::Error) -> TransportError {
    move |error| TransportError::Socket { operation, reason: error.to_string() }
}

fn milliseconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis()).unwrap_or(i32::MAX)
}

/// A socket on which the input socket tells about its connections.
fn watch_connections(context: &zmq::Context, input: &zmq::Socket) -> Result<zmq::Socket, TransportError> {
    let wanted = zmq::SocketEvent::DISCONNECTED.to_raw() | zmq::SocketEvent::HANDSHAKE_SUCCEEDED.to_raw();
    input.monitor(MONITOR, i32::from(wanted)).map_err(failed("watch the connections"))?;
    let events = context.socket(zmq::PAIR).map_err(failed("make a socket"))?;
    events.connect(MONITOR).map_err(failed("watch the connections"))?;
    Ok(events)
}

fn connection_of(message: &mut zmq::Message) -> Option<Connection> {
    message.gets("__fd")?.parse().ok()
}

fn next_letter(socket: &zmq::Socket) -> Option<Letter> {
    let identity = socket.recv_msg(zmq::DONTWAIT).ok()?;
    let mut letter = Letter { identity: identity.to_vec(), connection: None, payload: None };
    let mut more = identity.get_more();
    let mut count = 0;
    while more {
        let Ok(mut frame) = socket.recv_msg(zmq::DONTWAIT) else { break };
        more = frame.get_more();
        count += 1;
        if count == 1 {
            letter.connection = connection_of(&mut frame);
            letter.payload = Some(frame.to_vec());
        }
    }
    if count != 1 {
        letter.payload = None;
    }
    Some(letter)
}

fn multipart(socket: &zmq::Socket) -> Option<Vec<Vec<u8>>> {
    let mut frames = Vec::new();
    loop {
        let frame = socket.recv_msg(zmq::DONTWAIT).ok()?;
        let more = frame.get_more();
        if frames.len() < MAX_FRAMES {
            frames.push(frame.to_vec());
        }
        if !more {
            return Some(frames);
        }
    }
}

/// Send without waiting. Only the first frame, the identity, can be refused; once it is taken so are the others.
fn send(socket: &zmq::Socket, identity: &[u8], frames: impl Iterator<Item = zmq::Message>) -> Sent {
    match socket.send(identity, zmq::DONTWAIT | zmq::SNDMORE) {
        Ok(()) => {}
        Err(zmq::Error::EAGAIN) => return Sent::Full,
        Err(_) => return Sent::Unroutable,
    }
    let mut frames = frames.peekable();
    while let Some(frame) = frames.next() {
        let more = if frames.peek().is_some() { zmq::SNDMORE } else { 0 };
        if socket.send(frame, zmq::DONTWAIT | more).is_err() {
            return Sent::Unroutable;
        }
    }
    Sent::Done
}

// === impl Wake ===

impl Wake {
    /// Make the next or the current [`Sockets::wait`] return.
    pub(crate) fn wake(&self) {
        if !self.pending.swap(true, Ordering::AcqRel) {
            // A full pipe wakes as well.
            let _full = (&*self.stream).write(&[1]);
        }
    }
}

impl WakeReceiver {
    /// Forget the wake-ups so far. The caller looks for work after this, so that none is missed.
    fn clear(&mut self) {
        let mut bytes = [0; 64];
        while matches!(self.stream.read(&mut bytes), Ok(count) if count == bytes.len()) {}
        self.pending.swap(false, Ordering::AcqRel);
    }
}

fn wake_pair() -> Result<(Wake, WakeReceiver), TransportError> {
    let failed =
        |error: std::io::Error| TransportError::Socket { operation: "make a wake-up", reason: error.to_string() };
    let (sender, receiver) = UnixStream::pair().map_err(failed)?;
    sender.set_nonblocking(true).map_err(failed)?;
    receiver.set_nonblocking(true).map_err(failed)?;
    let pending = Arc::new(AtomicBool::new(false));
    let wake = Wake { pending: Arc::clone(&pending), stream: Arc::new(sender) };
    Ok((wake, WakeReceiver { pending, stream: receiver }))
}
