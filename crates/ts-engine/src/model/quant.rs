//! The number formats of GGUF tensors, turned into plain numbers.

/// A number format: how many values make a block, and its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Format {
    kind: u32,
    values: usize,
    bytes: usize,
}

/// Formats by their number in the file: values and bytes of a block.
const FORMATS: [(u32, usize, usize); 11] = [
    (0, 1, 4),      // F32
    (1, 1, 2),      // F16
    (2, 32, 18),    // Q4_0
    (3, 32, 20),    // Q4_1
    (6, 32, 22),    // Q5_0
    (7, 32, 24),    // Q5_1
    (8, 32, 34),    // Q8_0
    (12, 256, 144), // Q4_K
    (13, 256, 176), // Q5_K
    (14, 256, 210), // Q6_K
    (30, 1, 2),     // BF16
];

impl Format {
    /// The format with this number, if it is known.
    pub(super) fn of(kind: u32) -> Option<Format> {
        let known = FORMATS.iter().find(|(number, ..)| *number == kind);
        known.map(|(kind, values, bytes)| Format { kind: *kind, values: *values, bytes: *bytes })
    }

    /// Bytes of `values` values, if they are whole blocks.
    pub(super) fn size(self, values: usize) -> Option<usize> {
        values.is_multiple_of(self.values).then_some(())?;
        (values / self.values).checked_mul(self.bytes)
    }

    /// The values of whole blocks.
    pub(super) fn read(self, bytes: &[u8]) -> Vec<f32> {
        let mut values = Vec::with_capacity(bytes.len() / self.bytes * self.values);
        for block in bytes.chunks_exact(self.bytes) {
            match self.kind {
                0 => values.push(f32::from_bits(word(block))),
                1 => values.push(half(block, 0)),
                2 => nibbles(block, 2, |low| half(block, 0) * (f32::from(low) - 8.0), &mut values),
                3 => nibbles(block, 4, |q| half(block, 0) * f32::from(q) + half(block, 2), &mut values),
                6 => five_bits(block, 2, |q| half(block, 0) * (f32::from(q) - 16.0), &mut values),
                7 => five_bits(block, 4, |q| half(block, 0) * f32::from(q) + half(block, 2), &mut values),
                8 => values.extend(block.iter().skip(2).map(|q| f32::from(*q as i8) * half(block, 0))),
                12 => k_blocks(block, None, &mut values),
                13 => k_blocks(block, Some(&block[16..48]), &mut values),
                14 => six_bits(block, &mut values),
                _ => values.push(f32::from_bits(u32::from(u16::from_le_bytes([block[0], block[1]])) << 16)),
            }
        }
        values
    }
}

fn word(bytes: &[u8]) -> u32 {
    bytes.iter().take(4).rev().fold(0, |word, byte| (word << 8) | u32::from(*byte))
}

/// The half-precision number at `at`.
fn half(bytes: &[u8], at: usize) -> f32 {
    let bits = bytes.get(at..at + 2).map_or(0, |pair| u16::from_le_bytes([pair[0], pair[1]]));
    let sign = u32::from(bits >> 15) << 31;
    let (exponent, fraction) = (u32::from(bits >> 10) & 31, u32::from(bits) & 1023);
    let magnitude = match exponent {
        0 => return f32::from_bits(sign | (fraction as f32 / 16_777_216.0).to_bits()),
        31 => 0x7f80_0000 | (fraction << 13),
        _ => ((exponent + 112) << 23) | (fraction << 13),
    };
    f32::from_bits(sign | magnitude)
}

/// 32 values of four bits: the low halves of 16 bytes, then the high ones.
fn nibbles(block: &[u8], at: usize, value: impl Fn(u8) -> f32, values: &mut Vec<f32>) {
    values.extend(block[at..at + 16].iter().map(|byte| value(byte & 15)));
    values.extend(block[at..at + 16].iter().map(|byte| value(byte >> 4)));
}

