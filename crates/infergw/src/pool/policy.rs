//! Which of several backends that can take a question gets it. One file a policy; each says when to use it.
//!
//! A policy is a function of the candidates, of the question, and of a random number that the caller draws. What it
//! remembers is bounded and lies inside it. It does no I/O and looks at no clock, so that simulations can run it.

use http::HeaderMap;

use crate::config::{PolicyName, Routing};

pub mod hash;
pub mod least_in_flight;
pub mod power_of_two;
pub mod prefix_affinity;
pub mod round_robin;
pub mod weighted;

use hash::Hash;
use least_in_flight::LeastInFlight;
use power_of_two::PowerOfTwo;
use prefix_affinity::PrefixAffinity;
use round_robin::RoundRobin;
use weighted::Weighted;

/// A backend that can take the question.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Its place in the pool: small, and the same for as long as the backend stays. A later one may get it after that.
    pub id: usize,
    /// What is the same for this backend in every gateway and after every restart: a hash of its name.
    pub identity: u64,
    /// Requests that run on it for this gateway.
    pub in_flight: usize,
    /// What the operator says of its size; above 0.
    pub weight: f64,
    /// The part of its load that it should get now: below 1 while it has only just come back (slow start).
    pub share: f64,
}

impl Candidate {
    /// How full it would be with one more request, by its size.
    pub fn load(&self) -> f64 {
        (self.in_flight + 1) as f64 / self.size()
    }

    /// What it can take now, beside the others.
    pub fn size(&self) -> f64 {
        (self.weight * self.share).max(1e-6)
    }
}

/// What a policy made of a question before it chose.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Asked {
    /// The session that it belongs to.
    pub session: Option<u64>,
    /// Its prompt as a chain of blocks: each number stands for the text from the beginning up to there.
    pub blocks: Vec<u64>,
}

/// A choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// The place of the chosen one among the candidates.
    pub at: usize,
    /// Why it was that one: the fixed words of `x-infergw-reason`.
    pub why: &'static str,
}

/// A policy with what it remembers.
#[derive(Debug)]
pub enum Policy {
    /// See [`round_robin`].
    RoundRobin(RoundRobin),
    /// See [`least_in_flight`].
    LeastInFlight(LeastInFlight),
    /// See [`power_of_two`].
    PowerOfTwo(PowerOfTwo),
    /// See [`weighted`].
    Weighted(Weighted),
    /// See [`hash`].
    Hash(Hash),
    /// See [`prefix_affinity`].
    PrefixAffinity(Box<PrefixAffinity>),
}

impl Policy {
    /// The policy of this name, with nothing remembered yet.
    pub fn new(name: PolicyName, routing: &Routing) -> Self {
        match name {
            PolicyName::RoundRobin => Self::RoundRobin(RoundRobin::default()),
            PolicyName::LeastInFlight => Self::LeastInFlight(LeastInFlight),
            PolicyName::PowerOfTwo => Self::PowerOfTwo(PowerOfTwo),
            PolicyName::Weighted => Self::Weighted(Weighted::default()),
            PolicyName::Hash => Self::Hash(Hash::new(routing)),
            PolicyName::PrefixAffinity => Self::PrefixAffinity(Box::new(PrefixAffinity::new(routing))),
        }
    }

    /// What it wants to know of a question: nothing, the session, or the prompt.
    pub fn read(&self, model: &str, headers: &HeaderMap, body: &[u8]) -> Asked {
        match self {
            Self::Hash(hash) => hash.read(headers, body),
            Self::PrefixAffinity(affinity) => affinity.read(model, body),
            Self::RoundRobin(_) | Self::LeastInFlight(_) | Self::PowerOfTwo(_) | Self::Weighted(_) => Asked::default(),
        }
    }

    /// Choose one of `candidates`; `None` only where there is none. `luck` is a random number.
    pub fn choose(&self, candidates: &[Candidate], asked: &Asked, luck: u64) -> Option<Choice> {
        match self {
            Self::RoundRobin(policy) => policy.choose(candidates, luck),
            Self::LeastInFlight(policy) => policy.choose(candidates, luck),
            Self::PowerOfTwo(policy) => policy.choose(candidates, luck),
            Self::Weighted(policy) => policy.choose(candidates),
            Self::Hash(policy) => policy.choose(candidates, asked, luck),
            Self::PrefixAffinity(policy) => policy.choose(candidates, asked, luck),
        }
    }
}

/// How many requests each may have where nobody may have more than a number of times its fair part. Somebody always has room:
/// not all can be above the mean.
struct Bound {
    for_size: f64,
}

impl Bound {
    /// With one request more than there are now.
    fn new(candidates: &[Candidate], bound: f64) -> Self {
        let running: usize = candidates.iter().map(|candidate| candidate.in_flight).sum();
        let size: f64 = candidates.iter().map(Candidate::size).sum();
        Self { for_size: bound * (running + 1) as f64 / size }
    }

    fn has_room(&self, candidate: &Candidate) -> bool {
        (candidate.in_flight + 1) as f64 <= (self.for_size * candidate.size()).ceil()
    }
}

#[cfg(test)]
mod tests;
