//! Every reader of foreign bytes, given any bytes: one function for each, which says what must hold whatever comes. Each says
//! whether its reader accepted them.
//!
//! `tests` beside this damages a corpus on the stable toolchain; `fuzz/` gives the same functions to cargo-fuzz. Nothing here
//! is part of the gateway: it is compiled for tests, and with the feature `fuzz`.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::admit::Keys;
use crate::api::body::{Envelope, check_depth};
use crate::api::error::ApiError;
use crate::api::header;
use crate::api::route::{self, Route};
use crate::backend::engine::gguf::Gguf;
use crate::backend::engine::model::TextModel;
use crate::backend::engine::parse::{Families, Piece, Plan, Wanted, Wishes};
use crate::backend::engine::prepare::TextSide;
use crate::backend::engine::prompt::{ChatTemplate, Conversation};
use crate::backend::engine::stop::StopScan;
use crate::backend::http::foreign;
use crate::coalesce::key::Key;
use crate::coalesce::resume::{EventId, numbered};
use crate::config::{ApiKey, Limits, ReasoningParser, Text, ToolParser, duration};
use crate::observe::Tokenizing;
use crate::types::{Caller, ENDPOINTS, Endpoint, ErrorShape, Question};

mod corpus;
mod sample;

pub use crate::backend::http::foreign::listing;
pub use corpus::corpus;

/// Reads bytes; whether it accepts them.
pub type Reader = fn(&[u8]) -> bool;

/// All of them, by name.
pub const READERS: [(&str, Reader); 9] = [
    ("question", question),
    ("prepared", prepared),
    ("events", events),
    ("answer", answer),
    ("head", head),
    ("gguf", gguf),
    ("text", text),
    ("template", template),
    ("listing", listing),
];

/// A body: its depth, what every backend needs of it, and its key.
pub fn question(body: &[u8]) -> bool {
    let shallow = check_depth(body, Limits::default().max_depth).is_ok();
    let mut read = false;
    for row in &ENDPOINTS {
        read |= Envelope::parse(row.endpoint, body).is_ok();
    }
    let key = key(body);
    if key.is_some() {
        // What has a key is JSON for everybody else too: sharing is never decided on something that others read differently.
        assert!(shallow && serde_json::from_slice::<IgnoredAny>(body).is_ok());
        assert!(self::key(&[b" \n", body, b"\t\r"].concat()) == key, "white space does not matter");
        assert!(self::key(&[body, b"x"].concat()).is_none());
        // Whatever is read twice the same way is the same question.
        if let Ok(Value::Object(object)) = serde_json::from_slice(body) {
            assert!(!object.is_empty() || self::key(b"{}") == key);
        }
    }
    read && key.is_some()
}

fn key(body: &[u8]) -> Option<Key> {
    Key::of(&Question {
        endpoint: Endpoint::ChatCompletions,
        model: String::new(),
        stream: true,
        include_usage: false,
        body: Bytes::copy_from_slice(body),
        headers: HeaderMap::new(),
        caller: Caller { tenant: Arc::from("t"), scope: [0; 32], keyed: false },
        request_id: Arc::from("r"),
        choices: 1,
        rank: None,
    })
}

