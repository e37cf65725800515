//! Fuzzing on the stable toolchain: golden frames, damaged, into every decoder,
//! with the published crate as judge. Each decoder's test takes
//! `TS_WIRE_FUZZ_ROUNDS` mutations (20,000 unless set), or
//! `TS_WIRE_FUZZ_SECONDS` (a minute each in CI); the seed is
//! `TS_WIRE_FUZZ_SEED`. `fuzz/` holds the same for `cargo fuzz`.

#![expect(clippy::unwrap_used, reason = "tests")]

mod sample;

use std::fmt::Debug;
use std::time::{Duration, Instant};

use bytes::Bytes;
use sample::Seed;
use ts_wire::*;

/// The message frames of every golden case; large ones would only slow down.
fn corpus() -> Vec<Vec<u8>> {
    let files = [
        include_str!("golden/abort.json"),
        include_str!("golden/add.json"),
        include_str!("golden/control.json"),
        include_str!("golden/encode_request.json"),
        include_str!("golden/handshake.json"),
        include_str!("golden/multimodal.json"),
        include_str!("golden/output.json"),
    ];
    let mut corpus = Vec::new();
    for file in files {
        let file: serde_json::Value = serde_json::from_str(file).unwrap();
        for case in file["cases"].as_array().unwrap() {
            for frame in case["frames"].as_array().unwrap() {
                let hex = frame.as_str().unwrap().as_bytes();
                let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
                let bytes: Vec<u8> = hex.chunks(2).map(byte).collect();
                if (2..4096).contains(&bytes.len()) {
                    corpus.push(bytes);
                }
            }
        }
    }
    corpus
}

fn mutate(seed: &mut Seed, corpus: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = corpus[seed.below(corpus.len())].clone();
    for _ in 0..=seed.below(4) {
        if bytes.is_empty() {
            break;
        }
        let at = seed.below(bytes.len());
        match seed.below(7) {
            0 => bytes[at] ^= 1 << seed.below(8),
            1 => bytes[at] = seed.next() as u8,
            // Markers are where the format turns.
            2 => bytes[at] = 0xc0 + seed.below(32) as u8,
            3 => bytes.truncate(at),
            4 => drop(bytes.drain(at..(at + seed.below(9)).min(bytes.len()))),
            5 => {
                let other = &corpus[seed.below(corpus.len())];
                let from = seed.below(other.len());
                let piece = other[from..(from + seed.below(40)).min(other.len())].to_vec();
                drop(bytes.splice(at..at, piece));
            }
            _ => {
                let again = bytes[at..(at + seed.below(40)).min(bytes.len())].to_vec();
                drop(bytes.splice(at..at, again));
            }
        }
    }
    bytes
}

fn text(value: &impl Debug) -> String {
    format!("{value:?}")
}

/// Show where two long texts part, not both of them.
fn same_text(ours: &str, theirs: &str) {
    let parts = ours.bytes().zip(theirs.bytes()).take_while(|(a, b)| a == b).count();
    let from = |text: &str| {
        String::from_utf8_lossy(&text.as_bytes()[parts.saturating_sub(60)..]).chars().take(160).collect::<String>()
    };
    assert!(ours == theirs, "ours ...{}\ntheirs ...{}", from(ours), from(theirs));
}

/// Ours and theirs accept the same bytes, and make the same of them. Whether they were accepted.
macro_rules! judge {
    ($message:expr, $type:ident) => {{
        let frames = [$message.clone(), Bytes::from_static(b"an out-of-band frame")];
        let ours = decode_frames::<$type>(&frames);
        let theirs = published::decode_frames::<published::$type>(&frames);
        match (&ours, &theirs) {
            (Ok(ours), Ok(theirs)) => {
                same_text(&text(ours), &text(theirs));
                let bytes = encode_frames(ours);
                assert_eq!(bytes, published::encode_frames(theirs));
                // A damaged frame may hold wider formats than ours; ours is stable.
                assert_eq!(bytes, encode_frames(&decode_frames::<$type>(&bytes).unwrap()));
            }
            (Err(_), Err(_)) => {}
            _ => panic!("ours {ours:?}, theirs {theirs:?}, of {:02x?}", &frames[0][..]),
        }
        ours.is_ok()
    }};
}

/// The view over a batch accepts what the decoder accepts, and has as many rows.
fn judge_view(message: &Bytes) -> bool {
    let owned = decode_bytes::<BatchTokenIDOutSlim>(message);
    let rows = owned.as_ref().ok().and_then(|batch| Some(batch.requests().ok()?.count()));
    let viewed = BatchView::parse(message).ok().map(|view| view.rows().count());
    assert_eq!(rows, viewed, "{:02x?}", &message[..]);
    rows.is_some()
}

/// What a frontend reads from its output socket, owned and in place.
fn judge_output(message: &Bytes) -> bool {
    let owned = match EngineOutput::from_frames(std::slice::from_ref(message)) {
        // The decoder takes ragged columns, and says so when the rows are asked for.
        Ok(EngineOutput::Batch(batch)) => batch.requests().is_ok(),
        other => other.is_ok(),
    };
    assert_eq!(owned, OutputView::parse(message, 0).is_ok(), "{:02x?}", &message[..]);
    owned
}

/// What an engine reads from its input socket.
fn judge_request(message: &Bytes) -> bool {
    let mut accepted = false;
    for kind in [frames::REQ_TYPE_ADD, frames::REQ_TYPE_ABORT, frames::REQ_TYPE_CONTROL] {
        let message = [Bytes::copy_from_slice(&[kind]), message.clone()];
        if let Ok(request) = EngineRequest::from_frames(&message) {
            accepted = true;
            // A damaged frame may hold wider formats than ours; ours is stable.
            let frames = request.to_frames();
            assert_eq!(EngineRequest::from_frames(&frames).unwrap().to_frames(), frames);
        }
    }
    accepted
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Damaged golden frames into one decoder. Some must be accepted: what nothing accepts tests nothing.
fn damage(judge: impl Fn(&Bytes) -> bool) {
    let corpus = corpus();
    assert!(corpus.len() > 150);
    let seed = &mut Seed(number("TS_WIRE_FUZZ_SEED").unwrap_or(1));
    let limit = number("TS_WIRE_FUZZ_SECONDS").map(Duration::from_secs);
    let rounds = number("TS_WIRE_FUZZ_ROUNDS").unwrap_or(20_000);
    let started = Instant::now();
    let (mut done, mut accepted) = (0, 0);
    while limit.map_or(done < rounds, |limit| started.elapsed() < limit) {
        accepted += u64::from(judge(&Bytes::from(mutate(seed, &corpus))));
        done += 1;
    }
    assert!(accepted > 0, "none of {done} accepted");
}

macro_rules! decoders {
    ($($test:ident: $type:ident),* $(,)?) => {$(
        #[test]
        fn $test() {
            damage(|message| judge!(message, $type));
        }
    )*};
}

decoders! {
    damaged_requests: TokenizedGenerateReqInput,
    damaged_batches: BatchTokenIDOutSlim,
    damaged_control_requests: ControlRequest,
    damaged_control_replies: ControlOutput,
    damaged_encode_requests: EncodeRequest,
    damaged_ready_messages: ReadyMessage,
    damaged_init_messages: HandshakeInitMessage,
    damaged_registrations: EngineCoreReadyResponse,
    damaged_values: Value,
}

#[test]
fn damaged_batches_in_place() {
    damage(judge_view);
}

#[test]
fn damaged_output_messages() {
    damage(judge_output);
}

#[test]
fn damaged_input_messages() {
    damage(judge_request);
}
