//! S1 and S2: the same events whatever the cuts.

#![expect(clippy::unwrap_used, reason = "tests")]

use proptest::prelude::*;

use super::*;

const LARGE: usize = 1 << 20;

/// The events of a stream that comes in `pieces`, and what is left.
fn scan(pieces: &[&[u8]]) -> (Vec<Vec<u8>>, Vec<u8>, Vec<u8>) {
    let mut scanner = Scanner::new(LARGE);
    let (mut events, mut passed) = (Vec::new(), Vec::new());
    for piece in pieces {
        let run = scanner.feed(Bytes::copy_from_slice(piece), |event| {
            events.push(event.to_vec());
            Verdict::Pass
        });
        assert_eq!(run.stop, None);
        passed.extend_from_slice(&run.events);
    }
    (events, passed, scanner.rest().to_vec())
}

/// The data of each event, by a reading of the standard that is as plain as can be: the whole text, line by line.
fn by_the_standard(stream: &[u8]) -> Vec<Vec<u8>> {
    let mut lines: Vec<Vec<u8>> = vec![Vec::new()];
    let mut bytes = stream.iter().peekable();
    while let Some(&byte) = bytes.next() {
        match byte {
            b'\n' => lines.push(Vec::new()),
            b'\r' => {
                bytes.next_if(|next| **next == b'\n');
                lines.push(Vec::new());
            }
            byte => lines.last_mut().unwrap().push(byte),
        }
    }
    // What stands after the last line end is no line yet.
    lines.pop();
    let (mut events, mut current) = (Vec::new(), Vec::new());
    for line in lines {
        if line.is_empty() {
            events.push(std::mem::take(&mut current));
        } else {
            current.extend_from_slice(&line);
            current.push(b'\n');
        }
    }
    events
}

/// An event as the standard sees it: its lines, each with one LF.
fn normal(event: &[u8]) -> Vec<u8> {
    let text: Vec<u8> = event.strip_prefix(b"\n").unwrap_or(event).to_vec();
    let mut lines: Vec<u8> = Vec::new();
    let mut bytes = text.iter().peekable();
    while let Some(&byte) = bytes.next() {
        if byte == b'\r' {
            bytes.next_if(|next| **next == b'\n');
            lines.push(b'\n');
        } else {
            lines.push(byte);
        }
    }
    // The blank line.
    lines.pop();
    lines
}

#[test]
fn s2_every_line_end_ends_an_event() {
    for end in ["\n", "\r\n", "\r"] {
        let stream = format!("data: one{end}{end}: ping{end}{end}event: x{end}data:two{end}data: three{end}{end}");
        let (events, passed, rest) = scan(&[stream.as_bytes()]);
        assert_eq!(events.len(), 3, "{end:?}");
        assert_eq!(passed, stream.as_bytes());
        assert!(rest.is_empty());
    }
}

#[test]
fn s2_an_event_leaves_when_its_blank_line_has_come() {
    let mut scanner = Scanner::new(LARGE);
    let mut feed = |piece: &'static str| scanner.feed(Bytes::from_static(piece.as_bytes()), |_| Verdict::Pass).events;
    assert_eq!(feed("data: a\n\n"), "data: a\n\n");
    // The second CR is the end where lone CRs end lines, but where CRLF does its LF belongs to the event.
    assert_eq!(feed("data: b\r\r"), "data: b\r\r");
    assert_eq!(feed("data: c\r\n\r"), "");
    assert_eq!(feed("\n"), "data: c\r\n\r\n");
}

#[test]
fn s2_an_event_that_never_ends_is_stopped_at_the_limit() {
    let mut scanner = Scanner::new(100);
    let mut feed = |piece: &str| scanner.feed(Bytes::copy_from_slice(piece.as_bytes()), |_| Verdict::Pass);
    assert_eq!(feed("data: a\n\n").stop, None);
    assert_eq!(feed(&"x".repeat(100)).stop, None);
    assert_eq!(feed("x").stop, Some(Stop::TooLarge));
    let whole = format!("data: a\n\ndata: {}\n\ndata: b\n\n", "x".repeat(100));
    let run = Scanner::new(100).feed(Bytes::from(whole), |_| Verdict::Pass);
    assert_eq!(run, Run { events: Bytes::from_static(b"data: a\n\n"), stop: Some(Stop::TooLarge) });
}

#[test]
fn what_stands_after_the_last_event_is_dropped() {
    let stream = Bytes::from_static(b"data: a\n\ndata: [DONE]\n\ndata: b\n\n");
    let last = |event: &[u8]| if event.starts_with(b"data: [") { Verdict::Last } else { Verdict::Pass };
    let run = Scanner::new(LARGE).feed(stream.clone(), last);
    assert_eq!(run, Run { events: Bytes::from_static(b"data: a\n\ndata: [DONE]\n\n"), stop: Some(Stop::Last) });
    let hold = |event: &[u8]| if event.starts_with(b"data: [") { Verdict::Hold } else { Verdict::Pass };
    let run = Scanner::new(LARGE).feed(stream, hold);
    assert_eq!(run, Run { events: Bytes::from_static(b"data: a\n\n"), stop: Some(Stop::Held) });
}

proptest! {
    #[test]
    fn s1_any_cut_gives_the_same_events(
        stream in "(data: [a-z\u{e9}\u{1f600}]{0,5}|data:|: ping|event: x|\n|\r|\r\n|\n\n|\r\r|\r\n\r\n){0,24}",
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let stream = stream.as_bytes();
        let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        at.extend([0, stream.len()]);
        at.sort_unstable();
        let pieces: Vec<&[u8]> = at.windows(2).map(|pair| &stream[pair[0]..pair[1]]).collect();
        let (events, passed, rest) = scan(&pieces);
        prop_assert_eq!([passed, rest.clone()].concat(), stream, "no byte is lost or moved");
        let (whole, ..) = scan(&[stream]);
        prop_assert_eq!(&events, &whole, "the cuts do not show");
        let mut seen: Vec<Vec<u8>> = events.iter().map(|event| normal(event)).collect();
        if stream.ends_with(b"\r\n\r") && !rest.is_empty() {
            // Complete by the standard; its LF is waited for.
            seen.push(normal(&rest));
        }
        prop_assert_eq!(seen, by_the_standard(stream));
        let (bytewise, ..) = scan(&stream.chunks(1).collect::<Vec<_>>());
        prop_assert_eq!(bytewise, whole);
    }
}
