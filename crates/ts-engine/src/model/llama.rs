//! A Llama-like model on the CPU.

use std::path::Path;
use std::time::Duration;

use super::{Model, ModelError, ModelSpec, StepOutput, Work};

/// A Llama-like model on the CPU.
#[derive(Debug)]
pub struct Llama {
    spec: ModelSpec,
}

impl Llama {
    /// Loads it from a GGUF file.
    ///
    /// # Errors
    /// Always: this build cannot do it yet.
    pub fn load(_file: &Path, _threads: usize) -> Result<Llama, ModelError> {
        Err(ModelError("this build has no real model yet; use a simulated one".into()))
    }

    /// Changes the name it is registered under.
    pub fn set_name(&mut self, name: &str) {
        name.clone_into(&mut self.spec.name);
    }
}

impl Model for Llama {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn step(&mut self, _work: &[Work<'_>], _out: &mut StepOutput) -> Result<Duration, ModelError> {
        Err(ModelError("not built".into()))
    }
}
