//! Every metric of the gateway: its name, its help and its labels. Labels never come from client input (O1, M3).

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::{Admissions, Backends, Engines, InterToken, Outcome, Reloads, Resuming, Sharing, Tokenizing};
use crate::types::{BackendKind, Cause, Role};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    endpoint: &'static str,
    model: String,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndpointLabels {
    endpoint: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RoleLabels {
    role: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CauseLabels {
    cause: &'static str,
}

/// The gateway's metrics. Each gateway has its own, so that tests can run several in one process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Requests that are being answered.
    pub in_flight: Gauge,
    /// Seconds from a request's arrival to the first content that goes to its client.
    pub time_to_first_token: Histogram,
    /// Seconds between two tokens of a stream, as they come from its backend.
    pub inter_token: InterToken,
    /// What sharing is worth.
    pub sharing: Sharing,
    /// What coming back to streams does.
    pub resuming: Resuming,
    /// How often tokens were known already.
    pub tokenizing: Tokenizing,
    /// What each backend does.
    pub backends: Backends,
    /// The life of engine groups.
    pub engines: Engines,
    /// Who is admitted.
    pub admissions: Admissions,
    /// Changes of the configuration.
    pub reloads: Reloads,
    flights: Gauge,
    log_bytes: Gauge,
    requests: Family<RequestLabels, Counter>,
    duration: Family<EndpointLabels, Histogram, fn() -> Histogram>,
    joined: Family<RoleLabels, Counter>,
    failures: Family<CauseLabels, Counter>,
    upstream_requests: Counter,
    engine_requests: Counter,
    scrape: Mutex<()>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// All metrics at zero.
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("infergw");
        let metrics = Self {
            in_flight: Gauge::default(),
            time_to_first_token: seconds(),
            inter_token: InterToken::default(),
            sharing: Sharing::default(),
            resuming: Resuming::default(),
            tokenizing: Tokenizing::default(),
            backends: Backends::default(),
            engines: Engines::default(),
            admissions: Admissions::default(),
            reloads: Reloads::default(),
            flights: Gauge::default(),
            log_bytes: Gauge::default(),
            requests: Family::default(),
            duration: Family::new_with_constructor(seconds),
            joined: Family::default(),
            failures: Family::default(),
            upstream_requests: Counter::default(),
            engine_requests: Counter::default(),
            scrape: Mutex::default(),
            registry: Registry::default(),
        };
        registry.register("requests", "Requests by how they ended for their client", metrics.requests.clone());
        registry.register("in_flight", "Requests that are being answered", metrics.in_flight.clone());
        registry.register(
            "time_to_first_token_seconds",
            "From a request's arrival to the first content that goes to its client",
            metrics.time_to_first_token.clone(),
        );
        registry.register(
            "inter_token_latency_seconds",
            "Between two tokens of a stream, as they come from its backend",
            metrics.inter_token.clone(),
        );
        registry.register("request_duration_seconds", "From arrival to completion", metrics.duration.clone());
        registry.register("coalesce_requests", "Requests by their role in a flight", metrics.joined.clone());
        metrics.sharing.register(&mut registry);
        metrics.resuming.register(&mut registry);
        metrics.tokenizing.register(&mut registry);
        metrics.backends.register(&mut registry);
        metrics.engines.register(&mut registry);
        metrics.admissions.register(&mut registry);
        metrics.reloads.register(&mut registry);
        registry.register("flights", "Flights in the register", metrics.flights.clone());
        registry.register("flight_log_bytes", "Bytes that all flight logs hold", metrics.log_bytes.clone());
        registry.register("flight_failures", "Flights that failed, by cause", metrics.failures.clone());
        let upstream = metrics.upstream_requests.clone();
        registry.register("upstream_requests", "Requests sent to HTTP upstreams, retries included", upstream);
        let engine = metrics.engine_requests.clone();
        registry.register("engine_requests", "Requests given to engine groups, retries included", engine);
        Self { registry, ..metrics }
    }

    /// A request ended.
    pub fn completed(&self, endpoint: &'static str, model: Option<&str>, outcome: Outcome, took: Duration) {
        let model = model.unwrap_or("none").to_owned();
        self.requests.get_or_create(&RequestLabels { endpoint, model, outcome: outcome.as_str() }).inc();
        self.duration.get_or_create(&EndpointLabels { endpoint }).observe(took.as_secs_f64());
    }

    /// A request met a flight.
    pub fn joined(&self, role: Role) {
        self.joined.get_or_create(&RoleLabels { role: role.as_str() }).inc();
    }

    /// A flight failed.
    pub fn failure(&self, cause: Cause) {
        let cause = match cause {
            Cause::Refused => "refused",
            Cause::Busy => "busy",
            Cause::Unreachable => "unreachable",
            Cause::Backend => "backend",
            Cause::Truncated => "truncated",
            Cause::Timeout => "timeout",
            Cause::Cut => "cut",
        };
        self.failures.get_or_create(&CauseLabels { cause }).inc();
    }

    /// A backend is about to run a request.
    pub fn backend_request(&self, kind: BackendKind) {
        match kind {
            BackendKind::Http => self.upstream_requests.inc(),
            BackendKind::Engine => self.engine_requests.inc(),
        };
    }

    /// The text form, with the figures that are read off at this moment.
    pub fn encode(&self, flights: usize, log_bytes: usize) -> String {
        let _one_at_a_time = self.scrape.lock().unwrap_or_else(PoisonError::into_inner);
        self.flights.set(flights as i64);
        self.log_bytes.set(log_bytes as i64);
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = text::encode(&mut out, &self.registry);
        out
    }
}

/// One millisecond to about two minutes.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 18))
}
