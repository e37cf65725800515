//! A flight as operators see it: numbers and our own names, never a prompt.

use serde::Serialize;

use super::Log;
use crate::coalesce::key::Key;
use crate::types::Bypass;

/// A flight as operators see it (`GET /admin/flights`).
#[derive(Debug, Clone, Serialize)]
pub struct Seen {
    /// The first 12 characters of its key, as in the log.
    pub key: String,
    /// The model, where a backend lists it.
    pub model: Option<String>,
    /// The endpoint's path.
    pub endpoint: &'static str,
    /// Since it began.
    pub age_ms: u64,
    /// Clients that read it.
    pub subscribers: usize,
    /// Bytes that its log holds.
    pub log_bytes: usize,
    /// Bytes that were ever written to it.
    pub written_bytes: u64,
    /// Whether others may join.
    pub open: bool,
    /// Why not.
    pub shut: Option<&'static str>,
    /// Bytes that its slowest client has not read.
    pub slowest_lag_bytes: u64,
}

impl Log {
    /// What operators see of this flight.
    pub(in crate::coalesce) fn seen(&self, key: &Key) -> Seen {
        let state = self.lock();
        let read = state.readers.iter().filter(|(_, reader)| !reader.cut).map(|(_, reader)| reader.read).min();
        Seen {
            key: key.short(),
            model: self.about.model.as_deref().map(str::to_owned),
            endpoint: self.about.path,
            age_ms: state.since.elapsed().as_millis() as u64,
            subscribers: state.readers.len(),
            log_bytes: state.held,
            written_bytes: state.written,
            open: state.open,
            shut: state.shut.map(Bypass::as_str),
            slowest_lag_bytes: read.map_or(0, |read| state.written - read),
        }
    }
}
