//! What an answer says about where it was made and why there.

use http::{HeaderMap, HeaderName, HeaderValue};

/// The name of the backend that answered; never its address.
pub const BACKEND: HeaderName = HeaderName::from_static("x-infergw-backend");
/// Why it was that one: the policy's word, after `fallback` and `retry` where it was not the first.
pub const REASON: HeaderName = HeaderName::from_static("x-infergw-reason");
/// The model that answered instead of the one that was asked for.
pub const FALLBACK: HeaderName = HeaderName::from_static("x-infergw-model-fallback");

/// The headers that say how a question was routed.
#[derive(Debug, Clone)]
pub struct Stamp {
    /// See [`BACKEND`].
    pub backend: HeaderValue,
    /// See [`REASON`].
    pub reason: HeaderValue,
    /// See [`FALLBACK`].
    pub fallback: Option<HeaderValue>,
}

impl Stamp {
    /// Set them; whatever a backend said under these names is about its own routing.
    pub fn put(&self, headers: &mut HeaderMap) {
        headers.insert(BACKEND, self.backend.clone());
        headers.insert(REASON, self.reason.clone());
        match &self.fallback {
            Some(model) => headers.insert(FALLBACK, model.clone()),
            None => headers.remove(FALLBACK),
        };
    }
}
