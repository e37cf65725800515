#![expect(clippy::unwrap_used, reason = "tests")]

use serde_json::json;

use super::*;

const VOCABULARY: usize = 1000;

fn chat(extra: Value) -> Result<Request, ApiError> {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    Request::parse(Dialect::ChatCompletions, body.to_string().as_bytes(), VOCABULARY)
}

/// The `param` of a 400, which names the field.
fn refused(result: Result<Request, ApiError>) -> String {
    let error = result.unwrap_err();
    assert_eq!(error.status, 400);
    let body: Value = serde_json::from_slice(error.body()).unwrap();
    assert_eq!(body["error"]["type"], "invalid_request_error");
    let param = body["error"]["param"].as_str().unwrap().to_owned();
    assert!(body["error"]["message"].as_str().unwrap().contains(param.as_str()), "{body}");
    param
}

/// A6: silly values are a 400 that names the field.
#[test]
fn a6_values_are_judged() {
    let huge_bias: Map<String, Value> = (0..1_000_000).map(|id| (id.to_string(), json!(0))).collect();
    for (field, value) in [
        ("temperature", json!(2.1)),
        ("temperature", json!(-0.1)),
        ("temperature", json!("hot")),
        ("temperature", json!(true)),
        ("top_p", json!(0)),
        ("top_p", json!(1.01)),
        ("top_k", json!(128)),
        ("top_k", json!(-2)),
        ("top_k", json!(1.5)),
        ("min_p", json!(-0.1)),
        ("min_p", json!(1.1)),
        ("frequency_penalty", json!(2.01)),
        ("presence_penalty", json!(-3)),
        ("repetition_penalty", json!(0)),
        ("repetition_penalty", json!(2.5)),
        ("seed", json!(9_223_372_036_854_775_808_u64)),
        ("seed", json!(1e300)),
        ("n", json!(0)),
        ("n", json!(1_000_000_000)),
        ("n", json!("1")),
        ("max_tokens", json!(0)),
        ("max_tokens", json!(-1)),
        ("max_tokens", json!(9_223_372_036_854_775_808_u64)),
        ("max_completion_tokens", json!(0)),
        ("min_tokens", json!(-1)),
        ("logprobs", json!(1)),
        ("logit_bias", json!({"5": 101})),
        ("logit_bias", json!({"1000": 1})),
        ("logit_bias", json!({"x": 1})),
        ("logit_bias", Value::Object(huge_bias)),
        ("logit_bias", json!([1])),
        ("stop_token_ids", json!([1000])),
        ("stop_token_ids", json!(vec![1; 17])),
        ("stop_token_ids", json!("a")),
        ("stream_options", json!(null)),
        ("ignore_eos", json!("yes")),
        ("skip_special_tokens", json!(1)),
        ("response_format", json!({"type": "xml"})),
        ("response_format", json!({"type": "json_schema", "json_schema": {}})),
        ("tools", json!("f")),
        ("tools", json!([{"type": "function"}])),
        ("tool_choice", json!("required")),
        ("tool_choice", json!({"type": "function", "function": {"name": "f"}})),
        ("chat_template_kwargs", json!([])),
    ] {
        if !value.is_null() {
            assert_eq!(refused(chat(json!({ (field): value.clone() }))), field, "{field}: {value}");
        }
    }
    assert_eq!(refused(chat(json!({"top_logprobs": 2_000_000_000, "logprobs": true}))), "top_logprobs");
    assert_eq!(refused(chat(json!({"top_logprobs": 3}))), "top_logprobs");
    assert_eq!(refused(chat(json!({"guided_regex": "a", "guided_json": {}}))), "guided_regex");
}

/// A6: the borders of the ranges are in.
#[test]
fn a6_borders_pass() {
    for extra in [
        json!({"temperature": 0, "top_p": 1, "top_k": 127, "min_p": 0, "seed": i64::MAX}),
        json!({"temperature": 2, "top_p": 0.001, "top_k": -1, "min_p": 1, "seed": i64::MIN, "n": MAX_CHOICES}),
        json!({"frequency_penalty": -2, "presence_penalty": 2, "repetition_penalty": 2, "logprobs": true, "top_logprobs": 20}),
        json!({"logit_bias": {"0": -100, "999": 100}, "stop_token_ids": [0, 999], "max_tokens": 5.0}),
        json!({"temperature": null, "stop": null, "n": null, "tools": null, "logit_bias": null, "response_format": null}),
    ] {
        chat(extra).unwrap();
    }
}

