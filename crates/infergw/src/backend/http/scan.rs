//! Where events end in a stream of server-sent events, however the bytes were cut (S1, S2).
//!
//! Lines end with LF, CRLF or CR; a blank line ends an event. Only borders are found here; the bytes themselves go
//! through untouched, as slices of what came, wherever an event was not cut in two.

use bytes::{Bytes, BytesMut};
use memchr::memchr2;

/// Finds the ends of events in a stream that comes in pieces.
#[derive(Debug)]
pub(super) struct Scanner {
    lines: Lines,
    /// The beginning of an event whose end has not come yet.
    partial: BytesMut,
    /// Bytes of `partial` that have been looked at.
    seen: usize,
    max_event: usize,
}

/// What to do after an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It goes on to the client.
    Pass,
    /// It goes on to the client, and is the last one.
    Last,
    /// It does not go on to the client, and nothing after it.
    Hold,
}

/// The whole events of one piece, in one slice.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Whole events that go to the client; may be empty.
    pub(super) events: Bytes,
    /// Why nothing more is wanted.
    pub(super) stop: Option<Stop>,
}

/// Why a scan ends before the stream does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// An event got [`Verdict::Last`].
    Last,
    /// An event got [`Verdict::Hold`].
    Held,
    /// An event is larger than the limit.
    TooLarge,
}

impl Scanner {
    /// At the beginning of a stream. An event of more than `max_event` bytes stops the scan.
    pub(super) fn new(max_event: usize) -> Self {
        Self { lines: Lines::default(), partial: BytesMut::new(), seen: 0, max_event }
    }

    /// Take the next piece; `judge` sees each whole event.
    pub(super) fn feed(&mut self, mut piece: Bytes, judge: impl FnMut(&[u8]) -> Verdict) -> Run {
        if self.partial.is_empty() {
            let found = find(&mut self.lines, &piece, 0, self.max_event, judge);
            let events = piece.split_to(found.pass);
            if found.stop.is_none() {
                self.partial.extend_from_slice(&piece);
                self.seen = piece.len();
            }
            return Run { events, stop: found.stop };
        }
        self.partial.extend_from_slice(&piece);
        let found = find(&mut self.lines, &self.partial, self.seen, self.max_event, judge);
        let events = self.partial.split_to(found.pass).freeze();
        self.seen = self.partial.len();
        Run { events, stop: found.stop }
    }

    /// What is left at the end of the stream: an event that lacks its blank line.
    pub(super) fn rest(&mut self) -> Bytes {
        self.partial.split().freeze()
    }
}

struct Found {
    /// Bytes from the start that go to the client.
    pass: usize,
    stop: Option<Stop>,
}

/// Look at `bytes` from `from` on; the events before that have been passed, the lines up to there are in `lines`.
fn find(
    lines: &mut Lines,
    bytes: &[u8],
    from: usize,
    max_event: usize,
    mut judge: impl FnMut(&[u8]) -> Verdict,
) -> Found {
    let (mut start, mut at) = (0, from);
    while let Some(end) = lines.event_end(bytes, at) {
        let event = bytes.get(start..end).unwrap_or_default();
        if event.len() > max_event {
            return Found { pass: start, stop: Some(Stop::TooLarge) };
        }
        match judge(event) {
            Verdict::Pass => {}
            Verdict::Last => return Found { pass: end, stop: Some(Stop::Last) },
            Verdict::Hold => return Found { pass: start, stop: Some(Stop::Held) },
        }
        (start, at) = (end, end);
    }
    let stop = (bytes.len() - start > max_event).then_some(Stop::TooLarge);
    Found { pass: start, stop }
}

/// Where the scan stands within lines.
#[derive(Debug)]
struct Lines {
    /// The line that the next byte belongs to has no byte yet.
    blank: bool,
    /// The last byte was a CR: an LF after it belongs to the same line end.
    after_cr: bool,
    /// The line end before was CRLF: after the CR of a blank line its LF is waited for, so that it stays with its event.
    crlf: bool,
    /// A blank line's CR has come, its LF is waited for.
    ending: bool,
}

impl Default for Lines {
    fn default() -> Self {
        Self { blank: true, after_cr: false, crlf: false, ending: false }
    }
}

impl Lines {
    /// The end of the next event in `bytes`, looking from `at` on; `None` if it has not come.
    fn event_end(&mut self, bytes: &[u8], mut at: usize) -> Option<usize> {
        loop {
            if self.after_cr {
                let next = *bytes.get(at)?;
                self.after_cr = false;
                self.crlf = next == b'\n';
                at += usize::from(self.crlf);
                if std::mem::take(&mut self.ending) {
                    return Some(at);
                }
            }
            let rest = bytes.get(at..)?;
            let Some(length) = memchr2(b'\n', b'\r', rest) else {
                self.blank &= rest.is_empty();
                return None;
            };
            let ends_event = self.blank && length == 0;
            self.blank = true;
            at += length + 1;
            if rest.get(length) == Some(&b'\r') {
                self.after_cr = true;
                self.ending = ends_event && self.crlf;
                if ends_event && !self.crlf {
                    return Some(at);
                }
            } else {
                self.crlf = false;
                if ends_event {
                    return Some(at);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
