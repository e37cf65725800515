//! The tokens of long texts, remembered piece by piece.
//!
//! A tokenizer cuts a text at its added tokens before it does anything else, so a rendered conversation falls into pieces whose
//! tokens do not depend on each other. A conversation that has grown by a turn has the pieces of all turns before: they are
//! looked up. Pieces are known by their SHA-256: nobody's text is kept. Memory is bounded by two generations, each of half the
//! limit: when the newer one is full, the older one is dropped.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use aho_corasick::{AhoCorasick, MatchKind};
use sha2::{Digest, Sha256};
use tokenizers::Tokenizer;

use super::encode;
use crate::observe::Tokenizing;

/// Shorter pieces are tokenized faster than they are looked up.
const SHORTEST: usize = 256;

/// Bytes that an entry costs beside its tokens.
const ENTRY: usize = 96;

/// Remembers the tokens of pieces.
#[derive(Debug)]
pub struct Pieces {
    /// The tokens that cut, and their ids by the number of their pattern.
    cuts: AhoCorasick,
    ids: Vec<u32>,
    /// What the tokenizer itself puts around a text, where it is asked to.
    around: (Vec<u32>, Vec<u32>),
    known: Mutex<Known>,
    /// Bytes of one generation.
    half: usize,
    counters: Tokenizing,
}

#[derive(Debug, Default)]
struct Known {
    newer: HashMap<[u8; 32], Arc<[u32]>>,
    older: HashMap<[u8; 32], Arc<[u32]>>,
    bytes: usize,
}

impl Pieces {
    /// For `tokenizer`, in at most `limit` bytes; `None` where the limit is zero, or where its pieces depend on each other.
    pub fn new(tokenizer: &Tokenizer, limit: usize, counters: Tokenizing) -> Option<Self> {
        if limit == 0 || !independent(tokenizer) {
            return None;
        }
        let mut added: Vec<(String, u32)> = tokenizer
            .get_added_tokens_decoder()
            .into_iter()
            .filter(|(_, token)| !token.normalized && !token.content.is_empty())
            .map(|(id, token)| (token.content, id))
            .collect();
        added.sort_unstable();
        let cuts = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(added.iter().map(|(content, _)| content.as_bytes()))
            .ok()?;
        let ids = added.into_iter().map(|(_, id)| id).collect();
        let around = around(tokenizer)?;
        Some(Self { cuts, ids, around, known: Mutex::default(), half: limit / 2, counters })
    }

    /// The ids of `text`, the same as [`encode`] gives.
    ///
    /// # Errors
    /// See [`encode`].
    pub fn encode(&self, tokenizer: &Tokenizer, text: &str, add_special: bool) -> Result<Vec<u32>, String> {
        if text.len() < SHORTEST {
            return encode(tokenizer, text, add_special);
        }
        let mut ids = Vec::with_capacity(text.len() / 3);
        if add_special {
            ids.extend_from_slice(&self.around.0);
        }
        let mut from = 0;
        for found in self.cuts.find_iter(text) {
            self.piece(tokenizer, text.get(from..found.start()).unwrap_or_default(), &mut ids)?;
            ids.extend(self.ids.get(found.pattern().as_usize()));
            from = found.end();
        }
        self.piece(tokenizer, text.get(from..).unwrap_or_default(), &mut ids)?;
        if add_special {
            ids.extend_from_slice(&self.around.1);
        }
        Ok(ids)
    }

    fn piece(&self, tokenizer: &Tokenizer, piece: &str, ids: &mut Vec<u32>) -> Result<(), String> {
        if piece.len() < SHORTEST {
            if !piece.is_empty() {
                ids.extend(encode(tokenizer, piece, false)?);
            }
            return Ok(());
        }
        let key: [u8; 32] = Sha256::digest(piece.as_bytes()).into();
        if let Some(found) = self.find(&key) {
            self.counters.hit(piece.len());
            ids.extend_from_slice(&found);
            return Ok(());
        }
        self.counters.missed(piece.len());
        // Not under the lock: others go on while this one works.
        let made = encode(tokenizer, piece, false)?;
        ids.extend_from_slice(&made);
        self.keep(key, made.into());
        Ok(())
    }

    fn find(&self, key: &[u8; 32]) -> Option<Arc<[u32]>> {
        let found = {
            let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(found) = known.newer.get(key) {
                return Some(Arc::clone(found));
            }
            Arc::clone(known.older.get(key)?)
        };
        // What is used moves on to the newer generation.
        self.keep(*key, Arc::clone(&found));
        Some(found)
    }

