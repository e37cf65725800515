//! Against the published crate: the same bytes for the same value, the same
//! value for the same bytes, and the same verdict on bytes that are nobody's.
//!
//! The two crates have different types of the same names. Values are compared
//! by their `Debug` text, which both derive: it shows every field, and a NaN
//! equals itself there.

#![expect(clippy::unwrap_used, reason = "tests")]

mod sample;

use std::fmt::Debug;

use bytes::Bytes;
use proptest::prelude::*;
use sample::{Sample, Seed};

fn text(value: &impl Debug) -> String {
    format!("{value:?}")
}

/// Encode a sample, let the other crate read it, and let that write it again.
macro_rules! same_both_ways {
    ($($test:ident: $($type:ident),+;)*) => {
        proptest! {
            #![proptest_config(ProptestConfig::with_cases(150))]
            $(#[test]
            fn $test(seed: u64) {
                $({
                    let ours = ts_wire::$type::sample(&mut Seed(seed));
                    let bytes = ts_wire::encode_frames(&ours);
                    let theirs = published::decode_frames::<published::$type>(&bytes).unwrap();
                    prop_assert_eq!(text(&ours), text(&theirs));
                    prop_assert_eq!(&bytes, &published::encode_frames(&theirs));
                    let again = ts_wire::decode_frames::<ts_wire::$type>(&bytes).unwrap();
                    prop_assert_eq!(text(&ours), text(&again));
                })+
            })*
        }
    };
}

same_both_ways! {
    requests: TokenizedGenerateReqInput, SamplingParams, SessionParams;
    multimodal: MultimodalInputs, MultimodalDataItem, ShmTensorHandle, Tensor, EncodeRequest;
    outputs: BatchTokenIDOutSlim;
    control: ControlRequest, ControlOutput;
    handshake: ReadyMessage, HandshakeAddresses, HandshakeInitMessage, EngineCoreReadyResponse;
    values: Value, StrOrList;
}

/// Both read the same frames; both say yes to the same value, or both no.
macro_rules! same_verdict {
    ($type:ident, $frames:expr) => {{
        let frames: &[Bytes] = $frames;
        let ours = ts_wire::decode_frames::<ts_wire::$type>(frames);
        let theirs = published::decode_frames::<published::$type>(frames);
        match (&ours, &theirs) {
            (Ok(ours), Ok(theirs)) => assert_eq!(text(ours), text(theirs)),
            (Err(_), Err(_)) => {}
            _ => panic!("{}: ours {ours:?}, theirs {theirs:?}, of {frames:02x?}", stringify!($type)),
        }
        let accepted: bool = ours.is_ok();
        accepted
    }};
}

/// Every length an array struct can be cut to, or be extended by a value that
/// nobody knows: defaults, required fields, skipped tails.
macro_rules! same_at_every_length {
    ($($test:ident: $($type:ident),+;)*) => {
        proptest! {
            #![proptest_config(ProptestConfig::with_cases(40))]
            $(#[test]
            fn $test(seed: u64) {
                $({
                    let seed = &mut Seed(seed);
                    let frames = ts_wire::encode_frames(&ts_wire::$type::sample(seed));
                    let mut elements: Vec<ts_wire::Value> = ts_wire::decode_bytes(&frames[0]).unwrap();
                    elements.push(Sample::sample(seed));
                    let mut cut = frames.clone();
                    for len in 0..=elements.len() {
                        cut[0] = ts_wire::encode_frames(&elements[..len].to_vec()).remove(0);
                        same_verdict!($type, &cut);
                    }
                })+
            })*
        }
    };
}

same_at_every_length! {
    lengths_of_requests: TokenizedGenerateReqInput, SamplingParams, SessionParams;
    lengths_of_multimodal: MultimodalInputs, MultimodalDataItem, Tensor, EncodeRequest;
    lengths_of_outputs: BatchTokenIDOutSlim;
    lengths_of_control: ControlRequest, ControlOutput;
}

