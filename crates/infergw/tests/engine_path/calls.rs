//! Reasoning and tool calls. The engine answers with the prompt's tokens: what the user says is in the answer.

use serde_json::{Value, json};

use crate::ask::Answer;
use crate::{ADD, echo};

const CALL: &str = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"city\": \"Zürich } 😀\"}}\n</tool_call>";

fn asked(text: &str, extra: Value) -> Value {
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
    // The prompt has end tokens of its own.
    let mut body = json!({"messages": [{"role": "user", "content": text}], "tools": tools, "ignore_eos": true});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

/// What a stream's deltas make: content, calls, and the finish reason.
fn assembled(answer: &Answer) -> (String, Vec<(String, String)>, Vec<String>) {
    let mut calls: Vec<(String, String)> = Vec::new();
    for event in answer.events() {
        for delta in event["choices"][0]["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let function = &delta["function"];
            if let Some(name) = function["name"].as_str() {
                calls.push((name.into(), String::new()));
            }
            let at = delta["index"].as_u64().unwrap() as usize;
            calls[at].1.push_str(function["arguments"].as_str().unwrap());
        }
    }
    (answer.joined(0), calls, answer.finishes(0))
}

/// A8: both modes give the same content, calls, finish reason and usage, whatever the batching.
#[tokio::test(flavor = "multi_thread")]
async fn a8_calls_in_both_modes() {
    for chunk in ["1", "3", "100"] {
        let (asker, _rank) = echo(&["--chunk", chunk, "--step-ms", "1"]).await;
        let body = asked(&format!("Look: {CALL}"), json!({"stream_options": {"include_usage": true}, "stream": true}));
        let streamed = asker.chat(&body).await;
        let whole = asker.chat(&asked(&format!("Look: {CALL}"), json!({}))).await.json();
        let choice = &whole["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls");
        let (content, calls, finishes) = assembled(&streamed);
        assert_eq!(finishes, ["tool_calls"]);
        assert_eq!(choice["message"]["content"], content);
        assert!(content.contains("Look: ") && !content.contains("tool_call"), "{content}");
        assert_eq!(calls, [("f".to_owned(), "{\"city\": \"Zürich } 😀\"}".to_owned())]);
        let call = &choice["message"]["tool_calls"][0];
        assert_eq!(call["function"], json!({"name": calls[0].0, "arguments": calls[0].1}));
        assert!(call["id"].as_str().unwrap().starts_with("call_"));
        let usage = streamed.events().last().unwrap()["usage"].clone();
        assert_eq!(usage["completion_tokens"], whole["usage"]["completion_tokens"]);
    }
}

/// A8: cut by the limit it is `length`; with `none` all is content; U9 holds for parsed answers.
#[tokio::test(flavor = "multi_thread")]
async fn a8_cut_and_unwanted() {
    let (asker, _rank) = echo(&["--wire", "crate010"]).await;
    let body = asked(CALL, json!({"max_tokens": 16, "logprobs": true}));
    let cut = asker.chat(&body).await.json();
    assert_eq!(cut["choices"][0]["finish_reason"], "length");
    let scores = cut["choices"][0]["logprobs"]["content"].as_array().unwrap().len();
    assert_eq!((scores, &cut["usage"]["completion_tokens"]), (16, &json!(16)));
    let mut body = body;
    body["stream"] = true.into();
    let events = asker.chat(&body).await.events();
    let streamed = events.iter().filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array()).flatten();
    assert_eq!(streamed.count(), 16, "U9");
    let none = asker.chat(&asked(CALL, json!({"tool_choice": "none"}))).await.json();
    assert!(none["choices"][0]["message"]["content"].as_str().unwrap().contains(CALL));
    assert_eq!(none["choices"][0]["finish_reason"], "stop");
}

/// A8: a call that must be made goes to the engine as a JSON schema.
#[tokio::test(flavor = "multi_thread")]
async fn a8_forced_calls_are_constrained() {
    let (asker, rank) = echo(&[]).await;
    let named = json!({"type": "function", "function": {"name": "f"}});
    for choice in [json!("required"), named.clone()] {
        assert_eq!(asker.chat(&asked("x", json!({"tool_choice": choice}))).await.status, 200);
    }
    let schemas: Vec<String> =
        rank.received().iter().filter(|(kind, _)| *kind == ADD).map(|(_, add)| add.to_string()).collect();
    assert!(schemas[0].contains("minItems") && schemas[0].contains("parameters"), "{}", schemas[0]);
    assert!(schemas[1].contains(r#"{\"type\":\"object\"}"#), "{}", schemas[1]);
    for extra in [
        json!({"tool_choice": {"type": "function", "function": {"name": "other"}}}),
        json!({"tool_choice": named, "response_format": {"type": "json_object"}}),
    ] {
        let refused = asker.chat(&asked("x", extra)).await;
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("tool_choice")));
    }
}
