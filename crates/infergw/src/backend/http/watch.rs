//! What the relay needs to know of an event: the end, a finish, a failure. Everything else passes unread (A2).

use std::borrow::Cow;
use std::sync::LazyLock;

use bytes::Bytes;
use memchr::memchr2;
use memchr::memmem::Finder;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::scan::Verdict;
use crate::observe::sharing::{generated_tokens, prompt_tokens};
use crate::types::{DONE, StreamEnd};

/// Most choices whose finish is kept count of.
const MAX_CHOICES: usize = 1024;

/// Watches the events of one stream.
#[derive(Debug)]
pub(super) struct Watch {
    /// How a whole answer ends.
    end: StreamEnd,
    /// The event that ends a whole answer has come, where that is not `[DONE]`.
    ended: bool,
    /// It said that the answer failed.
    failed: bool,
    /// Choices that a whole answer has.
    choices: usize,
    /// The choices that have their finish_reason.
    finished: Vec<u64>,
    /// Whether an event with data has come; comments do not count.
    begun: bool,
    /// Whether an event with content has come.
    content: bool,
    /// Events from the first one with content up to the finish.
    said: u64,
    /// Generated tokens, as the answer itself reports them.
    generated: Option<u64>,
    /// Tokens of the prompt, as the answer itself reports them.
    prompt: Option<u64>,
    error: Option<Bytes>,
}

#[derive(Deserialize)]
struct Chunk<'a> {
    #[serde(borrow, default)]
    choices: Option<Vec<Choice<'a>>>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(default)]
    index: u64,
    #[serde(borrow, default)]
    finish_reason: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Typed<'a> {
    #[serde(borrow, default)]
    r#type: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
    #[serde(borrow, default)]
    delta: Option<MessageDelta<'a>>,
}

#[derive(Deserialize)]
struct MessageDelta<'a> {
    #[serde(borrow, default)]
    stop_reason: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Native<'a> {
    #[serde(default)]
    index: u64,
    #[serde(borrow, default)]
    meta_info: Option<MetaInfo<'a>>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct MetaInfo<'a> {
    #[serde(borrow, default)]
    finish_reason: Option<&'a RawValue>,
}

/// The event that ends a message, where the upstream has left it out.
const MESSAGE_STOP: Bytes = Bytes::from_static(b"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");

impl Watch {
    /// At the beginning of an answer of so many choices that ends so.
    pub(super) fn new(choices: usize, end: StreamEnd) -> Self {
        Self {
            end,
            ended: false,
            failed: false,
            choices,
            finished: Vec::new(),
            begun: false,
            content: false,
            said: 0,
            generated: None,
            prompt: None,
            error: None,
        }
    }

    /// Look at one whole event.
    pub(super) fn see(&mut self, event: &[u8]) -> Verdict {
        let Some(data) = data(event) else { return Verdict::Pass };
        self.begun = true;
        self.content = self.content || has_content(&data);
        if data.trim_ascii() == b"[DONE]" {
            // Without a finish the answer is not whole; the caller says so before the end (S3).
            return if self.finished.is_empty() { Verdict::Hold } else { Verdict::Last };
        }
        let telling = worth_parsing(self.end, &data);
        if telling || !self.finished.is_empty() {
            self.generated = generated_tokens(&data).or(self.generated);
        }
        // Some say it at the end, Anthropic's messages at the beginning too.
        if telling || !self.finished.is_empty() || !self.content {
            self.prompt = prompt_tokens(&data).or(self.prompt);
        }
        if !telling {
            self.said += u64::from(self.content && self.finished.is_empty());
            return Verdict::Pass;
        }
        match self.end {
            StreamEnd::Choices => {}
            StreamEnd::Message | StreamEnd::Response => return self.typed(&data),
            StreamEnd::MetaInfo | StreamEnd::Never => return self.meta_info(&data),
        }
        let Ok(chunk) = serde_json::from_slice::<Chunk<'_>>(&data) else { return Verdict::Pass };
        if chunk.error.is_some() {
            return self.hold(&data);
        }
        for choice in chunk.choices.iter().flatten().filter(|choice| choice.finish_reason.is_some()) {
            self.finish(choice.index);
        }
        Verdict::Pass
    }

    /// An event that says its type: of Anthropic's messages, or of responses.
    fn typed(&mut self, data: &[u8]) -> Verdict {
        let Ok(event) = serde_json::from_slice::<Typed<'_>>(data) else { return Verdict::Pass };
        match (event.r#type.as_deref(), self.end) {
            (Some("error"), _) => return self.hold(data),
            (None, _) if event.error.is_some() => return self.hold(data),
            (Some("message_delta"), StreamEnd::Message)
                if event.delta.is_some_and(|delta| delta.stop_reason.is_some()) =>
            {
                self.finish(0);
            }
            (Some("message_stop"), StreamEnd::Message)
            // A response that failed says so itself, whole.
            | (Some("response.completed" | "response.incomplete" | "response.failed"), StreamEnd::Response) => {
                self.finish(0);
                self.ended = true;
                self.failed = event.r#type.as_deref() == Some("response.failed");
            }
            _ => {}
        }
        Verdict::Pass
    }

