//! A batch read in place, for a receiver that hands rows on as they are.
//!
//! [`BatchTokenIDOutSlim`](super::BatchTokenIDOutSlim) owns every id and every
//! row, which costs half a dozen allocations per row. A [`BatchView`] owns a list
//! of borrowed ids: [`BatchView::parse`] checks the whole message once, and
//! [`BatchView::rows`] then walks the columns side by side. It accepts exactly
//! the messages that the owned decoder and
//! [`requests`](super::BatchTokenIDOutSlim::requests) accept together.
//!
//! ```
//! use std::collections::HashMap;
//! use ts_wire::output::{BatchTokenIDOutSlim, BatchView};
//!
//! # let batch = BatchTokenIDOutSlim {
//! #     rids: Some(vec!["a".into()]),
//! #     output_ids: vec![vec![5, 6]],
//! #     finished_reasons: vec!["stop".into()],
//! #     prompt_tokens: vec![3],
//! #     completion_tokens: vec![2],
//! #     cached_tokens: vec![0],
//! #     output_token_logprobs_val: vec![vec![]],
//! #     output_token_logprobs_idx: vec![vec![]],
//! #     ..BatchTokenIDOutSlim::default()
//! # };
//! # let frame = ts_wire::encode_frames(&batch).remove(0);
//! let mut streams: HashMap<String, Vec<i32>> = HashMap::from([("a".into(), vec![])]);
//! for row in BatchView::parse(&frame)?.rows() {
//!     if let Some(tokens) = streams.get_mut(row.rid.as_str()) {
//!         row.output_ids.append_to(tokens);
//!     }
//! }
//! assert_eq!(streams["a"], [5, 6]);
//! # Ok::<(), ts_wire::Error>(())
//! ```

mod columns;
mod rids;

pub use rids::{KnownRids, Rid};

use columns::{Columns, Cursor, Rare, details, floats, ids, nonempty};
use rids::{RidIter, Rids};

use super::{FinishDetails, PromptTopLogprobs, TopLogprobs};
use crate::codec::Wire;
use crate::error::Result;
use crate::msgpack::{Decoder, numbers};

/// A checked output batch, borrowed from the bytes it came in.
#[derive(Debug, Clone)]
pub struct BatchView<'a> {
    message: &'a [u8],
    rids: Rids<'a>,
    columns: Cursors,
    load: BatchLoad,
}

/// What a batch says about the engine that sent it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BatchLoad {
    /// The index of the engine.
    pub engine_index: i64,
    /// Requests running on it.
    pub num_running: i64,
    /// Requests waiting on it.
    pub num_waiting: i64,
    /// KV pages its requests use.
    pub kv_active_pages: i64,
    /// KV pages it has.
    pub kv_total_pages: i64,
}

/// One request's row of a batch, in place.
#[derive(Debug, Clone, Copy)]
pub struct RowView<'a> {
    /// The request's id.
    pub rid: Rid<'a>,
    /// Tokens since the request's last row.
    pub output_ids: Ids<'a>,
    /// `None` while running, then `"stop"`, `"length"` or `"abort"`.
    pub finish_reason: Option<&'a str>,
    /// Tokens of the prompt.
    pub prompt_tokens: i64,
    /// Tokens generated so far, this row's included.
    pub completion_tokens: i64,
    /// Prompt tokens that came from the prefix cache.
    pub cached_tokens: i64,
    /// Logprobs of the row's tokens; empty where not asked for.
    pub output_token_logprobs: Floats<'a>,
    message: &'a [u8],
    details: Option<Cursor>,
    rare: Option<Rare>,
}

/// Token ids in place.
#[derive(Debug, Clone, Copy)]
pub struct Ids<'a> {
    elements: &'a [u8],
    len: usize,
}

/// Floats in place.
#[derive(Debug, Clone, Copy)]
pub struct Floats<'a> {
    elements: &'a [u8],
    len: usize,
}

/// The rows of a [`BatchView`], in order.
#[derive(Debug, Clone)]
pub struct Rows<'v, 'a> {
    message: &'a [u8],
    rids: RidIter<'v, 'a>,
    columns: Cursors,
}

