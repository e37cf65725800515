//! The input of a response: items become messages. What the assistant said, thought and called in one go is one message.

use serde_json::{Value, json};

use super::bad;
use crate::api::error::ApiError;

/// Add the input's messages.
pub(super) fn read(input: Option<Value>, messages: &mut Vec<Value>) -> Result<(), ApiError> {
    let items = match input {
        Some(text @ Value::String(_)) => {
            messages.push(json!({"role": "user", "content": text}));
            return Ok(());
        }
        Some(Value::Array(items)) if !items.is_empty() => items,
        _ => return Err(bad("input", "must be a string or a list of items")),
    };
    let mut turn = Turn::default();
    for (at, item) in items.iter().enumerate() {
        let field = format!("input[{at}]");
        let wrong = |rest: &str| bad(&format!("{field}{rest}"), "must be a string");
        let string = |name: &str| item.get(name).and_then(Value::as_str).ok_or_else(|| wrong(&format!(".{name}")));
        match item.get("type").and_then(Value::as_str) {
            None | Some("message") => {
                let content = content(&format!("{field}.content"), item.get("content"))?;
                match string("role")? {
                    "assistant" => turn.say(plain(&content), messages),
                    role @ ("user" | "system" | "developer") => {
                        turn.end(messages);
                        messages.push(json!({"role": role, "content": content}));
                    }
                    _ => return Err(bad(&format!("{field}.role"), "must be user, assistant, system or developer")),
                }
            }
            Some("reasoning") => turn.think(&thoughts(item), messages),
            Some("function_call") => {
                let function = json!({"name": string("name")?, "arguments": string("arguments")?});
                turn.calls.push(json!({"id": string("call_id")?, "type": "function", "function": function}));
            }
            Some("function_call_output") => {
                turn.end(messages);
                let output = content(&format!("{field}.output"), item.get("output"))?;
                messages.push(json!({"role": "tool", "tool_call_id": string("call_id")?, "content": output}));
            }
            Some(_) => {
                let known = "message, reasoning, function_call and function_call_output";
                return Err(bad(&format!("{field}.type"), &format!("must be one of {known}")));
            }
        }
    }
    turn.end(messages);
    Ok(())
}

/// A turn of the assistant's, which is several items here and one message there.
#[derive(Default)]
struct Turn {
    reasoning: String,
    text: Option<String>,
    calls: Vec<Value>,
}

impl Turn {
    fn think(&mut self, text: &str, messages: &mut Vec<Value>) {
        // Who thinks after speaking begins anew.
        if self.text.is_some() || !self.calls.is_empty() {
            self.end(messages);
        }
        self.reasoning.push_str(text);
    }

    fn say(&mut self, text: String, messages: &mut Vec<Value>) {
        if self.text.is_some() || !self.calls.is_empty() {
            self.end(messages);
        }
        self.text = Some(text);
    }

    fn end(&mut self, messages: &mut Vec<Value>) {
        let Self { reasoning, text, calls } = std::mem::take(self);
        if text.is_none() && calls.is_empty() {
            return;
        }
        let mut message = json!({"role": "assistant", "content": text.unwrap_or_default()});
        if !reasoning.is_empty() {
            message["reasoning_content"] = reasoning.into();
        }
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        messages.push(message);
    }
}

/// Text, or a list of parts of text.
fn content(field: &str, content: Option<&Value>) -> Result<Value, ApiError> {
    match content {
        Some(text @ Value::String(_)) => Ok(text.clone()),
        Some(Value::Array(parts)) => {
            let part = |(at, part): (usize, &Value)| match text_of(part) {
                Some(text) => Ok(json!({"type": "text", "text": text})),
                None => Err(bad(&format!("{field}[{at}]"), "must be text: this model's engine takes nothing else")),
            };
            parts.iter().enumerate().map(part).collect()
        }
        _ => Err(bad(field, "must be a string or a list of parts")),
    }
}

fn text_of(part: &Value) -> Option<&str> {
    match part.get("type").and_then(Value::as_str)? {
        "input_text" | "output_text" | "text" => part.get("text")?.as_str(),
        "refusal" => part.get("refusal")?.as_str(),
        _ => None,
    }
}

/// The joined text of what [`content`] gives.
fn plain(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        _ => String::new(),
    }
}

/// The text of a reasoning item; its summary where the text is not there.
fn thoughts(item: &Value) -> String {
    let texts = |name: &str| -> String {
        item[name].as_array().into_iter().flatten().filter_map(|part| part["text"].as_str()).collect()
    };
    let content = texts("content");
    if content.is_empty() { texts("summary") } else { content }
}
