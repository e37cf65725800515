//! Event borders in an SSE stream, found as the bytes arrive, and the little that the relay must know of an event.
//!
//! Written here because the relay's speed is the project's purpose: no parser crate hands back the original bytes of an
//! event without a copy. Any cut of any stream gives the same events (S1), whatever its line ends (S2).

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use memchr::{memchr2, memmem};
use serde::Deserialize;
use serde_json::value::RawValue;

/// Splits a byte stream into whole events.
#[derive(Debug)]
pub struct Scanner {
    /// An event that has not ended yet.
    partial: BytesMut,
    /// Bytes of the current line so far, its line end not counted.
    line: usize,
    /// Whether the current event has a line.
    filled: bool,
    /// The last byte was CR: an LF that follows belongs to the same line end.
    after_cr: bool,
    limit: usize,
}

/// An event longer than the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event of the backend is longer than {limit} bytes (limits.max_event)")]
pub struct TooLong {
    /// The limit in bytes.
    pub limit: usize,
}

impl Scanner {
    /// A scanner that refuses events of more than `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { partial: BytesMut::new(), line: 0, filled: false, after_cr: false, limit }
    }

    /// Take a chunk; `each` gets every event that it completes, with its line ends and the blank line after it.
    /// An event that lies in one chunk is a slice of it.
    ///
    /// # Errors
    /// [`TooLong`]; the stream cannot be read on.
    pub fn push(&mut self, mut chunk: Bytes, mut each: impl FnMut(Bytes)) -> Result<(), TooLong> {
        while let Some(end) = self.border(&chunk) {
            let tail = chunk.split_to(end);
            if self.partial.len() + tail.len() > self.limit {
                return Err(TooLong { limit: self.limit });
            }
            if self.partial.is_empty() {
                each(tail);
            } else {
                self.partial.extend_from_slice(&tail);
                each(self.partial.split().freeze());
            }
        }
        if self.partial.len() + chunk.len() > self.limit {
            return Err(TooLong { limit: self.limit });
        }
        self.partial.extend_from_slice(&chunk);
        Ok(())
    }

    /// What stands after the last border.
    pub fn rest(&self) -> &[u8] {
        &self.partial
    }

    /// Where the current event ends in `chunk`: after its blank line. Remembers the state where it does not.
    fn border(&mut self, chunk: &[u8]) -> Option<usize> {
        let mut at = 0;
        if self.after_cr && !chunk.is_empty() {
            self.after_cr = false;
            at = usize::from(chunk.first() == Some(&b'\n'));
        }
        loop {
            let rest = chunk.get(at..)?;
            let Some(length) = memchr2(b'\n', b'\r', rest) else {
                self.line += rest.len();
                return None;
            };
            let blank = self.line + length == 0;
            self.line = 0;
            let cr = rest.get(length) == Some(&b'\r');
            at += length + 1;
            match (cr, chunk.get(at)) {
                (true, Some(b'\n')) => at += 1,
                (true, None) => self.after_cr = true,
                _ => {}
            }
            if blank && self.filled {
                self.filled = false;
                return Some(at);
            }
            self.filled |= !blank;
        }
    }
}

/// What an event means to the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Meaning {
    /// `[DONE]`: the stream's end.
    pub done: bool,
    /// It has text, a tool call or reasoning: what the time to first token is measured to (O1).
    pub content: bool,
    /// Choices that finished with it.
    pub finished: usize,
    /// The backend reports an error in the stream.
    pub error: bool,
    /// It has data at all; a comment has none.
    pub data: bool,
}

/// What `event` means. Cheap for the many: an event is parsed only where its bytes look like an end or an error.
pub fn meaning(event: &[u8]) -> Meaning {
    let data = data(event);
    let data = data.as_ref();
    if data == b"[DONE]" {
        return Meaning { done: true, data: true, ..Meaning::default() };
    }
    let mut meaning = Meaning { content: has_content(data), data: !data.is_empty(), ..Meaning::default() };
    if has_value(data, b"\"finish_reason\"") || has_value(data, b"\"error\"") {
        #[derive(Deserialize)]
        struct Event<'a> {
            #[serde(default, borrow)]
            error: Option<&'a RawValue>,
            #[serde(default)]
            choices: Vec<Choice>,
        }
        #[derive(Deserialize)]
        struct Choice {
            #[serde(default)]
            finish_reason: Option<serde::de::IgnoredAny>,
        }
        if let Ok(event) = serde_json::from_slice::<Event<'_>>(data) {
            meaning.error = event.error.is_some_and(|error| error.get() != "null");
            meaning.finished = event.choices.iter().filter(|choice| choice.finish_reason.is_some()).count();
        }
    }
    meaning
}

/// The event's data: of one line borrowed, of several joined by LF, as the SSE standard has it.
fn data(event: &[u8]) -> Cow<'_, [u8]> {
    let event = event.strip_prefix(b"\xef\xbb\xbf").unwrap_or(event);
    let mut lines = event.split(|&b| b == b'\n' || b == b'\r').filter_map(|line| {
        let value = line.strip_prefix(b"data")?;
        match value.split_first() {
            None => Some(value),
            Some((b':', value)) => Some(value.strip_prefix(b" ").unwrap_or(value)),
            Some(_) => None,
        }
    });
    let first = lines.next().unwrap_or_default();
    match lines.next() {
        None => first.into(),
        Some(second) => {
            let mut joined = [first, second].join(&b'\n');
            for line in lines {
                joined.push(b'\n');
                joined.extend_from_slice(line);
            }
            joined.into()
        }
    }
}

/// Whether `key` stands there with a value that is not null. Inside a JSON string the key's quotes are escaped, so that
/// text of the model cannot look like it.
fn has_value(data: &[u8], key: &[u8]) -> bool {
    memmem::find_iter(data, key).any(|at| {
        let after = data.get(at + key.len()..).unwrap_or_default().trim_ascii_start();
        after.strip_prefix(b":").is_some_and(|value| !value.trim_ascii_start().starts_with(b"null"))
    })
}

fn has_content(data: &[u8]) -> bool {
    const KEYS: [&[u8]; 5] =
        [b"\"content\"", b"\"text\"", b"\"tool_calls\"", b"\"reasoning_content\"", b"\"reasoning\""];
    KEYS.iter().any(|key| {
        memmem::find(data, key).is_some_and(|at| {
            let after = data.get(at + key.len()..).unwrap_or_default().trim_ascii_start();
            let value = after.strip_prefix(b":").unwrap_or_default().trim_ascii_start();
            !value.is_empty() && !value.starts_with(b"\"\"") && !value.starts_with(b"null")
        })
    })
}

#[cfg(test)]
mod tests;
