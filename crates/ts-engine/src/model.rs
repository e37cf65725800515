//! What computes: from the tokens of a batch of sequences to logits, or at once to tokens.

#[cfg(feature = "model")]
mod attention;
#[cfg(feature = "model")]
mod cpu;
#[cfg(feature = "model")]
mod gguf;
#[cfg(feature = "model")]
mod llama;
#[cfg(feature = "model")]
mod matrix;
#[cfg(feature = "model")]
mod quant;
#[cfg(feature = "model")]
mod vocabulary;

#[cfg(feature = "model")]
pub use llama::Llama;

use std::ops::Range;
use std::time::Duration;

/// What the scheduler and the frontend have to know about a model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSpec {
    /// The name it is registered under.
    pub name: String,
    /// Token ids are below this.
    pub vocab: usize,
    /// Longest sequence in tokens, prompt and output together.
    pub max_model_len: usize,
    /// Ids that end a generation.
    pub eos: Vec<i32>,
    /// What it is computed in, as the wire names it.
    pub dtype: &'static str,
    /// Sequences that run at once.
    pub max_running: usize,
    /// KV pages in all.
    pub kv_pages: usize,
    /// Tokens of a KV page.
    pub page_size: usize,
    /// Tokens computed in one step: each running sequence's next one, the rest for prompts. This bounds how long a
    /// prompt holds up the tokens of the others.
    pub max_batched_tokens: usize,
}

/// What a model's tokens stand for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vocabulary {
    /// The bytes of each token, by id. Empty for those that are no text: end marks, turns, unused ids.
    pub tokens: Vec<Vec<u8>>,
}

/// The part of a sequence that one step computes.
#[derive(Debug)]
pub struct Work<'a> {
    /// Counts the sequences of this engine, in the order of their arrival.
    pub arrival: u64,
    /// The sequence so far: the prompt, then what was generated.
    pub tokens: &'a [i32],
    /// Length of the prompt.
    pub prompt: usize,
    /// Positions to compute. What comes before them lies in the pages.
    pub compute: Range<usize>,
    /// The KV pages of the positions up to `compute.end`, in order.
    pub pages: &'a [u32],
    /// First position to return logits of; `compute.end` for none.
    pub logits_from: usize,
    /// Seed of the request.
    pub seed: u64,
}

impl Work<'_> {
    /// Whether the step ends with the sequence's last token, so that the next one follows from it.
    pub fn yields(&self) -> bool {
        self.compute.end == self.tokens.len()
    }

    /// Whether this is a step of the generation, not of the prompt.
    pub fn decodes(&self) -> bool {
        self.compute.start >= self.prompt
    }
}

/// What one step made of one [`Work`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Made {
    /// Rows of logits, one for each position from `logits_from` to `compute.end`.
    Logits(Range<usize>),
    /// The next tokens, already chosen.
    Tokens(Range<usize>),
}

/// What one step made of a batch. Reused from step to step.
#[derive(Debug, Default)]
pub struct StepOutput {
    /// One entry per [`Work`], with ranges of rows in `logits`, or ranges in `tokens`.
    pub made: Vec<Made>,
    /// Rows of `vocab` values.
    pub logits: Vec<f32>,
    /// Chosen tokens.
    pub tokens: Vec<i32>,
}

impl StepOutput {
    /// Forget the last step, keep the memory.
    pub fn clear(&mut self) {
        self.made.clear();
        self.logits.clear();
        self.tokens.clear();
    }
}

/// A step that could not be computed.
#[derive(Debug, thiserror::Error)]
#[error("the model failed: {0}")]
pub struct ModelError(pub String);

/// Computes steps. It owns the memory of the KV pages; which page belongs to whom is the scheduler's.
pub trait Model: Send {
    /// What it is.
    fn spec(&self) -> &ModelSpec;

    /// What its tokens stand for, when it knows. Grammars are compiled against this, and bind only models that give
    /// logits; others have none.
    fn vocabulary(&self) -> Option<&Vocabulary> {
        None
    }

    /// Compute one step of every sequence in `work` into `out`. The returned time is how much longer the step takes
    /// than its computation did: zero for a model that really computes.
    ///
    /// # Errors
    /// The step could not be computed; its sequences cannot go on.
    fn step(&mut self, work: &[Work<'_>], out: &mut StepOutput) -> Result<Duration, ModelError>;
}
