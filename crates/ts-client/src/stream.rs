//! One request's output, from the thread that receives it to the task that reads it.
//!
//! Rows that the reader has not taken are merged into one chunk, so that the memory of a slow reader follows the number
//! of its tokens, not that of the rows; past a limit the stream is cancelled.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use ts_wire::RequestOutput;
use ts_wire::output::{FinishDetails, PromptTopLogprobs, RowView, TopLogprobs};

use crate::client::Shared;
use crate::error::{EndCause, StreamError};
use crate::route::Slot;

/// One step of a request's output, or several that the reader had not taken when they arrived.
#[derive(Debug, Clone, PartialEq)]
pub struct OutputChunk {
    /// Token ids since the last chunk.
    pub output_ids: Vec<i32>,
    /// `"stop"`, `"length"` or `"abort"`, on the last chunk.
    pub finish_reason: Option<String>,
    /// Tokens of the prompt.
    pub prompt_tokens: i64,
    /// Tokens generated so far.
    pub completion_tokens: i64,
    /// Prompt tokens that came from the prefix cache.
    pub cached_tokens: i64,
    /// Logprobs of this chunk's tokens; empty where not asked for.
    pub output_token_logprobs: Vec<f64>,
    /// The finish reason in full, on the last chunk, from an engine that sends it.
    pub finish_details: Option<FinishDetails>,
    /// Verification rounds so far, with speculative decoding.
    pub spec_verify_ct: Option<i64>,
    /// Accepted tokens per round, once finished with speculative decoding.
    pub accept_draft_tokens: Option<f64>,
    /// Logprobs of the prompt (`None` for its first position) and their tokens, in the one chunk that carries them.
    pub input_token_logprobs: Option<(Vec<Option<f64>>, Vec<i32>)>,
    /// The alternatives at the prompt's positions, beside its logprobs.
    pub input_top_logprobs: Option<PromptTopLogprobs>,
    /// The alternatives of this chunk's tokens, where asked for.
    pub output_top_logprobs: Option<TopLogprobs>,
}

/// The output of one request, in order.
///
/// Dropping it before its end aborts the request.
#[derive(Debug)]
pub struct RequestStream {
    buffer: Arc<StreamBuffer>,
    shared: Weak<Shared>,
}

/// The meeting place of the receiving thread and the reader.
#[derive(Debug)]
pub(crate) struct StreamBuffer {
    rid: Arc<str>,
    engine_index: u16,
    limit: usize,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// What arrived and was not read.
    chunk: Option<OutputChunk>,
    /// Size of `chunk`, in bytes.
    bytes: usize,
    /// How it ended: `Some(None)` with a finish reason, `Some(Some(_))` without.
    end: Option<Option<EndCause>>,
    /// The reader has been told of the end.
    told: bool,
    /// The place that the request takes up on its rank, until its end.
    slot: Option<Slot>,
    waker: Option<Waker>,
}

/// Whether the stream took a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pushed {
    Taken,
    /// The reader is too far behind.
    Overrun,
}

// === impl OutputChunk ===

impl OutputChunk {
    fn of_row(row: &RowView<'_>) -> Self {
        let mut chunk = Self::empty();
        chunk.append(row);
        chunk
    }

    fn empty() -> Self {
        Self {
            output_ids: Vec::new(),
            finish_reason: None,
            prompt_tokens: 0,
            completion_tokens: 0,
            cached_tokens: 0,
            output_token_logprobs: Vec::new(),
            finish_details: None,
            spec_verify_ct: None,
            accept_draft_tokens: None,
            input_token_logprobs: None,
            input_top_logprobs: None,
            output_top_logprobs: None,
        }
    }

    /// Add a later row. Returns by how many bytes the chunk grew.
    fn append(&mut self, row: &RowView<'_>) -> usize {
        row.output_ids.append_to(&mut self.output_ids);
        row.output_token_logprobs.append_to(&mut self.output_token_logprobs);
        let mut bytes = row.output_ids.len() * size_of::<i32>() + row.output_token_logprobs.len() * size_of::<f64>();
        self.prompt_tokens = row.prompt_tokens;
        self.completion_tokens = row.completion_tokens;
        self.cached_tokens = row.cached_tokens;
        if let Some(reason) = row.finish_reason {
            self.finish_reason = Some(reason.to_owned());
            self.finish_details = row.finish_details();
        }
        if row.is_plain() {
            return bytes;
        }
        self.spec_verify_ct = row.spec_verify_ct().or(self.spec_verify_ct);
        self.accept_draft_tokens = row.accept_draft_tokens().or(self.accept_draft_tokens);
        if let Some(prompt) = row.input_token_logprobs() {
            bytes += prompt.0.len() * size_of::<Option<f64>>() + prompt.1.len() * size_of::<i32>();
            self.input_token_logprobs = Some(prompt);
        }
        if let Some(top) = row.input_top_logprobs() {
            bytes += top.0.iter().flatten().map(|values| 24 + values.len() * 12).sum::<usize>() + top.0.len() * 48;
            self.input_top_logprobs = Some(top);
        }
        if let Some((values, ids)) = row.output_top_logprobs() {
            bytes += values.iter().map(|values| 48 + values.len() * 12).sum::<usize>();
            let (all_values, all_ids) = self.output_top_logprobs.get_or_insert_default();
            all_values.extend(values);
            all_ids.extend(ids);
        }
        bytes
    }
}

