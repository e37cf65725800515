//! One choice of an answer: its tokens become text, cut at stop strings, with a count and log probabilities that end where
//! the text ends (U4 to U6, U8, U9). Pure: no engine, no clock, no format.

use std::sync::Arc;

use super::detokenize::{Detokenizer, TokenTable};
use super::parse::Piece;
use super::request::{Output, Sampling};
use super::stop::StopScan;

/// What an engine said about one request in one go.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Step {
    /// New tokens.
    pub ids: Vec<u32>,
    /// Their log probabilities, one each, where they were asked for.
    pub logprobs: Vec<f64>,
    /// The most likely tokens at each position and their log probabilities, where they were asked for.
    pub top: Vec<Vec<(u32, f64)>>,
    /// The engine's end of the answer.
    pub end: Option<Reason>,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// An end token, a stop token or a stop string.
    Stop,
    /// The limit on tokens or the context's end.
    Length,
    /// The answer calls a tool, and ended by itself.
    ToolCalls,
}

impl Reason {
    /// The API's word.
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::Stop => "stop",
            Reason::Length => "length",
            Reason::ToolCalls => "tool_calls",
        }
    }
}

/// What ended an answer before its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Matched {
    /// A token.
    Token(u32),
    /// A stop string, by its place in the request's list.
    Text(usize),
}

/// How a choice ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Why.
    pub reason: Reason,
    /// The gateway found the end; the engine does not know yet and must be told (U6).
    pub by_gateway: bool,
    /// What it ended at, where that is known.
    pub matched: Option<Matched>,
}

/// A token and its log probability, with the alternatives.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub id: u32,
    /// Its log probability.
    pub logprob: f64,
    /// The most likely tokens at its place.
    pub top: Vec<(u32, f64)>,
}

/// What is new in a choice: reused from step to step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Delta {
    /// New text, whole characters.
    pub text: String,
    /// The text's parts, where it is parsed: then `text` is empty.
    pub pieces: Vec<Piece>,
    /// New tokens' log probabilities. They come when the token comes, whether or not its text is held back (U9).
    pub logprobs: Vec<TokenLogprob>,
    /// New tokens, where they are shown.
    pub ids: Vec<u32>,
}

impl Delta {
    /// Whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty() && self.pieces.is_empty() && self.logprobs.is_empty() && self.ids.is_empty()
    }

    /// Make it empty, keeping its memory.
    pub fn clear(&mut self) {
        self.text.clear();
        self.pieces.clear();
        self.logprobs.clear();
        self.ids.clear();
    }
}

/// The state of one choice.
#[derive(Debug)]
pub struct Choice {
    detokenizer: Detokenizer,
    stops: StopScan,
    /// Text that may be the start of a stop string.
    held: String,
    /// Tokens that end the answer: the model's, and the request's.
    ends: Arc<[u32]>,
    /// Those of them that the engine was told not to stop at (`ignore_eos`).
    own_ends: Arc<[u32]>,
    include_stop: bool,
    wants_logprobs: bool,
    wants_ids: bool,
    min_tokens: u64,
    tokens: u64,
}

impl Choice {
    /// At the start of an answer. `ends` are the tokens that the engine was told to stop at.
    pub fn new(table: Arc<TokenTable>, output: &Output, sampling: &Sampling, ends: Arc<[u32]>) -> Self {
        // An engine that ignores end tokens may ignore the request's stop tokens too: the gateway looks for them.
        let own_ends = if sampling.ignore_eos { sampling.stop_token_ids.as_slice().into() } else { Arc::from([]) };
        Self {
            detokenizer: Detokenizer::new(table, output.skip_special_tokens).showing(&output.marks),
            stops: StopScan::new(&output.stops),
            held: String::new(),
            ends,
            own_ends,
            include_stop: output.include_stop,
            wants_logprobs: output.logprobs.is_some(),
            wants_ids: output.ids,
            min_tokens: u64::try_from(sampling.min_tokens).unwrap_or(0),
            tokens: 0,
        }
    }

    /// Tokens of the answer so far: those that count as usage.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Take what the engine said; `delta` gets what is new. After an end nothing may be taken any more.
    pub fn take(&mut self, step: &Step, delta: &mut Delta) -> Option<Ended> {
        for (at, &id) in step.ids.iter().enumerate() {
            self.tokens += 1;
            if self.wants_ids {
                delta.ids.push(id);
            }
            if self.wants_logprobs {
                let logprob = step.logprobs.get(at).copied().unwrap_or(f64::NEG_INFINITY);
                let top = step.top.get(at).cloned().unwrap_or_default();
                delta.logprobs.push(TokenLogprob { id, logprob, top });
            }
            let last = at + 1 == step.ids.len();
            let engine_stop = last && step.end == Some(Reason::Stop) && self.ends.contains(&id);
            let own_stop = self.tokens > self.min_tokens && self.own_ends.contains(&id);
            if engine_stop || own_stop {
                let found = if self.include_stop { self.push(id, delta) } else { None };
                let found = found.or_else(|| self.finish(delta));
                let matched = Some(found.map_or(Matched::Token(id), Matched::Text));
                return Some(Ended { reason: Reason::Stop, by_gateway: !engine_stop, matched });
            }
            if let Some(at) = self.push(id, delta) {
                let by_gateway = !(last && step.end.is_some());
                return Some(Ended { reason: Reason::Stop, by_gateway, matched: Some(Matched::Text(at)) });
            }
        }
        let reason = step.end?;
        // The tail may still complete a stop string: an unfinished character is text too.
        let matched = self.finish(delta).map(Matched::Text);
        Some(Ended { reason: if matched.is_some() { Reason::Stop } else { reason }, by_gateway: false, matched })
    }

    /// Take one token's text; the stop string that is complete.
    fn push(&mut self, id: u32, delta: &mut Delta) -> Option<usize> {
        if self.stops.is_empty() {
            self.detokenizer.push(id, &mut delta.text);
            return None;
        }
        let before = self.held.len();
        self.detokenizer.push(id, &mut self.held);
        self.scan(before, delta)
    }

    /// Scan the held text from `from` on and release what cannot be part of a stop string.
    fn scan(&mut self, from: usize, delta: &mut Delta) -> Option<usize> {
        let armed = self.tokens > self.min_tokens;
        let found = self.stops.scan(self.held.get(from..).unwrap_or_default(), armed);
        if let Some(found) = found {
            let end = from + found.end;
            let cut = if self.include_stop { end } else { end - found.length };
            delta.text.push_str(self.held.get(..cut).unwrap_or_default());
            self.held.clear();
            return Some(found.index);
        }
        // Both ends of the held part are character borders: it equals a prefix of a stop string.
        let free = self.held.len() - self.stops.held();
        delta.text.push_str(self.held.get(..free).unwrap_or_default());
        self.held.drain(..free);
        None
    }

    /// The answer is over: flush the unfinished character and the near miss (U2, U4). The stop string that
    /// this completes.
    fn finish(&mut self, delta: &mut Delta) -> Option<usize> {
        if self.stops.is_empty() {
            self.detokenizer.flush(&mut delta.text);
            return None;
        }
        let before = self.held.len();
        self.detokenizer.flush(&mut self.held);
        let found = self.scan(before, delta);
        if found.is_none() {
            delta.text.push_str(&self.held);
            self.held.clear();
        }
        found
    }
}

#[cfg(test)]
mod tests;
