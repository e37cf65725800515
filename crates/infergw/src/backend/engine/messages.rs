//! Anthropic's messages: a request becomes a conversation as chat completions have it. `told` is the way back.

use serde_json::{Map, Value, json};

use crate::api::error::ApiError;

mod told;

pub(super) use told::teller;

/// Fields of the chat dialect, as they are called here.
pub const RENAMES: &[(&str, &str)] = &[("stop", "stop_sequences"), ("response_format", "output_config.format")];

/// Fields with a meaning that engines cannot be asked for. Empty values pass.
pub const REFUSED: &[&str] = &["container", "context_management", "mcp_servers"];

/// Fields that are accepted and change nothing here, beside those of the dialect.
pub const WITHOUT_EFFECT: &[&str] = &["cache_control"];

/// Fields of the chat dialect that would change the answer's form.
const FOREIGN: [&str; 8] = [
    "n",
    "logprobs",
    "top_logprobs",
    "stop",
    "max_completion_tokens",
    "continue_final_message",
    "stream_options",
    "response_format",
];

/// What a list of content may hold, by role.
const USER_BLOCKS: &str = "text, document (of text) and tool_result";
const ASSISTANT_BLOCKS: &str = "text, thinking, redacted_thinking and tool_use";

fn bad(field: &str, rule: &str) -> ApiError {
    ApiError::invalid(&format!("'{field}' {rule}."), Some(field))
}

/// A request in the chat dialect. Counting tokens needs no `max_tokens`.
///
/// # Errors
/// A 400 that names the field at fault.
pub fn read(mut body: Map<String, Value>, counting: bool) -> Result<Map<String, Value>, ApiError> {
    body.retain(|name, value| !value.is_null() && !FOREIGN.contains(&name.as_str()));
    for name in REFUSED {
        let empty =
            |value: &Value| value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty);
        if body.get(*name).is_some_and(|value| !empty(value)) {
            return Err(bad(name, "is not supported by this model's engine"));
        }
    }
    if !counting && !body.contains_key("max_tokens") {
        return Err(bad("max_tokens", "is required"));
    }
    let mut messages = Vec::new();
    if let Some(system) = body.remove("system") {
        messages.push(json!({"role": "system", "content": texts("system", system)?}));
    }
    let Some(Value::Array(turns)) = body.remove("messages") else { return Err(bad("messages", "must be a list")) };
    if turns.is_empty() {
        return Err(bad("messages", "must not be empty"));
    }
    let mut prefilled = false;
    for (at, turn) in turns.into_iter().enumerate() {
        prefilled = self::turn(at, turn, &mut messages)?;
    }
    if prefilled {
        // The answer goes on where the last turn ends.
        body.insert("continue_final_message".into(), true.into());
    }
    body.insert("messages".into(), messages.into());
    if let Some(stops) = body.remove("stop_sequences") {
        body.insert("stop".into(), stops);
    }
    tools(&mut body)?;
    tool_choice(&mut body)?;
    thinking(&mut body)?;
    output_format(&mut body)?;
    Ok(body)
}

/// One turn; true if it is the assistant's and can be gone on with.
fn turn(at: usize, turn: Value, messages: &mut Vec<Value>) -> Result<bool, ApiError> {
    let field = |rest: &str| format!("messages[{at}]{rest}");
    let Value::Object(mut turn) = turn else { return Err(bad(&field(""), "must be an object")) };
    let content = turn.remove("content").unwrap_or_default();
    match turn.get("role").and_then(Value::as_str) {
        Some("user") => user(&field(".content"), content, messages).map(|()| false),
        Some("assistant") => assistant(&field(".content"), content, messages),
        Some("system") => {
            messages.push(json!({"role": "system", "content": texts(&field(".content"), content)?}));
            Ok(false)
        }
        _ => Err(bad(&field(".role"), "must be user, assistant or system")),
    }
}

