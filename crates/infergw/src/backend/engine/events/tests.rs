#![expect(clippy::unwrap_used, reason = "tests")]

use std::sync::LazyLock;

use proptest::prelude::*;

use super::super::sample_models::byte_level;
use super::*;

const IDENTITY: Identity<'_> = Identity { id: "chatcmpl-1", created: 7, model: "m\"\\\u{7f}é" };

static TABLE: LazyLock<Arc<TokenTable>> = LazyLock::new(|| Arc::new(TokenTable::new(&byte_level())));

/// The JSON values of the events in `out`, each of which is one line of data.
fn events(out: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(out).unwrap();
    assert!(text.is_empty() || text.ends_with("\n\n"));
    let events = text.split_terminator("\n\n");
    events.map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap()).collect()
}

fn chat_event(choice: usize, delta: Value, logprobs: Value, reason: Value, usage: bool) -> Value {
    let mut event = json!({"id": IDENTITY.id, "object": "chat.completion.chunk", "created": 7, "model": IDENTITY.model,
        "choices": [{"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": reason}]});
    if usage {
        event["usage"] = Value::Null;
    }
    event
}

proptest! {
    /// Every event is what `serde_json` would have written, for any text.
    #[test]
    fn events_are_json(text in any::<String>(), choice in 0usize..200, usage in any::<bool>()) {
        let table = Arc::clone(&TABLE);
        let delta = Delta { text: text.clone(), ..Delta::default() };
        let mut out = Vec::new();
        let chat = Events::new(Dialect::ChatCompletions, IDENTITY, usage, Arc::clone(&table));
        chat.role(&mut out, choice);
        chat.delta(&mut out, choice, &delta, 0);
        chat.finish(&mut out, choice, Reason::Length);
        prop_assert_eq!(events(&out), [
            chat_event(choice, json!({"role": "assistant", "content": ""}), Value::Null, Value::Null, usage),
            chat_event(choice, json!({"content": text}), Value::Null, Value::Null, usage),
            chat_event(choice, json!({}), Value::Null, json!("length"), usage),
        ]);
        let mut out = Vec::new();
        let completions = Events::new(Dialect::Completions, IDENTITY, usage, Arc::clone(&table));
        completions.role(&mut out, choice);
        completions.delta(&mut out, choice, &delta, 0);
        let event = events(&out).pop().unwrap();
        prop_assert_eq!(&event["choices"], &json!([{"index": choice, "text": text, "logprobs": null, "finish_reason": null}]));
        prop_assert_eq!(event["object"].as_str(), Some("text_completion"));
    }
}

/// S7: the usage event has no choices and comes only for those who asked.
#[test]
fn s7_usage_event() {
    let usage = Usage { prompt_tokens: 3, completion_tokens: 4, cached_tokens: 2 };
    for (wanted, count) in [(true, 1), (false, 0)] {
        let mut out = Vec::new();
        Events::new(Dialect::ChatCompletions, IDENTITY, wanted, Arc::clone(&TABLE)).usage(&mut out, usage);
        let events = events(&out);
        assert_eq!(events.len(), count);
        if let Some(event) = events.first() {
            assert_eq!(event["choices"], json!([]));
            let expected = json!({"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7,
                "prompt_tokens_details": {"cached_tokens": 2}});
            assert_eq!(event["usage"], expected);
        }
    }
}

/// U9: an entry has the token's bytes, also where they are no text by themselves; minus infinity is a number.
#[test]
fn u9_logprobs_carry_bytes() {
    let tokenizer = byte_level();
    let emoji = tokenizer.token_to_id("ðŁ").unwrap();
    let hello = tokenizer.token_to_id("hello").unwrap();
    let tokens = vec![
        TokenLogprob { id: emoji, logprob: -0.5, top: vec![(hello, -0.1), (emoji, -0.5)] },
        TokenLogprob { id: hello, logprob: f64::NEG_INFINITY, top: Vec::new() },
    ];
    let mut out = Vec::new();
    let delta = Delta { text: "hello".into(), logprobs: tokens.clone(), ..Delta::default() };
    Events::new(Dialect::ChatCompletions, IDENTITY, false, Arc::clone(&TABLE)).delta(&mut out, 0, &delta, 0);
    let event = events(&out).pop().unwrap();
    let content = &event["choices"][0]["logprobs"]["content"];
    assert_eq!(content[0]["bytes"], json!([0xF0, 0x9F]));
    assert_eq!(content[0]["token"], "\u{FFFD}");
    assert_eq!(content[0]["top_logprobs"][0], json!({"token": "hello", "logprob": -0.1, "bytes": b"hello"}));
    assert_eq!(content[1]["logprob"], -9999.0);
    assert_eq!(content[1]["top_logprobs"], json!([]));

    let mut out = Vec::new();
    Events::new(Dialect::Completions, IDENTITY, false, Arc::clone(&TABLE)).delta(&mut out, 0, &delta, 10);
    let event = events(&out).pop().unwrap();
    let logprobs = &event["choices"][0]["logprobs"];
    assert_eq!(logprobs["text_offset"], json!([10, 11]));
    assert_eq!(logprobs["tokens"], json!(["\u{FFFD}", "hello"]));
    assert_eq!(logprobs["top_logprobs"][0]["hello"], -0.1);
}

/// The body carries what the stream carries.
#[test]
fn body_of_a_whole_answer() {
    let choice = |text: &str| WholeChoice {
        text: text.into(),
        logprobs: None,
        reason: Some(Reason::Stop),
        ..WholeChoice::default()
    };
    let usage = Usage { prompt_tokens: 1, completion_tokens: 2, cached_tokens: 0 };
    let chat = body(Dialect::ChatCompletions, IDENTITY, &[choice("a"), choice("b")], usage, &TABLE);
    let chat: Value = serde_json::from_slice(&chat).unwrap();
    assert_eq!(chat["object"], "chat.completion");
    assert_eq!(chat["choices"][1]["index"], 1);
    assert_eq!(chat["choices"][1]["message"], json!({"role": "assistant", "content": "b", "refusal": null}));
    assert_eq!(chat["choices"][0]["finish_reason"], "stop");
    assert_eq!(chat["usage"]["total_tokens"], 3);
    let text: Value =
        serde_json::from_slice(&body(Dialect::Completions, IDENTITY, &[choice("a")], usage, &TABLE)).unwrap();
    assert_eq!((&text["object"], &text["choices"][0]["text"]), (&json!("text_completion"), &json!("a")));
}
