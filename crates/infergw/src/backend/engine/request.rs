//! The request's body to a validated request (A1, A3, A6): every value is judged here, with the name of the field in the
//! answer, and nothing that an engine would refuse goes on the wire.
//!
//! A field is honoured, or refused by name ([`REFUSED`]), or accepted without effect ([`WITHOUT_EFFECT`]). Fields that
//! neither OpenAI nor vLLM nor SGLang knows are ignored, as vLLM does. `null` is the same as absent everywhere.

use serde_json::{Map, Value};

use super::parse::Wishes;
use super::prompt::Conversation;
use crate::api::error::ApiError;

mod constraint;
mod conversation;
mod fields;
mod sampling;
mod tools;

pub use constraint::{Constraint, Grammar};
use fields::Fields;
pub use sampling::Sampling;

/// The two forms of a request that the text path knows. What other endpoints take is brought into one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// A conversation, for the chat template.
    ChatCompletions,
    /// Prompts as they are.
    Completions,
}

/// Most choices of one request: `n` times the number of prompts (A7).
pub const MAX_CHOICES: usize = 128;

/// Fields with a meaning that cannot be honoured. Their neutral values (null, false, empty, and the one given here) pass.
pub const REFUSED: &[(&str, &str)] = &[
    ("allowed_token_ids", ""),
    ("audio", ""),
    ("bad_words", ""),
    ("best_of", "1"),
    ("bootstrap_host", ""),
    ("bootstrap_port", ""),
    ("bootstrap_room", ""),
    ("chat_template", ""),
    ("custom_logit_processor", ""),
    ("custom_params", ""),
    ("function_call", ""),
    ("functions", ""),
    ("guided_whitespace_pattern", ""),
    ("kv_transfer_params", ""),
    ("length_penalty", "1.0"),
    ("logits_processors", ""),
    ("lora_path", ""),
    ("mm_processor_kwargs", ""),
    ("modalities", "[\"text\"]"),
    ("prediction", ""),
    ("prompt_embeds", ""),
    ("prompt_logprobs", ""),
    ("return_hidden_states", ""),
    ("return_token_ids", ""),
    ("return_tokens_as_token_ids", ""),
    ("session_params", ""),
    ("suffix", ""),
    ("truncate_prompt_tokens", ""),
    ("use_beam_search", ""),
    ("web_search_options", ""),
];

/// Fields that are accepted and change nothing here.
pub const WITHOUT_EFFECT: &[&str] = &[
    "cache_salt",
    "guided_decoding_backend",
    "metadata",
    "priority",
    "prompt_cache_key",
    "prompt_cache_retention",
    "request_id",
    "safety_identifier",
    "service_tier",
    "spaces_between_special_tokens",
    "store",
    "stream_reasoning",
    "user",
    "verbosity",
];

/// A request that may go to an engine once its prompt is known to fit.
#[derive(Debug)]
pub struct Request {
    /// What the prompt is made of.
    pub input: Input,
    /// How tokens are chosen and when the answer ends.
    pub sampling: Sampling,
    /// Choices for each prompt.
    pub n: usize,
    /// What the answer shows.
    pub output: Output,
    /// Which parts the answer has.
    pub wishes: Wishes,
}

/// What the prompt is made of.
#[derive(Debug)]
pub enum Input {
    /// A conversation for the chat template. `add_special_tokens` goes to the tokenizer.
    Chat {
        /// The messages and what else goes into the template.
        conversation: Box<Conversation>,
        /// Let the tokenizer add its own special tokens; templates write them themselves.
        add_special_tokens: bool,
    },
    /// Prompts as they are.
    Prompts {
        /// At least one.
        prompts: Vec<Prompt>,
        /// Let the tokenizer add its own special tokens to text.
        add_special_tokens: bool,
    },
}

/// A prompt of the completions endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// Text to be tokenized.
    Text(String),
    /// Tokens.
    Ids(Vec<u32>),
}

/// What the answer shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Output {
    /// Stop strings (U4).
    pub stops: Vec<String>,
    /// Keep the stop string, or the stop token's text, at the end.
    pub include_stop: bool,
    /// Hide control tokens.
    pub skip_special_tokens: bool,
    /// Log probabilities: how many alternatives beside the sampled token.
    pub logprobs: Option<u8>,
    /// Show the prompt before the answer (completions only).
    pub echo: bool,
    /// Show the answer's tokens.
    pub ids: bool,
    /// Control tokens that are not hidden: the answer's parts are told by them.
    pub marks: Vec<u32>,
}

impl Request {
    /// Parse and judge a body. `vocabulary` is the number of token ids that the model has.
    ///
    /// # Errors
    /// A 400 that names the field and what is allowed.
    pub fn parse(endpoint: Dialect, body: &[u8], vocabulary: usize) -> Result<Self, ApiError> {
        Self::of(endpoint, &object(body)?, vocabulary)
    }

