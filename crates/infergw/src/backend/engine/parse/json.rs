//! JSON as a model writes it, character by character: one value passed on as it is, and a call as an object.

use super::sink::Sink;
use super::tools::{Context, Step};

/// Finds where a JSON value ends. It does not judge more than it must for that.
#[derive(Debug, Clone, Default)]
struct Extent {
    depth: usize,
    in_string: bool,
    escaped: bool,
    scalar: bool,
    begun: bool,
}

/// What a character is to a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Inside,
    Last,
    After,
    Wrong,
}

impl Extent {
    fn step(&mut self, c: char) -> Place {
        if self.in_string {
            match c {
                _ if self.escaped => self.escaped = false,
                '\\' => self.escaped = true,
                '"' => {
                    self.in_string = false;
                    return if self.depth == 0 { Place::Last } else { Place::Inside };
                }
                _ => {}
            }
            return Place::Inside;
        }
        if self.scalar {
            return if c.is_ascii_alphanumeric() || "+-.".contains(c) { Place::Inside } else { Place::After };
        }
        let first = !std::mem::replace(&mut self.begun, true);
        match c {
            '{' | '[' => self.depth += 1,
            '"' => self.in_string = true,
            _ if first => {
                self.scalar = true;
                return if c.is_ascii_digit() || "-tfn".contains(c) { Place::Inside } else { Place::Wrong };
            }
            '}' | ']' => {
                self.depth -= 1;
                return if self.depth == 0 { Place::Last } else { Place::Inside };
            }
            _ if c.is_ascii_whitespace() || c.is_ascii_digit() || ",:+-.eEtrufalsn".contains(c) => {}
            _ => return Place::Wrong,
        }
        Place::Inside
    }
}

/// A call's arguments: a JSON value that is passed on while it is written.
#[derive(Debug, Clone, Default)]
pub(super) struct Arguments {
    extent: Extent,
}

impl Arguments {
    pub(super) fn step(&mut self, c: char, sink: &mut Sink) -> Step {
        if !self.extent.begun && c.is_whitespace() {
            return Step::More;
        }
        let place = self.extent.step(c);
        if matches!(place, Place::Inside | Place::Last) {
            sink.arguments(c.encode_utf8(&mut [0; 4]));
        }
        match place {
            Place::Inside => Step::More,
            Place::Last => Step::Done,
            Place::After => Step::Leave,
            Place::Wrong => Step::Spill,
        }
    }
}

/// Most bytes of an escape, that of a character beyond 16 bits.
const LONGEST_ESCAPE: usize = 12;

/// The text of a JSON string.
#[derive(Debug, Clone, Default)]
struct Unescape {
    escape: String,
}

impl Unescape {
    /// Take a character; true if it ends the string.
    fn step(&mut self, c: char, out: &mut String) -> bool {
        if self.escape.is_empty() {
            match c {
                '"' => return true,
                '\\' => self.escape.push(c),
                _ => out.push(c),
            }
            return false;
        }
        self.escape.push(c);
        match serde_json::from_str::<String>(&format!("\"{}\"", self.escape)) {
            Ok(text) => {
                out.push_str(&text);
                self.escape.clear();
            }
            Err(_) if self.escape.len() >= LONGEST_ESCAPE => self.flush(out),
            Err(_) => {}
        }
        false
    }

    /// An escape that is none is text.
    fn flush(&mut self, out: &mut String) {
        out.push_str(&std::mem::take(&mut self.escape));
    }
}

/// Where in an object a call's reader is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum At {
    #[default]
    Open,
    Member,
    Key,
    Colon,
    Value,
    Name,
    Skipped,
    Raw,
    Text,
    Comma,
}

/// `{"name": ..., "arguments": {...}}`, in any order; `parameters` is another word for `arguments`.
#[derive(Debug, Clone, Default)]
pub(super) struct ObjectCall {
    at: At,
    /// Nothing marks it as a call: it is one when it has arguments, and the name of a tool of the request.
    unmarked: bool,
    extent: Extent,
    unescape: Unescape,
    key: String,
    name: String,
    named: bool,
    /// Arguments that came before the name.
    early: Option<String>,
    begun: bool,
}

impl ObjectCall {
    pub(super) fn new(unmarked: bool) -> Self {
        Self { unmarked, ..Self::default() }
    }

