//! Step 8: the HTTP body is a read of the flight's log. Dropping it leaves the flight (C1).

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep};

use crate::api::error::ApiError;
use crate::coalesce::log::{Cursor, Step};
use crate::observe::{Outcome, Record};
use crate::types::ErrorShape;

/// The comment that keeps a silent stream open (S8).
const KEEP_ALIVE: Bytes = Bytes::from_static(b": keep-alive\n\n");

/// The body of every response.
#[derive(Debug)]
pub enum Reply {
    /// A body in one piece, and the record that ends when it has been handed over.
    Full(Option<Bytes>, Option<(Box<Record>, Outcome)>),
    /// A stream of events, read from a flight.
    Flight(Box<Reader>),
}

impl Reply {
    /// A body that is there.
    pub fn full(body: Bytes) -> Self {
        Reply::Full(Some(body), None)
    }

    /// The same; when it has been handed over, its request has ended with `outcome`.
    pub fn recorded(body: Bytes, record: Record, outcome: Outcome) -> Self {
        Reply::Full(Some(body), Some((Box::new(record), outcome)))
    }

    /// A stream of events that reads `cursor`.
    pub fn flight(cursor: Cursor, keep_alive: KeepAlive, record: Record) -> Self {
        let state = if keep_alive.early { State::Early } else { State::Reading };
        Reply::Flight(Box::new(Reader { cursor, keep_alive, record, state }))
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            Reply::Full(body, record) => {
                let body = body.take().filter(|body| !body.is_empty());
                if let Some((mut record, outcome)) = record.take() {
                    record.sent(body.as_ref().map_or(0, Bytes::len), outcome == Outcome::Ok);
                    record.end(outcome);
                }
                Poll::Ready(body.map(|body| Ok(Frame::data(body))))
            }
            Reply::Flight(reader) => reader.poll(cx).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Reply::Full(None, None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Reply::Full(body, _) => SizeHint::with_exact(body.as_ref().map_or(0, |body| body.len() as u64)),
            Reply::Flight(_) => SizeHint::default(),
        }
    }
}

/// Collect an answer that is not a stream of events, and how it ended.
pub async fn collect(cursor: &mut Cursor) -> (Bytes, Outcome) {
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    let outcome = loop {
        match cursor.step().await {
            Step::Frame(frame) if first.is_empty() && rest.is_empty() => first = frame,
            Step::Frame(frame) => {
                rest.extend_from_slice(&std::mem::take(&mut first));
                rest.extend_from_slice(&frame);
            }
            Step::End(end) => break Outcome::from(end),
            Step::Cut => break Outcome::Cut,
        }
    };
    (if rest.is_empty() { first } else { rest.freeze() }, outcome)
}

/// Sends a comment each time a stream has been silent for the interval.
#[derive(Debug)]
pub struct KeepAlive {
    interval: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    /// A response head of our own went out, before that of the flight.
    early: bool,
    /// How the stream tells of an error.
    errors: ErrorShape,
}

impl KeepAlive {
    /// Zero is never.
    pub fn every(interval: Duration, errors: ErrorShape) -> Self {
        Self { interval, timer: None, early: false, errors }
    }

    /// Ready when the stream has been silent for the interval.
    pub fn poll_due(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.interval.is_zero() {
            return Poll::Pending;
        }
        let interval = self.interval;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(interval)));
        std::task::ready!(timer.as_mut().poll(cx));
        timer.as_mut().reset(Instant::now() + interval);
        Poll::Ready(())
    }

    /// The same, before the flight's head has come: the response head goes out with the comment.
    pub fn poll_early(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        std::task::ready!(self.poll_due(cx));
        self.early = true;
        Poll::Ready(())
    }

    fn restart(&mut self) {
        if let Some(timer) = &mut self.timer {
            timer.as_mut().reset(Instant::now() + self.interval);
        }
    }
}

/// The reading of one subscriber.
#[derive(Debug)]
pub struct Reader {
    cursor: Cursor,
    keep_alive: KeepAlive,
    record: Record,
    state: State,
}

#[derive(Debug)]
enum State {
    /// A response head of our own is out; its comment comes first.
    Early,
    /// After it, the flight's head has not been looked at.
    HeadUnseen,
    Reading,
    /// What comes is the JSON of an error, for which a status of our own went out already: it becomes an event.
    ReadingError,
    /// The last bytes have been handed over.
    Over,
}

impl Reader {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        match self.state {
            State::Over => return Poll::Ready(None),
            State::Early => {
                self.state = State::HeadUnseen;
                return Poll::Ready(Some(KEEP_ALIVE));
            }
            State::HeadUnseen | State::Reading | State::ReadingError => {}
        }
        let Poll::Ready(step) = self.cursor.poll_step(cx) else {
            return self.keep_alive.poll_due(cx).map(|()| Some(KEEP_ALIVE));
        };
        match step {
            Step::Frame(frame) => {
                self.keep_alive.restart();
                self.look_at_head();
                let frame = if matches!(self.state, State::ReadingError) { self.error_event(frame) } else { frame };
                let content = !self.record.has_content() && self.cursor.has_content();
                self.record.sent(frame.len(), content);
                Poll::Ready(Some(frame))
            }
            Step::End(end) => {
                self.state = State::Over;
                self.record.end(Outcome::from(end));
                Poll::Ready(None)
            }
            Step::Cut => {
                self.state = State::Over;
                self.record.end(Outcome::Cut);
                Poll::Ready(Some(ApiError::lagged().stream_end(self.keep_alive.errors)))
            }
        }
    }

    /// The body of an error as the end of a stream whose head has gone out (S5).
    fn error_event(&self, body: Bytes) -> Bytes {
        ApiError::upstream_event(body).stream_end(self.keep_alive.errors)
    }

    fn look_at_head(&mut self) {
        if matches!(self.state, State::HeadUnseen) {
            // A frame never comes before the head.
            let head = self.cursor.head().now_or_never();
            let events = head.is_some_and(|head| head.is_event_stream());
            self.state = if events { State::Reading } else { State::ReadingError };
        }
    }
}
