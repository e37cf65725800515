//! Qwen3-Coder's calls: `<function=NAME><parameter=KEY>` value `</parameter></function>`. Values are plain text: the tool's
//! schema says which of them are not strings.

use super::marks::Marks;
use super::sink::Sink;
use super::tools::{Context, Kind, Step};

/// Most bytes of a name, and of a value that is held back because it may be a number.
const MAX_HELD: usize = 256;
const FUNCTION: &str = "<function=";
const PARAMETER: &str = "<parameter=";
const END: &str = "</function>";
const VALUE_END: &str = "</parameter>";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Function,
    Name,
    Between,
    Key,
    Value,
}

/// One call.
#[derive(Debug, Clone)]
pub(super) struct XmlCall {
    at: At,
    /// A tag, name or key that is being read.
    read: String,
    name: String,
    parameters: usize,
    marks: Marks,
    value: Value,
}

/// A parameter's value.
#[derive(Debug, Clone, Default)]
struct Value {
    form: Form,
    /// White space that is the format's if the value ends with it.
    newline: bool,
    begun: bool,
    held: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Form {
    /// A JSON string is being written.
    #[default]
    Text,
    /// JSON text passes as it is.
    Json,
    /// A number or its like, when it is complete; otherwise text.
    Scalar,
}

impl XmlCall {
    /// `inside` is set where `<function=` has been read.
    pub(super) fn new(inside: bool) -> Self {
        Self {
            at: if inside { At::Name } else { At::Function },
            read: String::new(),
            name: String::new(),
            parameters: 0,
            marks: Marks::new([VALUE_END]),
            value: Value::default(),
        }
    }

    pub(super) fn step(&mut self, c: char, context: &Context, sink: &mut Sink) -> Step {
        match self.at {
            At::Function | At::Between if self.read.is_empty() && c.is_whitespace() => Step::More,
            At::Function => {
                self.read.push(c);
                if self.read == FUNCTION {
                    self.read.clear();
                    self.at = At::Name;
                }
                if FUNCTION.starts_with(&self.read) { Step::More } else { Step::Leave }
            }
            At::Between => self.between(c, sink),
            At::Name | At::Key => match c {
                '>' => self.named(context, sink),
                '<' | '\n' if self.at == At::Name => Step::Leave,
                _ if self.read.len() > MAX_HELD && self.at == At::Name => Step::Leave,
                _ => {
                    self.read.push(c);
                    Step::More
                }
            },
            At::Value => {
                let mut free = String::new();
                let end = self.marks.take(c.encode_utf8(&mut [0; 4]), &mut free);
                free.chars().for_each(|c| self.value.push(c, sink));
                if end.is_some() {
                    self.value.end(sink);
                    self.at = At::Between;
                }
                Step::More
            }
        }
    }

    fn between(&mut self, c: char, sink: &mut Sink) -> Step {
        self.read.push(c);
        if self.read == PARAMETER {
            self.read.clear();
            self.at = At::Key;
            return Step::More;
        }
        let end = self.read == END;
        if !end && (PARAMETER.starts_with(&self.read) || END.starts_with(&self.read)) {
            return Step::More;
        }
        sink.arguments(if self.parameters == 0 { "{}" } else { "}" });
        if end {
            return Step::Done;
        }
        // Something else: the call ends before it.
        sink.end();
        self.read.pop();
        sink.content(&std::mem::take(&mut self.read));
        Step::Leave
    }

    fn named(&mut self, context: &Context, sink: &mut Sink) -> Step {
        let read = std::mem::take(&mut self.read);
        let read = read.trim();
        if self.at == At::Name {
            if read.is_empty() {
                return Step::Leave;
            }
            self.name = read.to_owned();
            sink.begin(read, None);
            self.at = At::Between;
            return Step::More;
        }
        sink.arguments(if self.parameters == 0 { "{" } else { ", " });
        sink.arguments(&serde_json::Value::from(read).to_string());
        sink.arguments(": ");
        self.parameters += 1;
        self.value = Value::new(context.kind(&self.name, read));
        self.at = At::Value;
        Step::More
    }

    /// The answer ends inside the call.
    pub(super) fn flush(&mut self, sink: &mut Sink) {
        if self.at == At::Value {
            let rest = self.marks.flush();
            rest.chars().for_each(|c| self.value.push(c, sink));
            self.value.flush(sink);
        }
    }
}

impl Value {
    fn new(kind: Kind) -> Self {
        let form = match kind {
            Kind::Text => Form::Text,
            Kind::Structure => Form::Json,
            Kind::Scalar => Form::Scalar,
        };
        Self { form, ..Self::default() }
    }

    fn push(&mut self, c: char, sink: &mut Sink) {
        if !self.begun && !self.newline && self.held.is_empty() && c == '\n' && self.form != Form::Json {
            // The line break after the tag.
            self.begun = true;
            if self.form == Form::Text {
                sink.arguments("\"");
            }
            return;
        }
        if self.form == Form::Scalar {
            self.begun = true;
            self.held.push(c);
            if self.held.len() > MAX_HELD {
                self.as_text(sink);
            }
            return;
        }
        if self.form == Form::Json && !self.begun {
            match c {
                _ if c.is_whitespace() => return,
                '{' | '[' => {}
                _ => self.form = Form::Text,
            }
        }
        if !std::mem::replace(&mut self.begun, true) && self.form == Form::Text {
            sink.arguments("\"");
        }
        if std::mem::take(&mut self.newline) {
            self.write('\n', sink);
        }
        match c {
            '\n' => self.newline = true,
            _ => self.write(c, sink),
        }
    }

    fn write(&self, c: char, sink: &mut Sink) {
        let mut bytes = [0; 4];
        let text = &*c.encode_utf8(&mut bytes);
        if self.form == Form::Json || !(c.is_control() || matches!(c, '"' | '\\')) {
            sink.arguments(text);
        } else {
            let quoted = serde_json::Value::from(text).to_string();
            sink.arguments(quoted.trim_start_matches('"').strip_suffix('"').unwrap_or_default());
        }
    }

    /// What was held back is text after all.
    fn as_text(&mut self, sink: &mut Sink) {
        self.form = Form::Text;
        self.newline = false;
        sink.arguments("\"");
        for c in std::mem::take(&mut self.held).chars() {
            self.push(c, sink);
        }
    }

    fn end(&mut self, sink: &mut Sink) {
        match self.form {
            Form::Scalar => {
                let text = match self.held.trim() {
                    "True" => "true",
                    "False" => "false",
                    "None" => "null",
                    text => text,
                };
                match serde_json::from_str::<serde_json::Value>(text) {
                    Ok(value) if !value.is_string() => sink.arguments(text),
                    _ => {
                        self.begun = true;
                        self.as_text(sink);
                        sink.arguments("\"");
                    }
                }
            }
            Form::Text => sink.arguments(if self.begun { "\"" } else { "\"\"" }),
            Form::Json if !self.begun => sink.arguments("null"),
            Form::Json => {}
        }
    }

    fn flush(&mut self, sink: &mut Sink) {
        sink.arguments(&std::mem::take(&mut self.held));
        if std::mem::take(&mut self.newline) {
            self.write('\n', sink);
        }
    }
}
