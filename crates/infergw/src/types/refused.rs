//! Why a request is not admitted.

/// The reason: the fixed labels of a metric, and the `code` of the error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refused {
    /// Its tenant has used up its tokens of this minute.
    TenantTokens,
    /// Too many of its tenant's requests wait.
    TenantQueueFull,
    /// It waited too long, because its tenant had as many running as it may.
    TenantQueueTimeout,
    /// Too many wait for its model.
    ModelQueueFull,
    /// It waited too long for its model.
    ModelQueueTimeout,
}

impl Refused {
    /// All of them, in their order.
    pub const ALL: [Self; 5] = [
        Self::TenantTokens,
        Self::TenantQueueFull,
        Self::TenantQueueTimeout,
        Self::ModelQueueFull,
        Self::ModelQueueTimeout,
    ];

    /// The label's value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TenantTokens => "tenant_tokens",
            Self::TenantQueueFull => "tenant_queue_full",
            Self::TenantQueueTimeout => "tenant_queue_timeout",
            Self::ModelQueueFull => "model_queue_full",
            Self::ModelQueueTimeout => "model_queue_timeout",
        }
    }

    /// Whether a limit of the tenant's own is the reason.
    pub fn is_the_tenants(self) -> bool {
        matches!(self, Self::TenantTokens | Self::TenantQueueFull | Self::TenantQueueTimeout)
    }
}
