//! The endpoints beside chat completions and completions, on an engine that answers with the prompt's tokens.

use infergw::types::{Cause, ENDPOINTS, End, Endpoint};
use serde_json::{Value, json};

use crate::ask::{self, Answer};
use crate::{ABORT, ADD, PROMPT, echo};

/// A2, A6: what an engine cannot answer is refused by name.
#[tokio::test(flavor = "multi_thread")]
async fn a6_endpoints_without_an_engine() {
    let (asker, rank) = echo(&[]).await;
    for endpoint in [Endpoint::Embeddings, Endpoint::Rerank, Endpoint::Score, Endpoint::Classify, Endpoint::Pooling] {
        let answer = asker.ask(endpoint, &json!({"input": "x"})).await;
        assert_eq!((answer.status, &answer.json()["error"]["code"]), (400, &json!("unsupported_endpoint")));
        assert!(answer.text.contains(endpoint.path()), "{}", answer.text);
    }
    assert!(ENDPOINTS.len() > 5);
    assert_eq!(rank.count(ADD), 0);
}

/// A9: `/tokenize` gives the ids that a generation is asked with, and `/detokenize` their text.
#[tokio::test(flavor = "multi_thread")]
async fn a9_tokens_there_and_back() {
    let (asker, rank) = echo(&["--max-model-len", "777"]).await;
    let messages = json!([{"role": "user", "content": PROMPT}]);
    for body in [json!({"prompt": PROMPT}), json!({"messages": messages})] {
        let tokens = asker.ask(Endpoint::Tokenize, &body).await.json();
        assert_eq!((&tokens["max_model_len"], &tokens["token_strs"]), (&json!(777), &Value::Null));
        assert_eq!(tokens["count"].as_u64().unwrap() as usize, tokens["tokens"].as_array().unwrap().len());
        let endpoint = if body["prompt"].is_null() { Endpoint::ChatCompletions } else { Endpoint::Completions };
        let usage = asker.ask(endpoint, &body).await.json()["usage"].clone();
        assert_eq!(usage["prompt_tokens"], tokens["count"]);
        let text = asker.ask(Endpoint::Detokenize, &json!({"tokens": tokens["tokens"]})).await.json();
        assert!(text["prompt"].as_str().unwrap().contains(PROMPT));
    }
    assert_eq!(rank.count(ADD), 2);
}

/// The events of a stream in SGLang's form.
fn native_events(answer: &Answer) -> Vec<Value> {
    answer.events()
}

/// U1, U5: SGLang's form, from text and from token ids, whole and streamed: each event has the whole text so far.
#[tokio::test(flavor = "multi_thread")]
async fn u1_native_generation() {
    for chunk in ["1", "3"] {
        let (asker, _rank) = echo(&["--chunk", chunk, "--step-ms", "1"]).await;
        let tokens = asker.ask(Endpoint::Tokenize, &json!({"prompt": PROMPT})).await.json()["tokens"].clone();
        let count = tokens.as_array().unwrap().len();
        let mut expected = tokens.as_array().unwrap().clone();
        expected.push(json!(2));
        for input in [json!({"text": PROMPT}), json!({"input_ids": tokens})] {
            let mut body = input;
            body["rid"] = json!("my-own");
            let whole = asker.ask(Endpoint::Generate, &body).await;
            assert_eq!(whole.status, 200, "{}", whole.text);
            let whole = whole.json();
            assert_eq!((whole["text"].as_str().unwrap(), &whole["output_ids"]), (PROMPT, &json!(expected)));
            let meta = &whole["meta_info"];
            assert_eq!(meta["finish_reason"], json!({"type": "stop", "matched": 2}));
            assert_eq!((&meta["prompt_tokens"], &meta["completion_tokens"]), (&json!(count), &json!(count + 1)));
            assert!(meta["id"].is_string() && meta["id"] != "my-own", "D4");

            body["stream"] = true.into();
            let events = native_events(&asker.ask(Endpoint::Generate, &body).await);
            let last = events.last().unwrap();
            assert_eq!((&last["text"], &last["output_ids"]), (&whole["text"], &whole["output_ids"]));
            assert_eq!(last["meta_info"]["finish_reason"], meta["finish_reason"]);
            for pair in events.windows(2) {
                assert!(pair[1]["text"].as_str().unwrap().starts_with(pair[0]["text"].as_str().unwrap()));
                assert_eq!(pair[0]["meta_info"]["finish_reason"], Value::Null);
                let ids = pair[0]["output_ids"].as_array().unwrap().len();
                assert_eq!(pair[0]["meta_info"]["completion_tokens"], ids);
            }
            assert!(events.len() > 2);
        }
    }
}

