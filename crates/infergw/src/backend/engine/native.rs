//! SGLang's own `/generate`: text or token ids in, text and token ids out. Its streams repeat the whole text in each event.

use std::sync::Arc;
use std::time::Instant;

use serde_json::{Map, Value, json};

use super::choice::{Delta, Ended, Matched, Reason, TokenLogprob};
use super::detokenize::TokenTable;
use super::events::LEAST_LOGPROB;
use super::teller::{Teller, Telling};
use crate::api::error::ApiError;
use crate::types::{DONE, Usage};

/// Tokens that SGLang generates where the request says nothing.
const MAX_NEW_TOKENS: u64 = 128;

/// Fields of the completions dialect, as they are called here.
pub const RENAMES: &[(&str, &str)] = &[
    ("max_tokens", "sampling_params.max_new_tokens"),
    ("min_tokens", "sampling_params.min_new_tokens"),
    ("seed", "sampling_params.sampling_seed"),
    ("include_stop_str_in_output", "sampling_params.no_stop_trim"),
    ("logprobs", "top_logprobs_num"),
    ("prompt", "text"),
    ("temperature", "sampling_params.temperature"),
    ("top_p", "sampling_params.top_p"),
    ("top_k", "sampling_params.top_k"),
    ("min_p", "sampling_params.min_p"),
    ("frequency_penalty", "sampling_params.frequency_penalty"),
    ("presence_penalty", "sampling_params.presence_penalty"),
    ("repetition_penalty", "sampling_params.repetition_penalty"),
    ("stop", "sampling_params.stop"),
    ("stop_token_ids", "sampling_params.stop_token_ids"),
    ("ignore_eos", "sampling_params.ignore_eos"),
    ("skip_special_tokens", "sampling_params.skip_special_tokens"),
    ("n", "sampling_params.n"),
    ("logit_bias", "sampling_params.logit_bias"),
    ("json_schema", "sampling_params.json_schema"),
    ("regex", "sampling_params.regex"),
    ("ebnf", "sampling_params.ebnf"),
    ("structural_tag", "sampling_params.structural_tag"),
];

/// Fields with a meaning that engines cannot be asked for. Empty values pass.
pub const REFUSED: &[&str] = &[
    "image_data",
    "audio_data",
    "video_data",
    "input_embeds",
    "token_ids_logprob",
    "session_params",
    "lora_path",
    "custom_logit_processor",
    "return_hidden_states",
];

/// Fields that are accepted and change nothing here.
pub const WITHOUT_EFFECT: &[&str] = &["rid", "sampling_params.spaces_between_special_tokens"];

/// What its answers look like.
#[derive(Debug)]
pub struct Native {
    /// The input was a list: so is the answer.
    listed: bool,
    logprobs: bool,
    logprob_texts: bool,
}

/// A request in the completions dialect.
///
/// # Errors
/// A 400 with the field at fault.
pub fn read(mut body: Map<String, Value>) -> Result<(Native, Map<String, Value>), ApiError> {
    for name in REFUSED {
        if body.get(*name).is_some_and(|value| !is_empty(value)) {
            return Err(unsupported(name));
        }
    }
    let mut out = match body.remove("sampling_params") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(params)) => sampling(params)?,
        Some(_) => return Err(ApiError::invalid("'sampling_params' must be one object.", Some("sampling_params"))),
    };
    let (prompt, listed) = prompt(&mut body)?;
    let n = out.get("n").and_then(Value::as_u64).unwrap_or(1);
    out.insert("prompt".into(), prompt);
    let flag = |name: &str| match body.get(name) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(_) => Err(ApiError::invalid(&format!("'{name}' must be true or false."), Some(name))),
    };
    let logprobs = flag("return_logprob")?;
    if logprobs {
        out.insert(
            "logprobs".into(),
            body.get("top_logprobs_num").filter(|n| !n.is_null()).cloned().unwrap_or(json!(0)),
        );
        // Engines score answers, not prompts: -1 is the prompt's end.
        if body.get("logprob_start_len").is_some_and(|start| !start.is_null() && *start != json!(-1)) {
            return Err(unsupported("logprob_start_len"));
        }
    }
    let form = Native { listed: listed || n > 1, logprobs, logprob_texts: flag("return_text_in_logprobs")? };
    Ok((form, out))
}

