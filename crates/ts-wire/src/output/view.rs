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
//!     if let Some(tokens) = streams.get_mut(row.rid) {
//!         row.output_ids.append_to(tokens);
//!     }
//! }
//! assert_eq!(streams["a"], [5, 6]);
//! # Ok::<(), ts_wire::Error>(())
//! ```

use std::num::NonZeroUsize;

use super::{FinishDetails, PromptTopLogprobs, TAG, TopLogprobs, ragged};
use crate::codec::Wire;
use crate::error::{Error, Result};
use crate::layout::ArrayReader;
use crate::msgpack::{Decoder, numbers};

/// A checked output batch, borrowed from the bytes it came in.
#[derive(Debug, Clone)]
pub struct BatchView<'a> {
    message: &'a [u8],
    /// Read once and kept: to check a string again costs more than to store
    /// it.
    rids: Vec<&'a str>,
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
    rids: std::slice::Iter<'v, &'a str>,
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

/// The tail columns that few batches have, each with where its next entry is;
/// `None` for a column without entries. The constants below name the places.
#[derive(Debug, Clone, Copy)]
struct Rare([Option<Cursor>; 8]);

const SPEC_VERIFY_CT: usize = 0;
const ACCEPT_DRAFT_TOKENS: usize = 1;
/// A column of logprobs; that of their token ids is the next.
const INPUT_LOGPROBS: usize = 2;
const INPUT_TOP: usize = 4;
const OUTPUT_TOP: usize = 6;

/// Where the next entry of a column is in the message. Never 0: the message's
/// own header comes first.
#[derive(Debug, Clone, Copy)]
struct Cursor(NonZeroUsize);

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
        let output_ids = columns.required("output_ids", ids)?;
        let finished_reasons = columns.required("finished_reasons", Decoder::str)?;
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

// === impl Columns ===

/// Reads one entry of a column.
trait Entry<'a, T>: Fn(&mut Decoder<'a>) -> Result<T> {}

impl<'a, T, F: Fn(&mut Decoder<'a>) -> Result<T>> Entry<'a, T> for F {}

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
    fn rids(&mut self) -> Result<Vec<&'a str>> {
        let missing = Error::MissingField("rids");
        let Some(decoder) = self.reader.raw() else {
            return Err(missing);
        };
        if decoder.take_nil()? {
            return Err(missing);
        }
        let mut read = || {
            self.rows = decoder.array_len()?;
            // At most sixteen times what is left of the message.
            let mut rids = Vec::with_capacity(self.rows);
            for _ in 0..self.rows {
                rids.push(decoder.str()?);
            }
            Ok(rids)
        };
        read().map_err(|error: Error| error.in_field("rids"))
    }

    /// The rare columns, then whatever a newer engine appended.
    fn finish(mut self) -> Result<Option<Rare>> {
        let rare = Rare::find(&mut self)?;
        self.reader.close()?;
        Ok(rare)
    }

    /// A column that has an entry per row.
    fn required<T>(&mut self, name: &'static str, entry: impl Entry<'a, T>) -> Result<Cursor> {
        if self.reader.raw().is_none() {
            return Err(Error::MissingField(name));
        }
        match self.entries(name, entry)? {
            (first, len) if len == self.rows => Ok(first),
            (_, len) => Err(ragged(name, len, self.rows)),
        }
    }

    /// A column that has an entry per row, or none at all.
    fn optional<T>(&mut self, name: &'static str, entry: impl Entry<'a, T>) -> Result<Option<Cursor>> {
        if self.reader.raw().is_none() {
            return Ok(None);
        }
        match self.entries(name, entry)? {
            (_, 0) => Ok(None),
            (first, len) if len == self.rows => Ok(Some(first)),
            (_, len) => Err(ragged(name, len, self.rows)),
        }
    }

    /// Check the entries of the column that comes next: where they begin, and
    /// how many they are.
    fn entries<T>(&mut self, name: &'static str, entry: impl Entry<'a, T>) -> Result<(Cursor, usize)> {
        let decoder = self.reader.decoder();
        let mut first = Cursor::at(decoder);
        let mut check = || {
            let len = decoder.array_len()?;
            first = Cursor::at(decoder);
            for _ in 0..len {
                entry(decoder)?;
            }
            Ok(len)
        };
        let len = check().map_err(|error: Error| error.in_field(name))?;
        Ok((first, len))
    }

    fn number(&mut self, name: &'static str) -> Result<i64> {
        Ok(self.reader.field(name)?.unwrap_or(0))
    }
}

// === impl Rows ===

impl<'a> Iterator for Rows<'_, 'a> {
    type Item = RowView<'a>;

    #[inline]
    fn next(&mut self) -> Option<RowView<'a>> {
        let rid = *self.rids.next()?;
        let message = self.message;
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
        self.rids.size_hint()
    }
}

