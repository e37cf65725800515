//! The key under which equal questions meet: SHA-256 over everything that can change the answer (C3).
//!
//! Why not `serde_json`: the canonical form needs numbers by their exact text and objects with duplicate keys refused.
//! `serde_json` offers the first only through `arbitrary_precision`, a feature that changes every number of the whole
//! program, and the second not at all. This is one pass over the bytes into one buffer.

use std::fmt;

use http::HeaderMap;
use sha2::{Digest, Sha256};

use crate::types::Question;

/// A flight's key. Shown in logs by its first 12 hexadecimal characters.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key([u8; 32]);

/// Deepest nesting that is canonicalised; a deeper body is not shared.
const MAX_DEPTH: usize = 128;

/// Headers that are forwarded but cannot change an answer. All others that are forwarded are part of the key.
const IGNORED_HEADERS: [&str; 19] = [
    "accept-encoding",
    "authorization", // the caller's scope stands for it
    "baggage",
    "cache-control",
    "content-length",
    "content-type",
    "date",
    "forwarded",
    "host",
    "last-event-id",
    "priority",
    "traceparent",
    "tracestate",
    "user-agent",
    "via",
    "x-api-key",            // the caller's scope stands for it
    "x-data-parallel-rank", // read into `Question::rank`
    "x-real-ip",
    "x-request-id",
];

/// Families of such headers: client telemetry, proxies, browsers.
const IGNORED_PREFIXES: [&str; 5] = ["x-stainless-", "x-forwarded-", "x-b3-", "sec-", "x-infergw-"];

impl Key {
    /// The key of `question`, or `None` where equality with another cannot be decided safely: the body is no JSON
    /// object, is nested too deep, or has a key twice in one object.
    pub fn of(question: &Question) -> Option<Self> {
        let body = canonical(&question.body)?;
        let mut hash = Sha256::new();
        hash.update(question.caller.scope);
        hash.update([question.endpoint as u8, u8::from(question.rank.is_some())]);
        hash.update(question.rank.unwrap_or(0).to_le_bytes());
        hash_headers(&mut hash, &question.headers);
        hash.update(&body);
        Some(Self(hash.finalize().into()))
    }

    /// The same where the body is no matter of doubt: only the very same bytes have this key. For those that come back with
    /// their own question, never for sharing.
    pub fn of_bytes(question: &Question) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"bytes");
        hash.update(question.caller.scope);
        hash.update([question.endpoint as u8, u8::from(question.rank.is_some())]);
        hash.update(question.rank.unwrap_or(0).to_le_bytes());
        hash_headers(&mut hash, &question.headers);
        hash.update(&question.body);
        Self(hash.finalize().into())
    }

    #[cfg(test)]
    pub(super) fn of_text(text: &str) -> Self {
        Self(Sha256::digest(text).into())
    }

    /// The first 12 hexadecimal characters, for logs.
    pub fn short(&self) -> String {
        let mut text = String::with_capacity(12);
        for byte in &self.0[..6] {
            text.push_str(&format!("{byte:02x}"));
        }
        text
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.short())
    }
}

fn hash_headers(hash: &mut Sha256, headers: &HeaderMap) {
    let mut matter: Vec<(&str, &[u8])> = headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_bytes()))
        .filter(|(name, _)| matters(name))
        .collect();
    // A stable sort: several values of one header keep their order, which has a meaning.
    matter.sort_by_key(|(name, _)| *name);
    hash.update((matter.len() as u64).to_le_bytes());
    for (name, value) in matter {
        for part in [name.as_bytes(), value] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
    }
}

fn matters(name: &str) -> bool {
    !IGNORED_HEADERS.contains(&name) && !IGNORED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// The canonical form of a JSON object: keys sorted at every level, strings by their code points, numbers by their exact
/// text, every piece with its length so that no two different values have the same form.
fn canonical(body: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(body).ok()?;
    let mut parser = Parser { rest: text.as_bytes(), out: Vec::with_capacity(body.len() + body.len() / 4), depth: 0 };
    parser.space();
    if parser.rest.first() != Some(&b'{') {
        return None;
    }
    parser.value()?;
    parser.space();
    parser.rest.is_empty().then_some(parser.out)
}

struct Parser<'a> {
    rest: &'a [u8],
    out: Vec<u8>,
    depth: usize,
}

