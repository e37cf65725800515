//! A backend's place in the pool: its name, and what the pool itself knows of it.

use std::sync::Arc;

use http::HeaderValue;

use crate::backend::Backend;

/// One backend of the pool.
#[derive(Debug)]
pub(super) struct Member {
    /// Its name, from the configuration or by its place; never its address.
    pub(super) name: Arc<str>,
    /// The same as a header's value.
    pub(super) stamp: HeaderValue,
    pub(super) backend: Backend,
}

impl Member {
    /// The member of this name, which the configuration's check has found sane.
    pub(super) fn new(name: &str, backend: Backend) -> Self {
        let stamp = HeaderValue::from_str(name).unwrap_or_else(|_| HeaderValue::from_static("unnamed"));
        Self { name: Arc::from(name), stamp, backend }
    }
}
