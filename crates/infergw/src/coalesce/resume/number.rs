//! Numbers the events of a stream: each gets an `id:` line of its own, once, before it goes into the log.
//!
//! The line stands last in its event, so that it holds where the upstream wrote an `id` too; nothing else is changed. What a
//! client does not see as an event, comments for example, gets none.

use bytes::{Bytes, BytesMut};
use memchr::memchr2;

use super::StreamId;

/// Room for `id: `, a stream's id, a number and a line's end.
const ID_LINE: usize = 64;

/// Bytes of a stream that stand in its log by themselves, and the number of the event that they are, or come before.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::coalesce) struct Numbered {
    pub(in crate::coalesce) bytes: Bytes,
    pub(in crate::coalesce) event: u64,
    /// It is that event.
    pub(in crate::coalesce) is_event: bool,
}

impl From<Bytes> for Numbered {
    fn from(bytes: Bytes) -> Self {
        Self { bytes, event: 0, is_event: false }
    }
}

/// The numbering of one stream.
#[derive(Debug)]
pub(in crate::coalesce) struct Numbering {
    prefix: String,
    /// The number of the last event.
    last: u64,
    begun: bool,
}

impl Numbering {
    /// At the beginning of a stream.
    pub(in crate::coalesce) fn new(stream: StreamId) -> Self {
        Self { prefix: format!("id: {stream}-"), last: 0, begun: false }
    }

    /// The events of frames that each hold whole ones, one by one.
    pub(in crate::coalesce) fn number(&mut self, frames: impl IntoIterator<Item = Bytes>) -> Vec<Numbered> {
        let mut numbered = Vec::new();
        for frame in frames {
            self.number_frame(&frame, &mut numbered);
        }
        numbered
    }

    fn number_frame(&mut self, frame: &[u8], numbered: &mut Vec<Numbered>) {
        let mut out = BytesMut::with_capacity(frame.len() + ID_LINE);
        let mut rest = frame;
        while !rest.is_empty() {
            let block = Block::first(rest, !std::mem::replace(&mut self.begun, true));
            let (bytes, after) = rest.split_at(block.end);
            rest = after;
            out.reserve(bytes.len() + ID_LINE);
            let number = self.last + 1;
            match bytes.split_at_checked(block.blank).filter(|_| block.has_data) {
                Some((lines, blank)) => {
                    out.extend_from_slice(lines);
                    out.extend_from_slice(self.prefix.as_bytes());
                    out.extend_from_slice(number.to_string().as_bytes());
                    out.extend_from_slice(blank);
                    out.extend_from_slice(blank);
                    self.last = number;
                }
                None => out.extend_from_slice(bytes),
            }
            numbered.push(Numbered { bytes: out.split().freeze(), event: number, is_event: self.last == number });
        }
    }
}

/// The lines up to a blank one.
struct Block {
    /// Where the blank line begins; at the end if none has come.
    blank: usize,
    /// Where the block ends.
    end: usize,
    has_data: bool,
}

impl Block {
    /// The first block of `bytes`, which are not empty.
    fn first(bytes: &[u8], begins_stream: bool) -> Self {
        let (mut at, mut has_data) = (0, false);
        // A byte order mark may stand before the first line of a stream.
        let mark = if begins_stream && bytes.starts_with("\u{feff}".as_bytes()) { 3 } else { 0 };
        while let Some(length) = bytes.get(at..).and_then(|rest| memchr2(b'\n', b'\r', rest)) {
            let line_end = at + length;
            let next = line_end + if bytes.get(line_end..line_end + 2) == Some(b"\r\n") { 2 } else { 1 };
            if length == 0 {
                // Without a line before it, it ends nothing.
                return Self { blank: at, end: next, has_data };
            }
            let line = bytes.get(if at == 0 { mark } else { at }..line_end).unwrap_or_default();
            has_data |= line.strip_prefix(b"data").is_some_and(|rest| matches!(rest.first(), None | Some(b':')));
            at = next;
        }
        Self { blank: bytes.len(), end: bytes.len(), has_data: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: StreamId = StreamId(0xab);

    fn numbered(frames: &[&str]) -> (String, Vec<u64>) {
        let mut numbering = Numbering::new(ID);
        let numbered = numbering.number(frames.iter().map(|frame| Bytes::copy_from_slice(frame.as_bytes())));
        let text: Vec<u8> = numbered.iter().flat_map(|frame| frame.bytes.to_vec()).collect();
        let text = String::from_utf8_lossy(&text).replace(&ID.to_string(), "S");
        (text, numbered.iter().map(|frame| frame.event).collect())
    }

    #[test]
    fn each_event_gets_its_id_whatever_ends_its_lines() {
        let (text, events) = numbered(&["data: a\n\ndata: b\r\n\r\n", "event: e\rdata\r\rdata:[DONE]\n\n"]);
        let expected =
            "data: a\nid: S-1\n\ndata: b\r\nid: S-2\r\n\r\nevent: e\rdata\rid: S-3\r\rdata:[DONE]\nid: S-4\n\n";
        assert_eq!(text, expected);
        assert_eq!(events, [1, 2, 3, 4]);
    }

    #[test]
    fn what_is_no_event_gets_none() {
        let (text, events) =
            numbered(&[": ping\n\n", "\n", "retry: 3\n\ndatax: 1\n\ndata: a\n\n", ": ping\n\ndata: half"]);
        assert_eq!(text, ": ping\n\n\nretry: 3\n\ndatax: 1\n\ndata: a\nid: S-1\n\n: ping\n\ndata: half");
        assert_eq!(events, [1, 1, 1, 1, 1, 2, 2], "a comment belongs to the event that comes after it");
    }

    #[test]
    fn a_byte_order_mark_and_the_upstreams_own_ids_stay() {
        let (text, _) = numbered(&["\u{feff}data: a\nid: 7\n\n", "\u{feff}data: no field\n\n"]);
        assert_eq!(text, "\u{feff}data: a\nid: 7\nid: S-1\n\n\u{feff}data: no field\n\n");
    }
}
