//! The relay to an OpenAI-compatible HTTP server: the body goes up as it came, the answer comes down as it came (A2).

use crate::backend::BackendStatus;
use crate::coalesce::flight::FlightWriter;
use crate::types::{Failure, Question};

/// One HTTP upstream.
#[derive(Debug)]
pub struct HttpBackend {}

impl HttpBackend {
    /// Relay `question`.
    ///
    /// # Errors
    /// See [`crate::backend::Backend::run`].
    pub async fn run(&self, _question: &Question, _writer: &mut FlightWriter) -> Result<(), Failure> {
        Ok(())
    }

    /// A snapshot of this upstream.
    pub fn status(&self) -> BackendStatus {
        BackendStatus { ready: true, reason: String::new(), models: Vec::new(), in_flight: 0 }
    }
}
