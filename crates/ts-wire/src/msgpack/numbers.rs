//! Arrays of numbers, without a call and a capacity check per element.
//!
//! A prompt is one array of up to hundreds of thousands of token ids, an output
//! batch is thousands of short ones. Ids of a real vocabulary mix the three
//! byte, the two byte and the five byte format unpredictably, so the encoder
//! computes the format instead of branching on it.

use super::Decoder;
use crate::error::Result;

/// Ids encoded per round; the scratch they go to lives on the stack.
const ROUND: usize = 64;
/// Longest format of an `i32`: marker and four bytes.
const LONGEST: usize = 5;

/// Append the elements of an integer array, each in its smallest format.
pub(crate) fn append_ints(out: &mut Vec<u8>, values: &[i32]) {
    // Each element is stored as one eight byte word of which only the first
    // `len` bytes count; the next element overwrites the rest.
    let mut scratch = [0u8; ROUND * LONGEST + 8];
    for round in values.chunks(ROUND) {
        let mut end = 0;
        for &value in round {
            let (word, len) = smallest_format(value);
            if let Some(slot) = scratch.get_mut(end..end + 8) {
                slot.copy_from_slice(&word.to_be_bytes());
            }
            end += len;
        }
        out.extend_from_slice(scratch.get(..end).unwrap_or_default());
    }
}

/// The msgpack form of `value`, left-aligned in a big-endian word, and its
/// length in bytes.
#[inline]
fn smallest_format(value: i32) -> (u64, usize) {
    /// Markers by length: fixint has none, then uint8, uint16, -, uint32.
    const UNSIGNED: [u64; 6] = [0, 0, 0xcc, 0xcd, 0, 0xce];
    /// The same of the signed formats.
    const SIGNED: [u64; 6] = [0, 0, 0xd0, 0xd1, 0, 0xd2];
    let (markers, len, payload) = if value >= 0 {
        let bits = value as u32;
        let len = 1 + usize::from(bits > 0x7f) + usize::from(bits > 0xff) + 2 * usize::from(bits > 0xffff);
        (&UNSIGNED, len, bits)
    } else {
        let len = 1
            + usize::from(value < -32)
            + usize::from(value < i32::from(i8::MIN))
            + 2 * usize::from(value < i32::from(i16::MIN));
        // Sign bits above the payload would run into the marker.
        let payload = value as u32 & (u32::MAX >> (32 - 8 * (len - 1).max(1)));
        (&SIGNED, len, payload)
    };
    let marker = markers[len] << 56;
    (marker | u64::from(payload) << (64 - 8 * len), len)
}

/// Append the elements of a float array, each as float64.
pub(crate) fn append_floats(out: &mut Vec<u8>, values: &[f64]) {
    out.reserve(values.len() * 9);
    for value in values {
        let mut bytes = [0xcb; 9];
        bytes[1..].copy_from_slice(&value.to_bits().to_be_bytes());
        out.extend_from_slice(&bytes);
    }
}

/// Read `count` integers that fit an `i32`, in any format, and hand each to
/// `each`.
#[inline]
pub(crate) fn read_ints(decoder: &mut Decoder<'_>, count: usize, mut each: impl FnMut(i32)) -> Result<()> {
    let mut left = count;
    while left > 0 {
        let (read, used) = read_unsigned(decoder.rest(), left, &mut each);
        decoder.advance(used);
        left -= read;
        // What stopped the loop: the last bytes of the message, a signed or a
        // wide format, or no integer at all.
        if left > 0 {
            each(decoder.i32()?);
            left -= 1;
        }
    }
    Ok(())
}

/// Length of a value by its first byte, for fixint, uint8, uint16 and uint32;
/// 0 for everything else.
const UNSIGNED_LEN: [u8; 256] = {
    let mut lens = [0; 256];
    let mut byte = 0;
    while byte < 0x80 {
        lens[byte] = 1;
        byte += 1;
    }
    lens[0xcc] = 2;
    lens[0xcd] = 3;
    lens[0xce] = 5;
    lens
};

/// The bits of a word that hold the value, by length.
const UNSIGNED_MASK: [u64; 8] = [0, 0x7f, 0xff, 0xffff, 0, 0xffff_ffff, 0, 0];

/// Read at most `limit` ids of the common formats; say how many, and how many
/// bytes they took. Like the encoder it computes the format instead of
/// branching on it.
#[inline]
fn read_unsigned(bytes: &[u8], limit: usize, each: &mut impl FnMut(i32)) -> (usize, usize) {
    let mut rest = bytes;
    let mut read = 0;
    while read < limit {
        let Some(word) = rest.first_chunk::<8>() else {
            break;
        };
        let len = usize::from(UNSIGNED_LEN[usize::from(word[0])]);
        if len == 0 {
            break;
        }
        let value = (u64::from_be_bytes(*word) >> (64 - 8 * len)) & UNSIGNED_MASK[len & 7];
        let Ok(id) = i32::try_from(value) else {
            break;
        };
        each(id);
        rest = rest.get(len..).unwrap_or_default();
        read += 1;
    }
    (read, bytes.len() - rest.len())
}

/// Read `count` floats (or integers standing for floats) and hand each to
/// `each`.
#[inline]
pub(crate) fn read_floats(decoder: &mut Decoder<'_>, count: usize, mut each: impl FnMut(f64)) -> Result<()> {
    for _ in 0..count {
        each(decoder.float()?);
    }
    Ok(())
}
