//! The chat template: messages to the prompt's text, as the reference library (`transformers`) renders it (A9).
//!
//! The template language is Jinja2 in the reference's settings: blocks trimmed, loop controls, Python's methods on
//! strings and dicts, `tojson` as Python's `json.dumps(ensure_ascii=False)` writes it (not escaped for HTML),
//! `raise_exception` and `strftime_now`.

use std::collections::BTreeMap;
use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::{Map, Value as Json};

/// What a chat request puts into the template.
#[derive(Debug, Clone, Default)]
pub struct Conversation {
    /// The messages, each an object with `role` and `content` (text, or a list of parts).
    pub messages: Vec<Json>,
    /// Tool definitions, as the client sent them.
    pub tools: Option<Json>,
    /// Documents for retrieval templates, as the client sent them.
    pub documents: Option<Json>,
    /// `chat_template_kwargs` and what else goes to the template by name.
    pub arguments: Map<String, Json>,
    /// Open the assistant's turn at the end.
    pub add_generation_prompt: bool,
    /// Leave the last message open, so that the answer continues it.
    pub continue_final_message: bool,
}

/// A conversation that the template does not render: told to the client as a 400.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RenderError(pub String);

/// A model's chat template, compiled.
#[derive(Debug)]
pub struct ChatTemplate {
    env: Environment<'static>,
    has_tool_use: bool,
    content: ContentForm,
    /// `bos_token`, `eos_token` and their like.
    tokens: BTreeMap<String, String>,
}

/// How the template takes a message's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ContentForm {
    /// As one string: a list of text parts is joined.
    Text,
    /// As a list of parts: a string is made one.
    Parts,
    /// It asks which one it got.
    Either,
}

const MAIN: &str = "chat";
const TOOL_USE: &str = "tool_use";

impl ChatTemplate {
    /// Compile `source`, and the variant for requests with tools where the model has one.
    ///
    /// # Errors
    /// A syntax error, in the template engine's words.
    pub fn new(source: &str, tool_use: Option<&str>, tokens: BTreeMap<String, String>) -> Result<Self, Error> {
        let mut env = environment()?;
        env.add_template_owned(MAIN, without_generation_marks(source))?;
        if let Some(source) = tool_use {
            env.add_template_owned(TOOL_USE, without_generation_marks(source))?;
        }
        Ok(Self { env, has_tool_use: tool_use.is_some(), content: content_form(source), tokens })
    }

    /// The prompt's text.
    ///
    /// # Errors
    /// The template refused the conversation (`raise_exception`), or cannot render it.
    pub fn render(&self, conversation: &Conversation) -> Result<String, RenderError> {
        let name = if self.has_tool_use && conversation.tools.is_some() { TOOL_USE } else { MAIN };
        let template = self.env.get_template(name).map_err(render_error)?;
        let messages: Vec<Json> = conversation.messages.iter().map(|m| self.shape(m)).collect();
        let mut context: BTreeMap<&str, Value> = BTreeMap::new();
        for (key, token) in &self.tokens {
            context.insert(key, Value::from(token.as_str()));
        }
        for (key, value) in &conversation.arguments {
            context.insert(key, Value::from(Serde(value)));
        }
        context.insert("messages", Value::from(Serde(&messages)));
        context.insert("tools", Value::from(Serde(&conversation.tools)));
        context.insert("documents", Value::from(Serde(&conversation.documents)));
        context.insert("add_generation_prompt", Value::from(conversation.add_generation_prompt));
        let text = template.render(context).map_err(render_error)?;
        match messages.last() {
            Some(last) if conversation.continue_final_message => cut_after(text, last),
            _ => Ok(text),
        }
    }

    fn shape(&self, message: &Json) -> Json {
        let (Some(content), mut shaped) = (message.get("content"), message.clone()) else { return message.clone() };
        let reshaped = match (self.content, content) {
            (ContentForm::Text, Json::Array(parts)) => Json::String(joined_text(parts)),
            (ContentForm::Parts, Json::String(text)) => serde_json::json!([{"type": "text", "text": text}]),
            _ => return shaped,
        };
        if let Some(object) = shaped.as_object_mut() {
            object.insert("content".into(), reshaped);
        }
        shaped
    }
}

/// The text of content parts, one line each, as the field's servers join them.
fn joined_text(parts: &[Json]) -> String {
    let texts: Vec<&str> = parts.iter().filter_map(|part| part.get("text").and_then(Json::as_str)).collect();
    texts.join("\n")
}

fn render_error(error: Error) -> RenderError {
    // The detail comes from the template, not from the conversation (X5).
    let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    RenderError(detail)
}

/// Cut the text after the last message's content: the reference's rule for `continue_final_message`.
fn cut_after(mut text: String, last: &Json) -> Result<String, RenderError> {
    let content = match last.get("content") {
        Some(Json::String(content)) => content.as_str(),
        Some(Json::Array(parts)) => {
            parts.iter().rev().find_map(|part| part.get("text").and_then(Json::as_str)).unwrap_or_default()
        }
        _ => "",
    };
    let missing = || RenderError("continue_final_message: the template does not show the final message".into());
    let start = text.rfind(content.trim()).ok_or_else(missing)?;
    let whole = text.get(start..).is_some_and(|rest| rest.starts_with(content));
    let length = if whole { content.len() } else { content.trim().len() };
    text.truncate(start + length);
    Ok(text)
}

