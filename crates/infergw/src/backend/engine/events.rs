//! The answer in the client's dialect: SSE events, or one JSON body.
//!
//! There is one stream of events inside (a role, deltas, an end, usage); this file writes it as chat completions or as
//! completions. Events are written by hand into one buffer per step because this is the streaming path: the parts that do
//! not change are made once per answer, and text is escaped by `serde_json`. A test holds every event against what
//! `serde_json` reads.

use std::io::Write as _;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};

use super::choice::{Delta, Reason, TokenLogprob};
use super::detokenize::TokenTable;
use super::parse::Piece;
use super::request::Dialect;
use crate::types::Usage;

/// What log probability stands for minus infinity, which JSON cannot say; as in vLLM.
pub(super) const LEAST_LOGPROB: f64 = -9999.0;

/// Writes the events of one streaming answer.
#[derive(Debug)]
pub struct Events {
    endpoint: Dialect,
    /// Up to and including `"choices":[`.
    head: Vec<u8>,
    include_usage: bool,
    table: Arc<TokenTable>,
}

/// What every event and body of one answer carries.
#[derive(Debug, Clone, Copy)]
pub struct Identity<'a> {
    /// The answer's id.
    pub id: &'a str,
    /// Seconds since 1970.
    pub created: u64,
    /// The model, as the client named it.
    pub model: &'a str,
}

impl Events {
    /// Events for `endpoint`; `table` says what tokens look like in log probabilities.
    pub fn new(endpoint: Dialect, identity: Identity<'_>, include_usage: bool, table: Arc<TokenTable>) -> Self {
        let object = match endpoint {
            Dialect::ChatCompletions => "chat.completion.chunk",
            Dialect::Completions => "text_completion",
        };
        let mut head = Vec::with_capacity(160);
        head.extend_from_slice(b"data: {\"id\":");
        string(&mut head, identity.id);
        head.extend_from_slice(b",\"object\":\"");
        head.extend_from_slice(object.as_bytes());
        let _ = write!(head, "\",\"created\":{},\"model\":", identity.created);
        string(&mut head, identity.model);
        head.extend_from_slice(b",\"choices\":[");
        Self { endpoint, head, include_usage, table }
    }

    /// The first event of a choice: who speaks. Completions have none.
    pub fn role(&self, out: &mut Vec<u8>, choice: usize) {
        if self.endpoint == Dialect::ChatCompletions {
            out.extend_from_slice(&self.head);
            let _ = write!(out, "{{\"index\":{choice},");
            out.extend_from_slice(
                br#""delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}"#,
            );
            self.close(out);
        }
    }

    /// New text and log probabilities. `offset` is the text's length in characters before this delta, for completions.
    pub fn delta(&self, out: &mut Vec<u8>, choice: usize, delta: &Delta, offset: usize) {
        // One event for each piece; the first one has the log probabilities.
        let Some((first, rest)) = delta.pieces.split_first() else {
            return self.part(out, choice, (delta, offset), None);
        };
        self.part(out, choice, (delta, offset), Some(first));
        for piece in rest {
            self.part(out, choice, (&Delta::default(), offset), Some(piece));
        }
    }

