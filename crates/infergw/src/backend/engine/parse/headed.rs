//! Calls with a head before their arguments: the name stands in plain text, then a mark, then JSON.

use super::json::{Arguments, ListCall, ObjectCall};
use super::sink::Sink;
use super::tools::{Context, Step};

/// Most bytes of a head.
const MAX_HEAD: usize = 512;
/// Between a DeepSeek call's parts.
const SEPARATOR: &str = "<｜tool▁sep｜>";

/// How a head is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// `function<｜tool▁sep｜>NAME`, then a fenced block.
    DeepSeekV3,
    /// `NAME<｜tool▁sep｜>`.
    DeepSeekV31,
    /// `functions.NAME:0`, which is the call's id, then `<|tool_call_argument_begin|>`.
    KimiK2,
    /// `NAME` or `NAME[CALL_ID]ID`, then the arguments, with `[ARGS]` before them or not.
    Mistral,
}

/// A call with a head.
#[derive(Debug, Clone)]
pub(super) struct HeadedCall {
    style: Style,
    head: String,
    arguments: Option<Arguments>,
}

impl HeadedCall {
    pub(super) fn new(style: Style) -> Self {
        Self { style, head: String::new(), arguments: None }
    }

    pub(super) fn step(&mut self, c: char, sink: &mut Sink) -> Step {
        if let Some(arguments) = &mut self.arguments {
            return arguments.step(c, sink);
        }
        if self.style == Style::Mistral && c == '{' {
            let step = self.begin(&self.head.clone(), sink);
            return match &mut self.arguments {
                Some(arguments) => arguments.step(c, sink),
                None => step,
            };
        }
        self.head.push(c);
        let end = match self.style {
            Style::DeepSeekV3 => "```json",
            Style::DeepSeekV31 => SEPARATOR,
            Style::KimiK2 => "<|tool_call_argument_begin|>",
            Style::Mistral => "[ARGS]",
        };
        match self.head.strip_suffix(end) {
            Some(head) => {
                let head = head.to_owned();
                self.begin(&head, sink)
            }
            None if self.head.len() > MAX_HEAD => Step::Reject,
            None => Step::More,
        }
    }

    fn begin(&mut self, head: &str, sink: &mut Sink) -> Step {
        let (name, id) = match self.style {
            Style::DeepSeekV3 => (head.rsplit_once(SEPARATOR).map_or(head, |(_, name)| name), None),
            Style::DeepSeekV31 => (head, None),
            Style::KimiK2 => {
                let id = head.trim();
                let name = id.strip_prefix("functions.").unwrap_or(id);
                (name.rsplit_once(':').map_or(name, |(name, _)| name), Some(id))
            }
            Style::Mistral => match head.split_once("[CALL_ID]") {
                Some((name, id)) => (name, Some(id.trim())),
                None => (head, None),
            },
        };
        let name = name.trim();
        let good = |c: char| c.is_alphanumeric() || "_-.:/".contains(c);
        if name.is_empty() || !name.chars().all(good) {
            return if self.style == Style::Mistral && !self.head.ends_with("[ARGS]") {
                Step::Leave
            } else {
                Step::Reject
            };
        }
        sink.begin(name, id.map(str::to_owned));
        self.arguments = Some(Arguments::default());
        Step::More
    }
}

/// What follows Mistral's mark: a list of calls, one call, or a head.
#[derive(Debug, Clone)]
pub(super) enum MistralCall {
    Undecided,
    List(ListCall),
    Object(Box<ObjectCall>),
    Headed(HeadedCall),
}

impl MistralCall {
    pub(super) fn step(&mut self, c: char, context: &Context, sink: &mut Sink) -> Step {
        if matches!(self, MistralCall::Undecided) {
            *self = match c {
                _ if c.is_whitespace() => return Step::More,
                '[' => MistralCall::List(ListCall::default()),
                '{' => MistralCall::Object(Box::default()),
                _ => MistralCall::Headed(HeadedCall::new(Style::Mistral)),
            };
        }
        match self {
            MistralCall::Undecided => Step::More,
            MistralCall::List(list) => list.step(c, context, sink),
            MistralCall::Object(call) => call.step(c, context, sink),
            MistralCall::Headed(call) => call.step(c, sink),
        }
    }

    pub(super) fn flush(&mut self, sink: &mut Sink) {
        match self {
            MistralCall::List(list) => list.flush(sink),
            MistralCall::Object(call) => call.flush(sink),
            MistralCall::Undecided | MistralCall::Headed(_) => {}
        }
    }
}
