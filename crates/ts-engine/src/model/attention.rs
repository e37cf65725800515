//! Keys and values in pages, rotary positions, and attention over them.
//!
//! Each position's attention goes over the pages in order and position by position, so that the result depends on nothing
//! but the tokens before it: not on the chunk it was computed in, not on where the pages lie.

use super::cpu::{Cpu, dot, exp};

/// The sizes that attention depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Heads {
    /// Heads of the queries.
    pub(super) queries: usize,
    /// Heads of keys and values; each serves as many query heads.
    pub(super) keys: usize,
    /// Values of a head.
    pub(super) size: usize,
}

impl Heads {
    /// Values of a position's queries.
    pub(super) fn query_width(self) -> usize {
        self.queries * self.size
    }

    /// Values of a position's keys, and of its values.
    pub(super) fn key_width(self) -> usize {
        self.keys * self.size
    }
}

/// The memory of the KV pages. A page is made when it is first written.
#[derive(Debug)]
pub(super) struct KvStore {
    heads: Heads,
    page_size: usize,
    layers: usize,
    pages: Vec<Box<[f32]>>,
}

impl KvStore {
    pub(super) fn new(heads: Heads, layers: usize, pages: usize, page_size: usize) -> Self {
        KvStore { heads, page_size, layers, pages: vec![Box::default(); pages] }
    }

    /// Values that one head has in one page and layer, of keys or of values.
    fn head_block(&self) -> usize {
        self.page_size * self.heads.size
    }

    /// Where a layer's keys of a head begin in a page; its values follow the keys of all heads.
    fn offset(&self, layer: usize, values: bool, head: usize) -> usize {
        ((layer * 2 + usize::from(values)) * self.heads.keys + head) * self.head_block()
    }

    /// Stores the keys and values of one position.
    pub(super) fn write(&mut self, pages: &[u32], position: usize, layer: usize, (keys, values): (&[f32], &[f32])) {
        let whole = self.layers * 2 * self.heads.keys * self.head_block();
        let slot = position % self.page_size * self.heads.size;
        let size = self.heads.size;
        for head in 0..self.heads.keys {
            let starts = [self.offset(layer, false, head) + slot, self.offset(layer, true, head) + slot];
            let Some(page) = pages.get(position / self.page_size).and_then(|page| self.pages.get_mut(*page as usize))
            else {
                return;
            };
            if page.is_empty() {
                *page = vec![0.0; whole].into_boxed_slice();
            }
            for (start, source) in starts.into_iter().zip([keys, values]) {
                page[start..start + size].copy_from_slice(&source[head * size..(head + 1) * size]);
            }
        }
    }

    /// The attention of one position: `out` gets a row of the queries' width.
    pub(super) fn attend(&self, cpu: &Cpu, at: Place<'_>, queries: &[f32], out: &mut [f32]) {
        let group = self.heads.queries / self.heads.keys;
        let scale = 1.0 / (self.heads.size as f32).sqrt();
        let width = group * self.heads.size;
        let mut scores = vec![0f32; group * (at.position + 1)];
        cpu.run(|| {
            for head in 0..self.heads.keys {
                let queries = &queries[head * width..(head + 1) * width];
                let out = &mut out[head * width..(head + 1) * width];
                self.score(at, head, queries, &mut scores);
                for (scores, out) in scores.chunks_exact_mut(at.position + 1).zip(out.chunks_exact_mut(self.heads.size))
                {
                    soften(scores, scale);
                    self.weigh(at, head, scores, out);
                }
            }
        });
    }

    /// The slots of a head in the pages of a sequence, up to a position.
    #[inline(always)]
    fn blocks<'a>(&'a self, at: Place<'a>, values: bool, head: usize) -> impl Iterator<Item = &'a [f32]> {
        let start = self.offset(at.layer, values, head);
        let length = self.head_block();
        let pages = at.pages.iter().take(at.position / self.page_size + 1);
        pages.filter_map(move |page| self.pages.get(*page as usize)?.get(start..start + length))
    }

    /// The products of a head's queries with the keys of every position so far.
    #[inline(always)]
    fn score(&self, at: Place<'_>, head: usize, queries: &[f32], scores: &mut [f32]) {
        let count = at.position + 1;
        for (page, keys) in self.blocks(at, false, head).enumerate() {
            let first = page * self.page_size;
            let slots = self.page_size.min(count - first);
            for (slot, key) in keys.chunks_exact(self.heads.size).take(slots).enumerate() {
                for (index, query) in queries.chunks_exact(self.heads.size).enumerate() {
                    scores[index * count + first + slot] = dot(query, key);
                }
            }
        }
    }

    /// The sum of the values of every position so far, by weight.
    #[inline(always)]
    fn weigh(&self, at: Place<'_>, head: usize, weights: &[f32], out: &mut [f32]) {
        out.fill(0.0);
        for (values, weights) in self.blocks(at, true, head).zip(weights.chunks(self.page_size)) {
            for (value, weight) in values.chunks_exact(self.heads.size).zip(weights) {
                for (out, value) in out.iter_mut().zip(value) {
                    *out += weight * value;
                }
            }
        }
    }
}

/// Where attention is computed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) layer: usize,
    /// The pages of the sequence.
    pub(super) pages: &'a [u32],
    pub(super) position: usize,
}

/// Softmax of scaled scores.
#[inline(always)]
fn soften(scores: &mut [f32], scale: f32) {
    let most = scores.iter().fold(f32::NEG_INFINITY, |most, score| if *score > most { *score } else { most });
    for score in scores.iter_mut() {
        *score = exp((*score - most) * scale);
    }
    let total: f32 = scores.iter().sum();
    let inverse = 1.0 / total;
    for score in scores.iter_mut() {
        *score *= inverse;
    }
}

/// Rotary position tables: how much each pair of a head's values turns.
#[derive(Debug)]
pub(super) struct Rotary {
    /// Cosines and sines, `size / 2` pairs for each position.
    turns: Vec<(f32, f32)>,
    size: usize,
}

impl Rotary {
    /// For heads of `size` values at `positions` positions. `factors` slow single pairs down, if there are any.
    pub(super) fn new(size: usize, positions: usize, base: f32, factors: Option<&[f32]>) -> Self {
        let pairs = size / 2;
        let turn = |index: usize| {
            let (position, pair) = (index / pairs.max(1), index % pairs.max(1));
            let factor = factors.and_then(|factors| factors.get(pair)).copied().unwrap_or(1.0);
            let frequency = f64::from(base).powf(-2.0 * pair as f64 / size as f64) / f64::from(factor);
            let (sin, cos) = (position as f64 * frequency).sin_cos();
            (cos as f32, sin as f32)
        };
        Rotary { turns: (0..positions * pairs).map(turn).collect(), size }
    }

    /// Turns the heads in `row`. GGUF's Llama models have the values of a pair beside each other.
    pub(super) fn turn(&self, position: usize, row: &mut [f32]) {
        let pairs = self.size / 2;
        let Some(turns) = self.turns.get(position * pairs..(position + 1) * pairs) else { return };
        for head in row.chunks_exact_mut(self.size) {
            for ([a, b], (cos, sin)) in head.as_chunks_mut::<2>().0.iter_mut().zip(turns) {
                (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
            }
        }
    }
}
