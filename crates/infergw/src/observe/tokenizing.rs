//! How often the tokens of a long piece of text were known already.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

/// The counters of tokenization. Clones count together.
#[derive(Debug, Clone, Default)]
pub struct Tokenizing {
    hits: Counter,
    misses: Counter,
    hit_bytes: Counter,
    missed_bytes: Counter,
}

impl Tokenizing {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register("token_cache_hits", "Pieces of text whose tokens were known", self.hits.clone());
        registry.register("token_cache_misses", "Pieces of text that were tokenized", self.misses.clone());
        registry.register("token_cache_hit_bytes", "Bytes of text whose tokens were known", self.hit_bytes.clone());
        registry.register("token_cache_missed_bytes", "Bytes of text that were tokenized", self.missed_bytes.clone());
    }

    /// The tokens of so many bytes were known.
    pub fn hit(&self, bytes: usize) {
        self.hits.inc();
        self.hit_bytes.inc_by(bytes as u64);
    }

    /// So many bytes had to be tokenized.
    pub fn missed(&self, bytes: usize) {
        self.misses.inc();
        self.missed_bytes.inc_by(bytes as u64);
    }

    /// Pieces whose tokens were known.
    pub fn hits(&self) -> u64 {
        self.hits.get()
    }

    /// Pieces that were tokenized.
    pub fn misses(&self) -> u64 {
        self.misses.get()
    }
}
