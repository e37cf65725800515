//! A prepared request on the engine's wire: does it fit the context (A5), and what the engine is told.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use ts_wire::{Dict, SamplingParams, TokenizedGenerateReqInput};

use super::model::TextModel;
use super::prepare::{Prepared, PromptTokens, param_of};
use super::request::{Dialect, Grammar, Sampling};
use crate::api::error::ApiError;

/// Most stop tokens that an engine takes, the model's end tokens included.
const MAX_STOP_IDS: usize = 16;
/// Most prompt tokens where no context length is known.
const MAX_PROMPT: usize = 1 << 24;

/// Mints ids for the wire: unique for the gateway's life, and not those of an earlier gateway that an engine remembers (D4).
#[derive(Debug)]
pub struct IdMint {
    prefix: String,
    next: AtomicU64,
}

impl Default for IdMint {
    fn default() -> Self {
        Self { prefix: format!("{:016x}", rand::random::<u64>()), next: AtomicU64::new(0) }
    }
}

impl IdMint {
    /// The next id.
    pub fn mint(&self) -> String {
        format!("{}-{:x}", self.prefix, self.next.fetch_add(1, Ordering::Relaxed))
    }
}

/// The tokens that end an answer and that the engine is told (U6).
///
/// # Errors
/// More than the engine takes.
pub fn ends(model: &TextModel, sampling: &Sampling) -> Result<Arc<[u32]>, ApiError> {
    let own = sampling.stop_token_ids.iter().copied();
    // An engine that is told to ignore end tokens must not be told what they are: it may take them for stop tokens.
    let eos = model.eos.iter().copied().filter(|_| !sampling.ignore_eos);
    let mut ends: Vec<u32> = eos.chain(own).collect();
    ends.sort_unstable();
    ends.dedup();
    if ends.len() > MAX_STOP_IDS {
        let room = MAX_STOP_IDS.saturating_sub(model.eos.len());
        let message = format!("'stop_token_ids' may have at most {room} entries with this model.");
        return Err(ApiError::invalid(&message, Some("stop_token_ids")));
    }
    Ok(ends.into())
}

/// How many tokens may be generated for each prompt: the explicit limit, or the rest of the context (A3).
///
/// # Errors
/// A prompt, or a prompt with its explicit limit, that is longer than the context: 400 with both numbers (A5).
pub fn budgets(prepared: &Prepared, context: Option<u64>, endpoint: Dialect) -> Result<Vec<Option<i64>>, ApiError> {
    prepared.prompts.iter().map(|prompt| budget(prompt, &prepared.request.sampling, context, endpoint)).collect()
}

fn budget(
    prompt: &PromptTokens,
    sampling: &Sampling,
    context: Option<u64>,
    endpoint: Dialect,
) -> Result<Option<i64>, ApiError> {
    let length = prompt.ids.len();
    let known = context.and_then(|context| i64::try_from(context).ok());
    let limit = known.unwrap_or(MAX_PROMPT as i64);
    let rest = limit - length as i64;
    let asked = sampling.max_tokens;
    if rest < 1 || (known.is_some() && asked.is_some_and(|asked| asked > rest)) {
        let wanted = match asked {
            Some(asked) => format!("{length} tokens of prompt and {asked} of '{}'", sampling.max_tokens_field),
            None => format!("{length} tokens of prompt"),
        };
        let message = format!("This model's context is {limit} tokens. This request has {wanted}.");
        let param = if rest < 1 { param_of(endpoint) } else { sampling.max_tokens_field };
        return Err(ApiError::new(
            http::StatusCode::BAD_REQUEST,
            "invalid_request_error",
            &message,
            Some(param),
            Some("context_length_exceeded"),
        ));
    }
    let budget = asked.or(known.map(|_| rest));
    if budget.is_some_and(|budget| sampling.min_tokens > budget) {
        let most = budget.unwrap_or_default();
        let message = format!("'min_tokens' must be at most the {most} tokens that may be generated.");
        return Err(ApiError::invalid(&message, Some("min_tokens")));
    }
    Ok(budget)
}

/// One generation, ready for the wire.
#[derive(Debug, Clone, Copy)]
pub struct Plan<'a> {
    /// The prompt's tokens.
    pub prompt: &'a PromptTokens,
    /// Which of the prompt's choices this is.
    pub choice: usize,
    /// Tokens that may be generated.
    pub budget: Option<i64>,
    /// An explicit rank.
    pub rank: Option<u16>,
}

/// What the engine is told.
pub fn wire_request(
    rid: String,
    prepared: &Prepared,
    plan: Plan<'_>,
    model: &TextModel,
    ends: &[u32],
) -> TokenizedGenerateReqInput {
    let mut params = sampling_params(&prepared.request.sampling, model, ends);
    params.max_new_tokens = plan.budget;
    params.skip_special_tokens = prepared.request.output.skip_special_tokens;
    // Choices of one request differ: each has the next seed.
    params.seed = params.seed.map(|seed| seed.wrapping_add(plan.choice as i64));
    let mut request = TokenizedGenerateReqInput::new(rid, params);
    request.input_ids = Some(plan.prompt.ids.iter().map(|&id| id as i32).collect());
    request.stream = true;
    request.return_logprob = prepared.request.output.logprobs.is_some();
    request.top_logprobs_num = i64::from(prepared.request.output.logprobs.unwrap_or(0));
    request.created_time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
    request.data_parallel_rank = plan.rank.map(i64::from);
    request
}

/// The request's values, then the model's defaults, then the wire's. Stop strings never go on the wire: the gateway
/// matches them, and engines refuse them or look for a tokenizer that they have not loaded.
fn sampling_params(sampling: &Sampling, model: &TextModel, ends: &[u32]) -> SamplingParams {
    let defaults = &model.defaults;
    let mut params = SamplingParams {
        stop_token_ids: (!ends.is_empty()).then(|| ends.iter().map(|&id| i64::from(id)).collect()),
        temperature: sampling.temperature.or(defaults.temperature).unwrap_or(1.0),
        top_p: sampling.top_p.or(defaults.top_p).unwrap_or(1.0),
        top_k: sampling.top_k.or(defaults.top_k).unwrap_or(-1),
        min_p: sampling.min_p.or(defaults.min_p).unwrap_or(0.0),
        frequency_penalty: sampling.frequency_penalty,
        presence_penalty: sampling.presence_penalty,
        repetition_penalty: sampling.repetition_penalty.or(defaults.repetition_penalty).unwrap_or(1.0),
        min_new_tokens: sampling.min_tokens,
        ignore_eos: sampling.ignore_eos,
        seed: sampling.seed,
        logit_bias: (!sampling.logit_bias.is_empty())
            .then(|| Dict(sampling.logit_bias.iter().map(|&(id, bias)| (id.to_string(), bias)).collect())),
        ..SamplingParams::default()
    };
    match sampling.constraint.as_ref().map(|constraint| &constraint.grammar) {
        None => {}
        Some(Grammar::JsonSchema(schema)) => params.json_schema = Some(schema.clone()),
        Some(Grammar::Regex(regex)) => params.regex = Some(regex.clone()),
        Some(Grammar::Ebnf(ebnf)) => params.ebnf = Some(ebnf.clone()),
        Some(Grammar::StructuralTag(tag)) => params.structural_tag = Some(tag.clone()),
    }
    params
}

#[cfg(test)]
mod tests;
