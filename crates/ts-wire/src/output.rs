//! Per-step outputs from the engine to a frontend (`engine/io_struct.py`; wire contract, section 6).

use crate::codec::{Dict, wire_struct};
use crate::error::{Error, Result};
use crate::value::Value;

/// A finish reason in full: `type`, then `matched`, `length`, or `message`, `err_type` and `status_code`.
pub type FinishDetails = Dict<String, Value>;
/// Top-k alternatives per token: their logprobs and token ids, most likely first.
pub type TopLogprobs = (Vec<Vec<f64>>, Vec<Vec<i32>>);
/// Top-k alternatives per prompt position, `None` for the first.
pub type PromptTopLogprobs = (Vec<Option<Vec<f64>>>, Vec<Option<Vec<i32>>>);
/// [`TopLogprobs`] borrowed from a batch.
pub type TopLogprobRows<'a> = (&'a [Vec<f64>], &'a [Vec<i32>]);
/// [`PromptTopLogprobs`] borrowed from a batch.
pub type PromptTopLogprobRows<'a> = (&'a [Option<Vec<f64>>], &'a [Option<Vec<i32>>]);

wire_struct! {
    /// One step's output for a frontend that detokenizes itself.
    ///
    /// Columns up to the logprobs have one entry per request; the later ones too, or they are empty.
    pub struct BatchTokenIDOutSlim: array("BatchTokenIDOutSlim") {
        /// Request ids. Always present on this wire.
        pub rids: Option<Vec<String>> = None,
        /// Token ids generated since the last row, per request.
        pub output_ids: Vec<Vec<i32>>,
        /// `""` while running, else the finish type (`"stop"`, `"length"`, `"abort"`).
        pub finished_reasons: Vec<String>,
        /// Prompt length.
        pub prompt_tokens: Vec<i64>,
        /// Tokens generated so far.
        pub completion_tokens: Vec<i64>,
        /// Prompt tokens served from the prefix cache.
        pub cached_tokens: Vec<i64>,
        /// Logprobs of this step's tokens; empty for requests without logprobs.
        pub output_token_logprobs_val: Vec<Vec<f64>>,
        /// The token ids `output_token_logprobs_val` refers to.
        pub output_token_logprobs_idx: Vec<Vec<i32>>,
        /// The producing DP rank's engine index.
        pub engine_index: i64 = 0,
        /// Running requests.
        pub num_running: i64 = 0,
        /// Waiting requests.
        pub num_waiting: i64 = 0,
        /// KV pages in use by active requests.
        pub kv_active_pages: i64 = 0,
        /// KV pages in total.
        pub kv_total_pages: i64 = 0,
        /// The finish reason in full, `None` while a request runs; empty from an engine that does not send it.
        pub finish_reason_details: Vec<Option<FinishDetails>> = Vec::new(),
        /// With speculative decoding, each request's verify rounds so far; empty without.
        pub spec_verify_ct: Vec<i64> = Vec::new(),
        /// With speculative decoding, each finished request's accepted tokens per verify round, `None` before; empty without.
        pub accept_draft_tokens: Vec<Option<f64>> = Vec::new(),
        /// Prompt logprobs, sent once per request: `None` for the first position, then each position's given its prefix.
        pub input_token_logprobs_val: Vec<Vec<Option<f64>>> = Vec::new(),
        /// The prompt tokens `input_token_logprobs_val` refers to.
        pub input_token_logprobs_idx: Vec<Vec<i32>> = Vec::new(),
        /// The top-k alternatives' logprobs at each prompt position (`None` for the first), most likely first.
        pub input_top_logprobs_val: Vec<Vec<Option<Vec<f64>>>> = Vec::new(),
        /// Their token ids.
        pub input_top_logprobs_idx: Vec<Vec<Option<Vec<i32>>>> = Vec::new(),
        /// The top-k alternatives' logprobs of each token this step.
        pub output_top_logprobs_val: Vec<Vec<Vec<f64>>> = Vec::new(),
        /// Their token ids.
        pub output_top_logprobs_idx: Vec<Vec<Vec<i32>>> = Vec::new(),
    }
}

