//! Reasoning and calls in the APIs that have blocks and items. The engine answers with what the user says, from its first token to
//! its end token.

use infergw::config::Timeouts;
use infergw::types::Endpoint;
use serde_json::{Value, json};

use crate::ADD;
use crate::ask::{Answer, Asker};
use crate::endpoints::{typed_events, types};
use crate::rank::Rank;

const THOUGHT: &str = "\nZürich? 😀 <b>\n";
const CITY: &str = "{\"city\": \"Zürich } 😀\", \"n\": [1, {\"x\": null}]}";

/// Thoughts, words, two calls.
fn said() -> String {
    let call = |name: &str, arguments: &str| {
        format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>")
    };
    format!("<think>{THOUGHT}</think>\n\nLook: {}\n{}", call("f", CITY), call("g", "{}"))
}

/// A group whose engine says what the user said, some tokens at a time.
async fn repeating(chunk: &str) -> (Asker, Rank) {
    let asker = Asker::start(Timeouts::default()).await;
    let turn = json!({"messages": [{"role": "user", "content": "x"}], "add_generation_prompt": false});
    let counted = asker.ask(Endpoint::Tokenize, &turn).await.json();
    // What stands before the text: behind it are the end token and a line feed.
    let before = (counted["count"].as_u64().unwrap() - 3).to_string();
    let arguments = ["--echo", "--echo-skip", &before, "--chunk", chunk, "--step-ms", "1", "--wire", "crate010"];
    let rank = Rank::start(asker.address(), &arguments);
    asker.until_ready(true).await;
    (asker, rank)
}

fn message(text: &str, extra: Value) -> Value {
    let tool = |name: &str| json!({"name": name, "input_schema": {"type": "object"}});
    let mut body = json!({
        "max_tokens": 500, "messages": [{"role": "user", "content": text}], "tools": [tool("f"), tool("g")],
    });
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

fn response(text: &str, extra: Value) -> Value {
    let tool = |name: &str| json!({"type": "function", "name": name, "parameters": {"type": "object"}});
    let mut body = json!({"input": text, "tools": [tool("f"), tool("g")]});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

fn streamed(mut body: Value) -> Value {
    body["stream"] = true.into();
    body
}

/// A message put together from its events.
fn assembled(answer: &Answer) -> Vec<Value> {
    let mut blocks: Vec<(Value, String)> = Vec::new();
    let mut open = None;
    for event in typed_events(answer) {
        let at = event["index"].as_u64().map(|at| at as usize);
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                assert_eq!((open, at), (None, Some(blocks.len())));
                open = at;
                blocks.push((event["content_block"].clone(), String::new()));
            }
            "content_block_delta" => {
                assert_eq!(at, open);
                let (block, text) = blocks.last_mut().unwrap();
                let (kind, member) = match block["type"].as_str().unwrap() {
                    "text" => ("text_delta", "text"),
                    "thinking" => ("thinking_delta", "thinking"),
                    _ => ("input_json_delta", "partial_json"),
                };
                assert_eq!(event["delta"]["type"], kind);
                text.push_str(event["delta"][member].as_str().unwrap());
            }
            "content_block_stop" => {
                assert_eq!(at, open);
                open = None;
            }
            _ => assert_eq!(open, None),
        }
    }
    let whole = |(mut block, text): (Value, String)| {
        let kind = block["type"].as_str().unwrap().to_owned();
        match kind.as_str() {
            "tool_use" => block["input"] = serde_json::from_str(&text).unwrap(),
            kind => block[kind] = text.into(),
        }
        block
    };
    blocks.into_iter().map(whole).collect()
}

/// Blocks without the ids, which are made anew for each answer.
fn without_ids(blocks: &[Value]) -> Vec<Value> {
    let strip = |block: &Value| {
        let mut block = block.clone();
        if let Some(id) = block.as_object_mut().unwrap().remove("id") {
            assert!(id.as_str().unwrap().starts_with("toolu_"), "{id}");
        }
        block
    };
    blocks.iter().map(strip).collect()
}

/// A8: whatever the batching, streamed and whole, a message has the same blocks and the same end.
#[tokio::test(flavor = "multi_thread")]
async fn a8_blocks_of_messages() {
    let input: Value = serde_json::from_str(CITY).unwrap();
    let expected = [
        json!({"type": "thinking", "thinking": THOUGHT, "signature": ""}),
        json!({"type": "text", "text": "\n\nLook: "}),
        json!({"type": "tool_use", "name": "f", "input": input}),
        json!({"type": "tool_use", "name": "g", "input": {}}),
    ];
    for chunk in ["1", "2", "5", "100"] {
        let (asker, _rank) = repeating(chunk).await;
        let whole = asker.ask(Endpoint::Messages, &message(&said(), json!({}))).await.json();
        assert_eq!(without_ids(whole["content"].as_array().unwrap()), expected);
        assert_eq!((&whole["stop_reason"], &whole["stop_sequence"]), (&json!("tool_use"), &Value::Null));
        let answer = asker.ask(Endpoint::Messages, &streamed(message(&said(), json!({})))).await;
        assert_eq!(without_ids(&assembled(&answer)), expected, "{chunk} tokens at a time");
        let events = typed_events(&answer);
        let end = &events[events.len() - 2];
        assert_eq!(end["delta"], json!({"stop_reason": "tool_use", "stop_sequence": null}));
        assert_eq!(end["usage"]["output_tokens"], whole["usage"]["output_tokens"]);
    }
}

