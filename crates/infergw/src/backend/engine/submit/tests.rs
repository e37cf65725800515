#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::HashSet;
use std::sync::LazyLock;

use serde_json::{Value, json};

use super::super::form::Form;
use super::super::model::TextModel;
use super::super::request::Request;
use super::super::sample_models::demo;
use super::*;

static PROMPT: LazyLock<PromptTokens> = LazyLock::new(|| PromptTokens { ids: vec![1, 2, 3], shown: None });

fn prepared(extra: Value, prompt: usize) -> Prepared {
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    let request = Request::parse(Dialect::ChatCompletions, body.to_string().as_bytes(), 49152).unwrap();
    let form = Form::OpenAi(Dialect::ChatCompletions);
    Prepared { form, request, prompts: vec![PromptTokens { ids: vec![7; prompt], shown: None }], parse: None }
}

fn too_long(prepared: &Prepared, context: u64) -> Value {
    let error = budgets(prepared, Some(context), Dialect::ChatCompletions).unwrap_err();
    assert_eq!(error.status, 400);
    serde_json::from_slice::<Value>(error.body()).unwrap()["error"].clone()
}

/// A5: too long a prompt, alone or with an explicit limit, is told with both numbers.
#[test]
fn a5_context_length() {
    let error = too_long(&prepared(json!({}), 100), 100);
    assert_eq!((&error["code"], &error["param"]), (&json!("context_length_exceeded"), &json!("messages")));
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("100 tokens. This request has 100 tokens of prompt"), "{message}");
    let error = too_long(&prepared(json!({"max_tokens": 51}), 50), 100);
    assert_eq!((&error["code"], &error["param"]), (&json!("context_length_exceeded"), &json!("max_tokens")));
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("100 tokens") && message.contains("50 tokens of prompt and 51"), "{message}");
    assert_eq!(too_long(&prepared(json!({"max_tokens": i64::MAX}), 50), 100)["code"], "context_length_exceeded");
}

/// A3: the explicit limit, else the rest of the context, else the engine's own.
#[test]
fn a3_budget() {
    let budget = |extra: Value, context| budgets(&prepared(extra, 50), context, Dialect::ChatCompletions).unwrap();
    assert_eq!(budget(json!({"max_tokens": 50}), Some(100)), [Some(50)]);
    assert_eq!(budget(json!({}), Some(100)), [Some(50)]);
    assert_eq!(budget(json!({}), None), [None]);
    assert_eq!(budget(json!({"max_tokens": 5}), None), [Some(5)]);
    let error = budgets(&prepared(json!({"min_tokens": 9, "max_tokens": 8}), 1), Some(100), Dialect::ChatCompletions);
    let error: Value = serde_json::from_slice(error.unwrap_err().body()).unwrap();
    assert_eq!(error["error"]["param"], "min_tokens");
}

fn wire(extra: Value, choice: usize) -> TokenizedGenerateReqInput {
    let prepared = prepared(extra, 3);
    let model: &TextModel = demo();
    let ends = ends(model, &prepared.request.sampling).unwrap();
    let plan = Plan { prompt: &PROMPT, choice, budget: Some(9), rank: Some(1) };
    wire_request("rid".into(), &prepared, plan, model, &ends)
}

/// U6: end tokens and stop tokens go to the engine, stop strings never.
#[test]
fn u6_what_the_engine_is_told() {
    let request =
        wire(json!({"stop": ["x"], "stop_token_ids": [5], "seed": 40, "logprobs": true, "top_logprobs": 3}), 2);
    let params = &request.sampling_params;
    assert_eq!((&params.stop, &params.stop_strs), (&None, &None));
    assert_eq!(params.stop_token_ids, Some(vec![0, 2, 5]));
    assert_eq!((params.max_new_tokens, params.n, params.seed), (Some(9), 1, Some(42)));
    assert_eq!((request.input_ids, request.stream, request.data_parallel_rank), (Some(vec![1, 2, 3]), true, Some(1)));
    assert_eq!((request.return_logprob, request.top_logprobs_num, request.logprob_start_len), (true, 3, -1));
    assert!(!params.is_normalized, "raw values: the engine normalizes them");
}

/// U8: with `ignore_eos` the engine is not told the end tokens.
#[test]
fn u8_ignore_eos() {
    let params = wire(json!({"ignore_eos": true, "min_tokens": 4}), 0).sampling_params;
    assert_eq!((params.ignore_eos, params.stop_token_ids, params.min_new_tokens), (true, None, 4));
}

/// Values that nobody gave are the wire's own defaults.
#[test]
fn defaults_are_the_wires() {
    let params = wire(json!({}), 0).sampling_params;
    let expected =
        SamplingParams { max_new_tokens: Some(9), stop_token_ids: Some(vec![0, 2]), ..SamplingParams::default() };
    assert_eq!(params, expected);
}

/// A6: more stop tokens than the engine takes are refused here.
#[test]
fn a6_stop_token_count() {
    let prepared = prepared(json!({"stop_token_ids": (10..26).collect::<Vec<u32>>()}), 3);
    let error = ends(demo(), &prepared.request.sampling).unwrap_err();
    assert!(String::from_utf8_lossy(error.body()).contains("at most 14 entries"));
}

/// D4: ids are unique, also among gateways.
#[test]
fn d4_ids_are_unique() {
    let mints = [IdMint::default(), IdMint::default()];
    let ids: HashSet<String> = (0..1000).flat_map(|_| mints.iter().map(IdMint::mint)).collect();
    assert_eq!(ids.len(), 2000);
}
