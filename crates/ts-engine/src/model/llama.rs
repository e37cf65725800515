//! A Llama-like model on the CPU: the forward pass over a batch of sequences at different positions.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use super::attention::{KvStore, Place, Rotary};
use super::cpu::{Cpu, dot, exp};
use super::gguf::{Gguf, Sizes};
use super::matrix::{Activations, Matrix};
use super::{Made, Model, ModelError, ModelSpec, StepOutput, Vocabulary, Work, vocabulary};

/// Sequences that run at once.
const MAX_RUNNING: usize = 32;
/// Tokens of a KV page.
const PAGE_SIZE: usize = 16;
/// Longest context that is served, and tokens that the KV cache holds in all: one and a half of it.
const MAX_CONTEXT: usize = 8192;
/// Tokens of a step. It bounds how long a prompt holds up the others, and how long an abort or a stop takes: a third of a second on
/// a slow core. Each step reads all weights once, which is little beside the products of so many tokens.
const MAX_BATCHED: usize = 32;

/// A Llama-like model: RMS norm, rotary positions, grouped queries, gated feed-forward.
pub struct Llama {
    spec: ModelSpec,
    sizes: Sizes,
    cpu: Cpu,
    embeddings: Matrix,
    layers: Vec<Layer>,
    norm: Vec<f32>,
    /// `None`: the embeddings serve.
    output: Option<Matrix>,
    rotary: Rotary,
    kv: KvStore,
    vocabulary: Option<Vocabulary>,
}

struct Layer {
    attention_norm: Vec<f32>,
    /// Queries, keys, values, one below the other.
    qkv: Matrix,
    attention_output: Matrix,
    feed_norm: Vec<f32>,
    /// Gate and up, one below the other.
    gate_up: Matrix,
    down: Matrix,
}

impl fmt::Debug for Llama {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Llama").field("spec", &self.spec).finish_non_exhaustive()
    }
}

/// A position to compute.
#[derive(Debug, Clone, Copy)]
struct Row<'a> {
    token: i32,
    position: usize,
    pages: &'a [u32],
}

impl Llama {
    /// Loads a model from a GGUF file, to be computed by `threads` threads.
    ///
    /// # Errors
    /// The file is not there, or no GGUF file, or not of a model that this code can compute.
    pub fn load(file: &Path, threads: usize) -> Result<Llama, ModelError> {
        let mut gguf = Gguf::open(file)?;
        let sizes = gguf.sizes()?;
        let cpu = Cpu::new(threads).map_err(|error| ModelError(format!("cannot start threads: {error}")))?;
        let embeddings = gguf.matrix(&["token_embd.weight".into()], sizes.width, 0)?;
        let layers = (0..sizes.layers).map(|index| layer(&mut gguf, &sizes, index)).collect::<Result<_, _>>()?;
        let norm = gguf.vector("output_norm.weight", sizes.width)?;
        let output = match gguf.has("output.weight") {
            true => Some(gguf.matrix(&["output.weight".into()], sizes.width, embeddings.rows())?),
            false => None,
        };
        let factors = match gguf.has("rope_freqs.weight") {
            true => Some(gguf.vector("rope_freqs.weight", sizes.heads.size / 2)?),
            false => None,
        };
        let spec = spec(&sizes, file, embeddings.rows());
        let rotary = Rotary::new(sizes.heads.size, spec.max_model_len, sizes.rope_base, factors.as_deref());
        let kv = KvStore::new(sizes.heads, sizes.layers, spec.kv_pages, spec.page_size);
        let vocabulary = vocabulary::read(&gguf);
        Ok(Llama { spec, sizes, cpu, embeddings, layers, norm, output, rotary, kv, vocabulary })
    }

    /// Changes the name it is registered under.
    pub fn set_name(&mut self, name: &str) {
        name.clone_into(&mut self.spec.name);
    }

