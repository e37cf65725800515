//! The engine path against TokenSpeed's own sockets: an engine that answers with the prompt's tokens, so that the text must
//! come back as it was.
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod ask;
mod blocks;
mod calls;
mod endpoints;
mod rank;

use std::time::{Duration, Instant};

use ask::Asker;
use infergw::config::Timeouts;
use infergw::types::{Cause, End, Endpoint};
use rank::Rank;
use serde_json::{Value, json};

const ADD: u8 = 0;
const ABORT: u8 = 1;
const PROMPT: &str = "Hello, wörld! 日本語 😀👨‍👩‍👧 \"quoted\"\n\n  two  spaces, stop here and go on";

/// A ready group with an echoing rank.
async fn echo(arguments: &[&str]) -> (Asker, Rank) {
    let asker = Asker::start(Timeouts::default()).await;
    let rank = Rank::start(asker.address(), &[&["--echo", "--eos", "2"], arguments].concat());
    asker.until_ready(true).await;
    (asker, rank)
}

/// U1, U3: the echoed text is the prompt, streamed and not, whatever the batching; usage counts the end token.
#[tokio::test(flavor = "multi_thread")]
async fn u1_echo_is_the_prompt() {
    for chunk in ["1", "3", "100"] {
        let (asker, _rank) = echo(&["--chunk", chunk, "--step-ms", "1"]).await;
        let whole = asker.complete(&json!({"prompt": PROMPT})).await;
        assert_eq!((whole.status, whole.end), (200, End::Done));
        let body = whole.json();
        assert_eq!(body["choices"][0]["text"], PROMPT);
        assert_eq!(body["choices"][0]["finish_reason"], "stop");
        let usage = &body["usage"];
        assert_eq!(usage["completion_tokens"].as_u64().unwrap(), usage["prompt_tokens"].as_u64().unwrap() + 1);

        let body = json!({"prompt": PROMPT, "stream": true, "stream_options": {"include_usage": true}});
        let streamed = asker.complete(&body).await;
        assert_eq!((streamed.status, streamed.end), (200, End::Done));
        assert_eq!(streamed.joined(0), PROMPT);
        assert_eq!(streamed.finishes(0), ["stop"]);
        let events = streamed.events();
        for key in ["prompt_tokens", "completion_tokens", "total_tokens"] {
            assert_eq!(events.last().unwrap()["usage"][key], usage[key], "the same, cache hits apart");
        }
        assert!(events.iter().rev().skip(1).all(|event| event["usage"].is_null()), "S7");
    }
}

/// A9: the chat prompt is the template's, token for token: the echo shows it with its control tokens.
#[tokio::test(flavor = "multi_thread")]
async fn a9_echo_of_a_chat() {
    let (asker, _rank) = echo(&[]).await;
    let messages = json!([{"role": "system", "content": "s"}, {"role": "user", "content": "hi 😀"}]);
    let rendered = "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nhi 😀<|im_end|>\n<|im_start|>assistant\n";
    let body = json!({"messages": messages, "ignore_eos": true, "skip_special_tokens": false});
    let answer = asker.chat(&body).await.json();
    assert_eq!(answer["choices"][0]["message"]["content"], format!("{rendered}<|im_end|>"));
    let body = json!({"messages": messages, "ignore_eos": true, "stream": true});
    let streamed = asker.chat(&body).await;
    let events = streamed.events();
    assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    assert_eq!(streamed.joined(0), "system\ns\nuser\nhi 😀\nassistant\n");
}

/// U4, U5, U6: the text ends before the stop string, and the engine gets exactly one abort for that id, at once.
#[tokio::test(flavor = "multi_thread")]
async fn u6_stop_string_aborts_the_engine() {
    let (asker, rank) = echo(&["--step-ms", "20"]).await;
    for stream in [false, true] {
        let body = json!({"prompt": PROMPT, "stop": ["stop here", "nowhere"], "stream": stream});
        let answer = asker.complete(&body).await;
        let (text, finish) = if stream {
            (answer.joined(0), answer.finishes(0)[0].clone())
        } else {
            let choice = answer.json()["choices"][0].clone();
            (choice["text"].as_str().unwrap().to_owned(), choice["finish_reason"].as_str().unwrap().to_owned())
        };
        assert_eq!(text, PROMPT.split("stop here").next().unwrap());
        assert_eq!(finish, "stop");
        rank.wait_for(ABORT, if stream { 2 } else { 1 }).await;
    }
    // One more request, so that a second abort would have arrived before it.
    asker.complete(&json!({"prompt": "a"})).await;
    assert_eq!((rank.count(ADD), rank.count(ABORT)), (3, 2));
    for (_, add) in rank.received().iter().filter(|(kind, _)| *kind == ADD) {
        let text = add.to_string();
        assert!(!text.contains("stop here"), "no stop string on the wire: {text}");
    }
}

