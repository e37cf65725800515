//! Output batches: what the requests of one engine step produced.

mod view;

pub use view::{BatchLoad, BatchView, Floats, Ids, KnownRids, Rid, RowView, Rows};

use crate::codec::Dict;
use crate::error::{Error, Result};
use crate::layout::array_struct;
use crate::value::Value;

array_struct! {
    /// One step's outputs, column by column. A tagged array that grew from 9
    /// elements to 10, 14 and 23.
    ///
    /// Columns up to `output_token_logprobs_idx` have one entry per request id;
    /// those from `finish_reason_details` on have one per request id or none
    /// at all. [`BatchTokenIDOutSlim::requests`] checks that.
    #[derive(Debug, Clone, PartialEq, Default)]
    pub struct BatchTokenIDOutSlim tagged TAG {
        /// The request ids; always there on this wire.
        pub rids: Option<Vec<String>>,
        /// Tokens since the request's last row.
        pub output_ids: Vec<Vec<i32>>,
        /// `""` while running, then `"stop"`, `"length"` or `"abort"`.
        pub finished_reasons: Vec<String>,
        /// Tokens of the prompt.
        pub prompt_tokens: Vec<i64>,
        /// Tokens generated so far, this row's included.
        pub completion_tokens: Vec<i64>,
        /// Prompt tokens that came from the prefix cache.
        pub cached_tokens: Vec<i64>,
        /// Logprobs of the row's tokens; empty where not asked for.
        pub output_token_logprobs_val: Vec<Vec<f64>>,
        /// The token ids they belong to.
        pub output_token_logprobs_idx: Vec<Vec<i32>>,
        /// The index of the engine that sent the batch.
        pub engine_index: i64 = 0,
        /// Requests running on it.
        pub num_running: i64 = 0,
        /// Requests waiting on it.
        pub num_waiting: i64 = 0,
        /// KV pages its requests use.
        pub kv_active_pages: i64 = 0,
        /// KV pages it has.
        pub kv_total_pages: i64 = 0,
        /// The finish reason in full; `None` while running.
        pub finish_reason_details: Vec<Option<FinishDetails>> = Vec::new(),
        /// Verification rounds so far, with speculative decoding.
        pub spec_verify_ct: Vec<i64> = Vec::new(),
        /// Accepted tokens per round, once finished with speculative decoding.
        pub accept_draft_tokens: Vec<Option<f64>> = Vec::new(),
        /// Logprobs of the prompt, once per request; the first is `None`.
        pub input_token_logprobs_val: Vec<Vec<Option<f64>>> = Vec::new(),
        /// The token ids they belong to.
        pub input_token_logprobs_idx: Vec<Vec<i32>> = Vec::new(),
        /// Logprobs of the alternatives at each prompt position, the most
        /// likely first; `None` at the first position.
        pub input_top_logprobs_val: Vec<Vec<Option<Vec<f64>>>> = Vec::new(),
        /// Their token ids.
        pub input_top_logprobs_idx: Vec<Vec<Option<Vec<i32>>>> = Vec::new(),
        /// Logprobs of the alternatives of each token of the row.
        pub output_top_logprobs_val: Vec<Vec<Vec<f64>>> = Vec::new(),
        /// Their token ids.
        pub output_top_logprobs_idx: Vec<Vec<Vec<i32>>> = Vec::new(),
    }
}

/// The batch's tag on the wire.
pub(crate) const TAG: &str = "BatchTokenIDOutSlim";

/// A finish reason in full: `"type"`, then `"matched"`, `"length"`, or
/// `"message"`, `"err_type"` and `"status_code"`.
pub type FinishDetails = Dict<String, Value>;

/// Alternatives per token: logprobs and token ids, the most likely first.
pub type TopLogprobs = (Vec<Vec<f64>>, Vec<Vec<i32>>);

/// Alternatives per prompt position, `None` at the first.
pub type PromptTopLogprobs = (Vec<Option<Vec<f64>>>, Vec<Option<Vec<i32>>>);

/// [`TopLogprobs`] borrowed from a batch.
pub type TopLogprobRows<'a> = (&'a [Vec<f64>], &'a [Vec<i32>]);

/// [`PromptTopLogprobs`] borrowed from a batch.
pub type PromptTopLogprobRows<'a> = (&'a [Option<Vec<f64>>], &'a [Option<Vec<i32>>]);

