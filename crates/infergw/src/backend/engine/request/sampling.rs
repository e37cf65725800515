//! How tokens are chosen and when an answer ends: the ranges of OpenAI, vLLM and the engine's own refusals (A6).

use serde_json::Value;

use super::constraint::{self, Constraint};
use super::fields::Fields;
use crate::api::error::ApiError;

/// Most entries of `logit_bias`.
const MAX_BIASES: usize = 1024;
/// Largest `top_k` that engines take.
const MAX_TOP_K: i64 = 127;
/// Most stop tokens of a request.
const MAX_STOP_TOKENS: usize = 16;

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
    pub constraint: Option<Constraint>,
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
            constraint: constraint::parse(fields)?,
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
