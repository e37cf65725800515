//! Tool calls in text. A character decides at once, given those before it, so that no cut of the text can matter; what may
//! still turn out to be no call is held back, up to [`MAX_HELD`], and becomes content again if it is none.

use serde_json::Value;

use super::headed::{HeadedCall, MistralCall, Style};
use super::json::{Arguments, ListCall, ObjectCall};
use super::marks::Marks;
use super::sink::Sink;
use super::xml::XmlCall;

/// Most bytes that are held back because they may become a call: a call whose name comes after its arguments.
pub(super) const MAX_HELD: usize = 64 << 10;
/// Most white space that is held back because a call may follow.
const MAX_BLANK: usize = 256;

/// What a character was to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// A part of it.
    More,
    /// Its last part.
    Done,
    /// Not a part of it: the call, if it is one, ended before.
    Leave,
    /// What was read until here is no call.
    Reject,
    /// Not JSON, in arguments that have begun: all until the end mark is the model's arguments.
    Spill,
}

/// How a family writes calls.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Grammar {
    /// Marks around all calls: no text.
    pub(super) sections: &'static [&'static str],
    /// What a call begins with.
    pub(super) calls: &'static [&'static str],
    /// What follows a call, in this order; some may be missing.
    pub(super) ends: &'static [&'static str],
    pub(super) body: Body,
}

/// What stands behind the mark of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Body {
    Object,
    Headed(Style),
    Mistral,
    /// With the second mark the call has begun already.
    Xml,
}

/// Calls without a mark, at the start of the answer only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Unmarked {
    None,
    /// An object with the name of a tool; more may follow after `;`.
    Object,
    /// A list of calls: the answer was constrained to it.
    List,
    /// The arguments of this function: the answer was constrained to them.
    Named(String),
}

/// What a parameter's value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Structure,
    Scalar,
}

/// The tools of the request: names with the schemas of their parameters.
#[derive(Debug, Clone, Default)]
pub(super) struct Context {
    pub(super) functions: Vec<(String, Value)>,
}

impl Context {
    pub(super) fn knows(&self, name: &str) -> bool {
        self.functions.iter().any(|(known, _)| known == name)
    }

    pub(super) fn kind(&self, name: &str, parameter: &str) -> Kind {
        let schema = self.functions.iter().find(|(known, _)| known == name).map(|(_, schema)| schema);
        let kind = schema.and_then(|schema| schema.get("properties")?.get(parameter)?.get("type")?.as_str());
        match kind {
            Some("object" | "array") => Kind::Structure,
            Some("integer" | "number" | "boolean" | "null") => Kind::Scalar,
            _ => Kind::Text,
        }
    }
}

#[derive(Debug, Clone)]
enum Call {
    Object(Box<ObjectCall>),
    List(ListCall),
    Headed(HeadedCall),
    Mistral(MistralCall),
    Xml(Box<XmlCall>),
    Arguments(Arguments),
}

impl Call {
    fn step(&mut self, c: char, context: &Context, sink: &mut Sink) -> Step {
        match self {
            Call::Object(call) => call.step(c, context, sink),
            Call::List(call) => call.step(c, context, sink),
            Call::Headed(call) => call.step(c, sink),
            Call::Mistral(call) => call.step(c, context, sink),
            Call::Xml(call) => call.step(c, context, sink),
            Call::Arguments(arguments) => arguments.step(c, sink),
        }
    }

    fn flush(&mut self, sink: &mut Sink) {
        match self {
            Call::Object(call) => call.flush(sink),
            Call::List(call) => call.flush(sink),
            Call::Mistral(call) => call.flush(sink),
            Call::Xml(call) => call.flush(sink),
            Call::Headed(_) | Call::Arguments(_) => {}
        }
    }
}

#[derive(Debug)]
enum State {
    Text,
    Call { call: Call, calls_before: usize },
    Spilt,
}

/// Content becomes content and calls.
#[derive(Debug)]
pub(super) struct Tools {
    grammar: Option<&'static Grammar>,
    unmarked: Unmarked,
    context: std::sync::Arc<Context>,
    state: State,
    marks: Marks,
    /// The first of the family's end marks that are still expected.
    end: usize,
    /// Held back: white space and marks before a call, then the call's text until it has a name.
    pending: String,
    /// No text since the start or the last call.
    blank: bool,
}

impl Tools {
    pub(super) fn new(grammar: Option<&'static Grammar>, unmarked: Unmarked, context: std::sync::Arc<Context>) -> Self {
        let mut tools = Self {
            grammar,
            unmarked,
            context,
            state: State::Text,
            marks: Marks::default(),
            end: usize::MAX,
            pending: String::new(),
            blank: true,
        };
        tools.resume_text(None);
        tools
    }

    pub(super) fn feed(&mut self, text: &str, sink: &mut Sink) {
        let mut rest = text;
        while !rest.is_empty() {
            let taken = match self.state {
                State::Text => self.text(rest, sink),
                State::Call { .. } => self.call(rest, sink),
                State::Spilt => self.spilt(rest, sink),
            };
            rest = rest.get(taken..).unwrap_or_default();
        }
    }

