//! The arithmetic that depends on the processor: what it can do is found out at run time, and how many threads it may use
//! is said once.

#[cfg(target_arch = "x86_64")]
use pulp::x86::V3;
use rayon::prelude::*;

use super::matrix::{InputBlock, WeightBlock};

/// Rows of activations that are multiplied at once: each block of weights is then loaded and widened once for all of them.
pub(super) const TILE: usize = 4;

/// Rows of weights.
#[derive(Debug, Clone, Copy)]
pub(super) struct Weights<'a> {
    pub(super) blocks: &'a [WeightBlock],
    pub(super) scales: &'a [f32],
    /// Blocks of a row.
    pub(super) row: usize,
}

/// Groups of `N` rows of activations, interleaved block by block.
#[derive(Debug, Clone, Copy)]
pub(super) struct Inputs<'a, const N: usize> {
    pub(super) blocks: &'a [[InputBlock; N]],
    pub(super) scales: &'a [[f32; N]],
}

/// A processor and a number of threads.
#[derive(Debug)]
pub(super) struct Cpu {
    /// AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    v3: Option<V3>,
    /// None for one thread: that is the caller's.
    pool: Option<rayon::ThreadPool>,
}

impl Cpu {
    /// This processor with `threads` threads.
    pub(super) fn new(threads: usize) -> Result<Cpu, rayon::ThreadPoolBuildError> {
        let pool = match threads {
            0 | 1 => None,
            _ => Some(rayon::ThreadPoolBuilder::new().num_threads(threads).build()?),
        };
        Ok(Cpu {
            #[cfg(target_arch = "x86_64")]
            v3: V3::try_new(),
            pool,
        })
    }

    /// The same with plain loops only, as on a processor that is not known.
    #[cfg(test)]
    pub(super) fn plain(mut self) -> Cpu {
        #[cfg(target_arch = "x86_64")]
        {
            self.v3 = None;
        }
        self
    }

    pub(super) fn threads(&self) -> usize {
        self.pool.as_ref().map_or(1, rayon::ThreadPool::current_num_threads)
    }

    /// Runs `work` on each part of `share` values, on all threads.
    pub(super) fn each_part(&self, values: &mut [f32], share: usize, work: impl Fn(usize, &mut [f32]) + Sync) {
        let share = share.max(1);
        match &self.pool {
            None => values.chunks_mut(share).enumerate().for_each(|(part, values)| work(part, values)),
            Some(pool) => {
                pool.install(|| values.par_chunks_mut(share).enumerate().for_each(|(part, values)| work(part, values)))
            }
        }
    }

    /// Runs plain loops with all that the processor has. Only what is inlined into `work` gains by it.
    #[inline(always)]
    pub(super) fn run<R>(&self, work: impl FnOnce() -> R) -> R {
        #[cfg(target_arch = "x86_64")]
        if let Some(v3) = self.v3 {
            return v3.vectorize(work);
        }
        work()
    }

    /// The products of rows of weights with rows of inputs: `out` has a row for each row of inputs.
    pub(super) fn products<const N: usize>(&self, weights: Weights<'_>, inputs: Inputs<'_, N>, out: &mut [f32]) {
        #[cfg(target_arch = "x86_64")]
        if let Some(v3) = self.v3 {
            return v3.vectorize(|| products(&v3, weights, inputs, out));
        }
        products(&Portable, weights, inputs, out);
    }
}

/// Multiplies one row of weights with `N` rows of inputs. Each result has the same bits for every `N`.
trait Dot {
    fn dot<const N: usize>(&self, weights: Weights<'_>, inputs: Inputs<'_, N>) -> [f32; N];
}

#[inline(always)]
fn products<D: Dot, const N: usize>(kernel: &D, weights: Weights<'_>, inputs: Inputs<'_, N>, out: &mut [f32]) {
    let row = weights.row;
    let outputs = weights.blocks.len() / row;
    for (output, (blocks, scales)) in weights.blocks.chunks_exact(row).zip(weights.scales.chunks_exact(row)).enumerate()
    {
        let weights = Weights { blocks, scales, row };
        let groups = inputs.blocks.chunks_exact(row).zip(inputs.scales.chunks_exact(row));
        for (group, (blocks, scales)) in groups.enumerate() {
            let values = kernel.dot(weights, Inputs { blocks, scales });
            for (offset, value) in values.into_iter().enumerate() {
                out[(group * N + offset) * outputs + output] = value;
            }
        }
    }
}

