//! The rows of one output message, column by column.

use ts_wire::BatchTokenIDOutSlim;

use crate::sample::Scored;
use crate::sequence::{Finish, Sequence};

/// Figures that ride on every message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) running: usize,
    pub(crate) waiting: usize,
    pub(crate) active_pages: usize,
    pub(crate) total_pages: usize,
}

/// Rows that are not sent yet.
#[derive(Debug)]
pub(crate) struct Batch {
    out: BatchTokenIDOutSlim,
}

/// Room for as many rows as the last message had: the next one mostly has as many.
fn empty(rows: usize) -> BatchTokenIDOutSlim {
    BatchTokenIDOutSlim {
        rids: Some(Vec::with_capacity(rows)),
        output_ids: Vec::with_capacity(rows),
        finished_reasons: Vec::with_capacity(rows),
        prompt_tokens: Vec::with_capacity(rows),
        completion_tokens: Vec::with_capacity(rows),
        cached_tokens: Vec::with_capacity(rows),
        output_token_logprobs_val: Vec::with_capacity(rows),
        output_token_logprobs_idx: Vec::with_capacity(rows),
        engine_index: 0,
        num_running: 0,
        num_waiting: 0,
        kv_active_pages: 0,
        kv_total_pages: 0,
        finish_reason_details: Vec::with_capacity(rows),
        spec_verify_ct: Vec::new(),
        accept_draft_tokens: Vec::new(),
        input_token_logprobs_val: Vec::with_capacity(rows),
        input_token_logprobs_idx: Vec::with_capacity(rows),
        input_top_logprobs_val: Vec::with_capacity(rows),
        input_top_logprobs_idx: Vec::with_capacity(rows),
        output_top_logprobs_val: Vec::with_capacity(rows),
        output_top_logprobs_idx: Vec::with_capacity(rows),
    }
}

impl Batch {
    pub(crate) fn new() -> Self {
        Batch { out: empty(0) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.out.output_ids.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.out.output_ids.len()
    }

    /// A row that only says how a request ended which never ran.
    pub(crate) fn push_refusal(&mut self, rid: String, prompt_tokens: usize, finish: &Finish) {
        self.push_head(rid, Vec::new(), Some(finish));
        self.push_counts(prompt_tokens, 0, 0);
        self.push_scores(Vec::new(), &[], 0);
        self.push_prompt_scores(&[], &[], 0);
    }

    /// The row that a sequence owes, with everything that was not sent before.
    pub(crate) fn push(&mut self, sequence: &mut Sequence) {
        let new = sequence.generated().get(sequence.sent..).unwrap_or_default().to_vec();
        let completion = sequence.generated().len();
        let scores = std::mem::take(&mut sequence.scores);
        let top = sequence.request.logprobs.map_or(0, |logprobs| logprobs.top);
        let scored = if scores.is_empty() { Vec::new() } else { new.clone() };
        self.push_head(sequence.request.rid.clone(), new, sequence.finish.as_ref());
        self.push_counts(sequence.prompt_tokens(), completion, sequence.cached);
        self.push_scores(scored, &scores, top);
        let complete = sequence.unscored().is_none() && sequence.computed > 0;
        match sequence.request.logprobs.filter(|_| complete && !sequence.prompt_scores_sent) {
            Some(logprobs) => {
                let prompt = sequence.tokens.get(logprobs.start..sequence.prompt_tokens()).unwrap_or_default();
                self.push_prompt_scores(prompt, &sequence.prompt_scores, top);
                sequence.prompt_scores_sent = true;
            }
            None => self.push_prompt_scores(&[], &[], 0),
        }
        sequence.sent = completion;
    }

    fn push_head(&mut self, rid: String, new: Vec<i32>, finish: Option<&Finish>) {
        self.out.rids.get_or_insert_default().push(rid);
        self.out.output_ids.push(new);
        self.out.finished_reasons.push(finish.map_or("", Finish::reason).to_owned());
        self.out.finish_reason_details.push(finish.map(Finish::details));
    }

    fn push_counts(&mut self, prompt: usize, completion: usize, cached: usize) {
        self.out.prompt_tokens.push(prompt as i64);
        self.out.completion_tokens.push(completion as i64);
        self.out.cached_tokens.push(cached as i64);
    }

    fn push_scores(&mut self, scored: Vec<i32>, scores: &[Scored], top: usize) {
        self.out.output_token_logprobs_val.push(scores.iter().map(|scored| scored.logprob).collect());
        self.out.output_token_logprobs_idx.push(scored);
        let shown = if top > 0 { scores } else { &[] };
        self.out.output_top_logprobs_val.push(shown.iter().map(top_values).collect());
        self.out.output_top_logprobs_idx.push(shown.iter().map(top_ids).collect());
    }

    /// The first position has no log-probability: nothing reported precedes it.
    fn push_prompt_scores(&mut self, prompt: &[i32], scores: &[Scored], top: usize) {
        let first = prompt.first().map(|_| None);
        let values = first.into_iter().chain(scores.iter().map(|scored| Some(scored.logprob)));
        self.out.input_token_logprobs_val.push(values.collect());
        self.out.input_token_logprobs_idx.push(prompt.to_vec());
        let first_top = first.filter(|_| top > 0);
        let shown = if top > 0 { scores } else { &[] };
        let values = first_top.map(|_| None).into_iter().chain(shown.iter().map(|scored| Some(top_values(scored))));
        self.out.input_top_logprobs_val.push(values.collect());
        let ids = first_top.map(|_| None).into_iter().chain(shown.iter().map(|scored| Some(top_ids(scored))));
        self.out.input_top_logprobs_idx.push(ids.collect());
    }

    /// The message, and an empty batch in its place.
    pub(crate) fn take(&mut self, engine_index: u16, load: Load) -> BatchTokenIDOutSlim {
        let room = empty(self.len());
        let mut out = std::mem::replace(&mut self.out, room);
        out.engine_index = i64::from(engine_index);
        out.num_running = load.running as i64;
        out.num_waiting = load.waiting as i64;
        out.kv_active_pages = load.active_pages as i64;
        out.kv_total_pages = load.total_pages as i64;
        // Columns that nobody asked for stay wholly empty, as the engines have it.
        clear_unused(&mut out.input_token_logprobs_val);
        clear_unused(&mut out.input_token_logprobs_idx);
        clear_unused(&mut out.input_top_logprobs_val);
        clear_unused(&mut out.input_top_logprobs_idx);
        clear_unused(&mut out.output_top_logprobs_val);
        clear_unused(&mut out.output_top_logprobs_idx);
        out
    }
}

fn top_values(scored: &Scored) -> Vec<f64> {
    scored.top.iter().map(|(_, logprob)| *logprob).collect()
}

fn top_ids(scored: &Scored) -> Vec<i32> {
    scored.top.iter().map(|(id, _)| *id).collect()
}

fn clear_unused<T>(column: &mut Vec<Vec<T>>) {
    if column.iter().all(Vec::is_empty) {
        column.clear();
    }
}
