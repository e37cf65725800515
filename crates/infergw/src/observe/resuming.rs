//! What coming back to streams does: how often, what waits for clients, and what waited in vain.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    reason: &'static str,
}

/// Why a flight that waited for its clients was let go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gone {
    /// Its time was over.
    Time,
    /// The memory for such flights was used up.
    Bytes,
}

/// The counters of coming back. Clones count together.
#[derive(Debug, Clone)]
pub struct Resuming {
    /// Requests that went on with an answer that was there.
    pub resumed: Counter,
    flights: Gauge,
    bytes: Gauge,
    gone: Family<Labels, Counter>,
}

impl Default for Resuming {
    fn default() -> Self {
        let gone: Family<Labels, Counter> = Family::default();
        for reason in ["time", "bytes"] {
            // Both are there from the start.
            drop(gone.get_or_create(&Labels { reason }));
        }
        Self { resumed: Counter::default(), flights: Gauge::default(), bytes: Gauge::default(), gone }
    }
}

impl Resuming {
    /// Bytes that flights without a client hold.
    pub fn bytes(&self) -> usize {
        usize::try_from(self.bytes.get()).unwrap_or(0)
    }

    /// A flight without a client holds `now` bytes instead of `before`; with 0 it is none.
    pub fn charge(&self, before: usize, now: usize) {
        self.bytes.inc_by(now as i64 - before as i64);
        self.flights.inc_by(i64::from(now > 0) - i64::from(before > 0));
    }

    /// A flight waited in vain.
    pub fn gone(&self, why: Gone) {
        let reason = match why {
            Gone::Time => "time",
            Gone::Bytes => "bytes",
        };
        self.gone.get_or_create(&Labels { reason }).inc();
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register("resumed", "Requests that went on with an answer that was there", self.resumed.clone());
        registry.register(
            "resume_expired",
            "Flights that waited for a client in vain, by why they went",
            self.gone.clone(),
        );
        registry.register("lingering_flights", "Flights without a client that wait for one", self.flights.clone());
        registry.register("lingering_bytes", "Bytes that flights without a client hold", self.bytes.clone());
    }
}
