//! Where the longest beginning of this prompt has been before, as long as that backend is not much fuller than the others. Use it
//! where prompts share long beginnings (system prompts, conversations that go on) and backends keep prefix caches.
//!
//! The prompt is cut into blocks; each block's number is a hash of its bytes and of the number before, so that a number stands
//! for the whole text up to there. A table remembers which backends got a number last. It knows nothing of what backends have
//! evicted: it is bounded, and forgets what has long not been asked for, as they do.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Mutex, PoisonError};

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::least_in_flight::LeastInFlight;
use super::power_of_two::PowerOfTwo;
use super::{Asked, Bound, Candidate, Choice};
use crate::config::Routing;

/// Bytes of a block: some sixty tokens.
const BLOCK: usize = 256;

/// Most blocks of a prompt that are looked at: its first 512 KiB.
const MOST_BLOCKS: usize = 2048;

/// Backends that are remembered for a block, the last one first.
const OWNERS: usize = 4;

/// About what a remembered block costs.
const BLOCK_COST: usize = 32;

/// A match is worth following from this part of the prompt on; less is what any backend computes as fast.
const WORTH: f64 = 0.1;

/// The fields that make the prompt, in the order in which templates put them. `cache_salt` keeps equal prompts apart, as it does
/// in the backends.
const FIELDS: [&str; 8] = ["cache_salt", "tools", "system", "instructions", "messages", "prompt", "input", "text"];

/// The table.
#[derive(Debug)]
pub struct PrefixAffinity {
    table: Mutex<Table>,
    bound: f64,
    /// Of this process alone: nobody can make texts whose numbers collide.
    seed: u64,
}

impl PrefixAffinity {
    /// Nothing remembered yet.
    pub fn new(routing: &Routing) -> Self {
        let table = Table { half: (routing.prefix_memory / BLOCK_COST / 2).max(1), ..Table::default() };
        Self { table: Mutex::new(table), bound: routing.load_bound, seed: rand::random() }
    }

    /// The prompt's blocks; the last one, which is not full, is left out.
    pub fn read(&self, model: &str, body: &[u8]) -> Asked {
        let mut blocks = Vec::new();
        let mut last = xxh3_64_with_seed(model.as_bytes(), self.seed);
        let mut rest = Vec::new();
        let mut add = |piece: &[u8]| {
            last = xxh3_64_with_seed(piece, last);
            blocks.push(last);
            blocks.len() < MOST_BLOCKS
        };
        for text in members(body, &FIELDS.map(str::to_owned)).into_iter().flatten() {
            // Fields follow each other as the text of a prompt would: a block may begin in one and end in the next.
            let mut bytes = text.get().as_bytes();
            if !rest.is_empty() {
                let (first, after) = bytes.split_at(bytes.len().min(BLOCK - rest.len()));
                rest.extend_from_slice(first);
                bytes = after;
                if rest.len() < BLOCK {
                    continue;
                }
                if !add(&rest) {
                    break;
                }
                rest.clear();
            }
            let mut pieces = bytes.chunks_exact(BLOCK);
            if !pieces.by_ref().all(&mut add) {
                break;
            }
            rest.extend_from_slice(pieces.remainder());
        }
        Asked { blocks, session: None }
    }

    /// The one that knows most of the prompt and has room; where none knows enough, the less loaded of two.
    pub fn choose(&self, candidates: &[Candidate], asked: &Asked, luck: u64) -> Option<Choice> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let known = table.known(&asked.blocks);
        let worth = (asked.blocks.len() as f64 * WORTH).max(1.0);
        let depth = |candidate: &Candidate| known.get(&candidate.id).copied().unwrap_or(0);
        let matches = candidates.iter().enumerate().filter(|(_, candidate)| depth(candidate) as f64 >= worth);
        let bound = Bound::new(candidates, self.bound);
        let mut full = false;
        let best = matches
            .filter(|(_, candidate)| {
                let room = bound.has_room(candidate);
                full |= !room;
                room
            })
            .max_by(|(_, a), (_, b)| depth(a).cmp(&depth(b)).then(b.load().total_cmp(&a.load())));
        let choice = match best {
            Some((at, _)) => Choice { at, why: "prefix_match" },
            None if full => Choice { why: "prefix_full", ..LeastInFlight.choose(candidates, luck)? },
            None => Choice { why: "prefix_new", ..PowerOfTwo.choose(candidates, luck)? },
        };
        table.add(&asked.blocks, candidates.get(choice.at)?.id);
        Some(choice)
    }

    /// Blocks that are remembered now.
    pub fn remembered(&self) -> usize {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.young.len() + table.old.len()
    }
}

/// Two generations: when the young one is full it becomes the old one, and what was old and has not been asked for is forgotten.
#[derive(Debug, Default)]
struct Table {
    young: Blocks,
    old: Blocks,
    /// Most blocks of a generation.
    half: usize,
}

type Blocks = HashMap<u64, [u16; OWNERS], BuildHasherDefault<AsIs>>;

/// No backend.
const NOBODY: u16 = u16::MAX;

impl Table {
    /// How many blocks from the beginning each backend got, by its place in the pool.
    fn known(&self, blocks: &[u64]) -> HashMap<usize, usize> {
        let mut known = HashMap::new();
        for (depth, block) in blocks.iter().enumerate() {
            let Some(owners) = self.young.get(block).or_else(|| self.old.get(block)) else { break };
            for owner in owners.iter().filter(|owner| **owner != NOBODY) {
                // Owners of a block may have been forgotten for one before it: the beginning counts all the same.
                known.insert(usize::from(*owner), depth + 1);
            }
        }
        known
    }

    /// These blocks went to this backend.
    fn add(&mut self, blocks: &[u64], id: usize) {
        let Ok(id) = u16::try_from(id) else { return };
        for block in blocks {
            let mut owners =
                self.young.get(block).copied().or_else(|| self.old.remove(block)).unwrap_or([NOBODY; OWNERS]);
            let at = owners.iter().position(|owner| *owner == id).unwrap_or(OWNERS - 1);
            if let Some(moved) = owners.get_mut(..=at) {
                moved.rotate_right(1);
            }
            if let Some(first) = owners.first_mut() {
                *first = id;
            }
            if self.young.len() >= self.half {
                self.old = std::mem::take(&mut self.young);
            }
            self.young.insert(*block, owners);
        }
    }
}

/// The keys are hashes already.
#[derive(Debug, Default)]
struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64(bytes);
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

/// The values of these members of an object, unparsed, in the order of `names`. Of what is no object: none.
pub(super) fn members<'a>(body: &'a [u8], names: &[String]) -> Vec<Option<&'a RawValue>> {
    let mut found = vec![None; names.len()];
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    // What is no JSON was refused before; whatever is left over here changes no more than the choice.
    let _ = Members { names, found: &mut found }.deserialize(&mut deserializer);
    found
}

struct Members<'n, 'f, 'a> {
    names: &'n [String],
    found: &'f mut [Option<&'a RawValue>],
}

impl<'de> DeserializeSeed<'de> for Members<'_, '_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Members<'_, '_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(Name(name)) = map.next_key()? {
            match self.names.iter().position(|known| *known == name).and_then(|at| self.found.get_mut(at)) {
                Some(place) => *place = Some(map.next_value()?),
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

/// A member's name, borrowed where it has no escapes.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] std::borrow::Cow<'a, str>);
