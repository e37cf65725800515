#![expect(clippy::unwrap_used, reason = "tests")]

use std::sync::LazyLock;

use proptest::prelude::*;

use super::super::sample_models::{byte_level, demo, gemma_decoder, llama2_decoder, sentencepiece, word_pieces};
use super::*;

/// The deltas of `ids`, the flushed tail last.
fn deltas(table: &Arc<TokenTable>, ids: &[u32], skip_special: bool) -> Vec<String> {
    let mut detokenizer = Detokenizer::new(Arc::clone(table), skip_special);
    let mut deltas: Vec<String> = Vec::new();
    for &id in ids {
        let mut delta = String::new();
        detokenizer.push(id, &mut delta);
        deltas.push(delta);
    }
    let mut tail = String::new();
    detokenizer.flush(&mut tail);
    deltas.push(tail);
    deltas
}

fn table(tokenizer: &Tokenizer, join: Join) -> Arc<TokenTable> {
    let table = TokenTable::new(tokenizer);
    assert_eq!(table.join, join);
    Arc::new(table)
}

/// A tokenizer and its table, made once.
struct Made {
    tokenizer: Tokenizer,
    table: Arc<TokenTable>,
}

fn made(tokenizer: Tokenizer, join: Join) -> Made {
    let table = table(&tokenizer, join);
    Made { tokenizer, table }
}

static BYTE_LEVEL: LazyLock<Made> = LazyLock::new(|| made(byte_level(), Join::Bytes));
static PIECES: LazyLock<[Made; 2]> =
    LazyLock::new(|| [made(sentencepiece(llama2_decoder()), LLAMA2), made(sentencepiece(gemma_decoder()), GEMMA)]);

const LLAMA2: Join = Join::Pieces { fallback: true, lead: Lead::OneSpaceDropped };
const GEMMA: Join = Join::Pieces { fallback: true, lead: Lead::Kept };

fn text() -> impl Strategy<Value = String> {
    proptest::collection::vec(
        prop_oneof![
            Just("hello".to_owned()),
            Just(" world".to_owned()),
            Just("😀".to_owned()),
            Just("👨‍👩‍👧".to_owned()),
            Just("日本".to_owned()),
            Just("é".to_owned()),
            Just("\u{FFFD}".to_owned()),
            Just("\n\n".to_owned()),
            Just("<|end|>".to_owned()),
            Just("<tool>".to_owned()),
            Just("  ".to_owned()),
            any::<char>().prop_map(String::from),
        ],
        0..24,
    )
    .prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// U1, U2: on byte-level vocabularies the joined deltas are the library's decoding of all ids at once, for any ids.
    #[test]
    fn u1_byte_level_equals_one_shot(ids in proptest::collection::vec(0u32..290, 0..40), skip in any::<bool>()) {
        let Made { tokenizer, table } = &*BYTE_LEVEL;
        let joined = deltas(table, &ids, skip).concat();
        prop_assert_eq!(&joined, &tokenizer.decode(&ids, skip).unwrap());
        prop_assert_eq!(&joined, &table.decode(&ids, skip));
    }

    /// U1, U3: text comes back as it was, byte for byte, a genuine U+FFFD too (U2).
    #[test]
    fn u3_text_round_trips(text in text()) {
        let Made { tokenizer, table } = &*BYTE_LEVEL;
        let ids = tokenizer.encode(text.as_str(), false).unwrap();
        let joined = deltas(table, ids.get_ids(), false).concat();
        prop_assert_eq!(joined, text);
    }

    /// U1: sentencepiece with byte fallback, for all text.
    #[test]
    fn u1_sentencepiece_equals_one_shot(text in text()) {
        for Made { tokenizer, table } in &*PIECES {
            let ids = tokenizer.encode(text.as_str(), false).unwrap();
            let joined = deltas(table, ids.get_ids(), true).concat();
            prop_assert_eq!(joined, tokenizer.decode(ids.get_ids(), true).unwrap());
        }
    }

    /// U2: no more than three bytes are held back, whatever the tokens.
    #[test]
    fn u2_hold_back_is_bounded(ids in proptest::collection::vec(0u32..300, 0..64)) {
        for Made { table, .. } in [&*BYTE_LEVEL, &PIECES[0], &PIECES[1]] {
            let mut detokenizer = Detokenizer::new(Arc::clone(table), false);
            let mut out = String::new();
            for &id in &ids {
                detokenizer.push(id, &mut out);
                prop_assert!(detokenizer.state.pending.len() <= 3);
            }
        }
    }
}