/// Where each column has its next entry.
#[derive(Debug, Clone, Copy)]
struct Cursors {
    output_ids: Cursor,
    finished_reasons: Cursor,
    prompt_tokens: Cursor,
    completion_tokens: Cursor,
    cached_tokens: Cursor,
    output_logprobs: Cursor,
    details: Option<Cursor>,
    rare: Option<Rare>,
}

// === impl BatchView ===

impl<'a> BatchView<'a> {
    /// Check a message and find its columns.
    ///
    /// # Errors
    ///
    /// As decoding a [`BatchTokenIDOutSlim`](super::BatchTokenIDOutSlim) and
    /// asking it for its requests.
    pub fn parse(message: &'a [u8]) -> Result<Self> {
        Self::parse_after(message, &KnownRids::default())
    }

    /// The same, for a batch that may have the ids of one before it, which is
    /// the usual case with batches of one engine: [`BatchView::rids_known`]
    /// then says so.
    ///
    /// # Errors
    ///
    /// As [`BatchView::parse`].
    pub fn parse_after(message: &'a [u8], known: &KnownRids) -> Result<Self> {
        let mut decoder = Decoder::over(message);
        let mut columns = Columns::open(&mut decoder)?;
        let rids = columns.rids(known)?;
        let output_ids = columns.required("output_ids", ids)?;
        let finished_reasons = columns.required("finished_reasons", nonempty)?;
        let prompt_tokens = columns.required("prompt_tokens", Decoder::i64)?;
        let completion_tokens = columns.required("completion_tokens", Decoder::i64)?;
        let cached_tokens = columns.required("cached_tokens", Decoder::i64)?;
        let output_logprobs = columns.required("output_token_logprobs_val", floats)?;
        columns.required("output_token_logprobs_idx", ids)?;
        let load = BatchLoad {
            engine_index: columns.number("engine_index")?,
            num_running: columns.number("num_running")?,
            num_waiting: columns.number("num_waiting")?,
            kv_active_pages: columns.number("kv_active_pages")?,
            kv_total_pages: columns.number("kv_total_pages")?,
        };
        let columns = Cursors {
            output_ids,
            finished_reasons,
            prompt_tokens,
            completion_tokens,
            cached_tokens,
            output_logprobs,
            details: columns.optional("finish_reason_details", details)?,
            rare: columns.finish()?,
        };
        decoder.finish()?;
        Ok(Self { message, rids, columns, load })
    }

    /// What the batch says about its engine; zeros from an engine that does
    /// not say.
    pub fn load(&self) -> BatchLoad {
        self.load
    }

    /// Whether the rows are those of the batch whose ids were known: the same
    /// requests in the same order.
    pub fn rids_known(&self) -> bool {
        matches!(self.rids, Rids::Known { .. })
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.rids.len()
    }

    /// Whether the batch has no rows: it then only reports load.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The rows, in the batch's order.
    pub fn rows(&self) -> Rows<'_, 'a> {
        Rows { message: self.message, rids: self.rids.iter(), columns: self.columns }
    }
}

impl<'v, 'a> IntoIterator for &'v BatchView<'a> {
    type Item = RowView<'a>;
    type IntoIter = Rows<'v, 'a>;

    fn into_iter(self) -> Rows<'v, 'a> {
        self.rows()
    }
}

// === impl Rows ===

impl<'a> Iterator for Rows<'_, 'a> {
    type Item = RowView<'a>;

    #[inline]
    fn next(&mut self) -> Option<RowView<'a>> {
        let message = self.message;
        let rid = self.rids.next(message)?;
        let columns = &mut self.columns;
        // Every entry was read once by `parse`, so no read below fails; only
        // the ids end the iteration.
        Some(RowView {
            rid,
            output_ids: columns.output_ids.read(message, ids)?,
            finish_reason: columns.finished_reasons.read(message, nonempty)?,
            prompt_tokens: columns.prompt_tokens.read(message, Decoder::i64)?,
            completion_tokens: columns.completion_tokens.read(message, Decoder::i64)?,
            cached_tokens: columns.cached_tokens.read(message, Decoder::i64)?,
            output_token_logprobs: columns.output_logprobs.read(message, floats)?,
            message,
            details: match &mut columns.details {
                Some(column) => column.pass(message)?,
                None => None,
            },
            rare: match &mut columns.rare {
                Some(columns) => Some(columns.pass(message)?),
                None => None,
            },
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.rids.len(), Some(self.rids.len()))
    }
}