/// A body on its way to an engine: fields, chat template, tokens.
pub fn prepared(body: &[u8]) -> bool {
    static SIDE: LazyLock<Option<TextSide>> = LazyLock::new(|| {
        let gguf = Gguf::read(Cursor::new(sample::gguf())).ok()?;
        let model = TextModel::of_gguf(Path::new("sample.gguf"), &gguf).ok()?;
        let text = Text { escape_control_tokens: true, ..Text::default() };
        let side = TextSide::new(model, &text, Tokenizing::default());
        Some(side.with_parsers(ToolParser::Hermes, ReasoningParser::Qwen3))
    });
    let side = SIDE.as_ref();
    assert!(side.is_some(), "the sample model is read");
    let Some(side) = side else { return false };
    // The gateway refuses what is deeper before it comes to this.
    if check_depth(body, Limits::default().max_depth).is_err() {
        return false;
    }
    let mut read = false;
    for row in ENDPOINTS.iter().filter(|row| row.endpoint.generates()) {
        match side.prepare(row.endpoint, body) {
            Ok(prepared) => {
                read = true;
                assert!(prepared.prompts.iter().all(|prompt| !prompt.ids.is_empty()));
                let tokens: usize = prepared.prompts.iter().map(|prompt| prompt.ids.len()).sum();
                // A token is a byte at least. The template shows a message, or what it holds, a few times at most.
                assert!(tokens <= 40 * body.len() + 1000, "{tokens} tokens of {} bytes", body.len());
            }
            Err(error) => assert!(error.status.is_client_error(), "{}: {}", error.status, error.message()),
        }
    }
    for answered in [side.tokenize(body, Some(100)), side.count_tokens(body), side.detokenize(body)] {
        read |= answered.is_ok();
    }
    read
}

/// An upstream's stream, however it is cut; and the ids that its events get, which are all that is added.
pub fn events(bytes: &[u8]) -> bool {
    let Some((passed, begun)) = foreign::events(bytes) else { return false };
    let (marked, last) = numbered(&passed);
    let unmarked: Vec<u8> = marked.iter().flat_map(|event| without_id(event)).collect();
    assert_eq!(unmarked, passed);
    let ids = marked.iter().filter(|event| own_id(event).is_some()).count();
    assert_eq!(ids as u64, last, "each has its own");
    begun
}

/// Where the gateway's own line stands in an event, and how long it is.
fn own_id(event: &[u8]) -> Option<(usize, usize)> {
    const LINE: &[u8] = b"id: 000000000000000000000000000000ab-";
    let at = event.windows(LINE.len()).rposition(|window| window == LINE)?;
    let digits = event.get(at + LINE.len()..)?.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let rest = event.get(at + LINE.len() + digits..)?;
    // Two ends of lines: its own, and the blank one's.
    (rest.len() % 2 == 0 && rest.len() <= 4).then_some((at, LINE.len() + digits + rest.len() / 2))
}

fn without_id(event: &[u8]) -> Vec<u8> {
    let mut event = event.to_vec();
    if let Some((at, length)) = own_id(&event) {
        event.drain(at..at + length);
    }
    event
}

/// An upstream's error, as a body and as an event, in each shape.
pub fn answer(body: &[u8]) -> bool {
    let body = Bytes::copy_from_slice(body);
    let bodies = [
        ApiError::upstream(StatusCode::IM_A_TEAPOT, HeaderMap::new(), body.clone()),
        ApiError::upstream_event(body.clone()),
    ];
    for error in bodies {
        assert!(error.status.is_client_error() || error.status.is_server_error());
        for shape in [ErrorShape::OpenAi, ErrorShape::Responses, ErrorShape::Anthropic] {
            let shaped = error.clone().in_shape(shape);
            assert!(serde_json::from_slice::<IgnoredAny>(shaped.body()).is_ok(), "A4: the body is JSON");
            let end = error.stream_end(shape);
            assert!(end.ends_with(b"\n\n"), "a client sees the event");
            // A line of the upstream's is no line of the event's.
            let text = String::from_utf8_lossy(&end);
            assert!(
                text.lines().all(|line| line.is_empty() || line.starts_with("data: ") || line.starts_with("event: "))
            );
        }
        drop(error.renamed(&[("messages", "input")]).message());
    }
    serde_json::from_slice::<IgnoredAny>(&body).is_ok()
}

