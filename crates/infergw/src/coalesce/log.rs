//! The flight log: an append-only list of frames that every subscriber reads at its own pace.
//!
//! A cursor is a position; a wake-up tells it that the log grew. There is no broadcast buffer, so there is no lag, no gap
//! and no repeat (C2). Memory is bounded: past the join window nobody can join any more, and what every cursor has passed
//! is freed; then the producer waits for slow readers, or the slow ones are cut where a fast one is there (M1).

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use slab::Slab;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::resume::{Numbered, StreamId};
use crate::observe::Sharing;
use crate::types::{Bypass, End, Head};

mod linger;
mod seen;

pub(super) use linger::Return;
pub use seen::Seen;

/// Limits of one log.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// Bytes after which nobody can join; from then on also the most that the log holds.
    pub join_window: usize,
    /// Age after which nobody can join.
    pub join_age: Duration,
    /// Most subscribers of one flight.
    pub max_subscribers: usize,
}

/// Bytes held by all logs of a gateway.
#[derive(Debug)]
pub struct LogTotal {
    held: AtomicUsize,
    limit: usize,
    sharing: Sharing,
}

impl LogTotal {
    /// Nothing held yet; over `limit` bytes no flight takes joiners.
    pub fn new(limit: usize) -> Self {
        Self::counting(limit, Sharing::default())
    }

    /// The same, with counters that somebody looks at.
    pub fn counting(limit: usize, sharing: Sharing) -> Self {
        Self { held: AtomicUsize::new(0), limit, sharing }
    }

    /// Bytes held now.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    fn over(&self) -> bool {
        self.held() > self.limit
    }
}

/// No subscriber is left: the flight is abandoned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no subscriber is left")]
pub struct Closed;

/// What a cursor finds at its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The next frames, in order, whole.
    Frame(Bytes),
    /// The flight ended and everything was read.
    End(End),
    /// This subscriber lagged too far behind a faster one and is cut off (M1).
    Cut,
}

/// One flight's log. Shared by the writer and the cursors.
#[derive(Debug)]
pub struct Log {
    state: Mutex<State>,
    abandoned: Notify,
    bounds: Bounds,
    total: Arc<LogTotal>,
    about: About,
    /// By what clients come back to it, where they can.
    resume: Option<Return>,
    /// Tokens generated so far: as the answer reports them, else counted by the backend.
    tokens: AtomicU64,
}

/// What operators see of a flight's question. Nothing in it comes from the client.
#[derive(Debug, Clone, Default)]
pub struct About {
    /// The model, where a backend lists it.
    pub model: Option<Arc<str>>,
    /// The endpoint's path.
    pub path: &'static str,
}

#[derive(Debug)]
struct State {
    head: Option<Arc<Head>>,
    frames: VecDeque<Frame>,
    /// The number of frames that were freed: `frames[0]` is frame number `freed`.
    freed: u64,
    /// The event that was freed last.
    freed_event: u64,
    /// The number of the last event, where events have numbers.
    events: u64,
    /// Bytes ever appended.
    written: u64,
    held: usize,
    end: Option<End>,
    /// The number of the first frame with content.
    content: Option<u64>,
    /// Whether others may join. Once false it stays false.
    open: bool,
    /// Why not, where it is not simply over.
    shut: Option<Bypass>,
    /// The most that any reader that has left had read.
    delivered: u64,
    /// The first frame that the last reader had not read when it left.
    left_at: u64,
    /// No reader is left, and none comes back.
    abandoned: bool,
    /// What it is charged for while it is kept without a reader.
    charged: usize,
    since: Instant,
    readers: Slab<Reader>,
    writer: Option<Waker>,
}

#[derive(Debug)]
struct Frame {
    bytes: Bytes,
    /// Bytes ever appended up to and including this frame.
    until: u64,
    /// The number of the event that it is or comes before, where events have numbers.
    event: u64,
}

#[derive(Debug, Default)]
struct Reader {
    /// The number of the next frame to read.
    next: u64,
    /// Bytes read, those included that it had from another reader's time.
    read: u64,
    /// Where it began.
    from: u64,
    cut: bool,
    waker: Option<Waker>,
}

impl Log {
    /// A log with its first subscriber. A log that is not `shared` never takes another.
    pub fn start(bounds: Bounds, shared: bool, total: Arc<LogTotal>) -> (Arc<Self>, Cursor) {
        Self::start_as((About::default(), None), bounds, shared, total)
    }