/// One request's part of a [`BatchTokenIDOutSlim`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RequestOutput<'a> {
    /// The request's id.
    pub rid: &'a str,
    /// Tokens since the request's last row.
    pub output_ids: &'a [i32],
    /// `None` while running, then `"stop"`, `"length"` or `"abort"`.
    pub finish_reason: Option<&'a str>,
    /// Tokens of the prompt.
    pub prompt_tokens: i64,
    /// Tokens generated so far, this row's included.
    pub completion_tokens: i64,
    /// Prompt tokens that came from the prefix cache.
    pub cached_tokens: i64,
    /// Logprobs of the row's tokens; empty where not asked for.
    pub output_token_logprobs: &'a [f64],
    /// The finish reason in full, once the request ended, from an engine that
    /// sends it.
    pub finish_details: Option<&'a FinishDetails>,
    /// Verification rounds so far, with speculative decoding.
    pub spec_verify_ct: Option<i64>,
    /// Accepted tokens per round, once finished with speculative decoding.
    pub accept_draft_tokens: Option<f64>,
    /// Logprobs of the prompt and their tokens, in the row that ships them.
    pub input_token_logprobs: Option<(&'a [Option<f64>], &'a [i32])>,
    /// The prompt's alternatives, in the row that ships them.
    pub input_top_logprobs: Option<PromptTopLogprobRows<'a>>,
    /// The alternatives of the row's tokens, where asked for.
    pub output_top_logprobs: Option<TopLogprobRows<'a>>,
}

impl BatchTokenIDOutSlim {
    /// The batch's rows, after a check that every column has one entry per
    /// request (the tail columns: one or none at all).
    ///
    /// # Errors
    ///
    /// [`Error::MissingField`] without `rids`, [`Error::Invalid`] for a column
    /// of the wrong length.
    pub fn requests(&self) -> Result<impl Iterator<Item = RequestOutput<'_>>> {
        let rids = self.rids.as_deref().ok_or(Error::MissingField("rids"))?;
        self.check_columns(rids.len())?;
        Ok(rids.iter().enumerate().filter_map(|(row, rid)| self.row(row, rid)))
    }

    fn check_columns(&self, rows: usize) -> Result<()> {
        let every = [
            ("output_ids", self.output_ids.len()),
            ("finished_reasons", self.finished_reasons.len()),
            ("prompt_tokens", self.prompt_tokens.len()),
            ("completion_tokens", self.completion_tokens.len()),
            ("cached_tokens", self.cached_tokens.len()),
            ("output_token_logprobs_val", self.output_token_logprobs_val.len()),
            ("output_token_logprobs_idx", self.output_token_logprobs_idx.len()),
        ];
        let every_or_none = [
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
        let filled = every_or_none.into_iter().filter(|(_, len)| *len != 0);
        for (column, len) in every.into_iter().chain(filled) {
            if len != rows {
                return Err(ragged(column, len, rows));
            }
        }
        Ok(())
    }

    /// One row; `None` only past the end, once the columns were checked.
    fn row<'a>(&'a self, row: usize, rid: &'a str) -> Option<RequestOutput<'a>> {
        Some(RequestOutput {
            rid,
            output_ids: self.output_ids.get(row)?,
            finish_reason: Some(self.finished_reasons.get(row)?.as_str()).filter(|reason| !reason.is_empty()),
            prompt_tokens: *self.prompt_tokens.get(row)?,
            completion_tokens: *self.completion_tokens.get(row)?,
            cached_tokens: *self.cached_tokens.get(row)?,
            output_token_logprobs: self.output_token_logprobs_val.get(row)?,
            finish_details: self.finish_reason_details.get(row).and_then(Option::as_ref),
            spec_verify_ct: self.spec_verify_ct.get(row).copied(),
            accept_draft_tokens: self.accept_draft_tokens.get(row).copied().flatten(),
            input_token_logprobs: pair(&self.input_token_logprobs_val, &self.input_token_logprobs_idx, row),
            input_top_logprobs: pair(&self.input_top_logprobs_val, &self.input_top_logprobs_idx, row),
            output_top_logprobs: pair(&self.output_top_logprobs_val, &self.output_top_logprobs_idx, row),
        })
    }
}

/// The error for a column with a number of entries that is not the number of
/// requests.
fn ragged(column: &str, len: usize, rows: usize) -> Error {
    Error::Invalid(format!("`{column}` has {len} entries for {rows} requests"))
}

/// A row's logprobs with their token ids, unless it has none.
fn pair<'a, V, I>(values: &'a [Vec<V>], ids: &'a [Vec<I>], row: usize) -> Option<(&'a [V], &'a [I])> {
    let values = values.get(row)?;
    if values.is_empty() {
        return None;
    }
    Some((values, ids.get(row)?))
}