fn prompt(body: &mut Map<String, Value>) -> Result<(Value, bool), ApiError> {
    let [text, ids] = ["text", "input_ids"].map(|name| body.remove(name).filter(|value| !value.is_null()));
    match (text, ids) {
        (Some(_), Some(_)) => Err(ApiError::invalid("'text' and 'input_ids' exclude each other.", Some("input_ids"))),
        (Some(text @ Value::String(_)), None) => Ok((text, false)),
        (Some(Value::Array(texts)), None) if texts.iter().all(Value::is_string) => Ok((Value::Array(texts), true)),
        (Some(_), None) => Err(ApiError::invalid("'text' must be a string or a list of strings.", Some("text"))),
        (None, Some(Value::Array(ids))) => {
            let listed = ids.first().is_some_and(Value::is_array);
            let uniform = if listed { ids.iter().all(Value::is_array) } else { ids.iter().all(Value::is_u64) };
            if !uniform {
                let message = "'input_ids' must be a list of token ids, or a list of such lists.";
                return Err(ApiError::invalid(message, Some("input_ids")));
            }
            Ok((Value::Array(ids), listed))
        }
        (None, Some(_)) => Err(ApiError::invalid("'input_ids' must be a list.", Some("input_ids"))),
        (None, None) => Err(ApiError::invalid("One of 'text' and 'input_ids' is required.", Some("text"))),
    }
}

/// `sampling_params` by the dialect's names. What is called the same stays, what is unknown is refused: here every name counts.
fn sampling(params: Map<String, Value>) -> Result<Map<String, Value>, ApiError> {
    const SAME: [&str; 18] = [
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "skip_special_tokens",
        "n",
        "json_schema",
        "regex",
        "ebnf",
        "structural_tag",
        "logit_bias",
        "spaces_between_special_tokens",
    ];
    let mut out = Map::new();
    for (name, value) in params {
        if value.is_null() {
            continue;
        }
        match name.as_str() {
            name if SAME.contains(&name) => out.insert(name.into(), value),
            "max_new_tokens" => out.insert("max_tokens".into(), value),
            "min_new_tokens" => out.insert("min_tokens".into(), value),
            "sampling_seed" => out.insert("seed".into(), value),
            "no_stop_trim" => out.insert("include_stop_str_in_output".into(), value),
            _ if is_empty(&value) => None,
            name => return Err(unsupported(&format!("sampling_params.{name}"))),
        };
    }
    out.entry("max_tokens").or_insert_with(|| json!(MAX_NEW_TOKENS));
    Ok(out)
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(entries) => entries.is_empty(),
        _ => false,
    }
}

fn unsupported(name: &str) -> ApiError {
    let message = format!("'{name}' is not supported by this model's engine.");
    let code = Some("unsupported_parameter");
    ApiError::new(http::StatusCode::BAD_REQUEST, "invalid_request_error", &message, Some(name), code)
}

impl Native {
    pub(super) fn teller(&self, telling: Telling<'_>) -> Box<dyn Teller> {
        let n = telling.prepared.request.n.max(1);
        let prompt_tokens = |index: usize| telling.prepared.prompts.get(index / n).map_or(0, |prompt| prompt.ids.len());
        let count = telling.choices();
        Box::new(Told {
            stream: telling.question.stream,
            listed: self.listed,
            logprobs: self.logprobs,
            logprob_texts: self.logprob_texts,
            stops: telling.prepared.request.output.stops.clone(),
            max_tokens: telling.prepared.request.sampling.max_tokens,
            choices: (0..count)
                .map(|index| ToldChoice {
                    id: if count == 1 { telling.id.to_owned() } else { format!("{}-{index}", telling.id) },
                    prompt_tokens: prompt_tokens(index),
                    ..ToldChoice::default()
                })
                .collect(),
            table: Arc::clone(telling.table),
            began: Instant::now(),
            untold: None,
            buffer: Vec::new(),
        })
    }
}

