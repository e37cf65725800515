//! The chat template: messages to the prompt's text, as the reference library (`transformers`) renders it (A9).
//!
//! Real templates are held against the library itself by `tests/template_parity.rs`. Why `minijinja` and not the field's
//! renderer crates: those bring some three hundred crates around the same engine, and parity is a matter of the few filters in
//! `python`.

use std::collections::BTreeMap;

use minijinja::value::Serde;
use minijinja::{Environment, Error, Value};
use serde_json::{Map, Value as Json};

mod python;

use python::environment;

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

/// The names that reasoning goes by in messages, the standard one first.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

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
        let mut messages: Vec<Json> = conversation.messages.iter().map(|m| self.shape(m)).collect();
        let continued = match messages.last_mut() {
            Some(last) if conversation.continue_final_message => Some(tag(last)?),
            _ => None,
        };
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
        match continued {
            Some(content) => cut_after(text, &content),
            None => Ok(text),
        }
    }

    /// The template's source, the variant for tools included.
    pub fn source(&self) -> String {
        [MAIN, TOOL_USE].iter().filter_map(|name| Some(self.env.get_template(name).ok()?.source().to_owned())).collect()
    }

    fn shape(&self, message: &Json) -> Json {
        let Json::Object(mut shaped) = message.clone() else { return message.clone() };
        let reshaped = match (self.content, message.get("content")) {
            (ContentForm::Text, Some(Json::Array(parts))) => Some(Json::String(joined_text(parts))),
            (ContentForm::Parts, Some(Json::String(text))) => Some(serde_json::json!([{"type": "text", "text": text}])),
            _ => None,
        };
        if let Some(content) = reshaped {
            shaped.insert("content".into(), content);
        }
        // Reasoning goes by several names, and templates know one of two: both are there, as in the reference.
        if let Some(reasoning) = REASONING.iter().find_map(|name| shaped.get(*name)).cloned() {
            shaped.entry("thinking").or_insert_with(|| reasoning.clone());
            shaped.insert("reasoning_content".into(), reasoning);
        }
        Json::Object(shaped)
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

/// Stands at the end of the final message's text while the template runs; the reference uses the same.
const CONTINUED: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// Mark where the final message's text ends; that text.
fn tag(last: &mut Json) -> Result<String, RenderError> {
    let text = match last.get_mut("content") {
        Some(Json::String(text)) => Some(text),
        Some(Json::Array(parts)) => parts.iter_mut().rev().find_map(|part| match part.get_mut("text") {
            Some(Json::String(text)) => Some(text),
            _ => None,
        }),
        _ => None,
    };
    let text = text.ok_or_else(|| RenderError("continue_final_message: the final message has no text".into()))?;
    let content = text.clone();
    text.push_str(CONTINUED);
    Ok(content)
}

/// Cut the text after the final message's: the reference's rule for `continue_final_message`.
fn cut_after(mut text: String, content: &str) -> Result<String, RenderError> {
    let end = text.rfind(CONTINUED.trim_end()).filter(|_| text.contains(content.trim()));
    let Some(end) = end else {
        return Err(RenderError("continue_final_message: the template does not show the final message".into()));
    };
    let whole = text.get(end..).is_some_and(|rest| rest.starts_with(CONTINUED));
    text.truncate(end);
    if !whole {
        // The template trims what ends a message.
        text.truncate(text.trim_end().len());
    }
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

#[cfg(test)]
mod tests;
