//! The channels of gpt-oss: messages with a head that says what they are.

use super::marks::Marks;
use super::sink::Sink;

/// The control tokens; the first four may stand in a head.
pub(super) const MARKS: [&str; 7] =
    ["<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"];
const START: usize = 0;
const CHANNEL: usize = 1;
const CONSTRAIN: usize = 2;
const MESSAGE: usize = 3;
/// Most bytes of a head.
const MAX_HEAD: usize = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Body {
    Content,
    Reasoning,
    Call,
}

#[derive(Debug)]
enum State {
    Head,
    Body(Body),
}

/// Splits an answer by its channels.
#[derive(Debug)]
pub(super) struct Harmony {
    state: State,
    marks: Marks,
    head: String,
    /// There was a mark: until the first one the answer may be plain text.
    marked: bool,
    calls: bool,
}

impl Harmony {
    /// `calls` is set where calls are looked for; otherwise they are content.
    pub(super) fn new(calls: bool) -> Self {
        Self { state: State::Head, marks: Marks::new(MARKS), head: String::new(), marked: false, calls }
    }

    pub(super) fn feed(&mut self, text: &str, sink: &mut Sink) {
        let mut rest = text;
        while !rest.is_empty() {
            let mut free = String::new();
            let found = self.marks.take(rest, &mut free);
            self.free(&free, sink);
            let Some((mark, taken)) = found else { return };
            self.mark(mark, sink);
            rest = rest.get(taken..).unwrap_or_default();
        }
    }

    pub(super) fn finish(&mut self, sink: &mut Sink) {
        let held = self.marks.flush();
        self.free(&held, sink);
        // A head without its message says nothing.
        if !self.marked {
            sink.content(&std::mem::take(&mut self.head));
        }
    }

    fn free(&mut self, text: &str, sink: &mut Sink) {
        match self.state {
            State::Body(body) => told(body, text, sink),
            State::Head => {
                for (at, c) in text.char_indices() {
                    self.head.push(c);
                    let plain = !self.marked && !recipient_may_follow(self.head.trim_start());
                    if plain || self.head.len() > MAX_HEAD {
                        self.state = State::Body(Body::Content);
                        sink.content(&std::mem::take(&mut self.head));
                        sink.content(text.get(at + c.len_utf8()..).unwrap_or_default());
                        return;
                    }
                }
            }
        }
    }

    fn mark(&mut self, mark: usize, sink: &mut Sink) {
        self.marked = true;
        let name = MARKS.get(mark).copied().unwrap_or_default();
        match (&self.state, mark) {
            (State::Head, START..=CONSTRAIN) => self.head.push_str(name),
            (State::Head, MESSAGE) => {
                let head = std::mem::take(&mut self.head);
                self.state = State::Body(self.body(&head, sink));
            }
            (State::Body(body), CONSTRAIN | MESSAGE) => told(*body, name, sink),
            _ => {
                sink.end();
                self.state = State::Head;
                self.head.clear();
                if matches!(mark, START | CHANNEL) {
                    self.head.push_str(name);
                }
            }
        }
    }

    fn body(&self, head: &str, sink: &mut Sink) -> Body {
        let word = |text: &str| {
            let end = text.find(|c: char| c.is_whitespace() || c == '<').unwrap_or(text.len());
            text.get(..end).unwrap_or_default().to_owned()
        };
        let function = head.split_once("to=functions.").map(|(_, rest)| word(rest)).filter(|name| !name.is_empty());
        if let Some(name) = function.filter(|_| self.calls) {
            sink.begin(&name, None);
            return Body::Call;
        }
        match head.split_once("<|channel|>").map(|(_, rest)| word(rest)).as_deref() {
            Some("analysis") => Body::Reasoning,
            _ => Body::Content,
        }
    }
}

fn told(body: Body, text: &str, sink: &mut Sink) {
    match body {
        Body::Content => sink.content(text),
        Body::Reasoning => sink.reasoning(text),
        Body::Call => sink.arguments(text),
    }
}

/// Whether the start of an answer may be a head without a mark: `to=functions.name<|channel|>...`.
fn recipient_may_follow(text: &str) -> bool {
    "to=".starts_with(text) || text.starts_with("to=")
}
