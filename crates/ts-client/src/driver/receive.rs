//! What comes in: events, outputs, the handshake, registrations.

use std::sync::Arc;

use ts_wire::frames::OutputView;
use ts_wire::handshake::{STATUS_HELLO, STATUS_READY};
use ts_wire::output::{BatchView, KnownRids};
use ts_wire::{
    EngineCoreReadyResponse, HandshakeAddresses, HandshakeInitMessage, ReadyMessage, decode_bytes, encode_frames,
};

use super::{BATCH, Driver, Stream};
use crate::client::EngineLoad;
use crate::error::EndCause;
use crate::group::{RequestKey, Row};
use crate::observe::Event;
use crate::stream::Pushed;
use crate::transport::{Bound, Connection, ConnectionEvent, Letter, Output};

/// Peers whose refusal is logged one by one; the others only count.
const MAX_REFUSALS: usize = 64;
/// Connections whose runs of undecodable messages are counted.
const MAX_RUNS: usize = 1_024;
/// After a peer connected: when to find out whether it is a rank that says nothing.
const GREETING_TIME: std::time::Duration = std::time::Duration::from_millis(5);

/// Connections whose last batch is remembered, beside two per rank.
const MAX_STEADY: usize = 16;

/// Rows that were not counted yet.
#[derive(Default)]
struct Tally {
    rows: u32,
    tokens: u32,
}

/// The last batch of a connection: an engine sends the same requests' rows step after step, until one ends or begins.
#[derive(Debug, Default)]
pub(super) struct Steady {
    rids: KnownRids,
    /// Where the request of each of its rows is in the table; `None` if not looked up, or not there.
    requests: Vec<Option<RequestKey>>,
}

impl Tally {
    fn add(&mut self, tokens: usize) {
        self.rows += 1;
        self.tokens = self.tokens.saturating_add(u32::try_from(tokens).unwrap_or(u32::MAX));
    }
}

impl Steady {
    /// Have an entry per row of `batch`: those of the batch before, if the rows are the same.
    fn follow(&mut self, batch: &BatchView<'_>) {
        if batch.rids_known() && self.requests.len() == batch.len() {
            return;
        }
        self.requests.clear();
        self.requests.resize(batch.len(), None);
        self.rids.keep(batch);
    }
}

/// INIT: where engines connect to.
pub(super) fn init_message(bound: &Bound) -> Vec<u8> {
    let addresses = HandshakeAddresses {
        inputs: vec![bound.input.clone()],
        outputs: vec![bound.output.clone()],
        ..HandshakeAddresses::default()
    };
    let message = HandshakeInitMessage { addresses, parallel_config: ts_wire::Dict::default() };
    encode_frames(&message).into_iter().next().map(|frame| frame.to_vec()).unwrap_or_default()
}

impl Driver {
    pub(super) fn receive_events(&mut self) {
        while let Some(event) = self.sockets.next_event() {
            match event {
                ConnectionEvent::Opened(_) => self.probe_at = self.probe_at.min(self.now + GREETING_TIME),
                ConnectionEvent::Closed(connection) => match self.inputs.remove(&connection) {
                    Some(rank) => self.group.disconnected(rank, self.now),
                    // Of a rank that came back without a registration, or of a stranger.
                    None => self.probe_at = self.now,
                },
            }
        }
    }

    pub(super) fn receive_handshakes(&mut self) {
        for _ in 0..BATCH {
            let Some(letter) = self.sockets.next_handshake() else { return };
            let Some(rank) = self.group.rules().rank_of_identity(&letter.identity) else {
                self.refuse(&letter, None, "not the identity of an engine of this group");
                continue;
            };
            let status = letter.payload.as_deref().and_then(|payload| decode_bytes::<ReadyMessage>(payload).ok());
            match status.and_then(|message| message.status).as_deref() {
                Some(STATUS_HELLO) => self.greet(rank, &letter),
                Some(STATUS_READY) => {
                    if !self.group.confirm(rank) {
                        self.refuse(&letter, Some(rank), "READY without HELLO");
                    }
                }
                _ => self.refuse(&letter, Some(rank), "neither HELLO nor READY"),
            }
        }
    }

