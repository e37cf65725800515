//! Continuous batching: which requests run, what each step computes, what becomes of its results.
//!
//! No sockets and no waiting: messages come in through [`Scheduler::receive`], a step is one call, and what it says
//! is taken out with [`Scheduler::take_output`]. Requests are served in the order of their arrival; when the KV pages
//! run out, the youngest gives its pages up and starts over later, with the same result.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use ts_wire::{EngineOutput, EngineRequest, TokenizedGenerateReqInput};

use crate::admission::{self, Refused, Request};
use crate::batch::{Batch, Load};
use crate::control::{Pause, Profile};
use crate::grammar::{Grammar, Grammars};
use crate::kv::Pages;
use crate::model::{Made, Model, ModelSpec, StepOutput, Work};
use crate::sample::{self, Scored};
use crate::sequence::{CAPACITY_ERROR, Finish, NUMERICAL_ERROR, Sequence, UNKNOWN_ERROR};

/// How long an abort of an unknown request is remembered, as the engines do it.
const ABORT_MEMORY: Duration = Duration::from_secs(300);
/// Most aborts remembered at once, and the longest id of one.
const MAX_REMEMBERED: usize = 65_536;
const MAX_REMEMBERED_BYTES: usize = 1024;
/// Most requests that wait, and most prompt tokens of them.
const MAX_WAITING: usize = 16_384;
const MAX_WAITING_TOKENS: usize = 1 << 26;

/// Most requests with a grammar, running and waiting: each holds some hundred kilobytes.
const MAX_GRAMMARS: usize = 256;

/// Aborts that came before their request, or after its end.
#[derive(Debug, Default)]
struct AbortMemory {
    since: HashMap<String, Instant>,
    order: VecDeque<(String, Instant)>,
}

impl AbortMemory {
    fn remember(&mut self, rid: String, now: Instant) {
        if rid.len() > MAX_REMEMBERED_BYTES {
            return;
        }
        while let Some((oldest, since)) = self.order.front() {
            if self.order.len() < MAX_REMEMBERED && now.duration_since(*since) < ABORT_MEMORY {
                break;
            }
            if self.since.get(oldest) == Some(since) {
                self.since.remove(oldest);
            }
            self.order.pop_front();
        }
        self.since.insert(rid.clone(), now);
        self.order.push_back((rid, now));
    }

    /// Whether an abort of `rid` is remembered; it is spent by this.
    fn spend(&mut self, rid: &str, now: Instant) -> bool {
        self.since.remove(rid).is_some_and(|since| now.duration_since(since) < ABORT_MEMORY)
    }
}

/// What one step computes of one running sequence.
#[derive(Debug)]
struct Plan {
    index: usize,
    end: usize,
    logits_from: usize,
}

/// The engine without its sockets.
pub(crate) struct Scheduler {
    model: Box<dyn Model>,
    spec: ModelSpec,
    /// `None` for a model that cannot be held to one.
    grammars: Option<Grammars>,
    index: u16,
    pub(crate) pages: Pages,
    pub(crate) running: Vec<Sequence>,
    pub(crate) waiting: VecDeque<Sequence>,
    aborts: AbortMemory,
    arrivals: u64,
    pub(crate) pause: Pause,
    pub(crate) profile: Option<Profile>,
    pub(crate) rows: Batch,
    outbox: VecDeque<EngineOutput>,
    made: StepOutput,
}

impl Scheduler {
    /// An engine with number `index` around a model.
    pub(crate) fn new(model: Box<dyn Model>, index: u16) -> Self {
        let spec = model.spec().clone();
        let grammars = model.vocabulary().and_then(|vocabulary| Grammars::new(vocabulary, &spec));
        Scheduler {
            grammars,
            pages: Pages::new(spec.kv_pages, spec.page_size),
            model,
            spec,
            index,
            running: Vec::new(),
            waiting: VecDeque::new(),
            aborts: AbortMemory::default(),
            arrivals: 0,
            pause: Pause::No,
            profile: None,
            rows: Batch::new(),
            outbox: VecDeque::new(),
            made: StepOutput::default(),
        }
    }

    /// Takes in a message.
    pub(crate) fn receive(&mut self, request: EngineRequest, now: Instant) {
        match request {
            EngineRequest::Add(add) => self.add(*add, now),
            EngineRequest::Abort(rids) => rids.into_iter().for_each(|rid| self.abort(rid, now)),
            EngineRequest::Control(request) => self.control(*request),
        }
    }

    /// The next message for the frontend.
    pub(crate) fn take_output(&mut self) -> Option<EngineOutput> {
        self.outbox.pop_front()
    }

    /// What waits to be taken out, rows of the next message included.
    pub(crate) fn backlog(&self) -> usize {
        self.outbox.len() + self.rows.len()
    }