/// A7: lists in, lists out; `n` choices of each.
#[tokio::test(flavor = "multi_thread")]
async fn a7_native_lists() {
    let (asker, rank) = echo(&[]).await;
    let body = json!({"text": ["one", "two words"], "sampling_params": {"n": 2}});
    let answer = asker.ask(Endpoint::Generate, &body).await.json();
    let texts: Vec<&str> = answer.as_array().unwrap().iter().map(|one| one["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["one", "one", "two words", "two words"]);
    assert_eq!(rank.count(ADD), 4);
    let mut body = body;
    body["stream"] = true.into();
    let events = native_events(&asker.ask(Endpoint::Generate, &body).await);
    for (index, text) in texts.iter().enumerate() {
        let own: Vec<&Value> = events.iter().filter(|event| event["index"] == index).collect();
        assert_eq!(own.last().unwrap()["text"], *text);
        assert_eq!(own.iter().filter(|event| !event["meta_info"]["finish_reason"].is_null()).count(), 1);
    }
    let single = asker.ask(Endpoint::Generate, &json!({"text": ["one"]})).await.json();
    assert_eq!(single[0]["text"], "one");
}

/// U4, U6, U9: a stop string in SGLang's form, with log probabilities that end with it.
#[tokio::test(flavor = "multi_thread")]
async fn u9_native_stop_and_logprobs() {
    let (asker, rank) = echo(&["--wire", "crate010", "--step-ms", "5"]).await;
    let body = json!({
        "text": PROMPT, "sampling_params": {"stop": ["nowhere", "stop here"], "max_new_tokens": 500},
        "return_logprob": true, "return_text_in_logprobs": true,
    });
    let answer = asker.ask(Endpoint::Generate, &body).await.json();
    assert_eq!(answer["text"], PROMPT.split("stop here").next().unwrap());
    let meta = &answer["meta_info"];
    assert_eq!(meta["finish_reason"], json!({"type": "stop", "matched": "stop here"}));
    let logprobs = meta["output_token_logprobs"].as_array().unwrap();
    assert_eq!(logprobs.len(), answer["output_ids"].as_array().unwrap().len());
    assert_eq!(
        (&logprobs[0][0], &logprobs[0][1], &logprobs[0][2]),
        (&json!(-0.125), &answer["output_ids"][0], &json!("Hello"))
    );
    rank.wait_for(ABORT, 1).await;
    let cut =
        asker.ask(Endpoint::Generate, &json!({"text": PROMPT, "sampling_params": {"max_new_tokens": 3}})).await.json();
    assert_eq!(cut["meta_info"]["finish_reason"], json!({"type": "length", "length": 3}));
}

/// A5, A6: SGLang's names stand in the refusals, and nothing reaches the wire.
#[tokio::test(flavor = "multi_thread")]
async fn a6_native_refusals() {
    let (asker, rank) = echo(&["--max-model-len", "300"]).await;
    for (body, param) in [
        (json!({}), "text"),
        (json!({"text": 5}), "text"),
        (json!({"text": "a", "input_ids": [1]}), "input_ids"),
        (json!({"input_ids": ["a"]}), "input_ids"),
        (json!({"text": "a", "sampling_params": []}), "sampling_params"),
        (json!({"text": "a", "sampling_params": {"max_new_tokens": 0}}), "sampling_params.max_new_tokens"),
        (json!({"text": "a", "sampling_params": {"max_new_tokens": 300}}), "sampling_params.max_new_tokens"),
        (json!({"text": "a", "sampling_params": {"custom_params": {"a": 1}}}), "sampling_params.custom_params"),
        (json!({"text": "a", "sampling_params": {"temperature": 9}}), "sampling_params.temperature"),
        (json!({"text": "a", "return_logprob": 1}), "return_logprob"),
        (json!({"text": "a", "return_logprob": true, "logprob_start_len": 0}), "logprob_start_len"),
        (json!({"text": "a", "image_data": "x"}), "image_data"),
    ] {
        let answer = asker.ask(Endpoint::Generate, &body).await;
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!(param)), "{body}: {}", answer.text);
    }
    assert_eq!(rank.count(ADD), 0);
}