/// One member of an object in `Parser::out`: where it starts, where its key's bytes end, where it ends.
struct Member {
    start: usize,
    key_end: usize,
    end: usize,
}

/// Bytes in front of a string's or number's text: the tag and the length.
const PREFIX: usize = 5;

impl Parser<'_> {
    fn space(&mut self) {
        while let [b' ' | b'\t' | b'\n' | b'\r', rest @ ..] = self.rest {
            self.rest = rest;
        }
    }

    fn eat(&mut self, byte: u8) -> Option<()> {
        let (&first, rest) = self.rest.split_first()?;
        self.rest = rest;
        (first == byte).then_some(())
    }

    fn value(&mut self) -> Option<()> {
        match self.rest.first()? {
            b'{' => self.nested(Self::object),
            b'[' => self.nested(Self::array),
            b'"' => self.string(),
            b't' => self.literal(b"true"),
            b'f' => self.literal(b"false"),
            b'n' => self.literal(b"null"),
            _ => self.number(),
        }
    }

    fn nested(&mut self, parse: fn(&mut Self) -> Option<()>) -> Option<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        parse(self)?;
        self.depth -= 1;
        Some(())
    }

    fn literal(&mut self, word: &[u8]) -> Option<()> {
        self.rest = self.rest.strip_prefix(word)?;
        // The first letter tells the three apart.
        self.out.push(word[0]);
        Some(())
    }

    fn number(&mut self) -> Option<()> {
        let length =
            self.rest.iter().take_while(|b| matches!(b, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E')).count();
        let (text, rest) = self.rest.split_at(length);
        if !is_number(text) {
            return None;
        }
        self.rest = rest;
        let start = self.open(b'#');
        self.out.extend_from_slice(text);
        self.close(start)
    }

    fn array(&mut self) -> Option<()> {
        self.eat(b'[')?;
        self.out.push(b'[');
        self.space();
        if self.rest.first() == Some(&b']') {
            self.eat(b']')?;
        } else {
            loop {
                self.space();
                self.value()?;
                self.space();
                match self.rest.split_first()? {
                    (b',', rest) => self.rest = rest,
                    (b']', rest) => {
                        self.rest = rest;
                        break;
                    }
                    _ => return None,
                }
            }
        }
        self.out.push(b']');
        Some(())
    }

    fn object(&mut self) -> Option<()> {
        self.eat(b'{')?;
        self.out.push(b'{');
        let first = self.out.len();
        let mut members = Vec::new();
        self.space();
        if self.rest.first() == Some(&b'}') {
            self.eat(b'}')?;
        } else {
            loop {
                members.push(self.member()?);
                match self.rest.split_first()? {
                    (b',', rest) => self.rest = rest,
                    (b'}', rest) => {
                        self.rest = rest;
                        break;
                    }
                    _ => return None,
                }
            }
        }
        self.sort(first, members)?;
        self.out.push(b'}');
        Some(())
    }

    fn member(&mut self) -> Option<Member> {
        let start = self.out.len();
        self.space();
        self.string()?;
        let key_end = self.out.len();
        self.space();
        self.eat(b':')?;
        self.space();
        self.value()?;
        self.space();
        Some(Member { start, key_end, end: self.out.len() })
    }

    /// Put the members, which stand in `out` from `first` on, into the order of their keys. `None` if a key stands twice.
    fn sort(&mut self, first: usize, mut members: Vec<Member>) -> Option<()> {
        fn key<'a>(out: &'a [u8], member: &Member) -> &'a [u8] {
            out.get(member.start + PREFIX..member.key_end).unwrap_or_default()
        }
        let out = &self.out;
        if members.is_sorted_by(|a, b| key(out, a) < key(out, b)) {
            return Some(());
        }
        members.sort_by(|a, b| key(out, a).cmp(key(out, b)));
        if members.windows(2).any(|pair| matches!(pair, [a, b] if key(out, a) == key(out, b))) {
            return None;
        }
        let unsorted = self.out.split_off(first);
        for member in &members {
            self.out.extend_from_slice(unsorted.get(member.start - first..member.end - first)?);
        }
        Some(())
    }

    /// A string by its code points: escapes are resolved, a lone surrogate keeps its (WTF-8) three bytes.
    fn string(&mut self) -> Option<()> {
        self.eat(b'"')?;
        let start = self.open(b'"');
        loop {
            let plain = self.rest.iter().position(|&b| b == b'"' || b == b'\\' || b < 0x20)?;
            let (text, rest) = self.rest.split_at(plain);
            self.out.extend_from_slice(text);
            match rest.split_first()? {
                (b'"', rest) => {
                    self.rest = rest;
                    return self.close(start);
                }
                (b'\\', rest) => {
                    self.rest = rest;
                    self.escape()?;
                }
                _ => return None,
            }
        }
    }

    fn escape(&mut self) -> Option<()> {
        let (&kind, rest) = self.rest.split_first()?;
        self.rest = rest;
        let byte = match kind {
            b'"' | b'\\' | b'/' => kind,
            b'b' => 0x08,
            b'f' => 0x0c,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => return self.unicode(),
            _ => return None,
        };
        self.out.push(byte);
        Some(())
    }

    fn unicode(&mut self) -> Option<()> {
        let unit = self.hex4()?;
        let mut code = u32::from(unit);
        if (0xd800..0xdc00).contains(&unit) && self.rest.starts_with(b"\\u") {
            let before = self.rest;
            self.rest = &self.rest[2..];
            let low = self.hex4()?;
            if (0xdc00..0xe000).contains(&low) {
                code = 0x10000 + ((code - 0xd800) << 10) + (u32::from(low) - 0xdc00);
            } else {
                self.rest = before;
            }
        }
        match char::from_u32(code) {
            Some(character) => self.out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
            None => self.out.extend_from_slice(&[
                0xe0 | (code >> 12) as u8,
                0x80 | (code >> 6 & 0x3f) as u8,
                0x80 | (code & 0x3f) as u8,
            ]),
        }
        Some(())
    }

    fn hex4(&mut self) -> Option<u16> {
        let digits = self.rest.get(..4).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))?;
        let unit = u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        self.rest = &self.rest[4..];
        Some(unit)
    }

    /// Begin a piece with its tag and room for its length.
    fn open(&mut self, tag: u8) -> usize {
        self.out.push(tag);
        let start = self.out.len();
        self.out.extend_from_slice(&[0; PREFIX - 1]);
        start
    }

    fn close(&mut self, start: usize) -> Option<()> {
        let length = u32::try_from(self.out.len() - start - (PREFIX - 1)).ok()?;
        self.out.get_mut(start..start + PREFIX - 1)?.copy_from_slice(&length.to_le_bytes());
        Some(())
    }
}

/// JSON's grammar of numbers.
fn is_number(text: &[u8]) -> bool {
    fn digits(text: &[u8]) -> (usize, &[u8]) {
        let count = text.iter().take_while(|b| b.is_ascii_digit()).count();
        (count, &text[count..])
    }
    let text = text.strip_prefix(b"-").unwrap_or(text);
    let (whole, mut rest) = digits(text);
    if whole == 0 || (whole > 1 && text[0] == b'0') {
        return false;
    }
    if let Some(fraction) = rest.strip_prefix(b".") {
        let (count, after) = digits(fraction);
        if count == 0 {
            return false;
        }
        rest = after;
    }
    if let Some(exponent) = rest.strip_prefix(b"e").or_else(|| rest.strip_prefix(b"E")) {
        let exponent = exponent.strip_prefix(b"+").or_else(|| exponent.strip_prefix(b"-")).unwrap_or(exponent);
        let (count, after) = digits(exponent);
        if count == 0 {
            return false;
        }
        rest = after;
    }
    rest.is_empty()
}

#[cfg(test)]
mod tests;
