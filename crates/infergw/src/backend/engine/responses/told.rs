//! An answer as a response: whole, or as its events, which are numbered.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::Responses;
use super::item::Item;
use crate::backend::engine::choice::{Delta, Ended, Reason};
use crate::backend::engine::detokenize::TokenTable;
use crate::backend::engine::events::logprob_entries;
use crate::backend::engine::parse::Piece;
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
            parsed: telling.prepared.parse.is_some(),
            scores: Vec::new(),
            incomplete: false,
            sequence: 0,
            buffer: Vec::new(),
        })
    }
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
    /// The answer comes in pieces.
    parsed: bool,
    /// Log probabilities whose text is held back still: what it will be is not known.
    scores: Vec<Value>,
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

    /// Where the last item is, for the events of its text.
    fn place(&self) -> Value {
        let at = self.items.len().saturating_sub(1);
        let mut place = json!({"type": null, "item_id": self.item_id(at), "output_index": at});
        if self.items.get(at).is_some_and(Item::has_part) {
            place["content_index"] = json!(0);
        }
        place
    }

    fn item_id(&self, at: usize) -> String {
        let prefix = self.items.get(at).map_or("msg", Item::prefix);
        format!("{prefix}_{}_{at}", self.id.trim_start_matches("resp_"))
    }

    /// An item as it is now. `status` is its own.
    fn item(&self, at: usize, status: &str) -> Value {
        self.items.get(at).map(|item| item.json(&self.item_id(at), status)).unwrap_or_default()
    }

    fn begin_item(&mut self, item: Item) {
        self.end_item("completed");
        let first = item.has_part().then(|| item.part());
        self.items.push(item);
        self.open = true;
        let at = self.items.len() - 1;
        let added = json!({"type": null, "output_index": at, "item": self.item(at, "in_progress")});
        self.event("response.output_item.added", added);
        if let Some(part) = first {
            let mut place = self.place();
            place["part"] = part;
            self.event("response.content_part.added", place);
        }
    }

    fn end_item(&mut self, status: &str) {
        if !std::mem::take(&mut self.open) {
            return;
        }
        let at = self.items.len().saturating_sub(1);
        if self.stream
            && let Some(item) = self.items.get(at).cloned()
        {
            let mut done = self.place();
            if let (Value::Object(done), Value::Object(said)) = (&mut done, item.done()) {
                done.extend(said);
            }
            self.event(&format!("response.{}.done", item.events()), done);
            if item.has_part() {
                let mut place = self.place();
                place["part"] = item.part();
                self.event("response.content_part.done", place);
            }
        }
        let done = json!({"type": null, "output_index": at, "item": self.item(at, status)});
        self.event("response.output_item.done", done);
    }

    /// Text of an item of this kind: the last one, where it is, else a new one.
    fn go_on(&mut self, item: Item, new: &str, scores: Vec<Value>) {
        if !self.open || !self.items.last().is_some_and(|last| last.is_of_kind(&item)) {
            self.begin_item(item);
        }
        self.push(new, scores);
    }

    fn push(&mut self, new: &str, scores: Vec<Value>) {
        let Some(item) = self.items.last() else { return };
        if self.stream {
            let (mut place, name) = (self.place(), format!("response.{}.delta", item.events()));
            place["delta"] = new.into();
            if matches!(item, Item::Message { .. }) {
                place["logprobs"] = scores.clone().into();
            }
            self.event(&name, place);
        }
        if let Some(item) = self.items.last_mut() {
            item.push(new, scores);
        }
    }

    fn piece(&mut self, piece: &Piece) {
        match piece {
            Piece::Content(text) => {
                let scores = std::mem::take(&mut self.scores);
                self.go_on(Item::message(), text, scores);
            }
            Piece::Reasoning(text) => self.go_on(Item::Reasoning { text: String::new() }, text, Vec::new()),
            Piece::Call { id, name, .. } => {
                self.begin_item(Item::Call { id: id.clone(), name: name.clone(), arguments: String::new() });
            }
            Piece::Arguments { text, .. } => self.push(text, Vec::new()),
        }
    }

    /// News of an answer in pieces. Log probabilities are those of a message's text: what belongs to other pieces is dropped.
    fn pieces(&mut self, pieces: &[Piece], scores: Vec<Value>) {
        self.scores.extend(scores);
        if !pieces.is_empty() && !pieces.iter().any(|piece| matches!(piece, Piece::Content(_))) {
            self.scores.clear();
        }
        pieces.iter().for_each(|piece| self.piece(piece));
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

impl Teller for Told {
    fn begin(&mut self, _index: usize, _cached: u64) {
        if self.stream {
            let response = self.response("in_progress", Value::Null);
            self.event("response.created", json!({"type": null, "response": response}));
            self.event("response.in_progress", json!({"type": null, "response": response}));
        }
    }

    fn delta(&mut self, _index: usize, delta: &Delta, _offset: usize) {
        let scores = logprob_entries(&delta.logprobs, &self.table);
        if self.parsed {
            self.pieces(&delta.pieces, scores);
        } else {
            self.go_on(Item::message(), &delta.text, scores);
        }
    }

    fn finish(&mut self, _index: usize, ended: Ended) {
        self.incomplete = ended.reason == Reason::Length;
        if self.items.is_empty() {
            // An answer without a word is an empty message.
            self.begin_item(Item::message());
        }
        let scores = std::mem::take(&mut self.scores);
        if !scores.is_empty() && self.open && matches!(self.items.last(), Some(Item::Message { .. })) {
            self.push("", scores);
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