/// `{% generation %}` marks the assistant's text for training and prints nothing.
fn without_generation_marks(source: &str) -> String {
    let mut source = source.to_owned();
    for tag in ["generation", "endgeneration"] {
        for (open, close) in [("{%", "%}"), ("{%-", "%}"), ("{%", "-%}"), ("{%-", "-%}")] {
            // An empty comment with the same white space control stands in.
            let comment = format!("{} {}", open.replace('%', "#"), close.replace('%', "#"));
            source = source.replace(&format!("{open} {tag} {close}"), &comment);
        }
    }
    source
}

/// Whether the template iterates over a message's content, and whether it asks if that is a string.
fn content_form(source: &str) -> ContentForm {
    const NAMES: [&str; 6] =
        ["content", "message.content", "message['content']", "message[\"content\"]", "m.content", "m['content']"];
    let tags = source.split("{%").skip(1).filter_map(|rest| rest.split("%}").next());
    let mut loops =
        tags.filter_map(|tag| tag.trim_matches(['-', '+', ' ', '\n', '\t']).strip_prefix("for ")?.split_once(" in "));
    let iterates = loops.any(|(_, items)| {
        let items = items.split(['|', ' ']).next().unwrap_or_default();
        NAMES.contains(&items)
    });
    let flat: String = source.chars().filter(|c| !c.is_whitespace()).collect();
    let asks = ["contentisstring", "content']isstring", "content\"]isstring", "contentisnotstring", "isiterable"];
    match (iterates, asks.iter().any(|text| flat.contains(text))) {
        (true, true) => ContentForm::Either,
        (true, false) => ContentForm::Parts,
        (false, _) => ContentForm::Text,
    }
}

// === the template environment ===

fn environment() -> Result<Environment<'static>, Error> {
    let mut env = Environment::new();
    env.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    env.add_filter("tojson", to_json);
    env.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    env.add_function("strftime_now", |format: String| -> Result<String, Error> {
        jiff::fmt::strtime::format(&format, &jiff::Zoned::now())
            .map_err(|e| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {e}")))
    });
    Ok(env)
}

/// `json.dumps(value, ensure_ascii=False, indent=..., separators=..., sort_keys=...)`.
fn to_json(value: &Value, indent: Option<Value>, args: Kwargs) -> Result<Value, Error> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => args.get::<Option<Value>>("indent")?,
    };
    let indent = match indent.filter(|value| !value.is_none()) {
        Some(value) => Some(usize::try_from(value)?.min(16)),
        None => None,
    };
    let separators = args.get::<Option<Vec<String>>>("separators")?;
    let sort_keys = args.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let _ = args.get::<Option<bool>>("ensure_ascii")?;
    args.assert_all_used()?;
    let (item, key) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        _ => ((if indent.is_some() { "," } else { ", " }).into(), ": ".into()),
    };
    let mut json = serde_json::to_value(value).map_err(not_json)?;
    if sort_keys {
        json.sort_all_objects();
    }
    let mut out = Vec::new();
    let style = PythonStyle { item, key, indent, depth: 0, filled: false };
    json.serialize(&mut serde_json::Serializer::with_formatter(&mut out, style)).map_err(not_json)?;
    let text = String::from_utf8(out).map_err(|e| Error::new(ErrorKind::InvalidOperation, e.to_string()))?;
    Ok(Value::from_safe_string(text))
}

fn not_json(error: serde_json::Error) -> Error {
    Error::new(ErrorKind::InvalidOperation, "cannot serialize to JSON").with_source(error)
}

/// Python's separators, indentation and floats.
struct PythonStyle {
    item: String,
    key: String,
    indent: Option<usize>,
    depth: usize,
    filled: bool,
}

impl PythonStyle {
    fn line<W: ?Sized + io::Write>(&self, writer: &mut W) -> io::Result<()> {
        match self.indent {
            Some(indent) => write!(writer, "\n{:width$}", "", width = indent * self.depth),
            None => Ok(()),
        }
    }

    fn open<W: ?Sized + io::Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.filled = false;
        writer.write_all(bracket)
    }

    fn close<W: ?Sized + io::Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if self.filled {
            self.line(writer)?;
        }
        self.filled = true;
        writer.write_all(bracket)
    }

    fn next<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if !first {
            writer.write_all(self.item.as_bytes())?;
        }
        self.line(writer)
    }
}

impl serde_json::ser::Formatter for PythonStyle {
    fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        // Rust's debug form switches to an exponent where Python does, but writes it without sign and padding.
        let text = format!("{value:?}");
        match text.split_once('e') {
            Some((mantissa, exponent)) => {
                let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
                write!(writer, "{mantissa}e{sign}{digits:0>2}")
            }
            None => writer.write_all(text.as_bytes()),
        }
    }

    fn begin_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"[")
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"]")
    }

    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.next(writer, first)
    }

    fn end_array_value<W: ?Sized + io::Write>(&mut self, _writer: &mut W) -> io::Result<()> {
        self.filled = true;
        Ok(())
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"{")
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"}")
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.next(writer, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(self.key.as_bytes())
    }

    fn end_object_value<W: ?Sized + io::Write>(&mut self, _writer: &mut W) -> io::Result<()> {
        self.filled = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
