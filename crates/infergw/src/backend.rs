//! Step 6: run a question on one backend, writing its answer into the flight.

use crate::coalesce::flight::FlightWriter;
use crate::types::{BackendKind, Failure, Question};

pub mod engine;
pub mod http;

/// One place that can answer questions.
#[derive(Debug)]
pub enum Backend {
    /// An OpenAI-compatible HTTP server: the answer is relayed.
    Http(Box<http::HttpBackend>),
    /// A TokenSpeed engine group: the gateway does the text work.
    Engine(Box<engine::EngineBackend>),
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

    /// Which kind it is.
    pub fn kind(&self) -> BackendKind {
        match self {
            Backend::Http(_) => BackendKind::Http,
            Backend::Engine(_) => BackendKind::Engine,
        }
    }

    /// Whether questions for `model` can go here, ready or not.
    pub fn serves(&self, model: &str) -> bool {
        let any = matches!(self, Backend::Http(backend) if backend.takes_any_model());
        any || self.status().models.iter().any(|name| name == model)
    }

    /// A snapshot of what this backend can do now.
    pub fn status(&self) -> BackendStatus {
        match self {
            Backend::Http(backend) => backend.status(),
            Backend::Engine(backend) => backend.status(),
        }
    }
}

/// A snapshot of one backend, for the pool's choice, `/readyz` and `/v1/models`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendStatus {
    /// Whether it can serve a request now.
    pub ready: bool,
    /// Why not, as one clause for `/readyz` and the log ("waiting for engine 0 of tcp://127.0.0.1:30500"); empty when ready.
    pub reason: String,
    /// The models it serves, by the names clients use. May be known before it is ready.
    pub models: Vec<String>,
    /// Requests that run on it for this gateway.
    pub in_flight: usize,
}

/// A backend that cannot be started: a fault of the configuration or of the files it names.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StartError(pub String);
