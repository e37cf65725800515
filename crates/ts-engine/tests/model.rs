//! The real model behind the wire: what it says, and that batching, prefixes and seeds change nothing they must not.
#![cfg(feature = "model")]
#![expect(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod support;

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use support::{Answer, Answers, Frontend, request};
use ts_engine::serve::{Engine, EngineConfig, EngineError, start};
use ts_wire::control::{ControlOutput, ControlRequest, FlushCacheReqInput};
use ts_wire::{Dict, EngineCoreReadyResponse, SamplingParams, TokenizedGenerateReqInput, Value};

/// The chat template around "What is the capital of France?".
const FRANCE: [i32; 37] = [
    1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182, 2, 198,
    1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198,
];
/// The same around "Name three colours.".
const COLOURS: [i32; 34] = [
    1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182, 2, 198,
    1, 4093, 198, 5820, 1296, 14797, 30, 2, 198, 1, 520, 9531, 198,
];
const PARIS: i32 = 7042;
const EOS: i32 = 2;

fn model_file() -> PathBuf {
    let default = || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.demo/smollm2-135m.gguf"));
    let file = std::env::var_os("INFERGW_DEMO_MODEL").map_or_else(default, PathBuf::from);
    assert!(file.is_file(), "the demo model is not at {}: run `make demo-model` first", file.display());
    file
}

/// One engine for all tests, taken in turns, with an empty prefix cache.
fn engine() -> MutexGuard<'static, (Frontend, Engine, EngineCoreReadyResponse)> {
    static ENGINE: OnceLock<Mutex<(Frontend, Engine, EngineCoreReadyResponse)>> = OnceLock::new();
    let start = || Mutex::new(Frontend::with_engine(|address| EngineConfig::gguf(address, model_file())));
    let guard = ENGINE.get_or_init(start).lock().unwrap_or_else(PoisonError::into_inner);
    flush(&guard.0);
    guard
}

fn flush(frontend: &Frontend) {
    let flush = ControlRequest::FlushCache(FlushCacheReqInput { rid: None, http_worker_ipc: None });
    match frontend.control(flush, &mut Answers::default()) {
        ControlOutput::FlushCache(reply) => assert!(reply.success),
        other => panic!("{other:?}"),
    }
}

fn run_one(frontend: &Frontend, request: TokenizedGenerateReqInput) -> Answer {
    frontend.run(&[request]).remove(0)
}

/// With the log-probabilities of everything: equal answers are then equal in every bit of their logits that shows.
fn scored(mut request: TokenizedGenerateReqInput) -> TokenizedGenerateReqInput {
    (request.return_logprob, request.logprob_start_len, request.top_logprobs_num) = (true, -1, 4);
    request
}

/// What must not depend on the neighbours or the cache.
fn content(answer: &Answer) -> Answer {
    Answer { rows: Vec::new(), cached_tokens: 0, ..answer.clone() }
}

fn sampled(rid: &str, prompt: &[i32], max_new: i64, seed: i64) -> TokenizedGenerateReqInput {
    let mut request = request(rid, prompt, max_new);
    request.sampling_params.temperature = 0.8;
    request.sampling_params.top_p = 0.95;
    request.sampling_params.seed = Some(seed);
    request
}

#[test]
fn knows_the_capital_of_france() {
    let engine = engine();
    assert_eq!(engine.2.max_model_len, 8192);
    let answer = run_one(&engine.0, request("france", &FRANCE, 40));
    assert!(answer.tokens.contains(&PARIS), "{:?}", answer.tokens);
    assert_eq!(answer.finish.as_deref(), Some("stop"));
    assert_eq!(answer.tokens.last(), Some(&EOS));
    assert_eq!(answer.detail("matched"), Some(&Value::from(i64::from(EOS))));
}

