//! What is known of an upstream: the models it serves, and whether it is well.
//!
//! Requests that fail tell at once; a probe in the background tells when it is well again, and which models it lists.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, HOST};
use http::{HeaderValue, Request, StatusCode};
use http_body_util::Full;
use serde::Deserialize;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::{Inner, collect};
use crate::types::{Cause, Failure};

/// Between two probes of an upstream that is well.
const WELL: Duration = Duration::from_secs(5);

/// Between two probes of one that is not.
const ILL: Duration = Duration::from_millis(500);

/// For the answer to a probe.
const PROBE: Duration = Duration::from_secs(3);

/// Most models and bytes of a listing that are read.
const MAX_MODELS: usize = 1024;
const MAX_LISTING: usize = 4 << 20;

/// How well an upstream is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Health {
    /// Nothing has been heard yet. It gets requests, but does not make the gateway ready.
    Unknown,
    /// It answers.
    Ready,
    /// Connections are refused. It is tried where no other backend is left, for that costs no time.
    Unreachable,
    /// It is silent. It gets no requests: each would have to wait.
    Sick,
}

/// What is known of an upstream.
#[derive(Debug)]
pub(super) struct Known {
    state: RwLock<State>,
}

#[derive(Debug)]
struct State {
    health: Health,
    /// The configuration names the models: its own list is not asked for.
    fixed: bool,
    /// Sorted. Empty: takes any model.
    models: Arc<[Arc<str>]>,
}

impl Known {
    /// Nothing but the models that the configuration names.
    pub(super) fn new(models: Vec<String>) -> Self {
        let state = State { health: Health::Unknown, fixed: !models.is_empty(), models: sorted(models) };
        Self { state: RwLock::new(state) }
    }

    /// The configuration names other models now. Where it names none any more, those that it named before are served until the
    /// upstream's own list is there.
    pub(super) fn fix(&self, models: Vec<String>) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        state.fixed = !models.is_empty();
        if state.fixed {
            state.models = sorted(models);
        }
    }

    fn is_fixed(&self) -> bool {
        self.read().fixed
    }

    pub(super) fn health(&self) -> Health {
        self.read().health
    }

    pub(super) fn models(&self) -> Vec<String> {
        self.read().models.iter().map(|model| model.to_string()).collect()
    }

    pub(super) fn serves(&self, model: &str) -> bool {
        self.read().models.is_empty() || self.label(model).is_some()
    }

    pub(super) fn label(&self, model: &str) -> Option<Arc<str>> {
        let state = self.read();
        let at = state.models.binary_search_by(|known| (**known).cmp(model)).ok()?;
        state.models.get(at).cloned()
    }

    /// Learn from the end of a request. 4xx is no sickness, nor is back-pressure (R1).
    pub(super) fn note(&self, result: &Result<(), Failure>) {
        let cause = match result {
            Ok(()) => None,
            Err(failure) => Some(failure.cause),
        };
        match cause {
            None | Some(Cause::Refused | Cause::Busy) => self.well(),
            Some(Cause::Unreachable) => self.set(Health::Unreachable),
            // Whether it fails too often is for the pool's breaker to say.
            Some(Cause::Backend | Cause::Truncated | Cause::Timeout | Cause::Cut) => {}
        }
    }

    fn well(&self) {
        self.set(Health::Ready);
    }

    fn set(&self, health: Health) {
        if self.health() != health {
            self.state.write().unwrap_or_else(PoisonError::into_inner).health = health;
        }
    }

    fn learned(&self, models: Vec<String>) {
        let models = sorted(models);
        if self.read().models != models {
            let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
            // The configuration may have named them while the list was on its way.
            if !state.fixed {
                state.models = models;
            }
        }
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }
}

fn sorted(mut models: Vec<String>) -> Arc<[Arc<str>]> {
    models.sort();
    models.dedup();
    models.into_iter().map(Arc::from).collect()
}

/// The probe in the background; dropping it ends it.
#[derive(Debug)]
pub(super) struct Learner(JoinHandle<()>);

