//! Chat messages: ordinary history is accepted as clients keep it (A1), and brought into the one form that templates know.

use serde_json::{Map, Value};

use super::Input;
use super::fields::Fields;
use crate::api::error::ApiError;
use crate::backend::engine::prompt::Conversation;

/// Most messages of one conversation.
const MAX_MESSAGES: usize = 16 << 10;
/// Roles that the API knows.
const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];

pub(super) fn parse(body: &Map<String, Value>, fields: &Fields<'_>) -> Result<Input, ApiError> {
    let messages = match fields.get("messages") {
        None => return Err(ApiError::invalid("'messages' is missing.", Some("messages"))),
        Some(Value::Array(messages)) if !messages.is_empty() && messages.len() <= MAX_MESSAGES => messages,
        Some(_) => {
            let message = format!("'messages' must be a list of 1 to {MAX_MESSAGES} messages.");
            return Err(ApiError::invalid(&message, Some("messages")));
        }
    };
    let messages = messages.iter().enumerate().map(|(at, m)| message(at, m)).collect::<Result<Vec<_>, _>>()?;
    let tools = tools(fields)?;
    let continue_final = fields.flag("continue_final_message")?.unwrap_or(false);
    let generation_prompt = fields.flag("add_generation_prompt")?;
    if continue_final && generation_prompt == Some(true) {
        let message = "'continue_final_message' and 'add_generation_prompt' cannot both be true.";
        return Err(ApiError::invalid(message, Some("continue_final_message")));
    }
    let mut arguments = match fields.get("chat_template_kwargs") {
        None => Map::new(),
        Some(Value::Object(arguments)) => arguments.clone(),
        Some(_) => {
            let message = "'chat_template_kwargs' must be an object.";
            return Err(ApiError::invalid(message, Some("chat_template_kwargs")));
        }
    };
    if let Some(effort) = fields.text("reasoning_effort")? {
        arguments.entry("reasoning_effort").or_insert_with(|| effort.into());
    }
    let documents = match fields.get("documents") {
        None => None,
        Some(list @ Value::Array(_)) => Some(list.clone()),
        Some(_) => return Err(ApiError::invalid("'documents' must be a list of objects.", Some("documents"))),
    };
    debug_assert!(body.contains_key("messages"));
    let conversation = Conversation {
        messages,
        tools,
        documents,
        arguments,
        add_generation_prompt: generation_prompt.unwrap_or(!continue_final),
        continue_final_message: continue_final,
    };
    let add_special_tokens = fields.flag("add_special_tokens")?.unwrap_or(false);
    Ok(Input::Chat { conversation: Box::new(conversation), add_special_tokens })
}

/// `tools`, as the template gets them.
fn tools(fields: &Fields<'_>) -> Result<Option<Value>, ApiError> {
    match fields.get("tools") {
        None => Ok(None),
        Some(Value::Array(tools)) if tools.is_empty() => Ok(None),
        Some(list @ Value::Array(tools)) if tools.iter().all(is_function) => Ok(Some(list.clone())),
        Some(_) => {
            let message = "'tools' must be a list of {\"type\": \"function\", \"function\": {\"name\": ...}}.";
            Err(ApiError::invalid(message, Some("tools")))
        }
    }
}

fn is_function(tool: &Value) -> bool {
    tool.get("type").and_then(Value::as_str) == Some("function")
        && tool.pointer("/function/name").and_then(Value::as_str).is_some()
}

fn message(at: usize, message: &Value) -> Result<Value, ApiError> {
    let bad = |field: &str, text: &str| {
        let param = format!("messages[{at}]{field}");
        ApiError::invalid(&format!("'{param}' {text}."), Some(&param))
    };
    let Value::Object(message) = message else { return Err(bad("", "must be an object")) };
    let role = message.get("role").and_then(Value::as_str).unwrap_or_default();
    if !ROLES.contains(&role) {
        return Err(bad(".role", &format!("must be one of {}", ROLES.join(", "))));
    }
    let mut shaped = message.clone();
    // Null goes: templates ask whether a field is defined.
    shaped.retain(|_, value| !value.is_null());
    let refusal = || message.get("refusal").filter(|r| r.is_string()).cloned();
    let content = match message.get("content") {
        None | Some(Value::Null) => match role {
            "assistant" => refusal().unwrap_or_else(|| Value::String(String::new())),
            _ => return Err(bad(".content", "is missing")),
        },
        Some(text @ Value::String(_)) => text.clone(),
        Some(Value::Array(parts)) => {
            let parts = parts.iter().enumerate().map(|(index, part)| {
                text_part(part).ok_or_else(|| bad(&format!(".content[{index}]"), "must be a part of type text"))
            });
            Value::Array(parts.collect::<Result<_, _>>()?)
        }
        Some(_) => return Err(bad(".content", "must be a string or a list of parts")),
    };
    shaped.insert("content".into(), content);
    match shaped.get_mut("tool_calls") {
        None => {}
        Some(Value::Array(calls)) => calls.iter_mut().for_each(parse_arguments),
        Some(_) => return Err(bad(".tool_calls", "must be a list")),
    }
    Ok(Value::Object(shaped))
}

/// A text or refusal part in the form that templates know.
fn text_part(part: &Value) -> Option<Value> {
    let text = match part.get("type").and_then(Value::as_str)? {
        "text" | "input_text" | "output_text" => part.get("text")?.as_str()?,
        "refusal" => part.get("refusal")?.as_str()?,
        _ => return None,
    };
    Some(serde_json::json!({"type": "text", "text": text}))
}

/// Arguments travel as text in the API; templates want the object, as the field's servers give it to them.
fn parse_arguments(call: &mut Value) {
    if let Some(arguments) = call.pointer_mut("/function/arguments") {
        let parsed = arguments.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
        if let Some(object @ Value::Object(_)) = parsed {
            *arguments = object;
        }
    }
}
