//! A tenant's tokens: as many as it may use in a minute, coming back evenly. What an answer costs more than was thought is a
//! debt, which the next requests wait for.

use std::time::Duration;

use tokio::time::Instant;

/// A number of tokens that fills up with time.
#[derive(Debug, Clone, Default)]
pub(super) struct Bucket {
    /// What is there, below zero where there is a debt; `None` is all.
    level: Option<(f64, Instant)>,
}

impl Bucket {
    /// Take `tokens` out, where that many are there, or all that there can be.
    ///
    /// # Errors
    /// How long it takes until they are.
    pub(super) fn take(&mut self, tokens: u64, per_minute: u64, now: Instant) -> Result<(), Duration> {
        let (capacity, level) = (per_minute as f64, self.level(per_minute, now));
        let needed = (tokens as f64).min(capacity).max(1.0);
        if level < needed {
            return Err(Duration::from_secs_f64((needed - level) * 60.0 / capacity.max(1e-3)));
        }
        self.level = Some((level - tokens as f64, now));
        Ok(())
    }

    /// What was taken turns out to have been `used` tokens instead of `taken`.
    pub(super) fn settle(&mut self, taken: u64, used: u64, per_minute: u64, now: Instant) {
        if per_minute == 0 {
            return;
        }
        let level = self.level(per_minute, now) + taken as f64 - used as f64;
        self.level = Some((level.min(per_minute as f64), now));
    }

    /// What is there.
    pub(super) fn level(&self, per_minute: u64, now: Instant) -> f64 {
        let capacity = per_minute as f64;
        let Some((level, at)) = self.level else { return capacity };
        let filled = now.saturating_duration_since(at).as_secs_f64() * capacity / 60.0;
        (level + filled).min(capacity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_back_evenly_and_debts_are_waited_for() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut bucket = Bucket::default();
        assert_eq!(bucket.take(40, 60, start), Ok(()));
        assert_eq!(bucket.take(30, 60, start), Err(Duration::from_secs(10)));
        bucket.settle(40, 100, 60, start);
        assert_eq!(bucket.level(60, start), -40.0);
        assert_eq!(bucket.take(20, 60, at(59)), Err(Duration::from_secs(1)));
        assert_eq!(bucket.take(20, 60, at(60)), Ok(()));
        bucket.settle(20, 0, 60, at(60));
        assert_eq!(bucket.level(60, at(60)), 20.0);
        assert_eq!(bucket.level(60, at(1000)), 60.0, "no more than a minute's");
    }

    #[test]
    fn what_is_larger_than_all_of_them_needs_all_of_them() {
        let start = Instant::now();
        let mut bucket = Bucket::default();
        assert_eq!(bucket.take(1000, 60, start), Ok(()));
        assert_eq!(bucket.level(60, start), -940.0);
        assert_eq!(bucket.take(0, 60, start), Err(Duration::from_secs(941)), "nothing is free while there is a debt");
    }
}