    /// The same, with what operators see of it, and by what clients come back to it.
    pub(super) fn start_as(
        (about, resume): (About, Option<Return>),
        bounds: Bounds,
        shared: bool,
        total: Arc<LogTotal>,
    ) -> (Arc<Self>, Cursor) {
        let mut readers = Slab::with_capacity(1);
        let id = readers.insert(Reader::default());
        let state = State {
            head: None,
            frames: VecDeque::new(),
            freed: 0,
            freed_event: 0,
            events: 0,
            written: 0,
            held: 0,
            end: None,
            content: None,
            open: shared,
            shut: None,
            delivered: 0,
            left_at: 0,
            abandoned: false,
            charged: 0,
            since: Instant::now(),
            readers,
            writer: None,
        };
        total.sharing.subscribers.inc();
        let tokens = AtomicU64::new(0);
        let (state, abandoned) = (Mutex::new(state), Notify::new());
        let log = Arc::new(Self { state, abandoned, bounds, total, about, resume, tokens });
        let cursor = Cursor { log: Arc::clone(&log), id };
        (log, cursor)
    }

    /// Another subscriber, reading from the first frame; `None` when the flight takes no joiners (any more).
    pub fn subscribe(self: &Arc<Self>) -> Option<Cursor> {
        self.join().ok()
    }

    /// The same, or why not; without a reason where the flight is over, or being cancelled.
    pub(super) fn join(self: &Arc<Self>) -> Result<Cursor, Option<Bypass>> {
        let mut state = self.lock();
        // Abandoned, the flight is being cancelled; with an end it is over, and an error is never kept (C6).
        if state.end.is_some() || state.is_abandoned() {
            return Err(None);
        }
        if self.total.over() {
            state.shut(Bypass::Total);
        } else if state.since.elapsed() > self.bounds.join_age {
            state.shut(Bypass::Age);
        }
        if !state.open {
            return Err(state.shut);
        }
        if state.readers.len() >= self.bounds.max_subscribers {
            return Err(Some(Bypass::Subscribers));
        }
        let id = state.readers.insert(Reader::default());
        self.charge(&mut state);
        self.total.sharing.subscribers.inc();
        Ok(Cursor { log: Arc::clone(self), id })
    }

    /// Subscribers now.
    pub fn subscribers(&self) -> usize {
        self.lock().readers.len()
    }

    pub(super) fn has_head(&self) -> bool {
        self.lock().head.is_some()
    }

    pub(super) fn publish(&self, head: Head) {
        let mut state = self.lock();
        if state.open && !head.may_be_shared() {
            state.shut(Bypass::Unshareable);
        }
        state.head.get_or_insert_with(|| Arc::new(head));
        state.wake_readers();
    }

    /// The next frame is the first one with content; later calls change nothing.
    pub(super) fn mark_content(&self) {
        let mut state = self.lock();
        let next = state.freed + state.frames.len() as u64;
        state.content.get_or_insert(next);
    }

    /// Append these frames in one step; whether the log is still within its bound. If it is not, wait for [`room`](Self::room).
    pub(super) fn append(&self, frames: impl IntoIterator<Item = impl Into<Numbered>>) -> Result<bool, Closed> {
        let mut state = self.lock();
        if state.is_abandoned() {
            return Err(Closed);
        }
        if state.end.is_some() {
            return Ok(true);
        }
        let before = state.held;
        for Numbered { bytes, event, is_event } in frames.into_iter().map(Into::into) {
            if bytes.is_empty() {
                continue;
            }
            if is_event {
                state.events = event;
            }
            state.written += bytes.len() as u64;
            state.held += bytes.len();
            let until = state.written;
            state.frames.push_back(Frame { bytes, until, event });
        }
        self.total.held.fetch_add(state.held - before, Ordering::Relaxed);
        let room = state.held <= self.bounds.join_window;
        if !room {
            state.shut(Bypass::Window);
        }
        state.wake_readers();
        let grown = self.charge(&mut state);
        drop(state);
        if let Some(resume) = self.resume.as_ref().filter(|_| grown) {
            resume.grown();
        }
        Ok(room)
    }

    /// Wait until the log is within its bound again; cut who lags behind a faster reader.
    pub(super) async fn room(&self) -> Result<(), Closed> {
        poll_fn(|cx| self.poll_room(cx)).await
    }

