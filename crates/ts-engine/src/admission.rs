//! What becomes of an ADD before it may wait for its turn: normalised as the engines do it, or refused with a reason.
//!
//! The rules are those of the wire contract, section 4.2. The engine is the last line: a frontend checks the same
//! before it sends, and gives its clients better messages.

use std::collections::BTreeSet;

use ts_wire::{SamplingParams, StrOrList, TokenizedGenerateReqInput};

use crate::grammar::Constraint;
use crate::model::ModelSpec;
use crate::sample::Sampling;

/// `top_k` as normalisation writes "off".
const TOP_K_OFF: i64 = 1 << 30;
/// Below this a temperature means greedy.
const GREEDY_BELOW: f64 = 1e-6;
/// Without `stream` rows still come: after the first token, then every so many.
const FORCED_INTERVAL: usize = 50;
/// Most stop ids of a request, the model's own among them.
const MAX_STOP_IDS: usize = 16;
/// Most alternatives to a token.
const MAX_TOP_LOGPROBS: i64 = 20;
/// Positions that the engine keeps free behind a prompt.
const RESERVED_POSITIONS: usize = 6;

/// When rows of a running request are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    /// After the tokens number 1, 1 + k, 1 + 2k, ...
    Every(usize),
    /// After the first token, then after every 50th.
    Sparse,
}

impl Pace {
    /// Whether a row is due after token number `now`, the one before having been sent at `before`.
    pub(crate) fn due(self, before: usize, now: usize) -> bool {
        match self {
            Pace::Every(interval) => {
                // Of the numbers before+1..=now, is one at the phase?
                let phase = 1 % interval;
                let next = before + 1;
                next + (phase + interval - next % interval) % interval <= now
            }
            Pace::Sparse => (before == 0 && now > 0) || now / FORCED_INTERVAL > before / FORCED_INTERVAL,
        }
    }
}

/// What a request wants to know about probabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Logprobs {
    /// First prompt position to report.
    pub(crate) start: usize,
    /// Alternatives per position.
    pub(crate) top: usize,
}

/// A request that may run.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) rid: String,
    pub(crate) prompt: Vec<i32>,
    pub(crate) prompt_tokens: usize,
    /// Tokens that may be generated.
    pub(crate) max_new: usize,
    /// Tokens that must be generated before a stop id counts.
    pub(crate) min_new: usize,
    /// Ids that end it.
    pub(crate) stop_ids: Vec<i32>,
    pub(crate) sampling: Sampling,
    /// What the answer is held to.
    pub(crate) constraint: Option<Constraint>,
    pub(crate) logprobs: Option<Logprobs>,
    pub(crate) pace: Pace,
}

/// A request that is answered with one abort row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) rid: String,
    pub(crate) prompt_tokens: usize,
    /// Why, without the "Invalid request: " that goes before it.
    pub(crate) reason: String,
}

/// Why an ADD has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the request id is not one string")]
pub(crate) struct Nameless;

/// Decides about an ADD.
///
/// # Errors
/// [`Nameless`] when there is nobody to answer.
pub(crate) fn admit(add: TokenizedGenerateReqInput, spec: &ModelSpec) -> Result<Result<Request, Refused>, Nameless> {
    let rid = match &add.rid {
        Some(StrOrList::One(rid)) => rid.clone(),
        _ => return Err(Nameless),
    };
    let prompt_tokens = add.input_ids.as_ref().map_or(0, Vec::len);
    Ok(check(add, &rid, spec).map_err(|reason| Refused { rid, prompt_tokens, reason }))
}

fn check(add: TokenizedGenerateReqInput, rid: &str, spec: &ModelSpec) -> Result<Request, String> {
    check_envelope(&add)?;
    let normal = normalised(add.sampling_params, rid);
    let params = &normal;
    check_ranges(params, spec)?;
    let prompt = check_prompt(add.input_ids, spec)?;
    let logprobs = add
        .return_logprob
        .then(|| check_logprobs(add.logprob_start_len, add.top_logprobs_num, prompt.len()))
        .transpose()?;
    let room = spec.max_model_len.saturating_sub(prompt.len() + 2);
    let max_new = params.max_new_tokens.and_then(|most| usize::try_from(most).ok()).map_or(room, |most| most.min(room));
    let min_new = usize::try_from(params.min_new_tokens).unwrap_or(0);
    let pace = match (add.stream, params.stream_interval.and_then(|every| usize::try_from(every).ok())) {
        (true, Some(every)) => Pace::Every(every.max(1)),
        (true, None) => Pace::Every(1),
        (false, _) => Pace::Sparse,
    };
    Ok(Request {
        rid: rid.to_owned(),
        max_new,
        min_new,
        stop_ids: stop_ids(params, spec)?,
        sampling: sampling(params),
        constraint: constraint(params)?,
        prompt_tokens: prompt.len(),
        prompt,
        logprobs,
        pace,
    })
}

