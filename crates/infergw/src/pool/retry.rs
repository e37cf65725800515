//! Whether, and when, a failed question is tried elsewhere: within a budget, after a pause where the failure was one of load.

use std::time::{Duration, SystemTime};

use http::HeaderMap;
use http::header::RETRY_AFTER;
use tower::retry::budget::{Budget as _, TpsBudget};

use crate::config::Retries;
use crate::types::Cause;

/// For how long a request counts in the budget.
const MEMORY: Duration = Duration::from_secs(10);

/// How long a backend is spared that says 429 or 503 without saying for how long.
const SPARE: Duration = Duration::from_millis(500);

/// The longest that a backend can ask to be spared.
const LONGEST_SPARE: Duration = Duration::from_secs(300);

/// The longest pause before another backend is tried.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The retries that there may be, as a part of the traffic: when everything fails, trying everything elsewhere fails it for good.
#[derive(Debug)]
pub(super) struct Budget {
    budget: TpsBudget,
    most: usize,
    pause: Duration,
}

impl Budget {
    /// With the settings, which were checked.
    pub(super) fn new(retries: &Retries) -> Self {
        let budget = TpsBudget::new(MEMORY, retries.floor.min(1_000_000), retries.share.clamp(0.0, 1.0) as f32);
        Self { budget, most: retries.most, pause: retries.pause }
    }

    /// A question has come.
    pub(super) fn deposit(&self) {
        self.budget.deposit();
    }

    /// Whether there may be one more attempt after so many; it is taken out of the budget.
    pub(super) fn withdraw(&self, attempts: usize) -> bool {
        attempts <= self.most && self.budget.withdraw()
    }

    /// How long to wait after so many attempts, the last of which failed so. `jitter` lies between 0 and 1: the pause is
    /// anything up to the whole, so that those that failed together do not come back together.
    pub(super) fn pause(&self, attempts: usize, cause: Cause, jitter: f64) -> Duration {
        // Where no connection was made no load was: the next one is tried at once.
        if cause == Cause::Unreachable {
            return Duration::ZERO;
        }
        let whole = self.pause.saturating_mul(1 << attempts.saturating_sub(1).min(10)).min(LONGEST_PAUSE);
        whole.mul_f64(jitter.clamp(0.0, 1.0))
    }
}

/// A time-out is never retried, nor what the client asked for wrongly (R1, R4).
pub(super) fn may_retry(cause: Cause) -> bool {
    match cause {
        Cause::Unreachable | Cause::Busy | Cause::Backend | Cause::Truncated => true,
        Cause::Refused | Cause::Timeout | Cause::Cut => false,
    }
}

/// How long a backend wants to be spared that answered with these headers: in seconds, or until a date.
pub(super) fn spare(headers: &HeaderMap, now: SystemTime) -> Duration {
    let Some(value) = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()) else { return SPARE };
    let time = match value.trim().parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).ok(),
        Err(_) => httpdate::parse_http_date(value).ok().map(|date| date.duration_since(now).unwrap_or_default()),
    };
    time.unwrap_or(SPARE).min(LONGEST_SPARE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn retries_are_a_share_of_the_traffic_with_a_floor() {
        let budget = Budget::new(&Retries { share: 0.2, floor: 1, ..Retries::default() });
        let mut spent = 0;
        for _ in 0..1000 {
            budget.deposit();
            spent += usize::from(budget.withdraw(1));
        }
        assert!((205..=215).contains(&spent), "{spent} retries of 1000 requests, and a floor of 10");
        tokio::time::advance(2 * MEMORY).await;
        assert!(budget.withdraw(1), "the floor is there again");
        assert!(!budget.withdraw(4), "three retries at most");
    }

    #[test]
    fn pauses_grow_and_are_spread() {
        let budget = Budget::new(&Retries { pause: Duration::from_millis(100), ..Retries::default() });
        let pause = |attempts, jitter| budget.pause(attempts, Cause::Backend, jitter).as_millis();
        assert_eq!((pause(1, 1.0), pause(2, 1.0), pause(9, 1.0), pause(3, 0.5)), (100, 200, 1000, 200));
        assert_eq!(budget.pause(3, Cause::Unreachable, 1.0), Duration::ZERO);
    }

    #[test]
    fn retry_after_is_read_in_both_forms() {
        let spare = |value: &'static str| {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, http::HeaderValue::from_static(value))]);
            super::spare(&headers, SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777))
        };
        assert_eq!(spare("7"), Duration::from_secs(7));
        assert_eq!(spare("Sun, 06 Nov 1994 08:49:47 GMT"), Duration::from_secs(10));
        assert_eq!(spare("Sun, 06 Nov 1994 08:49:00 GMT"), Duration::ZERO);
        assert_eq!((spare("soon"), spare("-1"), spare("1e30")), (SPARE, SPARE, SPARE));
        assert_eq!(spare("999999"), LONGEST_SPARE);
    }
}
