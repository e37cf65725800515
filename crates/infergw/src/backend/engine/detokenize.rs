//! Token ids to text, one token at a time (U1 to U3).
//!
//! Written here because this is the streaming path and the library's `DecodeStream` has no flush (a character that is
//! cut at the end is lost) and holds invalid bytes without bound. The work per token is one table look-up: at load, every
//! token's text or bytes are taken from the tokenizer into one table. What the table must know about a decoder is how
//! tokens join; the two ways that cover the field are byte-level (GPT-2 and its heirs) and pieces with byte fallback
//! (sentencepiece). Any other decoder is run through the library, and so is one whose table disagrees with it.
//!
//! One difference from the library is on purpose: in a run of byte-fallback tokens that is not valid UTF-8 the library
//! turns every byte of the run into U+FFFD, which it can only know at the run's end. Here the valid characters of such a
//! run stay, and each invalid byte becomes U+FFFD, so that at most three bytes are ever held back (U2).

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value;
use tokenizers::{Model, Tokenizer};

/// Largest id that a table is made for.
const MAX_ID: u32 = 4 << 20;
/// Tokens that are decoded both ways at load, to prove the table.
const PROOF_TOKENS: usize = 16 * 1024;
/// Tokens that the library way holds back at most while a character is unfinished.
const LIBRARY_HOLD: usize = 6;
/// The replacement character.
const LOSS: char = '\u{FFFD}';

/// Every token's text.
#[derive(Debug)]
pub struct TokenTable {
    entries: Vec<Entry>,
    /// The tokens that are whole text.
    text: String,
    /// The tokens that are bytes: parts of characters, or byte-fallback tokens.
    bytes: Vec<u8>,
    join: Join,
    library: Tokenizer,
    longest: usize,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    start: u32,
    length: u32,
    form: Form,
    special: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Missing,
    Text,
    Bytes,
}

/// How tokens join to text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Join {
    /// Byte-level: the bytes of all tokens are one string.
    Bytes,
    /// Pieces of text, with byte tokens in between where `fallback` is set.
    Pieces { fallback: bool, lead: Lead },
    /// Ask the library.
    Library,
}

/// What happens to a space at the very start of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lead {
    Kept,
    OneSpaceDropped,
    FirstTokensSpacesDropped,
}

impl TokenTable {
    /// The table of a tokenizer.
    pub fn new(tokenizer: &Tokenizer) -> Self {
        let decoder = tokenizer.get_decoder().and_then(|d| serde_json::to_value(d).ok()).unwrap_or(Value::Null);
        let table = Self::build(tokenizer, join_of(&decoder));
        if table.join != Join::Library && !table.agrees(tokenizer) {
            tracing::warn!("the tokenizer's decoder is not what it says it is, text is decoded the slow way");
            return Self::build(tokenizer, Join::Library);
        }
        table
    }

    fn build(tokenizer: &Tokenizer, join: Join) -> Self {
        let added = tokenizer.get_added_vocabulary();
        let model = tokenizer.get_model();
        let top = tokenizer.get_vocab(true).into_values().max().unwrap_or(0).min(MAX_ID);
        let mut table = Self {
            entries: Vec::with_capacity(top as usize + 1),
            text: String::new(),
            bytes: Vec::new(),
            join,
            library: tokenizer.clone(),
            longest: 1,
        };
        let characters = byte_characters();
        for id in 0..=top {
            match added.simple_id_to_token(id).or_else(|| model.id_to_token(id)) {
                Some(token) => {
                    let special = added.is_special_token(&token);
                    table.add(id, &token, special, &characters);
                }
                None => table.entries.push(Entry { start: 0, length: 0, form: Form::Missing, special: false }),
            }
        }
        table
    }