/// A3, A8: what is cut is cut; what is not wanted is text; the first call alone; thoughts dropped.
#[tokio::test(flavor = "multi_thread")]
async fn a8_messages_by_their_wishes() {
    let (asker, _rank) = repeating("3").await;
    let ask = async |extra: Value| {
        let whole = asker.ask(Endpoint::Messages, &message(&said(), extra.clone())).await.json();
        let told = assembled(&asker.ask(Endpoint::Messages, &streamed(message(&said(), extra))).await);
        let content = whole["content"].as_array().unwrap().clone();
        assert_eq!(without_ids(&told), without_ids(&content));
        (content, whole["stop_reason"].clone())
    };
    let (content, reason) = ask(json!({"tool_choice": {"type": "auto", "disable_parallel_tool_use": true}})).await;
    assert_eq!((content.len(), &content[2]["name"], &reason), (3, &json!("f"), &json!("tool_use")));
    let (content, reason) = ask(json!({"tool_choice": {"type": "none"}, "include_reasoning": false})).await;
    assert_eq!((content.len(), reason), (1, json!("end_turn")));
    assert!(content[0]["text"].as_str().unwrap().contains("<tool_call>"), "{content:?}");
    let (content, reason) = ask(json!({"max_tokens": 8})).await;
    assert_eq!((content.len(), &content[0]["type"], &reason), (1, &json!("thinking"), &json!("max_tokens")));

    // A call that is cut has no input that the API could hold; its events have what there was.
    let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"city\": \"Zürich, or somewhere else\"}}";
    let cut = asker.ask(Endpoint::Messages, &message(call, json!({"max_tokens": 20}))).await.json();
    assert_eq!((&cut["content"][0]["input"], &cut["stop_reason"]), (&json!({}), &json!("max_tokens")));
    let answer = asker.ask(Endpoint::Messages, &streamed(message(call, json!({"max_tokens": 20})))).await;
    let part: String = typed_events(&answer).iter().filter_map(|e| e["delta"]["partial_json"].as_str()).collect();
    assert!(part.starts_with("{\"city\": \"Z"), "{part}");
}

/// A response put together from its events: the items as they are at their ends, checked against their deltas.
fn items(answer: &Answer) -> Vec<Value> {
    let mut items: Vec<Value> = Vec::new();
    let mut text = String::new();
    for event in typed_events(answer) {
        let kind = event["type"].as_str().unwrap().to_owned();
        match kind.as_str() {
            "response.output_item.added" => {
                assert_eq!(event["output_index"], items.len());
                text.clear();
                items.push(event["item"].clone());
            }
            _ if kind.ends_with(".delta") => {
                assert_eq!(event["item_id"], items.last().unwrap()["id"]);
                text.push_str(event["delta"].as_str().unwrap());
            }
            "response.function_call_arguments.done" => assert_eq!(event["arguments"], text),
            "response.output_text.done" | "response.reasoning_text.done" => assert_eq!(event["text"], text),
            "response.output_item.done" => {
                let last = items.last_mut().unwrap();
                assert_eq!((&event["item"]["id"], &event["item"]["type"]), (&last["id"], &last["type"]));
                *last = event["item"].clone();
            }
            "response.completed" | "response.incomplete" => {
                assert_eq!(event["response"]["output"].as_array().unwrap(), &items);
            }
            _ => {}
        }
    }
    items
}

/// Items as what they say.
fn told(items: &[Value]) -> Vec<(String, String)> {
    let part = |item: &Value| match item["type"].as_str().unwrap() {
        "function_call" => {
            assert!(item["call_id"].as_str().unwrap().starts_with("call_"));
            (item["name"].as_str().unwrap().to_owned(), item["arguments"].as_str().unwrap().to_owned())
        }
        kind => (kind.to_owned(), item["content"][0]["text"].as_str().unwrap().to_owned()),
    };
    items.iter().map(part).collect()
}