/// A2: unsupported fields are refused by name, their neutral values and unknown fields pass.
#[test]
fn a2_unsupported_fields() {
    for (name, _) in REFUSED {
        assert_eq!(refused(chat(json!({ (*name): 7 }))), *name);
        chat(json!({ (*name): null })).unwrap();
    }
    chat(json!({"best_of": 1, "length_penalty": 1.0, "use_beam_search": false, "modalities": ["text"]})).unwrap();
    chat(json!({"x_vendor": {"a": 1}, "user": "u", "store": true, "metadata": {}})).unwrap();
}

/// U7: empty stop strings are refused; null and an empty list mean none.
#[test]
fn u7_stop() {
    for stop in [json!(""), json!(["a", ""]), json!([1]), json!(5), json!(vec!["a"; 17]), json!("a".repeat(1025))] {
        assert_eq!(refused(chat(json!({ "stop": stop }))), "stop");
    }
    for stop in [json!(null), json!([])] {
        assert!(chat(json!({ "stop": stop })).unwrap().output.stops.is_empty());
    }
    assert_eq!(chat(json!({"stop": "a"})).unwrap().output.stops, ["a"]);
}

/// A3: `max_completion_tokens` wins.
#[test]
fn a3_max_completion_tokens_wins() {
    let sampling = chat(json!({"max_tokens": 5, "max_completion_tokens": 7})).unwrap().sampling;
    assert_eq!((sampling.max_tokens, sampling.max_tokens_field), (Some(7), "max_completion_tokens"));
    assert_eq!(chat(json!({"max_tokens": 5})).unwrap().sampling.max_tokens, Some(5));
    assert_eq!(chat(json!({})).unwrap().sampling.max_tokens, None);
}

fn messages(messages: Value) -> Result<Vec<Value>, ApiError> {
    match chat(json!({ "messages": messages }))?.input {
        Input::Chat { conversation, .. } => Ok(conversation.messages),
        Input::Prompts { .. } => Ok(Vec::new()),
    }
}

/// A1: ordinary history, as clients keep it.
#[test]
fn a1_history() {
    let shaped = messages(json!([
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "2"},
        {"role": "assistant"},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": null, "refusal": "no", "reasoning_content": "hm", "audio": null},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "developer", "content": "d", "name": "n"},
    ]))
    .unwrap();
    assert_eq!(shaped[2]["content"], "");
    assert_eq!(shaped[2]["tool_calls"][0]["function"]["arguments"], json!({"x": 1}));
    assert_eq!(shaped[4]["content"], "");
    assert_eq!((&shaped[6]["content"], &shaped[6]["reasoning_content"]), (&json!("no"), &json!("hm")));
    assert!(shaped[6].get("audio").is_none());
    assert_eq!(shaped[7]["content"], json!([{"type": "text", "text": "no"}]));
}

/// A1: what is no history is refused, with the place.
#[test]
fn a1_what_is_no_history() {
    let param = |m: Value| refused(chat(json!({ "messages": m })));
    assert_eq!(param(json!([])), "messages");
    assert_eq!(param(json!("hi")), "messages");
    assert_eq!(param(json!([{"role": "user", "content": "a"}, "b"])), "messages[1]");
    assert_eq!(param(json!([{"role": "robot", "content": "a"}])), "messages[0].role");
    assert_eq!(param(json!([{"role": "user", "content": null}])), "messages[0].content");
    assert_eq!(param(json!([{"role": "user", "content": 5}])), "messages[0].content");
    let image = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]);
    assert_eq!(param(image), "messages[0].content[0]");
}

fn completion(body: Value) -> Result<Request, ApiError> {
    Request::parse(Dialect::Completions, body.to_string().as_bytes(), VOCABULARY)
}

