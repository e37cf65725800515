//! The words that the steps share. No logic lives here.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use crate::api::error::ApiError;

mod endpoint;
mod life;
mod refused;
mod spent;
mod stamp;

pub use endpoint::{ENDPOINTS, Endpoint, ErrorShape, Row, StreamEnd};
pub use life::GroupLife;
pub use refused::Refused;
pub use spent::Spent;
pub use stamp::{BACKEND, FALLBACK, REASON, Stamp};

/// Who asks. Made by [`crate::admit`]; two callers with equal `scope` may share a flight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The tenant's name from the configuration, `"default"` without keys. Safe as a metric label.
    pub tenant: Arc<str>,
    /// What separates this caller's flights from another's: never the key itself, a digest of it.
    pub scope: [u8; 32],
    /// He presented a key of the gateway's, which goes no further (X2).
    pub keyed: bool,
}

/// One request for a generation, parsed once; everything later steps need to know about it.
#[derive(Debug, Clone)]
pub struct Question {
    /// Which endpoint was called.
    pub endpoint: Endpoint,
    /// The `model` field, as sent.
    pub model: String,
    /// `stream: true`.
    pub stream: bool,
    /// `stream_options.include_usage: true` (S7).
    pub include_usage: bool,
    /// The body exactly as the client sent it (A2).
    pub body: Bytes,
    /// The client's headers that go to an HTTP upstream: hop-by-hop headers, the gateway key and `x-infergw-*` are gone.
    pub headers: HeaderMap,
    /// Who asks.
    pub caller: Caller,
    /// The id of this request in logs and in the `x-request-id` header.
    pub request_id: Arc<str>,
    /// Choices that a whole answer has: `n`, times the prompts of a completion. Tells a truncated stream (S3).
    pub choices: usize,
    /// An explicit data-parallel rank, from the body or the header (X2, R6).
    pub rank: Option<u16>,
}

/// Status and headers of an answer: what a subscriber waits for before its own head goes out.
#[derive(Debug, Clone)]
pub struct Head {
    /// The HTTP status.
    pub status: StatusCode,
    /// End-to-end headers of the answer. Never a length, never hop-by-hop.
    pub headers: HeaderMap,
}

impl Head {
    /// The head of a stream of events that says nothing else (S9).
    pub fn event_stream() -> Self {
        let headers = HeaderMap::from_iter([
            (CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
            (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
            (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
        ]);
        Self { status: StatusCode::OK, headers }
    }

    /// The head of a JSON body that says nothing else.
    pub fn json() -> Self {
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
        Self { status: StatusCode::OK, headers }
    }

    /// Whether others may get this answer too.
    ///
    /// `Cache-Control: private` or `x-infergw-coalesce: off` say no. `no-store` does only on an answer in one piece: the usual
    /// libraries for event streams send it with every stream, whatever is in it.
    pub fn may_be_shared(&self) -> bool {
        let off = self.headers.get("x-infergw-coalesce").is_some_and(|value| value.as_bytes() == b"off");
        let mut directives = self
            .headers
            .get_all(CACHE_CONTROL)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .map(str::trim);
        let kept_apart = |directive: &str| {
            directive.eq_ignore_ascii_case("private")
                || (directive.eq_ignore_ascii_case("no-store") && !self.is_event_stream())
        };
        !off && !directives.any(kept_apart)
    }

    /// Whether a stream of events follows.
    pub fn is_event_stream(&self) -> bool {
        const EVENT_STREAM: &[u8] = b"text/event-stream";
        let kind = self.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
        kind.get(..EVENT_STREAM.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(EVENT_STREAM))
    }
}

/// How a flight ended, the same for all its subscribers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The answer is whole.
    Done,
    /// The answer failed; what came before the failure, and the error, stand in the log.
    Failed(Cause),
}

/// Why a generation failed. Decides the retry, the breaker and the outcome in metrics; the client sees the [`ApiError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The request itself is at fault (4xx): never counts against a backend (R1).
    Refused,
    /// Back-pressure (429, 503 of a backend): not sickness (R1).
    Busy,
    /// No backend could be reached, or none is there.
    Unreachable,
    /// The backend answered 5xx or with something that is no answer.
    Backend,
    /// The backend broke off in the middle of an answer (S3).
    Truncated,
    /// A time limit was reached; never retried (R4).
    Timeout,
    /// The gateway gave up the flight: limits on size, or the drain limit.
    Cut,
}

/// A failed run of a backend: what the client is told, and why.
#[derive(Debug, Clone)]
pub struct Failure {
    /// What the client sees.
    pub error: ApiError,
    /// Why, for the pool and the metrics.
    pub cause: Cause,
}

impl Failure {
    /// A failure with its client-visible error.
    pub fn new(cause: Cause, error: ApiError) -> Self {
        Self { error, cause }
    }
}

impl Failure {
    /// The same, with the client's names of fields instead of ours.
    pub fn renamed(self, names: &[(&str, &str)]) -> Self {
        Self { error: self.error.renamed(names), ..self }
    }
}

/// How a request met a flight; also the value of the `x-infergw-coalesce` header (C7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Its flight can be joined by others.
    Leader,
    /// It joined a flight.
    Follower,
    /// It flies alone and nobody can join.
    Off,
    /// It went on with an answer that had been begun for it.
    Resumed,
}

impl Role {
    /// The header's value.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Leader => "leader",
            Role::Follower => "follower",
            Role::Off => "off",
            Role::Resumed => "resumed",
        }
    }
}

/// Why a request runs by itself although others may ask the same: the fixed labels of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bypass {
    /// The caller asked for it with `x-infergw-coalesce: off`.
    OptedOut,
    /// The caller sent `Cache-Control: no-store`.
    NoStore,
    /// The operator's policy (C5).
    Policy,
    /// The endpoint runs no generation.
    Endpoint,
    /// Equality with another request cannot be decided safely: a key stands twice, it is nested too deep (C3).
    NotCanonical,
    /// The flight's log has outgrown its join window.
    Window,
    /// The flight is too old.
    Age,
    /// The flight has as many subscribers as it may have.
    Subscribers,
    /// All logs together hold as much as they may.
    Total,
    /// The upstream said that the answer must not be shared, now or a short while ago.
    Unshareable,
}

impl Bypass {
    /// All of them, in their order.
    pub const ALL: [Self; 10] = [
        Self::OptedOut,
        Self::NoStore,
        Self::Policy,
        Self::Endpoint,
        Self::NotCanonical,
        Self::Window,
        Self::Age,
        Self::Subscribers,
        Self::Total,
        Self::Unshareable,
    ];

    /// The label's value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OptedOut => "opted_out",
            Self::NoStore => "no_store",
            Self::Policy => "policy",
            Self::Endpoint => "endpoint",
            Self::NotCanonical => "not_canonical",
            Self::Window => "window",
            Self::Age => "age",
            Self::Subscribers => "subscribers",
            Self::Total => "total",
            Self::Unshareable => "unshareable",
        }
    }
}

/// The two kinds of backends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BackendKind {
    /// An OpenAI-compatible HTTP server.
    Http,
    /// A TokenSpeed engine group.
    Engine,
}

/// Tokens of one answer, as reported or counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Generated tokens.
    pub completion_tokens: u64,
    /// Prompt tokens served from a prefix cache.
    pub cached_tokens: u64,
}

/// The event that ends every SSE stream, after an error too (S5).
pub const DONE: Bytes = Bytes::from_static(b"data: [DONE]\n\n");
