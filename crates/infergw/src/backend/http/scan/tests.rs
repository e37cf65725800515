//! S1, S2: any cut of any stream gives the same events.

#![expect(clippy::unwrap_used, reason = "tests")]

use proptest::prelude::*;

use super::*;

fn events(chunks: &[&[u8]]) -> (Vec<Vec<u8>>, Vec<u8>) {
    let mut scanner = Scanner::new(1 << 20);
    let mut events = Vec::new();
    for chunk in chunks {
        scanner.push(Bytes::copy_from_slice(chunk), |event| events.push(event.to_vec())).unwrap();
    }
    (events, scanner.rest().to_vec())
}

/// What an SSE client sees: the data of each event. An LF that a cut has moved to the next event changes nothing.
fn seen(events: &[Vec<u8>]) -> Vec<Vec<u8>> {
    events.iter().map(|event| data(event).into_owned()).collect()
}

#[test]
fn s2_every_line_end_ends_an_event() {
    let stream = b"data: a\n\ndata:b\r\n\r\ndata: c\r\rid: 1\ndata: d\ndata: e\n\n: ping\n\n\n\ndata: f\n\nrest";
    let (events, rest) = events(&[stream]);
    assert_eq!(seen(&events), [&b"a"[..], b"b", b"c", b"d\ne", b"", b"f"]);
    assert_eq!(rest, b"rest");
    let whole: Vec<u8> = events.concat().into_iter().chain(rest).collect();
    assert_eq!(whole, stream);
}

#[test]
fn s2_an_endless_event_is_cut_off() {
    let mut scanner = Scanner::new(10);
    scanner.push(Bytes::from_static(b"data: 123"), |_| ()).unwrap();
    assert_eq!(scanner.push(Bytes::from_static(b"45"), |_| ()), Err(TooLong { limit: 10 }));
    let mut scanner = Scanner::new(10);
    assert_eq!(scanner.push(Bytes::from_static(b"data: 12345\n\n"), |_| ()), Err(TooLong { limit: 10 }));
}

#[test]
fn an_event_in_one_chunk_is_not_copied() {
    let chunk = Bytes::from_static(b"data: a\n\ndata: b\n\n");
    let mut starts = Vec::new();
    Scanner::new(100).push(chunk.clone(), |event| starts.push(event.as_ptr())).unwrap();
    assert_eq!(starts, [chunk.as_ptr(), chunk.slice(9..).as_ptr()]);
}

#[test]
fn what_events_mean() {
    let done = meaning(b"\xef\xbb\xbfdata: [DONE]\r\n\r\n");
    assert!(done.done);
    let role = meaning(br#"data: {"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#);
    assert_eq!(role, Meaning { data: true, ..Meaning::default() });
    let text = meaning(br#"data: {"choices":[{"delta":{"content":"x"},"finish_reason": null}]}"#);
    assert_eq!(text, Meaning { content: true, data: true, ..Meaning::default() });
    let two =
        meaning(br#"data: {"choices":[{"finish_reason":"stop"},{"finish_reason":"length"},{"finish_reason":null}]}"#);
    assert_eq!(two.finished, 2);
    // Text of the model that looks like an end is text.
    let sly = meaning(br#"data: {"choices":[{"delta":{"content":"\"finish_reason\":\"stop\",\"error\":1"}}]}"#);
    assert_eq!(sly, Meaning { content: true, data: true, ..Meaning::default() });
    let error = meaning(br#"data: {"error":{"message":"x"}}"#);
    assert!(error.error);
}

fn stream() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop::sample::select(vec![
        "data: x", "data:", "data", "id: 7", ": ping", "\n", "\n", "\r\n", "\r\n", "\r", "\n\n", "é", "[DONE]",
    ]);
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat().into_bytes())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn s1_any_cut_gives_the_same_events(stream in stream(), cuts in prop::collection::vec(0..200usize, 0..12)) {
        let (whole, rest) = events(&[&stream]);
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(stream.len())).chain([0, stream.len()]).collect();
        cuts.sort_unstable();
        let chunks: Vec<&[u8]> = cuts.windows(2).map(|pair| &stream[pair[0]..pair[1]]).collect();
        let (cut, cut_rest) = events(&chunks);
        prop_assert_eq!(seen(&whole), seen(&cut));
        // Nothing is lost, and nothing is added.
        let bytes = |events: Vec<Vec<u8>>, rest: Vec<u8>| events.concat().into_iter().chain(rest).collect::<Vec<u8>>();
        prop_assert_eq!(&bytes(whole, rest), &stream);
        prop_assert_eq!(&bytes(cut, cut_rest), &stream);
    }
}