/// A8: whatever the batching, streamed and whole, a response has the same items; scores are those of its text.
#[tokio::test(flavor = "multi_thread")]
async fn a8_items_of_responses() {
    let expected = [("reasoning", THOUGHT), ("message", "\n\nLook: "), ("f", CITY), ("g", "{}")];
    let expected: Vec<(String, String)> = expected.map(|(kind, text)| (kind.to_owned(), text.to_owned())).into();
    for chunk in ["1", "2", "5", "100"] {
        let (asker, _rank) = repeating(chunk).await;
        let scored = json!({"include": ["message.output_text.logprobs"]});
        let whole = asker.ask(Endpoint::Responses, &response(&said(), scored.clone())).await.json();
        assert_eq!(told(whole["output"].as_array().unwrap()), expected);
        assert_eq!(whole["status"], "completed");
        let answer = asker.ask(Endpoint::Responses, &streamed(response(&said(), scored))).await;
        let items = items(&answer);
        assert_eq!(told(&items), expected, "{chunk} tokens at a time");
        assert!(items[1]["content"][0]["logprobs"].as_array().unwrap().len() >= 3, "{}", items[1]);
        assert_eq!(items[0]["summary"], json!([]));
        if chunk == "100" {
            let events = typed_events(&answer);
            let call = [
                "response.output_item.added",
                "response.function_call_arguments.delta",
                "response.function_call_arguments.done",
                "response.output_item.done",
                "response.completed",
            ];
            assert!(types(&events).ends_with(&call), "{:?}", types(&events));
            let thoughts = [
                "response.output_item.added",
                "response.content_part.added",
                "response.reasoning_text.delta",
                "response.reasoning_text.done",
                "response.content_part.done",
                "response.output_item.done",
            ];
            assert_eq!(types(&events)[2..8], thoughts);
        }
        let plain = asker.ask(Endpoint::Responses, &response(&said(), json!({"tool_choice": "none"}))).await.json();
        assert_eq!(told(plain["output"].as_array().unwrap()).len(), 2);
    }
}

/// A3: a response that is cut in a call is incomplete, and so is the call.
#[tokio::test(flavor = "multi_thread")]
async fn a8_items_that_are_cut() {
    let (asker, _rank) = repeating("1").await;
    let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"city\": \"Zürich, or somewhere else\"}}";
    let cut = response(call, json!({"max_output_tokens": 20}));
    let whole = asker.ask(Endpoint::Responses, &cut).await.json();
    let items = items(&asker.ask(Endpoint::Responses, &streamed(cut)).await);
    for item in [&whole["output"][0], &items[0]] {
        assert_eq!((&item["type"], &item["status"]), (&json!("function_call"), &json!("incomplete")));
        assert!(item["arguments"].as_str().unwrap().starts_with("{\"city\": \"Z"), "{item}");
    }
    assert_eq!((&whole["status"], items.len()), (&json!("incomplete"), 1));
}

/// A8: a call that must be made is a schema on the wire, and comes back as a call.
#[tokio::test(flavor = "multi_thread")]
async fn a8_forced_blocks_and_items() {
    let (asker, rank) = repeating("2").await;
    let list = format!("[{{\"name\": \"g\", \"parameters\": {CITY}}}]");
    let input: Value = serde_json::from_str(CITY).unwrap();
    for (choice, text) in [(json!({"type": "any"}), list.as_str()), (json!({"type": "tool", "name": "g"}), CITY)] {
        let body = message(text, json!({"tool_choice": choice}));
        let whole = asker.ask(Endpoint::Messages, &body).await.json();
        let expected = [json!({"type": "tool_use", "name": "g", "input": input})];
        assert_eq!(without_ids(whole["content"].as_array().unwrap()), expected);
        assert_eq!(whole["stop_reason"], "tool_use", "a named tool ends like any other");
        assert_eq!(without_ids(&assembled(&asker.ask(Endpoint::Messages, &streamed(body)).await)), expected);
    }
    for (choice, text) in [(json!("required"), list.as_str()), (json!({"type": "function", "name": "g"}), CITY)] {
        let body = response(text, json!({"tool_choice": choice}));
        let whole = asker.ask(Endpoint::Responses, &body).await.json();
        let expected = [("g".to_owned(), CITY.to_owned())];
        assert_eq!(told(whole["output"].as_array().unwrap()), expected);
        assert_eq!(told(&items(&asker.ask(Endpoint::Responses, &streamed(body)).await)), expected);
    }
    // The schema's place on the wire: the twelfth of the sampling parameters.
    let schema = |add: &Value| add.pointer("/0/5/11").is_some_and(Value::is_string);
    assert_eq!(rank.received().iter().filter(|(kind, add)| *kind == ADD && schema(add)).count(), 8);
    for (endpoint, body) in [
        (Endpoint::Messages, message("x", json!({"tool_choice": {"type": "tool", "name": "h"}}))),
        (Endpoint::Messages, message("x", json!({"tool_choice": {"type": "any"}, "tools": []}))),
        (Endpoint::Responses, response("x", json!({"tool_choice": {"type": "function", "name": "h"}}))),
        (Endpoint::Responses, response("x", json!({"tool_choice": "required", "tools": []}))),
    ] {
        let refused = asker.ask(endpoint, &body).await;
        assert_eq!((refused.status, refused.text.contains("'tool_choice'")), (400, true), "{}", refused.text);
    }
}
