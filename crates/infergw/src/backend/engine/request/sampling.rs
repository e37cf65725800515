//! How tokens are chosen and when an answer ends: the ranges of OpenAI, vLLM and the engine's own refusals (A6).

use serde_json::Value;

use super::fields::Fields;
use crate::api::error::ApiError;

/// Most entries of `logit_bias`.
const MAX_BIASES: usize = 1024;
/// Largest `top_k` that engines take.
const MAX_TOP_K: i64 = 127;
/// Most stop tokens of a request.
const MAX_STOP_TOKENS: usize = 16;
/// Largest grammar or schema, in bytes.
const MAX_GRAMMAR: usize = 256 << 10;

/// Sampling values; `None` is the model's or the engine's default.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sampling {
    /// The explicit limit on generated tokens (A3).
    pub max_tokens: Option<i64>,
    /// The field that `max_tokens` came from, for errors.
    pub max_tokens_field: &'static str,
    /// Tokens before stop conditions apply.
    pub min_tokens: i64,
    /// Temperature, 0 to 2.
    pub temperature: Option<f64>,
    /// Nucleus mass, above 0.
    pub top_p: Option<f64>,
    /// Most likely tokens to choose from; -1 is all.
    pub top_k: Option<i64>,
    /// Least relative probability.
    pub min_p: Option<f64>,
    /// Frequency penalty.
    pub frequency_penalty: f64,
    /// Presence penalty.
    pub presence_penalty: f64,
    /// Repetition penalty.
    pub repetition_penalty: Option<f64>,
    /// Seed.
    pub seed: Option<i64>,
    /// Biases by token id.
    pub logit_bias: Vec<(u32, f64)>,
    /// Further tokens that end the answer.
    pub stop_token_ids: Vec<u32>,
    /// Go on past the model's end tokens.
    pub ignore_eos: bool,
    /// What the answer must look like.
    pub grammar: Option<Grammar>,
}

/// A constraint on the answer, for the engine's grammar backend.
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

impl Sampling {
    pub(super) fn parse(fields: &Fields<'_>, vocabulary: usize) -> Result<Self, ApiError> {
        let completion = fields.int("max_completion_tokens", 1..=i64::MAX)?;
        let max = fields.int("max_tokens", 1..=i64::MAX)?;
        Ok(Self {
            max_tokens: completion.or(max),
            max_tokens_field: if completion.is_some() { "max_completion_tokens" } else { "max_tokens" },
            min_tokens: fields.int("min_tokens", 0..=i64::MAX)?.unwrap_or(0),
            temperature: fields.number("temperature", 0.0..=2.0)?,
            top_p: fields.positive("top_p", 1.0)?,
            top_k: top_k(fields)?,
            min_p: fields.number("min_p", 0.0..=1.0)?,
            frequency_penalty: fields.number("frequency_penalty", -2.0..=2.0)?.unwrap_or(0.0),
            presence_penalty: fields.number("presence_penalty", -2.0..=2.0)?.unwrap_or(0.0),
            repetition_penalty: fields.positive("repetition_penalty", 2.0)?,
            seed: fields.int("seed", i64::MIN..=i64::MAX)?,
            logit_bias: logit_bias(fields, vocabulary)?,
            stop_token_ids: stop_token_ids(fields, vocabulary)?,
            ignore_eos: fields.flag("ignore_eos")?.unwrap_or(false),
            grammar: grammar(fields)?,
        })
    }
}

/// -1 and 0 both mean all tokens, as in vLLM.
fn top_k(fields: &Fields<'_>) -> Result<Option<i64>, ApiError> {
    Ok(fields.int("top_k", -1..=MAX_TOP_K)?.map(|k| if k == 0 { -1 } else { k }))
}

fn logit_bias(fields: &Fields<'_>, vocabulary: usize) -> Result<Vec<(u32, f64)>, ApiError> {
    let bad = |message: &str| ApiError::invalid(message, Some("logit_bias"));
    let entries = match fields.get("logit_bias") {
        None => return Ok(Vec::new()),
        Some(Value::Object(entries)) => entries,
        Some(_) => return Err(bad("'logit_bias' must be an object of token ids and numbers.")),
    };
    if entries.len() > MAX_BIASES {
        return Err(bad(&format!("'logit_bias' may have at most {MAX_BIASES} entries.")));
    }
    let bias = |(key, value): (&String, &Value)| {
        let id = key.parse::<u32>().ok().filter(|&id| (id as usize) < vocabulary)?;
        let bias = value.as_f64().filter(|bias| (-100.0..=100.0).contains(bias))?;
        Some((id, bias))
    };
    entries.iter().map(bias).collect::<Option<_>>().ok_or_else(|| {
        bad(&format!(
            "'logit_bias' maps token ids from 0 to {} to numbers between -100 and 100.",
            vocabulary.saturating_sub(1)
        ))
    })
}