    /// A chunk of SGLang's own form: several choices tell theirs by `index`.
    fn meta_info(&mut self, data: &[u8]) -> Verdict {
        let Ok(chunk) = serde_json::from_slice::<Native<'_>>(data) else { return Verdict::Pass };
        if chunk.error.is_some() {
            return self.hold(data);
        }
        if chunk.meta_info.is_some_and(|info| info.finish_reason.is_some()) {
            self.finish(chunk.index);
        }
        Verdict::Pass
    }

    fn hold(&mut self, data: &[u8]) -> Verdict {
        self.error = Some(Bytes::copy_from_slice(data));
        Verdict::Hold
    }

    fn finish(&mut self, choice: u64) {
        if !self.finished.contains(&choice) && self.finished.len() < MAX_CHOICES {
            self.finished.push(choice);
        }
    }

    /// What a whole answer lacks that ended without `[DONE]` (S4).
    pub(super) fn terminator(&self) -> Option<Bytes> {
        match self.end {
            StreamEnd::Choices | StreamEnd::MetaInfo => Some(DONE),
            StreamEnd::Message if !self.ended => Some(MESSAGE_STOP),
            StreamEnd::Message | StreamEnd::Response | StreamEnd::Never => None,
        }
    }

    /// Look at an event that lacks its blank line, at the end of the stream; `None` if its data is not whole.
    pub(super) fn see_rest(&mut self, event: &[u8]) -> Option<Verdict> {
        let data = data(event)?;
        let whole = data.trim_ascii() == b"[DONE]" || serde_json::from_slice::<serde::de::IgnoredAny>(&data).is_ok();
        whole.then(|| self.see(event))
    }

    /// Whether every choice has its finish_reason: the answer is complete, whatever comes (S4).
    pub(super) fn complete(&self) -> bool {
        self.finished.len() >= self.choices.max(1)
    }

    /// Whether the answer itself says that it failed.
    pub(super) fn failed(&self) -> bool {
        self.failed
    }

    /// Tokens that have been generated: what the answer itself reports, else a count of its events with content.
    pub(super) fn tokens(&self) -> u64 {
        self.generated.unwrap_or(self.said)
    }

    /// Events with content.
    pub(super) fn said(&self) -> u64 {
        self.said
    }

    /// Tokens of the prompt, where the answer has reported them.
    pub(super) fn prompt_tokens(&self) -> Option<u64> {
        self.prompt
    }

    /// Whether an event with data has come.
    pub(super) fn begun(&self) -> bool {
        self.begun
    }

    /// Whether an event with content has come: not the role, not a comment (O1).
    pub(super) fn has_content(&self) -> bool {
        self.content
    }

    /// The data of the error event that was held.
    pub(super) fn take_error(&mut self) -> Option<Bytes> {
        self.error.take()
    }
}

/// Whether the data names a finish or an error that is not null. Most events do not, and are not parsed.
///
/// Inside JSON strings the quotation marks of these names would be escaped, so text never looks like them.
fn worth_parsing(end: StreamEnd, data: &[u8]) -> bool {
    if matches!(end, StreamEnd::Message | StreamEnd::Response) {
        return TYPES.iter().any(|name| name.find(data).is_some());
    }
    TELLING.iter().any(|name| {
        name.find_iter(data).any(|at| {
            let after = data.get(at + name.needle().len()..).unwrap_or_default().trim_ascii_start();
            let value = after.strip_prefix(b":").map(<[u8]>::trim_ascii_start);
            value.is_some_and(|value| !value.starts_with(b"null"))
        })
    })
}

/// What tells of a finish or an error. Prepared once: that costs more than a search through an event does.
static TELLING: LazyLock<[Finder<'static>; 2]> = LazyLock::new(|| ["\"finish_reason\"", "\"error\""].map(Finder::new));

/// The same, of the APIs whose events say their type.
static TYPES: LazyLock<[Finder<'static>; 5]> = LazyLock::new(|| {
    ["\"message_", "\"response.completed\"", "\"response.incomplete\"", "\"response.failed\"", "\"error\""]
        .map(Finder::new)
});

/// Where content stands in the events of the endpoints that are relayed.
static CONTENT: LazyLock<[Finder<'static>; 9]> = LazyLock::new(|| {
    [
        "\"content\":",
        "\"text\":",
        "\"reasoning_content\":",
        "\"reasoning\":",
        "\"tool_calls\":",
        "\"refusal\":",
        "\"thinking\":",
        "\"partial_json\":",
        "\"delta\":",
    ]
    .map(Finder::new)
});