    fn greet(&mut self, rank: usize, letter: &Letter) {
        // What the former life sent before this is older than the new life.
        self.receive_outputs();
        self.group.hello(rank, self.now);
        self.act();
        let _gone = self.sockets.send_handshake(&letter.identity, &self.init);
    }

    pub(super) fn receive_registrations(&mut self) {
        for _ in 0..BATCH {
            let Some(letter) = self.sockets.next_input() else { return };
            let Some(rank) = self.group.rules().rank_of_identity(&letter.identity) else {
                self.refuse(&letter, None, "not the identity of an engine of this group");
                continue;
            };
            let Some(payload) = &letter.payload else {
                self.refuse(&letter, Some(rank), "a registration has one frame");
                continue;
            };
            let registered = decode_bytes::<EngineCoreReadyResponse>(payload)
                .map_err(|error| format!("a registration that does not decode: {error}"))
                .and_then(|ready| self.group.register(rank, ready, self.now));
            match registered {
                Ok(()) => {
                    if let Some(connection) = letter.connection {
                        self.inputs.retain(|_, known| *known != rank);
                        self.inputs.insert(connection, rank);
                    }
                }
                Err(reason) => self.refuse(&letter, Some(rank), &reason),
            }
        }
    }

    /// A peer that is not what it should be: counted, and logged the first time. Nobody else is the worse for it.
    fn refuse(&mut self, letter: &Letter, rank: Option<usize>, reason: &str) {
        self.observe(rank, Event::Refused);
        if self.refused.len() < MAX_REFUSALS && self.refused.insert(letter.identity.clone()) {
            tracing::warn!(identity = ?letter.identity, reason, "refused a peer of the engine sockets");
        }
    }

    pub(super) fn receive_outputs(&mut self) {
        for _ in 0..BATCH {
            let Some(output) = self.sockets.next_output() else { return };
            self.receive_output(&output);
        }
    }

    fn receive_output(&mut self, output: &Output) {
        let mut steady = self.steady.remove(&output.connection).unwrap_or_default();
        let taken = self.take_output(output, &mut steady);
        // Connections come and go; what is remembered of those that are gone is not worth telling apart.
        if self.steady.len() >= MAX_STEADY + 2 * self.outboxes.len() {
            self.steady.clear();
        }
        self.steady.insert(output.connection, steady);
        if taken && !self.bad_runs.is_empty() {
            self.bad_runs.remove(&output.connection);
        }
    }

    /// Whether it was a batch or a reply.
    fn take_output(&mut self, output: &Output, steady: &mut Steady) -> bool {
        match OutputView::parse_after(output.payload(), output.aux, &steady.rids) {
            Ok(OutputView::Batch(batch)) => self.receive_batch(&batch, output.connection, steady),
            Ok(OutputView::Control(reply)) => {
                let rank = self.sender(output.connection);
                if let Some(step) = self.controls.reply(rank, *reply) {
                    self.control_step(step);
                }
            }
            Ok(OutputView::Dead) => {
                self.receive_sentinel(output.connection);
                return false;
            }
            Err(error) => {
                self.receive_garbage(output, &error);
                return false;
            }
        }
        true
    }