    /// The hidden states of `rows` after the last layer.
    fn forward(&mut self, rows: &[Row<'_>]) -> Vec<f32> {
        let Sizes { width, hidden, heads, epsilon, .. } = self.sizes;
        let (cpu, kv) = (&self.cpu, &mut self.kv);
        let mut states = Vec::with_capacity(rows.len() * width);
        for row in rows {
            states.extend(self.embeddings.row(usize::try_from(row.token).unwrap_or(0)));
        }
        let mut inputs = Activations::default();
        let (mut normed, mut wide, mut narrow, mut attended) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        attended.resize(rows.len() * heads.query_width(), 0.0);
        for (index, layer) in self.layers.iter().enumerate() {
            normalise(cpu, &states, &layer.attention_norm, epsilon, &mut normed);
            inputs.quantise(cpu, width, &normed);
            layer.qkv.product(cpu, &inputs, &mut wide);
            let (queries, keys) = (heads.query_width(), heads.key_width());
            for (row, qkv) in rows.iter().zip(wide.chunks_exact_mut(queries + 2 * keys)) {
                self.rotary.turn(row.position, &mut qkv[..queries + keys]);
                kv.write(row.pages, row.position, index, (&qkv[queries..queries + keys], &qkv[queries + keys..]));
            }
            let (store, wide_now) = (&*kv, &wide);
            cpu.each_part(&mut attended, queries, |at, out| {
                let row = rows[at];
                let place = Place { layer: index, pages: row.pages, position: row.position };
                let start = at * (queries + 2 * keys);
                store.attend(cpu, place, &wide_now[start..start + queries], out);
            });
            inputs.quantise(cpu, queries, &attended);
            layer.attention_output.product(cpu, &inputs, &mut narrow);
            add(cpu, &mut states, &narrow);

            normalise(cpu, &states, &layer.feed_norm, epsilon, &mut normed);
            inputs.quantise(cpu, width, &normed);
            layer.gate_up.product(cpu, &inputs, &mut wide);
            gate(cpu, &wide, hidden, &mut narrow);
            inputs.quantise(cpu, hidden, &narrow);
            layer.down.product(cpu, &inputs, &mut normed);
            add(cpu, &mut states, &normed);
        }
        states
    }

    /// Logits of those states.
    fn logits(&self, states: &[f32], out: &mut Vec<f32>) {
        let mut normed = Vec::new();
        normalise(&self.cpu, states, &self.norm, self.sizes.epsilon, &mut normed);
        let mut inputs = Activations::default();
        inputs.quantise(&self.cpu, self.sizes.width, &normed);
        self.output.as_ref().unwrap_or(&self.embeddings).product(&self.cpu, &inputs, out);
    }
}

fn spec(sizes: &Sizes, file: &Path, vocab: usize) -> ModelSpec {
    let stem = file.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let max_model_len = sizes.context.min(MAX_CONTEXT);
    ModelSpec {
        name: stem.or_else(|| sizes.name.clone()).unwrap_or_else(|| "model".into()),
        vocab,
        max_model_len,
        eos: sizes.eos.clone(),
        dtype: "float32",
        max_running: MAX_RUNNING,
        kv_pages: (max_model_len + max_model_len / 2).div_ceil(PAGE_SIZE),
        page_size: PAGE_SIZE,
        max_batched_tokens: MAX_BATCHED,
    }
}

fn layer(gguf: &mut Gguf, sizes: &Sizes, index: usize) -> Result<Layer, ModelError> {
    let name = |part: &str| format!("blk.{index}.{part}.weight");
    let Sizes { width, hidden, heads, .. } = *sizes;
    let (queries, keys) = (heads.query_width(), heads.key_width());
    Ok(Layer {
        attention_norm: gguf.vector(&name("attn_norm"), width)?,
        qkv: gguf.matrix(&[name("attn_q"), name("attn_k"), name("attn_v")], width, queries + 2 * keys)?,
        attention_output: gguf.matrix(&[name("attn_output")], queries, width)?,
        feed_norm: gguf.vector(&name("ffn_norm"), width)?,
        gate_up: gguf.matrix(&[name("ffn_gate"), name("ffn_up")], width, 2 * hidden)?,
        down: gguf.matrix(&[name("ffn_down")], hidden, width)?,
    })
}

/// RMS norm of each row.
fn normalise(cpu: &Cpu, states: &[f32], weights: &[f32], epsilon: f32, out: &mut Vec<f32>) {
    out.clear();
    out.resize(states.len(), 0.0);
    cpu.run(|| {
        for (row, out) in states.chunks_exact(weights.len()).zip(out.chunks_exact_mut(weights.len())) {
            let scale = 1.0 / (dot(row, row) / row.len() as f32 + epsilon).sqrt();
            for ((out, value), weight) in out.iter_mut().zip(row).zip(weights) {
                *out = value * scale * weight;
            }
        }
    });
}

fn add(cpu: &Cpu, states: &mut [f32], more: &[f32]) {
    cpu.run(|| states.iter_mut().zip(more).for_each(|(state, more)| *state += more));
}

/// silu(gate) * up, for rows that have both halves.
fn gate(cpu: &Cpu, gate_up: &[f32], hidden: usize, out: &mut Vec<f32>) {
    out.clear();
    out.resize(gate_up.len() / 2, 0.0);
    cpu.run(|| {
        for (row, out) in gate_up.chunks_exact(2 * hidden).zip(out.chunks_exact_mut(hidden)) {
            let (gate, up) = row.split_at(hidden);
            for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
                *out = gate / (1.0 + exp(-gate)) * up;
            }
        }
    });
}

impl Model for Llama {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn vocabulary(&self) -> Option<&Vocabulary> {
        self.vocabulary.as_ref()
    }

    fn step(&mut self, work: &[Work<'_>], out: &mut StepOutput) -> Result<Duration, ModelError> {
        out.clear();
        let mut rows = Vec::new();
        // Which rows' states have to be turned into logits.
        let mut wanted = Vec::new();
        let mut count = 0;
        for work in work {
            for position in work.compute.clone() {
                let Some(token) = work.tokens.get(position).copied() else {
                    return Err(ModelError(format!("no token at position {position}")));
                };
                if position >= work.logits_from {
                    wanted.push(rows.len());
                }
                rows.push(Row { token, position, pages: work.pages });
            }
            let logits = work.compute.end.saturating_sub(work.logits_from.max(work.compute.start));
            out.made.push(Made::Logits(count..count + logits));
            count += logits;
        }
        let states = self.forward(&rows);
        let width = self.sizes.width;
        let wanted_states: Vec<f32> =
            wanted.into_iter().flat_map(|row| states[row * width..(row + 1) * width].iter().copied()).collect();
        if !wanted_states.is_empty() {
            self.logits(&wanted_states, &mut out.logits);
        }
        Ok(Duration::ZERO)
    }
}
