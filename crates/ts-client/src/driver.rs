//! The thread that owns the sockets: it feeds the state machines ([`crate::group`], [`crate::control`]) with what
//! happens and carries out what they decide. It never waits for anything but its sockets.

mod deliver;
mod receive;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use ts_wire::ControlOutput;

use crate::address::{self, Exposure};
use crate::client::{Command, EngineInfo, Shared, lock};
use crate::config::{ClientConfig, Tuning};
use crate::control::Controls;
use crate::error::{Error, Result, TransportError};
use crate::group::{Action, Group, Rules};
use crate::observe::Event;
use crate::outbox::Outbox;
use crate::stream::StreamBuffer;
use crate::transport::{Connection, Sockets};

use deliver::Ticket;

/// Commands that callers may have waiting.
const COMMANDS: usize = 1_024;
/// Longest sleep of the thread; silence is noticed with this precision.
const NAP: Duration = Duration::from_millis(100);
/// How soon a full socket is tried again.
const RETRY: Duration = Duration::from_millis(1);
/// Messages taken from one socket before the others get their turn.
const BATCH: usize = 256;

type Stream = Arc<StreamBuffer>;
type ControlReply = oneshot::Sender<Result<Vec<ControlOutput>>>;

/// The handle's end of the thread.
pub(crate) struct Thread {
    commands: mpsc::Sender<Command>,
    done: std::sync::Mutex<std::sync::mpsc::Receiver<()>>,
}

struct Driver {
    sockets: Sockets,
    shared: Arc<Shared>,
    group: Group<Stream>,
    controls: Controls<ControlReply>,
    outboxes: Vec<Outbox<Ticket>>,
    commands: mpsc::Receiver<Command>,
    /// INIT, the same for every engine.
    init: Vec<u8>,
    /// Which rank is behind a connection of the input socket: told by its registration.
    inputs: HashMap<Connection, usize>,
    /// Which rank is behind a connection of the output socket: told by its batches.
    outputs: HashMap<Connection, usize>,
    /// Undecodable messages in a row, by connection.
    bad_runs: HashMap<Option<Connection>, u32>,
    /// The last batch of each connection.
    steady: HashMap<Option<Connection>, receive::Steady, foldhash::fast::RandomState>,
    /// Peers whose refusal was logged.
    refused: HashSet<Vec<u8>>,
    /// The readers of the batch at hand; kept for its memory.
    wakers: Vec<Waker>,
    probe_at: Instant,
    pings: u64,
    now: Instant,
}

/// Bind the sockets and start the thread that owns them.
pub(crate) async fn start(config: ClientConfig, tuning: Tuning) -> Result<(Arc<Shared>, Thread)> {
    let (commands, receiver) = mpsc::channel(COMMANDS);
    let (started, bound) = oneshot::channel();
    let (done, finished) = std::sync::mpsc::sync_channel(1);
    thread::Builder::new()
        .name("ts-client".into())
        .spawn(move || {
            // Host names are resolved while binding, which may take a while: not on the caller's thread.
            match Driver::bind(config, tuning, receiver) {
                Ok(mut driver) => {
                    if started.send(Ok(Arc::clone(&driver.shared))).is_ok() {
                        driver.run();
                    }
                }
                Err(error) => {
                    let _caller_gone = started.send(Err(error));
                }
            }
            let _handle_gone = done.try_send(());
        })
        .map_err(|error| TransportError::Socket { operation: "start a thread", reason: error.to_string() })?;
    let shared = bound.await.map_err(|_| {
        Error::Zmq(TransportError::Socket { operation: "bind", reason: "the socket thread ended".into() })
    })??;
    let waking = Arc::clone(&shared);
    // It ends with the thread. Without a runtime of tokio's there is no such task, and the thread wakes readers itself.
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(async move { waking.wakeups.run().await });
    }
    Ok((shared, Thread { commands, done: std::sync::Mutex::new(finished) }))
}

// === impl Thread ===

impl Thread {
    pub(crate) fn commands(&self) -> &mpsc::Sender<Command> {
        &self.commands
    }

    /// Wait for the end of the thread, which was asked for.
    pub(crate) fn finish(&self, limit: Duration) {
        let _late = lock(&self.done).recv_timeout(limit);
    }
}

impl fmt::Debug for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Thread")
    }
}

// === impl Driver: the loop ===

