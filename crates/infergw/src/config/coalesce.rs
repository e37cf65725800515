//! The settings of sharing, and of coming back to what was shared or lost.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Which requests share a generation (C5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sharing {
    /// All of them.
    All,
    /// Only those whose answer is deterministic by contract: temperature 0 or an explicit seed.
    Deterministic,
    /// None.
    Off,
}

/// Sharing of generations among identical requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Coalesce {
    /// Which streaming requests share.
    pub stream: Sharing,
    /// Which non-streaming requests share.
    pub non_stream: Sharing,
    /// Bytes of answer after which nobody can join a flight any more, and the most that its log holds from then on.
    #[serde(with = "crate::config::size")]
    pub join_window: usize,
    /// Age after which nobody can join a flight any more.
    #[serde(with = "crate::config::duration")]
    pub join_age: Duration,
    /// Most clients on one flight.
    pub max_subscribers: usize,
    /// Most bytes that all logs hold before flights take no joiners.
    #[serde(with = "crate::config::size")]
    pub total: usize,
    /// How long a question is remembered whose answer the upstream said must not be shared (`Cache-Control: private`, `no-store`
    /// on an answer in one piece, or `x-infergw-coalesce: off`): asked again, it runs by itself.
    #[serde(with = "crate::config::duration")]
    pub remember: Duration,
    /// Whether clients can come back to a stream that they lost: its events get an `id`, and `Last-Event-ID` or `GET
    /// /v1/streams/{id}` goes on after it; an `Idempotency-Key` that comes again gets the same answer. See docs/resume.md.
    pub resume: bool,
    /// `resume`: how long a flight waits for a client after the last one has left; if it still runs, it runs on until then.
    #[serde(with = "crate::config::duration")]
    pub linger: Duration,
    /// `resume`: most bytes that flights without a client hold; over it the one that was left first goes.
    #[serde(with = "crate::config::size")]
    pub linger_bytes: usize,
}

impl Default for Coalesce {
    fn default() -> Self {
        Self {
            stream: Sharing::All,
            non_stream: Sharing::Deterministic,
            join_window: 512 << 10,
            join_age: Duration::from_secs(600),
            max_subscribers: 4096,
            total: 512 << 20,
            remember: Duration::from_secs(60),
            resume: false,
            linger: Duration::from_secs(30),
            linger_bytes: 64 << 20,
        }
    }
}
