//! What goes out: requests, aborts, control operations, signs that are asked for.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::oneshot;
use ts_wire::frames::REQ_TYPE_ABORT;
use ts_wire::msgpack::Encoder;
use ts_wire::{EngineRequest, SamplingParams, TokenizedGenerateReqInput};

use super::{ControlReply, Driver, typed};
use crate::client::{Command, Submission};
use crate::control::{Call, Step};
use crate::error::{Error, Result, StreamError};
use crate::group::{Refusal, Rid};
use crate::observe::Event;
use crate::outbox::Parcel;
use crate::stream::StreamBuffer;
use crate::transport::Sent;

/// Whom to tell what became of a message that waits.
#[derive(Debug)]
pub(super) enum Ticket {
    Add {
        stream: Arc<StreamBuffer>,
        reply: oneshot::Sender<Result<()>>,
    },
    /// The call has its own deadline.
    Control,
}

/// An abort of these requests; of none, it is a probe without effect.
fn abort_message(rids: &[Rid]) -> [Bytes; 2] {
    let mut encoder = Encoder::new();
    encoder.array_len(rids.len());
    for rid in rids {
        encoder.str(rid);
    }
    typed(REQ_TYPE_ABORT, encoder.into_single_frame())
}

/// A request that every engine answers with one abort row and does not run.
fn ping_message(count: u64) -> Vec<Bytes> {
    let mut request = TokenizedGenerateReqInput::new(format!("liveness-check-{count}"), SamplingParams::default());
    request.input_ids = Some(vec![0]);
    request.sampling_params.seed = Some(0);
    request.validation_error = Some("liveness check by the frontend, not a request".into());
    EngineRequest::Add(Box::new(request)).to_frames()
}