    /// The same for a body that has been read.
    ///
    /// # Errors
    /// See [`Request::parse`].
    pub fn of(endpoint: Dialect, body: &Map<String, Value>, vocabulary: usize) -> Result<Self, ApiError> {
        refuse_unsupported(body)?;
        let fields = Fields::new(body);
        let n = fields.int("n", 1..=MAX_CHOICES as i64)?.unwrap_or(1) as usize;
        let mut sampling = Sampling::parse(&fields, vocabulary)?;
        let mut wishes = Wishes::default();
        let mut output = Output {
            stops: stops(body)?,
            include_stop: fields.flag("include_stop_str_in_output")?.unwrap_or(false),
            skip_special_tokens: fields.flag("skip_special_tokens")?.unwrap_or(true),
            logprobs: None,
            echo: false,
            ids: false,
            marks: Vec::new(),
        };
        let input = match endpoint {
            Dialect::ChatCompletions => {
                output.logprobs = chat_logprobs(&fields)?;
                wishes = tools::parse(&fields, &mut sampling)?;
                conversation::parse(body, &fields)?
            }
            Dialect::Completions => {
                output.logprobs = fields.int("logprobs", 0..=20)?.map(|n| n as u8);
                output.echo = fields.flag("echo")?.unwrap_or(false);
                prompts(body, &fields, vocabulary, n)?
            }
        };
        if output.echo && output.logprobs.is_some() {
            let message = "'echo' together with 'logprobs' is not supported: engines score answers, not prompts.";
            return Err(ApiError::invalid(message, Some("echo")));
        }
        Ok(Self { input, sampling, n, output, wishes })
    }
}

/// A body as an object.
///
/// # Errors
/// A 400 for anything else.
pub fn object(body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    let body: Value = serde_json::from_slice(body)
        .map_err(|e| ApiError::invalid(&format!("The body is not valid JSON: {e}."), None))?;
    match body {
        Value::Object(body) => Ok(body),
        _ => Err(ApiError::invalid("The body must be a JSON object.", None)),
    }
}

fn refuse_unsupported(body: &Map<String, Value>) -> Result<(), ApiError> {
    for (name, neutral) in REFUSED {
        let Some(value) = body.get(*name) else { continue };
        let empty = match value {
            Value::Null | Value::Bool(false) => true,
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            Value::Object(entries) => entries.is_empty(),
            _ => false,
        };
        let same = || {
            serde_json::from_str::<Value>(neutral)
                .is_ok_and(|n| n == *value || (n.is_f64() && n.as_f64() == value.as_f64()))
        };
        if !empty && !same() {
            let message = format!("'{name}' is not supported by this model's engine.");
            return Err(ApiError::new(
                http::StatusCode::BAD_REQUEST,
                "invalid_request_error",
                &message,
                Some(name),
                Some("unsupported_parameter"),
            ));
        }
    }
    Ok(())
}

fn chat_logprobs(fields: &Fields<'_>) -> Result<Option<u8>, ApiError> {
    let wanted = fields.flag("logprobs")?.unwrap_or(false);
    let top = fields.int("top_logprobs", 0..=20)?;
    if top.is_some_and(|top| top > 0) && !wanted {
        return Err(ApiError::invalid("'top_logprobs' needs 'logprobs': true.", Some("top_logprobs")));
    }
    Ok(wanted.then(|| top.unwrap_or(0) as u8))
}

/// `stop`: a string or a list; null and an empty list mean none, an empty string is refused (U7).
fn stops(body: &Map<String, Value>) -> Result<Vec<String>, ApiError> {
    let bad = || {
        let message = format!(
            "'stop' must be a string or a list of at most {} strings, none of them empty or longer than {} bytes.",
            super::stop::MAX_STOPS,
            super::stop::MAX_STOP_BYTES
        );
        ApiError::invalid(&message, Some("stop"))
    };
    let stops = match body.get("stop") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(stop)) => vec![stop.clone()],
        Some(Value::Array(stops)) if stops.len() <= super::stop::MAX_STOPS => {
            stops.iter().map(|s| s.as_str().map(str::to_owned)).collect::<Option<_>>().ok_or_else(bad)?
        }
        Some(_) => return Err(bad()),
    };
    if stops.iter().any(|s| s.is_empty() || s.len() > super::stop::MAX_STOP_BYTES) {
        return Err(bad());
    }
    Ok(stops)
}

/// `prompt`: text, a list of texts, token ids, or a list of lists of token ids.
fn prompts(body: &Map<String, Value>, fields: &Fields<'_>, vocabulary: usize, n: usize) -> Result<Input, ApiError> {
    let bad = |message: &str| ApiError::invalid(message, Some("prompt"));
    let shape = || bad("'prompt' must be a string, a list of strings, a list of token ids, or a list of such lists.");
    let ids = |values: &[Value]| -> Result<Prompt, ApiError> {
        let id = |value: &Value| value.as_u64().filter(|&id| id < vocabulary as u64).map(|id| id as u32);
        let ids = values.iter().map(id).collect::<Option<Vec<u32>>>();
        ids.map(Prompt::Ids)
            .ok_or_else(|| bad(&format!("Token ids in 'prompt' are integers from 0 to {}.", vocabulary - 1)))
    };
    let prompts = match body.get("prompt") {
        Some(Value::String(text)) => vec![Prompt::Text(text.clone())],
        Some(Value::Array(values)) => match values.first() {
            None => return Err(bad("'prompt' must not be empty.")),
            Some(Value::Number(_)) => vec![ids(values)?],
            Some(_) if values.len() > MAX_CHOICES => return Err(bad(&format!("At most {MAX_CHOICES} prompts."))),
            Some(_) => values
                .iter()
                .map(|value| match value {
                    Value::String(text) => Ok(Prompt::Text(text.clone())),
                    Value::Array(values) => ids(values),
                    _ => Err(shape()),
                })
                .collect::<Result<_, _>>()?,
        },
        Some(Value::Null) | None => return Err(bad("'prompt' is missing.")),
        Some(_) => return Err(shape()),
    };
    if prompts.len() * n > MAX_CHOICES {
        let message = format!("'n' times the number of prompts must be at most {MAX_CHOICES}.");
        return Err(ApiError::invalid(&message, Some("n")));
    }
    Ok(Input::Prompts { prompts, add_special_tokens: fields.flag("add_special_tokens")?.unwrap_or(true) })
}

#[cfg(test)]
mod tests;