fn stop_token_ids(fields: &Fields<'_>, vocabulary: usize) -> Result<Vec<u32>, ApiError> {
    let bad = || {
        let message = format!(
            "'stop_token_ids' must be a list of at most {MAX_STOP_TOKENS} token ids from 0 to {}.",
            vocabulary.saturating_sub(1)
        );
        ApiError::invalid(&message, Some("stop_token_ids"))
    };
    match fields.get("stop_token_ids") {
        None => Ok(Vec::new()),
        Some(Value::Array(ids)) if ids.len() <= MAX_STOP_TOKENS => {
            let id = |id: &Value| id.as_u64().filter(|&id| id < vocabulary as u64).map(|id| id as u32);
            ids.iter().map(id).collect::<Option<_>>().ok_or_else(bad)
        }
        Some(_) => Err(bad()),
    }
}

/// `response_format`, vLLM's `structured_outputs` and `guided_*`, SGLang's `json_schema`, `regex`, `ebnf`: one at most.
fn grammar(fields: &Fields<'_>) -> Result<Option<Grammar>, ApiError> {
    let mut found: Vec<(&str, Grammar)> = Vec::new();
    if let Some(grammar) = response_format(fields)? {
        found.push(("response_format", grammar));
    }
    if let Some(outer) = fields.get("structured_outputs") {
        let Value::Object(inner) = outer else {
            return Err(ApiError::invalid("'structured_outputs' must be an object.", Some("structured_outputs")));
        };
        let inner = Fields::new(inner);
        for (name, make) in KINDS {
            if let Some(value) = inner.get(name) {
                found.push(("structured_outputs", make(text_of("structured_outputs", value)?)));
            }
        }
        if inner.get("choice").is_some() {
            return Err(ApiError::invalid("'structured_outputs.choice' is not supported.", Some("structured_outputs")));
        }
    }
    for (name, make) in NAMED {
        if let Some(value) = fields.get(name) {
            found.push((name, make(text_of(name, value)?)));
        }
    }
    if found.len() > 1 {
        let message = format!("'{}' and '{}' cannot be combined.", found[0].0, found[1].0);
        return Err(ApiError::invalid(&message, Some(found[1].0)));
    }
    Ok(found.pop().map(|(_, grammar)| grammar))
}

type Make = fn(String) -> Grammar;

const KINDS: [(&str, Make); 4] = [
    ("json", Grammar::JsonSchema),
    ("regex", Grammar::Regex),
    ("grammar", Grammar::Ebnf),
    ("structural_tag", Grammar::StructuralTag),
];

const NAMED: [(&str, Make); 7] = [
    ("guided_json", Grammar::JsonSchema),
    ("guided_regex", Grammar::Regex),
    ("guided_grammar", Grammar::Ebnf),
    ("json_schema", Grammar::JsonSchema),
    ("regex", Grammar::Regex),
    ("ebnf", Grammar::Ebnf),
    ("structural_tag", Grammar::StructuralTag),
];

fn response_format(fields: &Fields<'_>) -> Result<Option<Grammar>, ApiError> {
    let bad = |message: &str| ApiError::invalid(message, Some("response_format"));
    let Some(format) = fields.get("response_format") else { return Ok(None) };
    match format.get("type").and_then(Value::as_str) {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(Grammar::JsonSchema(r#"{"type":"object"}"#.into()))),
        Some("json_schema") => match format.pointer("/json_schema/schema") {
            Some(schema @ Value::Object(_)) => Ok(Some(Grammar::JsonSchema(text_of("response_format", schema)?))),
            _ => Err(bad("'response_format.json_schema.schema' must be an object.")),
        },
        Some("structural_tag") => Ok(Some(Grammar::StructuralTag(text_of("response_format", format)?))),
        _ => Err(bad("'response_format.type' must be text, json_object, json_schema or structural_tag.")),
    }
}

/// A grammar's text: strings as they are, objects as JSON.
fn text_of(name: &str, value: &Value) -> Result<String, ApiError> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Object(_) | Value::Bool(true) => value.to_string(),
        _ => return Err(ApiError::invalid(&format!("'{name}' must be a string or an object."), Some(name))),
    };
    if text.len() > MAX_GRAMMAR {
        let message = format!("'{name}' is larger than the limit of {MAX_GRAMMAR} bytes.");
        return Err(ApiError::invalid(&message, Some(name)));
    }
    Ok(text)
}
