//! Fuzzing on the stable toolchain: a corpus, damaged, into every reader. `INFERGW_FUZZ_ROUNDS` damages each so many times, or
//! `INFERGW_FUZZ_SECONDS` for so long; the seed is `INFERGW_FUZZ_SEED`.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::time::{Duration, Instant};

use super::{READERS, corpus};

/// Most that all readers together may add to the memory of this process.
const MEMORY: u64 = 256 << 20;

/// A small deterministic generator (splitmix64).
struct Seed(u64);

impl Seed {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

/// Where these formats turn.
const TURNS: &[&[u8]] = &[
    b"{",
    b"}",
    b"[",
    b"]",
    b"\"",
    b"\\",
    b",",
    b":",
    b"\n",
    b"\r\n",
    b"\r",
    b"\n\n",
    b"<",
    b">",
    b"|",
    b"{%",
    b"%}",
    b"{{",
    b"}}",
    b"-",
    b"0",
    b"1e999",
    b"99999999999999999999",
    b"null",
    b"\\ud800",
    b"\xff",
    b"\xf0\x9f",
    b"\0",
    b"\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"[[[[[[[[",
    b"data:",
    b"id:",
    b"%",
    b"\xef\xbb\xbf",
    "｜".as_bytes(),
    b"</",
];

fn damage(seed: &mut Seed, corpus: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = corpus[seed.below(corpus.len())].clone();
    for _ in 0..=seed.below(5) {
        if bytes.is_empty() {
            break;
        }
        let at = seed.below(bytes.len());
        let end = |length: usize| (at + length).min(bytes.len());
        match seed.below(8) {
            0 => bytes[at] ^= 1 << seed.below(8),
            1 => bytes[at] = seed.next() as u8,
            2 => bytes.truncate(at),
            3 => drop(bytes.drain(at..end(seed.below(12)))),
            4 => {
                let other = &corpus[seed.below(corpus.len())];
                let from = seed.below(other.len());
                let piece = other[from..(from + seed.below(60)).min(other.len())].to_vec();
                drop(bytes.splice(at..at, piece));
            }
            5 => {
                let again = bytes[at..end(seed.below(60))].to_vec();
                drop(bytes.splice(at..at, again));
            }
            _ => drop(bytes.splice(at..at, TURNS[seed.below(TURNS.len())].to_vec())),
        }
    }
    bytes
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// The most memory that this process has had.
fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches(" kB").parse::<u64>().ok().map(|kb| kb << 10)
}

/// Damaged bytes into one reader. The whole ones must be accepted, and some of the damaged: what nothing accepts tests nothing.
fn read(name: &str, rounds: u64) {
    let (_, reader) = READERS.iter().find(|(known, _)| *known == name).unwrap();
    let corpus = corpus(name);
    let whole = corpus.iter().filter(|bytes| reader(bytes)).count();
    assert!(2 * whole >= corpus.len(), "{whole} of {} accepted", corpus.len());
    let before = peak();
    let seed = &mut Seed(number("INFERGW_FUZZ_SEED").unwrap_or(1));
    let limit = number("INFERGW_FUZZ_SECONDS").map(Duration::from_secs);
    let rounds = number("INFERGW_FUZZ_ROUNDS").unwrap_or(rounds);
    let started = Instant::now();
    let (mut done, mut accepted) = (0, 0);
    while limit.map_or(done < rounds, |limit| started.elapsed() < limit) {
        let bytes = damage(seed, &corpus);
        let shown = Shown(&bytes);
        accepted += u64::from(reader(&bytes));
        std::mem::forget(shown);
        done += 1;
    }
    assert!(accepted > 0, "none of {done} accepted");
    if let (Some(before), Some(after)) = (before, peak()) {
        let more = after.saturating_sub(before);
        assert!(more < MEMORY, "{} MiB more", more >> 20);
    }
}

/// Shows the bytes that a reader failed on.
struct Shown<'a>(&'a [u8]);

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        eprintln!("failed on b\"{}\"", self.0.escape_ascii());
    }
}

macro_rules! readers {
    ($($test:ident: $name:literal, $rounds:literal;)*) => {$(
        #[test]
        fn $test() {
            read($name, $rounds);
        }
    )*};
}

readers! {
    damaged_questions: "question", 10_000;
    damaged_bodies_for_engines: "prepared", 2_000;
    damaged_event_streams: "events", 10_000;
    damaged_error_bodies: "answer", 5_000;
    damaged_heads: "head", 10_000;
    damaged_model_files: "gguf", 300;
    damaged_model_output: "text", 500;
    damaged_templates: "template", 1_000;
    damaged_listings: "listing", 5_000;
}

#[test]
fn every_reader_is_damaged() {
    let source = include_str!("tests.rs");
    for (name, _) in READERS {
        assert!(source.contains(&format!(": \"{name}\", ")), "{name}");
    }
}
