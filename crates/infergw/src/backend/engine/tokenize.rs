//! The prompt's tokens. Large prompts are tokenized beside the async threads, a bounded number at a time (M2).

use std::sync::Arc;

use tokenizers::Tokenizer;
use tokio::sync::Semaphore;

mod pieces;

pub use pieces::Pieces;

/// Bodies up to this size are worked on in place: that takes about a millisecond at most.
const IN_PLACE: usize = 8 << 10;

/// Runs text work where it stalls nobody.
#[derive(Debug)]
pub struct TextWork {
    permits: Arc<Semaphore>,
}

impl Default for TextWork {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self { permits: Arc::new(Semaphore::new(cores)) }
    }
}

impl TextWork {
    /// Run `work` for a body of `size` bytes; `None` if it panicked.
    pub async fn run<T: Send + 'static>(&self, size: usize, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        if size <= IN_PLACE {
            return Some(work());
        }
        let permit = Arc::clone(&self.permits).acquire_owned().await.ok()?;
        let task = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work()
        });
        task.await.ok()
    }
}

/// The ids of `text`. `add_special` lets the tokenizer add its own tokens, such as the one that begins a text.
///
/// # Errors
/// The tokenizer's words; in practice only a model without a token for unknown text.
pub fn encode(tokenizer: &Tokenizer, text: &str, add_special: bool) -> Result<Vec<u32>, String> {
    let encoding = tokenizer.encode_fast(text, add_special).map_err(|e| e.to_string())?;
    Ok(encoding.get_ids().to_vec())
}

/// Control tokens inside client text, made plain (A9, `text.escape_control_tokens`).
///
/// A control token in a message is marked before the template runs; the rendered text is then cut at the template's own
/// control tokens, and the pieces between are tokenized by a tokenizer that knows no control tokens.
#[derive(Debug)]
pub struct ControlTokens {
    /// The control tokens, longest first.
    tokens: Vec<(String, u32)>,
    firsts: [bool; 256],
    plain: Tokenizer,
}

/// Stand around the number of a marked token. Noncharacters: no text means anything by them.
const MARK: (char, char) = ('\u{FDD0}', '\u{FDD1}');

impl ControlTokens {
    /// The control tokens of `tokenizer`.
    pub fn new(tokenizer: &Tokenizer) -> Self {
        let mut tokens: Vec<(String, u32)> = tokenizer
            .get_added_tokens_decoder()
            .into_iter()
            .filter(|(_, token)| token.special && !token.content.is_empty())
            .map(|(id, token)| (token.content, id))
            .collect();
        tokens.sort_by_key(|(token, id)| (std::cmp::Reverse(token.len()), *id));
        let mut firsts = [false; 256];
        for first in tokens.iter().filter_map(|(token, _)| token.bytes().next()) {
            firsts[usize::from(first)] = true;
        }
        let mut plain = tokenizer.clone();
        plain.set_encode_special_tokens(true);
        Self { tokens, firsts, plain }
    }

    /// Mark the control tokens in `text`; `None` if there are none.
    pub fn mark(&self, text: &str) -> Option<String> {
        let (mut marked, mut from) = (String::new(), 0);
        while let Some((at, index)) = self.find(text, from) {
            marked.push_str(text.get(from..at).unwrap_or_default());
            marked.push(MARK.0);
            marked.push_str(&index.to_string());
            marked.push(MARK.1);
            from = at + self.tokens.get(index).map_or(1, |(token, _)| token.len());
        }
        if from == 0 {
            return None;
        }
        marked.push_str(text.get(from..).unwrap_or_default());
        Some(marked)
    }

    /// The ids of a rendered text with marks in it.
    ///
    /// # Errors
    /// See [`encode`].
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
        let (mut ids, mut from) = (Vec::new(), 0);
        loop {
            let found = self.find(text, from);
            let piece = text.get(from..found.map_or(text.len(), |(at, _)| at)).unwrap_or_default();
            if !piece.is_empty() {
                ids.extend(encode(&self.plain, &self.unmark(piece), false)?);
            }
            let Some((token, id, at)) = found.and_then(|(at, i)| self.tokens.get(i).map(|(t, id)| (t, *id, at))) else {
                return Ok(ids);
            };
            ids.push(id);
            from = at + token.len();
        }
    }

    /// The text with the marked tokens written out.
    pub fn unmark(&self, text: &str) -> String {
        let mut plain = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, after)) = rest.split_once(MARK.0) {
            plain.push_str(before);
            let marked = after.split_once(MARK.1).and_then(|(number, after)| {
                let (token, _) = self.tokens.get(number.parse::<usize>().ok()?)?;
                Some((token, after))
            });
            match marked {
                Some((token, after)) => {
                    plain.push_str(token);
                    rest = after;
                }
                None => {
                    plain.push(MARK.0);
                    rest = after;
                }
            }
        }
        plain.push_str(rest);
        plain
    }

    /// The next control token in `text` from `from` on: where, and which.
    fn find(&self, text: &str, from: usize) -> Option<(usize, usize)> {
        let bytes = text.as_bytes();
        (from..bytes.len()).filter(|&at| self.firsts[usize::from(bytes[at])]).find_map(|at| {
            let rest = &bytes[at..];
            let index = self.tokens.iter().position(|(token, _)| rest.starts_with(token.as_bytes()))?;
            Some((at, index))
        })
    }
}

#[cfg(test)]
mod tests;