    /// Messages that were not taken out.
    pub(crate) fn outputs(&self) -> usize {
        self.outbox.len()
    }

    pub(crate) fn say(&mut self, output: EngineOutput) {
        self.outbox.push_back(output);
    }

    /// Whether a step would do something.
    pub(crate) fn has_work(&self) -> bool {
        let steps = self.pause != Pause::Frozen
            && (!self.running.is_empty() || self.waiting.front().is_some_and(|next| self.may_start(next)));
        steps || !self.rows.is_empty() || self.drained()
    }

    fn add(&mut self, add: TokenizedGenerateReqInput, now: Instant) {
        let request = match admission::admit(add, &self.spec) {
            Err(nameless) => return tracing::warn!(error = %nameless, "request dropped"),
            Ok(Err(refused)) => {
                self.aborts.spend(&refused.rid, now);
                return self.refuse(refused);
            }
            Ok(Ok(request)) => request,
        };
        if self.aborts.spend(&request.rid, now) {
            return tracing::debug!(rid = request.rid, "request was aborted before it came");
        }
        if self.sequences().any(|sequence| sequence.request.rid == request.rid) {
            return tracing::warn!(rid = request.rid, "request dropped: its id is in use");
        }
        match self.grammar(&request) {
            Ok(grammar) => self.queue(request, grammar),
            Err(reason) => self.refuse(Refused { rid: request.rid, prompt_tokens: request.prompt_tokens, reason }),
        }
    }

    fn refuse(&mut self, refused: Refused) {
        tracing::info!(rid = refused.rid, reason = refused.reason, "request refused");
        let finish = Finish::refused(&refused.reason);
        self.rows.push_refusal(refused.rid, refused.prompt_tokens, &finish);
    }

    /// Compiles what the answer is held to.
    fn grammar(&self, request: &Request) -> Result<Option<Grammar>, String> {
        let Some(constraint) = &request.constraint else { return Ok(None) };
        let grammars = self.grammars.as_ref().ok_or("this engine has no grammar backend")?;
        grammars.compile(constraint).map(Some)
    }

    fn queue(&mut self, request: Request, grammar: Option<Grammar>) {
        let grammars = self.sequences().filter(|sequence| sequence.grammar.is_some()).count();
        let tokens: usize = self.waiting.iter().map(|sequence| sequence.tokens.len()).sum();
        if self.waiting.len() >= MAX_WAITING
            || (grammar.is_some() && grammars >= MAX_GRAMMARS)
            || tokens + request.prompt.len() > MAX_WAITING_TOKENS
        {
            let finish = Finish::aborted("too many requests wait", CAPACITY_ERROR);
            return self.rows.push_refusal(request.rid, request.prompt_tokens, &finish);
        }
        tracing::debug!(rid = request.rid, prompt = request.prompt_tokens, max_new = request.max_new, "request queued");
        self.waiting.push_back(Sequence::new(request, grammar, self.arrivals));
        self.arrivals += 1;
    }

    fn sequences(&self) -> impl Iterator<Item = &Sequence> {
        self.running.iter().chain(&self.waiting)
    }

    /// Ends a request without a word, as the engines do. One that is not there is remembered.
    fn abort(&mut self, rid: String, now: Instant) {
        if let Some(at) = self.running.iter().position(|sequence| sequence.request.rid == rid) {
            let mut sequence = self.running.remove(at);
            self.pages.release(&sequence.unload());
        } else if let Some(at) = self.waiting.iter().position(|sequence| sequence.request.rid == rid) {
            self.waiting.remove(at);
        } else {
            self.aborts.remember(rid, now);
        }
    }

    /// Runs one step. The returned time is how long its results are to be held back: a simulated cost.
    pub(crate) fn step(&mut self) -> Duration {
        let mut busy = Duration::ZERO;
        if self.pause != Pause::Frozen {
            self.start_waiting();
            self.make_room();
            let plans = self.plan();
            if !plans.is_empty() {
                busy = self.compute(&plans);
            }
            self.collect_rows();
        }
        self.send_rows();
        self.answer_drained_pause();
        busy
    }

    pub(crate) fn send_rows(&mut self) {
        if self.rows.is_empty() {
            return;
        }
        let load = Load {
            running: self.running.len(),
            waiting: self.waiting.len(),
            active_pages: self.pages.active(),
            total_pages: self.pages.total(),
        };
        let batch = self.rows.take(self.index, load);
        self.say(EngineOutput::Batch(Box::new(batch)));
    }

    // === Admit and evict ===

    /// Whether the pause lets a waiting sequence run: what was evicted belongs to those that run.
    fn may_start(&self, sequence: &Sequence) -> bool {
        self.pause == Pause::No || sequence.started
    }

