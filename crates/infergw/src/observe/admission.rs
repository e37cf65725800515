//! Who runs, who waits and who is refused, by tenant. Tenants come from the configuration, so their number is bounded (M3).

use std::sync::Arc;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::types::Refused;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TenantLabels {
    tenant: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusedLabels {
    tenant: Arc<str>,
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TokenLabels {
    tenant: Arc<str>,
    kind: &'static str,
}

/// The metrics of admission. Clones count together.
#[derive(Debug, Clone)]
pub struct Admissions {
    queued: Family<TenantLabels, Gauge>,
    running: Family<TenantLabels, Gauge>,
    admitted: Family<TenantLabels, Counter>,
    refused: Family<RefusedLabels, Counter>,
    tokens: Family<TokenLabels, Counter>,
    /// How long those waited that were admitted.
    pub wait: Histogram,
}

impl Default for Admissions {
    fn default() -> Self {
        Self {
            queued: Family::default(),
            running: Family::default(),
            admitted: Family::default(),
            refused: Family::default(),
            tokens: Family::default(),
            wait: Histogram::new(exponential_buckets(0.001, 2.0, 18)),
        }
    }
}

impl Admissions {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register("admission_queued", "Requests that wait to be admitted", self.queued.clone());
        registry.register("admission_running", "Requests that were admitted and run", self.running.clone());
        registry.register("admission_admitted", "Requests that were admitted", self.admitted.clone());
        registry.register("admission_refused", "Requests that were not, by the reason", self.refused.clone());
        registry.register("admission_wait_seconds", "How long requests waited that were admitted", self.wait.clone());
        registry.register("tenant_tokens", "Tokens that were booked on tenants", self.tokens.clone());
    }

    /// The metrics of one tenant, found once.
    pub fn of(&self, tenant: &Arc<str>) -> TenantMetrics {
        let labels = TenantLabels { tenant: Arc::clone(tenant) };
        let tokens = |kind| self.tokens.get_or_create_owned(&TokenLabels { tenant: Arc::clone(tenant), kind });
        let refused = |reason: Refused| RefusedLabels { tenant: Arc::clone(tenant), reason: reason.as_str() };
        TenantMetrics {
            queued: self.queued.get_or_create_owned(&labels),
            running: self.running.get_or_create_owned(&labels),
            admitted: self.admitted.get_or_create_owned(&labels),
            prompt: tokens("prompt"),
            generated: tokens("generated"),
            refused: Refused::ALL.map(|reason| self.refused.get_or_create_owned(&refused(reason))),
        }
    }
}

/// The metrics of one tenant.
#[derive(Debug)]
pub struct TenantMetrics {
    /// Its requests that wait.
    pub queued: Gauge,
    /// Its requests that run.
    pub running: Gauge,
    /// Its requests that were admitted.
    pub admitted: Counter,
    /// Prompt tokens that were booked on it.
    pub prompt: Counter,
    /// Generated tokens that were booked on it.
    pub generated: Counter,
    refused: [Counter; Refused::ALL.len()],
}

impl TenantMetrics {
    /// One of its requests was not admitted.
    pub fn refused(&self, reason: Refused) {
        if let Some(counter) = self.refused.get(reason as usize) {
            counter.inc();
        }
    }
}
