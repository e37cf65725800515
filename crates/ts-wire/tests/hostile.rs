//! Bytes from an enemy: no panic, no deep stack, no memory that the message
//! does not pay for.

#![expect(clippy::unwrap_used, reason = "tests")]

mod sample;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use bytes::Bytes;
use sample::{Sample, Seed};
use ts_wire::msgpack::{Decoder, MAX_DEPTH};
use ts_wire::*;

/// Counts what the current thread has allocated, and the most it ever had.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // Not reachable while the thread ends; nothing is measured then.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(held.get())));
    });
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most bytes held at once during `work`.
fn peak(work: impl FnOnce()) -> usize {
    let before = HELD.get();
    PEAK.set(before);
    work();
    (PEAK.get() - before) as usize
}

/// Decode as everything there is.
fn decode_as_everything(frames: &[Bytes]) {
    let _ = EngineRequest::from_frames(frames);
    let _ = EngineOutput::from_frames(frames);
    let _ = decode_frames::<EncodeRequest>(frames);
    let _ = decode_frames::<ReadyMessage>(frames);
    let _ = decode_frames::<HandshakeInitMessage>(frames);
    let _ = decode_frames::<EngineCoreReadyResponse>(frames);
    let _ = decode_frames::<SamplingParams>(frames);
    let _ = decode_frames::<MultimodalInputs>(frames);
    let _ = decode_frames::<Value>(frames);
    let _ = decode_frames::<Vec<String>>(frames);
    let _ = decode_frames::<Vec<Vec<Vec<i32>>>>(frames);
    let _ = Decoder::new(frames).skip();
    if let Some(first) = frames.first() {
        let _ = OutputView::parse(first, frames.len() - 1);
    }
}

/// A million arrays, each inside the one before.
#[test]
fn a_million_nested_arrays() {
    let mut nested = vec![0x91; 1_000_000];
    nested.push(0xc0);
    let nested = Bytes::from(nested);
    let held = peak(|| {
        decode_as_everything(std::slice::from_ref(&nested));
        for key in ["internal_state", "unknown"] {
            let map = [&[0x81, 0xa0 + key.len() as u8], key.as_bytes(), &nested].concat();
            decode_as_everything(&[Bytes::from(map)]);
        }
        let reply = [&b"\x94\xb9GetInternalStateReqOutput\xc0\xc0\x81\xa1k"[..], &nested].concat();
        let error = EngineOutput::from_frames(&[Bytes::from(reply)]).unwrap_err();
        assert!(error.to_string().contains("nested more than 64 levels"), "{error}");
    });
    assert!(held < 16 << 20, "held {held} bytes");
}

#[test]
fn nesting_up_to_the_limit_is_taken() {
    for (arrays, good) in [(MAX_DEPTH, true), (MAX_DEPTH + 1, false)] {
        let mut nested = vec![0x91; arrays - 1];
        nested.push(0x90);
        assert_eq!(decode_bytes::<Value>(&nested).is_ok(), good, "{arrays} arrays");
        assert_eq!(Decoder::over(&nested).skip().is_ok(), good, "{arrays} arrays skipped");
    }
}

/// Lengths of up to 4 GiB in front of next to nothing.
#[test]
fn announced_lengths() {
    for marker in [0xdb, 0xc6, 0xdd, 0xdf, 0xc9] {
        for len in [u32::MAX, 1 << 31, 1 << 20, 100] {
            let header = [&[marker], &len.to_be_bytes()[..]].concat();
            for inside in [&[][..], b"\x91", b"\x81\xa6inputs", b"\x9e\xb3BatchTokenIDOutSlim"] {
                for behind in [&[][..], b"\x01", b"\xa1x\xa1y"] {
                    let message = Bytes::from([inside, &header, behind].concat());
                    let held = peak(|| decode_as_everything(&[Bytes::from_static(&[0]), message.clone()]));
                    assert!(held < 64 << 10, "held {held} bytes for {message:02x?}");
                    let held = peak(|| decode_as_everything(std::slice::from_ref(&message)));
                    assert!(held < 64 << 10, "held {held} bytes for {message:02x?}");
                }
            }
        }
    }
}

