#![expect(clippy::unwrap_used, reason = "tests")]

use std::sync::LazyLock;

use proptest::prelude::*;
use tokenizers::Tokenizer;

use super::super::sample_models::{byte_level, gemma_decoder, sentencepiece};
use super::*;

mod streams;

struct Made {
    tokenizer: Tokenizer,
    table: Arc<TokenTable>,
}

fn made(tokenizer: Tokenizer) -> Made {
    let table = Arc::new(TokenTable::new(&tokenizer));
    Made { tokenizer, table }
}

static BYTE_LEVEL: LazyLock<Made> = LazyLock::new(|| made(byte_level()));
static PIECES: LazyLock<Made> = LazyLock::new(|| made(sentencepiece(gemma_decoder())));

/// Everything a choice told, and how it ended.
#[derive(Debug, PartialEq)]
struct Told {
    text: String,
    deltas: Vec<String>,
    logprobs: Vec<u32>,
    tokens: u64,
    ended: Option<Ended>,
}

fn run(made: &Made, output: &Output, sampling: &Sampling, steps: &[Step]) -> Told {
    deltas_of(made, output, sampling, steps).0
}

/// The same, with each delta as it was told.
fn deltas_of(made: &Made, output: &Output, sampling: &Sampling, steps: &[Step]) -> (Told, Vec<Delta>) {
    let end = |name: &&str| made.tokenizer.token_to_id(name);
    let ends = ["<|end|>", "<|im_end|>"].iter().filter_map(end).chain(sampling.stop_token_ids.clone());
    let ends: Arc<[u32]> = ends.collect();
    let mut choice = Choice::new(Arc::clone(&made.table), output, sampling, ends);
    let mut told = Told { text: String::new(), deltas: Vec::new(), logprobs: Vec::new(), tokens: 0, ended: None };
    let (mut delta, mut deltas) = (Delta::default(), Vec::new());
    for step in steps {
        delta.clear();
        told.ended = choice.take(step, &mut delta);
        told.text.push_str(&delta.text);
        told.deltas.push(delta.text.clone());
        told.logprobs.extend(delta.logprobs.iter().map(|l| l.id));
        deltas.push(delta.clone());
        if told.ended.is_some() {
            break;
        }
    }
    told.tokens = choice.tokens();
    (told, deltas)
}

/// `ids` in steps of the given sizes (repeated), the last one with the engine's end.
fn steps(ids: &[u32], sizes: &[usize], end: Reason) -> Vec<Step> {
    let (mut steps, mut rest, mut sizes) = (Vec::new(), ids, sizes.iter().cycle());
    loop {
        let size = (*sizes.next().unwrap()).min(rest.len());
        let (now, later) = rest.split_at(size);
        let logprobs = now.iter().map(|&id| -f64::from(id)).collect();
        let done = later.is_empty();
        steps.push(Step { ids: now.to_vec(), logprobs, top: Vec::new(), end: done.then_some(end) });
        if done {
            return steps;
        }
        rest = later;
    }
}

fn encode(made: &Made, text: &str) -> Vec<u32> {
    made.tokenizer.encode(text, false).unwrap().get_ids().to_vec()
}

fn stops(stops: &[&str]) -> Output {
    Output { stops: stops.iter().map(|s| (*s).to_owned()).collect(), skip_special_tokens: true, ..Output::default() }
}

/// The text cut where a stop string is first complete: the oracle, by brute force.
fn cut(text: &str, stops: &[String], include: bool) -> (String, bool) {
    let ends = text.char_indices().map(|(at, c)| at + c.len_utf8());
    for end in ends {
        let shown = &text[..end];
        if let Some(stop) = stops.iter().filter(|s| shown.ends_with(s.as_str())).max_by_key(|s| s.len()) {
            return (shown[..if include { end } else { end - stop.len() }].to_owned(), true);
        }
    }
    (text.to_owned(), false)
}

