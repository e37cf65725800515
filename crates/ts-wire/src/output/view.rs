//! A batch read in place, for a receiver that hands rows on as they are.
//!
//! [`BatchTokenIDOutSlim`](super::BatchTokenIDOutSlim) owns every id and every
//! row, which costs half a dozen allocations per row. A [`BatchView`] owns
//! nothing: [`BatchView::parse`] checks the whole message once, and
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
//!     if let Some(tokens) = streams.get_mut(row.rid) {
//!         row.output_ids.append_to(tokens);
//!     }
//! }
//! assert_eq!(streams["a"], [5, 6]);
//! # Ok::<(), ts_wire::Error>(())
//! ```

use super::{FinishDetails, PromptTopLogprobs, TAG, TopLogprobs, ragged};
use crate::codec::Wire;
use crate::error::{Error, Result};
use crate::layout::ArrayReader;
use crate::msgpack::{Decoder, numbers};

/// A checked output batch, borrowed from the bytes it came in.
#[derive(Debug, Clone)]
pub struct BatchView<'a> {
    rows: Rows<'a>,
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
    pub rid: &'a str,
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
    /// Verification rounds so far, with speculative decoding.
    pub spec_verify_ct: Option<i64>,
    /// Accepted tokens per round, once finished with speculative decoding.
    pub accept_draft_tokens: Option<f64>,
    details: Option<Raw<'a>>,
    input_logprobs: Option<(Raw<'a>, Raw<'a>)>,
    input_top: Option<(Raw<'a>, Raw<'a>)>,
    output_top: Option<(Raw<'a>, Raw<'a>)>,
}

/// Token ids in place.
#[derive(Debug, Clone, Copy)]
pub struct Ids<'a> {
    elements: Raw<'a>,
    len: usize,
}

/// Floats in place.
#[derive(Debug, Clone, Copy)]
pub struct Floats<'a> {
    elements: Raw<'a>,
    len: usize,
}

/// The rows of a [`BatchView`], in order.
#[derive(Debug, Clone)]
pub struct Rows<'a> {
    left: usize,
    rids: Decoder<'a>,
    output_ids: Decoder<'a>,
    finished_reasons: Decoder<'a>,
    prompt_tokens: Decoder<'a>,
    completion_tokens: Decoder<'a>,
    cached_tokens: Decoder<'a>,
    output_logprobs: Decoder<'a>,
    tail: Tail<'a>,
}

/// The columns that are there for every row or for none. Most batches have but
/// the details, and those only from newer engines.
#[derive(Debug, Clone)]
struct Tail<'a> {
    details: Option<Decoder<'a>>,
    spec_verify_ct: Option<Decoder<'a>>,
    accept_draft_tokens: Option<Decoder<'a>>,
    input_logprobs: Pair<'a>,
    input_top: Pair<'a>,
    output_top: Pair<'a>,
}

/// A column of logprobs and that of their token ids.
type Pair<'a> = (Option<Decoder<'a>>, Option<Decoder<'a>>);

/// The bytes of a value, or of the elements of an array, that was checked.
#[derive(Debug, Clone, Copy)]
struct Raw<'a>(&'a [u8]);

// === impl BatchView ===

impl<'a> BatchView<'a> {
    /// Check a message and find its columns.
    ///
    /// # Errors
    ///
    /// As decoding a [`BatchTokenIDOutSlim`](super::BatchTokenIDOutSlim) and
    /// asking it for its requests.
    pub fn parse(message: &'a [u8]) -> Result<Self> {
        let mut decoder = Decoder::over(message);
        let mut columns = Columns::open(&mut decoder)?;
        let rids = columns.rids()?;
        let output_ids = columns.required("output_ids", check(ids))?;
        let finished_reasons = columns.required("finished_reasons", check(Decoder::str))?;
        let prompt_tokens = columns.required("prompt_tokens", check(Decoder::i64))?;
        let completion_tokens = columns.required("completion_tokens", check(Decoder::i64))?;
        let cached_tokens = columns.required("cached_tokens", check(Decoder::i64))?;
        let output_logprobs = columns.required("output_token_logprobs_val", check(floats))?;
        columns.required("output_token_logprobs_idx", check(ids))?;
        let load = BatchLoad {
            engine_index: columns.number("engine_index")?,
            num_running: columns.number("num_running")?,
            num_waiting: columns.number("num_waiting")?,
            kv_active_pages: columns.number("kv_active_pages")?,
            kv_total_pages: columns.number("kv_total_pages")?,
        };
        let tail = Tail::find(&mut columns)?;
        let left = columns.rows;
        columns.reader.close()?;
        decoder.finish()?;
        let rows = Rows {
            left,
            rids,
            output_ids,
            finished_reasons,
            prompt_tokens,
            completion_tokens,
            cached_tokens,
            output_logprobs,
            tail,
        };
        Ok(Self { rows, load })
    }