    fn keep(&self, key: [u8; 32], ids: Arc<[u32]>) {
        let cost = size_of_val::<[u32]>(&ids) + ENTRY;
        if cost > self.half {
            return;
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.bytes + cost > self.half {
            known.older = std::mem::take(&mut known.newer);
            known.bytes = 0;
        }
        if known.newer.insert(key, ids).is_none() {
            known.bytes += cost;
        }
    }

    /// Entries of both generations.
    #[cfg(test)]
    fn len(&self) -> usize {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.newer.len() + known.older.len()
    }
}

/// Whether the pieces between added tokens can be tokenized each for itself.
fn independent(tokenizer: &Tokenizer) -> bool {
    let added = tokenizer.get_added_tokens_decoder();
    let plain = |token: &tokenizers::AddedToken| !(token.lstrip || token.rstrip || token.single_word);
    // Metaspace looks where in the whole text a piece begins.
    let pre = serde_json::to_string(&tokenizer.get_pre_tokenizer()).unwrap_or_else(|_| "Metaspace".into());
    added.values().all(plain)
        && !pre.contains("Metaspace")
        && tokenizer.get_truncation().is_none()
        && tokenizer.get_padding().is_none()
}

/// What the tokenizer puts before and after a text.
fn around(tokenizer: &Tokenizer) -> Option<(Vec<u32>, Vec<u32>)> {
    let bare = encode(tokenizer, "a", false).ok()?;
    let dressed = encode(tokenizer, "a", true).ok()?;
    let at = dressed.windows(bare.len().max(1)).position(|window| window == bare)?;
    Some((dressed.get(..at)?.to_vec(), dressed.get(at + bare.len()..)?.to_vec()))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use proptest::prelude::*;

    use super::super::super::sample_models::{byte_level, demo, llama2_decoder, sentencepiece};
    use super::*;

    fn pieces(tokenizer: &Tokenizer, limit: usize) -> (Pieces, Tokenizing) {
        let counters = Tokenizing::default();
        (Pieces::new(tokenizer, limit, counters.clone()).unwrap(), counters)
    }

    fn turn(number: usize) -> String {
        format!("<|im_start|>user\n{number} {}<|im_end|>\n", "some words of a long turn, ".repeat(20))
    }

    #[test]
    fn a_grown_conversation_finds_its_turns_again() {
        let (pieces, counters) = pieces(&demo().tokenizer, 1 << 20);
        let mut text = String::new();
        for number in 0..10 {
            text.push_str(&turn(number));
            assert_eq!(pieces.encode(&demo().tokenizer, &text, false), encode(&demo().tokenizer, &text, false));
        }
        assert_eq!((counters.hits(), counters.misses()), (45, 10));
        assert_eq!(pieces.encode(&demo().tokenizer, &text, false), encode(&demo().tokenizer, &text, false));
        assert_eq!((counters.hits(), counters.misses()), (55, 10), "the same text again is known whole");
    }

    #[test]
    fn m3_memory_does_not_grow_with_variety() {
        let (pieces, _) = pieces(&byte_level(), 64 << 10);
        let tokenizer = byte_level();
        for number in 0..400 {
            pieces.encode(&tokenizer, &format!("{number}{}", "hello world".repeat(30)), false).unwrap();
        }
        assert!(pieces.len() * ENTRY < 64 << 10, "{}", pieces.len());
        let bytes: usize = {
            let known = pieces.known.lock().unwrap();
            known.newer.values().chain(known.older.values()).map(|ids| size_of_val::<[u32]>(ids) + ENTRY).sum()
        };
        assert!(bytes <= 64 << 10, "{bytes}");
    }

    #[test]
    fn tokenizers_whose_pieces_depend_on_each_other_are_left_alone() {
        assert!(Pieces::new(&byte_level(), 0, Tokenizing::default()).is_none());
        let mut tokenizer = sentencepiece(llama2_decoder());
        let made = Pieces::new(&tokenizer, 1 << 20, Tokenizing::default());
        // Where they are not, the ids are the same.
        if let Some(pieces) = made {
            let text = "<s>hello ab</s> hello".repeat(40);
            assert_eq!(pieces.encode(&tokenizer, &text, false), encode(&tokenizer, &text, false));
        }
        tokenizer.add_tokens([tokenizers::AddedToken::from("<left>", true).lstrip(true)]).unwrap();
        assert!(Pieces::new(&tokenizer, 1 << 20, Tokenizing::default()).is_none());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        /// For any text the ids are those of one pass over all of it, the first time and the second.
        #[test]
        fn a9_pieces_are_the_whole(
            parts in proptest::collection::vec(prop_oneof![
                Just("<|im_start|>".to_owned()), Just("<|im_end|>\n".to_owned()), Just("<|im_".to_owned()),
                Just(" ".to_owned()), Just("hello world ".repeat(30)), Just("日本 😀".repeat(40)), any::<String>(),
            ], 0..12),
            special in any::<bool>(),
        ) {
            let text = parts.concat();
            let tokenizer = &demo().tokenizer;
            let (pieces, _) = pieces(tokenizer, 1 << 20);
            let whole = encode(tokenizer, &text, special);
            prop_assert_eq!(pieces.encode(tokenizer, &text, special), whole.clone());
            prop_assert_eq!(pieces.encode(tokenizer, &text, special), whole);
        }
    }
}