fn text() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        Just("hello".to_owned()),
        Just(" world".to_owned()),
        Just("😀".to_owned()),
        Just("日本".to_owned()),
        Just("é".to_owned()),
        Just("ab".to_owned()),
        Just("a".to_owned()),
        Just("stop".to_owned()),
        Just("\n\n".to_owned()),
        Just("\u{FFFD}".to_owned()),
        any::<char>().prop_map(String::from),
    ];
    proptest::collection::vec(part, 0..16).prop_map(|parts| parts.concat())
}

fn stop_strings() -> impl Strategy<Value = Vec<String>> {
    let stop = prop_oneof![
        Just("abab".to_owned()),
        Just("aba".to_owned()),
        Just("b".to_owned()),
        Just("o w".to_owned()),
        Just("😀".to_owned()),
        Just("本é".to_owned()),
        Just("\n\n".to_owned()),
        Just("stop".to_owned()),
        Just("hello world".to_owned()),
        "[a-z]{1,3}",
        any::<char>().prop_map(String::from),
    ];
    proptest::collection::vec(stop, 0..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// U1, U4, U5, U9: for any text, batching and stop strings the joined deltas are the one-shot text cut at the stop,
    /// whatever the batching; one log probability per counted token; nothing counted after the completing token.
    #[test]
    fn u4_deltas_equal_the_cut_text(
        text in text(), stop_strings in stop_strings(), sizes in proptest::collection::vec(1usize..6, 1..6),
        include in any::<bool>(), pieces in any::<bool>(),
    ) {
        let made = if pieces { &*PIECES } else { &*BYTE_LEVEL };
        let ids = encode(made, &text);
        let output = Output { stops: stop_strings.clone(), include_stop: include, skip_special_tokens: true, ids: true, marks: Vec::new(),
            logprobs: Some(0), echo: false };
        let sampling = Sampling::default();
        let told = run(made, &output, &sampling, &steps(&ids, &sizes, Reason::Length));
        let whole = made.table.decode(&ids, true);
        let (expected, stopped) = cut(&whole, &stop_strings, include);
        prop_assert_eq!(&told.text, &expected);
        prop_assert_eq!(told.ended.unwrap().reason, if stopped { Reason::Stop } else { Reason::Length });
        prop_assert_eq!(told.logprobs.len() as u64, told.tokens);
        prop_assert_eq!(&told.logprobs[..], &ids[..told.tokens as usize]);
        if stopped {
            let counted = made.table.decode(&ids[..told.tokens as usize], true);
            prop_assert!(cut(&counted, &stop_strings, include).1);
            let one_less = made.table.decode(&ids[..told.tokens as usize - 1], true);
            // A cut character shows as U+FFFD only when it is the last; a stop string of U+FFFD may see it too early.
            let early = cut(&one_less, &stop_strings, include).1 && !one_less.ends_with(char::REPLACEMENT_CHARACTER);
            prop_assert!(!early);
        } else {
            prop_assert_eq!(told.tokens as usize, ids.len());
        }
        let one_step = run(made, &output, &sampling, &steps(&ids, &[usize::MAX], Reason::Length));
        prop_assert_eq!((one_step.text, one_step.tokens), (told.text, told.tokens));
    }
}

/// U4: only a real prefix of a stop string is held back, and a near miss is released whole.
#[test]
fn u4_near_misses_are_released_whole() {
    let ids = encode(&BYTE_LEVEL, "x</y");
    let told = run(&BYTE_LEVEL, &stops(&["</end>"]), &Sampling::default(), &steps(&ids, &[1], Reason::Length));
    assert_eq!(told.deltas, ["x", "", "</y"]);
    let ids = encode(&BYTE_LEVEL, "x</");
    let told = run(&BYTE_LEVEL, &stops(&["</end>"]), &Sampling::default(), &steps(&ids, &[1], Reason::Length));
    assert_eq!(told.deltas, ["x", "</"], "the near miss is released before the end");
}

/// U5, U6: a stop inside a batch ends text, log probabilities and count at the completing token, and the engine is told.
#[test]
fn u5_stop_inside_a_batch() {
    let ids = encode(&BYTE_LEVEL, "xhello worldyyyy");
    let output = Output { logprobs: Some(0), ..stops(&["wor"]) };
    let told = run(&BYTE_LEVEL, &output, &Sampling::default(), &steps(&ids, &[100], Reason::Length));
    assert_eq!(told.text, "xhello ");
    assert_eq!(told.tokens, 3);
    assert_eq!(told.logprobs, ids[..3]);
    assert_eq!(told.ended, Some(Ended { reason: Reason::Stop, by_gateway: true, matched: Some(Matched::Text(0)) }));
}

/// U6: where stop string and the engine's own end come together, the answer is a stop and nobody needs to be told.
#[test]
fn u6_match_outranks_the_engines_finish() {
    let ids = encode(&BYTE_LEVEL, "xstop");
    let told = run(&BYTE_LEVEL, &stops(&["stop"]), &Sampling::default(), &steps(&ids, &[1], Reason::Length));
    assert_eq!(told.text, "x");
    assert_eq!(told.ended, Some(Ended { reason: Reason::Stop, by_gateway: false, matched: Some(Matched::Text(0)) }));
}

/// The end token is counted and scored, and is no text; with `include_stop_str_in_output` a shown one stays.
#[test]
fn end_tokens_are_trimmed() {
    let end = BYTE_LEVEL.tokenizer.token_to_id("<|end|>").unwrap();
    let mut ids = encode(&BYTE_LEVEL, "hello");
    ids.push(end);
    let output = Output { logprobs: Some(0), skip_special_tokens: false, ..Output::default() };
    let told = run(&BYTE_LEVEL, &output, &Sampling::default(), &steps(&ids, &[1], Reason::Stop));
    assert_eq!((told.text.as_str(), told.tokens, told.logprobs.len()), ("hello", 2, 2));
    let output = Output { include_stop: true, ..output };
    let told = run(&BYTE_LEVEL, &output, &Sampling::default(), &steps(&ids, &[1], Reason::Stop));
    assert_eq!(told.text, "hello<|end|>");
}

/// A stop that is no end token (an engine that just says so) loses no text.
#[test]
fn other_last_tokens_stay() {
    let ids = encode(&BYTE_LEVEL, "hello");
    let told = run(&BYTE_LEVEL, &stops(&[]), &Sampling::default(), &steps(&ids, &[1], Reason::Stop));
    assert_eq!(told.text, "hello");
    assert_eq!(told.ended, Some(Ended { reason: Reason::Stop, by_gateway: false, matched: None }));
}

/// U8: before `min_tokens` nothing stops the answer.
#[test]
fn u8_min_tokens() {
    let ids = encode(&BYTE_LEVEL, "stopxstopy");
    assert_eq!(ids.len(), 4);
    let sampling = Sampling { min_tokens: 1, ..Sampling::default() };
    let told = run(&BYTE_LEVEL, &stops(&["stop"]), &sampling, &steps(&ids, &[9], Reason::Length));
    assert_eq!((told.text.as_str(), told.tokens), ("stopx", 3));
}

/// U8: with `ignore_eos` the request's own stop tokens still end the answer, and the gateway sees to it.
#[test]
fn u8_ignore_eos_keeps_stop_token_ids() {
    let tool = BYTE_LEVEL.tokenizer.token_to_id("<tool>").unwrap();
    let end = BYTE_LEVEL.tokenizer.token_to_id("<|end|>").unwrap();
    let ids = [encode(&BYTE_LEVEL, "hello"), vec![end], encode(&BYTE_LEVEL, "x"), vec![tool], encode(&BYTE_LEVEL, "y")]
        .concat();
    let sampling = Sampling { ignore_eos: true, stop_token_ids: vec![tool], ..Sampling::default() };
    let told = run(&BYTE_LEVEL, &stops(&[]), &sampling, &steps(&ids, &[9], Reason::Length));
    assert_eq!(told.text, "hellox");
    assert_eq!(told.ended, Some(Ended { reason: Reason::Stop, by_gateway: true, matched: Some(Matched::Token(tool)) }));
}
