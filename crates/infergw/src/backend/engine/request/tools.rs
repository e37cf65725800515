//! What a request says about calls and reasoning. A call that must be made is a constraint on the answer: a JSON schema made of
//! the tools' own.

use serde_json::{Map, Value, json};

use super::constraint::{Constraint, Grammar};
use super::fields::Fields;
use super::sampling::Sampling;
use crate::api::error::ApiError;
use crate::backend::engine::parse::{Shown, Wanted, Wishes};

/// Read the wishes; the constraint goes into `sampling`.
pub(super) fn parse(fields: &Fields<'_>, sampling: &mut Sampling) -> Result<Wishes, ApiError> {
    let shown = match (fields.flag("separate_reasoning")?, fields.flag("include_reasoning")?) {
        (_, Some(false)) => Shown::Dropped,
        (Some(false), _) => Shown::Merged,
        _ => Shown::Apart,
    };
    let only_first = fields.flag("parallel_tool_calls")? == Some(false);
    let mut functions: Vec<(String, Value)> =
        fields.get("tools").and_then(Value::as_array).into_iter().flatten().filter_map(function).collect();
    let bad = |message: &str| ApiError::invalid(message, Some("tool_choice"));
    let auto = if functions.is_empty() { Wanted::None } else { Wanted::Auto };
    let wanted = match fields.get("tool_choice") {
        None => auto,
        Some(Value::String(choice)) => match choice.as_str() {
            "auto" => auto,
            "none" => Wanted::None,
            "required" if !functions.is_empty() => Wanted::Required,
            "required" => return Err(bad("'tool_choice' demands a call, and there are no 'tools'.")),
            _ => return Err(bad("'tool_choice' must be none, auto, required or a function's name.")),
        },
        Some(choice) => match choice.pointer("/function/name").and_then(Value::as_str) {
            Some(name) if choice.get("type").is_some_and(|kind| kind == "function") => {
                functions.retain(|(known, _)| known == name);
                if functions.is_empty() {
                    return Err(bad("'tool_choice' names a function that is not in 'tools'."));
                }
                Wanted::Named
            }
            _ => {
                return Err(ApiError::new(
                    http::StatusCode::BAD_REQUEST,
                    "invalid_request_error",
                    "'tool_choice' can be none, auto, required or a function on this model's engine.",
                    Some("tool_choice"),
                    Some("unsupported_parameter"),
                ));
            }
        },
    };
    if let Some(schema) = constraint(wanted, &functions, only_first) {
        if sampling.constraint.is_some() {
            return Err(bad("'tool_choice' and another constraint on the answer cannot be combined."));
        }
        let grammar = Grammar::JsonSchema(schema.to_string());
        sampling.constraint = Some(Constraint { field: "tool_choice", grammar });
    }
    Ok(Wishes { wanted, functions, only_first, shown })
}

/// A function's name and the schema of its parameters.
fn function(tool: &Value) -> Option<(String, Value)> {
    let name = tool.pointer("/function/name")?.as_str()?.to_owned();
    let schema = tool.pointer("/function/parameters").filter(|schema| schema.is_object());
    Some((name, schema.cloned().unwrap_or_else(|| json!({"type": "object"}))))
}

/// The schema of an answer that must be a call.
fn constraint(wanted: Wanted, functions: &[(String, Value)], only_first: bool) -> Option<Value> {
    match wanted {
        Wanted::None | Wanted::Auto => None,
        Wanted::Named => functions.first().map(|(_, schema)| schema.clone()),
        Wanted::Required => {
            // References in a schema count from its root: definitions move there.
            let mut definitions = Map::new();
            let call = |(name, schema): &(String, Value)| {
                let mut schema = schema.clone();
                for key in ["$defs", "definitions"] {
                    if let Some(Value::Object(own)) = schema.as_object_mut().and_then(|s| s.shift_remove(key)) {
                        let all = definitions.entry(key).or_insert_with(|| json!({}));
                        if let Some(all) = all.as_object_mut() {
                            all.extend(own);
                        }
                    }
                }
                json!({
                    "type": "object",
                    "properties": {"name": {"type": "string", "enum": [name]}, "parameters": schema},
                    "required": ["name", "parameters"],
                })
            };
            let calls: Vec<Value> = functions.iter().map(call).collect();
            let mut schema = json!({"type": "array", "minItems": 1, "items": {"type": "object", "anyOf": calls}});
            if only_first {
                schema["maxItems"] = json!(1);
            }
            if let Some(schema) = schema.as_object_mut() {
                schema.extend(definitions);
            }
            Some(schema)
        }
    }
}
