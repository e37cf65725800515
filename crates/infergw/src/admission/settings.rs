//! What the configuration says, resolved for one model or one tenant.

use std::collections::HashMap;
use std::time::Duration;

use crate::config::{self, Config};

/// How urgent a request is whose tenant says nothing: RFC 9218's default.
const URGENCY: u8 = 3;

/// What one model can take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ModelLimits {
    pub(super) concurrency: usize,
    pub(super) queue: usize,
}

/// What one tenant may.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct TenantLimits {
    pub(super) concurrency: usize,
    pub(super) queue: usize,
    pub(super) weight: f64,
    pub(super) urgency: u8,
    /// In a minute; 0 is no limit.
    pub(super) tokens: u64,
}

/// All limits.
#[derive(Debug)]
pub(super) struct Settings {
    /// Whether there is any limit: without one no request pays for the look.
    pub(super) on: bool,
    /// Zero is no limit.
    pub(super) timeout: Duration,
    pub(super) trust_priority: bool,
    model: ModelLimits,
    models: HashMap<String, ModelLimits>,
    tenant: TenantLimits,
    tenants: HashMap<String, TenantLimits>,
}

impl Settings {
    pub(super) fn new(config: &Config) -> Self {
        let all = &config.admission;
        let model = |own: &config::Model| ModelLimits {
            concurrency: limit(own.concurrency.unwrap_or(all.concurrency)),
            queue: own.queue.unwrap_or(all.queue),
        };
        let tenant = |own: &config::Tenant| TenantLimits {
            concurrency: limit(own.concurrency.unwrap_or(all.tenant_concurrency)),
            queue: own.queue.unwrap_or(all.tenant_queue),
            weight: own.weight.unwrap_or(1.0),
            urgency: own.priority.unwrap_or(URGENCY),
            tokens: own.tokens_per_minute.unwrap_or(all.tenant_tokens_per_minute),
        };
        let models: HashMap<_, _> = config.models.iter().map(|own| (own.name.clone(), model(own))).collect();
        let tenants: HashMap<_, _> = config.tenants.iter().map(|own| (own.name.clone(), tenant(own))).collect();
        let (model, tenant) = (model(&config::Model::default()), tenant(&config::Tenant::default()));
        let limits_models = models.values().chain([&model]).any(|limits| limits.concurrency != usize::MAX);
        let limited = |limits: &TenantLimits| limits.concurrency != usize::MAX || limits.tokens != 0;
        let limits_tenants = tenants.values().chain([&tenant]).any(limited);
        Self {
            on: limits_models || limits_tenants,
            timeout: all.queue_timeout,
            trust_priority: all.trust_priority,
            model,
            models,
            tenant,
            tenants,
        }
    }

    pub(super) fn model(&self, name: &str) -> ModelLimits {
        self.models.get(name).copied().unwrap_or(self.model)
    }

    pub(super) fn tenant(&self, name: &str) -> TenantLimits {
        self.tenants.get(name).copied().unwrap_or(self.tenant)
    }
}

/// Zero is no limit.
fn limit(number: usize) -> usize {
    if number == 0 { usize::MAX } else { number }
}
