//! Whole bytes for each reader: most of them it accepts. The tests and cargo-fuzz damage them.

use super::sample::gguf;

const BODIES: &[&str] = &[
    r#"{"model":"m","stream":true,"stream_options":{"include_usage":true},"n":2,"messages":[{"role":"user","content":"hi\u00e9\ud83d\ude00"}]}"#,
    r#"{"model":"m","max_tokens":-1,"temperature":1e400,"stop":["a",""],"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}],"logit_bias":{"5":1.5}}"#,
    r#"{"model":"m","prompt":["a b","the"],"echo":true,"logprobs":3,"seed":18446744073709551615,"min_p":0.1,"x":[[[{"y":null}]]]}"#,
    r#"{"model":"m","prompt":[1,2,3],"max_tokens":0,"best_of":2,"suffix":null}"#,
    r#"{"model":"m","max_tokens":5,"system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":"r"}]},{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{}}]}],"tools":[{"name":"f","input_schema":{"type":"object"}}],"tool_choice":{"type":"any"},"thinking":{"type":"enabled","budget_tokens":9}}"#,
    r#"{"model":"m","input":[{"role":"user","content":[{"type":"input_text","text":"x"}]},{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"1"}],"text":{"format":{"type":"json_schema","name":"n","schema":{"type":"object"}}},"reasoning":{"effort":"low"}}"#,
    r#"{"text":["a","b"],"sampling_params":{"max_new_tokens":3,"regex":"a+"},"return_logprob":true,"top_logprobs_num":2,"rid":"r","stream":true}"#,
    r#"{"input_ids":[1,2],"sampling_params":[{"n":1}]}"#,
    r#"{"model":"m","messages":[{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"n\":1}"}}]},{"role":"tool","tool_call_id":"c","content":"2"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"n":{"type":"integer"}}}}}],"tool_choice":"required","response_format":{"type":"json_object"},"chat_template_kwargs":{"enable_thinking":false}}"#,
    r#"{"model":"m","messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}],"continue_final_message":true,"add_generation_prompt":false,"guided_choice":["x","y"]}"#,
    r#"{"tokens":[1,2,3],"prompt":"a","model":""}"#,
];

const STREAMS: &[&str] = &[
    "\0\x01data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},\"finish_reason\":null}]}\n\ndata: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}],\"usage\":{\"completion_tokens\":3}}\n\ndata: [DONE]\n\n",
    "\0\x05\u{feff}: ping\r\n\r\nevent: x\r\nid: 7\r\nretry: 3\r\ndata: {\"choices\":[]}\r\n\r\ndata:{\"error\":{\"message\":\"m\",\"code\":500}}\r\n\r\n",
    "\0\x02data: one\rdata: two\r\rdata\r\r: c\r\rdata: [DONE]\r\r",
    "\x01\x1fevent: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":5}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
    "\x02\x07event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{}}\n\nevent: error\ndata: {\"type\":\"error\",\"error\":{}}\n\n",
    "\x03\x0bdata: {\"index\":1,\"text\":\"a\",\"meta_info\":{\"finish_reason\":{\"type\":\"stop\"}}}\n\ndata: [DONE]\n\n",
];

const ANSWERS: &[&str] = &[
    r#"{"error":{"message":"slow down","type":"t","param":null,"code":429}}"#,
    r#"{"error":{"message":{"a":1},"code":"x"},"detail":[1]}"#,
    r#"{"type":"error","error":{"type":"overloaded_error","message":"m\n\nx"}}"#,
    r#"{"object":"error","message":"m","code":400}"#,
    "<html>\n\ndata: x</html>",
    r#"{"error":"text"}"#,
];

const HEADS: &[&str] = &[
    "/v1/models/a%2Fb\nauthorization: Bearer right\nconnection: close, x-a\nx-a: 1\nx-infergw-b: 2\nretry-after: 3",
    "/v1/streams/000000000000000000000000000000ab\nlast-event-id: 000000000000000000000000000000ab-17\nidempotency-key: k",
    "/v1/chat/completions\nx-data-parallel-rank: 3\nx-infergw-coalesce: off\ncache-control: no-cache, no-store\nretry-after: Sun, 06 Nov 1994 08:49:47 GMT",
    "//healthz\nauthorization: Bearer wrong\nx-api-key: right\ncontent-length: 3\ntransfer-encoding: chunked\nretry-after: 1e300",
];

const TEXTS: &[&str] = &[
    "hm</think>\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"city\": \"Köln\", \"n\": [1, {\"a\": \"}\"}]}}\n</tool_call> and <tool_call>{\"name\":\"g\"}",
    "<think>a<b</think><tool_call>\n<function=f>\n<parameter=city>\nA\tB\n</parameter>\n<parameter=n>\n3\n</parameter>\n<parameter=on>True</parameter>\n</function>\n</tool_call>",
    "<|python_tag|>{\"name\": \"f\", \"parameters\": {\"n\": 1}}; {\"name\": \"g\", \"parameters\": {}}",
    "{\"name\": \"f\", \"parameters\": {\"n\": 1}}",
    "[THINK]x[/THINK][TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}, \"id\": \"123456789\"}]",
    "[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{\"n\": 1}[TOOL_CALLS]g[ARGS]{}",
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"n\": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"n\": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"n\": 1}<|tool_call_end|><|tool_calls_section_end|>",
    "◁think▷x◁/think▷ yes",
    "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"n\":1}<|call|><|start|>assistant<|channel|>final<|message|>yes<|return|>",
    "[{\"name\":\"f\",\"parameters\":{\"n\":1}},{\"name\":\"g\",\"parameters\":{}}]",
    "{\"city\":\"a\\\"b\\u00e9\",\"n\":1}",
];

const TEMPLATES: &[&str] = &[
    "{{ bos_token }}{% for message in messages %}{{ '<|' + message['role'] + '|>\n' + message['content'] | trim }}{% if not loop.last %}\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}",
    "{%- set ns = namespace(found=false, n=3) %}{%- for m in messages[::-1] %}{%- if m.role == 'user' and not ns.found %}{% set ns.found = true %}{{ m.content[0].text if m.content is not string else m.content }}{%- endif %}{%- endfor %}{{ ns.n // 2 ** 3 }}",
    "{% macro show(x, depth=0) %}{% if x is mapping %}{% for k, v in x | items %}{{ k }}={{ show(v, depth + 1) }};{% endfor %}{% else %}{{ x | tojson(indent=2) }}{% endif %}{% endmacro %}{% for m in messages %}{{ show(m) }}{% endfor %}",
    "{% if messages[0].role != 'user' %}{{ raise_exception('no: ' ~ messages[0].role) }}{% endif %}{{ tools | tojson | replace('a', 'b') | indent(4, true) }}{{ strftime_now('%Y-%m-%d') }}",
    "{% generation %}{{ messages | map(attribute='content') | list | length }}{% endgeneration %}{% for i in range(5) %}{% for j in range(i) %}{{ i * j }}{{ 'ab' * j }}{% endfor %}{% endfor %}{{ messages[-1].content.split('e')[0].upper() }}",
];

/// What a reader is given whole: its corpus.
pub fn corpus(reader: &str) -> Vec<Vec<u8>> {
    let texts = match reader {
        "question" | "prepared" => BODIES,
        "events" => STREAMS,
        "answer" => ANSWERS,
        "head" => HEADS,
        "text" => TEXTS,
        "template" => TEMPLATES,
        "listing" => &[r#"{"object":"list","data":[{"id":"a","x":1},{"id":"b"}]}"#, r#"{"data":[]}"#],
        _ => return vec![gguf()],
    };
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}
