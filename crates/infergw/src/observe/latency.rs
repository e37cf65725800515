//! The time between two tokens of a stream, as it comes from its backend.
//!
//! It is taken for every token, so it costs little: each flight counts by itself and adds to the whole now and then.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use tokio::time::Instant;

/// Half a millisecond, doubled up to 16 seconds; then all that is longer.
const BUCKETS: usize = 17;

/// The upper end of the first bucket.
const FIRST: Duration = Duration::from_micros(500);

/// Tokens after which a flight adds its counts to the whole.
const OFTEN: u64 = 64;

/// The histogram. Clones count together.
#[derive(Debug, Clone, Default)]
pub struct InterToken(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    buckets: [AtomicU64; BUCKETS],
    nanos: AtomicU64,
}

impl InterToken {
    /// The times of one flight.
    pub fn flight(&self) -> Gaps {
        Gaps { whole: self.clone(), said: 0, last: None, buckets: [0; BUCKETS], count: 0, nanos: 0 }
    }
}

impl EncodeMetric for InterToken {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        let ends = (0..BUCKETS).map(|at| if at + 1 < BUCKETS { end(at).as_secs_f64() } else { f64::INFINITY });
        let counts = self.0.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed));
        let buckets: Vec<(f64, u64)> = ends.zip(counts).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let seconds = Duration::from_nanos(self.0.nanos.load(Ordering::Relaxed)).as_secs_f64();
        encoder.encode_histogram::<NoLabelSet>(seconds, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

/// The upper end of a bucket.
fn end(bucket: usize) -> Duration {
    FIRST * (1 << bucket)
}

/// The times of one flight.
#[derive(Debug)]
pub struct Gaps {
    whole: InterToken,
    said: u64,
    last: Option<Instant>,
    buckets: [u64; BUCKETS],
    count: u64,
    nanos: u64,
}

impl Gaps {
    /// So many tokens have come by now. Those that come together share the time since the ones before.
    pub fn said(&mut self, so_far: u64) {
        let new = so_far.saturating_sub(self.said);
        if new == 0 {
            return;
        }
        self.said = so_far;
        let now = Instant::now();
        if let Some(last) = self.last.replace(now) {
            let nanos = u64::try_from((now - last).as_nanos()).unwrap_or(u64::MAX);
            let each = Duration::from_nanos(nanos / new);
            let at = (0..BUCKETS - 1).find(|at| each <= end(*at)).unwrap_or(BUCKETS - 1);
            if let Some(bucket) = self.buckets.get_mut(at) {
                *bucket += new;
            }
            self.count += new;
            self.nanos = self.nanos.saturating_add(nanos);
            if self.count >= OFTEN {
                self.add();
            }
        }
    }

    /// The flight has waited for its clients: that time is not the backend's.
    pub fn waited(&mut self) {
        if let Some(last) = &mut self.last {
            *last = Instant::now();
        }
    }

    fn add(&mut self) {
        for (mine, whole) in self.buckets.iter_mut().zip(&self.whole.0.buckets) {
            if *mine > 0 {
                whole.fetch_add(std::mem::take(mine), Ordering::Relaxed);
            }
        }
        self.whole.0.nanos.fetch_add(std::mem::take(&mut self.nanos), Ordering::Relaxed);
        self.count = 0;
    }
}

impl Drop for Gaps {
    fn drop(&mut self) {
        self.add();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(histogram: &InterToken) -> Vec<(usize, u64)> {
        let counts = histogram.0.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).enumerate();
        counts.filter(|(_, count)| *count > 0).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_that_come_together_share_the_time() {
        let whole = InterToken::default();
        let mut gaps = whole.flight();
        let pause = |millis| tokio::time::advance(Duration::from_millis(millis));
        pause(500).await;
        gaps.said(2); // the first ones have no gap
        pause(2).await;
        gaps.said(3);
        gaps.said(3); // no new token
        pause(40).await;
        gaps.said(7); // four in 40 ms
        pause(1000).await;
        gaps.waited();
        pause(1).await;
        gaps.said(8);
        pause(60_000).await;
        gaps.said(9);
        assert_eq!(counts(&whole), []);
        drop(gaps);
        assert_eq!(counts(&whole), [(1, 1), (2, 1), (5, 4), (BUCKETS - 1, 1)]);
        assert_eq!(whole.0.nanos.load(Ordering::Relaxed), 60_043_000_000);
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_flight_does_not_wait_for_its_end() {
        let whole = InterToken::default();
        let mut gaps = whole.flight();
        for token in 1..=OFTEN + 1 {
            gaps.said(token);
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert_eq!(counts(&whole), [(1, OFTEN)]);
    }
}
