//! The bytes behind a model file's tokens. Files write them as text, in one of two ways.

use super::Vocabulary;
use super::gguf::Gguf;

/// What a file says that a token is.
const NORMAL: u64 = 1;
const USER_DEFINED: u64 = 4;
const BYTE: u64 = 6;

/// Reads the vocabulary; `None` when the file has none, or of a tokenizer that is not known here.
pub(super) fn read(gguf: &Gguf) -> Option<Vocabulary> {
    let tokens = gguf.tokens()?;
    let normal: fn(&str) -> Option<Vec<u8>> = match gguf.tokenizer()? {
        "gpt2" => byte_level,
        "llama" => |text| Some(text.replace('\u{2581}', " ").into_bytes()),
        _ => return None,
    };
    let bytes = |(text, kind): (&str, Option<u64>)| match kind.unwrap_or(NORMAL) {
        NORMAL => normal(text),
        // Added to the tokenizer as it stands.
        USER_DEFINED => Some(text.as_bytes().to_vec()),
        BYTE => single_byte(text).map(|byte| vec![byte]),
        _ => None,
    };
    Some(Vocabulary { tokens: tokens.into_iter().map(|token| bytes(token).unwrap_or_default()).collect() })
}

/// `<0x0A>`.
fn single_byte(text: &str) -> Option<u8> {
    u8::from_str_radix(text.strip_prefix("<0x")?.strip_suffix('>')?, 16).ok()
}

/// Byte-level vocabularies write each byte as one letter: printable ones of Latin-1 as they are, the others in their order
/// from U+0100 on.
fn byte_level(text: &str) -> Option<Vec<u8>> {
    let plain = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let byte = |letter: char| match u32::from(letter) {
        code @ 0..=0xFF => u8::try_from(code).ok().filter(|byte| plain(*byte)),
        code => (0..=u8::MAX).filter(|byte| !plain(*byte)).nth(code as usize - 0x100),
    };
    text.chars().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_stand_for_bytes() {
        assert_eq!(byte_level("ĠParis"), Some(b" Paris".to_vec()));
        assert_eq!(byte_level("Ċ"), Some(b"\n".to_vec()));
        assert_eq!(byte_level("Ã©"), Some("é".as_bytes().to_vec()));
        assert_eq!(byte_level("\u{143}"), Some(vec![0xAD]), "the last letter");
        assert_eq!(byte_level("\u{144}"), None);
        assert_eq!(byte_level(" "), None, "a space is never written as one");
    }

    #[test]
    fn byte_tokens_are_hexadecimal() {
        assert_eq!(single_byte("<0x0A>"), Some(10));
        assert_eq!(single_byte("<0xZZ>"), None);
        assert_eq!(single_byte("<s>"), None);
    }
}