    /// What the batch says about its engine; zeros from an engine that does
    /// not say.
    pub fn load(&self) -> BatchLoad {
        self.load
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.rows.left
    }

    /// Whether the batch has no rows: it then only reports load.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The rows, in the batch's order.
    pub fn rows(&self) -> Rows<'a> {
        self.rows.clone()
    }
}

impl<'a> IntoIterator for BatchView<'a> {
    type Item = RowView<'a>;
    type IntoIter = Rows<'a>;

    fn into_iter(self) -> Rows<'a> {
        self.rows
    }
}

// === impl Columns ===

/// Goes through the columns of a message, checks each, and remembers where its
/// first entry is.
struct Columns<'d, 'a> {
    reader: ArrayReader<'d, 'a>,
    rows: usize,
}

impl<'d, 'a> Columns<'d, 'a> {
    fn open(decoder: &'d mut Decoder<'a>) -> Result<Self> {
        let reader = ArrayReader::open(decoder, Some(TAG))?;
        Ok(Self { reader, rows: 0 })
    }

    /// The first column; it says how many rows there are.
    fn rids(&mut self) -> Result<Decoder<'a>> {
        let missing = Error::MissingField("rids");
        let Some(decoder) = self.reader.raw() else {
            return Err(missing);
        };
        if decoder.take_nil()? {
            return Err(missing);
        }
        self.rows = decoder.array_len().map_err(|e| e.in_field("rids"))?;
        let first = decoder.clone();
        for _ in 0..self.rows {
            decoder.str().map_err(|e| e.in_field("rids"))?;
        }
        Ok(first)
    }

    /// A column that has an entry per row.
    fn required(&mut self, name: &'static str, check: impl Fn(&mut Decoder<'a>) -> Result<()>) -> Result<Decoder<'a>> {
        let rows = self.rows;
        match self.column(name, check)? {
            Some((first, len)) if len == rows => Ok(first),
            Some((_, len)) => Err(ragged(name, len, rows)),
            None => Err(Error::MissingField(name)),
        }
    }

    /// A column that has an entry per row, or none at all.
    fn optional(
        &mut self,
        name: &'static str,
        check: impl Fn(&mut Decoder<'a>) -> Result<()>,
    ) -> Result<Option<Decoder<'a>>> {
        let rows = self.rows;
        match self.column(name, check)? {
            None | Some((_, 0)) => Ok(None),
            Some((first, len)) if len == rows => Ok(Some(first)),
            Some((_, len)) => Err(ragged(name, len, rows)),
        }
    }

    fn column(
        &mut self,
        name: &'static str,
        check: impl Fn(&mut Decoder<'a>) -> Result<()>,
    ) -> Result<Option<(Decoder<'a>, usize)>> {
        let Some(decoder) = self.reader.raw() else {
            return Ok(None);
        };
        let len = decoder.array_len().map_err(|e| e.in_field(name))?;
        let first = decoder.clone();
        for _ in 0..len {
            check(decoder).map_err(|e| e.in_field(name))?;
        }
        Ok(Some((first, len)))
    }

    fn number(&mut self, name: &'static str) -> Result<i64> {
        Ok(self.reader.field(name)?.unwrap_or(0))
    }
}

