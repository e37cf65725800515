//! A backend's place in the pool: its name, and what the pool itself knows of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::HeaderValue;
use xxhash_rust::xxh3::xxh3_64;

use super::policy::Candidate;
use crate::backend::Backend;

/// One backend of the pool.
#[derive(Debug)]
pub(super) struct Member {
    /// Its name, from the configuration or by its place; never its address.
    pub(super) name: Arc<str>,
    /// The same as a header's value.
    pub(super) stamp: HeaderValue,
    pub(super) backend: Backend,
    identity: u64,
    weight: f64,
    in_flight: AtomicUsize,
}

impl Member {
    /// The member of this name and weight, which the configuration's check has found sane.
    pub(super) fn new(name: &str, weight: f64, backend: Backend) -> Self {
        let stamp = HeaderValue::from_str(name).unwrap_or_else(|_| HeaderValue::from_static("unnamed"));
        let identity = xxh3_64(name.as_bytes());
        Self { name: Arc::from(name), stamp, backend, identity, weight, in_flight: AtomicUsize::new(0) }
    }

    /// How a policy sees it at place `id`.
    pub(super) fn candidate(&self, id: usize) -> Candidate {
        let in_flight = self.in_flight.load(Ordering::Relaxed);
        Candidate { id, identity: self.identity, in_flight, weight: self.weight, share: 1.0 }
    }

    /// Count a request in.
    pub(super) fn enter(&self) -> Running<'_> {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        Running(self)
    }
}

/// A request that runs on a member; dropping it ends the count (D2).
#[derive(Debug)]
pub(super) struct Running<'a>(&'a Member);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}
