//! Smooth weighted round robin: each gets its share of the turns, evenly spread. Use it where backends differ in size by known
//! factors (`weight`), or to send a small part of the traffic to a new one.

use std::sync::{Mutex, PoisonError};

use super::{Candidate, Choice};

/// How far each backend is behind its share.
#[derive(Debug, Default)]
pub struct Weighted {
    /// By the backend's place in the pool.
    behind: Mutex<Vec<f64>>,
}

impl Weighted {
    /// The one that is furthest behind.
    pub fn choose(&self, candidates: &[Candidate]) -> Option<Choice> {
        let mut behind = self.behind.lock().unwrap_or_else(PoisonError::into_inner);
        let most = candidates.iter().map(|candidate| candidate.id + 1).max()?;
        if behind.len() < most {
            behind.resize(most, 0.0);
        }
        let mut total = 0.0;
        let mut best: Option<(usize, usize, f64)> = None;
        for (at, candidate) in candidates.iter().enumerate() {
            total += candidate.size();
            let own = behind.get_mut(candidate.id)?;
            *own += candidate.size();
            if best.is_none_or(|(_, _, most)| *own > most) {
                best = Some((at, candidate.id, *own));
            }
        }
        let (at, id, _) = best?;
        *behind.get_mut(id)? -= total;
        Some(Choice { at, why: "weighted" })
    }
}
