//! Step 7: the HTTP body is a read of the flight's log. Dropping it leaves the flight.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep};

use crate::api::error::ApiError;
use crate::coalesce::log::{Cursor, Step};
use crate::observe::{Outcome, Record};
use crate::types::{DONE, End};

/// A response's body.
#[derive(Debug)]
pub enum Reply {
    /// All of it is there.
    Full(Option<Bytes>),
    /// It is read from a flight.
    Flight(Box<FlightRead>),
}

/// The answer broke off in the middle and cannot be told so in its form: the connection is reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the answer broke off")]
pub struct BrokenOff;

/// A flight's answer on its way to one client.
#[derive(Debug)]
pub struct FlightRead {
    cursor: Cursor,
    record: Record,
    /// Whether the answer is an SSE stream.
    stream: bool,
    /// What is sent after the log's end or a cut.
    last: Option<Bytes>,
    ended: bool,
    keep_alive: Option<KeepAlive>,
}

#[derive(Debug)]
struct KeepAlive {
    every: Duration,
    timer: Pin<Box<Sleep>>,
}

impl Reply {
    /// A body that is there.
    pub fn full(bytes: Bytes) -> Self {
        Reply::Full(Some(bytes).filter(|bytes| !bytes.is_empty()))
    }

    /// The body that reads `cursor`. `keep_alive` is the silence after which a comment is sent (S8); zero is never.
    pub fn flight(cursor: Cursor, record: Record, stream: bool, keep_alive: Duration) -> Self {
        let keep_alive = (stream && !keep_alive.is_zero())
            .then(|| KeepAlive { every: keep_alive, timer: Box::pin(sleep(keep_alive)) });
        Reply::Flight(Box::new(FlightRead { cursor, record, stream, last: None, ended: false, keep_alive }))
    }
}

impl FlightRead {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BrokenOff>>> {
        if let Some(last) = self.last.take() {
            return Poll::Ready(Some(Ok(last)));
        }
        if self.ended {
            return Poll::Ready(None);
        }
        match self.cursor.poll_step(cx) {
            Poll::Ready(Step::Frame(bytes)) => {
                let content = !self.record.has_content() && self.cursor.has_content();
                self.record.sent(bytes.len(), content);
                if let Some(keep_alive) = &mut self.keep_alive {
                    keep_alive.timer.as_mut().reset(Instant::now() + keep_alive.every);
                }
                Poll::Ready(Some(Ok(bytes)))
            }
            Poll::Ready(Step::End(end)) => {
                self.ended = true;
                self.record.end(Outcome::from(end));
                // A stream was told of its failure by an event; half a JSON body can only break off.
                let broken = !self.stream && matches!(end, End::Failed(_)) && self.record.is_success();
                Poll::Ready(broken.then_some(Err(BrokenOff)))
            }
            Poll::Ready(Step::Cut) => {
                self.ended = true;
                self.record.end(Outcome::Cut);
                if !self.stream {
                    return Poll::Ready(Some(Err(BrokenOff)));
                }
                self.last = Some(DONE);
                Poll::Ready(Some(Ok(ApiError::lagged().sse_event())))
            }
            Poll::Pending => self.poll_keep_alive(cx),
        }
    }

    fn poll_keep_alive(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BrokenOff>>> {
        let Some(keep_alive) = &mut self.keep_alive else { return Poll::Pending };
        if keep_alive.timer.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        keep_alive.timer.as_mut().reset(Instant::now() + keep_alive.every);
        // Register with the new deadline.
        let _ = keep_alive.timer.as_mut().poll(cx);
        Poll::Ready(Some(Ok(Bytes::from_static(b": keep-alive\n\n"))))
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        match self.get_mut() {
            Reply::Full(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Reply::Flight(read) => read.poll(cx).map(|step| step.map(|result| result.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Reply::Full(bytes) => bytes.is_none(),
            Reply::Flight(read) => read.ended && read.last.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Reply::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Reply::Flight(_) => SizeHint::default(),
        }
    }
}
