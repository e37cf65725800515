//! An answer as a response: whole, or as its events, which are numbered.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::Responses;
use crate::backend::engine::choice::{Delta, Ended, Reason};
use crate::backend::engine::detokenize::TokenTable;
use crate::backend::engine::events::logprob_entries;
use crate::backend::engine::teller::{Teller, Telling};
use crate::types::{Failure, Usage};

impl Responses {
    /// Who tells a response.
    pub(in crate::backend::engine) fn teller(&self, telling: Telling<'_>) -> Box<dyn Teller> {
        Box::new(Told {
            id: telling.id.to_owned(),
            model: telling.question.model.clone(),
            created: Telling::now(),
            repeated: self.repeated.clone(),
            stream: telling.question.stream,
            table: Arc::clone(telling.table),
            items: Vec::new(),
            open: false,
            incomplete: false,
            sequence: 0,
            buffer: Vec::new(),
        })
    }
}

/// An item of the output.
#[derive(Debug, Clone)]
enum Item {
    Message { text: String, logprobs: Vec<Value> },
}

struct Told {
    id: String,
    model: String,
    created: u64,
    repeated: Map<String, Value>,
    stream: bool,
    table: Arc<TokenTable>,
    items: Vec<Item>,
    /// The last item goes on.
    open: bool,
    /// The answer was cut by its limit.
    incomplete: bool,
    sequence: u64,
    buffer: Vec<u8>,
}

impl Told {
    fn event(&mut self, name: &str, mut data: Value) {
        if self.stream {
            data["type"] = name.into();
            data["sequence_number"] = self.sequence.into();
            self.sequence += 1;
            self.buffer.extend_from_slice(format!("event: {name}\ndata: {data}\n\n").as_bytes());
        }
    }

    /// Where the last item is, for its events.
    fn place(&self) -> Value {
        let at = self.items.len().saturating_sub(1);
        json!({"type": null, "item_id": self.item_id(at), "output_index": at})
    }

    fn item_id(&self, at: usize) -> String {
        let prefix = match self.items.get(at) {
            Some(Item::Message { .. }) | None => "msg",
        };
        format!("{prefix}_{}_{at}", self.id.trim_start_matches("resp_"))
    }

    /// An item as it is now. `status` is its own.
    fn item(&self, at: usize, status: &str) -> Value {
        match self.items.get(at) {
            Some(item @ Item::Message { .. }) => json!({
                "type": "message",
                "id": self.item_id(at),
                "status": status,
                "role": "assistant",
                "content": if status == "in_progress" { json!([]) } else { json!([part(item)]) },
            }),
            None => Value::Null,
        }
    }

    fn begin_item(&mut self, item: Item) {
        self.end_item("completed");
        let first = part(&item);
        self.items.push(item);
        self.open = true;
        let at = self.items.len() - 1;
        let added = json!({"type": null, "output_index": at, "item": self.item(at, "in_progress")});
        self.event("response.output_item.added", added);
        let mut place = self.place();
        place["content_index"] = json!(0);
        place["part"] = first;
        self.event("response.content_part.added", place);
    }

    fn end_item(&mut self, status: &str) {
        if !std::mem::take(&mut self.open) {
            return;
        }
        let at = self.items.len().saturating_sub(1);
        if self.stream
            && let Some(Item::Message { text, logprobs }) = self.items.get(at).cloned()
        {
            let mut place = self.place();
            place["content_index"] = json!(0);
            let mut done = place.clone();
            done["text"] = text.into();
            done["logprobs"] = logprobs.into();
            self.event("response.output_text.done", done);
            place["part"] = self.items.get(at).map(part).unwrap_or_default();
            self.event("response.content_part.done", place);
        }
        let done = json!({"type": null, "output_index": at, "item": self.item(at, status)});
        self.event("response.output_item.done", done);
    }

    fn text(&mut self, new: &str, scores: Vec<Value>) {
        if !self.open || !matches!(self.items.last(), Some(Item::Message { .. })) {
            self.begin_item(Item::Message { text: String::new(), logprobs: Vec::new() });
        }
        if self.stream {
            let mut place = self.place();
            place["content_index"] = json!(0);
            place["delta"] = new.into();
            place["logprobs"] = scores.clone().into();
            self.event("response.output_text.delta", place);
        }
        if let Some(Item::Message { text, logprobs }) = self.items.last_mut() {
            text.push_str(new);
            logprobs.extend(scores);
        }
    }

    fn response(&self, status: &str, usage: Value) -> Value {
        let items = (0..self.items.len()).map(|at| {
            let last = at + 1 == self.items.len();
            self.item(at, if last && self.incomplete { "incomplete" } else { "completed" })
        });
        let output: Vec<Value> = if status == "in_progress" { Vec::new() } else { items.collect() };
        let mut response = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": false,
            "error": null,
            "incomplete_details": if self.incomplete { json!({"reason": "max_output_tokens"}) } else { Value::Null },
            "model": self.model,
            "output": output,
            "previous_response_id": null,
            "truncation": "disabled",
            "usage": usage,
        });
        for (name, value) in &self.repeated {
            response[name] = value.clone();
        }
        response
    }

    fn status(&self) -> &'static str {
        if self.incomplete { "incomplete" } else { "completed" }
    }
}

/// The one part of an item.
fn part(item: &Item) -> Value {
    match item {
        Item::Message { text, logprobs } => {
            json!({"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs})
        }
    }
}

impl Teller for Told {
    fn begin(&mut self, _index: usize, _cached: u64) {
        if self.stream {
            let response = self.response("in_progress", Value::Null);
            self.event("response.created", json!({"type": null, "response": response}));
            self.event("response.in_progress", json!({"type": null, "response": response}));
        }
    }

    fn delta(&mut self, _index: usize, delta: &Delta, _offset: usize) {
        self.text(&delta.text, logprob_entries(&delta.logprobs, &self.table));
    }

    fn finish(&mut self, _index: usize, ended: Ended) {
        self.incomplete = ended.reason == Reason::Length;
        if self.items.is_empty() {
            // An answer without a word is an empty message.
            self.begin_item(Item::Message { text: String::new(), logprobs: Vec::new() });
        }
        self.end_item(self.status());
    }

    fn close(&mut self, usage: Usage) {
        let usage = json!({
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        });
        let status = self.status();
        let response = self.response(status, usage);
        if self.stream {
            self.event(&format!("response.{status}"), json!({"type": null, "response": response}));
        } else {
            self.buffer = response.to_string().into_bytes();
        }
    }

    fn fail(&mut self, failure: &Failure) -> bool {
        if self.sequence == 0 {
            return false;
        }
        let mut response = self.response("failed", Value::Null);
        response["error"] = json!({"code": "server_error", "message": failure.error.message()});
        self.event("response.failed", json!({"type": null, "response": response}));
        true
    }

    fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }
}