/// The events of a stream whose events are named after their types; there is no `[DONE]`.
pub(crate) fn typed_events(answer: &Answer) -> Vec<Value> {
    let event = |text: &str| {
        let (name, data) = text.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["type"], name);
        data
    };
    answer.text.split_terminator("\n\n").map(event).collect()
}

pub(crate) fn types(events: &[Value]) -> Vec<&str> {
    let mut types: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    types.dedup();
    types
}

/// U1, U4: Anthropic's form: the joined deltas are the whole message; the stop sequence is named.
#[tokio::test(flavor = "multi_thread")]
async fn u1_messages() {
    let (asker, rank) = echo(&["--step-ms", "1", "--chunk", "2"]).await;
    let mut body = json!({
        "max_tokens": 500, "system": "s", "messages": [{"role": "user", "content": PROMPT}],
        "stop_sequences": ["stop here", "nowhere"], "ignore_eos": true,
    });
    let whole = asker.ask(Endpoint::Messages, &body).await;
    assert_eq!(whole.status, 200, "{}", whole.text);
    let whole = whole.json();
    let text = format!("system\ns\nuser\n{}", PROMPT.split("stop here").next().unwrap());
    assert_eq!(whole["content"], json!([{"type": "text", "text": text}]));
    assert_eq!(
        (&whole["type"], &whole["role"], &whole["model"]),
        (&json!("message"), &json!("assistant"), &json!("smollm2-135m"))
    );
    assert_eq!((&whole["stop_reason"], &whole["stop_sequence"]), (&json!("stop_sequence"), &json!("stop here")));
    assert!(whole["id"].as_str().unwrap().starts_with("msg_"));
    rank.wait_for(ABORT, 1).await;
    let counted = asker.ask(Endpoint::CountTokens, &body).await.json();
    let usage = &whole["usage"];
    let input = usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(counted, json!({"input_tokens": input}));

    body["stream"] = true.into();
    let answer = asker.ask(Endpoint::Messages, &body).await;
    let events = typed_events(&answer);
    let order = [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(types(&events), order);
    let joined: String = events.iter().filter_map(|event| event["delta"]["text"].as_str()).collect();
    assert_eq!(joined, text);
    let start = &events[0]["message"];
    assert_eq!(
        (&start["content"], &start["stop_reason"], &start["usage"]["output_tokens"]),
        (&json!([]), &Value::Null, &json!(0))
    );
    let delta = &events[events.len() - 2];
    assert_eq!(delta["delta"], json!({"stop_reason": "stop_sequence", "stop_sequence": "stop here"}));
    assert_eq!(delta["usage"]["output_tokens"], usage["output_tokens"]);
    assert_eq!(rank.count(ADD), 2);
}

/// The other ends of a message, and a last turn that is gone on with.
#[tokio::test(flavor = "multi_thread")]
async fn a9_messages_ends_and_prefill() {
    let (asker, _rank) = echo(&[]).await;
    let ask = async |body: Value| asker.ask(Endpoint::Messages, &body).await.json();
    let turns = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "So it"}]);
    let cut = ask(json!({"max_tokens": 2, "messages": turns})).await;
    assert_eq!((&cut["stop_reason"], &cut["usage"]["output_tokens"]), (&json!("max_tokens"), &json!(2)));
    let whole =
        ask(json!({"max_tokens": 100, "messages": turns, "ignore_eos": true, "skip_special_tokens": false})).await;
    let text = whole["content"][0]["text"].as_str().unwrap();
    assert!(text.ends_with("<|im_start|>assistant\nSo it<|im_end|>"), "the prompt ends with the open turn: {text}");
    let ended =
        ask(json!({"max_tokens": 100, "messages": [{"role": "user", "content": "hi"}], "stop_token_ids": [1]})).await;
    assert_eq!((&ended["stop_reason"], &ended["content"]), (&json!("end_turn"), &json!([])));
}