struct Told {
    stream: bool,
    listed: bool,
    logprobs: bool,
    logprob_texts: bool,
    stops: Vec<String>,
    max_tokens: Option<i64>,
    choices: Vec<ToldChoice>,
    table: Arc<TokenTable>,
    began: Instant,
    /// The choice with news.
    untold: Option<usize>,
    buffer: Vec<u8>,
}

/// What has been said of a choice.
#[derive(Default)]
struct ToldChoice {
    id: String,
    text: String,
    ids: Vec<u32>,
    logprobs: Vec<TokenLogprob>,
    prompt_tokens: usize,
    cached: u64,
    finish: Value,
}

impl Told {
    fn answer(&self, index: usize) -> Value {
        let Some(choice) = self.choices.get(index) else { return Value::Null };
        let mut meta = json!({
            "id": choice.id,
            "finish_reason": choice.finish,
            "prompt_tokens": choice.prompt_tokens,
            "completion_tokens": choice.ids.len(),
            "cached_tokens": choice.cached,
        });
        if self.logprobs {
            let entry = |id: u32, logprob: f64| {
                let text = self.logprob_texts.then(|| String::from_utf8_lossy(self.table.token_bytes(id)).into_owned());
                json!([logprob.max(LEAST_LOGPROB), id, text])
            };
            meta["input_token_logprobs"] = json!([]);
            meta["output_token_logprobs"] = choice.logprobs.iter().map(|t| entry(t.id, t.logprob)).collect();
            let top =
                |token: &TokenLogprob| token.top.iter().map(|&(id, logprob)| entry(id, logprob)).collect::<Value>();
            meta["output_top_logprobs"] = choice.logprobs.iter().map(top).collect();
        }
        if !choice.finish.is_null() {
            meta["e2e_latency"] = json!(self.began.elapsed().as_secs_f64());
        }
        let mut answer = json!({"text": choice.text, "output_ids": choice.ids, "meta_info": meta});
        if self.listed {
            answer["index"] = json!(index);
        }
        answer
    }

    /// Text and ids are told whole each time: what comes together is one event.
    fn event(&mut self) {
        if let Some(index) = self.untold.take().filter(|_| self.stream) {
            let event = format!("data: {}\n\n", self.answer(index));
            self.buffer.extend_from_slice(event.as_bytes());
        }
    }
}

impl Teller for Told {
    fn begin(&mut self, index: usize, cached: u64) {
        if let Some(choice) = self.choices.get_mut(index) {
            choice.cached = cached;
        }
    }

    fn delta(&mut self, index: usize, delta: &Delta, _offset: usize) {
        if let Some(choice) = self.choices.get_mut(index) {
            choice.text.push_str(&delta.text);
            choice.ids.extend_from_slice(&delta.ids);
            choice.logprobs.extend_from_slice(&delta.logprobs);
        }
        self.untold = Some(index);
    }

    fn finish(&mut self, index: usize, ended: Ended) {
        let finish = match ended.reason {
            Reason::Stop | Reason::ToolCalls => {
                let matched = match ended.matched {
                    Some(Matched::Token(id)) => json!(id),
                    Some(Matched::Text(at)) => json!(self.stops.get(at)),
                    None => Value::Null,
                };
                json!({"type": "stop", "matched": matched})
            }
            Reason::Length => {
                let generated = self.choices.get(index).map_or(0, |choice| choice.ids.len());
                json!({"type": "length", "length": self.max_tokens.unwrap_or(generated as i64)})
            }
        };
        if let Some(choice) = self.choices.get_mut(index) {
            choice.finish = finish;
        }
        self.untold = Some(index);
    }

    fn close(&mut self, _usage: Usage) {
        self.event();
        if self.stream {
            self.buffer.extend_from_slice(&DONE);
            return;
        }
        let answers: Vec<Value> = (0..self.choices.len()).map(|index| self.answer(index)).collect();
        let body = if self.listed { Value::Array(answers) } else { answers.into_iter().next().unwrap_or_default() };
        self.buffer = body.to_string().into_bytes();
    }

    fn buffer(&mut self) -> &mut Vec<u8> {
        self.event();
        &mut self.buffer
    }
}