/// Arrays that each announce as much as the rest of the message could hold.
#[test]
fn announced_lengths_nested() {
    let size = 1 << 20;
    let mut message = Vec::with_capacity(size);
    for _ in 0..MAX_DEPTH {
        message.push(0xdd);
        message.extend_from_slice(&((size - 1000) as u32).to_be_bytes());
    }
    message.resize(size, 0xc0);
    let message = Bytes::from(message);
    let held = peak(|| decode_as_everything(std::slice::from_ref(&message)));
    // A `Value` takes 40 bytes for a `nil` of one.
    assert!(held < 100 * size, "held {held} bytes for a message of {size}");
}

/// Memory stays within a small multiple of the message, with good ones too.
#[test]
fn memory_is_in_proportion() {
    for seed in 0..300 {
        let frames = EngineOutput::sample(&mut Seed(seed)).to_frames();
        let size: usize = frames.iter().map(Bytes::len).sum();
        let held = peak(|| drop(EngineOutput::from_frames(&frames)));
        assert!(held <= 100 * size + 4096, "held {held} bytes for {size}");
        let held = peak(|| drop(OutputView::parse(&frames[0], 0)));
        assert!(held <= 20 * size, "the view held {held} bytes for {size}");
    }
}

/// No proper prefix of a message is a message.
#[test]
fn truncation_at_every_byte() {
    for seed in 0..40 {
        let request = EngineRequest::sample(&mut Seed(seed)).to_frames();
        let output = EngineOutput::sample(&mut Seed(seed)).to_frames();
        for len in 0..request[1].len().min(3000) {
            let mut cut = request.clone();
            cut[1].truncate(len);
            assert!(EngineRequest::from_frames(&cut).is_err(), "{len} bytes of {request:02x?}");
        }
        for len in 0..output[0].len().min(3000) {
            let mut cut = output.clone();
            cut[0].truncate(len);
            assert!(EngineOutput::from_frames(&cut).is_err(), "{len} bytes of {output:02x?}");
            assert!(OutputView::parse(&cut[0], 0).is_err(), "{len} bytes of {output:02x?}");
        }
    }
}

#[test]
fn every_bit_flipped() {
    for seed in 0..6 {
        for frames in
            [EngineRequest::sample(&mut Seed(seed)).to_frames(), EngineOutput::sample(&mut Seed(seed)).to_frames()]
        {
            let last = frames.len().min(2) - 1;
            for at in 0..frames[last].len().min(1500) {
                for bit in 0..8 {
                    let mut bytes = frames[last].to_vec();
                    bytes[at] ^= 1 << bit;
                    let mut flipped = frames.clone();
                    flipped[last] = bytes.into();
                    decode_as_everything(&flipped);
                }
            }
        }
    }
}

#[test]
fn trailing_bytes_and_foreign_tags() {
    let mut output = EngineOutput::Batch(Box::default());
    if let EngineOutput::Batch(batch) = &mut output {
        batch.rids = Some(vec![]);
    }
    let good = output.to_frames().remove(0);
    OutputView::parse(&good, 0).unwrap();
    let longer = Bytes::from([&good[..], &[0xc0]].concat());
    assert!(matches!(EngineOutput::from_frames(std::slice::from_ref(&longer)).unwrap_err(), Error::TrailingBytes(1)));
    assert!(matches!(OutputView::parse(&longer, 0).unwrap_err(), Error::TrailingBytes(1)));
    let foreign = Bytes::from_static(b"\x91\xa8BatchStr");
    assert!(matches!(EngineOutput::from_frames(std::slice::from_ref(&foreign)).unwrap_err(), Error::Tag { .. }));
    assert!(matches!(OutputView::parse(&foreign, 0).unwrap_err(), Error::Tag { .. }));
    // A tag of megabytes is not repeated in the error.
    let long = encode_frames(&vec!["x".repeat(1 << 20)]);
    assert!(EngineOutput::from_frames(&long).unwrap_err().to_string().len() < 300);
    // The sentinel is one only if it is alone.
    let dead = Bytes::from_static(ENGINE_CORE_DEAD);
    assert!(matches!(OutputView::parse(&dead, 0).unwrap(), OutputView::Dead));
    assert!(OutputView::parse(&dead, 1).is_err());
    assert!(EngineOutput::from_frames(&[dead.clone(), dead]).is_err());
}

#[test]
fn messages_without_frames() {
    decode_as_everything(&[]);
    decode_as_everything(&[Bytes::new()]);
    assert!(EngineRequest::from_frames(&[]).is_err());
    assert!(EngineRequest::from_frames(&[Bytes::from_static(&[0])]).is_err());
    assert!(EngineOutput::from_frames(&[]).is_err());
}
