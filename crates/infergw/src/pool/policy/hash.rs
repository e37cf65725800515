//! The same session on the same backend. Use it where backends keep state by session and clients name it in a header or a field;
//! other than prefix affinity it needs no memory, and all gateways agree without knowing of each other.

use http::HeaderMap;
use serde_json::value::RawValue;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::power_of_two::PowerOfTwo;
use super::{Asked, Bound, Candidate, Choice};
use crate::config::Routing;

/// Rendezvous hashing with bounded load: every backend draws a number for the session, the highest wins unless it is full.
#[derive(Debug)]
pub struct Hash {
    headers: Vec<String>,
    fields: Vec<String>,
    bound: f64,
}

impl Hash {
    /// With the headers and fields that name a session.
    pub fn new(routing: &Routing) -> Self {
        Self {
            headers: routing.session_headers.iter().map(|name| name.to_ascii_lowercase()).collect(),
            fields: routing.session_fields.clone(),
            bound: routing.load_bound,
        }
    }

    /// The session: the first of the headers that is there, else the first of the fields.
    pub fn read(&self, headers: &HeaderMap, body: &[u8]) -> Asked {
        let header = self.headers.iter().find_map(|name| headers.get(name.as_str()));
        let session = match header {
            Some(value) => Some(xxh3_64(value.as_bytes())),
            None => self.field(body).map(|value| xxh3_64(value.as_bytes())),
        };
        Asked { session, ..Asked::default() }
    }

    /// The text of a string field; of anything else its JSON text.
    fn field(&self, body: &[u8]) -> Option<String> {
        if self.fields.is_empty() {
            return None;
        }
        let fields = super::prefix_affinity::members(body, &self.fields);
        let raw: &RawValue = fields.into_iter().flatten().find(|value| value.get() != "null")?;
        Some(serde_json::from_str::<String>(raw.get()).unwrap_or_else(|_| raw.get().to_owned()))
    }

    /// The session's backend, or the next in its own order that has room; without a session the less loaded of two.
    pub fn choose(&self, candidates: &[Candidate], asked: &Asked, luck: u64) -> Option<Choice> {
        let Some(session) = asked.session else {
            return PowerOfTwo.choose(candidates, luck).map(|choice| Choice { why: "hash_none", ..choice });
        };
        let score = |candidate: &Candidate| {
            // Uniform in (0, 1]; the logarithm makes the odds follow the weights.
            let drawn = (xxh3_64_with_seed(&session.to_le_bytes(), candidate.identity) >> 11) as f64 + 1.0;
            // By the configured weight alone: a slow start must not move every session for its time.
            -candidate.weight / (drawn / (1u64 << 53) as f64).ln().min(-f64::MIN_POSITIVE)
        };
        let bound = Bound::new(candidates, self.bound);
        let best = |room: bool| {
            let all = candidates.iter().enumerate();
            let fit = all.filter(|(_, candidate)| !room || bound.has_room(candidate));
            fit.map(|(at, candidate)| (at, score(candidate))).max_by(|a, b| a.1.total_cmp(&b.1)).map(|(at, _)| at)
        };
        let own = best(false)?;
        let at = best(true).unwrap_or(own);
        Some(Choice { at, why: if at == own { "hash" } else { "hash_full" } })
    }
}
