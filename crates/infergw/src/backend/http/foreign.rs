//! An upstream's bytes, for `crate::foreign`: what must hold of them whatever they are.

use bytes::Bytes;

use super::learn::models_of;
use super::scan::{Scanner, Stop};
use super::watch::Watch;
use crate::types::StreamEnd;

/// Small, so that events over it come up.
const MAX_EVENT: usize = 300;

/// A stream of events, after two bytes that say how it ends and how it is cut: however that is, the same events pass, and
/// nothing is held beyond an event (S1, S2). What passed, and whether it was an event at all.
pub fn events(bytes: &[u8]) -> Option<(Vec<u8>, bool)> {
    let ([end, cut], stream) = bytes.split_first_chunk::<2>()?;
    let end = match end % 4 {
        0 => StreamEnd::Choices,
        1 => StreamEnd::Message,
        2 => StreamEnd::Response,
        _ => StreamEnd::MetaInfo,
    };
    let whole = scanned(end, [stream]);
    assert_eq!(scanned(end, stream.chunks(usize::from(cut % 64) + 1)), whole);
    assert_eq!(scanned(end, stream.chunks(1)), whole);
    if whole.stop.is_none() {
        assert_eq!([&*whole.passed, &*whole.rest].concat(), stream, "A2: nothing is changed or lost");
    }
    assert!(stream.starts_with(&whole.passed));
    Some((whole.passed, whole.begun))
}

#[derive(Debug, PartialEq, Eq)]
struct Scanned {
    passed: Vec<u8>,
    rest: Vec<u8>,
    stop: Option<Stop>,
    begun: bool,
    complete: bool,
    said: u64,
}

fn scanned<'a>(end: StreamEnd, pieces: impl IntoIterator<Item = &'a [u8]>) -> Scanned {
    let (mut scanner, mut watch) = (Scanner::new(MAX_EVENT), Watch::new(2, end));
    let mut passed = Vec::new();
    let mut stop = None;
    for piece in pieces {
        let run = scanner.feed(Bytes::copy_from_slice(piece), |event| {
            assert!(event.len() <= MAX_EVENT);
            watch.see(event)
        });
        passed.extend_from_slice(&run.events);
        stop = run.stop;
        if stop.is_some() {
            break;
        }
    }
    let rest = if stop.is_some() { Vec::new() } else { scanner.rest().to_vec() };
    assert!(rest.len() <= MAX_EVENT);
    if !rest.is_empty() {
        let mut last = rest.clone();
        last.extend_from_slice(b"\n\n");
        let _ = watch.see_rest(&last);
    }
    drop((watch.terminator(), watch.take_error()));
    Scanned { passed, rest, stop, begun: watch.begun(), complete: watch.complete(), said: watch.said() }
}

/// An upstream's list of models.
pub fn listing(body: &[u8]) -> bool {
    models_of(body).is_some()
}