    fn poll_room(&self, cx: &Context<'_>) -> Poll<Result<(), Closed>> {
        let mut state = self.lock();
        if state.is_abandoned() {
            return Poll::Ready(Err(Closed));
        }
        // Of an answer in one piece nothing more comes.
        if state.held <= self.bounds.join_window || self.is_whole() {
            return Poll::Ready(Ok(()));
        }
        self.free(&mut state);
        if state.held > self.bounds.join_window && state.cut_the_slow(self.bounds.join_window as u64) {
            self.free(&mut state);
        }
        if state.held <= self.bounds.join_window {
            return Poll::Ready(Ok(()));
        }
        state.writer = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Tokens generated so far.
    pub(super) fn generated(&self, tokens: u64) {
        self.tokens.store(tokens, Ordering::Relaxed);
    }

    pub(super) fn end(&self, end: End) {
        let mut state = self.lock();
        state.end.get_or_insert(end);
        state.open = false;
        state.wake_readers();
    }

    /// Ready once the last subscriber has left.
    pub(super) async fn abandoned(&self) {
        self.abandoned.notified().await;
    }

    /// Free the frames that every reader has passed, once nobody can join any more, but for what may be asked for again.
    fn free(&self, state: &mut State) {
        if state.open {
            return;
        }
        let passed = state.readers.iter().filter(|(_, r)| !r.cut).map(|(_, r)| r.next).min();
        // Every reader that is left was cut: none reads on. Or none is there: the last one may come back.
        let passed = passed.unwrap_or(if state.readers.is_empty() { state.left_at } else { u64::MAX });
        let kept = self.kept_behind();
        while state.freed < passed && state.held > kept {
            let Some(frame) = state.frames.pop_front() else { break };
            state.freed += 1;
            state.freed_event = frame.event;
            state.held -= frame.bytes.len();
            self.total.held.fetch_sub(frame.bytes.len(), Ordering::Relaxed);
        }
    }

    /// Whether the upstream said that this answer must not be shared.
    pub(super) fn is_unshareable(&self) -> bool {
        self.lock().shut == Some(Bypass::Unshareable)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock; were it so, the state is still consistent frame by frame.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let mut state = self.lock();
        state.abandon();
        self.charge(&mut state);
        let held = state.held;
        drop(state);
        self.total.held.fetch_sub(held, Ordering::Relaxed);
    }
}

impl State {
    /// Take no more joiners; the first reason counts.
    fn shut(&mut self, why: Bypass) {
        if std::mem::replace(&mut self.open, false) {
            self.shut = Some(why);
        }
    }

    /// How much of what a reader got that leaves another one got too. The sum over all readers is what the flight gave
    /// beyond what came from the backend once.
    fn settle(&mut self, reader: &Reader) -> u64 {
        let before = self.delivered;
        self.delivered = before.max(reader.read);
        before.min(reader.read).saturating_sub(reader.from)
    }

    fn wake_readers(&mut self) {
        for (_, reader) in &mut self.readers {
            if let Some(waker) = reader.waker.take() {
                waker.wake();
            }
        }
    }

    /// Cut the readers that are more than `bound` bytes behind, if another one keeps up; true if any was cut.
    fn cut_the_slow(&mut self, bound: u64) -> bool {
        let written = self.written;
        let lag = |reader: &Reader| written - reader.read;
        let keeps_up = self.readers.iter().any(|(_, r)| !r.cut && lag(r) <= bound / 2);
        if !keeps_up {
            return false;
        }
        let mut any = false;
        for (_, reader) in &mut self.readers {
            if !reader.cut && written - reader.read > bound {
                reader.cut = true;
                any = true;
                if let Some(waker) = reader.waker.take() {
                    waker.wake();
                }
            }
        }
        any
    }
}

/// Frames are joined up to this size for a reader with a backlog: fewer, larger writes for it.
const READ_SIZE: usize = 16 * 1024;

/// A subscriber's position in a log. Dropping it leaves the flight; the last one to leave cancels it (C1), unless it can
/// come back.
#[derive(Debug)]
pub struct Cursor {
    log: Arc<Log>,
    id: usize,
}

impl Cursor {
    /// Wait for the answer's head.
    pub async fn head(&mut self) -> Arc<Head> {
        poll_fn(|cx| {
            let mut state = self.log.lock();
            if let Some(head) = &state.head {
                return Poll::Ready(Arc::clone(head));
            }
            state.park(self.id, cx);
            Poll::Pending
        })
        .await
    }