impl Driver {
    fn bind(config: ClientConfig, tuning: Tuning, commands: mpsc::Receiver<Command>) -> Result<Self> {
        let (sockets, bound, wake) = Sockets::bind(&config, &tuning)?;
        for address in [&bound.handshake, &bound.input, &bound.output] {
            if address::exposure(address) == Exposure::Public {
                tracing::warn!(%address, "the engine sockets have no authentication and may be reached from outside");
            }
        }
        let now = Instant::now();
        let group = Group::new(Rules::new(config.first_engine_index, config.num_engines, &tuning), now);
        let ranks = usize::from(config.num_engines);
        let outboxes = (0..ranks).map(|_| Outbox::new(tuning.send_queue_bytes)).collect();
        let init = receive::init_message(&bound);
        let shared = Arc::new(Shared::new(config, tuning, bound, wake, group.state()));
        Ok(Self {
            sockets,
            shared,
            group,
            controls: Controls::new(ranks),
            outboxes,
            commands,
            init,
            inputs: HashMap::new(),
            outputs: HashMap::new(),
            bad_runs: HashMap::new(),
            steady: HashMap::default(),
            refused: HashSet::new(),
            wakers: Vec::new(),
            probe_at: now,
            pings: 0,
            now,
        })
    }

    fn run(&mut self) {
        while !self.shared.closing.load(Ordering::Acquire) {
            let readable = self.sockets.wait(self.nap());
            self.now = Instant::now();
            // Connections that closed come first, so that a number which is used again means the new one.
            if readable.events {
                self.receive_events();
            }
            if readable.output {
                self.receive_outputs();
            }
            if readable.handshake {
                self.receive_handshakes();
            }
            if readable.input {
                self.receive_registrations();
            }
            self.take_commands();
            self.pass_time();
            self.act();
        }
        self.group.close();
        self.act();
        self.shared.wakeups.close();
    }

    /// How long there is nothing to do but to listen.
    fn nap(&self) -> Duration {
        if self.outboxes.iter().any(|outbox| !outbox.is_empty()) {
            return RETRY;
        }
        let due = self.group.deadline().into_iter().chain([self.probe_at]).min();
        let until = due.map_or(NAP, |due| due.saturating_duration_since(Instant::now()));
        until.clamp(RETRY, NAP)
    }

    fn pass_time(&mut self) {
        self.group.tick(self.now);
        self.deliver_waiting();
        if self.probe_at <= self.now {
            self.probe_at = self.now + self.shared.tuning.probe_interval;
            self.probe();
        }
        let steps = self.controls.expire(self.now);
        for step in steps {
            self.control_step(step);
        }
        while let Some(step) = self.controls.next(&self.group.connected()) {
            self.control_step(step);
        }
    }

    /// Carry out what the group decided, and what follows from that.
    fn act(&mut self) {
        loop {
            // Who learns that a stream ended finds the state that ended it.
            self.publish();
            let actions = self.group.take_actions();
            if actions.is_empty() {
                return;
            }
            for action in actions {
                match action {
                    Action::End { stream, cause } => stream.end(cause),
                    Action::Abort { rank, rids } => self.send_abort(rank, rids),
                    Action::Ping { rank } => self.send_ping(rank),
                    Action::Lost { rank } => self.rank_lost(rank),
                    Action::Returned { rank } => self.rank_returned(rank),
                }
            }
        }
    }

    fn rank_lost(&mut self, rank: usize) {
        self.observe(Some(rank), Event::Lost);
        self.outputs.retain(|_, known| *known != rank);
        self.inputs.retain(|_, known| *known != rank);
        self.drop_waiting(rank);
        for step in self.controls.rank_lost(rank) {
            self.control_step(step);
        }
        tracing::warn!(engine = self.group.rules().index_of(rank), reason = self.group.why_not(rank), "engine lost");
    }

    fn rank_returned(&mut self, rank: usize) {
        self.observe(Some(rank), Event::Returned);
        tracing::info!(engine = self.group.rules().index_of(rank), "engine in service");
    }

    /// Bring what the handle reads up to date.
    fn publish(&mut self) {
        if !self.group.take_changed() {
            return;
        }
        for (rank, shared) in self.shared.ranks.iter().enumerate() {
            shared.serving.store(self.group.serves(rank), Ordering::Release);
        }
        let engines = self.group.registrations().map(|(index, ready)| EngineInfo { index, ready: ready.clone() });
        *lock(&self.shared.engines) = engines.collect();
        *lock(&self.shared.pending) = self.group.pending();
        let refusals = self.group.refusals().map(|(index, reason)| format!("engine {index}: {reason}"));
        *lock(&self.shared.refusals) = refusals.collect();
        let state = self.group.state();
        self.shared.state.send_if_modified(|published| {
            let differs = *published != state;
            *published = state;
            differs
        });
    }

    fn observe(&self, rank: Option<usize>, event: Event) {
        if let Some(shared) = rank.and_then(|rank| self.shared.ranks.get(rank)) {
            shared.count(event);
        }
        if let Some(observer) = &self.shared.tuning.observer {
            observer.event(rank.map(|rank| self.group.rules().index_of(rank)), event);
        }
    }

    /// The routing identity of a rank.
    fn identity(&self, rank: usize) -> [u8; 2] {
        ts_wire::engine_identity(self.group.rules().index_of(rank))
    }
}

/// A message of one frame after its type byte.
fn typed(kind: u8, payload: Vec<u8>) -> [Bytes; 2] {
    [Bytes::copy_from_slice(&[kind]), Bytes::from(payload)]
}
