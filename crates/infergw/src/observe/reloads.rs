//! Changes of the configuration, and of what discovery finds.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SourceLabels {
    source: &'static str,
    outcome: &'static str,
}

/// The counters of changes. Clones count together.
#[derive(Debug, Clone, Default)]
pub struct Reloads {
    config: Family<OutcomeLabels, Counter>,
    discovery: Family<SourceLabels, Counter>,
}

impl Reloads {
    pub(super) fn register(&self, registry: &mut Registry) {
        for outcome in ["applied", "unchanged", "rejected"] {
            let _ = self.config.get_or_create(&OutcomeLabels { outcome });
        }
        registry.register("config_reloads", "Readings of the configuration, by what came of it", self.config.clone());
        registry.register(
            "discovery_updates",
            "Changes of what discovery finds, by what came of it",
            self.discovery.clone(),
        );
    }

    /// The configuration was read again.
    pub fn config(&self, outcome: &'static str) {
        self.config.get_or_create(&OutcomeLabels { outcome }).inc();
    }

    /// `source` said something else about its backends.
    pub fn discovery(&self, source: &'static str, outcome: &'static str) {
        self.discovery.get_or_create(&SourceLabels { source, outcome }).inc();
    }
}