/// One request's slice of a [`BatchTokenIDOutSlim`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RequestOutput<'a> {
    /// Request id.
    pub rid: &'a str,
    /// Token ids generated this step.
    pub output_ids: &'a [i32],
    /// The finish type, or `None` while the request runs.
    pub finish_reason: Option<&'a str>,
    /// Prompt length.
    pub prompt_tokens: i64,
    /// Tokens generated so far.
    pub completion_tokens: i64,
    /// Prompt tokens served from the prefix cache.
    pub cached_tokens: i64,
    /// Logprobs of this step's tokens; empty when not requested.
    pub output_token_logprobs: &'a [f64],
    /// The finish reason in full, once the request ended, from an engine that sends it.
    pub finish_details: Option<&'a FinishDetails>,
    /// Verify rounds so far, with speculative decoding.
    pub spec_verify_ct: Option<i64>,
    /// Accepted tokens per verify round, once finished with speculative decoding.
    pub accept_draft_tokens: Option<f64>,
    /// Prompt logprobs and their tokens, in the row that carries them.
    pub input_token_logprobs: Option<(&'a [Option<f64>], &'a [i32])>,
    /// The prompt positions' top-k alternatives, in the row that carries them.
    pub input_top_logprobs: Option<PromptTopLogprobRows<'a>>,
    /// This step's tokens' top-k alternatives, when the request asked for them.
    pub output_top_logprobs: Option<TopLogprobRows<'a>>,
}

impl BatchTokenIDOutSlim {
    /// The rows, one per request.
    ///
    /// # Errors
    /// [`Error::Invalid`] when there are no request ids, or a column has a different number of rows.
    pub fn requests(&self) -> Result<impl Iterator<Item = RequestOutput<'_>>> {
        let rids = self.rids.as_deref().ok_or_else(|| Error::Invalid("an output batch without request ids".into()))?;
        self.check_columns(rids.len())?;
        Ok((0..rids.len()).map_while(move |row| self.row(rids.get(row)?, row)))
    }

    fn check_columns(&self, rows: usize) -> Result<()> {
        let whole = [
            ("output_ids", self.output_ids.len()),
            ("finished_reasons", self.finished_reasons.len()),
            ("prompt_tokens", self.prompt_tokens.len()),
            ("completion_tokens", self.completion_tokens.len()),
            ("cached_tokens", self.cached_tokens.len()),
            ("output_token_logprobs_val", self.output_token_logprobs_val.len()),
            ("output_token_logprobs_idx", self.output_token_logprobs_idx.len()),
        ];
        let tail = [
            ("finish_reason_details", self.finish_reason_details.len()),
            ("spec_verify_ct", self.spec_verify_ct.len()),
            ("accept_draft_tokens", self.accept_draft_tokens.len()),
            ("input_token_logprobs_val", self.input_token_logprobs_val.len()),
            ("input_token_logprobs_idx", self.input_token_logprobs_idx.len()),
            ("input_top_logprobs_val", self.input_top_logprobs_val.len()),
            ("input_top_logprobs_idx", self.input_top_logprobs_idx.len()),
            ("output_top_logprobs_val", self.output_top_logprobs_val.len()),
            ("output_top_logprobs_idx", self.output_top_logprobs_idx.len()),
        ];
        let ragged = whole
            .into_iter()
            .find(|(_, length)| *length != rows)
            .or_else(|| tail.into_iter().find(|(_, length)| *length != rows && *length != 0));
        match ragged {
            Some((column, length)) => {
                Err(Error::Invalid(format!("column {column} of an output batch has {length} rows, not {rows}")))
            }
            None => Ok(()),
        }
    }

    fn row<'a>(&'a self, rid: &'a str, row: usize) -> Option<RequestOutput<'a>> {
        let input_logprobs = self.input_token_logprobs_val.get(row).zip(self.input_token_logprobs_idx.get(row));
        let input_top = self.input_top_logprobs_val.get(row).zip(self.input_top_logprobs_idx.get(row));
        let output_top = self.output_top_logprobs_val.get(row).zip(self.output_top_logprobs_idx.get(row));
        Some(RequestOutput {
            rid,
            output_ids: self.output_ids.get(row)?,
            finish_reason: self.finished_reasons.get(row).map(String::as_str).filter(|reason| !reason.is_empty()),
            prompt_tokens: *self.prompt_tokens.get(row)?,
            completion_tokens: *self.completion_tokens.get(row)?,
            cached_tokens: *self.cached_tokens.get(row)?,
            output_token_logprobs: self.output_token_logprobs_val.get(row)?,
            finish_details: self.finish_reason_details.get(row).and_then(Option::as_ref),
            spec_verify_ct: self.spec_verify_ct.get(row).copied(),
            accept_draft_tokens: self.accept_draft_tokens.get(row).copied().flatten(),
            input_token_logprobs: input_logprobs.filter(|(val, _)| !val.is_empty()).map(|(v, i)| (&v[..], &i[..])),
            input_top_logprobs: input_top.filter(|(val, _)| !val.is_empty()).map(|(v, i)| (&v[..], &i[..])),
            output_top_logprobs: output_top.filter(|(val, _)| !val.is_empty()).map(|(v, i)| (&v[..], &i[..])),
        })
    }
}
