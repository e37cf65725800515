//! The running answer: what engines say becomes events or a body in the flight.
//!
//! One buffer of events is written for each thing an engine says. While the flight's subscribers are slow the write waits,
//! and meanwhile the client library merges what comes: a slow client makes tokens merge, not queue (M1).

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use ts_client::{EndCause, OutputChunk, RequestStream, StreamError};

use super::choice::{Choice, Delta, Ended, Reason, Step};
use super::deadline::{Deadlines, Due};
use super::detokenize::TokenTable;
use super::failure;
use super::parse::{Parser, Plan};
use super::prepare::Prepared;
use super::teller::{Teller, Telling};
use crate::api::error::ApiError;
use crate::coalesce::flight::FlightWriter;
use crate::config::Timeouts;
use crate::types::{Cause, Failure, Head, Question, Usage};

/// A submitted request: its choices and the streams that feed them, in the order of their index.
pub(super) struct Generation<'a> {
    pub(super) question: &'a Question,
    pub(super) prepared: &'a Prepared,
    pub(super) table: &'a Arc<TokenTable>,
    pub(super) ends: Arc<[u32]>,
    pub(super) id: String,
}

impl Generation<'_> {
    /// Run to the end. Dropping the future drops the streams, which aborts what runs (D1).
    pub(super) async fn run(
        self,
        streams: Vec<RequestStream>,
        limits: &Timeouts,
        writer: &mut FlightWriter,
    ) -> Result<(), Failure> {
        let form = &self.prepared.form;
        let Self { question, prepared, table, ref id, .. } = self;
        let mut teller = form.teller(Telling { question, prepared, table, id });
        let told = self.tell(streams, limits, &mut *teller, writer).await;
        match told {
            // In its API's own way, where that has one.
            Err(failure) if question.stream && writer.committed() && teller.fail(&failure) => {
                writer.failed(failure.cause);
                push(writer, std::mem::take(teller.buffer())).await
            }
            told => told,
        }
    }

    async fn tell(
        &self,
        streams: Vec<RequestStream>,
        limits: &Timeouts,
        teller: &mut dyn Teller,
        writer: &mut FlightWriter,
    ) -> Result<(), Failure> {
        let mut tracks: Vec<Track> = (0..streams.len()).map(|index| self.track(index)).collect();
        let mut sources = Sources::new(streams);
        let mut deadlines = Deadlines::start(limits, self.question.stream);
        writer.head(if self.question.stream { Head::event_stream() } else { Head::json() });
        let (mut unbegun, mut running) = (tracks.len(), tracks.len());
        while running > 0 {
            let (index, heard) = tokio::select! {
                biased;
                heard = sources.next() => heard,
                due = deadlines.due() => match due {
                    Due::KeepAlive => {
                        push(writer, b": keep-alive\n\n".to_vec()).await?;
                        continue;
                    }
                    Due::Expired(failure) => return Err(failure),
                },
            };
            let Some(track) = tracks.get_mut(index) else { return Err(failure::unfinished()) };
            let chunk = match heard {
                Some(Ok(chunk)) => chunk,
                Some(Err(error)) => {
                    return Err(failure::stream(&error, sources.end_cause(index).as_ref(), track.begun));
                }
                None => return Err(failure::unfinished()),
            };
            unbegun -= usize::from(!track.begun);
            deadlines.heard(unbegun == 0);
            let ended = track.take(chunk, index, teller)?;
            if let Some(ended) = ended {
                running -= 1;
                // Dropping the stream of a choice that the gateway ended aborts it at once (U6).
                sources.end(index);
                teller.finish(index, ended);
            }
            if running == 0 {
                teller.close(self.usage(&tracks));
            }
            let bytes = std::mem::take(teller.buffer());
            if !bytes.is_empty() {
                let generated = tracks.iter().map(|track| track.choice.tokens()).sum();
                if generated > 0 {
                    writer.content();
                    writer.tokens(generated);
                    writer.said(generated);
                }
                push(writer, bytes).await?;
            }
        }
        Ok(())
    }

    fn track(&self, index: usize) -> Track {
        let request = &self.prepared.request;
        let choice = Choice::new(Arc::clone(self.table), &request.output, &request.sampling, Arc::clone(&self.ends));
        let prompt = self.prepared.prompts.get(index / request.n);
        let plan = self.prepared.parse.as_ref();
        Track {
            choice,
            parser: plan.map(Plan::parser),
            named: self.prepared.form.ends_named_calls_with_stop() && plan.is_some_and(Plan::is_named),
            constraint: request.sampling.constraint.as_ref().map(|constraint| constraint.field),
            delta: Delta::default(),
            begun: false,
            cached: 0,
            shown: prompt.and_then(|prompt| prompt.shown.clone()),
            offset: 0,
        }
    }

    /// Prompt tokens count once for each prompt, generated ones for each choice (A7).
    fn usage(&self, tracks: &[Track]) -> Usage {
        let cached = tracks.chunks(self.prepared.request.n).map(|choices| choices.iter().map(|t| t.cached).max());
        Usage {
            prompt_tokens: self.prepared.prompts.iter().map(|prompt| prompt.ids.len() as u64).sum(),
            completion_tokens: tracks.iter().map(|track| track.choice.tokens()).sum(),
            cached_tokens: cached.flatten().sum(),
        }
    }
}

