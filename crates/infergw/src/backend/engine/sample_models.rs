//! Small tokenizers for tests, built through the tokenizers crate as model directories hold them.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::path::PathBuf;

use serde_json::{Value, json};
use tokenizers::Tokenizer;

use super::model::TextModel;

/// The demo model's file; without it the tests that need it fail and say what to do.
pub(crate) fn demo_file() -> PathBuf {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.demo/smollm2-135m.gguf");
    let file = std::env::var_os("INFERGW_DEMO_MODEL").map_or(root, PathBuf::from);
    assert!(file.is_file(), "the demo model is not at {}: run `make demo-model`", file.display());
    file
}

/// The demo model's text side, read once.
pub(crate) fn demo() -> &'static TextModel {
    static DEMO: std::sync::LazyLock<TextModel> = std::sync::LazyLock::new(|| TextModel::load(&demo_file()).unwrap());
    &DEMO
}

/// Byte-level BPE: 256 bytes, merges that make words and parts of characters, an end token and an added plain token.
pub(crate) fn byte_level() -> Tokenizer {
    // Ġ is a space, ð Ł is F0 9F (the start of every emoji), ã ģ is E3 81 (the start of most hiragana).
    let merges = [
        "h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "Ġwor l", "Ġworl d", "ð Ł", "ã ģ", "Ġ Ġ", "Ã ©", "< /",
        "i n", "Ċ Ċ", "s t", "st o", "sto p", "ðŁ ĺ", "a b", "ab a",
    ];
    let mut vocabulary = serde_json::Map::new();
    let mut alphabet: Vec<char> = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet().into_iter().collect();
    alphabet.sort_unstable();
    for piece in alphabet.into_iter().map(String::from).chain(merges.iter().map(|m| m.replace(' ', ""))) {
        vocabulary.insert(piece, json!(vocabulary.len()));
    }
    let end = vocabulary.len();
    tokenizer(json!({
        "version": "1.0",
        "added_tokens": [added(end, "<|end|>", true), added(end + 1, "<tool>", false), added(end + 2, "<|begin|>", true)],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges, "ignore_merges": false},
    }))
}

/// Sentencepiece as Llama 2 has it: pieces with a leading underscore, byte fallback, the first space dropped.
pub(crate) fn sentencepiece(decoder: Value) -> Tokenizer {
    let merges = ["▁ h", "▁h e", "l l", "▁he ll", "▁hell o", "▁ w", "▁w o", "▁ ▁", "a b"];
    let mut vocabulary = serde_json::Map::new();
    let bytes = (0..=255).map(|byte| format!("<0x{byte:02X}>"));
    let pieces = ["<unk>", "<s>", "</s>"].into_iter().map(str::to_owned).chain(bytes);
    let letters = "▁abcdefghijklmnopqrstuvwxyz.,!<>/é日本".chars().map(String::from);
    for piece in pieces.chain(letters).chain(merges.iter().map(|m| m.replace(' ', ""))) {
        vocabulary.insert(piece, json!(vocabulary.len()));
    }
    tokenizer(json!({
        "version": "1.0",
        "added_tokens": [added(0, "<unk>", true), added(1, "<s>", true), added(2, "</s>", true)],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ]},
        "decoder": decoder,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges, "unk_token": "<unk>", "fuse_unk": true,
            "byte_fallback": true, "ignore_merges": false},
    }))
}

/// The decoder of Llama 2.
pub(crate) fn llama2_decoder() -> Value {
    json!({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]})
}

/// The decoder of Gemma.
pub(crate) fn gemma_decoder() -> Value {
    json!({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]})
}

/// Word pieces as BERT has them: a decoder that the table does not know.
pub(crate) fn word_pieces() -> Tokenizer {
    let words = ["[UNK]", "hello", "world", "##ly", "un", "##happy", ",", "!", "##é"];
    let vocabulary: serde_json::Map<String, Value> =
        words.iter().enumerate().map(|(id, word)| ((*word).to_owned(), json!(id))).collect();
    tokenizer(json!({
        "version": "1.0",
        "added_tokens": [added(0, "[UNK]", true)],
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": false},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocabulary},
    }))
}

fn added(id: usize, content: &str, special: bool) -> Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": special})
}

fn tokenizer(json: Value) -> Tokenizer {
    Tokenizer::from_bytes(json.to_string()).unwrap()
}