    /// What comes next; advances past it.
    pub fn poll_step(&mut self, cx: &Context<'_>) -> Poll<Step> {
        let mut guard = self.log.lock();
        let state = &mut *guard;
        let Some(reader) = state.readers.get_mut(self.id) else { return Poll::Ready(Step::Cut) };
        if reader.cut {
            return Poll::Ready(Step::Cut);
        }
        // `next` is never below `freed`: frames are freed only when every reader that is not cut has passed them.
        let start = (reader.next - state.freed) as usize;
        let Some(first) = state.frames.get(start) else {
            if let Some(end) = state.end {
                return Poll::Ready(Step::End(end));
            }
            state.park(self.id, cx);
            return Poll::Pending;
        };
        let (bytes, count, until) = joined(first, state.frames.range(start + 1..));
        reader.next += count;
        reader.read = until;
        if !state.open {
            if state.readers.len() == 1 {
                self.log.free(state);
            }
            if let Some(writer) = state.writer.take() {
                writer.wake();
            }
        }
        Poll::Ready(Step::Frame(bytes))
    }

    /// Whether the last frame read, or one before it, had content.
    pub fn has_content(&self) -> bool {
        let state = self.log.lock();
        state.content.zip(state.readers.get(self.id)).is_some_and(|(content, reader)| reader.next > content)
    }

    /// The id of the stream, where its client can come back to it.
    pub fn stream_id(&self) -> Option<StreamId> {
        self.log.stream_id()
    }

    /// The endpoint's path.
    pub fn path(&self) -> &'static str {
        self.log.about.path
    }

    /// The model, where a backend lists it.
    pub fn model(&self) -> Option<Arc<str>> {
        self.log.about.model.clone()
    }

    /// Whether the flight has ended and this has read it all.
    pub fn is_over(&self) -> bool {
        let state = self.log.lock();
        let end = state.freed + state.frames.len() as u64;
        state.end.is_some() && state.readers.get(self.id).is_none_or(|reader| reader.next >= end)
    }

    /// What a whole answer reports of its tokens.
    pub fn generated(&self, tokens: u64) {
        self.log.generated(tokens);
    }

    /// What comes next, as a future.
    pub async fn step(&mut self) -> Step {
        poll_fn(|cx| self.poll_step(cx)).await
    }
}

/// The first frame and those after it, as long as they fit into one write: bytes, number of frames, position after them.
fn joined<'a>(first: &'a Frame, rest: impl Iterator<Item = &'a Frame> + Clone) -> (Bytes, u64, u64) {
    let mut size = first.bytes.len();
    let mut count = 1;
    for frame in rest.clone() {
        if size + frame.bytes.len() > READ_SIZE {
            break;
        }
        size += frame.bytes.len();
        count += 1;
    }
    if count == 1 {
        return (first.bytes.clone(), 1, first.until);
    }
    let mut bytes = Vec::with_capacity(size);
    bytes.extend_from_slice(&first.bytes);
    let mut until = first.until;
    for frame in rest.take(count - 1) {
        bytes.extend_from_slice(&frame.bytes);
        until = frame.until;
    }
    (bytes.into(), count as u64, until)
}

impl State {
    fn park(&mut self, id: usize, cx: &Context<'_>) {
        if let Some(reader) = self.readers.get_mut(id) {
            match &mut reader.waker {
                Some(waker) => waker.clone_from(cx.waker()),
                none => *none = Some(cx.waker().clone()),
            }
        }
    }
}

impl Drop for Cursor {
    fn drop(&mut self) {
        let log = &self.log;
        log.total.sharing.subscribers.dec();
        let mut state = log.lock();
        if let Some(reader) = state.readers.try_remove(self.id) {
            state.left_at = reader.next;
            let saved = state.settle(&reader);
            if saved > 0 {
                let share = saved as f64 / state.written as f64;
                log.total.sharing.saved(saved, (log.tokens.load(Ordering::Relaxed) as f64 * share).round() as u64);
            }
        }
        if let Some(writer) = state.writer.take() {
            writer.wake();
        }
        if !state.readers.is_empty() {
            return;
        }
        if log.may_be_resumed(&state) {
            log.charge(&mut state);
        } else {
            state.abandon();
            if state.end.is_none() {
                log.abandoned.notify_one();
            }
        }
        drop(state);
        if let Some(resume) = &log.resume {
            resume.left();
        }
    }
}

#[cfg(test)]
mod tests;