impl From<&RequestOutput<'_>> for OutputChunk {
    fn from(row: &RequestOutput<'_>) -> Self {
        Self {
            output_ids: row.output_ids.to_vec(),
            finish_reason: row.finish_reason.map(str::to_owned),
            prompt_tokens: row.prompt_tokens,
            completion_tokens: row.completion_tokens,
            cached_tokens: row.cached_tokens,
            output_token_logprobs: row.output_token_logprobs.to_vec(),
            finish_details: row.finish_details.cloned(),
            spec_verify_ct: row.spec_verify_ct,
            accept_draft_tokens: row.accept_draft_tokens,
            input_token_logprobs: row.input_token_logprobs.map(|(values, ids)| (values.to_vec(), ids.to_vec())),
            input_top_logprobs: row.input_top_logprobs.map(|(values, ids)| (values.to_vec(), ids.to_vec())),
            output_top_logprobs: row.output_top_logprobs.map(|(values, ids)| (values.to_vec(), ids.to_vec())),
        }
    }
}

// === impl RequestStream ===

impl RequestStream {
    pub(crate) fn new(buffer: Arc<StreamBuffer>, shared: Weak<Shared>) -> Self {
        Self { buffer, shared }
    }

    /// The request id.
    pub fn rid(&self) -> &str {
        &self.buffer.rid
    }

    /// The index of the engine that runs the request.
    pub fn engine_index(&self) -> u16 {
        self.buffer.engine_index
    }

    /// The next chunk: all output that has arrived and was not read. `None` after the chunk with a finish reason, or
    /// after an error. Cancel safe: no output is lost when the future is dropped.
    pub async fn next(&mut self) -> Option<Result<OutputChunk, StreamError>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// [`RequestStream::next`] for hand-written futures.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<OutputChunk, StreamError>>> {
        let mut inner = self.buffer.lock();
        if let Some(chunk) = inner.chunk.take() {
            inner.bytes = 0;
            inner.told |= chunk.finish_reason.is_some();
            return Poll::Ready(Some(Ok(chunk)));
        }
        let Some(end) = &inner.end else {
            if !inner.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                inner.waker = Some(cx.waker().clone());
            }
            return Poll::Pending;
        };
        let error = end.as_ref().and_then(EndCause::stream_error).filter(|_| !inner.told);
        inner.told = true;
        Poll::Ready(error.map(Err))
    }

    /// Why the stream ended without a finished output, for programs; `None` while it runs and after a regular end.
    pub fn end_cause(&self) -> Option<EndCause> {
        self.buffer.lock().end.clone().flatten()
    }
}

impl Drop for RequestStream {
    fn drop(&mut self) {
        let running = {
            let mut inner = self.buffer.lock();
            inner.slot = None;
            inner.end.is_none()
        };
        if running && let Some(shared) = self.shared.upgrade() {
            shared.stream_dropped(Arc::clone(&self.buffer));
        }
    }
}

// === impl StreamBuffer ===

impl StreamBuffer {
    pub(crate) fn new(rid: Arc<str>, engine_index: u16, slot: Slot, limit: usize) -> Self {
        let inner = Inner { chunk: None, bytes: 0, end: None, told: false, slot: Some(slot), waker: None };
        Self { rid, engine_index, limit, inner: Mutex::new(inner) }
    }

    pub(crate) fn rid(&self) -> &Arc<str> {
        &self.rid
    }

    /// Hand over a row; with `last`, it is the stream's last one and the request's place is free. The reader's waker, if
    /// it waits, goes to `wakers`.
    pub(crate) fn push(&self, row: &RowView<'_>, last: bool, wakers: &mut Vec<Waker>) -> Pushed {
        let mut inner = self.lock();
        if inner.end.is_some() {
            return Pushed::Taken;
        }
        let grown = match &mut inner.chunk {
            Some(chunk) => chunk.append(row),
            None => {
                let chunk = OutputChunk::of_row(row);
                let bytes = chunk.output_ids.len() * size_of::<i32>();
                inner.chunk = Some(chunk);
                bytes
            }
        };
        inner.bytes += grown;
        if last {
            inner.end = Some(None);
            inner.slot = None;
        }
        wakers.extend(inner.waker.take());
        if inner.bytes > self.limit && !last { Pushed::Overrun } else { Pushed::Taken }
    }

    /// End the stream without a last row. What arrived before stays readable, unless the reader fell behind.
    pub(crate) fn end(&self, cause: EndCause) {
        let mut inner = self.lock();
        if inner.end.is_some() {
            return;
        }
        match &cause {
            EndCause::Overrun { .. } => inner.chunk = None,
            // An abort is a regular end: what arrived is handed over with the reason on it.
            EndCause::Aborted => {
                inner.chunk.get_or_insert_with(OutputChunk::empty).finish_reason = Some("abort".into())
            }
            _ => {}
        }
        inner.end = Some(Some(cause));
        inner.slot = None;
        wake(inner);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wake the reader once the lock is free.
fn wake(mut inner: MutexGuard<'_, Inner>) {
    let waker = inner.waker.take();
    drop(inner);
    if let Some(waker) = waker {
        waker.wake();
    }
}
