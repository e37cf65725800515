//! The one with the fewest requests for its size. Use it with a single gateway and few backends; several gateways that each
//! see only their own requests would all run to the same one.

use super::{Candidate, Choice};

/// Nothing to remember.
#[derive(Debug, Clone, Copy, Default)]
pub struct LeastInFlight;

impl LeastInFlight {
    /// The least loaded one; among equals any.
    pub fn choose(&self, candidates: &[Candidate], luck: u64) -> Option<Choice> {
        let first = (luck % candidates.len().max(1) as u64) as usize;
        // From a random place, and the first of the least loaded from there.
        let turns = (first..candidates.len()).chain(0..first).filter_map(|at| Some((at, candidates.get(at)?.load())));
        let (at, _) = turns.min_by(|a, b| a.1.total_cmp(&b.1))?;
        Some(Choice { at, why: "least_in_flight" })
    }
}
