//! Step 5: which backend serves this model; retry before the first byte (R4).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::api::error::ApiError;
use crate::backend::{Backend, Fitness};
use crate::coalesce::flight::FlightWriter;
use crate::drain::{Drain, Phase};
use crate::observe::Metrics;
use crate::types::{Cause, Failure, Question};

/// Seconds after which a client may ask again when no backend is ready.
const RETRY_AFTER: u64 = 2;

/// All backends.
#[derive(Debug)]
pub struct Pool {
    backends: Vec<Backend>,
    next: AtomicUsize,
    metrics: Arc<Metrics>,
    drain: Arc<Drain>,
}

/// Why the gateway is not ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotReady {
    /// One clause for each backend that cannot serve.
    pub reasons: Vec<String>,
}

impl Pool {
    /// A pool of these backends.
    pub fn new(backends: Vec<Backend>, metrics: Arc<Metrics>, drain: Arc<Drain>) -> Self {
        Self { backends, next: AtomicUsize::new(0), metrics, drain }
    }

    /// The models that clients can ask for, sorted.
    pub fn models(&self) -> BTreeSet<String> {
        self.backends.iter().flat_map(|backend| backend.status().models).collect()
    }

    /// The handshake address of the first engine group, as bound.
    pub fn handshake_address(&self) -> Option<&str> {
        self.backends.iter().find_map(|backend| match backend {
            Backend::Engine(group) => Some(group.handshake_address()),
            Backend::Http(_) => None,
        })
    }

    /// Check that a question's model is served by something, ready or not (R1).
    ///
    /// # Errors
    /// 404 for a model that no backend has.
    pub fn check_model(&self, model: &str) -> Result<(), ApiError> {
        if self.backends.iter().any(|backend| backend.serves(model)) {
            return Ok(());
        }
        Err(ApiError::model_not_found(model))
    }

    /// The model that is meant where a question names none: the only one.
    ///
    /// # Errors
    /// 400 where there are several, 503 where none is known yet.
    pub fn only_model(&self) -> Result<String, ApiError> {
        let mut models = self.models();
        match (models.pop_first(), models.is_empty()) {
            (Some(model), true) => Ok(model),
            (Some(_), false) => {
                Err(ApiError::invalid("Several models are served: the field 'model' is required.", Some("model")))
            }
            (None, _) => Err(ApiError::unavailable("No model is known yet. /readyz says why.", RETRY_AFTER)),
        }
    }

    /// The name of a model that a backend lists; `None` where only the client has named it (O1).
    pub fn label(&self, model: &str) -> Option<Arc<str>> {
        self.backends.iter().find_map(|backend| backend.label(model))
    }

    /// Ready when a backend can serve.
    ///
    /// # Errors
    /// The reasons, where none can.
    pub fn ready(&self) -> Result<(), NotReady> {
        let statuses: Vec<_> = self.backends.iter().map(Backend::status).collect();
        if statuses.iter().any(|status| status.ready) {
            return Ok(());
        }
        Err(NotReady { reasons: statuses.into_iter().map(|status| status.reason).collect() })
    }

    /// Answer `question` into `writer`: on the next ready backend in turn, and where that fails before anything has gone to
    /// a client, on each other one at most once.
    pub async fn answer(&self, question: &Question, mut writer: FlightWriter) {
        writer.errors(question.endpoint.errors());
        let result = tokio::select! {
            result = self.run(question, &mut writer) => result,
            // Over the drain limit: an error event instead of a cut connection (R7).
            () = self.drain.reached(Phase::Cutting) => Err(Failure::new(Cause::Cut, ApiError::draining())),
        };
        if let Err(failure) = &result {
            self.metrics.failure(failure.cause);
        }
        writer.finish(result, question.stream);
    }

    async fn run(&self, question: &Question, writer: &mut FlightWriter) -> Result<(), Failure> {
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let mut failed = None;
        for wanted in [Fitness::Ready, Fitness::LastResort] {
            for backend in self.round_from(first).filter(|backend| backend.fitness(&question.model) == wanted) {
                self.metrics.backend_request(backend.kind());
                match backend.run(question, writer).await {
                    Ok(()) => return Ok(()),
                    Err(failure) if !writer.committed() && may_retry(failure.cause) => failed = Some(failure),
                    Err(failure) => return Err(failure),
                }
            }
            if failed.is_some() {
                break;
            }
        }
        Err(failed.unwrap_or_else(|| self.nobody(&question.model)))
    }

    /// Every backend once, from the one whose turn it is.
    fn round_from(&self, first: usize) -> impl Iterator<Item = &Backend> {
        let (before, after) = self.backends.split_at(first % self.backends.len().max(1));
        after.iter().chain(before)
    }

    fn nobody(&self, model: &str) -> Failure {
        if !self.backends.iter().any(|backend| backend.serves(model)) {
            return Failure::new(Cause::Refused, ApiError::model_not_found(model));
        }
        let reasons = self.backends.iter().map(|backend| backend.status().reason).collect::<Vec<_>>().join("; ");
        tracing::warn!(%reasons, "no backend is ready");
        let message = "No backend for this model is ready. /readyz says why.";
        Failure::new(Cause::Busy, ApiError::unavailable(message, RETRY_AFTER))
    }
}

/// A time-out is never retried, nor what the client asked for wrongly (R1, R4).
fn may_retry(cause: Cause) -> bool {
    match cause {
        Cause::Unreachable | Cause::Busy | Cause::Backend | Cause::Truncated => true,
        Cause::Refused | Cause::Timeout | Cause::Cut => false,
    }
}
