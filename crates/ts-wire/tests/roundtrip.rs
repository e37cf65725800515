//! What was encoded decodes to the same value, whatever way it travelled.

#![expect(clippy::unwrap_used, reason = "tests")]

mod sample;

use bytes::Bytes;
use proptest::prelude::*;
use sample::{Sample, Seed};
use ts_wire::msgpack::{Decoder, Encoder};
use ts_wire::*;

/// As text, in which a NaN equals itself.
fn text(value: &impl std::fmt::Debug) -> String {
    format!("{value:?}")
}

proptest! {
    /// Tensors inline or out of band: receivers take either form at any size.
    #[test]
    fn tensors_at_any_threshold(seed: u64, threshold in prop::sample::select(vec![0, 1, 256, usize::MAX])) {
        let request = TokenizedGenerateReqInput::sample(&mut Seed(seed));
        let mut encoder = Encoder::with_inline_threshold(threshold);
        request.encode(&mut encoder);
        let mut frames = encoder.into_frames();
        prop_assert!(threshold != usize::MAX || frames.len() == 1);
        // Frames that nothing refers to are ignored.
        frames.push(Bytes::from_static(b"surplus"));
        prop_assert_eq!(text(&request), text(&decode_frames::<TokenizedGenerateReqInput>(&frames).unwrap()));
        if threshold == usize::MAX {
            prop_assert_eq!(text(&request), text(&decode_bytes::<TokenizedGenerateReqInput>(&frames[0]).unwrap()));
        }
    }

    /// Token ids by the bulk path are the bytes of one integer each.
    #[test]
    fn token_ids_one_by_one(seed: u64) {
        let seed = &mut Seed(seed);
        let ids: Vec<i32> = (0..seed.below(300)).map(|_| Sample::sample(seed)).collect();
        let mut one_by_one = Encoder::new();
        one_by_one.array_len(ids.len());
        ids.iter().for_each(|id| one_by_one.int(i64::from(*id)));
        let bytes = one_by_one.into_single_frame();
        let mut bulk = Encoder::new();
        bulk.token_ids(&ids);
        prop_assert_eq!(&bytes, &bulk.into_single_frame());
        let mut decoder = Decoder::over(&bytes);
        let mut read = Vec::new();
        decoder.token_ids(&mut read).unwrap();
        decoder.finish().unwrap();
        prop_assert_eq!(ids, read);
    }

    /// Token ids of any width, mixed.
    #[test]
    fn token_ids_of_any_width(ids in prop::collection::vec((any::<i32>(), 0usize..4), 0..70)) {
        let mut bytes = vec![0xdc, 0, ids.len() as u8];
        let mut expected = Vec::new();
        for (id, width) in ids {
            let (marker, kept) = [(0xd0, 1), (0xd1, 2), (0xd2, 4), (0xd3, 8)][width];
            // As many low bytes as the width keeps, sign-extended again.
            let shift = 64 - 8 * kept;
            let value = (i64::from(id) << shift) >> shift;
            bytes.push(if value >= 0 { marker - 4 } else { marker });
            bytes.extend_from_slice(&value.to_be_bytes()[8 - kept..]);
            expected.push(value as i32);
        }
        prop_assert_eq!(decode_bytes::<Vec<i32>>(&bytes).unwrap(), expected);
    }

    #[test]
    fn a_value_is_skipped_to_its_end(seed: u64) {
        let frames = encode_frames(&Value::sample(&mut Seed(seed)));
        let mut decoder = Decoder::new(&frames);
        decoder.skip().unwrap();
        decoder.finish().unwrap();
    }
}

/// All borders of the integer formats, both ways.
#[test]
fn integers_at_the_borders() {
    let mut ids = vec![0, i32::MAX, i32::MIN];
    for bits in 0..31 {
        for step in -1..=1 {
            ids.push((1 << bits) + step);
            ids.push(-(1 << bits) + step);
        }
    }
    let frames = encode_frames(&ids);
    assert_eq!(decode_frames::<Vec<i32>>(&frames).unwrap(), ids);
    let wide: Vec<i64> = ids.iter().map(|id| i64::from(*id)).collect();
    assert_eq!(encode_frames(&wide), frames);
    assert_eq!(decode_frames::<Vec<i64>>(&frames).unwrap(), wide);
    for outside in [i64::from(i32::MAX) + 1, i64::from(i32::MIN) - 1] {
        let error = decode_frames::<Vec<i32>>(&encode_frames(&vec![1, outside])).unwrap_err();
        assert!(matches!(error, Error::IntRange { value, target: "i32" } if value == i128::from(outside)), "{error}");
    }
}