    fn start_waiting(&mut self) {
        while self.running.len() < self.spec.max_running
            && self.waiting.front().is_some_and(|next| self.may_start(next))
            && let Some(mut sequence) = self.waiting.pop_front()
        {
            if self.load(&mut sequence) {
                self.running.push(sequence);
            } else if self.running.is_empty() {
                // Alone it had every page there is.
                sequence.finish = Some(Finish::aborted("the KV cache is too small for this request", CAPACITY_ERROR));
                self.rows.push(&mut sequence);
            } else {
                self.waiting.push_front(sequence);
                break;
            }
        }
    }

    /// Gives a sequence the pages for what it has, those of the prefix cache first.
    fn load(&mut self, sequence: &mut Sequence) -> bool {
        let (shared, chain) = self.pages.share(&sequence.tokens, sequence.shareable());
        let missing = self.pages.needed(sequence.tokens.len() + 1).saturating_sub(shared.len());
        // Each running sequence will want a page soon; without them the newcomer would be evicted at once.
        if self.pages.available() < missing + self.running.len() {
            self.pages.release(&shared);
            return false;
        }
        sequence.computed = shared.len() * self.pages.size();
        sequence.published = shared.len();
        sequence.chain = chain;
        sequence.pages = shared;
        sequence.pages.extend((0..missing).map_while(|_| self.pages.take()));
        if !sequence.started {
            sequence.started = true;
            sequence.cached = sequence.computed;
        }
        true
    }

    /// Gives every running sequence the pages for its next step; evicts the youngest while there are none.
    fn make_room(&mut self) {
        let mut at = 0;
        while at < self.running.len() {
            let alone = self.running.len() == 1;
            let Some(sequence) = self.running.get_mut(at) else { return };
            let needed = self.pages.needed(sequence.tokens.len());
            while sequence.pages.len() < needed
                && let Some(page) = self.pages.take()
            {
                sequence.pages.push(page);
            }
            if sequence.pages.len() >= needed {
                at += 1;
            } else if alone {
                sequence.finish = Some(Finish::aborted("the KV cache is full", CAPACITY_ERROR));
                return;
            } else if let Some(mut youngest) = self.running.pop() {
                tracing::debug!(rid = youngest.request.rid, "request evicted: no KV page is free");
                self.pages.release(&youngest.unload());
                self.waiting.push_front(youngest);
            }
        }
    }

    // === Batch ===

    /// The next token of everything that generates, and as much of the prompts as the step's size leaves.
    fn plan(&self) -> Vec<Plan> {
        let mut plans = Vec::with_capacity(self.running.len());
        let mut left = self.spec.max_batched_tokens;
        for (index, sequence) in self.running.iter().enumerate() {
            if !sequence.prefilling && sequence.finish.is_none() {
                left = left.saturating_sub(1);
                let end = sequence.tokens.len();
                plans.push(Plan { index, end, logits_from: end - 1 });
            }
        }
        // Prompts always get on, however much else runs.
        left = left.max(self.spec.page_size);
        for (index, sequence) in self.running.iter().enumerate() {
            if sequence.prefilling && sequence.finish.is_none() && left > 0 {
                let end = sequence.tokens.len().min(sequence.computed + left);
                left -= end - sequence.computed;
                let last = if end == sequence.tokens.len() { end - 1 } else { end };
                let scored = sequence.unscored().unwrap_or(last).clamp(sequence.computed, last);
                plans.push(Plan { index, end, logits_from: scored });
            }
        }
        plans
    }

    fn compute(&mut self, plans: &[Plan]) -> Duration {
        let work: Vec<Work<'_>> = plans
            .iter()
            .filter_map(|plan| {
                let sequence = self.running.get(plan.index)?;
                Some(Work {
                    arrival: sequence.arrival,
                    tokens: &sequence.tokens,
                    prompt: sequence.prompt_tokens(),
                    compute: sequence.computed..plan.end,
                    pages: &sequence.pages,
                    logits_from: plan.logits_from,
                    seed: sequence.request.sampling.seed,
                })
            })
            .collect();
        let mut made = std::mem::take(&mut self.made);
        let result = self.model.step(&work, &mut made);
        drop(work);
        match &result {
            Ok(_) => {
                for (plan, part) in plans.iter().zip(std::mem::take(&mut made.made)) {
                    self.absorb(plan, part, &mut made);
                }
            }
            Err(error) => {
                tracing::error!(%error, "step failed");
                for sequence in &mut self.running {
                    sequence.finish = Some(Finish::aborted("the model failed", UNKNOWN_ERROR));
                }
            }
        }
        self.made = made;
        result.unwrap_or_default()
    }

