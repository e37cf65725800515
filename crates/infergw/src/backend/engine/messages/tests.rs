#![expect(clippy::unwrap_used, reason = "tests")]

use super::*;

fn read_body(body: Value) -> Result<Map<String, Value>, ApiError> {
    let Value::Object(mut body) = body else { unreachable!() };
    body.entry("max_tokens").or_insert(json!(10));
    read(body, false)
}

fn messages(turns: Value) -> Value {
    read_body(json!({"messages": turns})).unwrap()["messages"].clone()
}

#[test]
fn a1_turns_become_messages() {
    let system =
        json!([{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "b"}]);
    let body = read_body(json!({"system": system, "messages": [{"role": "user", "content": "x"}]})).unwrap();
    let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
    assert_eq!(body["messages"], json!([{"role": "system", "content": parts}, {"role": "user", "content": "x"}]));

    let turns = json!([
        {"role": "user", "content": [{"type": "text", "text": "look it up"}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "text", "text": "I will"},
            {"type": "tool_use", "id": "t1", "name": "find", "input": {"q": 1}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "found"}], "is_error": false},
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "doc"}},
            {"type": "text", "text": "and?"},
        ]},
    ]);
    let expected = json!([
        {"role": "user", "content": [{"type": "text", "text": "look it up"}]},
        {"role": "assistant", "content": "I will", "reasoning_content": "hm", "tool_calls": [
            {"id": "t1", "type": "function", "function": {"name": "find", "arguments": "{\"q\":1}"}},
        ]},
        {"role": "tool", "tool_call_id": "t1", "content": [{"type": "text", "text": "found"}]},
        {"role": "user", "content": [{"type": "text", "text": "doc"}, {"type": "text", "text": "and?"}]},
    ]);
    assert_eq!(messages(turns), expected);
}

#[test]
fn a9_a_last_turn_of_the_assistants_is_gone_on_with() {
    let body = |last: Value| read_body(json!({"messages": [{"role": "user", "content": "x"}, last]})).unwrap();
    assert_eq!(body(json!({"role": "assistant", "content": "So"}))["continue_final_message"], true);
    assert!(!body(json!({"role": "user", "content": "x"})).contains_key("continue_final_message"));
    let call = json!({"role": "assistant", "content": [{"type": "tool_use", "id": "i", "name": "n", "input": {}}]});
    assert!(!body(call).contains_key("continue_final_message"));
}

#[test]
fn tools_thinking_and_formats_get_the_dialects_names() {
    let body = read_body(json!({
        "messages": [{"role": "user", "content": "x"}],
        "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}, "cache_control": null}],
        "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": true},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
        "stop_sequences": ["a"], "n": 3, "logprobs": true, "seed": 1, "service_tier": "auto",
    }))
    .unwrap();
    let function = json!({"name": "f", "parameters": {"type": "object"}, "description": "d"});
    assert_eq!(body["tools"], json!([{"type": "function", "function": function}]));
    assert_eq!(body["tool_choice"], json!({"type": "function", "function": {"name": "f"}}));
    assert_eq!(body["parallel_tool_calls"], false);
    assert_eq!(body["chat_template_kwargs"], json!({"enable_thinking": true, "thinking": true}));
    assert_eq!((&body["stop"], &body["reasoning_effort"]), (&json!(["a"]), &json!("low")));
    assert_eq!(body["response_format"]["json_schema"]["schema"], json!({"type": "object"}));
    assert!(!body.contains_key("n") && !body.contains_key("logprobs") && body["seed"] == 1);
    for (given, expected) in [("auto", "auto"), ("any", "required"), ("none", "none")] {
        let choice = json!({"messages": [{"role": "user", "content": "x"}], "tool_choice": {"type": given}});
        assert_eq!(read_body(choice).unwrap()["tool_choice"], expected);
    }
}

#[test]
fn a6_what_cannot_be_honoured_is_named() {
    let user = json!({"role": "user", "content": "x"});
    for (body, said) in [
        (json!({}), "'messages'"),
        (json!({"messages": []}), "'messages'"),
        (json!({"messages": [5]}), "'messages[0]'"),
        (json!({"messages": [{"role": "tool", "content": "x"}]}), "'messages[0].role'"),
        (json!({"messages": [user, {"role": "user", "content": [{"type": "image"}]}]}), "'messages[1].content[0]'"),
        (json!({"messages": [{"role": "user"}]}), "'messages[0].content'"),
        (
            json!({"messages": [{"role": "assistant", "content": [{"type": "server_tool_use"}]}]}),
            "'messages[0].content[0]'",
        ),
        (json!({"messages": [user], "system": 5}), "'system'"),
        (json!({"messages": [user], "max_tokens": null}), "'max_tokens'"),
        (json!({"messages": [user], "mcp_servers": [{"url": "x"}]}), "'mcp_servers'"),
        (json!({"messages": [user], "tools": [{"type": "web_search_20250305", "name": "w"}]}), "'tools[0].type'"),
        (json!({"messages": [user], "tools": [{"name": "w"}]}), "'tools[0]'"),
        (json!({"messages": [user], "tool_choice": {"type": "tool"}}), "'tool_choice'"),
        (json!({"messages": [user], "thinking": {"type": "maybe"}}), "'thinking'"),
        (json!({"messages": [user], "output_config": {"format": {"type": "xml"}}}), "'output_config.format'"),
        (json!({"messages": [user], "output_config": {"effort": 3}}), "'output_config.effort'"),
        (json!({"messages": [user], "output_config": "low"}), "'output_config'"),
        (json!({"messages": [user], "output_format": {"type": "xml"}}), "'output_format'"),
    ] {
        let error = read_body(body.clone()).unwrap_err();
        let text = String::from_utf8(error.body().to_vec()).unwrap();
        assert!(error.status == 400 && text.contains(said), "{body}: {text}");
    }
}
