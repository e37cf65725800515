//! The oracle of the text path (U1 to U6, U8, U9), on random answers: whatever a model says and however an engine batches it, what a
//! stream tells, what a body tells, and one decoding of all tokens that is cut at the stop are the same.
//!
//! The oracle is written anew, on bytes and in one go: it shares no code with the table, the detokenizer or the stop scan but
//! the tokenizer itself.

use serde_json::Value;

use super::super::super::events::{Events, Identity, WholeChoice, body};
use super::super::super::request::Dialect;
use super::super::super::sample_models::demo;
use super::*;
use crate::types::Usage;

static DEMO: LazyLock<Made> =
    LazyLock::new(|| Made { tokenizer: demo().tokenizer.clone(), table: Arc::clone(&demo().table) });

const IDENTITY: Identity<'_> = Identity { id: "chatcmpl-1", created: 7, model: "m" };

/// A part of an answer: text as the tokenizer cuts it, or tokens that no text would give (broken characters, control tokens).
#[derive(Debug, Clone)]
enum Part {
    Text(String),
    Tokens(Vec<u32>),
}

fn parts() -> impl Strategy<Value = Vec<Part>> {
    let word = prop_oneof![
        4 => prop::sample::select(vec![
            "hello", " world", "😀", "👨‍👩‍👧", "日本語", "é", "e\u{301}", "ab", "a", "stop", "\n\n", "\r\n", "  ", "\u{FFFD}", "\u{0}",
            "<|end|>", "<tool>", "<|im_end|>", "<|im_start|>", "</answer>", "नमस्ते", "🏳️‍🌈", "\"\\", "12345",
        ]).prop_map(str::to_owned),
        2 => any::<char>().prop_map(String::from),
        1 => any::<String>(),
    ];
    let text = prop::collection::vec(word, 1..8).prop_map(|words| Part::Text(words.concat()));
    // Low ids are the single bytes of both vocabularies.
    let token = prop_oneof![3 => 0u32..300, 1 => any::<u32>()];
    let part = prop_oneof![3 => text, 1 => prop::collection::vec(token, 1..6).prop_map(Part::Tokens)];
    prop::collection::vec(part, 0..5)
}

/// A stop string: a part of the answer (from where, how many characters, what comes after), or something else.
#[derive(Debug, Clone)]
enum Stop {
    Of(prop::sample::Index, usize, Option<char>),
    Other(String),
}

fn stop() -> impl Strategy<Value = Stop> {
    let near_miss = prop::option::weighted(0.5, prop_oneof![Just('a'), Just('!'), any::<char>()]);
    prop_oneof![
        3 => (any::<prop::sample::Index>(), 1usize..8, near_miss).prop_map(|(at, length, after)| Stop::Of(at, length, after)),
        1 => prop_oneof![Just("abab"), Just("b"), Just("\n\n"), Just("\u{FFFD}"), Just("</answer>"), Just("o w")]
            .prop_map(|text| Stop::Other(text.to_owned())),
        1 => ".{1,3}".prop_map(Stop::Other),
    ]
}

#[derive(Debug, Clone)]
struct Asked {
    include_stop: bool,
    skip_special_tokens: bool,
    logprobs: bool,
    min_tokens: usize,
    /// `ignore_eos` with these stop tokens, by their place in the answer.
    own_ends: Option<Vec<prop::sample::Index>>,
    /// The engine ends the answer with an end token, or at its limit, then perhaps without a token.
    end: Option<bool>,
}

fn asked() -> impl Strategy<Value = Asked> {
    let own_ends = prop::option::weighted(0.2, prop::collection::vec(any::<prop::sample::Index>(), 0..3));
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    let min_tokens = prop_oneof![2 => Just(0), 1 => 1usize..12, 1 => 1usize..60];
    (flags, min_tokens, own_ends, prop::option::of(any::<bool>())).prop_map(|(flags, min_tokens, own_ends, end)| {
        let (include_stop, skip_special_tokens, logprobs) = flags;
        Asked { include_stop, skip_special_tokens, logprobs, min_tokens, own_ends, end }
    })
}

/// What an answer must be.
#[derive(Debug, PartialEq)]
struct Expected {
    text: String,
    tokens: usize,
    reason: Reason,
}

/// The token's bytes as the vocabulary spells them; `None` for one that is not shown.
fn bytes_of(made: &Made, id: u32, skip: bool) -> Option<Vec<u8>> {
    let added = made.tokenizer.get_added_tokens_decoder();
    if let Some(token) = added.get(&id) {
        return (!(skip && token.special)).then(|| token.content.clone().into_bytes());
    }
    let token = made.tokenizer.id_to_token(id)?;
    Some(token.chars().map(|shown| byte_of(shown).unwrap()).collect())
}

