//! How the client is told what an answer says: one teller for each API and each of its two ways, events or a body.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::choice::{Delta, Ended};
use super::detokenize::TokenTable;
use super::events::{Events, Identity, WholeChoice, body};
use super::prepare::Prepared;
use super::request::Dialect;
use crate::types::{Failure, Question, Usage};

/// Tells one answer. What is ready for the client stands in its buffer.
pub(super) trait Teller: Send {
    /// A choice has begun; `cached` prompt tokens came from a prefix cache.
    fn begin(&mut self, index: usize, cached: u64);
    /// There is something new in a choice. `offset` is its text's length in characters before.
    fn delta(&mut self, index: usize, delta: &Delta, offset: usize);
    /// A choice has ended.
    fn finish(&mut self, index: usize, ended: Ended);
    /// All choices have ended.
    fn close(&mut self, usage: Usage);
    /// The answer failed after its head went out: true if the buffer now says so in the API's own way.
    fn fail(&mut self, _failure: &Failure) -> bool {
        false
    }
    /// What is ready to be written.
    fn buffer(&mut self) -> &mut Vec<u8>;
}

/// What tellers are made of.
#[derive(Clone, Copy)]
pub(super) struct Telling<'a> {
    pub(super) question: &'a Question,
    pub(super) prepared: &'a Prepared,
    pub(super) table: &'a Arc<TokenTable>,
    /// The answer's id.
    pub(super) id: &'a str,
}

impl<'a> Telling<'a> {
    /// Seconds since 1970, for the answer's creation.
    pub(super) fn now() -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
    }

    /// Choices of the whole answer.
    pub(super) fn choices(&self) -> usize {
        self.prepared.prompts.len() * self.prepared.request.n
    }

    fn identity(&self) -> Identity<'a> {
        Identity { id: self.id, created: Self::now(), model: &self.question.model }
    }

    /// The teller of the OpenAI API's two older endpoints.
    pub(super) fn openai(self, dialect: Dialect) -> Box<dyn Teller> {
        if self.question.stream {
            let events = Events::new(dialect, self.identity(), self.question.include_usage, Arc::clone(self.table));
            return Box::new(Streamed { events, buffer: Vec::new() });
        }
        let logprobs = self.prepared.request.output.logprobs.map(|_| Vec::new());
        let choice = || WholeChoice { logprobs: logprobs.clone(), ..WholeChoice::default() };
        Box::new(Whole {
            dialect,
            id: self.id.to_owned(),
            created: Self::now(),
            model: self.question.model.clone(),
            choices: (0..self.choices()).map(|_| choice()).collect(),
            table: Arc::clone(self.table),
            buffer: Vec::new(),
        })
    }
}

struct Streamed {
    events: Events,
    buffer: Vec<u8>,
}

impl Teller for Streamed {
    fn begin(&mut self, index: usize, _cached: u64) {
        self.events.role(&mut self.buffer, index);
    }

    fn delta(&mut self, index: usize, delta: &Delta, offset: usize) {
        self.events.delta(&mut self.buffer, index, delta, offset);
    }

    fn finish(&mut self, index: usize, ended: Ended) {
        self.events.finish(&mut self.buffer, index, ended.reason);
    }

    fn close(&mut self, usage: Usage) {
        self.events.usage(&mut self.buffer, usage);
        self.buffer.extend_from_slice(&crate::types::DONE);
    }

    fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }
}

struct Whole {
    dialect: Dialect,
    id: String,
    created: u64,
    model: String,
    choices: Vec<WholeChoice>,
    table: Arc<TokenTable>,
    buffer: Vec<u8>,
}

impl Teller for Whole {
    fn begin(&mut self, _index: usize, _cached: u64) {}

    fn delta(&mut self, index: usize, delta: &Delta, _offset: usize) {
        if let Some(choice) = self.choices.get_mut(index) {
            choice.text.push_str(&delta.text);
            delta.pieces.iter().for_each(|piece| choice.push(piece));
            if let Some(logprobs) = &mut choice.logprobs {
                logprobs.extend_from_slice(&delta.logprobs);
            }
        }
    }

    fn finish(&mut self, index: usize, ended: Ended) {
        if let Some(choice) = self.choices.get_mut(index) {
            choice.reason = Some(ended.reason);
        }
    }

    fn close(&mut self, usage: Usage) {
        let identity = Identity { id: &self.id, created: self.created, model: &self.model };
        self.buffer = body(self.dialect, identity, &self.choices, usage, &self.table);
    }

    fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }
}