impl ExactSizeIterator for Rows<'_, '_> {}

// === impl RowView ===

impl RowView<'_> {
    /// The finish reason in full, once the request ended, from an engine that
    /// sends it. Decoded anew at every call, as everything below.
    pub fn finish_details(&self) -> Option<FinishDetails> {
        self.details?.decode(self.message)
    }

    /// Whether the batch has none of the columns that are read by the methods
    /// below, as most have not.
    pub fn is_plain(&self) -> bool {
        self.rare.is_none()
    }

    /// Verification rounds so far, with speculative decoding.
    pub fn spec_verify_ct(&self) -> Option<i64> {
        self.rare(Rare::SPEC_VERIFY_CT)
    }

    /// Accepted tokens per round, once finished with speculative decoding.
    pub fn accept_draft_tokens(&self) -> Option<f64> {
        self.rare(Rare::ACCEPT_DRAFT_TOKENS).flatten()
    }

    /// Logprobs of the prompt and their tokens, in the row that ships them.
    pub fn input_token_logprobs(&self) -> Option<(Vec<Option<f64>>, Vec<i32>)> {
        self.rare_pair(Rare::INPUT_LOGPROBS)
    }

    /// The prompt's alternatives, in the row that ships them.
    pub fn input_top_logprobs(&self) -> Option<PromptTopLogprobs> {
        self.rare_pair(Rare::INPUT_TOP)
    }

    /// The alternatives of the row's tokens, where asked for.
    pub fn output_top_logprobs(&self) -> Option<TopLogprobs> {
        self.rare_pair(Rare::OUTPUT_TOP)
    }

    /// The row's entry of a rare column.
    fn rare<T: Wire>(&self, column: usize) -> Option<T> {
        self.rare?.entry(column)?.decode(self.message)
    }

    /// The row's logprobs and token ids of two columns, unless it has none.
    fn rare_pair<V: Wire, I: Wire>(&self, column: usize) -> Option<(Vec<V>, Vec<I>)> {
        let values: Vec<V> = self.rare(column)?;
        let ids = self.rare(column + 1)?;
        Some((values, ids)).filter(|(values, _)| !values.is_empty())
    }
}

// === impl Ids ===

impl<'a> Ids<'a> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The ids.
    pub fn iter(&self) -> impl Iterator<Item = i32> + use<'a> {
        let mut decoder = Decoder::over(self.elements);
        (0..self.len).map_while(move |_| decoder.i32().ok())
    }

    /// Append the ids to `tokens`.
    #[inline]
    pub fn append_to(&self, tokens: &mut Vec<i32>) {
        tokens.reserve(self.len);
        let mut decoder = Decoder::over(self.elements);
        let read = numbers::read_ints(&mut decoder, self.len, |id| tokens.push(id));
        debug_assert!(read.is_ok(), "the ids were checked");
    }
}

// === impl Floats ===

impl<'a> Floats<'a> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The floats.
    pub fn iter(&self) -> impl Iterator<Item = f64> + use<'a> {
        let mut decoder = Decoder::over(self.elements);
        (0..self.len).map_while(move |_| decoder.float().ok())
    }

    /// Append the floats to `values`.
    #[inline]
    pub fn append_to(&self, values: &mut Vec<f64>) {
        values.reserve(self.len);
        let mut decoder = Decoder::over(self.elements);
        let read = numbers::read_floats(&mut decoder, self.len, |value| values.push(value));
        debug_assert!(read.is_ok(), "the floats were checked");
    }
}