    fn part(&self, out: &mut Vec<u8>, choice: usize, (delta, offset): (&Delta, usize), piece: Option<&Piece>) {
        out.extend_from_slice(&self.head);
        index(out, choice);
        match self.endpoint {
            Dialect::ChatCompletions => {
                out.extend_from_slice(b",\"delta\":{");
                match piece {
                    None => member(out, "content", &delta.text),
                    Some(Piece::Content(text)) => member(out, "content", text),
                    Some(Piece::Reasoning(text)) => member(out, "reasoning_content", text),
                    Some(Piece::Call { index, id, name }) => {
                        let _ = write!(out, "\"tool_calls\":[{{\"index\":{index},\"id\":");
                        string(out, id);
                        out.extend_from_slice(b",\"type\":\"function\",\"function\":{\"name\":");
                        string(out, name);
                        out.extend_from_slice(b",\"arguments\":\"\"}}]");
                    }
                    Some(Piece::Arguments { index, text }) => {
                        let _ = write!(out, "\"tool_calls\":[{{\"index\":{index},\"function\":{{");
                        member(out, "arguments", text);
                        out.extend_from_slice(b"}}]");
                    }
                }
                out.push(b'}');
            }
            Dialect::Completions => {
                out.extend_from_slice(b",\"text\":");
                string(out, &delta.text);
            }
        }
        out.extend_from_slice(b",\"logprobs\":");
        if delta.logprobs.is_empty() {
            out.extend_from_slice(b"null");
        } else {
            let value = logprobs(self.endpoint, &delta.logprobs, &self.table, offset);
            // A `Value` with string keys always serialises.
            let _ = serde_json::to_writer(&mut *out, &value);
        }
        out.extend_from_slice(b",\"finish_reason\":null}");
        self.close(out);
    }

    /// The end of a choice.
    pub fn finish(&self, out: &mut Vec<u8>, choice: usize, reason: Reason) {
        out.extend_from_slice(&self.head);
        index(out, choice);
        out.extend_from_slice(match self.endpoint {
            Dialect::ChatCompletions => b",\"delta\":{}",
            Dialect::Completions => b",\"text\":\"\"",
        });
        let _ = write!(out, ",\"logprobs\":null,\"finish_reason\":\"{}\"}}", reason.as_str());
        self.close(out);
    }

    /// The usage event, for clients that asked for it (S7).
    pub fn usage(&self, out: &mut Vec<u8>, usage: Usage) {
        if self.include_usage {
            out.extend_from_slice(&self.head);
            out.extend_from_slice(b"],\"usage\":");
            let _ = serde_json::to_writer(&mut *out, &usage_json(usage));
            out.extend_from_slice(b"}\n\n");
        }
    }

    fn close(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(if self.include_usage { b"],\"usage\":null}\n\n" } else { b"]}\n\n" });
    }
}

fn index(out: &mut Vec<u8>, choice: usize) {
    out.extend_from_slice(b"{\"index\":");
    if choice < 10 {
        out.push(b'0' + choice as u8);
    } else {
        let _ = write!(out, "{choice}");
    }
}

fn member(out: &mut Vec<u8>, name: &str, text: &str) {
    string(out, name);
    out.push(b':');
    string(out, text);
}

fn string(out: &mut Vec<u8>, text: &str) {
    // A string always serialises, and a vector takes all bytes.
    let _ = serde_json::to_writer(&mut *out, text);
}

/// A whole choice, for a body.
#[derive(Debug, Default)]
pub struct WholeChoice {
    /// Its text.
    pub text: String,
    /// Its reasoning, where it has some.
    pub reasoning: String,
    /// Its calls: id, name and arguments.
    pub calls: Vec<(String, String, String)>,
    /// Its log probabilities, where they were asked for.
    pub logprobs: Option<Vec<TokenLogprob>>,
    /// Why it ended.
    pub reason: Option<Reason>,
}

impl WholeChoice {
    /// Take a piece of a parsed answer.
    pub fn push(&mut self, piece: &Piece) {
        match piece {
            Piece::Content(text) => self.text.push_str(text),
            Piece::Reasoning(text) => self.reasoning.push_str(text),
            Piece::Call { id, name, .. } => self.calls.push((id.clone(), name.clone(), String::new())),
            Piece::Arguments { text, .. } => {
                if let Some((_, _, arguments)) = self.calls.last_mut() {
                    arguments.push_str(text);
                }
            }
        }
    }

