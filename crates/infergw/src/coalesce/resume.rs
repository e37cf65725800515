//! Coming back to a stream: which flights can be come back to, for how long, and by whom.
//!
//! A flight without a client lingers: it runs on, or its finished log stays, until the time is over or the memory for such
//! flights is used up; then the one that was left first goes. Everything here is a function of its state and the time; the
//! lock around it is the registry's.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::time::Instant;

use super::key::Key;
use super::log::{Cursor, Log};
use crate::observe::Resuming;
use crate::observe::resuming::Gone;

mod number;
pub(super) mod sweep;

pub(super) use number::{Numbered, Numbering};

/// Streams whose end is remembered, so that whoever asks too late is told so; the oldest is forgotten first.
const MOST_GONE: usize = 4096;

/// A stream's name: opaque, and nobody guesses it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct StreamId(u128);

impl StreamId {
    pub(super) fn mint() -> Self {
        Self(rand::random())
    }

    /// As it stands in a path: 32 small hexadecimal digits, nothing else.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.len() == 32 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if digits { u128::from_str_radix(text, 16).ok().map(Self) } else { None }
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Whoever knows the whole of it can come back to the stream: it stands in no log.
        write!(f, "{:08x}..", self.0 >> 96)
    }
}

/// The event that a client saw last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventId {
    /// Its stream.
    pub stream: StreamId,
    /// Its number, from 1; 0 is before the first.
    pub event: u64,
}

impl EventId {
    /// As it stands in an event's `id:` and in `Last-Event-ID`.
    pub fn parse(text: &str) -> Option<Self> {
        let (stream, event) = text.split_once('-')?;
        Some(Self { stream: StreamId::parse(stream)?, event: event_number(event)? })
    }
}

/// A number of an event, in digits only.
pub fn event_number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if digits { text.parse().ok() } else { None }
}

/// By what a client may come back to the flight that it asks for.
#[derive(Debug, Clone)]
pub struct Claim {
    /// The caller's scope: nobody else finds the flight (C4).
    pub scope: [u8; 32],
    /// The whole question: coming back with another one is a mistake.
    pub print: Key,
    /// A digest of the caller's `Idempotency-Key`.
    pub idempotency: Option<[u8; 32]>,
    /// Whether the answer is a stream, whose events get ids.
    pub stream: bool,
}

impl Claim {
    /// The digest of an `Idempotency-Key` of this caller's.
    pub fn idempotency(scope: &[u8; 32], value: &[u8]) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(scope);
        hash.update(value);
        hash.finalize().into()
    }
}

/// The events of a stream with the ids of stream 0xab, and the last number, for `crate::foreign`.
#[cfg(any(test, feature = "fuzz"))]
pub fn numbered(events: &[u8]) -> (Vec<bytes::Bytes>, u64) {
    let numbered = Numbering::new(StreamId(0xab)).number([bytes::Bytes::copy_from_slice(events)]);
    let last = numbered.iter().filter(|event| event.is_event).map(|event| event.event).max();
    (numbered.into_iter().map(|event| event.bytes).collect(), last.unwrap_or(0))
}

/// Why a client cannot come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoReturn {
    /// This caller has no such stream.
    Unknown,
    /// It is over, and its time too.
    Expired,
    /// What comes after this event is not held any more.
    Freed,
    /// The stream has not come to this event.
    Ahead,
    /// The stream belongs to another question of this caller's.
    OtherQuestion,
    /// The `Idempotency-Key` belongs to another question of this caller's.
    OtherBody,
    /// As many clients read it as may.
    Full,
}

/// The flights that can be come back to.
#[derive(Debug)]
pub(super) struct Resumable {
    entries: HashMap<StreamId, Entry>,
    by_idempotency: HashMap<[u8; 32], StreamId>,
    /// When flights without a client go, in the order in which they were left: the time is one for all.
    order: VecDeque<(Instant, StreamId)>,
    /// Those that went lately.
    gone: HashMap<StreamId, [u8; 32]>,
    gone_order: VecDeque<StreamId>,
    linger: Duration,
    bytes: usize,
    metrics: Resuming,
}

#[derive(Debug)]
struct Entry {
    log: Arc<Log>,
    claim: Claim,
    /// When it goes, while it has no client.
    until: Option<Instant>,
}

impl Resumable {
    /// None yet. Each lingers so long, all of them with so many bytes.
    pub(super) fn new(linger: Duration, bytes: usize, metrics: Resuming) -> Self {
        Self {
            entries: HashMap::new(),
            by_idempotency: HashMap::new(),
            order: VecDeque::new(),
            gone: HashMap::new(),
            gone_order: VecDeque::new(),
            linger,
            bytes,
            metrics,
        }
    }

