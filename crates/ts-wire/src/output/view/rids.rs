//! The ids of a batch. An engine sends the same ones step after step, until a
//! request ends or another begins, so a receiver may keep a batch's column of
//! ids and have the next batch recognise it with one comparison.
//!
//! By hand because it is the hot path: to check and look up every id costs more
//! than everything else that is done to a row (`benches/dispatch.rs` of
//! `ts-client`).

use super::BatchView;
use super::columns::Cursor;
use crate::error::Result;
use crate::msgpack::Decoder;

/// Longest column that is kept, in bytes: thirty thousand ids of usual length.
const MAX_KEPT: usize = 1 << 20;

/// The ids of a batch that was read before, for
/// [`BatchView::parse_after`].
#[derive(Debug, Clone, Default)]
pub struct KnownRids {
    /// The column as it came: header and ids. Empty if none is kept.
    column: Vec<u8>,
    pub(super) rows: usize,
}

/// One row's id.
#[derive(Debug, Clone, Copy)]
pub struct Rid<'a>(Checked<'a>);

#[derive(Debug, Clone, Copy)]
enum Checked<'a> {
    Now(&'a str),
    /// In the batch whose ids are known.
    Before(&'a [u8]),
}

/// The ids of a message.
#[derive(Debug, Clone)]
pub(super) enum Rids<'a> {
    /// Read once and kept: to check a string again costs more than to store it.
    Read { column: &'a [u8], rids: Vec<&'a str> },
    /// The known ones.
    Known { first: Cursor, rows: usize },
}

/// The ids that are left.
#[derive(Debug, Clone)]
pub(super) enum RidIter<'v, 'a> {
    Read(std::slice::Iter<'v, &'a str>),
    Known { next: Cursor, left: usize },
}

// === impl KnownRids ===

impl KnownRids {
    /// Keep the ids of `batch` instead of those kept so far. A column of more
    /// than 1 MiB is not kept.
    pub fn keep(&mut self, batch: &BatchView<'_>) {
        if let Rids::Read { column, rids } = &batch.rids {
            self.column.clear();
            self.rows = 0;
            if column.len() <= MAX_KEPT {
                self.column.extend_from_slice(column);
                self.rows = rids.len();
            }
        }
    }

    /// If the column that comes next is this one, go behind it. An array says
    /// how long it is, so equal bytes are equal ids.
    pub(super) fn at<'a>(&self, decoder: &mut Decoder<'a>) -> Option<Rids<'a>> {
        if self.column.is_empty() || !decoder.rest().starts_with(&self.column) {
            return None;
        }
        let mut ids = decoder.clone();
        ids.array_len().ok()?;
        decoder.advance(self.column.len());
        Some(Rids::Known { first: Cursor::at(&ids), rows: self.rows })
    }
}

// === impl Rid ===

impl<'a> Rid<'a> {
    /// The id. If the batch's ids were known it is checked anew, at a few
    /// nanoseconds: keep what you found out about the row instead.
    pub fn as_str(self) -> &'a str {
        match self.0 {
            Checked::Now(rid) => rid,
            Checked::Before(bytes) => std::str::from_utf8(bytes).unwrap_or_default(),
        }
    }
}

impl std::fmt::Display for Rid<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl PartialEq<str> for Rid<'_> {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

// === impl Rids ===

impl<'a> Rids<'a> {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Read { rids, .. } => rids.len(),
            Self::Known { rows, .. } => *rows,
        }
    }

    pub(super) fn iter(&self) -> RidIter<'_, 'a> {
        match self {
            Self::Read { rids, .. } => RidIter::Read(rids.iter()),
            Self::Known { first, rows } => RidIter::Known { next: *first, left: *rows },
        }
    }
}

impl<'a> RidIter<'_, 'a> {
    #[inline]
    pub(super) fn next(&mut self, message: &'a [u8]) -> Option<Rid<'a>> {
        match self {
            Self::Read(rids) => rids.next().map(|rid| Rid(Checked::Now(rid))),
            Self::Known { next, left } => {
                *left = left.checked_sub(1)?;
                let read: fn(&mut Decoder<'a>) -> Result<&'a [u8]> = Decoder::str_bytes;
                next.read(message, read).map(|rid| Rid(Checked::Before(rid)))
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Read(rids) => rids.len(),
            Self::Known { left, .. } => *left,
        }
    }
}
