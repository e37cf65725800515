//! OpenAI's responses, without state on the server: a request becomes a conversation as chat completions have it.
//! `told` is the way back.

use serde_json::{Map, Value, json};

use crate::api::error::ApiError;

mod input;
mod item;
mod told;

/// Fields of the chat dialect, as they are called here.
pub const RENAMES: &[(&str, &str)] =
    &[("messages", "input"), ("max_tokens", "max_output_tokens"), ("response_format", "text.format")];

/// Fields that need state on the server, or servers behind it. Their empty values pass.
pub const REFUSED: &[&str] =
    &["background", "context_management", "conversation", "moderation", "previous_response_id", "prompt"];

/// Fields that are accepted and change nothing here, beside those of the dialect.
pub const WITHOUT_EFFECT: &[&str] = &["max_tool_calls"];

/// Fields of the chat dialect that would change the answer's form, and those that are read into others.
const FOREIGN: [&str; 9] = [
    "n",
    "logprobs",
    "messages",
    "max_tokens",
    "max_completion_tokens",
    "continue_final_message",
    "stream_options",
    "response_format",
    "max_tool_calls",
];

/// What the answer repeats of its request.
const REPEATED: [(&str, &str); 16] = [
    ("instructions", "null"),
    ("max_output_tokens", "null"),
    ("max_tool_calls", "null"),
    ("metadata", "{}"),
    ("parallel_tool_calls", "true"),
    ("prompt_cache_key", "null"),
    ("reasoning", r#"{"effort":null,"summary":null}"#),
    ("safety_identifier", "null"),
    ("service_tier", "null"),
    ("temperature", "null"),
    ("text", r#"{"format":{"type":"text"}}"#),
    ("tool_choice", r#""auto""#),
    ("tools", "[]"),
    ("top_logprobs", "0"),
    ("top_p", "null"),
    ("user", "null"),
];

/// What an answer needs to know of its request.
#[derive(Debug)]
pub struct Responses {
    /// The fields that are repeated.
    repeated: Map<String, Value>,
}

fn bad(field: &str, rule: &str) -> ApiError {
    ApiError::invalid(&format!("'{field}' {rule}."), Some(field))
}

/// A request in the chat dialect.
///
/// # Errors
/// A 400 that names the field at fault.
pub fn read(mut body: Map<String, Value>) -> Result<(Responses, Map<String, Value>), ApiError> {
    body.retain(|_, value| !value.is_null());
    for name in REFUSED {
        let Some(value) = body.remove(*name) else { continue };
        let empty = value == json!(false) || value.as_array().is_some_and(Vec::is_empty);
        if !empty {
            return Err(unsupported(name, "needs state that this gateway does not keep"));
        }
    }
    if body.remove("truncation").is_some_and(|truncation| truncation != "disabled") {
        return Err(unsupported("truncation", "can only be disabled"));
    }
    let mut repeated: Map<String, Value> = REPEATED
        .iter()
        .map(|(name, default)| {
            let given = body.get(*name).cloned();
            ((*name).to_owned(), given.unwrap_or_else(|| serde_json::from_str(default).unwrap_or_default()))
        })
        .collect();
    repeated.insert("store".into(), false.into());
    body.retain(|name, _| !FOREIGN.contains(&name.as_str()));
    let mut messages = Vec::new();
    match body.remove("instructions") {
        None => {}
        Some(text @ Value::String(_)) => messages.push(json!({"role": "system", "content": text})),
        Some(_) => return Err(bad("instructions", "must be a string")),
    }
    input::read(body.remove("input"), &mut messages)?;
    body.insert("messages".into(), messages.into());
    if let Some(most) = body.remove("max_output_tokens") {
        body.insert("max_tokens".into(), most);
    }
    logprobs(&mut body)?;
    text(&mut body)?;
    reasoning(&mut body)?;
    tools(&mut body)?;
    tool_choice(&mut body)?;
    Ok((Responses { repeated }, body))
}

fn unsupported(name: &str, rule: &str) -> ApiError {
    let message = format!("'{name}' {rule}.");
    let code = Some("unsupported_parameter");
    ApiError::new(http::StatusCode::BAD_REQUEST, "invalid_request_error", &message, Some(name), code)
}

/// `include` asks for log probabilities; `top_logprobs` does too.
fn logprobs(body: &mut Map<String, Value>) -> Result<(), ApiError> {
    let mut wanted = body.get("top_logprobs").is_some_and(|top| *top != json!(0));
    match body.remove("include") {
        None => {}
        Some(Value::Array(names)) => {
            for name in names {
                match name.as_str() {
                    Some("message.output_text.logprobs") => wanted = true,
                    // There is none, and nobody who would read it: reasoning comes as text.
                    Some("reasoning.encrypted_content") => {}
                    _ => return Err(unsupported("include", "asks for something that is not there")),
                }
            }
        }
        Some(_) => return Err(bad("include", "must be a list")),
    }
    if wanted {
        body.insert("logprobs".into(), true.into());
    } else {
        body.remove("top_logprobs");
    }
    Ok(())
}

fn text(body: &mut Map<String, Value>) -> Result<(), ApiError> {
    let Some(text) = body.remove("text") else { return Ok(()) };
    let Value::Object(mut text) = text else { return Err(bad("text", "must be an object")) };
    if let Some(verbosity) = text.remove("verbosity") {
        body.insert("verbosity".into(), verbosity);
    }
    let mut format = match text.remove("format") {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::Object(format)) => format,
        Some(_) => return Err(bad("text.format", "must be an object")),
    };
    let kind = format.get("type").cloned();
    let format = match kind.as_ref().and_then(Value::as_str) {
        // Name, schema and strictness stand one level deeper there.
        Some("json_schema") => {
            format.remove("type");
            json!({"type": "json_schema", "json_schema": format})
        }
        _ => Value::Object(format),
    };
    body.insert("response_format".into(), format);
    Ok(())
}

fn reasoning(body: &mut Map<String, Value>) -> Result<(), ApiError> {
    match body.remove("reasoning") {
        None => Ok(()),
        Some(Value::Object(mut reasoning)) => match reasoning.remove("effort") {
            None | Some(Value::Null) => Ok(()),
            Some(effort @ Value::String(_)) => {
                body.insert("reasoning_effort".into(), effort);
                Ok(())
            }
            Some(_) => Err(bad("reasoning.effort", "must be a string")),
        },
        Some(_) => Err(bad("reasoning", "must be an object")),
    }
}

fn tools(body: &mut Map<String, Value>) -> Result<(), ApiError> {
    let Some(tools) = body.remove("tools") else { return Ok(()) };
    let Value::Array(tools) = tools else { return Err(bad("tools", "must be a list")) };
    let function = |(at, tool)| match tool {
        Value::Object(mut function) if function.get("type").is_some_and(|kind| kind == "function") => {
            function.retain(|name, value| name != "type" && !value.is_null());
            Ok(json!({"type": "function", "function": function}))
        }
        _ => Err(bad(&format!("tools[{at}].type"), "must be function: nothing here runs tools")),
    };
    let tools = tools.into_iter().enumerate().map(function).collect::<Result<Vec<_>, _>>()?;
    body.insert("tools".into(), tools.into());
    Ok(())
}

fn tool_choice(body: &mut Map<String, Value>) -> Result<(), ApiError> {
    let Some(Value::Object(choice)) = body.get("tool_choice") else { return Ok(()) };
    match (choice.get("type").and_then(Value::as_str), choice.get("name")) {
        (Some("function"), Some(Value::String(name))) => {
            let named = json!({"type": "function", "function": {"name": name}});
            body.insert("tool_choice".into(), named);
            Ok(())
        }
        _ => Err(bad("tool_choice", "must be auto, none, required, or of type function with its name")),
    }
}

#[cfg(test)]
mod tests;
