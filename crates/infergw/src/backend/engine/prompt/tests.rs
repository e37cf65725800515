#![expect(clippy::unwrap_used, reason = "tests")]

use serde_json::json;

use super::*;

fn template(source: &str) -> ChatTemplate {
    let tokens = BTreeMap::from([("bos_token".to_owned(), "<s>".to_owned())]);
    ChatTemplate::new(source, None, tokens).unwrap()
}

fn conversation(messages: Json) -> Conversation {
    let messages = messages.as_array().unwrap().clone();
    Conversation { messages, add_generation_prompt: true, ..Conversation::default() }
}

const CHATML: &str = "{% for message in messages %}\n    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + \
     '<|im_end|>' + '\\n' }}\n{%- endfor %}\n{% if add_generation_prompt %}\n{{ '<|im_start|>assistant\\n' }}{% endif %}\n";

/// A9: the reference's block settings: what `trim_blocks` and `lstrip_blocks` take away, and the last newline.
#[test]
fn a9_renders_as_the_reference_does() {
    let text = template(CHATML).render(&conversation(json!([{"role": "user", "content": "hi"}]))).unwrap();
    assert_eq!(text, "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
}

/// A9: the demo model's own template.
#[test]
fn a9_demo_template() {
    let demo = super::super::sample_models::demo();
    let conversation = conversation(json!([{"role": "user", "content": "hi"}]));
    let text = demo.template.as_ref().unwrap().render(&conversation).unwrap();
    let system = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n";
    assert_eq!(text, format!("{system}<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"));
}

/// A9: `tojson` writes what Python's `json.dumps(ensure_ascii=False)` writes.
#[test]
fn a9_tojson_is_pythons() {
    let render = |source: &str, value: Json| {
        let mut conversation = conversation(json!([{"role": "user", "content": ""}]));
        conversation.arguments.insert("value".into(), value);
        template(source).render(&conversation).unwrap()
    };
    let value = json!({"b": [1, 2.0, 1e20, 1e-7, true, null], "a": "<é> & '\"\n", "e": {}, "l": []});
    let plain = r#"{"b": [1, 2.0, 1e+20, 1e-07, true, null], "a": "<é> & '\"\n", "e": {}, "l": []}"#;
    assert_eq!(render("{{ value | tojson }}", value.clone()), plain);
    let indented = "{\n  \"b\": [\n    1,\n    {}\n  ],\n  \"a\": []\n}";
    assert_eq!(render("{{ value | tojson(indent=2) }}", json!({"b": [1, {}], "a": []})), indented);
    let compact = r#"{"a":1,"b":2}"#;
    assert_eq!(render("{{ value | tojson(separators=(',', ':'), sort_keys=true) }}", json!({"b": 2, "a": 1})), compact);
}

/// Tools reach the template as the client sent them, in their order.
#[test]
fn tools_are_passed_through() {
    let source = "{% if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% else %}none{% endif %}";
    let mut conversation = conversation(json!([{"role": "user", "content": "x"}]));
    assert_eq!(template(source).render(&conversation).unwrap(), "none");
    conversation.tools = Some(json!([{"type": "function", "function": {"name": "f", "description": "<d>"}}]));
    let expected = r#"{"type": "function", "function": {"name": "f", "description": "<d>"}}"#;
    assert_eq!(template(source).render(&conversation).unwrap(), expected);
}

/// Python's methods, `raise_exception`, `strftime_now`, loop controls, special tokens.
#[test]
fn the_references_extras() {
    let source = "{{ bos_token }}{% for m in messages %}{% if m.role == 'skip' %}{% continue %}{% endif %}\
        {{ m.content.strip().split(' ')[-1] | upper }}{% endfor %}{{ strftime_now('%Y') | length }}";
    let text = template(source).render(&conversation(json!([{"role": "user", "content": " a b "}]))).unwrap();
    assert_eq!(text, "<s>B4");
    let refuses = template("{{ raise_exception('roles must alternate') }}");
    let error = refuses.render(&conversation(json!([{"role": "user", "content": ""}]))).unwrap_err();
    assert_eq!(error.to_string(), "roles must alternate");
}

/// A1: parts reach a text template joined, and a parts template as parts, whichever the client sent.
#[test]
fn a1_content_as_the_template_wants_it() {
    let parts = json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]);
    let text = json!([{"role": "user", "content": "ab"}]);
    let textual = template("{% for message in messages %}{{ message.content }}{% endfor %}");
    assert_eq!(textual.render(&conversation(parts.clone())).unwrap(), "a\nb");
    let listed = template(
        "{% for message in messages %}{% for part in message.content %}[{{ part.text }}]{% endfor %}{% endfor %}",
    );
    assert_eq!(listed.render(&conversation(parts.clone())).unwrap(), "[a][b]");
    assert_eq!(listed.render(&conversation(text.clone())).unwrap(), "[ab]");
    let contains = template(
        "{% for message in messages %}{% if 'x' in message.content %}x{% endif %}{{ message.content }}{% endfor %}",
    );
    assert_eq!(contains.render(&conversation(text.clone())).unwrap(), "ab", "a test is no loop");
    let either = template(
        "{% for message in messages %}{% if message.content is string %}{{ message.content }}{% else %}\
         {% for part in message.content %}[{{ part.text }}]{% endfor %}{% endif %}{% endfor %}",
    );
    assert_eq!(either.render(&conversation(parts)).unwrap(), "[a][b]");
    assert_eq!(either.render(&conversation(text)).unwrap(), "ab");
}

/// A9: `continue_final_message` leaves the last message open.
#[test]
fn a9_continue_final_message() {
    let messages = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Sure, "}]);
    let mut conversation = conversation(messages);
    conversation.add_generation_prompt = false;
    conversation.continue_final_message = true;
    let text = template(CHATML).render(&conversation).unwrap();
    assert!(text.ends_with("<|im_start|>assistant\nSure, "), "{text}");
    let trimming = CHATML.replace("message['content']", "message['content'] | trim");
    let text = template(&trimming).render(&conversation).unwrap();
    assert!(text.ends_with("<|im_start|>assistant\nSure,"), "{text}");
}

/// `{% generation %}` is a mark for training: it prints nothing.
#[test]
fn generation_marks_print_nothing() {
    let source = "{% for m in messages %}{% generation %}{{ m.content }}{%- endgeneration -%} {% endfor %}";
    let text = template(source).render(&conversation(json!([{"role": "user", "content": "x"}]))).unwrap();
    assert_eq!(text, "x");
}

#[test]
fn a_template_that_does_not_end_is_stopped() {
    let source = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}";
    let template = ChatTemplate::new(source, None, BTreeMap::new()).unwrap();
    assert!(template.render(&Conversation::default()).is_err());
    let source = "{% for m in messages %}{{ m.role + m.content }}{% endfor %}";
    let template = ChatTemplate::new(source, None, BTreeMap::new()).unwrap();
    let messages = vec![serde_json::json!({"role": "user", "content": "x"}); 10_000];
    assert_eq!(template.render(&Conversation { messages, ..Conversation::default() }).unwrap().len(), 50_000);
}