async fn push(writer: &mut FlightWriter, bytes: Vec<u8>) -> Result<(), Failure> {
    // With nobody left to tell, the flight is being cancelled anyway.
    let closed = |_| Failure::new(Cause::Cut, ApiError::internal("The client went away."));
    writer.push(bytes.into()).await.map_err(closed)
}

/// One choice on its way.
struct Track {
    choice: Choice,
    parser: Option<Parser>,
    /// A call was asked for by name, in an API where such a call does not change how the answer ends.
    named: bool,
    /// The field that asked for a constraint.
    constraint: Option<&'static str>,
    delta: Delta,
    begun: bool,
    cached: u64,
    /// The prompt's text, to be shown before the answer.
    shown: Option<String>,
    /// Characters told so far, for completions with log probabilities.
    offset: usize,
}

impl Track {
    fn take(&mut self, chunk: OutputChunk, index: usize, teller: &mut dyn Teller) -> Result<Option<Ended>, Failure> {
        self.cached = self.cached.max(u64::try_from(chunk.cached_tokens).unwrap_or(0));
        let step = step(chunk, self.constraint)?;
        if !self.begun {
            self.begun = true;
            teller.begin(index, self.cached);
        }
        self.delta.clear();
        if let Some(shown) = self.shown.take() {
            self.delta.text.push_str(&shown);
        }
        let mut ended = self.choice.take(&step, &mut self.delta);
        if let Some(parser) = &mut self.parser {
            self.delta.pieces = parser.feed(&std::mem::take(&mut self.delta.text));
            if let Some(ended) = &mut ended {
                self.delta.pieces.extend(parser.finish());
                // Cut short, it is cut short; and a named function was called because it was asked for (A8).
                if ended.reason == Reason::Stop && parser.has_calls() && !self.named {
                    ended.reason = Reason::ToolCalls;
                }
            }
        }
        if !self.delta.is_empty() {
            teller.delta(index, &self.delta, self.offset);
            self.offset += self.delta.text.chars().count();
        }
        Ok(ended)
    }
}

/// What the client library says, in the words of [`Choice`].
fn step(chunk: OutputChunk, constraint: Option<&str>) -> Result<Step, Failure> {
    let end = match chunk.finish_reason.as_deref() {
        None => None,
        Some("stop") => Some(Reason::Stop),
        Some("length") => Some(Reason::Length),
        Some(_) => return Err(failure::abort(chunk.finish_details.as_ref(), constraint)),
    };
    let pairs = |(values, ids): (Vec<f64>, Vec<i32>)| ids.into_iter().map(id_of).zip(values).collect();
    let top = chunk.output_top_logprobs.map(|(values, ids)| values.into_iter().zip(ids).map(pairs).collect());
    Ok(Step {
        ids: chunk.output_ids.into_iter().map(id_of).collect(),
        logprobs: chunk.output_token_logprobs,
        top: top.unwrap_or_default(),
        end,
    })
}

/// A negative id is no token; it becomes one that no vocabulary has.
fn id_of(id: i32) -> u32 {
    u32::try_from(id).unwrap_or(u32::MAX)
}

type Heard = (usize, Option<Result<OutputChunk, StreamError>>);

/// The streams of one answer, by index; the ended ones are gone.
struct Sources {
    streams: Vec<Option<RequestStream>>,
    /// Where the next look begins, so that no choice waits behind a lively one.
    first: usize,
}

impl Sources {
    fn new(streams: Vec<RequestStream>) -> Self {
        Self { streams: streams.into_iter().map(Some).collect(), first: 0 }
    }

    /// The next thing said, by whichever stream. Dropping the future loses nothing.
    async fn next(&mut self) -> Heard {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Heard> {
        let count = self.streams.len();
        for at in (self.first..count).chain(0..self.first) {
            let Some(Some(stream)) = self.streams.get_mut(at) else { continue };
            if let Poll::Ready(said) = stream.poll_next(cx) {
                self.first = (at + 1) % count;
                return Poll::Ready((at, said));
            }
        }
        Poll::Pending
    }

    /// Drop a stream; the engine is told if it does not know the end.
    fn end(&mut self, index: usize) {
        if let Some(stream) = self.streams.get_mut(index) {
            *stream = None;
        }
    }

    fn end_cause(&self, index: usize) -> Option<EndCause> {
        self.streams.get(index)?.as_ref()?.end_cause()
    }
}
