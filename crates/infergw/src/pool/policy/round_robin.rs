//! Each in turn. Use it where requests cost about the same and backends are alike, or where a test wants to know who is next.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Candidate, Choice};

/// Whose turn it is.
#[derive(Debug, Default)]
pub struct RoundRobin {
    next: AtomicUsize,
}

impl RoundRobin {
    /// The next one; one in its slow start lets as many turns pass as its share lacks.
    pub fn choose(&self, candidates: &[Candidate], luck: u64) -> Option<Choice> {
        if candidates.len() < 2 {
            // The only one is no turn: else each retry would give the next request to the backend that has just failed.
            return candidates.first().map(|_| Choice { at: 0, why: "round_robin" });
        }
        let first = self.next.fetch_add(1, Ordering::Relaxed) % candidates.len();
        let drawn = (luck % 1024) as f64 / 1024.0;
        let turns = (first..candidates.len()).chain(0..first);
        let at = turns.clone().find(|at| candidates.get(*at).is_some_and(|c| c.share > drawn));
        at.or_else(|| turns.clone().next()).map(|at| Choice { at, why: "round_robin" })
    }
}