/// What does not concern sampling.
fn check_envelope(add: &TokenizedGenerateReqInput) -> Result<(), String> {
    if let Some(reason) = &add.validation_error {
        return Err(reason.clone());
    }
    if let Some(id) = add.session_params.as_ref().and_then(|session| session.id.as_ref()) {
        return Err(format!("session id {id} does not exist"));
    }
    let unsupported = [
        (add.input_embeds.is_some(), "input_embeds"),
        (add.custom_logit_processor.is_some(), "custom_logit_processor"),
        (add.return_hidden_states, "return_hidden_states"),
        (add.multimodal_inputs.is_some(), "multimodal_inputs"),
        (add.return_logprob && add.token_ids_logprob.as_ref().is_some_and(|ids| !ids.is_empty()), "token_ids_logprob"),
        (add.bootstrap_room.is_some(), "bootstrap_room (this engine does not split prefill from decode)"),
    ];
    match unsupported.into_iter().find(|(asked, _)| *asked) {
        Some((_, what)) => Err(format!("this engine does not support {what}")),
        None => Ok(()),
    }
}

fn check_prompt(ids: Option<Vec<i32>>, spec: &ModelSpec) -> Result<Vec<i32>, String> {
    let prompt = ids.ok_or("input_ids is required")?;
    let longest = spec.max_model_len.saturating_sub(RESERVED_POSITIONS);
    if prompt.is_empty() {
        return Err("the prompt is empty".into());
    }
    if prompt.len() > longest {
        return Err(format!("the prompt has {} tokens; this engine admits at most {longest}", prompt.len()));
    }
    let held = spec.kv_pages.saturating_mul(spec.page_size);
    if prompt.len() >= held {
        return Err(format!("the prompt has {} tokens; the KV cache of this engine holds {held}", prompt.len()));
    }
    match prompt.iter().find(|id| !in_vocab(i64::from(**id), spec)) {
        Some(id) => Err(format!("token id {id} is outside the vocabulary of {}", spec.vocab)),
        None => Ok(prompt),
    }
}

fn in_vocab(id: i64, spec: &ModelSpec) -> bool {
    usize::try_from(id).is_ok_and(|id| id < spec.vocab)
}

fn check_logprobs(start: i64, top: i64, prompt: usize) -> Result<Logprobs, String> {
    if !(0..=MAX_TOP_LOGPROBS).contains(&top) {
        return Err(format!("top_logprobs_num must be between 1 and {MAX_TOP_LOGPROBS}, got {top}"));
    }
    let start = match start {
        -1 => prompt - 1,
        start => match usize::try_from(start) {
            Ok(start) if start < prompt => start,
            Ok(_) => {
                return Err(format!("logprob_start_len ({start}) must be smaller than the prompt length ({prompt})"));
            }
            Err(_) => return Err(format!("logprob_start_len must be -1 or >= 0, got {start}")),
        },
    };
    Ok(Logprobs { start, top: usize::try_from(top).unwrap_or(0) })
}

/// The engines' normalisation (wire contract, 4.2): a frontend may send what its client sent.
fn normalised(mut params: SamplingParams, rid: &str) -> SamplingParams {
    if !params.is_normalized {
        params.stop_strs = params.stop.take();
        params.stop_token_ids = params.stop_token_ids.take().filter(|ids| !ids.is_empty());
        if params.temperature < GREEDY_BELOW {
            params.temperature = 1.0;
            params.top_k = 1;
        }
        if params.top_k == 1 {
            params.seed = Some(0);
        }
        if params.top_k == -1 {
            params.top_k = TOP_K_OFF;
        }
        params.is_normalized = true;
    }
    params.seed.get_or_insert_with(|| i64::from(crc32(rid.as_bytes())));
    params
}

fn check_ranges(params: &SamplingParams, spec: &ModelSpec) -> Result<(), String> {
    let within = |name: &str, value: f64, low: f64, high: f64| {
        if (low..=high).contains(&value) {
            Ok(())
        } else {
            Err(format!("{name} must be in [{low}, {high}], got {value}"))
        }
    };
    if params.n != 1 {
        return Err(format!("n must be 1, got {}", params.n));
    }
    if params.temperature < 0.0 {
        return Err(format!("temperature must be non-negative, got {}", params.temperature));
    }
    if !(params.top_p > 0.0 && params.top_p <= 1.0) {
        return Err(format!("top_p must be in (0, 1], got {}", params.top_p));
    }
    within("min_p", params.min_p, 0.0, 1.0)?;
    if !(1..128).contains(&params.top_k) && params.top_k != TOP_K_OFF {
        return Err(format!("top_k must be -1 or in [1, 127], got {}", params.top_k));
    }
    within("frequency_penalty", params.frequency_penalty, -2.0, 2.0)?;
    within("presence_penalty", params.presence_penalty, -2.0, 2.0)?;
    within("repetition_penalty", params.repetition_penalty, 0.0, 2.0)?;
    check_lengths(params)?;
    for (key, _) in params.logit_bias.iter().flat_map(|bias| &bias.0) {
        if !key.parse().is_ok_and(|id| in_vocab(id, spec)) {
            let shown: String = key.chars().take(20).collect();
            return Err(format!("logit_bias key {shown:?} is not a token id below {}", spec.vocab));
        }
    }
    if !matches!(params.logprobs, None | Some(0)) {
        return Err("logprobs must be unset or 0".into());
    }
    check_features(params)
}