    pub(super) fn step(&mut self, c: char, context: &Context, sink: &mut Sink) -> Step {
        let blank = c.is_whitespace();
        match self.at {
            At::Open => match c {
                '{' => self.at = At::Member,
                _ if blank => {}
                _ => return Step::Leave,
            },
            At::Member | At::Comma => match c {
                '"' if self.at == At::Member => {
                    self.key.clear();
                    self.at = At::Key;
                }
                ',' if self.at == At::Comma => self.at = At::Member,
                '}' => return if self.begun { Step::Done } else { Step::Reject },
                _ if blank => {}
                _ => return Step::Leave,
            },
            At::Key => {
                if self.unescape.step(c, &mut self.key) {
                    self.at = At::Colon;
                }
            }
            At::Colon => match c {
                ':' => self.at = At::Value,
                _ if blank => {}
                _ => return Step::Leave,
            },
            At::Value if blank => {}
            At::Value => return self.value(c, context, sink),
            At::Name => {
                if self.unescape.step(c, &mut self.name) {
                    if self.name.is_empty() || (self.unmarked && !context.knows(&self.name)) {
                        return Step::Leave;
                    }
                    self.named = true;
                    self.at = At::Comma;
                    if !self.unmarked || self.early.is_some() {
                        self.begin(sink);
                    }
                }
            }
            At::Text => {
                let mut text = String::new();
                if self.unescape.step(c, &mut text) {
                    self.at = At::Comma;
                }
                self.argue(&text, sink);
            }
            At::Skipped | At::Raw => return self.inside(c, context, sink),
        }
        Step::More
    }

    /// The first character of a member's value.
    fn value(&mut self, c: char, context: &Context, sink: &mut Sink) -> Step {
        self.extent = Extent::default();
        let arguments = matches!(self.key.as_str(), "arguments" | "parameters") && self.early.is_none();
        if self.key == "name" && !self.named && c == '"' {
            self.name.clear();
            self.at = At::Name;
            return Step::More;
        }
        if !arguments {
            self.at = At::Skipped;
            return self.inside(c, context, sink);
        }
        self.early = Some(String::new());
        if self.named && !self.begun {
            self.begin(sink);
        }
        if c == '"' {
            self.at = At::Text;
            return Step::More;
        }
        self.at = At::Raw;
        self.inside(c, context, sink)
    }

    fn inside(&mut self, c: char, context: &Context, sink: &mut Sink) -> Step {
        let raw = self.at == At::Raw;
        let place = self.extent.step(c);
        match place {
            Place::Inside | Place::Last => {
                if raw {
                    self.argue(c.encode_utf8(&mut [0; 4]), sink);
                }
                if place == Place::Last {
                    self.at = At::Comma;
                }
                Step::More
            }
            Place::After => {
                self.at = At::Comma;
                self.step(c, context, sink)
            }
            Place::Wrong if raw && self.begun => Step::Spill,
            Place::Wrong => Step::Leave,
        }
    }

    fn begin(&mut self, sink: &mut Sink) {
        self.begun = true;
        sink.begin(&self.name, None);
        if let Some(early) = &mut self.early {
            sink.arguments(&std::mem::take(early));
        }
    }

    fn argue(&mut self, text: &str, sink: &mut Sink) {
        match &mut self.early {
            Some(early) if !self.begun => early.push_str(text),
            _ => sink.arguments(text),
        }
    }

    /// The answer ends inside the call.
    pub(super) fn flush(&mut self, sink: &mut Sink) {
        if self.at == At::Text && self.begun {
            let mut text = String::new();
            self.unescape.flush(&mut text);
            sink.arguments(&text);
        }
    }
}

/// A list of calls.
#[derive(Debug, Clone, Default)]
pub(super) struct ListCall {
    call: Option<ObjectCall>,
    begun: bool,
    between: bool,
}

impl ListCall {
    pub(super) fn step(&mut self, c: char, context: &Context, sink: &mut Sink) -> Step {
        if let Some(call) = &mut self.call {
            let step = call.step(c, context, sink);
            if step != Step::Done {
                return step;
            }
            sink.end();
            self.call = None;
            self.between = true;
            return Step::More;
        }
        match c {
            '[' if !self.begun => self.begun = true,
            ']' if self.begun => return Step::Done,
            ',' if self.between => self.between = false,
            '{' if self.begun && !self.between => {
                let call = self.call.insert(ObjectCall::default());
                return call.step(c, context, sink);
            }
            _ if c.is_whitespace() => {}
            _ => return Step::Leave,
        }
        Step::More
    }

    pub(super) fn flush(&mut self, sink: &mut Sink) {
        if let Some(call) = &mut self.call {
            call.flush(sink);
        }
    }
}