    fn add(&mut self, id: u32, token: &str, special: bool, characters: &[Option<u8>]) {
        let content: Cow<'_, [u8]> = match self.join {
            Join::Bytes => match byte_level(token, characters) {
                Some(bytes) => Cow::Owned(bytes),
                None => Cow::Borrowed(token.as_bytes()),
            },
            Join::Pieces { fallback, .. } => match byte_token(token).filter(|_| fallback) {
                Some(byte) => return self.push(Form::Bytes, &[byte], special),
                None => Cow::Owned(token.replace('\u{2581}', " ").into_bytes()),
            },
            Join::Library => Cow::Owned(self.library.decode(&[id], false).unwrap_or_default().into_bytes()),
        };
        let form = if std::str::from_utf8(&content).is_ok() { Form::Text } else { Form::Bytes };
        self.push(form, &content, special);
    }

    fn push(&mut self, form: Form, content: &[u8], special: bool) {
        let start = match std::str::from_utf8(content) {
            Ok(text) if form == Form::Text => {
                self.text.push_str(text);
                self.text.len() - content.len()
            }
            _ => {
                self.bytes.extend_from_slice(content);
                self.bytes.len() - content.len()
            }
        };
        self.longest = self.longest.max(content.len());
        self.entries.push(Entry { start: start as u32, length: content.len() as u32, form, special });
    }

    /// Whether the table says what the library says, on tokens spread over the vocabulary.
    fn agrees(&self, tokenizer: &Tokenizer) -> bool {
        let plain = |id: &u32| match self.entry(*id) {
            // Runs of byte tokens differ on purpose, see above.
            Some(entry) => entry.form == Form::Text || self.join == Join::Bytes,
            None => false,
        };
        let stride = (self.entries.len() / PROOF_TOKENS).max(1);
        let ids: Vec<u32> = (0..self.entries.len() as u32).step_by(stride).filter(plain).collect();
        ids.chunks(64).all(|ids| tokenizer.decode(ids, false).is_ok_and(|text| text == self.decode(ids, false)))
    }

    fn entry(&self, id: u32) -> Option<&Entry> {
        self.entries.get(id as usize).filter(|entry| entry.form != Form::Missing)
    }

    /// Number of ids, missing ones included: valid ids are below it.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no token at all.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of the longest token: no text has fewer tokens than its bytes divided by this.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Whether the token is a control token, which `skip_special_tokens` hides.
    pub fn is_special(&self, id: u32) -> bool {
        self.entry(id).is_some_and(|entry| entry.special)
    }

    /// The bytes that a token stands for by itself (U9).
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        let Some(entry) = self.entry(id) else { return &[] };
        let range = entry.start as usize..(entry.start + entry.length) as usize;
        match entry.form {
            Form::Text => self.text.as_bytes().get(range),
            _ => self.bytes.get(range),
        }
        .unwrap_or_default()
    }

    /// All ids at once.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut text = String::new();
        let mut state = State::default();
        for &id in ids {
            state.push(self, id, skip_special, &mut text);
        }
        state.flush(self, skip_special, &mut text);
        text
    }
}

/// One answer's tokens becoming text.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    table: Arc<TokenTable>,
    skip_special: bool,
    /// Control tokens that are shown all the same.
    marks: Vec<u32>,
    state: State,
}

impl Detokenizer {
    /// At the start of an answer.
    pub fn new(table: Arc<TokenTable>, skip_special: bool) -> Self {
        Self { table, skip_special, marks: Vec::new(), state: State::default() }
    }

    /// The same, with control tokens that are shown all the same.
    #[must_use]
    pub fn showing(mut self, marks: &[u32]) -> Self {
        self.marks = marks.to_vec();
        self
    }

    /// Append to `out` the text that `id` completes: whole characters only.
    pub fn push(&mut self, id: u32, out: &mut String) {
        let skip = self.skip_special && !self.marks.contains(&id);
        self.state.push(&self.table, id, skip, out);
    }

    /// Append what is still held back: an unfinished character becomes U+FFFD (U2).
    pub fn flush(&mut self, out: &mut String) {
        self.state.flush(&self.table, self.skip_special, out);
    }
}

#[derive(Debug, Clone, Default)]
struct State {
    /// Bytes of an unfinished character: at most three between calls.
    pending: Vec<u8>,
    /// Whether a token was taken, and whether text was made, for what happens to the first space.
    begun: bool,
    written: bool,
    /// The library way: the last tokens, and how many of them have been written.
    window: Vec<u32>,
    settled: usize,
}

impl State {
    fn push(&mut self, table: &TokenTable, id: u32, skip_special: bool, out: &mut String) {
        let Some(&entry) = table.entry(id) else { return };
        if skip_special && entry.special {
            return;
        }
        let range = entry.start as usize..(entry.start + entry.length) as usize;
        match (table.join, entry.form) {
            (Join::Library, _) => self.push_library(table, id, out),
            (Join::Bytes, Form::Text) => {
                self.lose_pending(1, out);
                out.push_str(table.text.get(range).unwrap_or_default());
            }
            (Join::Bytes, _) => {
                self.pending.extend_from_slice(table.bytes.get(range).unwrap_or_default());
                self.settle_pending(false, out);
            }
            (Join::Pieces { lead, .. }, Form::Text) => {
                self.lose_pending(usize::MAX, out);
                self.push_piece(lead, table.text.get(range).unwrap_or_default(), out);
            }
            (Join::Pieces { .. }, _) => {
                self.begun = true;
                self.pending.extend_from_slice(table.bytes.get(range).unwrap_or_default());
                self.settle_pending(true, out);
            }
        }
    }

    fn push_piece(&mut self, lead: Lead, whole: &str, out: &mut String) {
        match lead {
            Lead::OneSpaceDropped if !self.written => out.push_str(whole.strip_prefix(' ').unwrap_or(whole)),
            Lead::FirstTokensSpacesDropped if !self.begun => out.extend(whole.chars().filter(|&c| c != ' ')),
            _ => out.push_str(whole),
        }
        self.begun = true;
        self.written |= !whole.is_empty();
    }

