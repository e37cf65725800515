//! The engine path: the gateway is the frontend and owns the text.
//!
//! In order: a body becomes a [`request`], its messages a [`prompt`], the prompt tokens ([`tokenize`]); the engine's
//! tokens become text ([`detokenize`]), cut at [`stop`] strings in a [`choice`], told as [`events`]. [`model`] holds what
//! all of it needs to know about a model.

use crate::backend::{BackendStatus, StartError};
use crate::coalesce::flight::FlightWriter;
use crate::config::{EngineGroup, Text, Timeouts};
use crate::types::{Failure, Question};

pub mod choice;
pub mod detokenize;
pub mod events;
pub mod gguf;
pub mod model;
pub mod prompt;
pub mod request;
pub mod stop;
pub mod tokenize;

#[cfg(test)]
mod sample_models;

/// One TokenSpeed engine group.
#[derive(Debug)]
pub struct EngineBackend {}

impl EngineBackend {
    /// Bind the group's handshake address and load its tokenizer. Returns at once: the engines may come later, see
    /// [`EngineBackend::status`].
    ///
    /// # Errors
    /// A tokenizer that cannot be loaded, or an address that cannot be bound.
    pub async fn start(_group: &EngineGroup, _text: &Text, _timeouts: &Timeouts) -> Result<Self, StartError> {
        Ok(Self {})
    }

    /// A snapshot of this group.
    pub fn status(&self) -> BackendStatus {
        BackendStatus { ready: false, reason: "waiting for the engines".into(), models: Vec::new(), in_flight: 0 }
    }

    /// Answer `question` on this group.
    ///
    /// # Errors
    /// See [`crate::backend::Backend::run`].
    pub async fn run(&self, _question: &Question, _writer: &mut FlightWriter) -> Result<(), Failure> {
        Ok(())
    }
}
