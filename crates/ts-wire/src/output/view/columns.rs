//! The columns of a batch message: checked once, then walked side by side.

use std::num::NonZeroUsize;

use super::rids::{KnownRids, Rids};
use super::{Floats, Ids};
use crate::codec::Wire;
use crate::error::{Error, Result};
use crate::layout::ArrayReader;
use crate::msgpack::{Decoder, numbers};
use crate::output::{TAG, ragged};

/// Reads one entry of a column.
pub(super) trait Entry<'a, T>: Fn(&mut Decoder<'a>) -> Result<T> {}

impl<'a, T, F: Fn(&mut Decoder<'a>) -> Result<T>> Entry<'a, T> for F {}

/// Goes through the columns of a message, checks each, and remembers where its
/// first entry is.
pub(super) struct Columns<'d, 'a> {
    reader: ArrayReader<'d, 'a>,
    rows: usize,
}

/// The tail columns that few batches have, each with where its next entry is;
/// `None` for a column without entries. Its constants name the places.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rare([Option<Cursor>; 8]);

/// Where the next entry of a column is in the message. Never 0: the message's
/// own header comes first.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor(NonZeroUsize);

// === impl Columns ===

impl<'d, 'a> Columns<'d, 'a> {
    pub(super) fn open(decoder: &'d mut Decoder<'a>) -> Result<Self> {
        let reader = ArrayReader::open(decoder, Some(TAG))?;
        Ok(Self { reader, rows: 0 })
    }

    /// The first column; it says how many rows there are.
    pub(super) fn rids(&mut self, known: &KnownRids) -> Result<Rids<'a>> {
        let missing = Error::MissingField("rids");
        let Some(decoder) = self.reader.raw() else {
            return Err(missing);
        };
        if decoder.take_nil()? {
            return Err(missing);
        }
        if let Some(rids) = known.at(decoder) {
            self.rows = known.rows;
            return Ok(rids);
        }
        let start = decoder.position();
        let mut read = || {
            self.rows = decoder.array_len()?;
            // At most sixteen times what is left of the message.
            let mut rids = Vec::with_capacity(self.rows);
            for _ in 0..self.rows {
                rids.push(decoder.str()?);
            }
            Ok(rids)
        };
        let read = read().map_err(|error: Error| error.in_field("rids"))?;
        Ok(Rids::Read { column: decoder.since(start), rids: read })
    }

    /// The rare columns, then whatever a newer engine appended.
    pub(super) fn finish(mut self) -> Result<Option<Rare>> {
        let rare = Rare::find(&mut self)?;
        self.reader.close()?;
        Ok(rare)
    }

    /// A column that has an entry per row.
    pub(super) fn required<T>(&mut self, name: &'static str, entry: impl Entry<'a, T>) -> Result<Cursor> {
        if self.reader.raw().is_none() {
            return Err(Error::MissingField(name));
        }
        match self.entries(name, entry)? {
            (first, len) if len == self.rows => Ok(first),
            (_, len) => Err(ragged(name, len, self.rows)),
        }
    }

    /// A column that has an entry per row, or none at all.
    pub(super) fn optional<T>(&mut self, name: &'static str, entry: impl Entry<'a, T>) -> Result<Option<Cursor>> {
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

    pub(super) fn number(&mut self, name: &'static str) -> Result<i64> {
        Ok(self.reader.field(name)?.unwrap_or(0))
    }
}

// === impl Rare ===

impl Rare {
    pub(super) const SPEC_VERIFY_CT: usize = 0;
    pub(super) const ACCEPT_DRAFT_TOKENS: usize = 1;
    /// Logprobs of the prompt. Of this and the two below the next column holds
    /// the token ids.
    pub(super) const INPUT_LOGPROBS: usize = 2;
    pub(super) const INPUT_TOP: usize = 4;
    pub(super) const OUTPUT_TOP: usize = 6;

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

    /// Where the entry of a column is.
    pub(super) fn entry(self, column: usize) -> Option<Cursor> {
        self.0.get(column).copied().flatten()
    }

    /// Move every column to its next entry; where they were is a row's.
    pub(super) fn pass(&mut self, message: &[u8]) -> Option<Self> {
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
    pub(super) fn at(decoder: &Decoder<'_>) -> Self {
        Self(NonZeroUsize::new(decoder.position()).unwrap_or(NonZeroUsize::MAX))
    }

    /// Read the next entry, which was checked, and move on behind it.
    #[inline]
    pub(super) fn read<'a, T>(&mut self, message: &'a [u8], entry: impl Entry<'a, T>) -> Option<T> {
        let mut decoder = Decoder::over_from(message, self.0.get());
        let value = entry(&mut decoder).ok()?;
        *self = Self::at(&decoder);
        Some(value)
    }

    /// Move on behind the next entry; where it is, unless it is `nil`.
    #[inline]
    pub(super) fn pass(&mut self, message: &[u8]) -> Option<Option<Self>> {
        let entry = *self;
        if self.read(message, Decoder::take_nil)? {
            return Some(None);
        }
        self.read(message, Decoder::skip)?;
        Some(Some(entry))
    }

    pub(super) fn decode<T: Wire>(mut self, message: &[u8]) -> Option<T> {
        self.read(message, T::decode)
    }
}

// === one entry of a column ===

#[inline]
pub(super) fn ids<'a>(decoder: &mut Decoder<'a>) -> Result<Ids<'a>> {
    let len = decoder.array_len()?;
    let start = decoder.position();
    numbers::read_ints(decoder, len, |_| ())?;
    let elements = decoder.since(start);
    Ok(Ids { elements, len })
}

#[inline]
pub(super) fn floats<'a>(decoder: &mut Decoder<'a>) -> Result<Floats<'a>> {
    let len = decoder.array_len()?;
    let start = decoder.position();
    numbers::read_floats(decoder, len, |_| ())?;
    let elements = decoder.since(start);
    Ok(Floats { elements, len })
}

/// A finish reason, `None` for the empty one of a running request.
#[inline]
pub(super) fn nonempty<'a>(decoder: &mut Decoder<'a>) -> Result<Option<&'a str>> {
    if decoder.take_empty_str() {
        return Ok(None);
    }
    Ok(Some(decoder.str()?).filter(|reason| !reason.is_empty()))
}

/// Finish details: what [`FinishDetails`] decodes from, or `nil`.
pub(super) fn details(decoder: &mut Decoder<'_>) -> Result<()> {
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