/// Text, or a list of text blocks, as parts.
fn texts(field: &str, content: Value) -> Result<Value, ApiError> {
    match content {
        text @ Value::String(_) => Ok(text),
        Value::Array(blocks) => {
            let part = |(index, block)| match text_of(block) {
                Some(text) => Ok(text_part(text)),
                None => Err(bad(&format!("{field}[{index}]"), "must be a block of type text")),
            };
            blocks.iter().enumerate().map(part).collect()
        }
        _ => Err(bad(field, "must be a string or a list of blocks")),
    }
}

/// The text of a text block, or of a document that is text.
fn text_of(block: &Value) -> Option<&str> {
    match block.get("type").and_then(Value::as_str)? {
        "text" => block.get("text")?.as_str(),
        "document" if block.pointer("/source/type")? == "text" => block.pointer("/source/data")?.as_str(),
        _ => None,
    }
}

fn text_part(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

/// A user's turn: results of tools are messages of their own, in their order.
fn user(field: &str, content: Value, messages: &mut Vec<Value>) -> Result<(), ApiError> {
    let blocks = match content {
        text @ Value::String(_) => {
            messages.push(json!({"role": "user", "content": text}));
            return Ok(());
        }
        Value::Array(blocks) if !blocks.is_empty() => blocks,
        _ => return Err(bad(field, "must be a string or a list of blocks")),
    };
    let mut parts = Vec::new();
    let flush = |parts: &mut Vec<Value>, messages: &mut Vec<Value>| {
        if !parts.is_empty() {
            messages.push(json!({"role": "user", "content": std::mem::take(parts)}));
        }
    };
    for (index, block) in blocks.into_iter().enumerate() {
        let field = format!("{field}[{index}]");
        if let Some(text) = text_of(&block) {
            parts.push(text_part(text));
        } else if block.get("type").is_some_and(|kind| kind == "tool_result") {
            flush(&mut parts, messages);
            messages.push(tool_result(&field, block)?);
        } else {
            return Err(bad(&field, &format!("must be one of {USER_BLOCKS}: this model's engine takes text only")));
        }
    }
    flush(&mut parts, messages);
    Ok(())
}

fn tool_result(field: &str, mut block: Value) -> Result<Value, ApiError> {
    let Some(id @ Value::String(_)) = block.get("tool_use_id").cloned() else {
        return Err(bad(&format!("{field}.tool_use_id"), "must be a string"));
    };
    let content = match block.get_mut("content").map(Value::take) {
        None | Some(Value::Null) => json!(""),
        Some(content) => texts(&format!("{field}.content"), content)?,
    };
    Ok(json!({"role": "tool", "tool_call_id": id, "content": content}))
}

/// An assistant's turn; true if it ends with text.
fn assistant(field: &str, content: Value, messages: &mut Vec<Value>) -> Result<bool, ApiError> {
    let blocks = match content {
        text @ Value::String(_) => {
            messages.push(json!({"role": "assistant", "content": text}));
            return Ok(true);
        }
        Value::Array(blocks) => blocks,
        _ => return Err(bad(field, "must be a string or a list of blocks")),
    };
    let (mut text, mut thinking, mut calls) = (String::new(), String::new(), Vec::new());
    for (index, block) in blocks.iter().enumerate() {
        let wrong = || bad(&format!("{field}[{index}]"), &format!("must be a whole block, one of {ASSISTANT_BLOCKS}"));
        let string = |name: &str| block.get(name).and_then(Value::as_str).ok_or_else(wrong);
        match string("type")? {
            "text" => text.push_str(string("text")?),
            "thinking" => thinking.push_str(string("thinking")?),
            "redacted_thinking" => {}
            "tool_use" => {
                let input = block.get("input").filter(|input| input.is_object()).ok_or_else(wrong)?;
                let function = json!({"name": string("name")?, "arguments": input.to_string()});
                calls.push(json!({"id": string("id")?, "type": "function", "function": function}));
            }
            _ => return Err(wrong()),
        }
    }
    let open = calls.is_empty() && !text.is_empty();
    let mut message = json!({"role": "assistant", "content": text});
    if !thinking.is_empty() {
        message["reasoning_content"] = thinking.into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    messages.push(message);
    Ok(open)
}

fn tools(body: &mut Map<String, Value>) -> Result<(), ApiError> {
    let Some(tools) = body.remove("tools") else { return Ok(()) };
    let Value::Array(tools) = tools else { return Err(bad("tools", "must be a list")) };
    let function = |(at, tool): (usize, &Value)| {
        let field = format!("tools[{at}]");
        match tool.get("type").and_then(Value::as_str) {
            None | Some("custom") => {}
            Some(_) => return Err(bad(&format!("{field}.type"), "must be custom: nothing here runs tools")),
        }
        let (Some(Value::String(name)), Some(schema @ Value::Object(_))) = (tool.get("name"), tool.get("input_schema"))
        else {
            return Err(bad(&field, "must have a name and an input_schema"));
        };
        let mut function = json!({"name": name, "parameters": schema});
        for name in ["description", "strict"] {
            if let Some(value) = tool.get(name).filter(|value| !value.is_null()) {
                function[name] = value.clone();
            }
        }
        Ok(json!({"type": "function", "function": function}))
    };
    let tools = tools.iter().enumerate().map(function).collect::<Result<Vec<_>, _>>()?;
    body.insert("tools".into(), tools.into());
    Ok(())
}

fn tool_choice(body: &mut Map<String, Value>) -> Result<(), ApiError> {
    let Some(choice) = body.remove("tool_choice") else { return Ok(()) };
    let chosen = match (choice.get("type").and_then(Value::as_str), choice.get("name")) {
        (Some("auto"), _) => json!("auto"),
        (Some("none"), _) => json!("none"),
        (Some("any"), _) => json!("required"),
        (Some("tool"), Some(Value::String(name))) => json!({"type": "function", "function": {"name": name}}),
        _ => return Err(bad("tool_choice", "must be of type auto, any, none, or tool with its name")),
    };
    body.insert("tool_choice".into(), chosen);
    if choice.get("disable_parallel_tool_use") == Some(&Value::Bool(true)) {
        body.insert("parallel_tool_calls".into(), false.into());
    }
    Ok(())
}

/// Thinking is a switch of the chat template, under the names that templates know.
fn thinking(body: &mut Map<String, Value>) -> Result<(), ApiError> {
    let Some(thinking) = body.remove("thinking") else { return Ok(()) };
    let on = match thinking.get("type").and_then(Value::as_str) {
        Some("enabled" | "adaptive") => true,
        Some("disabled") => false,
        _ => return Err(bad("thinking", "must be of type enabled, adaptive or disabled")),
    };
    let arguments = body.entry("chat_template_kwargs").or_insert_with(|| json!({}));
    if let Some(arguments) = arguments.as_object_mut() {
        for name in ["enable_thinking", "thinking"] {
            arguments.entry(name).or_insert(on.into());
        }
    }
    Ok(())
}

/// `output_config`: an effort, and a format as a JSON schema.
fn output_format(body: &mut Map<String, Value>) -> Result<(), ApiError> {
    let (config, older) = (body.remove("output_config"), body.remove("output_format"));
    let mut config = match config {
        None => Map::new(),
        Some(Value::Object(config)) => config,
        Some(_) => return Err(bad("output_config", "must be an object")),
    };
    match config.remove("effort") {
        None | Some(Value::Null) => {}
        Some(effort @ Value::String(_)) => {
            body.insert("reasoning_effort".into(), effort);
        }
        Some(_) => return Err(bad("output_config.effort", "must be a string")),
    }
    let (field, format) = match (older, config.remove("format")) {
        (Some(format), _) => ("output_format", format),
        (None, Some(Value::Null) | None) => return Ok(()),
        (None, Some(format)) => ("output_config.format", format),
    };
    match (format.get("type").and_then(Value::as_str), format.get("schema")) {
        (Some("json_schema"), Some(schema @ Value::Object(_))) => {
            let schema = json!({"type": "json_schema", "json_schema": {"name": "output", "schema": schema}});
            body.insert("response_format".into(), schema);
            Ok(())
        }
        _ => Err(bad(field, "must be of type json_schema with a schema")),
    }
}

#[cfg(test)]
mod tests;