/// `read`, with the value it read dropped.
fn check<'a, T>(read: impl Fn(&mut Decoder<'a>) -> Result<T>) -> impl Fn(&mut Decoder<'a>) -> Result<()> {
    move |decoder| read(decoder).map(|_| ())
}

// === impl Rows ===

impl<'a> Iterator for Rows<'a> {
    type Item = RowView<'a>;

    fn next(&mut self) -> Option<RowView<'a>> {
        self.left = self.left.checked_sub(1)?;
        // Every entry was read once by `parse`, so none of them fails.
        self.row().ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Rows<'_> {}

impl<'a> Rows<'a> {
    #[inline]
    fn row(&mut self) -> Result<RowView<'a>> {
        let finish_reason = self.finished_reasons.str()?;
        let mut row = RowView {
            rid: self.rids.str()?,
            output_ids: ids(&mut self.output_ids)?,
            finish_reason: Some(finish_reason).filter(|reason| !reason.is_empty()),
            prompt_tokens: self.prompt_tokens.i64()?,
            completion_tokens: self.completion_tokens.i64()?,
            cached_tokens: self.cached_tokens.i64()?,
            output_token_logprobs: floats(&mut self.output_logprobs)?,
            spec_verify_ct: None,
            accept_draft_tokens: None,
            details: None,
            input_logprobs: None,
            input_top: None,
            output_top: None,
        };
        self.tail.fill(&mut row)?;
        Ok(row)
    }
}

// === impl Tail ===

impl<'a> Tail<'a> {
    fn find(columns: &mut Columns<'_, 'a>) -> Result<Self> {
        Ok(Self {
            details: columns.optional("finish_reason_details", check(details))?,
            spec_verify_ct: columns.optional("spec_verify_ct", check(Decoder::i64))?,
            accept_draft_tokens: columns.optional("accept_draft_tokens", check(or_nil(Decoder::float)))?,
            input_logprobs: (
                columns.optional("input_token_logprobs_val", check(each(or_nil(Decoder::float))))?,
                columns.optional("input_token_logprobs_idx", check(ids))?,
            ),
            input_top: (
                columns.optional("input_top_logprobs_val", check(each(or_nil(floats))))?,
                columns.optional("input_top_logprobs_idx", check(each(or_nil(ids))))?,
            ),
            output_top: (
                columns.optional("output_top_logprobs_val", check(each(floats)))?,
                columns.optional("output_top_logprobs_idx", check(each(ids)))?,
            ),
        })
    }

    #[inline]
    fn fill(&mut self, row: &mut RowView<'a>) -> Result<()> {
        if let Some(column) = &mut self.details {
            row.details = raw_unless_nil(column)?;
        }
        if let Some(column) = &mut self.spec_verify_ct {
            row.spec_verify_ct = Some(column.i64()?);
        }
        if let Some(column) = &mut self.accept_draft_tokens {
            row.accept_draft_tokens = or_nil(Decoder::float)(column)?;
        }
        row.input_logprobs = pair(&mut self.input_logprobs)?;
        row.input_top = pair(&mut self.input_top)?;
        row.output_top = pair(&mut self.output_top)?;
        Ok(())
    }
}

// === impl RowView ===

impl RowView<'_> {
    /// The finish reason in full, once the request ended, from an engine that
    /// sends it. Decoded anew at every call, as the ones below.
    pub fn finish_details(&self) -> Option<FinishDetails> {
        self.details?.decode()
    }

    /// Logprobs of the prompt and their tokens, in the row that ships them.
    pub fn input_token_logprobs(&self) -> Option<(Vec<Option<f64>>, Vec<i32>)> {
        decode_pair(self.input_logprobs)
    }

    /// The prompt's alternatives, in the row that ships them.
    pub fn input_top_logprobs(&self) -> Option<PromptTopLogprobs> {
        decode_pair(self.input_top)
    }

    /// The alternatives of the row's tokens, where asked for.
    pub fn output_top_logprobs(&self) -> Option<TopLogprobs> {
        decode_pair(self.output_top)
    }
}