/// A7, D4: `n` choices of two prompts: prompt-major indexes, one finish each, usage summed once, distinct ids on the wire.
#[tokio::test(flavor = "multi_thread")]
async fn a7_choices_and_prompts() {
    let (asker, rank) = echo(&[]).await;
    let body =
        json!({"prompt": ["one", "two words"], "n": 3, "stream": true, "stream_options": {"include_usage": true}});
    let answer = asker.complete(&body).await;
    assert_eq!(answer.end, End::Done);
    for choice in 0..6 {
        assert_eq!(answer.joined(choice), if choice < 3 { "one" } else { "two words" });
        assert_eq!(answer.finishes(choice), ["stop"]);
    }
    let events = answer.events();
    let usage = &events.last().unwrap()["usage"];
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(3), &json!(3 * (2 + 3))));
    let ids: std::collections::HashSet<&str> = events.iter().map(|event| event["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), 1, "one id");
    assert_eq!(rank.count(ADD), 6);
    let rids: std::collections::HashSet<String> =
        rank.received().iter().map(|(_, add)| add[0][1].to_string()).collect();
    assert_eq!(rids.len(), 6, "{rids:?} {:?}", rank.received().first());
}

/// A5, A6: what is refused is refused before any engine is touched, as JSON with its status, streaming or not.
#[tokio::test(flavor = "multi_thread")]
async fn a5_nothing_reaches_the_wire() {
    let (asker, rank) = echo(&["--max-model-len", "64"]).await;
    for stream in [false, true] {
        for (extra, param) in [
            (json!({"max_tokens": 64}), "max_tokens"),
            (json!({"temperature": 3}), "temperature"),
            (json!({"stop": ""}), "stop"),
            (json!({"prompt": "a b ".repeat(64)}), "prompt"),
        ] {
            let mut body = json!({"prompt": "hi", "stream": stream});
            body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            let answer = asker.complete(&body).await;
            assert_eq!((answer.status, answer.end), (400, End::Failed(Cause::Refused)));
            assert_eq!(answer.json()["error"]["param"], param);
        }
    }
    assert_eq!(asker.complete(&json!({"prompt": "hi"})).await.status, 200);
    assert_eq!(rank.count(ADD), 1);
}

/// R6: an explicit rank out of range is a 400.
#[tokio::test(flavor = "multi_thread")]
async fn r6_rank_out_of_range() {
    let (asker, _rank) = echo(&[]).await;
    let answer = asker.complete(&json!({"prompt": "hi", "data_parallel_rank": 7})).await;
    assert_eq!(answer.status, 400);
    assert_eq!(answer.json()["error"]["param"], "data_parallel_rank");
    assert_eq!(asker.complete(&json!({"prompt": "hi", "data_parallel_rank": 0})).await.status, 200);
}

/// U9: one log probability per token with its bytes, in order; none for those who did not ask.
#[tokio::test(flavor = "multi_thread")]
async fn u9_logprobs() {
    let (asker, _rank) = echo(&["--wire", "crate010"]).await;
    let body = json!({"messages": [{"role": "user", "content": "😀 stop"}], "ignore_eos": true, "logprobs": true, "stop": "stop"});
    let answer = asker.chat(&body).await.json();
    let entries = answer["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    assert_eq!(entries.len() as u64, answer["usage"]["completion_tokens"].as_u64().unwrap());
    assert_eq!(entries[0]["logprob"], -0.125);
    assert_eq!(entries[1]["logprob"], -0.25);
    let bytes = |entry: &Value| {
        entry["bytes"].as_array().unwrap().iter().map(|b| b.as_u64().unwrap() as u8).collect::<Vec<_>>()
    };
    let joined: Vec<u8> = entries.iter().flat_map(bytes).collect();
    assert!(String::from_utf8(joined).unwrap().ends_with("😀 stop"));

    let mut streaming = body;
    streaming["stream"] = true.into();
    let events = asker.chat(&streaming).await.events();
    let streamed = events.iter().filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array()).flatten();
    assert_eq!(streamed.cloned().collect::<Vec<_>>(), entries);
}

/// R8: a tokenless abort is an error status with the engine's words where it has some.
#[tokio::test(flavor = "multi_thread")]
async fn r8_refusals_of_the_engine() {
    let body = json!({"messages": [{"role": "user", "content": "x"}], "logprobs": true});
    for (wire, status) in [("crate010", 400), ("py011", 502)] {
        let (asker, _rank) = echo(&["--wire", wire, "--no-logprobs"]).await;
        for stream in [false, true] {
            let mut body = body.clone();
            body["stream"] = stream.into();
            let answer = asker.chat(&body).await;
            assert_eq!(answer.status, status, "{}", answer.text);
            assert_eq!(answer.json()["error"]["message"].as_str().unwrap().contains("logprob"), wire == "crate010");
        }
    }
    let (asker, _rank) = echo(&[]).await;
    let body = json!({"messages": [{"role": "user", "content": "x"}], "logprobs": true, "top_logprobs": 2});
    let answer = asker.chat(&body).await;
    assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("top_logprobs")), "older engines");
}