    /// The text ends here.
    pub(super) fn finish(&mut self, sink: &mut Sink) {
        let held = self.marks.flush();
        match std::mem::replace(&mut self.state, State::Text) {
            State::Call { mut call, .. } if sink.is_open() => call.flush(sink),
            State::Spilt => sink.arguments(&held),
            // White space behind the last call is the format's.
            State::Text if held.is_empty() && self.blank && sink.calls() > 0 => {}
            _ => {
                sink.content(&std::mem::take(&mut self.pending));
                sink.content(&held);
            }
        }
    }

    /// Go on with text; after a call with the end marks from `end` on.
    fn resume_text(&mut self, end: Option<usize>) {
        self.state = State::Text;
        self.end = end.unwrap_or(usize::MAX);
        let marks = self.grammar.map(|g| {
            let ends = g.ends.get(self.end..).unwrap_or_default();
            g.sections.iter().chain(g.calls).chain(ends).copied()
        });
        self.marks = Marks::new(marks.into_iter().flatten());
    }

    fn content(&mut self, text: &str, sink: &mut Sink) {
        sink.content(&std::mem::take(&mut self.pending));
        sink.content(text);
        self.blank = false;
    }

    fn text(&mut self, rest: &str, sink: &mut Sink) -> usize {
        let Some(first) = rest.chars().next() else { return 0 };
        if self.blank && !self.marks.holds() {
            let separator = first == ';' && self.unmarked == Unmarked::Object && sink.calls() > 0;
            if first.is_whitespace() || separator {
                self.pending.push(first);
                if self.pending.len() > MAX_BLANK {
                    self.content("", sink);
                }
                return first.len_utf8();
            }
            let opened = match &self.unmarked {
                Unmarked::Object if first == '{' => Some(Call::Object(Box::new(ObjectCall::new(true)))),
                Unmarked::List if first == '[' && sink.calls() == 0 => Some(Call::List(ListCall::default())),
                Unmarked::Named(name) if first == '{' && sink.calls() == 0 => {
                    sink.begin(name, None);
                    Some(Call::Arguments(Arguments::default()))
                }
                _ => None,
            };
            if let Some(call) = opened {
                let calls_before = sink.calls() - usize::from(sink.is_open());
                self.state = State::Call { call, calls_before };
                return 0;
            }
        }
        let mut free = String::new();
        let found = self.marks.take(rest, &mut free);
        if !free.is_empty() {
            self.content(&free, sink);
        }
        match found {
            Some((index, taken)) => {
                self.marked(index, sink);
                taken
            }
            None => rest.len(),
        }
    }

    fn marked(&mut self, index: usize, sink: &Sink) {
        let Some(grammar) = self.grammar else { return };
        let (sections, calls) = (grammar.sections.len(), grammar.calls.len());
        if let Some(end) = index.checked_sub(sections + calls) {
            self.resume_text(Some(self.end + end + 1));
            return;
        }
        let mark = grammar.sections.iter().chain(grammar.calls).nth(index).copied().unwrap_or_default();
        self.pending.push_str(mark);
        let Some(which) = index.checked_sub(sections) else {
            self.blank = true;
            return;
        };
        let call = match grammar.body {
            Body::Object => Call::Object(Box::default()),
            Body::Headed(style) => Call::Headed(HeadedCall::new(style)),
            Body::Mistral => Call::Mistral(MistralCall::Undecided),
            Body::Xml => Call::Xml(Box::new(XmlCall::new(which > 0))),
        };
        self.state = State::Call { call, calls_before: sink.calls() };
    }

    fn call(&mut self, rest: &str, sink: &mut Sink) -> usize {
        let State::Call { call, calls_before } = &mut self.state else { return 0 };
        let calls_before = *calls_before;
        for (at, c) in rest.char_indices() {
            let next = at + c.len_utf8();
            match call.step(c, &self.context, sink) {
                Step::More => {
                    if sink.is_open() {
                        self.pending.clear();
                        continue;
                    }
                    self.pending.push(c);
                    if self.pending.len() > MAX_HELD {
                        self.refuse(sink);
                        return next;
                    }
                }
                Step::Done => {
                    self.pending.clear();
                    sink.end();
                    self.blank = true;
                    self.resume_text(Some(0));
                    return next;
                }
                Step::Leave if sink.calls() > calls_before => {
                    self.blank = sink.is_open();
                    if !sink.is_open() {
                        sink.content(&self.pending);
                    }
                    self.pending.clear();
                    sink.end();
                    self.resume_text(Some(0));
                    return at;
                }
                Step::Leave => {
                    self.refuse(sink);
                    return at;
                }
                Step::Reject => {
                    self.pending.push(c);
                    self.refuse(sink);
                    return next;
                }
                Step::Spill => {
                    self.pending.clear();
                    self.marks = Marks::new(self.grammar.map(|g| g.ends.iter().copied()).into_iter().flatten());
                    self.state = State::Spilt;
                    return at;
                }
            }
        }
        rest.len()
    }

    /// It is no call: its text is content.
    fn refuse(&mut self, sink: &mut Sink) {
        self.content("", sink);
        self.resume_text(None);
    }

    fn spilt(&mut self, rest: &str, sink: &mut Sink) -> usize {
        let mut free = String::new();
        let found = self.marks.take(rest, &mut free);
        sink.arguments(&free);
        let Some((index, taken)) = found else { return rest.len() };
        sink.end();
        self.blank = true;
        self.resume_text(Some(index + 1));
        taken
    }
}