fn decode_pair<V: Wire, I: Wire>(pair: Option<(Raw<'_>, Raw<'_>)>) -> Option<(V, I)> {
    let (values, ids) = pair?;
    Some((values.decode()?, ids.decode()?))
}

impl Raw<'_> {
    /// The value; `None` never, as it was checked for this type.
    fn decode<T: Wire>(self) -> Option<T> {
        T::decode(&mut Decoder::over(self.0)).ok()
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
        let mut decoder = Decoder::over(self.elements.0);
        (0..self.len).map_while(move |_| decoder.i32().ok())
    }

    /// Append the ids to `tokens`.
    #[inline]
    pub fn append_to(&self, tokens: &mut Vec<i32>) {
        tokens.reserve(self.len);
        let mut decoder = Decoder::over(self.elements.0);
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
        let mut decoder = Decoder::over(self.elements.0);
        (0..self.len).map_while(move |_| decoder.float().ok())
    }

    /// Append the floats to `values`.
    #[inline]
    pub fn append_to(&self, values: &mut Vec<f64>) {
        values.reserve(self.len);
        let mut decoder = Decoder::over(self.elements.0);
        let read = numbers::read_floats(&mut decoder, self.len, |value| values.push(value));
        debug_assert!(read.is_ok(), "the floats were checked");
    }
}

// === one entry of a column ===

#[inline]
fn ids<'a>(decoder: &mut Decoder<'a>) -> Result<Ids<'a>> {
    let len = decoder.array_len()?;
    let start = decoder.position();
    numbers::read_ints(decoder, len, |_| ())?;
    let elements = Raw(decoder.since(start));
    Ok(Ids { elements, len })
}

#[inline]
fn floats<'a>(decoder: &mut Decoder<'a>) -> Result<Floats<'a>> {
    let len = decoder.array_len()?;
    let start = decoder.position();
    numbers::read_floats(decoder, len, |_| ())?;
    let elements = Raw(decoder.since(start));
    Ok(Floats { elements, len })
}

/// Finish details: what [`FinishDetails`] decodes from, or `nil`.
fn details(decoder: &mut Decoder<'_>) -> Result<()> {
    if decoder.take_nil()? {
        return Ok(());
    }
    for _ in 0..decoder.map_len()? {
        decoder.str()?;
        decoder.skip()?;
    }
    Ok(())
}

/// An array of what `entry` reads.
fn each<'a, T>(entry: impl Fn(&mut Decoder<'a>) -> Result<T>) -> impl Fn(&mut Decoder<'a>) -> Result<()> {
    move |decoder| {
        for _ in 0..decoder.array_len()? {
            entry(decoder)?;
        }
        Ok(())
    }
}

/// What `entry` reads, or `nil`.
fn or_nil<'a, T>(entry: impl Fn(&mut Decoder<'a>) -> Result<T>) -> impl Fn(&mut Decoder<'a>) -> Result<Option<T>> {
    move |decoder| match decoder.take_nil()? {
        true => Ok(None),
        false => entry(decoder).map(Some),
    }
}

/// The bytes of an entry that was checked, unless it is `nil`.
fn raw_unless_nil<'a>(column: &mut Decoder<'a>) -> Result<Option<Raw<'a>>> {
    if column.take_nil()? {
        return Ok(None);
    }
    raw(column).map(Some)
}

fn raw<'a>(column: &mut Decoder<'a>) -> Result<Raw<'a>> {
    let start = column.position();
    column.skip()?;
    Ok(Raw(column.since(start)))
}

/// A row's logprobs with their token ids, unless it has none.
fn pair<'a>((values, ids): &mut Pair<'a>) -> Result<Option<(Raw<'a>, Raw<'a>)>> {
    // Both columns move on even if the row's entry turns out empty.
    let ids = ids.as_mut().map(raw).transpose()?;
    let Some(values) = values else {
        return Ok(None);
    };
    let empty = values.clone().array_len()? == 0;
    let values = raw(values)?;
    Ok(ids.filter(|_| !empty).map(|ids| (values, ids)))
}
