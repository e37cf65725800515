//! An item of a response's output: what the assistant thought, said or called.

use serde_json::{Value, json};

/// One item, as far as it has got.
#[derive(Debug, Clone)]
pub(super) enum Item {
    /// Text with its log probabilities.
    Message { text: String, logprobs: Vec<Value> },
    /// Text that led there.
    Reasoning { text: String },
    /// A call of a function; `arguments` is JSON text, as the model wrote it.
    Call { id: String, name: String, arguments: String },
}

impl Item {
    /// A message without a word.
    pub(super) fn message() -> Self {
        Item::Message { text: String::new(), logprobs: Vec::new() }
    }

    /// What its id begins with.
    pub(super) fn prefix(&self) -> &'static str {
        match self {
            Item::Message { .. } => "msg",
            Item::Reasoning { .. } => "rs",
            Item::Call { .. } => "fc",
        }
    }

    /// As it is now. One that has just begun (`in_progress`) shows no content: that comes in events.
    pub(super) fn json(&self, id: &str, status: &str) -> Value {
        let content = || if status == "in_progress" { json!([]) } else { json!([self.part()]) };
        match self {
            Item::Message { .. } => json!({
                "type": "message",
                "id": id,
                "status": status,
                "role": "assistant",
                "content": content(),
            }),
            Item::Reasoning { .. } => json!({
                "type": "reasoning",
                "id": id,
                "status": status,
                "summary": [],
                "content": content(),
                "encrypted_content": null,
            }),
            Item::Call { id: call_id, name, arguments } => json!({
                "type": "function_call",
                "id": id,
                "status": status,
                "call_id": call_id,
                "name": name,
                "arguments": arguments,
            }),
        }
    }

    /// The one part of its content; a call has none.
    pub(super) fn part(&self) -> Value {
        match self {
            Item::Message { text, logprobs } => {
                json!({"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs})
            }
            Item::Reasoning { text } => json!({"type": "reasoning_text", "text": text}),
            Item::Call { .. } => Value::Null,
        }
    }

    /// Whether it has a part, which is told beside it.
    pub(super) fn has_part(&self) -> bool {
        !matches!(self, Item::Call { .. })
    }

    /// What its events are called: `response.NAME.delta` and `.done`.
    pub(super) fn events(&self) -> &'static str {
        match self {
            Item::Message { .. } => "output_text",
            Item::Reasoning { .. } => "reasoning_text",
            Item::Call { .. } => "function_call_arguments",
        }
    }

    /// What its last event says beside where it is.
    pub(super) fn done(&self) -> Value {
        match self {
            Item::Message { text, logprobs } => json!({"text": text, "logprobs": logprobs}),
            Item::Reasoning { text } => json!({"text": text}),
            Item::Call { name, arguments, .. } => json!({"name": name, "arguments": arguments}),
        }
    }

    /// Text that goes on in it.
    pub(super) fn push(&mut self, new: &str, scores: Vec<Value>) {
        match self {
            Item::Message { text, logprobs } => {
                text.push_str(new);
                logprobs.extend(scores);
            }
            Item::Reasoning { text } | Item::Call { arguments: text, .. } => text.push_str(new),
        }
    }

    pub(super) fn is_of_kind(&self, other: &Item) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}