    /// As a chat's message. Content is null where the answer is something else.
    fn message(&self) -> Value {
        let other = !self.reasoning.is_empty() || !self.calls.is_empty();
        let content = if self.text.is_empty() && other { Value::Null } else { self.text.as_str().into() };
        let mut message = json!({"role": "assistant", "content": content, "refusal": null});
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = self.reasoning.as_str().into();
        }
        if !self.calls.is_empty() {
            let call = |(id, name, arguments): &(String, String, String)| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
            message["tool_calls"] = self.calls.iter().map(call).collect();
        }
        message
    }
}

/// The body of an answer that is not streamed.
pub fn body(
    endpoint: Dialect,
    identity: Identity<'_>,
    choices: &[WholeChoice],
    usage: Usage,
    table: &TokenTable,
) -> Vec<u8> {
    let choices: Vec<Value> = choices
        .iter()
        .enumerate()
        .map(|(index, choice)| {
            let reason = choice.reason.map(Reason::as_str);
            let logprobs = choice.logprobs.as_deref().map(|l| logprobs(endpoint, l, table, 0));
            match endpoint {
                Dialect::ChatCompletions => json!({
                    "index": index,
                    "message": choice.message(),
                    "logprobs": logprobs,
                    "finish_reason": reason,
                }),
                Dialect::Completions => json!({
                    "index": index,
                    "text": choice.text,
                    "logprobs": logprobs,
                    "finish_reason": reason,
                }),
            }
        })
        .collect();
    let object = match endpoint {
        Dialect::ChatCompletions => "chat.completion",
        Dialect::Completions => "text_completion",
    };
    let body = json!({
        "id": identity.id,
        "object": object,
        "created": identity.created,
        "model": identity.model,
        "choices": choices,
        "usage": usage_json(usage),
    });
    body.to_string().into_bytes()
}

fn usage_json(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    })
}

fn logprobs(endpoint: Dialect, tokens: &[TokenLogprob], table: &TokenTable, offset: usize) -> Value {
    match endpoint {
        Dialect::ChatCompletions => chat_logprobs(tokens, table),
        Dialect::Completions => completion_logprobs(tokens, table, offset),
    }
}

fn chat_logprobs(tokens: &[TokenLogprob], table: &TokenTable) -> Value {
    json!({"content": logprob_entries(tokens, table), "refusal": null})
}

/// One entry for each token, with its bytes and the alternatives.
pub(super) fn logprob_entries(tokens: &[TokenLogprob], table: &TokenTable) -> Vec<Value> {
    #[derive(Serialize)]
    struct Entry<'a> {
        token: std::borrow::Cow<'a, str>,
        logprob: f64,
        bytes: &'a [u8],
    }
    let entry = |id: u32, logprob: f64| {
        let bytes = table.token_bytes(id);
        Entry { token: String::from_utf8_lossy(bytes), logprob: logprob.max(LEAST_LOGPROB), bytes }
    };
    tokens
        .iter()
        .map(|token| {
            let mut value = json!(entry(token.id, token.logprob));
            value["top_logprobs"] = token.top.iter().map(|&(id, logprob)| json!(entry(id, logprob))).collect();
            value
        })
        .collect()
}

fn completion_logprobs(tokens: &[TokenLogprob], table: &TokenTable, offset: usize) -> Value {
    let text = |id: u32| String::from_utf8_lossy(table.token_bytes(id)).into_owned();
    let mut offsets = Vec::with_capacity(tokens.len());
    let mut at = offset;
    for token in tokens {
        offsets.push(at);
        at += text(token.id).chars().count();
    }
    let top = |token: &TokenLogprob| -> Value {
        token.top.iter().map(|&(id, logprob)| (text(id), json!(logprob.max(LEAST_LOGPROB)))).collect()
    };
    json!({
        "text_offset": offsets,
        "token_logprobs": tokens.iter().map(|t| t.logprob.max(LEAST_LOGPROB)).collect::<Vec<_>>(),
        "tokens": tokens.iter().map(|t| text(t.id)).collect::<Vec<_>>(),
        "top_logprobs": tokens.iter().map(top).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests;
