//! What an answer must look like: the fields of OpenAI, vLLM and SGLang that say it, brought to the four kinds of the wire.
//! One at most. What can be judged without a compiler is judged here; the rest is the engine's to refuse, and the field that it
//! came from is kept for that answer.

use serde_json::Value;

use super::fields::Fields;
use crate::api::error::ApiError;

/// Largest grammar or schema, in bytes.
const MAX_GRAMMAR: usize = 256 << 10;
/// Most texts to choose from.
const MAX_CHOICES: usize = 1024;
/// Any JSON object.
const ANY_OBJECT: &str = r#"{"type":"object"}"#;

/// A constraint on the answer, and where it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Constraint {
    /// The field of the dialect that asked for it.
    pub field: &'static str,
    /// What it says.
    pub grammar: Grammar,
}

/// What a constraint says, for the engine's grammar backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Grammar {
    /// A JSON schema, as text.
    JsonSchema(String),
    /// A regular expression.
    Regex(String),
    /// A grammar in EBNF.
    Ebnf(String),
    /// A structural tag, as JSON text.
    StructuralTag(String),
}

type Make = fn(&'static str, &Value) -> Result<Option<Grammar>, ApiError>;

/// Fields with a constraint of their own: vLLM's older ones, SGLang's.
const NAMED: [(&str, Make); 10] = [
    ("guided_json", json_schema),
    ("guided_json_object", json_object),
    ("guided_regex", regex),
    ("guided_grammar", ebnf),
    ("guided_choice", choice),
    ("json_schema", json_schema),
    ("regex", regex),
    ("ebnf", ebnf),
    ("structural_tag", structural_tag),
    ("response_format", response_format),
];

/// What vLLM's `structured_outputs` may hold.
const STRUCTURED: [(&str, Make); 6] = [
    ("json", json_schema),
    ("json_object", json_object),
    ("regex", regex),
    ("grammar", ebnf),
    ("choice", choice),
    ("structural_tag", structural_tag),
];

/// Further fields there, which choose how a backend works, not what it allows.
const HINTS: [&str; 4] = ["backend", "disable_additional_properties", "disable_any_whitespace", "disable_fallback"];

/// `response_format`, vLLM's `structured_outputs` and `guided_*`, SGLang's `json_schema`, `regex`, `ebnf`: one at most.
pub(super) fn parse(fields: &Fields<'_>) -> Result<Option<Constraint>, ApiError> {
    let mut found: Vec<Constraint> = Vec::new();
    for (field, make) in NAMED {
        if let Some(value) = fields.get(field) {
            found.extend(make(field, value)?.map(|grammar| Constraint { field, grammar }));
        }
    }
    let field = "structured_outputs";
    match fields.get("structured_outputs") {
        None => {}
        Some(Value::Object(inner)) => {
            for (name, value) in inner.iter().filter(|(_, value)| !value.is_null()) {
                if let Some((_, make)) = STRUCTURED.iter().find(|(known, _)| known == name) {
                    found.extend(make(field, value)?.map(|grammar| Constraint { field, grammar }));
                } else if !HINTS.contains(&name.as_str()) {
                    return Err(bad(field, &format!("has a field '{name}', which is not supported")));
                }
            }
        }
        Some(_) => return Err(bad(field, "must be an object")),
    }
    match found.as_slice() {
        [] | [_] => Ok(found.pop()),
        [one, other, ..] if one.field == other.field => Err(bad(one.field, "may hold one constraint only")),
        [one, other, ..] => {
            let message = format!("'{}' and '{}' cannot be combined.", one.field, other.field);
            Err(ApiError::invalid(&message, Some(other.field)))
        }
    }
}

fn bad(field: &str, rule: &str) -> ApiError {
    ApiError::invalid(&format!("'{field}' {rule}."), Some(field))
}

/// A schema as an object, or as its text.
fn json_schema(field: &'static str, value: &Value) -> Result<Option<Grammar>, ApiError> {
    let schema = match value {
        Value::String(text) => serde_json::from_str(text).unwrap_or_default(),
        value => value.clone(),
    };
    if !schema.is_object() && schema != Value::Bool(true) {
        return Err(bad(field, "must be a JSON schema, as an object or as its text"));
    }
    bounded(field, schema.to_string()).map(|text| Some(Grammar::JsonSchema(text)))
}

fn json_object(field: &'static str, value: &Value) -> Result<Option<Grammar>, ApiError> {
    match value {
        Value::Bool(wanted) => Ok(wanted.then(|| Grammar::JsonSchema(ANY_OBJECT.into()))),
        _ => Err(bad(field, "must be true or false")),
    }
}

fn regex(field: &'static str, value: &Value) -> Result<Option<Grammar>, ApiError> {
    text(field, value).map(|text| Some(Grammar::Regex(text)))
}

fn ebnf(field: &'static str, value: &Value) -> Result<Option<Grammar>, ApiError> {
    text(field, value).map(|text| Some(Grammar::Ebnf(text)))
}

/// One of a list of texts, as a grammar: there a text stands as it is, with JSON's escapes.
fn choice(field: &'static str, value: &Value) -> Result<Option<Grammar>, ApiError> {
    let rule = || bad(field, &format!("must be a list of 1 to {MAX_CHOICES} texts, none of them empty"));
    let texts = match value {
        Value::Array(texts) if (1..=MAX_CHOICES).contains(&texts.len()) => texts,
        _ => return Err(rule()),
    };
    if !texts.iter().all(|text| text.as_str().is_some_and(|text| !text.is_empty())) {
        return Err(rule());
    }
    let texts: Vec<String> = texts.iter().map(Value::to_string).collect();
    bounded(field, format!("root ::= {}", texts.join(" | "))).map(|text| Some(Grammar::Ebnf(text)))
}

fn structural_tag(field: &'static str, value: &Value) -> Result<Option<Grammar>, ApiError> {
    let tag = match value {
        Value::String(text) => serde_json::from_str(text).unwrap_or_default(),
        value => value.clone(),
    };
    if !tag.is_object() {
        return Err(bad(field, "must be a structural tag, as an object or as its text"));
    }
    bounded(field, tag.to_string()).map(|text| Some(Grammar::StructuralTag(text)))
}

fn response_format(field: &'static str, format: &Value) -> Result<Option<Grammar>, ApiError> {
    match format.get("type").and_then(Value::as_str) {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(Grammar::JsonSchema(ANY_OBJECT.into()))),
        Some("json_schema") => match format.pointer("/json_schema/schema") {
            Some(schema @ Value::Object(_)) => json_schema(field, schema),
            _ => Err(ApiError::invalid("'response_format.json_schema.schema' must be an object.", Some(field))),
        },
        Some("structural_tag") => structural_tag(field, format),
        _ => Err(ApiError::invalid(
            "'response_format.type' must be text, json_object, json_schema or structural_tag.",
            Some(field),
        )),
    }
}

fn text(field: &str, value: &Value) -> Result<String, ApiError> {
    match value {
        Value::String(text) if !text.is_empty() => bounded(field, text.clone()),
        _ => Err(bad(field, "must be a string that is not empty")),
    }
}

fn bounded(field: &str, text: String) -> Result<String, ApiError> {
    if text.len() > MAX_GRAMMAR {
        return Err(bad(field, &format!("is larger than the limit of {MAX_GRAMMAR} bytes")));
    }
    Ok(text)
}