/// A head, of a request or an answer: `name: value` lines after a first one that is a path.
pub fn head(bytes: &[u8]) -> bool {
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let path = String::from_utf8_lossy(lines.next().unwrap_or_default());
    let mut headers = HeaderMap::new();
    for line in lines.take(100) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) = line.split_at(colon);
        let value = HeaderValue::from_bytes(value.get(1..).unwrap_or_default().trim_ascii());
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), value) {
            headers.append(name, value);
        }
    }
    let known = route::known(&path);
    let routed = Route::of(&Method::GET, &path);
    // The label is one of ours, whatever the path is.
    assert!(known == "other" || known == path || path.starts_with(known));
    if let Ok(Route::Stream(stream)) = &routed {
        let _ = EventId::parse(&format!("{stream}-1"));
    }
    let ok = header::check(&headers).is_ok();
    let forwarded = header::forwarded(&headers);
    assert!(
        !forwarded.contains_key("connection") && !forwarded.keys().any(|name| name.as_str().starts_with("x-infergw-"))
    );
    drop((header::rank(&headers, Some(1)), header::opts_out(&headers), header::idempotency_key(&headers)));
    if let Ok(Some(seen)) = header::last_event_id(&headers)
        && let Some(id) = EventId::parse(seen)
    {
        let (stream, number) = seen.split_once('-').unwrap_or_default();
        assert_eq!((id.stream.to_string().as_str(), number.parse()), (stream, Ok(id.event)));
    }
    let keys = [ApiKey { key: "right".into(), tenant: "t".into() }];
    let entered = Keys::new(&keys).enter(&headers);
    if entered.is_ok() {
        let shown = headers.values().any(|value| value.as_bytes().windows(5).any(|window| window == b"right"));
        assert!(shown, "X1: nobody comes in without the key");
    }
    drop(Keys::new(&[]).enter(&headers));
    if let Some(after) = headers.get(RETRY_AFTER) {
        let _ = crate::pool::spare_of(&headers);
        drop(after.to_str().map(duration::parse));
    }
    ok && routed.is_ok()
}

/// A model file's metadata, and the tokenizer that is made of it.
pub fn gguf(file: &[u8]) -> bool {
    match Gguf::read(Cursor::new(file)) {
        Ok(gguf) => {
            if let Ok(model) = TextModel::of_gguf(Path::new("x.gguf"), &gguf) {
                drop(model.tokenizer.encode("a b<|im_end|>", true));
            }
            true
        }
        Err(_) => false,
    }
}

/// The formats of calls and of reasoning.
const FAMILIES: [(ToolParser, ReasoningParser); 11] = [
    (ToolParser::Hermes, ReasoningParser::Qwen3),
    (ToolParser::Qwen3Coder, ReasoningParser::Qwen3),
    (ToolParser::Llama3Json, ReasoningParser::None),
    (ToolParser::Mistral, ReasoningParser::Mistral),
    (ToolParser::DeepseekV3, ReasoningParser::DeepseekR1),
    (ToolParser::DeepseekV31, ReasoningParser::DeepseekR1),
    (ToolParser::KimiK2, ReasoningParser::KimiK2),
    (ToolParser::KimiK2, ReasoningParser::Kimi),
    (ToolParser::Harmony, ReasoningParser::Harmony),
    (ToolParser::None, ReasoningParser::Qwen3),
    (ToolParser::Hermes, ReasoningParser::None),
];