    /// Move the finished characters of `pending` to `out`; what remains is the start of one.
    fn settle_pending(&mut self, loss_per_byte: bool, out: &mut String) {
        self.written = true;
        loop {
            let error = match std::str::from_utf8(&self.pending) {
                Ok(text) => {
                    out.push_str(text);
                    self.pending.clear();
                    return;
                }
                Err(error) => error,
            };
            let valid = error.valid_up_to();
            out.push_str(std::str::from_utf8(&self.pending[..valid]).unwrap_or_default());
            let lost = error.error_len();
            if let Some(lost) = lost {
                out.extend(std::iter::repeat_n(LOSS, if loss_per_byte { lost } else { 1 }));
            }
            self.pending.drain(..valid + lost.unwrap_or(0));
            if lost.is_none() {
                return;
            }
        }
    }

    /// The unfinished character will not be finished: U+FFFD once, or up to `most` times for its bytes.
    fn lose_pending(&mut self, most: usize, out: &mut String) {
        if !self.pending.is_empty() {
            out.extend(std::iter::repeat_n(LOSS, self.pending.len().min(most)));
            self.pending.clear();
        }
    }

    fn push_library(&mut self, table: &TokenTable, id: u32, out: &mut String) {
        self.window.push(id);
        let held = self.window.len() - self.settled;
        let text = table.library.decode(&self.window, false).unwrap_or_default();
        if text.ends_with(LOSS) && held < LIBRARY_HOLD {
            return;
        }
        self.settle_window(table, &text, out);
    }

    /// Write the window's new text; its last tokens stay as the left neighbours of the next one.
    fn settle_window(&mut self, table: &TokenTable, text: &str, out: &mut String) {
        let before = self.window.get(..self.settled).unwrap_or_default();
        let before = table.library.decode(before, false).unwrap_or_default();
        out.push_str(text.get(before.len()..).unwrap_or_default());
        self.window.drain(..self.settled);
        self.settled = self.window.len();
    }

    fn flush(&mut self, table: &TokenTable, _skip_special: bool, out: &mut String) {
        match table.join {
            Join::Bytes => self.lose_pending(1, out),
            Join::Pieces { .. } => self.lose_pending(usize::MAX, out),
            Join::Library if self.window.len() > self.settled => {
                let text = table.library.decode(&self.window, false).unwrap_or_default();
                self.settle_window(table, &text, out);
            }
            Join::Library => {}
        }
    }
}

/// How a decoder, as `tokenizer.json` writes it, joins tokens.
fn join_of(decoder: &Value) -> Join {
    let parts = match decoder.get("type").and_then(Value::as_str) {
        Some("Sequence") => decoder.get("decoders").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default(),
        Some(_) => std::slice::from_ref(decoder),
        None => return Join::Library,
    };
    let kind = |part: &Value| part.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    let kinds: Vec<String> = parts.iter().map(kind).collect();
    let kinds: Vec<&str> = kinds.iter().map(String::as_str).collect();
    match kinds.as_slice() {
        ["ByteLevel"] => Join::Bytes,
        ["Replace", "ByteFallback", "Fuse"] if underscore_to_space(&parts[0]) => {
            Join::Pieces { fallback: true, lead: Lead::Kept }
        }
        ["Replace", "ByteFallback", "Fuse", "Strip"] if underscore_to_space(&parts[0]) && one_space(&parts[3]) => {
            Join::Pieces { fallback: true, lead: Lead::OneSpaceDropped }
        }
        ["Metaspace"] if parts[0].get("replacement").and_then(Value::as_str) == Some("\u{2581}") => {
            let kept = parts[0].get("prepend_scheme").and_then(Value::as_str) == Some("never");
            Join::Pieces { fallback: false, lead: if kept { Lead::Kept } else { Lead::FirstTokensSpacesDropped } }
        }
        _ => Join::Library,
    }
}

fn underscore_to_space(replace: &Value) -> bool {
    replace.pointer("/pattern/String").and_then(Value::as_str) == Some("\u{2581}")
        && replace.get("content").and_then(Value::as_str) == Some(" ")
}

fn one_space(strip: &Value) -> bool {
    strip.get("content").and_then(Value::as_str) == Some(" ")
        && strip.get("start").and_then(Value::as_u64) == Some(1)
        && strip.get("stop").and_then(Value::as_u64) == Some(0)
}

/// A byte-fallback token such as `<0x0A>`.
fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

/// A byte-level token's bytes; `None` if one of its characters stands for no byte.
fn byte_level(token: &str, characters: &[Option<u8>]) -> Option<Vec<u8>> {
    token.chars().map(|c| characters.get(c as usize).copied().flatten()).collect()
}

/// The byte that each character stands for in byte-level vocabularies: printable Latin-1 stands for itself, the other
/// bytes for the characters from U+0100 on, in order.
fn byte_characters() -> Vec<Option<u8>> {
    let mut characters = vec![None; 0x144];
    let mut next = 0x100;
    for byte in 0..=u8::MAX {
        let printable = matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
        let character = if printable { usize::from(byte) } else { next };
        next += usize::from(!printable);
        if let Some(slot) = characters.get_mut(character) {
            *slot = Some(byte);
        }
    }
    characters
}

#[cfg(test)]
mod tests;
