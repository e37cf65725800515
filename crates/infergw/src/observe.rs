//! What the gateway shows of itself: one record, one log line and the metrics for each request.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::types::{Cause, End, Role};

pub mod admission;
pub mod backends;
pub mod engines;
pub mod latency;
pub mod metrics;
pub mod reloads;
pub mod resuming;
pub mod sharing;
pub mod tokenizing;

pub use admission::{Admissions, TenantMetrics};
pub use backends::{BackendMetrics, Backends};
pub use engines::{Engines, RankLoad};
pub use latency::{Gaps, InterToken};
pub use metrics::Metrics;
pub use reloads::Reloads;
pub use resuming::Resuming;
pub use sharing::Sharing;
pub use tokenizing::Tokenizing;

/// How a request ended, for its client (O1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The whole answer was handed over.
    Ok,
    /// The client went away first.
    ClientClosed,
    /// The request was at fault (4xx), or refused for now (429, 503).
    Refused,
    /// The backend failed.
    UpstreamError,
    /// The backend broke off.
    UpstreamTruncated,
    /// A time limit was reached.
    Timeout,
    /// The gateway gave up: this client lagged too far behind, or the drain limit was reached.
    Cut,
}

impl Outcome {
    /// The name in metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::ClientClosed => "client_closed",
            Outcome::Refused => "refused",
            Outcome::UpstreamError => "upstream_error",
            Outcome::UpstreamTruncated => "upstream_truncated",
            Outcome::Timeout => "timeout",
            Outcome::Cut => "cut",
        }
    }
}

impl From<End> for Outcome {
    fn from(end: End) -> Self {
        match end {
            End::Done => Outcome::Ok,
            End::Failed(Cause::Refused | Cause::Busy) => Outcome::Refused,
            End::Failed(Cause::Unreachable | Cause::Backend) => Outcome::UpstreamError,
            End::Failed(Cause::Truncated) => Outcome::UpstreamTruncated,
            End::Failed(Cause::Timeout) => Outcome::Timeout,
            End::Failed(Cause::Cut) => Outcome::Cut,
        }
    }
}

/// One request's record. Dropped without an outcome, the client had gone away: there is always exactly one completion.
#[derive(Debug)]
pub struct Record {
    metrics: Arc<Metrics>,
    began: Instant,
    request_id: Arc<str>,
    endpoint: &'static str,
    /// A configured or learned name, never the client's own text (O1, M3).
    model: Option<Arc<str>>,
    tenant: Option<Arc<str>>,
    role: Option<Role>,
    status: Option<StatusCode>,
    first_content: Option<Instant>,
    bytes: u64,
    outcome: Option<Outcome>,
}

impl Record {
    /// Start the record of a request that has just come.
    pub fn start(metrics: &Arc<Metrics>, endpoint: &'static str, request_id: Arc<str>) -> Self {
        metrics.in_flight.inc();
        Self {
            metrics: Arc::clone(metrics),
            began: Instant::now(),
            request_id,
            endpoint,
            model: None,
            tenant: None,
            role: None,
            status: None,
            first_content: None,
            bytes: 0,
            outcome: None,
        }
    }

    /// The tenant, and the model where a backend lists it.
    pub fn known(&mut self, model: Option<Arc<str>>, tenant: &Arc<str>) {
        self.model = model;
        self.tenant = Some(Arc::clone(tenant));
    }

    /// How the request met a flight.
    pub fn joined(&mut self, role: Role) {
        self.role = Some(role);
        self.metrics.joined(role);
    }

    /// The status that goes out.
    pub fn head(&mut self, status: StatusCode) {
        self.status = Some(status);
    }

    /// Bytes that went to the client, and whether content was among them.
    pub fn sent(&mut self, bytes: usize, content: bool) {
        self.bytes += bytes as u64;
        // Who comes back has had its first token: what it gets first now is no news.
        if content && self.role == Some(Role::Resumed) {
            self.first_content.get_or_insert_with(Instant::now);
        }
        if content && self.first_content.is_none() {
            let now = Instant::now();
            self.first_content = Some(now);
            self.metrics.time_to_first_token.observe((now - self.began).as_secs_f64());
        }
    }

    /// Whether content has gone out.
    pub fn has_content(&self) -> bool {
        self.first_content.is_some()
    }

    /// Whether a success went out as the status.
    pub fn is_success(&self) -> bool {
        self.status.is_some_and(|status| status.is_success())
    }

    /// The gateway has refused the request, with this status.
    pub fn refused(&mut self, status: StatusCode) {
        self.head(status);
        self.end(Outcome::Refused);
    }

    /// The outcome; the first one counts.
    pub fn end(&mut self, outcome: Outcome) {
        self.outcome.get_or_insert(outcome);
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let outcome = self.outcome.unwrap_or(Outcome::ClientClosed);
        let took = self.began.elapsed();
        self.metrics.in_flight.dec();
        self.metrics.completed(self.endpoint, self.model.as_deref(), outcome, took);
        let line = Line {
            request_id: Arc::clone(&self.request_id),
            endpoint: self.endpoint,
            model: self.model.take(),
            tenant: self.tenant.take(),
            status: self.status.map_or(0, |status| status.as_u16()),
            outcome,
            role: self.role,
            first_content: self.first_content.map(|at| at - self.began),
            took,
            bytes: self.bytes,
        };
        // The last bytes of the answer leave when this returns: writing the line, which may take longer than all else, comes
        // after them.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move { drop(line) });
        }
    }
}

/// A request's line in the log. It is written when it is dropped, so that a runtime that shuts down writes it too.
struct Line {
    request_id: Arc<str>,
    endpoint: &'static str,
    model: Option<Arc<str>>,
    tenant: Option<Arc<str>>,
    status: u16,
    outcome: Outcome,
    role: Option<Role>,
    first_content: Option<Duration>,
    took: Duration,
    bytes: u64,
}

impl Drop for Line {
    fn drop(&mut self) {
        tracing::info!(
            request_id = %self.request_id,
            endpoint = self.endpoint,
            model = self.model.as_deref().unwrap_or("-"),
            tenant = self.tenant.as_deref().unwrap_or("-"),
            status = self.status,
            outcome = self.outcome.as_str(),
            coalesce = self.role.map_or("-", Role::as_str),
            ttft_ms = self.first_content.unwrap_or_default().as_millis() as u64,
            duration_ms = self.took.as_millis() as u64,
            bytes = self.bytes,
            "request"
        );
    }
}
