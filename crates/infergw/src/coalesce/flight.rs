//! A flight: one generation in progress, run by a task of its own, and the writer that the backend fills.

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;

use super::log::{Closed, Log};
use crate::api::error::ApiError;
use crate::types::{Cause, End, ErrorShape, Failure, Head};

/// Run `lead` in the flight's own task until it ends or its last subscriber leaves; then call `land`.
///
/// This is the one jump in a request's path: the leader's connection goes on as a reader of the log.
pub(super) fn launch<L, F, E>(log: &Arc<Log>, lead: L, land: E)
where
    L: FnOnce(FlightWriter) -> F,
    F: Future<Output = ()> + Send + 'static,
    E: FnOnce() + Send + 'static,
{
    let landing = Landing(Some(land));
    let cancelled = Arc::clone(log);
    // Boxed at once: every move on its way into the task would copy all of it, and select would hold it twice.
    let run = Box::pin(lead(FlightWriter::new(Arc::clone(log))));
    tokio::spawn(async move {
        let _landing = landing;
        tokio::select! {
            // The run first: where both are ready the answer is whole, not cancelled.
            biased;
            () = run => {}
            () = cancelled.abandoned() => {}
        }
    });
}

/// Calls the closure when dropped, so that a panicking or cancelled flight leaves the registry too.
struct Landing<E: FnOnce()>(Option<E>);

impl<E: FnOnce()> Drop for Landing<E> {
    fn drop(&mut self) {
        if let Some(land) = self.0.take() {
            land();
        }
    }
}

/// Where a backend writes its answer. Dropping it without an end ends the flight with an error.
#[derive(Debug)]
pub struct FlightWriter {
    log: Arc<Log>,
    /// Held back until the first event, so that an upstream that fails in between can still be retried (R4).
    head: Option<Head>,
    failed: Option<Cause>,
    /// The first content has been marked.
    content: bool,
    ended: bool,
    errors: ErrorShape,
}

impl FlightWriter {
    /// The writer of an empty log.
    pub(super) fn new(log: Arc<Log>) -> Self {
        Self { log, head: None, failed: None, content: false, ended: false, errors: ErrorShape::default() }
    }

    /// Set the answer's head. It is published with the first [`push`](Self::push), [`commit`](Self::commit) or end.
    pub fn head(&mut self, head: Head) {
        self.head = Some(head);
    }

    /// Set the shape that failures are told in.
    pub fn errors(&mut self, shape: ErrorShape) {
        self.errors = shape;
    }

    /// Whether the head has been published: from then on nothing may be retried.
    pub fn committed(&self) -> bool {
        self.log.has_head()
    }

    /// Publish the head now, for a keep-alive comment (S8).
    pub fn commit(&mut self) {
        if let Some(head) = self.head.take() {
            self.log.publish(head);
        }
    }

    /// The next frame is the first one with content: what the time to first token is measured to (O1).
    pub fn content(&mut self) {
        if !std::mem::replace(&mut self.content, true) {
            self.log.mark_content();
        }
    }

    /// The answer failed and the client has been told so in the stream: a later `Ok` end counts as this failure.
    pub fn failed(&mut self, cause: Cause) {
        self.failed = Some(cause);
    }

    /// Append whole SSE events (or a whole JSON body). Waits while every subscriber is slow (M1).
    ///
    /// # Errors
    /// [`Closed`] when no subscriber is left: stop working.
    pub async fn push(&mut self, frame: Bytes) -> Result<(), Closed> {
        self.push_all([frame]).await
    }

    /// Append several in one step: the readers are woken once.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub async fn push_all(&mut self, frames: impl IntoIterator<Item = Bytes>) -> Result<(), Closed> {
        self.commit();
        if self.log.append(frames)? { Ok(()) } else { self.log.room().await }
    }

    /// End the flight. `stream` says whether a failure after the head is told as an SSE event (S5).
    pub fn finish(mut self, result: Result<(), Failure>, stream: bool) {
        self.ended = true;
        match result {
            Ok(()) => {
                self.commit();
                self.log.end(self.failed.map_or(End::Done, End::Failed));
            }
            Err(failure) => self.fail(failure, stream),
        }
    }

    fn fail(&mut self, failure: Failure, stream: bool) {
        if !self.committed() {
            let Failure { error, cause } = failure;
            let error = error.in_shape(self.errors);
            self.log.publish(Head { status: error.status, headers: error.response_headers() });
            // With no subscriber left there is nobody to tell.
            let _ = self.log.append([error.body().clone()]);
            self.log.end(End::Failed(cause));
        } else {
            if stream {
                let _ = self.log.append([failure.error.stream_end(self.errors)]);
            }
            self.log.end(End::Failed(failure.cause));
        }
    }
}

impl Drop for FlightWriter {
    fn drop(&mut self) {
        if !self.ended {
            let error = ApiError::internal("The gateway gave up this request.");
            self.fail(Failure::new(Cause::Cut, error), true);
        }
    }
}