/// A7: the four forms of a prompt.
#[test]
fn a7_prompts() {
    let prompts = |prompt: Value| match completion(json!({ "prompt": prompt })).unwrap().input {
        Input::Prompts { prompts, .. } => prompts,
        Input::Chat { .. } => Vec::new(),
    };
    assert_eq!(prompts(json!("a")), [Prompt::Text("a".into())]);
    assert_eq!(prompts(json!(["a", "b"])), [Prompt::Text("a".into()), Prompt::Text("b".into())]);
    assert_eq!(prompts(json!([1, 2])), [Prompt::Ids(vec![1, 2])]);
    assert_eq!(prompts(json!([[1], [2]])), [Prompt::Ids(vec![1]), Prompt::Ids(vec![2])]);
    for bad in [json!([]), json!(null), json!(5), json!([1000]), json!([-1]), json!([[1.5]]), json!([{}])] {
        assert_eq!(refused(completion(json!({ "prompt": bad }))), "prompt");
    }
    assert_eq!(refused(completion(json!({"prompt": ["a", "b"], "n": 100}))), "n");
    assert_eq!(refused(completion(json!({"prompt": "a", "suffix": "b"}))), "suffix");
    assert_eq!(refused(completion(json!({"prompt": "a", "best_of": 2}))), "best_of");
    assert_eq!(refused(completion(json!({"prompt": "a", "echo": true, "logprobs": 1}))), "echo");
}

fn grammar(extra: Value) -> Option<Grammar> {
    chat(extra).unwrap().sampling.constraint.map(|constraint| constraint.grammar)
}

/// Each field that constrains an answer is one of the wire's kinds.
#[test]
fn constraints_become_the_wires() {
    let schema = json!({"type": "object", "properties": {"b": {}, "a": {}}});
    let wire = Some(Grammar::JsonSchema(schema.to_string()));
    let any = Some(Grammar::JsonSchema(r#"{"type":"object"}"#.into()));
    let texts = Some(Grammar::Ebnf(r#"root ::= "yes" | "a \"b\"\\\n""#.into()));
    let tag = json!({"type": "structural_tag", "format": {"type": "any_text"}});
    for (extra, expected) in [
        (json!({"response_format": {"type": "text"}}), None),
        (json!({"response_format": {"type": "json_object"}}), any.clone()),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}),
            wire.clone(),
        ),
        (json!({"response_format": tag}), Some(Grammar::StructuralTag(tag.to_string()))),
        (json!({"structural_tag": tag.to_string()}), Some(Grammar::StructuralTag(tag.to_string()))),
        (json!({"guided_json": schema}), wire.clone()),
        (json!({"guided_json": schema.to_string()}), wire.clone()),
        (json!({"json_schema": schema.to_string()}), wire.clone()),
        (json!({"guided_json_object": false}), None),
        (json!({"guided_json_object": true}), any.clone()),
        (json!({"guided_regex": "a+"}), Some(Grammar::Regex("a+".into()))),
        (json!({"regex": "a+"}), Some(Grammar::Regex("a+".into()))),
        (json!({"guided_grammar": "root ::= \"a\""}), Some(Grammar::Ebnf("root ::= \"a\"".into()))),
        (json!({"guided_choice": ["yes", "a \"b\"\\\n"]}), texts.clone()),
        (json!({"structured_outputs": {"choice": ["yes", "a \"b\"\\\n"], "disable_any_whitespace": true}}), texts),
        (json!({"structured_outputs": {"json": schema}}), wire),
        (json!({"structured_outputs": {"json_object": true, "regex": null}}), any),
        (json!({"structured_outputs": {"regex": "a"}}), Some(Grammar::Regex("a".into()))),
        (json!({"structured_outputs": {"grammar": "a"}}), Some(Grammar::Ebnf("a".into()))),
    ] {
        assert_eq!(grammar(extra.clone()), expected, "{extra}");
    }
}

/// A6: constraints that are none are refused by the name of their field.
#[test]
fn a6_what_is_no_constraint() {
    for (field, value) in [
        ("guided_json", json!("{")),
        ("guided_json", json!([])),
        ("guided_json", json!({"x": "a".repeat(300_000)})),
        ("guided_regex", json!("")),
        ("guided_regex", json!({})),
        ("guided_choice", json!([])),
        ("guided_choice", json!(["a", ""])),
        ("guided_choice", json!(["a", 1])),
        ("guided_choice", json!("a")),
        ("guided_json_object", json!("yes")),
        ("guided_whitespace_pattern", json!(" *")),
        ("structural_tag", json!("tag")),
        ("structured_outputs", json!("json")),
        ("structured_outputs", json!({"regex": "a", "choice": ["a"]})),
        ("structured_outputs", json!({"whitespace_pattern": " "})),
    ] {
        assert_eq!(refused(chat(json!({ (field): value.clone() }))), field, "{field}: {value}");
    }
    assert_eq!(
        refused(chat(json!({"response_format": {"type": "json_object"}, "guided_regex": "a"}))),
        "response_format"
    );
}
