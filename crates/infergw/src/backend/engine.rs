//! The engine path: the gateway is the frontend and owns the text. In order: prompt, tokenize, submit, detokenize, stop, events.

use crate::coalesce::flight::FlightWriter;
use crate::types::{Failure, Question};

/// One TokenSpeed engine group.
#[derive(Debug)]
pub struct EngineBackend {}

impl EngineBackend {
    /// Answer `question` on this group.
    ///
    /// # Errors
    /// See [`crate::backend::Backend::run`].
    pub async fn run(&self, _question: &Question, _writer: &mut FlightWriter) -> Result<(), Failure> {
        Ok(())
    }
}