/// Whether the data has content. Looked for as text until the first content has come, which is an event or two.
fn has_content(data: &[u8]) -> bool {
    CONTENT.iter().any(|name| {
        name.find_iter(data).any(|at| {
            let value = data.get(at + name.needle().len()..).unwrap_or_default().trim_ascii_start();
            !(value.starts_with(b"\"\"")
                || value.starts_with(b"{")
                || value.starts_with(b"null")
                || value.starts_with(b"[]"))
        })
    })
}

/// The data of an event: its `data` lines, joined by LF; `None` if it has none.
fn data(event: &[u8]) -> Option<Cow<'_, [u8]>> {
    // The LF of the CRLF that ended the event before, and the byte order mark at the beginning of a stream.
    let event = event.strip_prefix(b"\n").unwrap_or(event);
    let event = event.strip_prefix("\u{feff}".as_bytes()).unwrap_or(event);
    let mut joined: Option<Cow<'_, [u8]>> = None;
    let mut rest = event;
    while !rest.is_empty() {
        let end = memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
        let (line, after) = rest.split_at(end);
        rest = after.get(1..).unwrap_or_default();
        let Some(value) = value_of_data(line) else { continue };
        joined = Some(match joined {
            None => Cow::Borrowed(value),
            Some(before) => Cow::Owned([before.as_ref(), b"\n", value].concat()),
        });
    }
    joined
}

fn value_of_data(line: &[u8]) -> Option<&[u8]> {
    let rest = line.strip_prefix(b"data")?;
    match rest.split_first() {
        None => Some(rest),
        Some((b':', value)) => Some(value.strip_prefix(b" ").unwrap_or(value)),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn see(watch: &mut Watch, json: &str) -> Verdict {
        watch.see(format!("data: {json}\n\n").as_bytes())
    }

    #[test]
    fn s4_the_answer_is_complete_when_every_choice_has_its_finish() {
        let mut watch = Watch::new(2, StreamEnd::Choices);
        see(&mut watch, r#"{"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}"#);
        assert!(!watch.complete());
        see(&mut watch, r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#);
        see(&mut watch, r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#);
        assert!(!watch.complete());
        see(&mut watch, r#"{"choices":[{"index":1,"delta":{},"finish_reason" : "length"}]}"#);
        assert!(watch.complete());
        assert_eq!(see(&mut watch, "[DONE]"), Verdict::Last);
    }

    #[test]
    fn text_that_looks_like_a_finish_is_none() {
        let mut watch = Watch::new(1, StreamEnd::Choices);
        see(&mut watch, r#"{"choices":[{"index":0,"delta":{"content":"\"finish_reason\":\"stop\""}}]}"#);
        see(&mut watch, r#"{"choices":[{"index":0,"delta":{},"vendor":{"finish_reason":"stop"}}]}"#);
        assert!(!watch.complete());
        assert_eq!(see(&mut watch, "[DONE]"), Verdict::Hold);
    }

    #[test]
    fn s2_data_lines_are_joined_and_may_lack_the_space() {
        let mut watch = Watch::new(1, StreamEnd::Choices);
        watch.see("\u{feff}: hello\r\ndata:{\"choices\":[{\"finish_reason\":\r\ndata: \"stop\"}]}\r\n\r\n".as_bytes());
        assert!(watch.complete());
        assert_eq!(watch.see(b"data:[DONE]\r\r"), Verdict::Last);
    }

    #[test]
    fn comments_are_no_events() {
        let mut watch = Watch::new(1, StreamEnd::Choices);
        assert_eq!(watch.see(b": ping\n\n"), Verdict::Pass);
        assert_eq!(watch.see(b"\n"), Verdict::Pass);
        assert!(!watch.begun());
        see(&mut watch, "{}");
        assert!(watch.begun());
    }

    #[test]
    fn o1_the_role_is_no_content() {
        let mut watch = Watch::new(1, StreamEnd::Choices);
        see(&mut watch, r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#);
        see(&mut watch, r#"{"choices":[{"delta":{"role":"assistant","content": null,"tool_calls":[]}}]}"#);
        assert!(!watch.has_content());
        see(&mut watch, r#"{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}"#);
        assert!(watch.has_content());
    }

    #[test]
    fn s5_an_error_event_is_held() {
        let mut watch = Watch::new(1, StreamEnd::Choices);
        assert_eq!(see(&mut watch, r#"{"error": null, "choices": []}"#), Verdict::Pass);
        assert_eq!(see(&mut watch, r#"{"error": {"message": "out of memory"}}"#), Verdict::Hold);
        assert_eq!(watch.take_error().as_deref(), Some(&br#"{"error": {"message": "out of memory"}}"#[..]));
    }
}