impl ExactSizeIterator for Rows<'_, '_> {}

// === impl Rare ===

impl Rare {
    fn find(columns: &mut Columns<'_, '_>) -> Result<Option<Self>> {
        let found = [
            columns.optional("spec_verify_ct", Decoder::i64)?,
            columns.optional("accept_draft_tokens", or_nil(Decoder::float))?,
            columns.optional("input_token_logprobs_val", each(or_nil(Decoder::float)))?,
            columns.optional("input_token_logprobs_idx", ids)?,
            columns.optional("input_top_logprobs_val", each(or_nil(floats)))?,
            columns.optional("input_top_logprobs_idx", each(or_nil(ids)))?,
            columns.optional("output_top_logprobs_val", each(floats))?,
            columns.optional("output_top_logprobs_idx", each(ids))?,
        ];
        Ok(Some(Self(found)).filter(|rare| rare.0.iter().any(Option::is_some)))
    }

    /// Move every column to its next entry; where they were is a row's.
    fn pass(&mut self, message: &[u8]) -> Option<Self> {
        let row = *self;
        for column in self.0.iter_mut().flatten() {
            column.pass(message)?;
        }
        Some(row)
    }
}

// === impl Cursor ===

impl Cursor {
    /// The decoder's position; it has read the message's header.
    #[inline]
    fn at(decoder: &Decoder<'_>) -> Self {
        Self(NonZeroUsize::new(decoder.position()).unwrap_or(NonZeroUsize::MAX))
    }

    /// Read the next entry, which was checked, and move on behind it.
    #[inline]
    fn read<'a, T>(&mut self, message: &'a [u8], entry: impl Entry<'a, T>) -> Option<T> {
        let mut decoder = Decoder::over_from(message, self.0.get());
        let value = entry(&mut decoder).ok()?;
        *self = Self::at(&decoder);
        Some(value)
    }

    /// Move on behind the next entry; where it is, unless it is `nil`.
    #[inline]
    fn pass(&mut self, message: &[u8]) -> Option<Option<Self>> {
        let entry = *self;
        if self.read(message, Decoder::take_nil)? {
            return Some(None);
        }
        self.read(message, Decoder::skip)?;
        Some(Some(entry))
    }

    fn decode<T: Wire>(mut self, message: &[u8]) -> Option<T> {
        self.read(message, T::decode)
    }
}

// === impl RowView ===

impl RowView<'_> {
    /// The finish reason in full, once the request ended, from an engine that
    /// sends it. Decoded anew at every call, as everything below.
    pub fn finish_details(&self) -> Option<FinishDetails> {
        self.details?.decode(self.message)
    }

    /// Verification rounds so far, with speculative decoding.
    pub fn spec_verify_ct(&self) -> Option<i64> {
        self.rare(SPEC_VERIFY_CT)
    }

    /// Accepted tokens per round, once finished with speculative decoding.
    pub fn accept_draft_tokens(&self) -> Option<f64> {
        self.rare(ACCEPT_DRAFT_TOKENS).flatten()
    }

    /// Logprobs of the prompt and their tokens, in the row that ships them.
    pub fn input_token_logprobs(&self) -> Option<(Vec<Option<f64>>, Vec<i32>)> {
        self.rare_pair(INPUT_LOGPROBS)
    }

    /// The prompt's alternatives, in the row that ships them.
    pub fn input_top_logprobs(&self) -> Option<PromptTopLogprobs> {
        self.rare_pair(INPUT_TOP)
    }

    /// The alternatives of the row's tokens, where asked for.
    pub fn output_top_logprobs(&self) -> Option<TopLogprobs> {
        self.rare_pair(OUTPUT_TOP)
    }

    /// The row's entry of a rare column.
    fn rare<T: Wire>(&self, column: usize) -> Option<T> {
        let entry = *self.rare.as_ref()?.0.get(column)?;
        entry?.decode(self.message)
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

// === one entry of a column ===

#[inline]
fn ids<'a>(decoder: &mut Decoder<'a>) -> Result<Ids<'a>> {
    let len = decoder.array_len()?;
    let start = decoder.position();
    numbers::read_ints(decoder, len, |_| ())?;
    let elements = decoder.since(start);
    Ok(Ids { elements, len })
}

#[inline]
fn floats<'a>(decoder: &mut Decoder<'a>) -> Result<Floats<'a>> {
    let len = decoder.array_len()?;
    let start = decoder.position();
    numbers::read_floats(decoder, len, |_| ())?;
    let elements = decoder.since(start);
    Ok(Floats { elements, len })
}

/// A finish reason, `None` for the empty one of a running request.
#[inline]
fn nonempty<'a>(decoder: &mut Decoder<'a>) -> Result<Option<&'a str>> {
    match decoder.str()? {
        "" => Ok(None),
        reason => Ok(Some(reason)),
    }
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
