//! Step 6: run a question on one backend, writing its answer into the flight.

use crate::coalesce::flight::FlightWriter;
use crate::types::{Failure, Question};

pub mod engine;
pub mod http;

/// One place that can answer questions.
#[derive(Debug)]
pub enum Backend {
    /// An OpenAI-compatible HTTP server: the answer is relayed.
    Http(http::HttpBackend),
    /// A TokenSpeed engine group: the gateway does the text work.
    Engine(engine::EngineBackend),
}

impl Backend {
    /// Answer `question` into `writer`.
    ///
    /// Dropping the future cancels the work: the upstream connection is closed, the engine gets its abort (D1).
    ///
    /// # Errors
    /// What failed and why. While `writer` is not committed, nothing has gone to a client and the pool may retry (R4).
    pub async fn run(&self, question: &Question, writer: &mut FlightWriter) -> Result<(), Failure> {
        match self {
            Backend::Http(backend) => backend.run(question, writer).await,
            Backend::Engine(backend) => backend.run(question, writer).await,
        }
    }
}