/// U1: an emoji that is split over tokens never shows as U+FFFD, and comes with the token that completes it.
#[test]
fn u1_split_characters() {
    let tokenizer = byte_level();
    let table = table(&tokenizer, Join::Bytes);
    let ids = tokenizer.encode("a😀b", false).unwrap();
    let deltas = deltas(&table, ids.get_ids(), true);
    assert!(ids.get_ids().len() > 3, "the emoji is split");
    assert_eq!(deltas.concat(), "a😀b");
    assert!(deltas.iter().any(|d| d == "😀"));
}

/// U2: a character that is cut off at the end is flushed as U+FFFD.
#[test]
fn u2_tail_is_flushed() {
    let tokenizer = byte_level();
    let table = table(&tokenizer, Join::Bytes);
    let mut ids = tokenizer.encode("a😀", false).unwrap().get_ids().to_vec();
    ids.pop();
    let deltas = deltas(&table, &ids, true);
    assert_eq!(deltas.last().unwrap(), "\u{FFFD}");
    assert_eq!(deltas.concat(), tokenizer.decode(&ids, true).unwrap());
}

/// In a broken run of byte tokens the valid characters stay: the documented difference from the library.
#[test]
fn broken_byte_runs_keep_what_is_valid() {
    let tokenizer = sentencepiece(gemma_decoder());
    let table = table(&tokenizer, GEMMA);
    let ids: Vec<u32> =
        ["<0x41>", "<0xFF>", "<0xC3>", "<0xA9>", "<0xE3>"].map(|t| tokenizer.token_to_id(t).unwrap()).into();
    assert_eq!(table.decode(&ids, true), "A\u{FFFD}é\u{FFFD}");
}

/// Decoders that the table does not know go through the library.
#[test]
fn other_decoders_use_the_library() {
    let tokenizer = word_pieces();
    let table = table(&tokenizer, Join::Library);
    let ids = tokenizer.encode("unhappy world, hello!", false).unwrap();
    let joined = deltas(&table, ids.get_ids(), true).concat();
    assert_eq!(joined, tokenizer.decode(ids.get_ids(), true).unwrap());
    assert_eq!(joined, "unhappy world , hello !");
}

/// U8: control tokens are hidden or shown, ordinary added tokens always shown.
#[test]
fn u8_skip_special_tokens() {
    let tokenizer = byte_level();
    let table = table(&tokenizer, Join::Bytes);
    let ids = tokenizer.encode("hello<|end|><tool>", false).unwrap();
    assert_eq!(table.decode(ids.get_ids(), true), "hello<tool>");
    assert_eq!(table.decode(ids.get_ids(), false), "hello<|end|><tool>");
    assert!(table.is_special(tokenizer.token_to_id("<|end|>").unwrap()));
}

/// The demo model's whole vocabulary, through the table and through the library.
#[test]
fn demo_vocabulary_agrees() {
    let model = demo();
    assert_eq!(model.table.join, Join::Bytes);
    let ids: Vec<u32> = (0..model.table.len() as u32).collect();
    for ids in ids.chunks(128) {
        assert_eq!(model.table.decode(ids, false), model.tokenizer.decode(ids, false).unwrap());
    }
}

/// Unknown ids are no text, as in the library.
#[test]
fn unknown_ids_are_nothing() {
    let tokenizer = byte_level();
    let table = table(&tokenizer, Join::Bytes);
    assert_eq!(table.decode(&[5_000_000, u32::MAX], false), "");
    assert_eq!(table.token_bytes(5_000_000), b"");
}
