//! Marks in text that comes in pieces: what is certainly no mark goes on, what may become one is held back.

use crate::backend::engine::stop::StopScan;

/// A search for marks. It holds back less than the longest of them.
#[derive(Debug, Clone, Default)]
pub(super) struct Marks {
    scan: StopScan,
    held: String,
}

impl Marks {
    pub(super) fn new<'a>(marks: impl IntoIterator<Item = &'a str>) -> Self {
        let marks: Vec<String> = marks.into_iter().map(str::to_owned).collect();
        Self { scan: StopScan::new(&marks), held: String::new() }
    }

    /// Whether text is held back.
    pub(super) fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    /// Take `piece` up to the first mark: `free` gets the text before it, the answer is the mark's place in the list and the
    /// bytes of `piece` that were taken. Without a mark all of `piece` is taken.
    pub(super) fn take(&mut self, piece: &str, free: &mut String) -> Option<(usize, usize)> {
        let found = self.scan.scan(piece, true);
        let taken = found.map_or(piece.len(), |found| found.end);
        self.held.push_str(piece.get(..taken).unwrap_or_default());
        let kept = found.map_or_else(|| self.scan.held(), |found| found.length);
        let end = self.held.len().saturating_sub(kept);
        free.push_str(self.held.get(..end).unwrap_or_default());
        match found {
            Some(found) => {
                self.held.clear();
                self.scan.reset();
                Some((found.index, taken))
            }
            None => {
                self.held.drain(..end);
                None
            }
        }
    }

    /// The text ends here: what was held back.
    pub(super) fn flush(&mut self) -> String {
        self.scan.reset();
        std::mem::take(&mut self.held)
    }
}
