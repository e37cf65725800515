//! The less loaded of two drawn at random. Use it unless you know better: it follows the load that round robin does not see
//! (answers differ a hundredfold in length), costs the same with any number of backends, and gateways that do not know of each
//! other do not run to the same backend together. It is the default.

use super::{Candidate, Choice};

/// Nothing to remember.
#[derive(Debug, Clone, Copy, Default)]
pub struct PowerOfTwo;

impl PowerOfTwo {
    /// One of two.
    pub fn choose(&self, candidates: &[Candidate], luck: u64) -> Option<Choice> {
        let count = candidates.len() as u64;
        let why = "power_of_two";
        if count < 2 {
            return candidates.first().map(|_| Choice { at: 0, why });
        }
        let a = (luck >> 32) % count;
        // Any but the first one drawn.
        let b = (a + 1 + (luck & 0xffff_ffff) % (count - 1)) % count;
        let (a, b) = (a as usize, b as usize);
        let at = if candidates.get(b)?.load() < candidates.get(a)?.load() { b } else { a };
        Some(Choice { at, why })
    }
}
