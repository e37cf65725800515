//! Matrices of 8-bit weights and their product with activations.
//!
//! Both sides are cut into blocks of 32 values with one scale each, as GGUF's Q8_0 has it for the weights. A product is the
//! sum over its blocks in a fixed order, whatever else is computed with it: the result for one row of activations does not
//! depend on how many rows there are. The scheduler's promises (batched equals single, cached equals computed) rest on
//! this.

use super::cpu::{Cpu, Inputs, TILE, Weights};

/// Values that share a scale.
pub(super) const BLOCK: usize = 32;
/// A block of weights, in the halves that a vector register takes.
pub(super) type WeightBlock = [[i8; BLOCK / 2]; 2];
/// A block of activations, likewise.
pub(super) type InputBlock = [[i16; BLOCK / 2]; 2];

/// Weights have eight bits. Activations have sixteen: the vector units multiply both as such, and with eight the demo
/// model, whose activations have large outliers, takes Paris for a suburb. Sums of a few products fit 32 bits.
const WEIGHT_MAX: f32 = 127.0;
const INPUT_MAX: f32 = 32_767.0;

/// A matrix of 8-bit weights, one row for each output.
#[derive(Debug, Default)]
pub(super) struct Matrix {
    /// Values of a row.
    cols: usize,
    blocks: Vec<WeightBlock>,
    scales: Vec<f32>,
}

/// Rows of activations in sixteen bits. As many as make whole tiles lie interleaved, block by block; the rest are single.
#[derive(Debug, Default)]
pub(super) struct Activations {
    cols: usize,
    rows: usize,
    tiles: Vec<[InputBlock; TILE]>,
    tile_scales: Vec<[f32; TILE]>,
    singles: Vec<[InputBlock; 1]>,
    single_scales: Vec<[f32; 1]>,
}

impl Matrix {
    /// Appends rows of `cols` values, which must be a multiple of [`BLOCK`] and the same in every call.
    pub(super) fn append(&mut self, cols: usize, values: &[f32]) {
        self.cols = cols;
        self.blocks.reserve_exact(values.len() / BLOCK);
        self.scales.reserve_exact(values.len() / BLOCK);
        for values in values.as_chunks::<BLOCK>().0 {
            let (block, scale) = quantised(values, WEIGHT_MAX);
            self.blocks.push(block.map(|half| half.map(|value| value as i8)));
            self.scales.push(scale);
        }
    }

    /// Number of outputs.
    pub(super) fn rows(&self) -> usize {
        (self.blocks.len() * BLOCK).checked_div(self.cols).unwrap_or(0)
    }

    /// The values of a row.
    pub(super) fn row(&self, row: usize) -> impl Iterator<Item = f32> {
        let blocks = self.cols / BLOCK;
        let range = row * blocks..(row + 1) * blocks;
        let quants = self.blocks.get(range.clone()).unwrap_or_default();
        let scales = self.scales.get(range).unwrap_or_default();
        let block = |(block, scale): (&WeightBlock, &f32)| {
            let (block, scale) = (*block, *scale);
            block.into_iter().flatten().map(move |value| f32::from(value) * scale)
        };
        quants.iter().zip(scales).flat_map(block)
    }

    /// The product with each row of activations: `out` gets as many rows of [`Matrix::rows`] values.
    pub(super) fn product(&self, cpu: &Cpu, inputs: &Activations, out: &mut Vec<f32>) {
        let (outputs, blocks) = (self.rows(), self.cols / BLOCK);
        out.clear();
        out.resize(outputs * inputs.rows, 0.0);
        if self.cols != inputs.cols || outputs == 0 {
            return;
        }
        let weights = Weights { blocks: &self.blocks, scales: &self.scales, row: blocks };
        let tiles = inputs.rows / TILE;
        let (tiled, single) = out.split_at_mut(tiles * TILE * outputs);
        // Tiles are shared out whole. For a row alone the outputs are.
        let share = tiles.div_ceil(cpu.threads());
        cpu.each_part(tiled, share * TILE * outputs, |part, out| {
            let range = part * share * blocks..(part * share + out.len() / (TILE * outputs)) * blocks;
            let inputs = Inputs { blocks: &inputs.tiles[range.clone()], scales: &inputs.tile_scales[range] };
            cpu.products(weights, inputs, out);
        });
        let share = outputs.div_ceil(cpu.threads());
        for (row, out) in single.chunks_exact_mut(outputs).enumerate() {
            let range = row * blocks..(row + 1) * blocks;
            let inputs = Inputs { blocks: &inputs.singles[range.clone()], scales: &inputs.single_scales[range] };
            cpu.each_part(out, share, |part, out| {
                let range = part * share * blocks..(part * share + out.len()) * blocks;
                let part = Weights { blocks: &self.blocks[range.clone()], scales: &self.scales[range], row: blocks };
                cpu.products(part, inputs, out);
            });
        }
    }
}

