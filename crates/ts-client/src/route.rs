//! Which rank takes a request: pure functions over what is known of the ranks, and the count of what each holds.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ts_wire::TokenizedGenerateReqInput;

use crate::config::{LoadBalance, Placement, Routing};
use crate::error::{Error, Result};

/// A request's place on a rank. The rank's count falls when it is dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    count: Arc<AtomicUsize>,
}

/// What placement sees of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RankView {
    /// It takes requests.
    pub(crate) serving: bool,
    /// This client's requests on it.
    pub(crate) in_flight: usize,
    /// KV pages in use, as last reported.
    pub(crate) kv_active_pages: i64,
}

/// The policy for unpinned requests, whichever way it was configured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Policy {
    Published(LoadBalance),
    Added(Placement),
}

/// Where a request must go, by its own fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// This rank and no other.
    Rank(usize),
    /// Whichever the policy picks.
    Any,
}

// === impl Slot ===

impl Slot {
    pub(crate) fn take(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self { count: Arc::clone(count) }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::AcqRel);
    }
}

// === placement ===

/// The rank that a request names, if it does.
///
/// # Errors
///
/// [`Error::InvalidRequest`] for a rank out of range, and for a request without a room under
/// [`Routing::BootstrapRoom`], or one that names another rank than its room does.
pub(crate) fn target(request: &TokenizedGenerateReqInput, routing: Routing, ranks: usize) -> Result<Target> {
    let pinned = match request.data_parallel_rank {
        None => None,
        Some(rank) => Some(usize::try_from(rank).ok().filter(|rank| *rank < ranks).ok_or_else(|| {
            Error::InvalidRequest(format!("data_parallel_rank {rank} is not one of the {ranks} ranks"))
        })?),
    };
    match routing {
        Routing::Aggregated(_) => Ok(pinned.map_or(Target::Any, Target::Rank)),
        Routing::BootstrapRoom => {
            let Some(room) = request.bootstrap_room else {
                return Err(Error::InvalidRequest("bootstrap_room is required by the routing".into()));
            };
            let by_room = usize::try_from(room % u64::try_from(ranks.max(1)).unwrap_or(u64::MAX)).unwrap_or(0);
            match pinned {
                Some(rank) if rank != by_room => Err(Error::InvalidRequest(format!(
                    "data_parallel_rank {rank} contradicts bootstrap_room, which selects rank {by_room}"
                ))),
                _ => Ok(Target::Rank(by_room)),
            }
        }
    }
}

/// The rank for an unpinned request; `None` if none serves. `turn` differs from call to call: round robin goes by it,
/// and the others break ties with it.
pub(crate) fn choose(policy: Policy, ranks: &[RankView], prompt: &[i32], turn: usize) -> Option<usize> {
    let serving = || {
        let (before, from) = ranks.split_at(turn % ranks.len().max(1));
        let offset = before.len();
        let later = from.iter().enumerate().map(move |(index, rank)| (offset + index, rank));
        later.chain(before.iter().enumerate()).filter(|(_, rank)| rank.serving)
    };
    match policy {
        Policy::Published(LoadBalance::RoundRobin) => {
            // By turn over those that serve: a dead rank's turns do not all fall to its neighbour.
            let count = serving().count();
            let mut alive = ranks.iter().enumerate().filter(|(_, rank)| rank.serving);
            alive.nth(turn % count.max(1)).map(|(index, _)| index)
        }
        Policy::Published(LoadBalance::LeastInFlight) => {
            serving().min_by_key(|(_, rank)| rank.in_flight).map(|(index, _)| index)
        }
        Policy::Published(LoadBalance::MinimumCacheUsage) => {
            serving().min_by_key(|(_, rank)| (rank.kv_active_pages, rank.in_flight)).map(|(index, _)| index)
        }
        Policy::Added(Placement::PowerOfTwo) => power_of_two(ranks, turn),
        Policy::Added(Placement::PrefixAffinity { prefix_tokens, load_bound }) => {
            let prefix = prompt.get(..prefix_tokens).unwrap_or(prompt);
            prefix_affinity(ranks, prefix, load_bound)
        }
    }
}

fn power_of_two(ranks: &[RankView], turn: usize) -> Option<usize> {
    let alive: Vec<(usize, &RankView)> = ranks.iter().enumerate().filter(|(_, rank)| rank.serving).collect();
    let draw = scramble(turn as u64);
    let count = alive.len();
    if count < 2 {
        return alive.first().map(|(index, _)| *index);
    }
    let first = (draw >> 32) as usize % count;
    let second = (first + 1 + (draw as u32 as usize) % (count - 1)) % count;
    let drawn = [alive.get(first)?, alive.get(second)?];
    drawn.into_iter().min_by_key(|(_, rank)| (rank.in_flight, rank.kv_active_pages)).map(|(index, _)| *index)
}

/// Rendezvous hashing: each prefix has its own order of the ranks, which the loss of a rank does not change for the
/// others. The first rank in that order that holds less than its bound takes the request.
fn prefix_affinity(ranks: &[RankView], prefix: &[i32], load_bound: f64) -> Option<usize> {
    let serving = ranks.iter().enumerate().filter(|(_, rank)| rank.serving);
    let count = serving.clone().count();
    let total: usize = serving.clone().map(|(_, rank)| rank.in_flight).sum();
    let bound = ((total + 1) as f64 * load_bound.max(1.0) / count.max(1) as f64).ceil();
    let key = BuildHasherDefault::<DefaultHasher>::new().hash_one(prefix);
    serving
        .filter(|(_, rank)| (rank.in_flight as f64) < bound)
        .max_by_key(|(index, _)| scramble(key ^ scramble(*index as u64)))
        .map(|(index, _)| index)
}

/// A 64-bit mix (the finalizer of SplitMix64): near inputs give unrelated outputs.
fn scramble(input: u64) -> u64 {
    let mut mixed = input.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests;