/// Lanes in which a product is summed up, and their final sum in a fixed order.
const LANES: usize = 8;

#[inline(always)]
fn total(lanes: [f32; LANES]) -> f32 {
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

#[cfg(target_arch = "x86_64")]
impl Dot for V3 {
    #[inline(always)]
    fn dot<const N: usize>(&self, weights: Weights<'_>, inputs: Inputs<'_, N>) -> [f32; N] {
        let V3 { avx, avx2, fma, .. } = *self;
        let mut sums = [avx._mm256_setzero_ps(); N];
        let weights = weights.blocks.iter().zip(weights.scales);
        for ((block, scale), (inputs, scales)) in weights.zip(inputs.blocks.iter().zip(inputs.scales)) {
            let low = avx2._mm256_cvtepi8_epi16(pulp::cast(block[0]));
            let high = avx2._mm256_cvtepi8_epi16(pulp::cast(block[1]));
            for index in 0..N {
                let product = avx2._mm256_add_epi32(
                    avx2._mm256_madd_epi16(low, pulp::cast(inputs[index][0])),
                    avx2._mm256_madd_epi16(high, pulp::cast(inputs[index][1])),
                );
                let scale = avx._mm256_set1_ps(scale * scales[index]);
                sums[index] = fma._mm256_fmadd_ps(scale, avx._mm256_cvtepi32_ps(product), sums[index]);
            }
        }
        let mut totals = [0.0; N];
        for index in 0..N {
            totals[index] = total(pulp::cast(sums[index]));
        }
        totals
    }
}

/// Loops that every compiler can vectorise.
struct Portable;

impl Dot for Portable {
    #[inline(always)]
    fn dot<const N: usize>(&self, weights: Weights<'_>, inputs: Inputs<'_, N>) -> [f32; N] {
        let mut sums = [[0f32; LANES]; N];
        let weights = weights.blocks.iter().zip(weights.scales);
        for ((block, scale), (inputs, scales)) in weights.zip(inputs.blocks.iter().zip(inputs.scales)) {
            for index in 0..N {
                let mut products = [0i32; LANES];
                for (weights, inputs) in block.iter().zip(&inputs[index]) {
                    for (lane, product) in products.iter_mut().enumerate() {
                        *product += i32::from(weights[2 * lane]) * i32::from(inputs[2 * lane])
                            + i32::from(weights[2 * lane + 1]) * i32::from(inputs[2 * lane + 1]);
                    }
                }
                for (sum, product) in sums[index].iter_mut().zip(products) {
                    *sum += scale * scales[index] * product as f32;
                }
            }
        }
        let mut totals = [0.0; N];
        for index in 0..N {
            totals[index] = total(sums[index]);
        }
        totals
    }
}

/// The dot product of two rows of equal length, in lanes with a fixed order of sums.
#[inline(always)]
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0f32; LANES];
    for (a, b) in a.as_chunks::<LANES>().0.iter().zip(b.as_chunks::<LANES>().0) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    total(sums)
}

/// e to the power of `x`, to about seven digits, in operations that vectorise; 0 below -87, and clamped above 87.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    // x = n ln 2 + r with |r| <= ln 2 / 2; adding and taking away 1.5 * 2^23 rounds.
    const ROUND: f32 = 12_582_912.0;
    let clamped = x.clamp(-87.0, 87.0);
    let n = (clamped * std::f32::consts::LOG2_E + ROUND) - ROUND;
    let r = (clamped - n * 0.693_359_4) + n * 2.121_944_4e-4;
    let series = 1.0 + r * (1.0 + r * (0.5 + r * (1.0 / 6.0 + r * (1.0 / 24.0 + r * (1.0 / 120.0 + r / 720.0)))));
    let power = f32::from_bits(((n as i32 + 127) << 23) as u32);
    if x < -87.0 { 0.0 } else { series * power }
}