impl Driver {
    pub(super) fn take_commands(&mut self) {
        self.take_dropped();
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Add(submission) => self.add(submission),
                Command::Abort { rid, reply } => {
                    let aborted = self.group.abort(&rid);
                    if let Some(stream) = &aborted {
                        stream.end(crate::error::EndCause::Aborted);
                    }
                    self.act();
                    let _caller_gone = reply.send(aborted.is_some());
                }
                Command::Control { request, timeout, reply } => {
                    let call = Call { request, deadline: self.now + timeout, reply };
                    self.control(call);
                }
            }
        }
    }

    /// Abort the requests whose streams were dropped.
    fn take_dropped(&mut self) {
        for dropped in self.shared.take_dropped() {
            // The id may be in use again by now.
            let same =
                self.group.rank_of_request(dropped.rid()).is_some_and(|(_, stream)| Arc::ptr_eq(stream, &dropped));
            if same {
                self.group.abort(dropped.rid());
            }
        }
        self.act();
    }

    fn add(&mut self, submission: Submission) {
        // A stream that was dropped before this call must not make its id a duplicate.
        self.take_dropped();
        let Submission { rank, frames, stream, reply } = submission;
        if reply.is_closed() {
            return;
        }
        match self.group.submit(Arc::clone(stream.rid()), rank, Arc::clone(&stream), self.now) {
            Ok(()) => {}
            Err(refusal) => {
                let error = match refusal {
                    Refusal::Duplicate => Error::DuplicateRequestId(stream.rid().to_string()),
                    Refusal::NotServing(why) => Error::Unavailable(StreamError::Transport(why)),
                };
                let _caller_gone = reply.send(Err(error));
                return;
            }
        }
        let deadline = self.now + self.shared.config.send_timeout;
        self.send(rank, Parcel { frames, deadline, ticket: Ticket::Add { stream, reply } });
    }

    /// Send a message, or let it wait behind those that wait already.
    fn send(&mut self, rank: usize, parcel: Parcel<Ticket>) {
        let waiting = self.outboxes.get(rank).is_none_or(|outbox| !outbox.is_empty());
        if !waiting && self.try_send(rank, &parcel) {
            return self.delivered(rank, parcel);
        }
        let refused = match self.outboxes.get_mut(rank) {
            Some(outbox) => outbox.push(parcel).err(),
            None => Some(parcel),
        };
        if let Some(parcel) = refused {
            self.give_up(rank, parcel);
        }
    }

    fn try_send(&mut self, rank: usize, parcel: &Parcel<Ticket>) -> bool {
        let identity = self.identity(rank);
        match self.sockets.send_input(&identity, &parcel.frames) {
            Sent::Done => true,
            Sent::Full => false,
            Sent::Unroutable => {
                // The streams of a lost rank end through the group; what waits ends with them.
                self.group.unroutable(rank, self.now);
                false
            }
        }
    }

    fn delivered(&mut self, rank: usize, parcel: Parcel<Ticket>) {
        if let Ticket::Add { stream, reply } = parcel.ticket {
            self.observe(Some(rank), Event::Submitted);
            if reply.send(Ok(())).is_err() {
                // The caller left while the message went out.
                self.group.abort(stream.rid());
            }
        }
    }

    /// A message that was not and will not be sent.
    fn give_up(&mut self, rank: usize, parcel: Parcel<Ticket>) {
        self.observe(Some(rank), Event::SendTimeout);
        if let Ticket::Add { stream, reply } = parcel.ticket {
            self.group.withdraw(stream.rid());
            let engine_index = self.group.rules().index_of(rank);
            let timeout = self.shared.config.send_timeout;
            let _caller_gone = reply.send(Err(Error::SendTimeout { engine_index, timeout }));
        }
    }

    /// Try again what waits; give up what waited too long.
    pub(super) fn deliver_waiting(&mut self) {
        for rank in 0..self.outboxes.len() {
            while let Some(parcel) = self.outboxes.get_mut(rank).and_then(|outbox| outbox.take_expired(self.now)) {
                self.give_up(rank, parcel);
            }
            if !self.group.serves(rank) {
                continue;
            }
            while let Some(frames) =
                self.outboxes.get(rank).and_then(|outbox| outbox.front()).map(|it| it.frames.clone())
            {
                let identity = self.identity(rank);
                if self.sockets.send_input(&identity, &frames) != Sent::Done {
                    break;
                }
                if let Some(parcel) = self.outboxes.get_mut(rank).and_then(crate::outbox::Outbox::pop) {
                    self.delivered(rank, parcel);
                }
            }
        }
    }

    /// The rank is lost: whoever waits to send to it is told.
    pub(super) fn drop_waiting(&mut self, rank: usize) {
        let why = self.group.why_not(rank);
        while let Some(parcel) = self.outboxes.get_mut(rank).and_then(crate::outbox::Outbox::pop) {
            if let Ticket::Add { stream, reply } = parcel.ticket {
                self.group.withdraw(stream.rid());
                let _caller_gone = reply.send(Err(Error::Unavailable(StreamError::Transport(why.clone()))));
            }
        }
    }

    pub(super) fn send_abort(&mut self, rank: usize, mut rids: Vec<Rid>) {
        // A request that still waits is not on the engine: nothing to abort.
        if let Some(outbox) = self.outboxes.get_mut(rank).filter(|outbox| !outbox.is_empty()) {
            rids.retain(|rid| {
                let mine = |ticket: &Ticket| matches!(ticket, Ticket::Add { stream, .. } if stream.rid() == rid);
                let Some(parcel) = outbox.take(mine) else { return true };
                if let Ticket::Add { reply, .. } = parcel.ticket {
                    let _caller_gone = reply.send(Ok(()));
                }
                false
            });
        }
        if rids.is_empty() {
            return;
        }
        let identity = self.identity(rank);
        match self.sockets.send_input(&identity, &abort_message(&rids)) {
            Sent::Done => self.observe(Some(rank), Event::Aborted(u32::try_from(rids.len()).unwrap_or(u32::MAX))),
            Sent::Full | Sent::Unroutable => self.group.owe(rank, rids),
        }
    }

    pub(super) fn send_ping(&mut self, rank: usize) {
        self.pings += 1;
        let identity = self.identity(rank);
        // One that cannot be sent is not answered: the verdict is the same.
        let _unanswered = self.sockets.send_input(&identity, &ping_message(self.pings));
    }

    /// Find out which ranks are connected, where nothing else tells.
    pub(super) fn probe(&mut self) {
        let probe = abort_message(&[]);
        for rank in 0..self.outboxes.len() {
            if !self.group.wants_probe(rank) || self.inputs.values().any(|known| *known == rank) {
                continue;
            }
            let identity = self.identity(rank);
            match self.sockets.send_input(&identity, &probe) {
                Sent::Done | Sent::Full => self.group.routable(rank, self.now),
                Sent::Unroutable => self.group.unroutable(rank, self.now),
            }
        }
    }

    fn control(&mut self, call: Call<ControlReply>) {
        let ranks = self.group.connected();
        if ranks.len() < self.outboxes.len() {
            let trouble = self.group.state().trouble();
            let why = trouble.unwrap_or_else(|| {
                let pending = self.group.pending().map(|(_, engines)| engines).unwrap_or_default();
                format!("engines {pending:?} are not there to be asked")
            });
            let _caller_gone = call.reply.send(Err(Error::Unavailable(StreamError::Transport(why))));
            return;
        }
        if let Some(step) = self.controls.call(call, ranks) {
            self.control_step(step);
        }
    }

    pub(super) fn control_step(&mut self, step: Step<ControlReply>) {
        match step {
            Step::Send { ranks, request } => {
                // Replies name no engine. A rank whose output connection is not known yet shows it by a sign of life,
                // which it sends before the reply.
                let unknown = if self.outboxes.len() > 1 { self.unidentified() } else { Vec::new() };
                for rank in unknown {
                    self.send_ping(rank);
                }
                let frames = EngineRequest::Control(request).to_frames();
                let deadline = self.now + self.shared.config.send_timeout;
                for rank in ranks {
                    self.send(rank, Parcel { frames: frames.clone(), deadline, ticket: Ticket::Control });
                }
            }
            Step::Done { reply, outputs } => {
                let _caller_gone = reply.send(Ok(outputs));
            }
            Step::Failed { reply, kind, missing, answered } => {
                let engines: Vec<u16> = missing.iter().map(|rank| self.group.rules().index_of(*rank)).collect();
                let why = format!("no {kind} from engines {engines:?} in time; {answered} answered");
                let _caller_gone = reply.send(Err(Error::Unavailable(StreamError::Transport(why))));
            }
            Step::Refused { reply, kind } => {
                let why = format!("too many operations wait for a {kind}");
                let _caller_gone = reply.send(Err(Error::Unavailable(StreamError::Transport(why))));
            }
        }
    }
}
