//! The codec against the published crate and against copying the bytes.
//!
//! `cargo bench -p ts-wire` prints one line per case: nanoseconds per operation
//! (the fastest of many rounds, which a busy machine disturbs least), then how
//! many times as fast ours is. `copy` is a `memcpy` of the same bytes: the
//! physical limit.

#![allow(clippy::unwrap_used, reason = "a benchmark stops at the first error")]

use std::collections::HashMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ts_wire::output::BatchView;
use ts_wire::{BatchTokenIDOutSlim, EngineRequest, SamplingParams, TokenizedGenerateReqInput};

/// Fastest of the rounds run within the budget, in nanoseconds per call.
fn time(mut work: impl FnMut()) -> f64 {
    const BUDGET: Duration = Duration::from_millis(400);
    let started = Instant::now();
    work();
    let once = started.elapsed().max(Duration::from_nanos(1));
    let calls = (Duration::from_millis(2).as_nanos() / once.as_nanos()).clamp(1, 100_000) as u32;
    let mut best = f64::INFINITY;
    while started.elapsed() < BUDGET {
        let round = Instant::now();
        for _ in 0..calls {
            work();
        }
        best = best.min(round.elapsed().as_nanos() as f64 / f64::from(calls));
    }
    best
}

fn copy(bytes: &[u8]) -> f64 {
    let mut target = vec![0u8; bytes.len()];
    time(|| black_box(&mut target).copy_from_slice(black_box(bytes)))
}

/// Ids as a vocabulary of 150,000 spreads them over the formats.
fn ids(count: usize) -> Vec<i32> {
    let mut state = 1u64;
    let mut id = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let draw = (state >> 33) as u32;
        // Frequent tokens have small ids.
        (if draw & 1 == 0 { draw % 4_000 } else { draw % 150_000 }) as i32
    };
    (0..count).map(|_| id()).collect()
}

fn add(count: usize) {
    let mut request = TokenizedGenerateReqInput::new("chatcmpl-0123456789abcdef-0", SamplingParams::default());
    request.input_ids = Some(ids(count));
    let mut theirs =
        published::TokenizedGenerateReqInput::new("chatcmpl-0123456789abcdef-0", published::SamplingParams::default());
    theirs.input_ids = request.input_ids.clone();
    let ours = EngineRequest::Add(Box::new(request));
    let theirs = published::EngineRequest::Add(Box::new(theirs));
    let frames = ours.to_frames();
    assert_eq!(frames, theirs.to_frames());

    let limit = copy(&frames[1]);
    let new = time(|| drop(black_box(ours.to_frames())));
    let old = time(|| drop(black_box(theirs.to_frames())));
    line(&format!("encode ADD, {count} ids"), new, old, limit);
    let new = time(|| drop(black_box(EngineRequest::from_frames(&frames).unwrap())));
    let old = time(|| drop(black_box(published::EngineRequest::from_frames(&frames).unwrap())));
    line(&format!("decode ADD, {count} ids"), new, old, limit);
}

fn batch(rows: usize, logprobs: bool) -> BatchTokenIDOutSlim {
    let per_row = |row: usize| if logprobs { vec![-(row as f64) / 7.0] } else { vec![] };
    BatchTokenIDOutSlim {
        rids: Some((0..rows).map(|row| format!("chatcmpl-0123456789abcdef-{row}")).collect()),
        output_ids: ids(rows).into_iter().map(|id| vec![id]).collect(),
        finished_reasons: vec![String::new(); rows],
        prompt_tokens: vec![500; rows],
        completion_tokens: (0..rows).map(|row| row as i64).collect(),
        cached_tokens: vec![256; rows],
        output_token_logprobs_val: (0..rows).map(per_row).collect(),
        output_token_logprobs_idx: (0..rows).map(|row| if logprobs { vec![row as i32] } else { vec![] }).collect(),
        num_running: rows as i64,
        kv_total_pages: 100_000,
        finish_reason_details: vec![None; rows],
        ..Default::default()
    }
}