/// Every control struct, not only those a few draws happen on.
#[test]
fn lengths_of_every_control_struct() {
    let mut tags = std::collections::BTreeSet::new();
    for seed in 0..600 {
        let request = ts_wire::ControlRequest::sample(&mut Seed(seed));
        let reply = ts_wire::ControlOutput::sample(&mut Seed(seed));
        for (tag, frames) in
            [(request.tag(), ts_wire::encode_frames(&request)), (reply.tag(), ts_wire::encode_frames(&reply))]
        {
            if !tags.insert(tag) {
                continue;
            }
            let elements: Vec<ts_wire::Value> = ts_wire::decode_bytes(&frames[0]).unwrap();
            for len in 0..=elements.len() {
                let cut = ts_wire::encode_frames(&elements[..len].to_vec());
                same_verdict!(ControlRequest, &cut);
                same_verdict!(ControlOutput, &cut);
            }
        }
    }
    assert_eq!(tags.len(), 34);
}

/// Maps by name: entries left out, repeated, in another order, unknown, or with
/// a key that is no string.
macro_rules! same_with_entries_moved {
    ($($test:ident: $type:ident;)*) => {
        proptest! {
            #![proptest_config(ProptestConfig::with_cases(200))]
            $(#[test]
            fn $test(seed: u64) {
                let seed = &mut Seed(seed);
                let mut entries = Vec::new();
                for _ in 0..2 {
                    let frames = ts_wire::encode_frames(&ts_wire::$type::sample(seed));
                    let more: ts_wire::Dict<ts_wire::Value, ts_wire::Value> =
                        ts_wire::decode_bytes(&frames[0]).unwrap();
                    entries.extend(more.0);
                }
                entries.push((Sample::sample(seed), Sample::sample(seed)));
                let moved = (0..seed.below(entries.len() + 4))
                    .map(|_| entries[seed.below(entries.len())].clone())
                    .collect();
                same_verdict!($type, &ts_wire::encode_frames(&ts_wire::Dict(moved)));
            })*
        }
    };
}

same_with_entries_moved! {
    entries_of_ready: ReadyMessage;
    entries_of_addresses: HandshakeAddresses;
    entries_of_init: HandshakeInitMessage;
    entries_of_registration: EngineCoreReadyResponse;
    entries_of_shm: ShmTensorHandle;
}

/// A field gets a value of any type; formats are any width.
macro_rules! same_with_a_foreign_value {
    ($($test:ident: $type:ident;)*) => {
        proptest! {
            #![proptest_config(ProptestConfig::with_cases(400))]
            $(#[test]
            fn $test(seed: u64) {
                let seed = &mut Seed(seed);
                let mut frames = ts_wire::encode_frames(&ts_wire::$type::sample(seed));
                let mut elements: Vec<ts_wire::Value> = ts_wire::decode_bytes(&frames[0]).unwrap();
                let at = seed.below(elements.len());
                elements[at] = Sample::sample(seed);
                frames[0] = ts_wire::encode_frames(&elements).remove(0);
                same_verdict!($type, &frames);
            })*
        }
    };
}

