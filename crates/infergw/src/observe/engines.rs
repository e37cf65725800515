//! The life of engine groups. A group has its name as the label, a rank its index: both come from the configuration.

use std::sync::Arc;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::types::GroupLife;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LifeLabels {
    backend: Arc<str>,
    life: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RankLabels {
    backend: Arc<str>,
    rank: u16,
}

/// The metrics of all engine groups. Clones count together.
#[derive(Debug, Clone, Default)]
pub struct Engines {
    life: Family<LifeLabels, Gauge>,
    changes: Family<LifeLabels, Counter>,
    ready: Family<RankLabels, Gauge>,
    running: Family<RankLabels, Gauge>,
    waiting: Family<RankLabels, Gauge>,
    kv_active: Family<RankLabels, Gauge>,
    kv_total: Family<RankLabels, Gauge>,
}

/// What a rank has reported of its load.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RankLoad {
    /// Requests that run on it.
    pub running: i64,
    /// Requests that wait in it.
    pub waiting: i64,
    /// Pages of its cache that are in use.
    pub kv_active_pages: i64,
    /// Pages of its cache.
    pub kv_total_pages: i64,
}

impl Engines {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register("engine_group_life", "1 for where an engine group stands, else 0", self.life.clone());
        registry.register("engine_group_changes", "Times that an engine group came there", self.changes.clone());
        registry.register("engine_rank_ready", "Whether a rank serves", self.ready.clone());
        registry.register(
            "engine_rank_running",
            "Requests that run on a rank, by its own report",
            self.running.clone(),
        );
        registry.register(
            "engine_rank_waiting",
            "Requests that wait in a rank, by its own report",
            self.waiting.clone(),
        );
        registry.register("engine_rank_kv_active_pages", "Pages of a rank's cache in use", self.kv_active.clone());
        registry.register("engine_rank_kv_pages", "Pages of a rank's cache", self.kv_total.clone());
    }

    /// A group has come to `life`.
    pub fn came_to(&self, group: &Arc<str>, life: GroupLife) {
        let labels = |life: GroupLife| LifeLabels { backend: Arc::clone(group), life: life.as_str() };
        for other in GroupLife::ALL {
            self.life.get_or_create(&labels(other)).set(i64::from(other == life));
        }
        self.changes.get_or_create(&labels(life)).inc();
    }

    /// A rank serves, or does not.
    pub fn rank_ready(&self, group: &Arc<str>, rank: u16, ready: bool) {
        self.ready.get_or_create(&RankLabels { backend: Arc::clone(group), rank }).set(i64::from(ready));
    }

    /// A rank's load.
    pub fn rank_load(&self, group: &Arc<str>, rank: u16, load: RankLoad) {
        let labels = RankLabels { backend: Arc::clone(group), rank };
        self.running.get_or_create(&labels).set(load.running);
        self.waiting.get_or_create(&labels).set(load.waiting);
        self.kv_active.get_or_create(&labels).set(load.kv_active_pages);
        self.kv_total.get_or_create(&labels).set(load.kv_total_pages);
    }
}