/// What a stream has received. The published client gives each row to its
/// stream as vectors of its own; a view is appended to what is there.
type Streams = HashMap<String, (Vec<i32>, Vec<f64>)>;

fn output(rows: usize, logprobs: bool) {
    let batch = batch(rows, logprobs);
    let message: Bytes = ts_wire::encode_frames(&batch).remove(0);
    let frames = [message.clone()];
    let mut streams: Streams = batch.rids.unwrap().into_iter().map(|rid| (rid, Default::default())).collect();

    let limit = copy(&message);
    let view = time(|| {
        for row in BatchView::parse(&message).unwrap().rows() {
            let (tokens, values) = streams.get_mut(row.rid.as_str()).unwrap();
            tokens.clear();
            values.clear();
            row.output_ids.append_to(tokens);
            row.output_token_logprobs.append_to(values);
        }
    });
    let owned = time(|| {
        let batch = ts_wire::decode_frames::<BatchTokenIDOutSlim>(&frames).unwrap();
        for row in batch.requests().unwrap() {
            let stream = streams.get_mut(row.rid).unwrap();
            *stream = (row.output_ids.to_vec(), row.output_token_logprobs.to_vec());
        }
    });
    let old = time(|| {
        let batch = published::decode_frames::<published::BatchTokenIDOutSlim>(&frames).unwrap();
        for row in batch.requests().unwrap() {
            let stream = streams.get_mut(row.rid).unwrap();
            *stream = (row.output_ids.to_vec(), row.output_token_logprobs.to_vec());
        }
    });
    let kind = if logprobs { "rows with logprobs" } else { "rows" };
    line(&format!("dispatch {rows} {kind}, in place"), view, old, limit);
    line(&format!("dispatch {rows} {kind}, owned"), owned, old, limit);
}

/// The measurement behind `msgpack::numbers`: the same integers, one `rmp` call
/// per element.
fn integers(count: usize) {
    let ids = ids(count);
    let ours = || {
        let mut encoder = ts_wire::msgpack::Encoder::new();
        encoder.token_ids(black_box(&ids));
        encoder.into_single_frame()
    };
    let rmp = || {
        let mut buffer = rmp::encode::buffer::ByteBuf::new();
        rmp::encode::write_array_len(&mut buffer, ids.len() as u32).unwrap();
        for id in black_box(&ids) {
            rmp::encode::write_sint(&mut buffer, i64::from(*id)).unwrap();
        }
        buffer.into_vec()
    };
    let bytes = ours();
    assert_eq!(bytes, rmp());
    let limit = copy(&bytes);
    line(
        &format!("encode {count} ids against rmp"),
        time(|| drop(black_box(ours()))),
        time(|| drop(black_box(rmp()))),
        limit,
    );
    let new = time(|| drop(black_box(ts_wire::decode_bytes::<Vec<i32>>(black_box(&bytes)).unwrap())));
    let old = time(|| {
        let mut rest = black_box(&bytes[..]);
        let len = rmp::decode::read_array_len(&mut rest).unwrap();
        let ids: Vec<i32> = (0..len).map(|_| rmp::decode::read_int(&mut rest).unwrap()).collect();
        drop(black_box(ids));
    });
    line(&format!("decode {count} ids against rmp"), new, old, limit);
}

fn line(case: &str, ours: f64, other: f64, copy: f64) {
    println!("{case:<44} {ours:>12.0} ns {other:>12.0} ns {:>6.2}x {:>8.1}x copy", other / ours, ours / copy);
}

fn main() {
    println!("{:<44} {:>15} {:>15} {:>7} {:>10}", "", "ours", "other", "faster", "slower");
    add(1_000);
    add(32_000);
    integers(32_000);
    for rows in [1, 64, 256, 1024] {
        output(rows, false);
    }
    output(256, true);
}