/// The byte that a character of a byte-level vocabulary stands for, found from the library's alphabet.
fn byte_of(shown: char) -> Option<u8> {
    static BYTES: LazyLock<std::collections::HashMap<char, u8>> = LazyLock::new(|| {
        let byte_level = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet();
        let printable: Vec<char> = byte_level.iter().copied().filter(|c| (*c as u32) < 0x100).collect();
        let mut others: Vec<char> = byte_level.into_iter().filter(|c| (*c as u32) >= 0x100).collect();
        others.sort_unstable();
        let hidden = (0..=u8::MAX).filter(|byte| !printable.contains(&char::from(*byte)));
        let shown = printable.iter().map(|&c| (c, c as u8));
        shown.chain(others.into_iter().zip(hidden)).collect()
    });
    BYTES.get(&shown).copied()
}

/// One decoding of all of `ids`, cut where a stop string is first complete; else the answer has `last` tokens and ends by `end`.
fn expect(made: &Made, ids: &[u32], (last, end): (usize, Reason), stops: &[String], asked: &Asked) -> Expected {
    let mut bytes = Vec::new();
    // Which token brought each byte, counted from one.
    let mut brought = Vec::new();
    for (at, &id) in ids.iter().enumerate() {
        let token = bytes_of(made, id, asked.skip_special_tokens).unwrap_or_default();
        brought.resize(brought.len() + token.len(), at + 1);
        bytes.extend(token);
    }
    let mut text = String::new();
    let mut at = 0;
    let mut show = |character: char, tokens: usize| {
        text.push(character);
        let ended = stops.iter().filter(|stop| text.ends_with(stop.as_str())).max_by_key(|stop| stop.len());
        let stop = ended.filter(|_| tokens > asked.min_tokens)?;
        let shown = if asked.include_stop { text.len() } else { text.len() - stop.len() };
        Some(Expected { text: text[..shown].to_owned(), tokens, reason: Reason::Stop })
    };
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            at += character.len_utf8();
            if let Some(stopped) = show(character, brought[at - 1]) {
                return stopped;
            }
        }
        if let Err(error) = std::str::from_utf8(chunk.invalid()) {
            at += chunk.invalid().len();
            // Whether a character that was begun will be whole shows with the byte after it.
            let tokens = if error.error_len().is_none() { brought.get(at) } else { brought.get(at - 1) };
            if let Some(stopped) = show(char::REPLACEMENT_CHARACTER, tokens.copied().unwrap_or(last)) {
                return stopped;
            }
        }
    }
    Expected { text, tokens: last, reason: end }
}

/// The data of each event.
fn data(events: &[u8]) -> Vec<Value> {
    let events = std::str::from_utf8(events).unwrap().split_terminator("\n\n");
    events.map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap()).collect()
}

