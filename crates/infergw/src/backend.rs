//! Step 7: run a question on one backend, writing its answer into the flight.

use std::sync::Arc;

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
            // Boxed: its future is many times that of a relay, and every flight's task would be as large.
            Backend::Engine(backend) => Box::pin(backend.run(question, writer)).await,
        }
    }

    /// Which kind it is.
    pub fn kind(&self) -> BackendKind {
        match self {
            Backend::Http(_) => BackendKind::Http,
            Backend::Engine(_) => BackendKind::Engine,
        }
    }

    /// The part of it that serves.
    pub fn part(&self) -> f64 {
        match self {
            Backend::Http(_) => 1.0,
            Backend::Engine(backend) => backend.part(),
        }
    }

    /// Its address, for operators.
    pub fn url(&self) -> String {
        match self {
            Backend::Http(backend) => backend.url(),
            Backend::Engine(backend) => backend.handshake_address().to_owned(),
        }
    }

    /// Whether questions for `model` can go here, ready or not.
    pub fn serves(&self, model: &str) -> bool {
        self.fitness(model) != Fitness::OtherModel
    }

    /// The name of `model` as this backend lists it; `None` where only the client has named it (O1).
    pub fn label(&self, model: &str) -> Option<Arc<str>> {
        match self {
            Backend::Http(backend) => backend.label(model),
            Backend::Engine(backend) => {
                backend.status().models.into_iter().find(|served| served == model).map(Arc::from)
            }
        }
    }

    /// How it stands to a request for `model`.
    pub fn fitness(&self, model: &str) -> Fitness {
        match self {
            Backend::Http(backend) => backend.fitness(model),
            Backend::Engine(backend) => {
                let status = backend.status();
                match (status.models.iter().any(|served| served == model), status.ready) {
                    (false, _) => Fitness::OtherModel,
                    (true, true) => Fitness::Ready,
                    (true, false) => Fitness::Down,
                }
            }
        }
    }

    /// A snapshot of what this backend can do now.
    pub fn status(&self) -> BackendStatus {
        match self {
            Backend::Http(backend) => backend.status(),
            Backend::Engine(backend) => backend.status(),
        }
    }
}

/// How a backend stands to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fitness {
    /// It can take it.
    Ready,
    /// It can be tried where nothing else is left: failing costs no time.
    LastResort,
    /// It serves the model, but not now.
    Down,
    /// It does not serve the model.
    OtherModel,
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