    fn receive_batch(&mut self, batch: &BatchView<'_>, connection: Option<Connection>, steady: &mut Steady) {
        let load = batch.load();
        let rank = self.group.rules().rank_of(load.engine_index);
        if let Some(rank) = rank {
            if let Some(connection) = connection {
                self.outputs.insert(connection, rank);
            }
            self.group.heard(rank, self.now);
            if let Some(shared) = self.shared.ranks.get(rank) {
                shared.set_load(EngineLoad {
                    num_running: load.num_running,
                    num_waiting: load.num_waiting,
                    kv_active_pages: load.kv_active_pages,
                    kv_total_pages: load.kv_total_pages,
                });
            }
        }
        let mut tally = Tally::default();
        let mut wakers = std::mem::take(&mut self.wakers);
        steady.follow(batch);
        for (row, known) in batch.rows().zip(&mut steady.requests) {
            let new = row.output_ids.len();
            // Not looked up yet, ended, or begun again under the same id.
            if !known.is_some_and(|key| self.group.has(key)) {
                *known = self.group.find(row.rid.as_str());
            }
            let done = match *known {
                Some(key) => self.group.row(key, new, row.completion_tokens, row.finish_reason),
                None => Row::Unknown,
            };
            let overrun = match done {
                Row::Running(stream) => {
                    tally.add(new);
                    (stream.push(&row, false, &mut wakers) == Pushed::Overrun).then(|| Arc::clone(stream))
                }
                Row::Last(stream) => {
                    tally.add(new);
                    // Who has read a stream to its end finds it counted.
                    self.count(rank, &mut tally);
                    stream.push(&row, true, &mut wakers);
                    None
                }
                Row::Gap { stream, cause } => {
                    self.observe(rank, Event::Gap);
                    tracing::warn!(rid = %row.rid, ?cause, "output was lost");
                    stream.end(cause);
                    None
                }
                Row::Unknown => {
                    if let Some(rank) = rank.filter(|_| row.finish_reason.is_none()) {
                        self.group.orphan(rank, row.rid.as_str(), self.now);
                    }
                    None
                }
            };
            if let Some(stream) = overrun {
                self.overrun(rank, &stream);
            }
        }
        self.count(rank, &mut tally);
        self.shared.wakeups.wake_all(&mut wakers);
        self.wakers = wakers;
    }

    fn count(&self, rank: Option<usize>, tally: &mut Tally) {
        let Tally { rows, tokens } = std::mem::take(tally);
        if rows > 0 {
            self.observe(rank, Event::Output { rows, tokens });
        }
    }

    fn overrun(&mut self, rank: Option<usize>, stream: &Stream) {
        self.observe(rank, Event::Overrun);
        self.group.abort(stream.rid());
        stream.end(EndCause::Overrun { limit: self.shared.tuning.stream_buffer_bytes });
        tracing::warn!(rid = %stream.rid(), "a reader fell too far behind; its request is aborted");
    }

    /// The rank behind a connection of the output socket.
    fn sender(&self, connection: Option<Connection>) -> Option<usize> {
        match self.shared.ranks.len() {
            1 => Some(0),
            _ => self.outputs.get(&connection?).copied(),
        }
    }

    fn receive_sentinel(&mut self, connection: Option<Connection>) {
        let known = connection.and_then(|connection| self.outputs.get(&connection).copied());
        if known.is_none() && self.unidentified().is_empty() && !self.group.connected().is_empty() {
            self.observe(None, Event::Refused);
            tracing::warn!("ignored a shutdown announcement that came from none of the engines");
            return;
        }
        tracing::warn!(
            engine = known.map(|rank| self.group.rules().index_of(rank)),
            "an engine announced its shutdown"
        );
        self.group.shutdown_announced(known, self.now);
    }

    /// Ranks in service whose output connection is not known yet.
    pub(super) fn unidentified(&self) -> Vec<usize> {
        let mut ranks = self.group.connected();
        ranks.retain(|rank| !self.outputs.values().any(|known| known == rank));
        ranks
    }

    fn receive_garbage(&mut self, output: &Output, error: &ts_wire::Error) {
        let rank = self.sender(output.connection);
        self.observe(rank, Event::Malformed);
        if self.bad_runs.len() >= MAX_RUNS {
            self.bad_runs.clear();
        }
        let run = self.bad_runs.entry(output.connection).or_insert(0);
        *run += 1;
        // One line per run, and one when it has consequences.
        if *run == 1 {
            let engine = rank.map(|rank| self.group.rules().index_of(rank));
            tracing::warn!(engine, bytes = output.payload().len(), %error, "dropped an output message");
        }
        if *run == self.shared.tuning.bad_output_run {
            *run = 0;
            for rank in rank.map_or_else(|| self.unidentified(), |rank| vec![rank]) {
                self.group.talks_nonsense(rank, self.now);
            }
        }
    }
}