same_with_a_foreign_value! {
    foreign_values_in_requests: TokenizedGenerateReqInput;
    foreign_values_in_sampling: SamplingParams;
    foreign_values_in_multimodal: MultimodalDataItem;
    foreign_values_in_tensors: Tensor;
    foreign_values_in_outputs: BatchTokenIDOutSlim;
    foreign_values_in_control: ControlRequest;
    foreign_values_in_replies: ControlOutput;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn whole_messages(seed: u64) {
        let ours = ts_wire::EngineRequest::sample(&mut Seed(seed));
        let theirs = published::EngineRequest::from_frames(&ours.to_frames()).unwrap();
        prop_assert_eq!(text(&ours), text(&theirs));
        prop_assert_eq!(ours.to_frames(), theirs.to_frames());
        let ours = ts_wire::EngineOutput::sample(&mut Seed(seed));
        let theirs = published::EngineOutput::from_frames(&ours.to_frames()).unwrap();
        prop_assert_eq!(text(&ours), text(&theirs));
        prop_assert_eq!(ours.to_frames(), theirs.to_frames());
    }

    /// The rows of a batch, and which batches have any.
    #[test]
    fn rows(seed: u64) {
        let ours = ts_wire::BatchTokenIDOutSlim::sample(&mut Seed(seed));
        let theirs: published::BatchTokenIDOutSlim = published::decode_frames(&ts_wire::encode_frames(&ours)).unwrap();
        match (ours.requests(), theirs.requests()) {
            (Ok(ours), Ok(theirs)) => {
                prop_assert_eq!(text(&ours.collect::<Vec<_>>()), text(&theirs.collect::<Vec<_>>()));
            }
            (ours, theirs) => prop_assert_eq!(ours.is_ok(), theirs.is_ok()),
        }
    }

    /// Frames around a message: none, a longer type frame, surplus, missing.
    #[test]
    fn framing(seed: u64, kind in prop::collection::vec(0u8..4, 0..3), drop: usize, surplus: bool) {
        let mut frames = ts_wire::EngineRequest::sample(&mut Seed(seed)).to_frames();
        if drop % 4 != 0 {
            frames[0] = kind.into();
        }
        frames.truncate(if drop % 3 == 0 { drop % (frames.len() + 1) } else { frames.len() });
        if surplus {
            frames.push(Bytes::from_static(b"x"));
        }
        let ours = ts_wire::EngineRequest::from_frames(&frames);
        let theirs = published::EngineRequest::from_frames(&frames);
        prop_assert_eq!(ours.is_ok(), theirs.is_ok(), "ours {:?}, theirs {:?}", ours, theirs);
    }
}

/// One number or string in every format that can hold it, where the schema
/// wants a number, a string or a boolean.
#[test]
fn scalars_of_every_format() {
    let scalars: &[&[u8]] = &[
        &[0x05],
        &[0xe0],
        &[0xff],
        &[0xcc, 5],
        &[0xcd, 0, 5],
        &[0xce, 0, 0, 0, 5],
        &[0xce, 0x80, 0, 0, 0],
        &[0xcf, 0, 0, 0, 0, 0, 0, 0, 5],
        &[0xcf, 0x80, 0, 0, 0, 0, 0, 0, 0],
        &[0xd0, 5],
        &[0xd0, 0x80],
        &[0xd1, 0, 5],
        &[0xd2, 0, 0, 0, 5],
        &[0xd2, 0x80, 0, 0, 0],
        &[0xd3, 0, 0, 0, 0, 0, 0, 0, 5],
        &[0xd3, 0x80, 0, 0, 0, 0, 0, 0, 0],
        &[0xca, 0x3f, 0x80, 0, 0],
        &[0xcb, 0x3f, 0xf0, 0, 0, 0, 0, 0, 0],
        &[0xc0],
        &[0xc1],
        &[0xc2],
        &[0xc3],
        &[0xa1, b'x'],
        &[0xa1, 0xff],
        &[0xd9, 1, b'x'],
        &[0xda, 0, 1, b'x'],
        &[0xdb, 0, 0, 0, 1, b'x'],
        &[0xc4, 1, b'x'],
        &[0xc5, 0, 1, b'x'],
        &[0xc6, 0, 0, 0, 1, b'x'],
        &[0xd4, 3, b'x'],
        &[0xc7, 0, 3],
        &[0xc8, 0, 1, 3, b'x'],
        &[0xc9, 0, 0, 0, 1, 3, b'x'],
        &[0x90],
        &[0xdc, 0, 0],
        &[0xdd, 0, 0, 0, 0],
        &[0x80],
        &[0xde, 0, 0],
        &[0xdf, 0, 0, 0, 0],
    ];
    let mut accepted = 0;
    for scalar in scalars {
        let array = |len: u8| Bytes::from([&[0x90 + len], *scalar].concat());
        for frames in [[Bytes::copy_from_slice(scalar)], [array(1)]] {
            accepted += usize::from(same_verdict!(Value, &frames));
            accepted += usize::from(same_verdict!(StrOrList, &frames));
            accepted += usize::from(same_verdict!(Modality, &frames));
            accepted += usize::from(same_verdict!(SessionParams, &frames));
            accepted += usize::from(same_verdict!(SamplingParams, &frames));
        }
        // The first field of the registration is an int, a float is the 18th.
        for name in ["max_model_len", "kv_cache_max_concurrency", "dtype", "kv_events_config"] {
            let key = [&[0x81, 0xa0 + name.len() as u8], name.as_bytes(), scalar].concat();
            accepted += usize::from(same_verdict!(EngineCoreReadyResponse, &[Bytes::from(key)]));
        }
        let tensor = [&[0x93, 0xa1, b'f', 0x91, 1], *scalar].concat();
        let frames = [Bytes::from(tensor), Bytes::from_static(b"one")];
        accepted += usize::from(same_verdict!(Tensor, &frames));
        // As the value of an unknown key, it is skipped.
        let unknown = [&[0x81, 0xa1, b'?'], *scalar].concat();
        accepted += usize::from(same_verdict!(ReadyMessage, &[Bytes::from(unknown)]));
    }
    assert!(accepted > 150, "only {accepted} were accepted");
}