#[test]
fn answers_do_not_depend_on_their_neighbours() {
    let engine = engine();
    // Of several lengths, so that prompts are cut into chunks at other places when they run together.
    let prompts: Vec<Vec<i32>> = [0, 1, 7, 13, 24, 40, 90, 170]
        .into_iter()
        .map(|length: i32| {
            let filler = (0..length).map(|k| 300 + (k * 7919 + length * 131) % 40_000);
            FRANCE[..4].iter().copied().chain(filler).chain(FRANCE[4..].iter().copied()).collect()
        })
        .collect();
    let requests: Vec<_> = prompts
        .iter()
        .enumerate()
        .map(|(index, prompt)| {
            let greedy = index % 2 == 0;
            let rid = format!("r{index}");
            scored(if greedy { request(&rid, prompt, 6) } else { sampled(&rid, prompt, 6, index as i64) })
        })
        .collect();
    let alone: Vec<Answer> = requests.iter().map(|request| run_one(&engine.0, request.clone())).collect();
    flush(&engine.0);
    let together = engine.0.run(&requests);
    for (alone, together) in alone.iter().zip(&together) {
        assert_eq!(content(alone), content(together));
    }
    assert!(alone.iter().all(|answer| answer.logprobs.len() == answer.tokens.len()));
}

#[test]
fn a_cached_prefix_changes_nothing() {
    let engine = engine();
    let first = run_one(&engine.0, scored(request("first", &COLOURS, 10)));
    let second = run_one(&engine.0, scored(request("second", &COLOURS, 10)));
    assert_eq!((first.cached_tokens, second.cached_tokens), (0, 32));
    assert_eq!(content(&first), content(&second));
    // What was generated serves the next turn of a conversation too.
    let turn: Vec<i32> = COLOURS.iter().chain(&first.tokens).copied().chain([198, 1, 4093, 198]).collect();
    let next = run_one(&engine.0, scored(request("next", &turn, 5)));
    assert!(next.cached_tokens > 32 || COLOURS.len() + first.tokens.len() < 48, "{}", next.cached_tokens);
    flush(&engine.0);
    assert_eq!(content(&run_one(&engine.0, scored(request("again", &turn, 5)))), content(&next));
}

#[test]
fn a_seed_decides_the_answer() {
    let engine = engine();
    let tokens = |rid: &str, seed| run_one(&engine.0, sampled(rid, &COLOURS, 12, seed)).tokens;
    let first = tokens("a", 7);
    assert_eq!(first, tokens("b", 7));
    assert_ne!(first, tokens("c", 8));
    // Without one the request id is the seed.
    let unseeded = |rid: &str| {
        let mut request = sampled(rid, &COLOURS, 12, 0);
        request.sampling_params.seed = None;
        run_one(&engine.0, request).tokens
    };
    let first = unseeded("x");
    assert_eq!(first, unseeded("x"));
    assert_ne!(first, unseeded("y"));
}

#[test]
fn prompt_logprobs_are_those_of_generation() {
    let engine = engine();
    let answer = run_one(&engine.0, scored(request("answer", &FRANCE, 8)));
    let whole: Vec<i32> = FRANCE.iter().chain(&answer.tokens).copied().collect();
    let mut asked = scored(request("prompt", &whole, 0));
    asked.logprob_start_len = FRANCE.len() as i64 - 1;
    let prompt = run_one(&engine.0, asked);
    assert_eq!(prompt.finish.as_deref(), Some("length"));
    assert!(prompt.tokens.is_empty());
    assert_eq!(prompt.prompt_ids, whole[FRANCE.len() - 1..]);
    let values: Vec<f64> = prompt.prompt_logprobs.iter().skip(1).map(|value| value.unwrap()).collect();
    assert_eq!(values, answer.logprobs);
    let top: Vec<_> = prompt.prompt_top.iter().skip(1).map(|top| top.clone().unwrap()).collect();
    assert_eq!(top, answer.top);
    // Greedy: the chosen one is the likeliest.
    assert!(answer.tokens.iter().zip(&answer.top).all(|(token, top)| top[0].0 == *token));
}

