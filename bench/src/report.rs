//! What a run measured.

use std::time::Duration;

use serde::Serialize;

/// One run of the load generator.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Connections that asked at once; each asks its next question when it has the answer to the last.
    pub connections: usize,
    /// Answers that came whole and with status 200.
    pub requests: u64,
    /// Everything else: other statuses, error events, broken connections, streams without `[DONE]`.
    pub errors: u64,
    /// The first error, in words.
    pub first_error: Option<String>,
    /// From the first question to the last answer.
    pub seconds: f64,
    /// Whole answers per second.
    pub requests_per_s: f64,
    /// From the question's first byte to the answer's last.
    pub latency: Percentiles,
    /// From the question's first byte to the body's first byte.
    pub first_byte: Percentiles,
    /// SSE events, `[DONE]` included.
    pub events: u64,
    /// Events per second.
    pub events_per_s: f64,
    /// Sum of the `completion_tokens` that the answers report.
    pub tokens: u64,
    /// Tokens per second.
    pub tokens_per_s: f64,
    /// Bytes of answer bodies.
    pub bytes: u64,
}

/// Exact percentiles, in microseconds.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Percentiles {
    /// The median.
    pub p50_us: f64,
    /// Nine in ten are faster.
    pub p90_us: f64,
    /// 99 in 100 are faster.
    pub p99_us: f64,
    /// The slowest.
    pub max_us: f64,
    /// The mean.
    pub mean_us: f64,
}

impl Percentiles {
    /// Of any number of samples; all zero if there are none.
    pub fn of(mut samples: Vec<Duration>) -> Self {
        samples.sort_unstable();
        let micros = |sample: Duration| sample.as_secs_f64() * 1e6;
        let at = |share: f64| {
            let index = (samples.len() as f64 * share) as usize;
            samples.get(index.min(samples.len().saturating_sub(1))).copied().map(micros).unwrap_or_default()
        };
        let total: Duration = samples.iter().sum();
        Self {
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            max_us: at(1.0),
            mean_us: micros(total) / samples.len().max(1) as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_exact() {
        let percentiles = Percentiles::of((1..=1000).rev().map(Duration::from_micros).collect());
        assert_eq!(percentiles.p50_us.round(), 501.0);
        assert_eq!(percentiles.p99_us.round(), 991.0);
        assert_eq!(percentiles.max_us.round(), 1000.0);
        assert_eq!(Percentiles::of(Vec::new()).max_us, 0.0);
    }
}
