//! What each backend does. The label is its name from the configuration, or by its place; never its address.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::types::Cause;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    backend: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    backend: Arc<str>,
    outcome: &'static str,
}

/// The metrics of all backends. Clones count together.
#[derive(Debug, Clone, Default)]
pub struct Backends {
    in_flight: Family<Labels, Gauge>,
    breaker: Family<Labels, Gauge>,
    requests: Family<OutcomeLabels, Counter>,
    /// How many backends of a name there are: one that drains may have a successor. With the last one its series go (M3).
    bearers: Arc<Mutex<HashMap<Arc<str>, usize>>>,
    /// Attempts on another backend after one that failed.
    pub retries: Counter,
    /// Failures that another backend might have mended, but the budget was used up.
    pub retries_refused: Counter,
    /// Questions that another model answered, or tried to.
    pub fallbacks: Counter,
}

impl Backends {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register("backend_in_flight", "Requests that run on a backend", self.in_flight.clone());
        registry.register(
            "backend_breaker",
            "Whether a backend gets requests: 0 it does, 1 one on trial, 2 none for a while",
            self.breaker.clone(),
        );
        registry.register("backend_requests", "Requests that a backend has ended, by how", self.requests.clone());
        registry.register("retries", "Attempts on another backend after a failure", self.retries.clone());
        registry.register(
            "retries_refused",
            "Failures that were not tried elsewhere because the budget was used up",
            self.retries_refused.clone(),
        );
        registry.register("model_fallbacks", "Attempts with another model than asked for", self.fallbacks.clone());
    }

    /// The metrics of one backend, found once. They are there until this is dropped.
    pub fn of(&self, backend: &Arc<str>) -> BackendMetrics {
        *self.bearers.lock().unwrap_or_else(PoisonError::into_inner).entry(Arc::clone(backend)).or_default() += 1;
        let labels = Labels { backend: Arc::clone(backend) };
        let outcome =
            |outcome| self.requests.get_or_create(&OutcomeLabels { backend: Arc::clone(backend), outcome }).clone();
        BackendMetrics {
            in_flight: self.in_flight.get_or_create(&labels).clone(),
            breaker: self.breaker.get_or_create(&labels).clone(),
            ok: outcome("ok"),
            abandoned: outcome("abandoned"),
            failed: CAUSES.map(|(_, name)| outcome(name)),
            all: self.clone(),
            name: Arc::clone(backend),
        }
    }

    fn forget(&self, backend: &Arc<str>) {
        let mut bearers = self.bearers.lock().unwrap_or_else(PoisonError::into_inner);
        let left = bearers.get_mut(backend).map_or(0, |count| {
            *count = count.saturating_sub(1);
            *count
        });
        if left == 0 {
            bearers.remove(backend);
            let labels = Labels { backend: Arc::clone(backend) };
            self.in_flight.remove(&labels);
            self.breaker.remove(&labels);
            for outcome in CAUSES.iter().map(|(_, name)| *name).chain(["ok", "abandoned"]) {
                self.requests.remove(&OutcomeLabels { backend: Arc::clone(backend), outcome });
            }
        }
    }
}

/// The causes of failures, in their order, with their names.
const CAUSES: [(Cause, &str); 7] = [
    (Cause::Refused, "refused"),
    (Cause::Busy, "busy"),
    (Cause::Unreachable, "unreachable"),
    (Cause::Backend, "backend"),
    (Cause::Truncated, "truncated"),
    (Cause::Timeout, "timeout"),
    (Cause::Cut, "cut"),
];

/// The metrics of one backend.
#[derive(Debug)]
pub struct BackendMetrics {
    /// Requests that run on it.
    pub in_flight: Gauge,
    /// Its breaker: 0 closed, 1 on trial, 2 open.
    pub breaker: Gauge,
    /// Requests that it answered.
    pub ok: Counter,
    /// Requests whose clients went away first.
    pub abandoned: Counter,
    failed: [Counter; CAUSES.len()],
    all: Backends,
    name: Arc<str>,
}

impl Drop for BackendMetrics {
    fn drop(&mut self) {
        self.all.forget(&self.name);
    }
}

impl BackendMetrics {
    /// The requests that failed for this reason.
    pub fn failed(&self, cause: Cause) {
        if let Some(at) = CAUSES.iter().position(|(known, _)| *known == cause)
            && let Some(counter) = self.failed.get(at)
        {
            counter.inc();
        }
    }
}