impl Drop for Learner {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Probe `upstream` from now on.
pub(super) fn start(upstream: Arc<Inner>) -> Learner {
    Learner(tokio::spawn(async move {
        loop {
            upstream.connections.sweep();
            let before = upstream.known.health();
            match timeout(PROBE, probe(&upstream)).await {
                Ok(Ok(models)) => {
                    if let Some(models) = models {
                        upstream.known.learned(models);
                    }
                    upstream.known.well();
                }
                Ok(Err(())) => upstream.known.set(Health::Unreachable),
                Err(_) => upstream.known.set(Health::Sick),
            }
            let now = upstream.known.health();
            if now != before {
                tracing::info!(upstream = %upstream.authority, health = ?now, "the upstream's health changed");
            }
            sleep(if now == Health::Ready { WELL } else { ILL }).await;
        }
    }))
}

/// Ask for the models. Any answer means that the upstream lives; `None` that it lists no models.
async fn probe(upstream: &Inner) -> Result<Option<Vec<String>>, ()> {
    let request = || {
        let mut request = Request::new(Full::new(Bytes::new()));
        *request.uri_mut() = upstream.uri("/v1/models");
        let headers = request.headers_mut();
        headers.insert(HOST, upstream.host.clone());
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        if let Some(key) = &upstream.key {
            headers.insert(AUTHORIZATION, key.clone());
        }
        request
    };
    let mut exchange = upstream.connections.send(request).await.map_err(|_| ())?;
    let listed = exchange.head.status == StatusCode::OK && !upstream.known.is_fixed();
    let Ok(body) = collect(&mut exchange, MAX_LISTING).await else { return Ok(None) };
    upstream.connections.recycle(exchange);
    Ok(if listed { models_of(&body) } else { None })
}

pub(super) fn models_of(listing: &[u8]) -> Option<Vec<String>> {
    #[derive(Deserialize)]
    struct Listing {
        data: Vec<Model>,
    }
    #[derive(Deserialize)]
    struct Model {
        id: String,
    }
    let listing: Listing = serde_json::from_slice(listing).ok()?;
    Some(listing.data.into_iter().map(|model| model.id).take(MAX_MODELS).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::error::ApiError;

    fn failed(cause: Cause) -> Result<(), Failure> {
        Err(Failure::new(cause, ApiError::internal("x")))
    }

    #[test]
    fn who_answers_lives() {
        let known = Known::new(vec![]);
        known.note(&failed(Cause::Backend));
        assert_eq!(known.health(), Health::Unknown);
        for cause in [Cause::Refused, Cause::Busy, Cause::Cut, Cause::Backend, Cause::Truncated] {
            known.note(&failed(cause));
        }
        assert_eq!(known.health(), Health::Ready);
        known.note(&failed(Cause::Unreachable));
        assert_eq!(known.health(), Health::Unreachable);
        known.well();
        assert_eq!(known.health(), Health::Ready);
    }

    #[test]
    fn an_upstream_without_a_list_takes_any_model() {
        assert!(Known::new(vec![]).serves("anything"));
        let known = Known::new(vec!["b".into(), "a".into()]);
        assert!(known.serves("a") && known.serves("b") && !known.serves("c"));
    }

    #[test]
    fn what_the_configuration_names_can_change() {
        let known = Known::new(vec!["a".into()]);
        known.learned(vec!["x".into()]);
        known.fix(vec!["b".into()]);
        assert!(known.serves("b") && !known.serves("a") && !known.serves("x"));
        known.fix(vec![]);
        assert!(known.serves("b") && !known.serves("x"), "not any model while the list is awaited");
        known.learned(vec!["x".into()]);
        assert!(known.serves("x") && !known.serves("b"));
    }

    #[test]
    fn a_listing_is_read_leniently() {
        let listing = br#"{"object":"list","data":[{"id":"a","x":1},{"id":"b"}]}"#;
        assert_eq!(models_of(listing), Some(vec!["a".into(), "b".into()]));
        assert_eq!(models_of(b"not json"), None);
    }
}
