//! Stop strings across chunk borders (U4): a scan that never sees a byte twice.
//!
//! Each stop string has its automaton (Knuth, Morris, Pratt). The match that is complete first wins, the longest one
//! where several are complete at the same byte: that is the moment at which the text first contains a stop string, and
//! it does not depend on how the text was cut into pieces.

/// Most stop strings of one request.
pub const MAX_STOPS: usize = 16;
/// Most bytes of one stop string: bounds the text that can be held back.
pub const MAX_STOP_BYTES: usize = 1024;

/// Where the text ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Match {
    /// Bytes of the scanned piece up to the end of the stop string.
    pub end: usize,
    /// The stop string's length in bytes; it may have begun in an earlier piece.
    pub length: usize,
    /// Which stop string, by its place in the list.
    pub index: usize,
}

/// The stop strings of one request and how far the text has matched each.
#[derive(Debug, Clone, Default)]
pub struct StopScan {
    patterns: Vec<Pattern>,
}

#[derive(Debug, Clone)]
struct Pattern {
    bytes: Vec<u8>,
    /// `border[n]`: the longest proper prefix of the first `n` bytes that is also their suffix.
    border: Vec<usize>,
    matched: usize,
}

impl Pattern {
    fn new(text: &str) -> Self {
        let bytes = text.as_bytes().to_vec();
        let mut border = vec![0; bytes.len() + 1];
        let mut length = 0;
        for at in 1..bytes.len() {
            while length > 0 && bytes[length] != bytes[at] {
                length = border[length];
            }
            if bytes[length] == bytes[at] {
                length += 1;
            }
            border[at + 1] = length;
        }
        Self { bytes, border, matched: 0 }
    }

    /// Take one byte; true when the whole string has just been read.
    fn step(&mut self, byte: u8) -> bool {
        if self.matched == self.bytes.len() {
            self.matched = self.border[self.matched];
        }
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = self.border[self.matched];
        }
        if self.bytes[self.matched] == byte {
            self.matched += 1;
        }
        self.matched == self.bytes.len()
    }
}

impl StopScan {
    /// A scan for `stops`. Empty strings are no stop strings; the request's validation refuses them (U7).
    pub fn new(stops: &[String]) -> Self {
        Self { patterns: stops.iter().filter(|s| !s.is_empty()).map(|s| Pattern::new(s)).collect() }
    }

    /// Forget the text so far.
    pub fn reset(&mut self) {
        self.patterns.iter_mut().for_each(|pattern| pattern.matched = 0);
    }

    /// Whether there is anything to look for.
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// Scan the next piece of text. While not `armed` (U8, `min_tokens`) a complete match does not count.
    pub fn scan(&mut self, piece: &str, armed: bool) -> Option<Match> {
        for (at, &byte) in piece.as_bytes().iter().enumerate() {
            let mut found: Option<Match> = None;
            for (index, pattern) in self.patterns.iter_mut().enumerate() {
                if pattern.step(byte) && armed {
                    let length = pattern.bytes.len();
                    if found.is_none_or(|best| length > best.length) {
                        found = Some(Match { end: at + 1, length, index });
                    }
                }
            }
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// Bytes at the end of the scanned text that may be the start of a stop string: these are held back.
    pub fn held(&self) -> usize {
        self.patterns
            .iter()
            .map(|p| if p.matched == p.bytes.len() { p.border[p.matched] } else { p.matched })
            .max()
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn scan(stops: &[&str]) -> StopScan {
        StopScan::new(&stops.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>())
    }

    /// U4: only a suffix that is a real prefix of some stop string is held back.
    #[test]
    fn u4_holds_back_real_prefixes_only() {
        let mut stops = scan(&["</end>", "\n\n"]);
        assert_eq!(stops.scan("text </e", true), None);
        assert_eq!(stops.held(), 3);
        assert_eq!(stops.scan("x\n", true), None);
        assert_eq!(stops.held(), 1);
        assert_eq!(stops.scan("y", true), None);
        assert_eq!(stops.held(), 0);
    }

    /// U4: the match that is complete first wins; at the same byte the longest.
    #[test]
    fn u4_earliest_match_wins() {
        assert_eq!(scan(&["cd", "b"]).scan("abcd", true).unwrap(), Match { end: 2, length: 1, index: 1 });
        assert_eq!(scan(&["b", "ab"]).scan("ab", true).unwrap(), Match { end: 2, length: 2, index: 1 });
        let mut stops = scan(&["aab"]);
        assert_eq!(stops.scan("aa", true), None);
        assert_eq!(stops.scan("a", true), None);
        assert_eq!(stops.held(), 2);
        assert_eq!(stops.scan("b!", true).unwrap(), Match { end: 1, length: 3, index: 0 });
    }

    /// U8: before `min_tokens` a match does not count, and a later one that overlaps it does.
    #[test]
    fn u8_unarmed_matches_do_not_count() {
        let mut stops = scan(&["abab"]);
        assert_eq!(stops.scan("abab", false), None);
        assert_eq!(stops.held(), 2);
        assert_eq!(stops.scan("ab", true).unwrap(), Match { end: 2, length: 4, index: 0 });
    }
}
