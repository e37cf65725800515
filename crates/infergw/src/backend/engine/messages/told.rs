//! An answer as Anthropic's message: whole, or as its events.

use serde_json::{Value, json};

use crate::backend::engine::choice::{Delta, Ended, Matched, Reason};
use crate::backend::engine::parse::Piece;
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
    Thinking(String),
    /// `input` is JSON text, as the model wrote it.
    ToolUse {
        id: String,
        name: String,
        input: String,
    },
}

impl Block {
    /// As it is when it begins, or as it is when it is whole. Thinking is signed by nobody here.
    fn json(&self) -> Value {
        match self {
            Block::Text(text) => json!({"type": "text", "text": text}),
            Block::Thinking(text) => json!({"type": "thinking", "thinking": text, "signature": ""}),
            Block::ToolUse { id, name, input } => {
                // The API has no place for what is no object: a call that was cut, or badly written.
                let input = serde_json::from_str(input).ok().filter(Value::is_object).unwrap_or_else(|| json!({}));
                json!({"type": "tool_use", "id": id, "name": name, "input": input})
            }
        }
    }

    /// Text that goes on in it.
    fn delta(&self, text: &str) -> Value {
        match self {
            Block::Text(_) => json!({"type": "text_delta", "text": text}),
            Block::Thinking(_) => json!({"type": "thinking_delta", "thinking": text}),
            Block::ToolUse { .. } => json!({"type": "input_json_delta", "partial_json": text}),
        }
    }

    fn push(&mut self, new: &str) {
        match self {
            Block::Text(text) | Block::Thinking(text) | Block::ToolUse { input: text, .. } => text.push_str(new),
        }
    }

    fn is_of_kind(&self, other: &Block) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
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

    fn piece(&mut self, piece: &Piece) {
        match piece {
            Piece::Content(text) => self.go_on(Block::Text(String::new()), text),
            Piece::Reasoning(text) => self.go_on(Block::Thinking(String::new()), text),
            Piece::Call { id, name, .. } => {
                // Ids of this API look so; what a model makes itself stays as it is.
                let id = id.strip_prefix("call_").map_or_else(|| id.clone(), |rest| format!("toolu_{rest}"));
                self.begin_block(Block::ToolUse { id, name: name.clone(), input: String::new() });
            }
            Piece::Arguments { text, .. } => self.push(text),
        }
    }

    /// Text of a block of this kind: the last one, where it is, else a new one.
    fn go_on(&mut self, block: Block, text: &str) {
        if text.is_empty() {
            return;
        }
        if !self.open || !self.blocks.last().is_some_and(|last| last.is_of_kind(&block)) {
            self.begin_block(block);
        }
        self.push(text);
    }

    fn push(&mut self, text: &str) {
        let Some(block) = self.blocks.last_mut() else { return };
        if self.stream {
            let delta = block.delta(text);
            self.event("content_block_delta", json!({"index": self.last(), "delta": delta}));
        } else {
            block.push(text);
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
        self.go_on(Block::Text(String::new()), &delta.text);
        delta.pieces.iter().for_each(|piece| self.piece(piece));
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