fn check_lengths(params: &SamplingParams) -> Result<(), String> {
    if params.min_new_tokens < 0 {
        return Err(format!("min_new_tokens must be non-negative, got {}", params.min_new_tokens));
    }
    match params.max_new_tokens {
        Some(most) if most < 0 => Err(format!("max_new_tokens must be non-negative, got {most}")),
        Some(most) if params.min_new_tokens > most => {
            Err(format!("min_new_tokens must be in [0, max_new_tokens ({most})], got {}", params.min_new_tokens))
        }
        _ => Ok(()),
    }
}

fn check_features(params: &SamplingParams) -> Result<(), String> {
    let stop_strings = match &params.stop_strs {
        None => false,
        Some(StrOrList::One(_)) => true,
        Some(StrOrList::Many(strings)) => !strings.is_empty(),
    };
    if stop_strings {
        return Err("stop strings are not matched on the msgpack wire; the frontend matches them".into());
    }
    Ok(())
}

fn constraint(params: &SamplingParams) -> Result<Option<Constraint>, String> {
    if params.structural_tag.is_some() {
        return Err("this engine does not support structural_tag".into());
    }
    let given = [
        params.json_schema.clone().map(Constraint::JsonSchema),
        params.regex.clone().map(Constraint::Regex),
        params.ebnf.clone().map(Constraint::Ebnf),
    ];
    let mut given = given.into_iter().flatten();
    let first = given.next();
    if given.next().is_some() {
        return Err("only one of json_schema, regex and ebnf can be set".into());
    }
    Ok(first)
}

/// The ids that end a generation: the request's own, and the model's unless they are to be ignored.
fn stop_ids(params: &SamplingParams, spec: &ModelSpec) -> Result<Vec<i32>, String> {
    let own = params.stop_token_ids.iter().flatten().filter_map(|id| i32::try_from(*id).ok());
    let ids: BTreeSet<i32> = own.chain(spec.eos.iter().copied()).collect();
    if ids.len() > MAX_STOP_IDS {
        return Err(format!("{} stop token ids, the model's own included; at most {MAX_STOP_IDS}", ids.len()));
    }
    Ok(if params.ignore_eos { Vec::new() } else { ids.into_iter().collect() })
}

fn sampling(params: &SamplingParams) -> Sampling {
    let mut logit_bias: Vec<(usize, f32)> = Vec::new();
    for (key, bias) in params.logit_bias.iter().flat_map(|bias| &bias.0) {
        if let Ok(id) = key.parse() {
            logit_bias.push((id, *bias as f32));
        }
    }
    Sampling {
        temperature: params.temperature,
        top_p: params.top_p,
        top_k: usize::try_from(params.top_k).ok().filter(|_| params.top_k != TOP_K_OFF),
        min_p: params.min_p,
        frequency_penalty: params.frequency_penalty as f32,
        presence_penalty: params.presence_penalty as f32,
        repetition_penalty: params.repetition_penalty as f32,
        logit_bias,
        seed: params.seed.unwrap_or(0) as u64,
    }
}

/// CRC-32 as zlib has it: the seed of a request that brings none.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_of_a_request_without_one_is_the_crc_of_its_id() {
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
        let params = normalised(SamplingParams::default(), "123456789");
        assert_eq!(params.seed, Some(0xCBF4_3926));
        assert_eq!((params.top_k, params.is_normalized), (TOP_K_OFF, true));
    }

    #[test]
    fn greedy_is_top_k_of_one_with_seed_zero() {
        let params = normalised(SamplingParams { temperature: 0.0, seed: Some(9), ..SamplingParams::default() }, "r");
        assert_eq!((params.temperature, params.top_k, params.seed), (1.0, 1, Some(0)));
        // What is normalised stays as it is.
        let sent = SamplingParams { temperature: 0.0, seed: Some(9), is_normalized: true, ..SamplingParams::default() };
        assert_eq!(normalised(sent.clone(), "r"), sent);
    }

    #[test]
    fn rows_are_due_at_their_phase_however_many_tokens_a_step_brings() {
        let due = |pace: Pace, step: usize| {
            let mut sent = 0;
            let steps = (1..=120).filter(|now| now % step == 0 || *now == 1);
            let mut rows = Vec::new();
            for now in steps {
                if pace.due(sent, now) {
                    rows.push(now);
                    sent = now;
                }
            }
            rows
        };
        assert_eq!(due(Pace::Every(1), 1).len(), 120);
        assert_eq!(due(Pace::Every(40), 1), [1, 41, 81]);
        assert_eq!(due(Pace::Every(40), 8), [1, 48, 88]);
        assert_eq!(due(Pace::Sparse, 1), [1, 50, 100]);
        assert_eq!(due(Pace::Sparse, 8), [1, 56, 104]);
    }
}
