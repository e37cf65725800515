//! The life of a group, told to operators: where it stands, and each of its ranks.

use std::sync::Arc;

use serde::Serialize;
use tokio::task::JoinHandle;
use ts_client::{EngineClient, GroupPhase, GroupState, GroupWatch, RankStatus};

use crate::observe::{Engines, RankLoad};
use crate::types::GroupLife;

/// A group as operators see it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SeenGroup {
    /// `waiting`, `ready`, `degraded`, `lost` or `returning`: see [`GroupLife`].
    pub life: &'static str,
    /// Whether a request would be taken.
    pub serving: bool,
    /// Why not, or what is wrong although.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The address that its engines dial.
    pub handshake: String,
    /// Its ranks, by their index.
    pub ranks: Vec<SeenRank>,
}

/// A rank as operators see it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SeenRank {
    /// Its index.
    pub rank: u16,
    /// `waiting`, `handshaking`, `ready`, `silent`, `lost` or `needs_restart`.
    pub status: &'static str,
    /// Why.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// What it registered as; `None` before it has.
    pub version: Option<String>,
    /// The longest sequence that it takes, in tokens.
    pub max_model_len: Option<i64>,
    /// This gateway's requests on it.
    pub in_flight: usize,
    /// Requests that run on it, by its own report.
    pub running: i64,
    /// Requests that wait in it, by its own report.
    pub waiting: i64,
    /// Pages of its cache in use.
    pub kv_active_pages: i64,
    /// Pages of its cache.
    pub kv_total_pages: i64,
    /// Tokens that came from it.
    pub tokens: u64,
    /// Requests that were aborted on it.
    pub aborts: u64,
    /// Times that it was lost.
    pub losses: u64,
    /// Times that it was taken into service.
    pub returns: u64,
}

/// Where the group stands.
pub(super) fn life(state: &GroupState) -> GroupLife {
    match state.phase {
        GroupPhase::Waiting => GroupLife::Waiting,
        GroupPhase::Ready => GroupLife::Ready,
        GroupPhase::Degraded => GroupLife::Degraded,
        GroupPhase::Returning => GroupLife::Returning,
        // A phase that is not known here is no reason to trust the group, unless it serves.
        _ if state.serving => GroupLife::Degraded,
        _ => GroupLife::Lost,
    }
}

/// All that there is to tell; `trouble` is why it cannot serve.
pub(super) fn seen(client: &EngineClient, trouble: Option<String>) -> SeenGroup {
    let state = client.state();
    let (engines, loads, stats, in_flight) = (client.engines(), client.loads(), client.stats(), client.in_flight());
    let ranks = state.ranks.iter().enumerate().map(|(at, rank)| {
        let ready = engines.iter().find(|engine| engine.index == rank.engine_index).map(|engine| &engine.ready);
        let load = loads.get(at).copied().unwrap_or_default();
        let stats = stats.get(at).copied().unwrap_or_default();
        SeenRank {
            rank: rank.engine_index,
            status: status(rank.status),
            reason: rank.reason.clone(),
            version: ready.map(|ready| ready.vllm_version.clone()),
            max_model_len: ready.map(|ready| ready.max_model_len),
            in_flight: in_flight.get(at).copied().unwrap_or(0),
            running: load.num_running,
            waiting: load.num_waiting,
            kv_active_pages: load.kv_active_pages,
            kv_total_pages: load.kv_total_pages,
            tokens: stats.tokens,
            aborts: stats.aborts,
            losses: stats.losses,
            returns: stats.returns,
        }
    });
    let degraded = || state.ranks.iter().find(|rank| rank.status != RankStatus::Ready).map(ToString::to_string);
    SeenGroup {
        life: life(&state).as_str(),
        serving: state.serving,
        reason: trouble.or_else(degraded),
        handshake: client.handshake_address().to_owned(),
        ranks: ranks.collect(),
    }
}

/// Show what the ranks have reported of their load.
pub(super) fn measure(client: &EngineClient, name: &Arc<str>, metrics: &Engines) {
    for (load, rank) in client.loads().into_iter().zip(client.stats()) {
        let load = RankLoad {
            running: load.num_running,
            waiting: load.num_waiting,
            kv_active_pages: load.kv_active_pages,
            kv_total_pages: load.kv_total_pages,
        };
        metrics.rank_load(name, rank.engine_index, load);
    }
}

/// The part of its ranks that serves.
pub(super) fn part(state: &GroupState) -> f64 {
    let ready = state.ranks.iter().filter(|rank| rank.status == RankStatus::Ready).count();
    ready as f64 / state.ranks.len().max(1) as f64
}

fn status(status: RankStatus) -> &'static str {
    match status {
        RankStatus::Waiting => "waiting",
        RankStatus::Handshaking => "handshaking",
        RankStatus::Ready => "ready",
        RankStatus::Silent => "silent",
        RankStatus::Lost => "lost",
        RankStatus::NeedsRestart => "needs_restart",
        _ => "unknown",
    }
}

/// Writes a group's changes to the log and the metrics, until it is dropped.
#[derive(Debug)]
pub(super) struct Witness(JoinHandle<()>);

impl Drop for Witness {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Follow a group that has this name.
pub(super) fn witness(client: &EngineClient, name: Arc<str>, metrics: Engines) -> Witness {
    Witness(tokio::spawn(follow(client.watch(), client.handshake_address().to_owned(), name, metrics)))
}

async fn follow(mut group: GroupWatch, address: String, name: Arc<str>, metrics: Engines) {
    let mut last = None;
    let mut now = Some(group.current());
    while let Some(state) = now {
        for rank in &state.ranks {
            metrics.rank_ready(&name, rank.engine_index, rank.status == RankStatus::Ready);
        }
        let life = life(&state);
        if last != Some(life) {
            metrics.came_to(&name, life);
            let (group, life) = (&*name, life.as_str());
            match (last, state.trouble()) {
                (None, _) => tracing::info!(group, address, ranks = state.ranks.len(), life, "engine group is awaited"),
                (_, None) => tracing::info!(group, address, life, "engine group serves"),
                (_, Some(trouble)) => {
                    tracing::warn!(group, address, life, trouble, "engine group does not serve");
                }
            }
        }
        last = Some(life);
        now = group.changed().await;
    }
}