/// 32 values of five bits: their highest bits in a word, then the others as above.
fn five_bits(block: &[u8], at: usize, value: impl Fn(u8) -> f32, values: &mut Vec<f32>) {
    let high = word(&block[at..]);
    let bit = |index: usize| ((high >> index & 1) << 4) as u8;
    let low = &block[at + 4..at + 20];
    values.extend(low.iter().enumerate().map(|(index, byte)| value(byte & 15 | bit(index))));
    values.extend(low.iter().enumerate().map(|(index, byte)| value(byte >> 4 | bit(index + 16))));
}

/// 256 values of four bits in eight groups with a scale and a minimum each; a fifth bit comes from `high`.
fn k_blocks(block: &[u8], high: Option<&[u8]>, values: &mut Vec<f32>) {
    let (scale, minimum) = (half(block, 0), half(block, 2));
    let packed = &block[4..16];
    // Six bits each, packed so that the first four groups lie plain.
    let group = |index: usize| match index {
        0..4 => (packed[index] & 63, packed[index + 4] & 63),
        _ => (packed[index + 4] & 15 | packed[index - 4] >> 6 << 4, packed[index + 4] >> 4 | packed[index] >> 6 << 4),
    };
    let low = &block[if high.is_some() { 48 } else { 16 }..];
    for index in 0..8 {
        let (group_scale, group_minimum) = group(index);
        let (scale, minimum) = (scale * f32::from(group_scale), minimum * f32::from(group_minimum));
        for lane in 0..32 {
            let byte = low[index / 2 * 32 + lane];
            let four = if index % 2 == 0 { byte & 15 } else { byte >> 4 };
            let fifth = high.map_or(0, |high| (high[lane] >> index & 1) << 4);
            values.push(scale * f32::from(four | fifth) - minimum);
        }
    }
}

/// 256 values of six bits in sixteen groups with a scale each.
fn six_bits(block: &[u8], values: &mut Vec<f32>) {
    let (low, high, scales, scale) = (&block[..128], &block[128..192], &block[192..208], half(block, 208));
    for part in 0..2 {
        for quarter in 0..4 {
            for lane in 0..32 {
                let byte = low[part * 64 + quarter % 2 * 32 + lane];
                let four = if quarter < 2 { byte & 15 } else { byte >> 4 };
                let two = high[part * 32 + lane] >> (2 * quarter) & 3;
                let group = scales[part * 8 + quarter * 2 + lane / 16] as i8;
                values.push(scale * f32::from(group) * (f32::from(four | two << 4) - 32.0));
            }
        }
    }
}

#[cfg(test)]
#[expect(clippy::panic, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len() / 2).map_while(|at| u8::from_str_radix(hex.get(2 * at..2 * at + 2)?, 16).ok()).collect()
    }

    #[test]
    fn every_format_reads_as_the_reference_reads_it() {
        let mut seen = 0;
        for line in include_str!("quant/golden.txt").lines().filter(|line| !line.starts_with('#')) {
            let [kind, block, values] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
            let format = kind.parse().ok().and_then(Format::of);
            let block = bytes(block);
            let expected: Vec<f32> = bytes(values).chunks_exact(4).map(|four| f32::from_bits(word(four))).collect();
            let read = format.map(|format| (format.size(expected.len()), format.read(&block)));
            let Some((size, read)) = read else { panic!("format {kind} is unknown") };
            assert_eq!(size, Some(block.len()), "format {kind}");
            for (index, (read, expected)) in read.iter().zip(&expected).enumerate() {
                assert!(
                    (read - expected).abs() <= 1e-6 * expected.abs().max(1.0),
                    "format {kind}, value {index}: {read} {expected}"
                );
            }
            assert_eq!(read.len(), expected.len());
            seen += 1;
        }
        assert_eq!(seen, FORMATS.len());
    }

    #[test]
    fn halves_read_to_their_ends() {
        let read = |bits: u16| half(&bits.to_le_bytes(), 0);
        assert_eq!([read(0), read(0x3c00), read(0xc000), read(0x7bff)], [0.0, 1.0, -2.0, 65504.0]);
        assert_eq!([read(0x0001), read(0x03ff), read(0x0400)], [5.960_464_5e-8, 6.097_555e-5, 6.103_515_6e-5]);
        assert!(read(0x7c00).is_infinite() && read(0x7e00).is_nan());
    }
}
