#![expect(clippy::unwrap_used, reason = "tests")]

use super::*;

fn read_body(body: Value) -> Result<(Responses, Map<String, Value>), ApiError> {
    let Value::Object(body) = body else { unreachable!() };
    read(body)
}

fn messages(input: Value) -> Value {
    read_body(json!({"input": input})).unwrap().1["messages"].clone()
}

#[test]
fn a1_items_become_messages() {
    assert_eq!(messages(json!("hi")), json!([{"role": "user", "content": "hi"}]));
    let told = read_body(json!({"input": "hi", "instructions": "be"})).unwrap().1;
    assert_eq!(told["messages"][0], json!({"role": "system", "content": "be"}));
    let items = json!([
        {"role": "developer", "content": "d"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]},
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "id": "m", "status": "completed",
            "content": [{"type": "output_text", "text": "I ", "annotations": []}, {"type": "output_text", "text": "will"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
        {"type": "function_call", "call_id": "c3", "name": "h", "arguments": "{}"},
        {"role": "assistant", "content": "done"},
    ]);
    let call = |id, name| json!({"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}});
    let expected = json!([
        {"role": "developer", "content": "d"},
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {"role": "assistant", "content": "I will", "reasoning_content": "hm", "tool_calls": [call("c1", "f"), call("c2", "g")]},
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "two"}]},
        {"role": "assistant", "content": "", "tool_calls": [call("c3", "h")]},
        {"role": "assistant", "content": "done"},
    ]);
    assert_eq!(messages(items), expected);
}

#[test]
fn fields_get_the_dialects_names_and_are_repeated() {
    let tool =
        json!({"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": true, "description": null});
    let (told, body) = read_body(json!({
        "input": "x", "max_output_tokens": 9, "tools": [tool], "tool_choice": {"type": "function", "name": "f"},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": true}},
        "reasoning": {"effort": "low", "summary": "auto"}, "include": ["message.output_text.logprobs"], "top_logprobs": 2,
        "store": true, "metadata": {"a": "b"}, "n": 4, "seed": 7, "truncation": "disabled", "background": false,
    }))
    .unwrap();
    assert_eq!(body["max_tokens"], 9);
    let function = json!({"name": "f", "parameters": {"type": "object"}, "strict": true});
    assert_eq!(body["tools"], json!([{"type": "function", "function": function}]));
    assert_eq!(body["tool_choice"], json!({"type": "function", "function": {"name": "f"}}));
    let schema = json!({"name": "n", "schema": {"type": "object"}, "strict": true});
    assert_eq!(body["response_format"], json!({"type": "json_schema", "json_schema": schema}));
    assert_eq!(
        (&body["reasoning_effort"], &body["logprobs"], &body["top_logprobs"]),
        (&json!("low"), &json!(true), &json!(2))
    );
    assert!(!body.contains_key("n") && body["seed"] == 7);
    assert_eq!(told.repeated["tools"], json!([tool]));
    assert_eq!(told.repeated["tool_choice"], json!({"type": "function", "name": "f"}));
    assert_eq!((&told.repeated["store"], &told.repeated["parallel_tool_calls"]), (&json!(false), &json!(true)));
    assert_eq!(told.repeated["metadata"], json!({"a": "b"}));
    assert!(!read_body(json!({"input": "x", "top_logprobs": 0})).unwrap().1.contains_key("top_logprobs"));
}

#[test]
fn a6_what_cannot_be_honoured_is_named() {
    for (body, param) in [
        (json!({}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": "x", "previous_response_id": "resp_1"}), "previous_response_id"),
        (json!({"input": "x", "conversation": "c"}), "conversation"),
        (json!({"input": "x", "background": true}), "background"),
        (json!({"input": "x", "truncation": "auto"}), "truncation"),
        (json!({"input": "x", "instructions": 5}), "instructions"),
        (json!({"input": "x", "reasoning": {"effort": 5}}), "reasoning.effort"),
        (json!({"input": "x", "text": {"format": "json"}}), "text.format"),
        (json!({"input": "x", "include": ["file_search_call.results"]}), "include"),
        (json!({"input": "x", "tools": [{"type": "web_search"}]}), "tools[0].type"),
        (json!({"input": "x", "tool_choice": {"type": "mcp"}}), "tool_choice"),
        (json!({"input": [{"type": "item_reference", "id": "m"}]}), "input[0].type"),
        (json!({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}), "input[0].content[0]"),
        (json!({"input": [{"role": "robot", "content": "x"}]}), "input[0].role"),
        (json!({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}), "input[0].arguments"),
    ] {
        let error = read_body(body.clone()).unwrap_err();
        let told: Value = serde_json::from_slice(error.body()).unwrap();
        assert_eq!((error.status.as_u16(), &told["error"]["param"]), (400, &json!(param)), "{body}");
    }
}
