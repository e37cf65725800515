//! The settings of admission.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How much may run at once, who waits, and who comes next.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Admission {
    /// Requests of one model that run at once; more wait. 0 is no limit.
    pub concurrency: usize,
    /// Most requests that wait for one model; more are a 503. 0: none waits.
    pub queue: usize,
    /// The longest that a request waits: then it is a 429 if its tenant's limit kept it waiting, else a 503.
    #[serde(with = "crate::config::duration")]
    pub queue_timeout: Duration,
    /// Requests of one tenant that run at once, on all models; more wait. 0 is no limit.
    pub tenant_concurrency: usize,
    /// Most requests of one tenant that wait; more are a 429. 0: none waits.
    pub tenant_queue: usize,
    /// Tokens of one tenant in a minute, prompts and answers together; then 429. 0 is no limit.
    pub tenant_tokens_per_minute: u64,
    /// Whether a request's own `priority` header (RFC 9218: `u=0` to `u=7`) can make it more urgent than its tenant's
    /// `priority`. Less urgent it always can.
    pub trust_priority: bool,
}

impl Default for Admission {
    fn default() -> Self {
        Self {
            concurrency: 0,
            queue: 1024,
            queue_timeout: Duration::from_secs(30),
            tenant_concurrency: 0,
            tenant_queue: 1024,
            tenant_tokens_per_minute: 0,
            trust_priority: false,
        }
    }
}

/// What is special about a tenant.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tenant {
    /// Its name, as in `[[keys]]`; "default" for all where there are no keys.
    pub name: String,
    /// Default: `admission.tenant_concurrency`.
    #[serde(default)]
    pub concurrency: Option<usize>,
    /// Default: `admission.tenant_queue`.
    #[serde(default)]
    pub queue: Option<usize>,
    /// Its part where several wait: twice as many turns for a weight of 2. Default 1.
    #[serde(default)]
    pub weight: Option<f64>,
    /// How urgent its requests are, from 0 (before all others) to 7. Default 3.
    #[serde(default)]
    pub priority: Option<u8>,
    /// Default: `admission.tenant_tokens_per_minute`.
    #[serde(default)]
    pub tokens_per_minute: Option<u64>,
}