/// `From<i64>` builds what decoding gives.
#[test]
fn values_from_integers() {
    for value in [0, 1, -1, i64::MAX, i64::MIN] {
        assert_eq!(text(&ts_wire::Value::from(value)), text(&published::Value::from(value)));
    }
}

#[test]
fn defaults() {
    assert_eq!(text(&ts_wire::SamplingParams::default()), text(&published::SamplingParams::default()));
    assert_eq!(text(&ts_wire::SessionParams::default()), text(&published::SessionParams::default()));
    assert_eq!(text(&ts_wire::ReadyMessage::default()), text(&published::ReadyMessage::default()));
    assert_eq!(text(&ts_wire::HandshakeAddresses::default()), text(&published::HandshakeAddresses::default()));
    assert_eq!(
        text(&ts_wire::EngineCoreReadyResponse::default()),
        text(&published::EngineCoreReadyResponse::default())
    );
    assert_eq!(
        text(&ts_wire::TokenizedGenerateReqInput::new("r", Default::default())),
        text(&published::TokenizedGenerateReqInput::new("r", Default::default()))
    );
}

#[test]
fn names() {
    assert_eq!(ts_wire::ENGINE_CORE_DEAD, published::ENGINE_CORE_DEAD);
    assert_eq!(ts_wire::msgpack::INLINE_THRESHOLD, published::msgpack::INLINE_THRESHOLD);
    assert_eq!(ts_wire::tensor::RAW_VIEW_EXT, published::tensor::RAW_VIEW_EXT);
    assert_eq!(ts_wire::handshake::STATUS_HELLO, published::handshake::STATUS_HELLO);
    assert_eq!(ts_wire::handshake::STATUS_READY, published::handshake::STATUS_READY);
    for index in [0, 1, 255, 256, 65_535] {
        assert_eq!(ts_wire::engine_identity(index), published::engine_identity(index));
    }
    for seed in 0..300 {
        let ours = ts_wire::ControlRequest::sample(&mut Seed(seed));
        let theirs: published::ControlRequest = published::decode_frames(&ts_wire::encode_frames(&ours)).unwrap();
        assert_eq!(ours.tag(), theirs.tag());
        assert_eq!(ours.reply_tag(), theirs.reply_tag());
        assert!(ts_wire::ControlRequest::knows(ours.tag()));
        assert!(ts_wire::ControlOutput::knows(ours.reply_tag()));
        assert!(!ts_wire::ControlOutput::knows(ours.tag()));
    }
}
