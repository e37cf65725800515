//! What sharing is worth: plain atomic counters, added to when a flight begins or a subscriber leaves, never for each event.

use std::sync::LazyLock;

use memchr::memmem::Finder;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::types::Bypass;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

/// The counters of sharing. Clones count together.
#[derive(Debug, Clone)]
pub struct Sharing {
    /// Generations that were begun for others to join.
    pub flights: Counter,
    /// Subscribers of all flights now, those that fly alone included.
    pub subscribers: Gauge,
    saved_bytes: Counter,
    saved_tokens: Counter,
    by_reason: Family<ReasonLabels, Counter>,
    /// The same counters, found without a look-up.
    bypasses: [Counter; Bypass::ALL.len()],
}

impl Default for Sharing {
    fn default() -> Self {
        let by_reason: Family<ReasonLabels, Counter> = Family::default();
        let bypasses =
            Bypass::ALL.map(|bypass| by_reason.get_or_create(&ReasonLabels { reason: bypass.as_str() }).clone());
        Self {
            flights: Counter::default(),
            subscribers: Gauge::default(),
            saved_bytes: Counter::default(),
            saved_tokens: Counter::default(),
            by_reason,
            bypasses,
        }
    }
}

impl Sharing {
    /// A request ran by itself although it asked for a generation.
    pub fn bypassed(&self, bypass: Bypass) {
        if let Some(counter) = self.bypasses.get(bypass as usize) {
            counter.inc();
        }
    }

    /// A subscriber got what another one had got already: bytes, and about so many tokens.
    pub fn saved(&self, bytes: u64, tokens: u64) {
        self.saved_bytes.inc_by(bytes);
        self.saved_tokens.inc_by(tokens);
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register("coalesce_flights", "Generations that others could join", self.flights.clone());
        registry.register("coalesce_subscribers", "Clients that read an answer now", self.subscribers.clone());
        registry.register(
            "coalesce_saved_bytes",
            "Bytes that clients got from another client's generation",
            self.saved_bytes.clone(),
        );
        registry.register(
            "coalesce_saved_tokens",
            "Generated tokens that clients got from another client's generation: by its usage, else its events with content",
            self.saved_tokens.clone(),
        );
        registry.register("coalesce_bypasses", "Requests that did not share, by the reason", self.by_reason.clone());
    }
}

/// Where answers say how many tokens were generated.
static GENERATED: LazyLock<[Finder<'static>; 2]> =
    LazyLock::new(|| ["\"completion_tokens\":", "\"output_tokens\":"].map(Finder::new));

/// Where they say how many tokens the prompt had.
static PROMPT: LazyLock<[Finder<'static>; 2]> =
    LazyLock::new(|| ["\"prompt_tokens\":", "\"input_tokens\":"].map(Finder::new));

/// The number of generated tokens that an answer, or an event of one, reports.
///
/// Looked for as text: inside JSON strings the quotation marks of the names would be escaped.
pub fn generated_tokens(data: &[u8]) -> Option<u64> {
    number(&*GENERATED, data)
}

/// The number of prompt tokens that an answer, or an event of one, reports.
pub fn prompt_tokens(data: &[u8]) -> Option<u64> {
    number(&*PROMPT, data)
}

fn number(names: &[Finder<'static>], data: &[u8]) -> Option<u64> {
    names.iter().find_map(|name| {
        let at = name.find(data)? + name.needle().len();
        let digits = data.get(at..).unwrap_or_default().trim_ascii_start();
        let count = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
        std::str::from_utf8(digits.get(..count)?).ok()?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answers_own_count_of_tokens_is_found() {
        assert_eq!(generated_tokens(br#"{"usage":{"prompt_tokens":3,"completion_tokens": 17}}"#), Some(17));
        assert_eq!(generated_tokens(br#"{"usage":{"output_tokens":5}}"#), Some(5));
        assert_eq!(generated_tokens(br#"{"content":"\"completion_tokens\":5"}"#), None);
        assert_eq!(generated_tokens(br#"{"completion_tokens":null}"#), None);
        assert_eq!(prompt_tokens(br#"{"prompt_tokens_details":{"x":1},"prompt_tokens":3}"#), Some(3));
        assert_eq!(prompt_tokens(br#"{"usage":{"cache_read_input_tokens":9,"input_tokens":5}}"#), Some(5));
    }
}