#[test]
fn bias_stop_ids_and_minimum_length_are_honoured() {
    let engine = engine();
    let mut biased = request("biased", &FRANCE, 40);
    biased.sampling_params.logit_bias = Some(Dict(vec![(PARIS.to_string(), -100.0)]));
    assert!(!run_one(&engine.0, biased).tokens.contains(&PARIS));
    let mut stopped = request("stopped", &FRANCE, 40);
    stopped.sampling_params.stop_token_ids = Some(vec![i64::from(PARIS)]);
    let answer = run_one(&engine.0, stopped.clone());
    assert_eq!(answer.tokens.last(), Some(&PARIS));
    assert_eq!(answer.detail("matched"), Some(&Value::from(i64::from(PARIS))));
    stopped.rid = Some(ts_wire::StrOrList::One("longer".into()));
    stopped.sampling_params.min_new_tokens = 12;
    assert!(run_one(&engine.0, stopped).tokens.len() >= 12);
    let mut endless = request("endless", &FRANCE, 14);
    endless.sampling_params.ignore_eos = true;
    assert_eq!(run_one(&engine.0, endless).tokens.len(), 14);
}

#[test]
fn a_file_that_is_no_model_is_an_error() {
    for file in ["/nowhere/model.gguf", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")] {
        let error = start(EngineConfig::gguf("tcp://127.0.0.1:1", file)).unwrap_err();
        assert!(matches!(error, EngineError::Model(_)));
        assert!(error.to_string().contains(file), "{error}");
    }
}

#[test]
fn an_answer_is_held_to_its_grammar() {
    let engine = engine();
    let held = |rid: &str, change: fn(&mut SamplingParams)| {
        let mut request = scored(request(rid, &FRANCE, 40));
        change(&mut request.sampling_params);
        request
    };
    // " Paris" and the end: nothing else can be chosen, by whatever sampling, and an end that is to be ignored ends it still.
    let changes: [fn(&mut SamplingParams); 5] = [
        |params| params.regex = Some(" Paris".into()),
        |params| (params.regex, params.temperature, params.seed) = (Some(" Paris".into()), 2.0, Some(3)),
        |params| (params.regex, params.ignore_eos, params.min_new_tokens) = (Some(" Paris".into()), true, 9),
        |params| params.json_schema = Some(r#"{"const": 7042}"#.into()),
        |params| params.ebnf = Some("root ::= \" \" name\nname ::= \"Paris\"".into()),
    ];
    let requests: Vec<_> = changes.iter().enumerate().map(|(at, change)| held(&format!("held{at}"), *change)).collect();
    let answers = engine.0.run(&requests);
    for (at, answer) in answers.iter().enumerate() {
        assert_eq!(answer.finish.as_deref(), Some("stop"), "{at}: {answer:?}");
        assert_eq!(answer.tokens.last(), Some(&EOS), "{at}");
        assert_eq!(answer.tokens.len(), answer.logprobs.len(), "{at}");
        // Beside others or alone.
        assert_eq!(content(answer), content(&run_one(&engine.0, requests[at].clone())), "{at}");
    }
    // The model likes the word as a whole best.
    assert_eq!(answers[0].tokens, [PARIS, EOS]);
    // The budget comes first, as ever.
    let mut short = held("short", |params| params.regex = Some("[0-9]+".into()));
    short.sampling_params.max_new_tokens = Some(3);
    assert_eq!(run_one(&engine.0, short).finish.as_deref(), Some("length"));
}

#[test]
fn a_bad_grammar_ends_its_own_request_only() {
    let engine = engine();
    let mut bad = request("bad", &FRANCE, 5);
    bad.sampling_params.json_schema = Some(r#"{"type": "cow"}"#.into());
    let mut two = request("two", &FRANCE, 5);
    (two.sampling_params.regex, two.sampling_params.ebnf) = (Some("a".into()), Some("root ::= \"a\"".into()));
    let mut tag = request("tag", &FRANCE, 5);
    tag.sampling_params.structural_tag = Some("{}".into());
    let answers = engine.0.run(&[bad, two, tag, request("good", &FRANCE, 3)]);
    for (answer, part) in answers.iter().zip(["json_schema: ", "only one of", "structural_tag"]) {
        assert_eq!(answer.finish.as_deref(), Some("abort"));
        assert_eq!(answer.detail("status_code"), Some(&Value::from(400)));
        match answer.detail("message") {
            Some(Value::Str(message)) => assert!(message.contains(part), "{message}"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(answers[3].tokens.len(), 3);
}
