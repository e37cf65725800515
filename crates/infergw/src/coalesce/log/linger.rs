//! A log that clients can come back to: what it keeps for them, and where they go on.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::Notify;
use tokio::time::Instant;

use super::{Cursor, Frame, Log, Reader, State};
use crate::coalesce::Registry;
use crate::coalesce::resume::{NoReturn, StreamId};
use crate::observe::Resuming;
use crate::types::End;

/// What a lingering flight costs beside its frames' bytes.
const OVERHEAD: usize = 1024;

/// By what clients come back to a log.
#[derive(Debug)]
pub(in crate::coalesce) struct Return {
    /// Its stream's id.
    pub(in crate::coalesce) id: StreamId,
    /// A stream of events; else an answer in one piece.
    pub(in crate::coalesce) stream: bool,
    /// It has an `Idempotency-Key`: a client can come back before it has seen an event.
    pub(in crate::coalesce) idempotent: bool,
    pub(in crate::coalesce) registry: Weak<Mutex<Registry>>,
    /// Wakes whoever lets lingering flights go.
    pub(in crate::coalesce) wake: Arc<Notify>,
    pub(in crate::coalesce) metrics: Resuming,
}

impl Return {
    /// The last client has left; the log's lock is not held here, as the registry's comes before it.
    pub(super) fn left(&self) {
        self.registered(|registry| {
            let first = registry.resumable.as_mut().is_some_and(|resumable| resumable.left(self.id, Instant::now()));
            if first {
                self.wake.notify_one();
            }
        });
    }

    /// A flight without a client has grown.
    pub(super) fn grown(&self) {
        self.registered(|registry| {
            if let Some(resumable) = registry.resumable.as_mut().filter(|resumable| resumable.over()) {
                resumable.keep_within_bytes();
            }
        });
    }

    fn registered(&self, act: impl FnOnce(&mut Registry)) {
        // Without a registry the gateway is gone, and nobody comes back.
        if let Some(registry) = self.registry.upgrade() {
            act(&mut registry.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

impl Log {
    /// The id of its stream, where clients can come back to it.
    pub(in crate::coalesce) fn stream_id(&self) -> Option<StreamId> {
        self.resume.as_ref().filter(|resume| resume.stream).map(|resume| resume.id)
    }

    /// Another subscriber, which has seen the events up to `after`.
    pub(in crate::coalesce) fn attach(self: &Arc<Self>, after: u64) -> Result<Cursor, NoReturn> {
        let mut state = self.lock();
        if state.is_abandoned() {
            return Err(NoReturn::Expired);
        }
        if after > state.events {
            return Err(NoReturn::Ahead);
        }
        if after < state.freed_event {
            return Err(NoReturn::Freed);
        }
        if state.readers.len() >= self.bounds.max_subscribers {
            return Err(NoReturn::Full);
        }
        let at = if self.is_whole() { 0 } else { state.frames.partition_point(|frame| frame.event <= after) };
        let read = state.frames.get(at).map_or(state.written, |frame| frame.until - frame.bytes.len() as u64);
        let reader = Reader { next: state.freed + at as u64, read, from: read, ..Reader::default() };
        let id = state.readers.insert(reader);
        self.charge(&mut state);
        self.total.sharing.subscribers.inc();
        Ok(Cursor { log: Arc::clone(self), id })
    }

    /// Whether nobody reads it.
    pub(in crate::coalesce) fn is_without_readers(&self) -> bool {
        self.lock().readers.is_empty()
    }

    /// Whether it is kept although nobody reads it.
    pub(in crate::coalesce) fn lingers(&self) -> bool {
        let state = self.lock();
        state.readers.is_empty() && !state.is_abandoned()
    }

    /// Whether its flight ended with a failure.
    pub(in crate::coalesce) fn has_failed(&self) -> bool {
        matches!(self.lock().end, Some(End::Failed(_)))
    }

    /// Nobody comes back any more: what still runs is cancelled.
    pub(in crate::coalesce) fn abandon(&self) {
        let mut state = self.lock();
        state.abandon();
        self.charge(&mut state);
        if state.end.is_none() {
            self.abandoned.notify_one();
        }
    }

    /// An answer in one piece that clients can come back to: it is one frame, which is kept.
    pub(super) fn is_whole(&self) -> bool {
        self.resume.as_ref().is_some_and(|resume| !resume.stream)
    }

    /// Bytes that are kept of what every reader has passed. What went to a client that has vanished may not have arrived.
    pub(super) fn kept_behind(&self) -> usize {
        match &self.resume {
            None => 0,
            Some(_) if self.is_whole() => usize::MAX,
            Some(_) if self.total.over() => 0,
            Some(_) => self.bounds.join_window,
        }
    }

    /// Whether somebody may come back to what the last reader leaves now.
    pub(super) fn may_be_resumed(&self, state: &State) -> bool {
        let failed = matches!(state.end, Some(End::Failed(_)));
        self.resume.as_ref().is_some_and(|resume| state.events > 0 || (resume.idempotent && !failed))
    }

    /// Account for what is held without a reader; true if it is more than before.
    pub(super) fn charge(&self, state: &mut State) -> bool {
        let Some(resume) = &self.resume else { return false };
        let lingers = state.readers.is_empty() && !state.is_abandoned();
        let cost = state.held + state.frames.len() * size_of::<Frame>() + OVERHEAD;
        let now = if lingers { cost } else { 0 };
        let before = std::mem::replace(&mut state.charged, now);
        resume.metrics.charge(before, now);
        now > before
    }
}

impl State {
    /// No subscriber is left, and none comes back.
    pub(super) fn is_abandoned(&self) -> bool {
        self.readers.is_empty() && self.abandoned
    }

    pub(super) fn abandon(&mut self) {
        self.abandoned = true;
        self.open = false;
    }
}