    /// Take a flight in that has just begun.
    pub(super) fn insert(&mut self, id: StreamId, claim: Claim, log: Arc<Log>) {
        if let Some(key) = claim.idempotency {
            self.by_idempotency.insert(key, id);
        }
        self.entries.insert(id, Entry { log, claim, until: None });
    }

    /// Come back to a stream after an event; with the question where it is asked again.
    pub(super) fn come_back(&mut self, at: EventId, scope: &[u8; 32], print: Option<&Key>) -> Result<Cursor, NoReturn> {
        let Some(entry) = self.entries.get_mut(&at.stream).filter(|entry| entry.claim.scope == *scope) else {
            let gone = self.gone.get(&at.stream) == Some(scope);
            return Err(if gone { NoReturn::Expired } else { NoReturn::Unknown });
        };
        if print.is_some_and(|print| *print != entry.claim.print) {
            return Err(NoReturn::OtherQuestion);
        }
        let cursor = entry.log.attach(at.event)?;
        entry.until = None;
        self.metrics.resumed.inc();
        Ok(cursor)
    }

    /// Where the caller has asked this under the same `Idempotency-Key`, its answer, from the start. A failure is no answer:
    /// it runs again (C6).
    pub(super) fn again(&mut self, claim: &Claim) -> Result<Option<Cursor>, NoReturn> {
        let found = claim.idempotency.and_then(|key| self.by_idempotency.get(&key));
        let Some(entry) = found.and_then(|id| self.entries.get_mut(id)) else { return Ok(None) };
        if entry.claim.print != claim.print {
            return Err(NoReturn::OtherBody);
        }
        if entry.log.has_failed() {
            return Ok(None);
        }
        let cursor = entry.log.attach(0)?;
        entry.until = None;
        self.metrics.resumed.inc();
        Ok(Some(cursor))
    }

    /// The last client of a flight has left: it lingers from now on, or goes at once where nobody could come back to it.
    /// True where a time has begun to run and none did before.
    pub(super) fn left(&mut self, id: StreamId, now: Instant) -> bool {
        let Some(entry) = self.entries.get_mut(&id) else { return false };
        if !entry.log.is_without_readers() {
            return false;
        }
        if !entry.log.lingers() {
            self.remove(id);
            return false;
        }
        // Never due is as long as it lives.
        let until = now.checked_add(self.linger);
        entry.until = until;
        let first = self.order.is_empty();
        self.order.extend(until.map(|until| (until, id)));
        self.keep_within_bytes();
        first && !self.order.is_empty()
    }

    /// Let go what has lingered its time; when the next one is due.
    pub(super) fn expire(&mut self, now: Instant) -> Option<Instant> {
        while let Some((until, id)) = self.order.front().copied() {
            if until > now {
                return Some(until);
            }
            self.order.pop_front();
            self.let_go(id, until, Gone::Time);
        }
        None
    }

    /// Let go the flights that were left first, until the others are within their bytes.
    pub(super) fn keep_within_bytes(&mut self) {
        while self.metrics.bytes() > self.bytes {
            let Some((until, id)) = self.order.pop_front() else { break };
            self.let_go(id, until, Gone::Bytes);
        }
    }

    /// Whether flights without a client hold more than they may.
    pub(super) fn over(&self) -> bool {
        self.metrics.bytes() > self.bytes
    }

    fn let_go(&mut self, id: StreamId, until: Instant, why: Gone) {
        // An older entry of the order may be of a flight that a client has come back to since, and left again.
        let due =
            self.entries.get(&id).is_some_and(|entry| entry.until == Some(until) && entry.log.is_without_readers());
        if !due {
            return;
        }
        let Some(entry) = self.remove(id) else { return };
        entry.log.abandon();
        self.metrics.gone(why);
        self.gone.insert(id, entry.claim.scope);
        self.gone_order.push_back(id);
        if self.gone_order.len() > MOST_GONE
            && let Some(oldest) = self.gone_order.pop_front()
        {
            self.gone.remove(&oldest);
        }
    }

    fn remove(&mut self, id: StreamId) -> Option<Entry> {
        let entry = self.entries.remove(&id)?;
        if let Some(key) = entry.claim.idempotency
            && self.by_idempotency.get(&key) == Some(&id)
        {
            self.by_idempotency.remove(&key);
        }
        Some(entry)
    }
}