/// The text and the log probabilities that a client reads, streamed and whole.
fn tell(made: &Made, dialect: Dialect, output: &Output, told: &Told, deltas: &[Delta]) -> [(String, Vec<Value>); 2] {
    let (text_at, listed) = match dialect {
        Dialect::ChatCompletions => ("content", "/logprobs/content"),
        Dialect::Completions => ("text", "/logprobs/tokens"),
    };
    let entries = |choice: &Value| choice.pointer(listed).and_then(Value::as_array).cloned().unwrap_or_default();
    let writer = Events::new(dialect, IDENTITY, false, Arc::clone(&made.table));
    let (mut events, mut offset) = (Vec::new(), 0);
    for delta in deltas.iter().filter(|delta| !delta.is_empty()) {
        writer.delta(&mut events, 0, delta, offset);
        offset += delta.text.chars().count();
    }
    let mut streamed = (String::new(), Vec::new());
    for event in data(&events) {
        let choice = &event["choices"][0];
        let delta = if dialect == Dialect::ChatCompletions { &choice["delta"] } else { choice };
        streamed.0.push_str(delta[text_at].as_str().unwrap());
        streamed.1.extend(entries(choice));
    }
    let logprobs = output.logprobs.map(|_| deltas.iter().flat_map(|delta| delta.logprobs.clone()).collect());
    let reason = told.ended.map(|ended| ended.reason);
    let whole = WholeChoice { text: told.text.clone(), logprobs, reason, ..WholeChoice::default() };
    let usage = Usage { completion_tokens: told.tokens, ..Usage::default() };
    let whole: Value = serde_json::from_slice(&body(dialect, IDENTITY, &[whole], usage, &made.table)).unwrap();
    assert_eq!(whole["usage"]["completion_tokens"], told.tokens);
    let choice = &whole["choices"][0];
    let message = if dialect == Dialect::ChatCompletions { &choice["message"] } else { choice };
    [streamed, (message[text_at].as_str().unwrap().to_owned(), entries(choice))]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    /// U1, U4, U5, U8, U9 on the demo model's tokenizer and a small byte-level one: the joined deltas, the body's text and one
    /// decoding that is cut at the stop are the same; there is one log probability for each counted token, streamed and whole.
    #[test]
    fn u1_u4_u5_u8_u9_stream_body_and_one_decoding_are_the_same(
        parts in parts(), stops in prop::collection::vec(stop(), 0..4), asked in asked(),
        mut sizes in prop::collection::vec(0usize..8, 0..6), real in any::<bool>(), chat in any::<bool>(),
    ) {
        let made = if real { &*DEMO } else { &*BYTE_LEVEL };
        let mut ids = Vec::new();
        for part in &parts {
            match part {
                Part::Text(text) => ids.extend(encode(made, text)),
                // Ids that the vocabulary lacks are among them; they are no text.
                Part::Tokens(tokens) => ids.extend(tokens.iter().map(|&id| if id < 300 { id } else { id % (made.table.len() as u32 + 9) })),
            }
        }
        let (mut end, mut late) = (Reason::Length, false);
        match asked.end {
            Some(true) => {
                ids.push(made.tokenizer.token_to_id(if real { "<|im_end|>" } else { "<|end|>" }).unwrap());
                end = Reason::Stop;
            }
            Some(false) => late = true,
            None => {}
        }
        let stop_token_ids: Vec<u32> = match &asked.own_ends {
            Some(places) if !ids.is_empty() => places.iter().map(|place| *place.get(&ids)).collect(),
            _ => Vec::new(),
        };
        let sampling = Sampling {
            min_tokens: asked.min_tokens as i64, ignore_eos: asked.own_ends.is_some(), stop_token_ids: stop_token_ids.clone(),
            ..Sampling::default()
        };

        // What is left for stop strings to be found in.
        let own_end = ids.iter().enumerate().position(|(at, id)| at + 1 > asked.min_tokens && stop_token_ids.contains(id));
        let last = own_end.map_or(ids.len(), |at| at + 1);
        let ended = if own_end.is_some() { Reason::Stop } else { end };
        let hidden = usize::from(ended == Reason::Stop && !asked.include_stop);
        let shown = &ids[..last - hidden];
        let whole = made.tokenizer.decode(shown, asked.skip_special_tokens).unwrap();
        let characters: Vec<char> = whole.chars().collect();
        let stops: Vec<String> = stops.into_iter().map(|stop| match stop {
            Stop::Of(at, length, after) if !characters.is_empty() => {
                let from = at.index(characters.len());
                characters[from..].iter().take(length).copied().chain(after).collect()
            }
            Stop::Of(..) => "x".to_owned(),
            Stop::Other(text) => text,
        }).collect();
        let expected = expect(made, shown, (last, ended), &stops, &asked);
        if stops.is_empty() {
            prop_assert_eq!(&expected.text, &whole, "the oracle and the library");
        }

        let output = Output {
            stops, include_stop: asked.include_stop, skip_special_tokens: asked.skip_special_tokens,
            logprobs: asked.logprobs.then_some(0), ..Output::default()
        };
        sizes.push(1);
        let mut batches = steps(&ids, &sizes, end);
        if late && let Some(step) = batches.last_mut() {
            step.end = None;
            batches.push(Step { end: Some(end), ..Step::default() });
        }
        let (told, deltas) = deltas_of(made, &output, &sampling, &batches);
        prop_assert_eq!(Expected { text: told.text.clone(), tokens: told.tokens as usize, reason: told.ended.unwrap().reason }, expected);
        let scored: &[u32] = if asked.logprobs { &ids[..told.tokens as usize] } else { &[] };
        prop_assert_eq!(&told.logprobs[..], scored);

        let dialect = if chat { Dialect::ChatCompletions } else { Dialect::Completions };
        let [streamed, whole] = tell(made, dialect, &output, &told, &deltas);
        prop_assert_eq!(&streamed, &whole);
        prop_assert_eq!(&streamed.0, &told.text);
        prop_assert_eq!(streamed.1.len(), scored.len());
        for (entry, &id) in streamed.1.iter().zip(scored).filter(|_| chat) {
            let bytes = bytes_of(made, id, false).unwrap_or_default();
            prop_assert_eq!(&entry["bytes"], &Value::from(bytes));
            prop_assert_eq!(entry["logprob"].as_f64().unwrap(), (-f64::from(id)).max(-9999.0));
        }
    }
}