/// U1, U9: a response, whole and as numbered events that end in the whole.
#[tokio::test(flavor = "multi_thread")]
async fn u1_responses() {
    let (asker, _rank) = echo(&["--step-ms", "1", "--chunk", "2", "--wire", "crate010"]).await;
    let mut body = json!({
        "input": PROMPT, "instructions": "s", "ignore_eos": true, "max_output_tokens": 400, "metadata": {"a": "b"},
        "include": ["message.output_text.logprobs"],
    });
    let answer = asker.ask(Endpoint::Responses, &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let whole = answer.json();
    let part = &whole["output"][0]["content"][0];
    assert_eq!(part["text"], format!("system\ns\nuser\n{PROMPT}\nassistant\n"));
    assert_eq!(
        (&whole["object"], &whole["status"], &whole["metadata"]),
        (&json!("response"), &json!("completed"), &json!({"a": "b"}))
    );
    assert_eq!(
        (&whole["store"], &whole["incomplete_details"], &whole["error"]),
        (&json!(false), &Value::Null, &Value::Null)
    );
    let scores = part["logprobs"].as_array().unwrap();
    assert_eq!(whole["usage"]["output_tokens"], scores.len());

    body["stream"] = true.into();
    let events = typed_events(&asker.ask(Endpoint::Responses, &body).await);
    let order = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ];
    assert_eq!(types(&events), order);
    let numbers: Vec<u64> = events.iter().map(|event| event["sequence_number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    let deltas = || events.iter().filter(|event| event["type"] == "response.output_text.delta");
    let joined: String = deltas().map(|event| event["delta"].as_str().unwrap()).collect();
    assert_eq!(joined, part["text"].as_str().unwrap());
    assert_eq!(deltas().flat_map(|event| event["logprobs"].as_array().unwrap()).count(), scores.len(), "U9");
    let last = &events.last().unwrap()["response"];
    assert_eq!((&last["output"][0]["content"], &last["status"]), (&whole["output"][0]["content"], &whole["status"]));
    assert_eq!(last["usage"]["output_tokens"], whole["usage"]["output_tokens"]);
    assert_eq!(last["output"][0]["id"], events[2]["item"]["id"]);
    assert_eq!(last["id"], events[0]["response"]["id"]);
}

/// A3, A5, A6: limits and refusals under this API's names; a cut answer is incomplete.
#[tokio::test(flavor = "multi_thread")]
async fn a6_responses_limits() {
    let (asker, rank) = echo(&["--max-model-len", "100"]).await;
    let ask = async |body: Value| asker.ask(Endpoint::Responses, &body).await;
    for (body, param) in [
        (json!({"input": "x", "max_output_tokens": 0}), "max_output_tokens"),
        (json!({"input": "x", "max_output_tokens": 100}), "max_output_tokens"),
        (json!({"input": "x ".repeat(100)}), "input"),
        (json!({"input": "x", "previous_response_id": "resp_1"}), "previous_response_id"),
        (json!({"input": "x", "temperature": 5}), "temperature"),
        (json!({"input": "x", "text": {"format": {"type": "xml"}}}), "text.format"),
    ] {
        let answer = ask(body.clone()).await;
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!(param)), "{body}: {}", answer.text);
    }
    assert_eq!(rank.count(ADD), 0);
    let cut = ask(json!({"input": "x", "max_output_tokens": 2})).await.json();
    assert_eq!(
        (&cut["status"], &cut["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("max_output_tokens"))
    );
    assert_eq!(cut["output"][0]["status"], "incomplete");
}

/// S5: a response whose engine dies says that it failed, as its last event; a message has its error event.
#[tokio::test(flavor = "multi_thread")]
async fn s5_other_streams_that_fail() {
    for endpoint in [Endpoint::Responses, Endpoint::Messages, Endpoint::Generate] {
        let (asker, mut rank) = echo(&["--step-ms", "100"]).await;
        let body = json!({
            "input": PROMPT, "text": if endpoint == Endpoint::Generate { json!(PROMPT) } else { json!(null) },
            "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 100, "stream": true,
        });
        let mut cursor = asker.fly(endpoint, &body);
        cursor.head().await;
        rank.kill();
        let answer = ask::read(cursor).await;
        assert_eq!(answer.end, End::Failed(Cause::Truncated));
        match endpoint {
            Endpoint::Generate => assert!(answer.events().pop().unwrap()["error"]["message"].is_string()),
            Endpoint::Messages => {
                let last = typed_events(&answer).pop().unwrap();
                assert_eq!((&last["type"], &last["error"]["type"]), (&json!("error"), &json!("api_error")));
            }
            _ => {
                let last = typed_events(&answer).pop().unwrap();
                assert_eq!((&last["type"], &last["response"]["status"]), (&json!("response.failed"), &json!("failed")));
                assert!(last["response"]["error"]["message"].as_str().unwrap().contains("engine 0"), "{last}");
            }
        }
    }
}