    /// Takes a step's results into its sequence.
    fn absorb(&mut self, plan: &Plan, made: Made, out: &mut StepOutput) {
        let Some(sequence) = self.running.get_mut(plan.index) else { return };
        if let Some(profile) = &mut self.profile {
            profile.computed += plan.end - sequence.computed;
        }
        sequence.computed = plan.end;
        let size = self.pages.size();
        while (sequence.published + 1) * size <= sequence.computed {
            let first = sequence.published * size;
            let (Some(tokens), Some(page)) =
                (sequence.tokens.get(first..first + size), sequence.pages.get(sequence.published))
            else {
                break;
            };
            sequence.chain = self.pages.publish(sequence.chain, tokens, *page);
            sequence.published += 1;
        }
        let yields = sequence.computed == sequence.tokens.len();
        if yields {
            sequence.prefilling = false;
        }
        let before = sequence.generated().len();
        match made {
            Made::Logits(rows) => take_logits(sequence, plan, rows.start, (self.spec.vocab, &mut out.logits)),
            Made::Tokens(range) => take_tokens(sequence, out.tokens.get(range).unwrap_or_default(), yields),
        }
        if let Some(profile) = &mut self.profile {
            profile.generated += sequence.generated().len() - before;
        }
    }

    /// Writes the rows that are due, and lets the finished go.
    fn collect_rows(&mut self) {
        for sequence in &mut self.running {
            if sequence.due() {
                self.rows.push(sequence);
            }
            if sequence.finish.is_some() {
                self.pages.release(&sequence.unload());
            }
        }
        self.running.retain(|sequence| sequence.finish.is_none());
        if let Some(profile) = &mut self.profile {
            profile.steps += 1;
        }
    }
}

/// Scores prompt positions and chooses the next token from rows of logits, the first of which belongs to
/// `plan.logits_from`.
fn take_logits(sequence: &mut Sequence, plan: &Plan, first_row: usize, (vocab, logits): (usize, &mut [f32])) {
    let mut rows = logits.chunks_exact_mut(vocab.max(1)).skip(first_row);
    for position in plan.logits_from..plan.end {
        let Some(row) = rows.next() else { return };
        if let Some(logprobs) = sequence.request.logprobs
            && sequence.unscored() == Some(position)
            && let Some(next) = sequence.tokens.get(position + 1)
        {
            sequence.prompt_scores.push(sample::score(row, *next, logprobs.top));
        }
        if position + 1 < sequence.tokens.len() {
            continue;
        }
        if sequence.request.max_new == 0 {
            sequence.finish = Some(Finish::Length(0));
            return;
        }
        // The choice changes the logits, the scores are of the unchanged ones.
        let raw = sequence.request.logprobs.map(|logprobs| (logprobs, row.to_vec()));
        let allowed = match sequence.grammar.as_mut().map(Grammar::allowed).transpose() {
            Ok(allowed) => allowed,
            Err(reason) => {
                sequence.finish = Some(Finish::outgrown(&reason));
                return;
            }
        };
        match sample::choose(row, &sequence.request.sampling, sequence.context(allowed.as_ref())) {
            Some(token) => {
                let score = raw.map(|(logprobs, raw)| sample::score(&raw, token, logprobs.top));
                sequence.push(token, score);
            }
            None => sequence.finish = Some(Finish::aborted("the model gave no numbers", NUMERICAL_ERROR)),
        }
        return;
    }
}

/// Takes tokens that the model chose itself. Their log-probabilities, where asked for, are made up: position k has
/// -k/8, each alternative half a unit less, exact in binary so that tests can tell them from a mix-up.
fn take_tokens(sequence: &mut Sequence, tokens: &[i32], yields: bool) {
    let made_up = |position: usize, token: i32, top: usize| {
        let logprob = -0.125 * position as f64;
        let other = |rank: usize| if rank == 0 { token } else { i32::try_from(rank - 1).unwrap_or(0) };
        Scored { logprob, top: (0..top).map(|rank| (other(rank), logprob - 0.5 * rank as f64)).collect() }
    };
    if !yields {
        return;
    }
    if let Some(logprobs) = sequence.request.logprobs {
        while let Some(position) = sequence.unscored() {
            let Some(token) = sequence.tokens.get(position + 1).copied() else { break };
            sequence.prompt_scores.push(made_up(position + 1, token, logprobs.top));
        }
    }
    if sequence.request.max_new == 0 {
        sequence.finish = Some(Finish::Length(0));
    }
    for token in tokens {
        if sequence.finish.is_some() {
            return;
        }
        let position = sequence.generated().len() + 1;
        let score = sequence.request.logprobs.map(|logprobs| made_up(position, *token, logprobs.top));
        sequence.push(*token, score);
    }
}

#[cfg(test)]
mod tests;
