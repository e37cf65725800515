//! An answer as Anthropic's message: whole, or as its events.

use serde_json::{Value, json};

use crate::backend::engine::choice::{Delta, Ended, Matched, Reason};
use crate::backend::engine::teller::{Teller, Telling};
use crate::types::Usage;

/// Who tells a message.
pub(in crate::backend::engine) fn teller(telling: Telling<'_>) -> Box<dyn Teller> {
    let prompts = &telling.prepared.prompts;
    Box::new(Told {
        id: telling.id.to_owned(),
        model: telling.question.model.clone(),
        stream: telling.question.stream,
        stops: telling.prepared.request.output.stops.clone(),
        prompt_tokens: prompts.iter().map(|prompt| prompt.ids.len() as u64).sum(),
        blocks: Vec::new(),
        open: false,
        stop: (Value::Null, Value::Null),
        buffer: Vec::new(),
    })
}

/// A block of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Block {
    Text(String),
}

impl Block {
    /// As it is when it begins, or as it is when it is whole.
    fn json(&self) -> Value {
        match self {
            Block::Text(text) => json!({"type": "text", "text": text}),
        }
    }
}

struct Told {
    id: String,
    model: String,
    stream: bool,
    stops: Vec<String>,
    prompt_tokens: u64,
    /// The blocks so far; when streaming their content has gone out and is not kept.
    blocks: Vec<Block>,
    /// The last block goes on.
    open: bool,
    /// Reason, and stop sequence.
    stop: (Value, Value),
    buffer: Vec<u8>,
}

impl Told {
    fn event(&mut self, name: &str, mut data: Value) {
        if self.stream {
            data["type"] = name.into();
            self.buffer.extend_from_slice(format!("event: {name}\ndata: {data}\n\n").as_bytes());
        }
    }

    fn last(&self) -> usize {
        self.blocks.len().saturating_sub(1)
    }

    fn begin_block(&mut self, block: Block) {
        self.end_block();
        let start = block.json();
        self.blocks.push(block);
        self.open = true;
        self.event("content_block_start", json!({"index": self.last(), "content_block": start}));
    }

    fn end_block(&mut self) {
        if std::mem::take(&mut self.open) {
            self.event("content_block_stop", json!({"index": self.last()}));
        }
    }

    fn text(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        if !self.open || !matches!(self.blocks.last(), Some(Block::Text(_))) {
            self.begin_block(Block::Text(String::new()));
        }
        if self.stream {
            let delta = json!({"type": "text_delta", "text": text});
            self.event("content_block_delta", json!({"index": self.last(), "delta": delta}));
        } else if let Some(Block::Text(block)) = self.blocks.last_mut() {
            block.push_str(text);
        }
    }

    /// Cached tokens are counted apart from the others here.
    fn usage(&self, cached: u64, generated: u64) -> Value {
        json!({
            "input_tokens": self.prompt_tokens.saturating_sub(cached),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": generated,
        })
    }

    fn message(&self, content: Value, usage: Value) -> Value {
        let (reason, sequence) = &self.stop;
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": sequence,
            "usage": usage,
        })
    }
}

impl Teller for Told {
    fn begin(&mut self, _index: usize, cached: u64) {
        if self.stream {
            let message = self.message(json!([]), self.usage(cached, 0));
            self.event("message_start", json!({"type": null, "message": message}));
        }
    }

    fn delta(&mut self, _index: usize, delta: &Delta, _offset: usize) {
        self.text(&delta.text);
    }

    fn finish(&mut self, _index: usize, ended: Ended) {
        self.end_block();
        self.stop = match (ended.reason, ended.matched) {
            (Reason::Length, _) => (json!("max_tokens"), Value::Null),
            (Reason::Stop, Some(Matched::Text(at))) => (json!("stop_sequence"), json!(self.stops.get(at))),
            (Reason::ToolCalls, _) => (json!("tool_use"), Value::Null),
            (Reason::Stop, _) => (json!("end_turn"), Value::Null),
        };
    }

    fn close(&mut self, usage: Usage) {
        let usage = self.usage(usage.cached_tokens, usage.completion_tokens);
        if self.stream {
            let (reason, sequence) = std::mem::take(&mut self.stop);
            let delta = json!({"stop_reason": reason, "stop_sequence": sequence});
            self.event("message_delta", json!({"type": null, "delta": delta, "usage": usage}));
            self.event("message_stop", json!({}));
        } else {
            let content = self.blocks.iter().map(Block::json).collect();
            self.buffer = self.message(content, usage).to_string().into_bytes();
        }
    }

    fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }
}