impl Activations {
    /// Takes rows of `cols` values, a multiple of [`BLOCK`].
    pub(super) fn quantise(&mut self, cpu: &Cpu, cols: usize, values: &[f32]) {
        self.cols = cols;
        self.rows = values.len() / cols.max(1);
        let blocks = cols / BLOCK;
        let tiled = self.rows / TILE * TILE;
        self.tiles.resize(tiled / TILE * blocks, [[[0; BLOCK / 2]; 2]; TILE]);
        self.tile_scales.resize(tiled / TILE * blocks, [0.0; TILE]);
        self.singles.clear();
        self.single_scales.clear();
        cpu.run(|| {
            for (row, values) in values.chunks_exact(cols).enumerate() {
                for (at, values) in values.as_chunks::<BLOCK>().0.iter().enumerate() {
                    let (block, scale) = quantised(values, INPUT_MAX);
                    if row < tiled {
                        let index = row / TILE * blocks + at;
                        self.tiles[index][row % TILE] = block;
                        self.tile_scales[index][row % TILE] = scale;
                    } else {
                        self.singles.push([block]);
                        self.single_scales.push([scale]);
                    }
                }
            }
        });
    }
}

/// A block in whole numbers up to `most`, and their scale.
#[inline(always)]
fn quantised(values: &[f32; BLOCK], most: f32) -> (InputBlock, f32) {
    let mut largest = [0f32; 8];
    for part in values.as_chunks::<8>().0 {
        for (largest, value) in largest.iter_mut().zip(part) {
            *largest = if value.abs() > *largest { value.abs() } else { *largest };
        }
    }
    let largest = largest.iter().fold(0f32, |a, b| if *b > a { *b } else { a });
    let scale = largest / most;
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    let mut block = [[0; BLOCK / 2]; 2];
    for (half, values) in block.iter_mut().zip(values.as_chunks::<{ BLOCK / 2 }>().0) {
        for (whole, value) in half.iter_mut().zip(values) {
            // With 1.5 * 2^23 added, the lowest bits of a float are the nearest whole number: this vectorises everywhere.
            *whole = (value * inverse + 12_582_912.0).to_bits() as i16;
        }
    }
    (block, scale)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn numbers(count: usize, seed: u64) -> Vec<f32> {
        (0..count as u64).map(|index| crate::sample::uniform(seed, index) as f32 * 4.0 - 2.0).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Rows have the same bits alone, in company, and on several threads; and they are about right.
        #[test]
        fn products_do_not_depend_on_company(rows in 1usize..11, outputs in 1usize..9, blocks in 1usize..5, seed: u64, plain: bool) {
            let cols = blocks * BLOCK;
            let (weights, values) = (numbers(outputs * cols, seed), numbers(rows * cols, !seed));
            let mut matrix = Matrix::default();
            matrix.append(cols, &weights);
            prop_assert_eq!(matrix.rows(), outputs);
            let product = |threads: usize, values: &[f32]| {
                let Ok(cpu) = Cpu::new(threads).map(|cpu| if plain { cpu.plain() } else { cpu }) else { return Vec::new() };
                let (mut inputs, mut out) = (Activations::default(), Vec::new());
                inputs.quantise(&cpu, cols, values);
                matrix.product(&cpu, &inputs, &mut out);
                out
            };
            let together = product(1, &values);
            prop_assert_eq!(&product(2, &values), &together);
            for (row, values) in values.chunks_exact(cols).enumerate() {
                prop_assert_eq!(&product(1, values)[..], &together[row * outputs..(row + 1) * outputs]);
                for output in 0..outputs {
                    let exact: f32 = matrix.row(output).zip(values).map(|(a, b)| a * b).sum();
                    prop_assert!((together[row * outputs + output] - exact).abs() < 0.01);
                    let raw = &weights[output * cols..(output + 1) * cols];
                    let unrounded: f32 = raw.iter().zip(values).map(|(a, b)| a * b).sum();
                    prop_assert!((exact - unrounded).abs() < 0.02 * cols as f32);
                }
            }
        }
    }

    #[test]
    fn rounding_is_to_the_nearest_and_keeps_the_ends() {
        let mut values = [0.0; BLOCK];
        (values[0], values[1], values[2], values[3]) = (1.0, -1.0, 0.5, 1.0 / 127.0);
        let (block, scale) = quantised(&values, WEIGHT_MAX);
        assert_eq!((block[0][..5].to_vec(), scale), (vec![127, -127, 64, 1, 0], 1.0 / 127.0));
        assert_eq!(quantised(&[0.0; BLOCK], WEIGHT_MAX), ([[0; BLOCK / 2]; 2], 0.0));
    }
}
