//! A request that waits or runs: its tokens, its pages, what it still owes its client.

use ts_wire::Value;
use ts_wire::output::FinishDetails;

use crate::admission::Request;
use crate::grammar::{Allowed, Grammar};
use crate::kv;
use crate::sample::{Context, Scored};

/// The engines' codes of aborts that are not the client's.
pub(crate) const UNKNOWN_ERROR: i64 = 522;
pub(crate) const NUMERICAL_ERROR: i64 = 523;
pub(crate) const CAPACITY_ERROR: i64 = 524;

/// How a request ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Finish {
    /// At this stop id.
    Stop(i32),
    /// With this many tokens.
    Length(usize),
    /// By the engine.
    Abort { message: String, err_type: i64, status_code: Option<i64> },
}

impl Finish {
    /// For a request that is refused.
    pub(crate) fn refused(reason: &str) -> Self {
        let message = format!("Invalid request: {reason}");
        Finish::Abort { message, err_type: UNKNOWN_ERROR, status_code: Some(400) }
    }

    /// For a request that cannot go on.
    pub(crate) fn aborted(message: impl Into<String>, err_type: i64) -> Self {
        Finish::Abort { message: message.into(), err_type, status_code: None }
    }

    /// For a request whose grammar became too much for the engine.
    pub(crate) fn outgrown(reason: &str) -> Self {
        Finish::aborted(format!("the answer's grammar cannot be followed: {reason}"), UNKNOWN_ERROR)
    }

    /// The word for it.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Finish::Stop(_) => "stop",
            Finish::Length(_) => "length",
            Finish::Abort { .. } => "abort",
        }
    }

    /// It in full, keys in the engines' order.
    pub(crate) fn details(&self) -> FinishDetails {
        let entry = |key: &str, value: Value| (key.to_owned(), value);
        let mut details = vec![entry("type", self.reason().into())];
        match self {
            Finish::Stop(id) => details.push(entry("matched", i64::from(*id).into())),
            Finish::Length(length) => details.push(entry("length", (*length as i64).into())),
            Finish::Abort { message, err_type, status_code } => {
                details.push(entry("message", message.as_str().into()));
                details.push(entry("err_type", (*err_type).into()));
                details.extend(status_code.map(|code| entry("status_code", code.into())));
            }
        }
        ts_wire::Dict(details)
    }
}

/// A request in the engine.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) request: Request,
    /// What its answer is held to, as far as the answer has got.
    pub(crate) grammar: Option<Grammar>,
    /// Its number in the order of arrival.
    pub(crate) arrival: u64,
    /// Prompt, then generated.
    pub(crate) tokens: Vec<i32>,
    /// Positions whose keys and values lie in the pages.
    pub(crate) computed: usize,
    pub(crate) pages: Vec<u32>,
    /// Pages of it that are known, and where their chain ends.
    pub(crate) published: usize,
    pub(crate) chain: u64,
    /// Its prompt (or, after an eviction, all it had) is not computed to the end yet.
    pub(crate) prefilling: bool,
    /// It has run before.
    pub(crate) started: bool,
    /// Prompt tokens that it found in the prefix cache.
    pub(crate) cached: usize,
    /// Generated tokens that were sent.
    pub(crate) sent: usize,
    /// Of the tokens that were not sent.
    pub(crate) scores: Vec<Scored>,
    /// Of the prompt positions behind the first reported one.
    pub(crate) prompt_scores: Vec<Scored>,
    pub(crate) prompt_scores_sent: bool,
    pub(crate) finish: Option<Finish>,
}

impl Sequence {
    pub(crate) fn new(mut request: Request, grammar: Option<Grammar>, arrival: u64) -> Self {
        // The prompt is kept once: as the start of the tokens.
        let tokens = std::mem::take(&mut request.prompt);
        request.prompt_tokens = tokens.len();
        Sequence {
            request,
            grammar,
            arrival,
            tokens,
            computed: 0,
            pages: Vec::new(),
            published: 0,
            chain: kv::ROOT,
            prefilling: true,
            started: false,
            cached: 0,
            sent: 0,
            scores: Vec::new(),
            prompt_scores: Vec::new(),
            prompt_scores_sent: false,
            finish: None,
        }
    }

    pub(crate) fn prompt_tokens(&self) -> usize {
        self.request.prompt_tokens
    }

    /// What was generated.
    pub(crate) fn generated(&self) -> &[i32] {
        self.tokens.get(self.prompt_tokens()..).unwrap_or_default()
    }

    /// First position whose logits the prompt's log-probabilities still need, if any.
    pub(crate) fn unscored(&self) -> Option<usize> {
        let position = self.request.logprobs?.start + self.prompt_scores.len();
        (position + 1 < self.prompt_tokens()).then_some(position)
    }

    /// How much of it may come from the prefix cache: the last token's logits are needed in any case.
    pub(crate) fn shareable(&self) -> usize {
        (self.tokens.len() - 1).min(self.unscored().unwrap_or(usize::MAX))
    }

    /// What the next token depends on beside the logits.
    pub(crate) fn context<'a>(&'a self, allowed: Option<&'a Allowed>) -> Context<'a> {
        let (prompt, generated) = self.tokens.split_at(self.prompt_tokens());
        let barred = if generated.len() < self.request.min_new { &self.request.stop_ids[..] } else { &[] };
        Context { prompt, generated, barred, allowed }
    }

    /// Takes in a chosen token. The budget is looked at first: the last token of it is "length" even if it stops.
    pub(crate) fn push(&mut self, token: i32, score: Option<Scored>) {
        self.tokens.push(token);
        self.scores.extend(score);
        let ended = match self.grammar.as_mut().map_or(Ok(false), |grammar| grammar.accept(token)) {
            Ok(ended) => ended,
            Err(reason) => {
                self.finish = Some(Finish::outgrown(&reason));
                return;
            }
        };
        let generated = self.generated().len();
        if generated >= self.request.max_new {
            self.finish = Some(Finish::Length(generated));
        } else if ended || (generated >= self.request.min_new && self.request.stop_ids.contains(&token)) {
            self.finish = Some(Finish::Stop(token));
        }
    }

    /// Whether its client gets a row now.
    pub(crate) fn due(&self) -> bool {
        let generated = self.generated().len();
        self.finish.is_some() || (generated > self.sent && self.request.pace.due(self.sent, generated))
    }

    /// Forget what is computed: its pages go to others.
    pub(crate) fn unload(&mut self) -> Vec<u32> {
        self.computed = 0;
        self.published = 0;
        self.chain = kv::ROOT;
        self.prefilling = true;
        std::mem::take(&mut self.pages)
    }
}