/// R8: an engine that stays silent ends at the first-output deadline, with an abort.
#[tokio::test(flavor = "multi_thread")]
async fn r8_first_output_deadline() {
    let timeouts = Timeouts { first_event: Duration::from_millis(300), ..Timeouts::default() };
    let asker = Asker::start(timeouts).await;
    let rank = Rank::start(asker.address(), &["--ttft-ms", "600000"]);
    asker.until_ready(true).await;
    for (stream, aborts) in [(true, 1), (false, 2)] {
        let answer = asker.complete(&json!({"prompt": "hi", "stream": stream})).await;
        assert_eq!((answer.status, answer.end), (504, End::Failed(Cause::Timeout)));
        rank.wait_for(ABORT, aborts).await;
    }
}

/// D1: a client that goes away is an abort for that id, within a second.
#[tokio::test(flavor = "multi_thread")]
async fn d1_client_gone() {
    let (asker, rank) = echo(&["--step-ms", "50"]).await;
    let mut cursor = asker.fly(Endpoint::Completions, &json!({"prompt": PROMPT, "stream": true, "n": 2}));
    cursor.head().await;
    let gone = Instant::now();
    drop(cursor);
    rank.wait_for(ABORT, 2).await;
    assert!(gone.elapsed() < Duration::from_secs(5), "loaded machines are slow, minutes are not");
    assert_eq!(asker.backend.status().in_flight, 0);
}

/// M1: a client that reads nothing costs the bound of the log and the text, not an event per token.
#[tokio::test(flavor = "multi_thread")]
async fn m1_a_slow_client_merges_tokens() {
    let (asker, _rank) = echo(&["--step-ms", "0.1", "--max-model-len", "40000"]).await;
    let prompt = "word ".repeat(8000);
    let mut cursor = asker.fly(Endpoint::Completions, &json!({"prompt": prompt, "stream": true}));
    cursor.head().await;
    // The engine steps both requests together: when the second is done, so is the first, which nobody has read.
    assert_eq!(asker.complete(&json!({"prompt": prompt})).await.end, End::Done);
    let answer = ask::read(cursor).await;
    assert_eq!(answer.joined(0), prompt);
    assert_eq!(answer.end, End::Done);
    let events = answer.events().len();
    assert!(events < 5000, "8000 tokens in {events} events");
}

/// R3: a killed engine ends its streams with an error event, readiness goes off, and a restarted engine is served again.
#[tokio::test(flavor = "multi_thread")]
async fn r3_kill_and_return() {
    let (asker, mut rank) = echo(&["--step-ms", "100"]).await;
    let mut cursor = asker.fly(Endpoint::Completions, &json!({"prompt": PROMPT, "stream": true}));
    cursor.head().await;
    let killed = Instant::now();
    rank.kill();
    let answer = ask::read(cursor).await;
    assert!(killed.elapsed() < Duration::from_secs(10), "{:?}", killed.elapsed());
    assert_eq!(answer.end, End::Failed(Cause::Truncated));
    let error = answer.events().pop().unwrap();
    assert!(error["error"]["message"].as_str().unwrap().contains("engine 0"), "{error}");
    assert!(answer.finishes(0).is_empty(), "no invented finish");

    asker.until_ready(false).await;
    assert!(asker.backend.status().reason.contains("engine 0"), "{:?}", asker.backend.status());
    let refused = asker.complete(&json!({"prompt": "hi"})).await;
    assert_eq!((refused.status, refused.end), (503, End::Failed(Cause::Unreachable)));

    let _again = Rank::start(asker.address(), &["--echo", "--eos", "2"]);
    asker.until_ready(true).await;
    assert_eq!(asker.complete(&json!({"prompt": "hi"})).await.json()["choices"][0]["text"], "hi");
}

/// The group is not ready before its engine came, and says what it waits for; its model is known.
#[tokio::test(flavor = "multi_thread")]
async fn status_before_the_engine() {
    let asker = Asker::start(Timeouts::default()).await;
    let status = asker.backend.status();
    assert!(!status.ready);
    assert_eq!(status.reason, format!("waiting for engine 0 of {}", asker.address()));
    assert_eq!(status.models, ["smollm2-135m"]);
    assert_eq!(asker.complete(&json!({"prompt": "hi"})).await.status, 503);
}