/// A model's text: calls and reasoning are the same however it was cut (A8), and so are stop strings (U4).
pub fn text(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let schema = json!({"type": "object", "properties": {
        "city": {"type": "string"}, "n": {"type": "integer"}, "list": {"type": "array"}, "on": {"type": "boolean"}}});
    let mut told = false;
    for (tools, reasoning) in FAMILIES {
        for wanted in [Wanted::Auto, Wanted::Required, Wanted::Named] {
            let functions = vec![("f".to_owned(), schema.clone()), ("g".to_owned(), json!({}))];
            let wishes = Wishes { wanted, functions, ..Wishes::default() };
            let Some(plan) = Families::of(tools, reasoning, "").plan(&wishes, "") else { continue };
            let whole = assembled(&plan, [&*text]);
            let size = whole.content.len()
                + whole.reasoning.len()
                + whole.calls.iter().map(|(a, b)| a.len() + b.len()).sum::<usize>();
            // A control character is six in JSON; nothing grows more.
            assert!(size <= 8 * text.len() + 200, "{size} bytes of {}", text.len());
            let characters = text.char_indices().map(|(at, c)| text.get(at..at + c.len_utf8()).unwrap_or_default());
            assert_eq!(assembled(&plan, characters), whole, "{tools:?} {reasoning:?} {wanted:?}, cut everywhere");
            let middle = (0..=text.len() / 2).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
            let (before, after) = text.split_at(middle);
            assert_eq!(
                assembled(&plan, [before, after]),
                whole,
                "{tools:?} {reasoning:?} {wanted:?}, cut in the middle"
            );
            told |= !whole.calls.is_empty();
        }
    }
    let stops: Vec<String> = text.lines().take(4).map(|line| line.chars().rev().take(5).collect()).collect();
    let whole = StopScan::new(&stops).scan(&text, true).map(|found| (found.end, found.index));
    let (mut scan, mut at) = (StopScan::new(&stops), 0);
    let cut = text.split_inclusive('e').find_map(|piece| {
        let found = scan.scan(piece, true).map(|found| (at + found.end, found.index));
        at += piece.len();
        found
    });
    assert_eq!(cut, whole);
    told
}

/// An answer put together.
#[derive(Debug, Default, PartialEq, Eq)]
struct Assembled {
    content: String,
    reasoning: String,
    /// Names and arguments.
    calls: Vec<(String, String)>,
}

fn assembled<'a>(plan: &Plan, pieces: impl IntoIterator<Item = &'a str>) -> Assembled {
    let mut parser = plan.parser();
    let mut whole = Assembled::default();
    let mut told: Vec<Piece> = pieces.into_iter().flat_map(|piece| parser.feed(piece)).collect();
    told.extend(parser.finish());
    for piece in told {
        match piece {
            Piece::Content(text) => whole.content.push_str(&text),
            Piece::Reasoning(text) => whole.reasoning.push_str(&text),
            Piece::Call { index, name, .. } => {
                assert_eq!(index, whole.calls.len(), "calls are numbered as they come");
                whole.calls.push((name, String::new()));
            }
            Piece::Arguments { index, text } => {
                assert_eq!(index + 1, whole.calls.len(), "arguments belong to the call that began last");
                if let Some((_, arguments)) = whole.calls.last_mut() {
                    arguments.push_str(&text);
                }
            }
        }
    }
    whole
}

/// A chat template, and two conversations through it.
pub fn template(bytes: &[u8]) -> bool {
    let source = String::from_utf8_lossy(bytes);
    let tokens =
        BTreeMap::from([("bos_token".to_owned(), "<s>".to_owned()), ("eos_token".to_owned(), "</s>".to_owned())]);
    let Ok(template) = ChatTemplate::new(&source, None, tokens) else { return false };
    let call = json!({"type": "function", "id": "c1", "function": {"name": "f", "arguments": {"n": 1}}});
    let long = Conversation {
        messages: vec![
            json!({"role": "system", "content": "be kind"}),
            json!({"role": "user", "content": [{"type": "text", "text": "a\nb"}]}),
            json!({"role": "assistant", "content": null, "tool_calls": [call], "reasoning_content": "hm"}),
            json!({"role": "tool", "content": "1", "tool_call_id": "c1"}),
            json!({"role": "assistant", "content": "yes"}),
        ],
        tools: Some(json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}])),
        continue_final_message: true,
        ..Conversation::default()
    };
    let short = Conversation {
        messages: vec![json!({"role": "user", "content": "hi"})],
        add_generation_prompt: true,
        ..Conversation::default()
    };
    let families = Families::of(ToolParser::Auto, ReasoningParser::Auto, &template.source());
    drop(families.plan(&Wishes::default(), &source));
    template.render(&long).is_ok() | template.render(&short).is_ok()
}

#[cfg(test)]
mod tests;
