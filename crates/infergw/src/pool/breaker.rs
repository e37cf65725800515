//! Whether a backend gets requests, by how its last ones ended: a function of state, event and time (R1).
//!
//! Sickness (5xx, resets, time-outs) opens the breaker: after a number of failures in a row, or when half of the last ones have
//! failed. After a time one request is let through on trial; its success closes the breaker, and the backend comes back slowly.
//! Back-pressure (429, 503) opens nothing: such a backend is only spared for a while where others can serve. 4xx is no news.

use std::time::Duration;

use tokio::time::Instant;

use crate::config::Breaker as Limits;

/// The last outcomes that are looked at, and how many of them there must be before their share counts.
const WINDOW: u32 = 32;
const ENOUGH: u32 = 20;

/// What a backend that has just come back gets of its part.
const FIRST_SHARE: f64 = 0.1;

/// How a request ended, for the breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It was answered, if only with a refusal (4xx).
    Well,
    /// Back-pressure: spare it for so long.
    Busy(Duration),
    /// A sign of sickness.
    Sick,
    /// It says nothing: the client went away, no connection was made, the gateway gave up.
    Nothing,
}

/// Whether it can take a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// It can.
    Well,
    /// It can, but has asked to be spared.
    Spared,
    /// One, on trial.
    Trial,
    /// Not before this time.
    Open(Instant),
    /// Not until the trial has ended.
    Tried,
}

/// A backend's breaker.
#[derive(Debug, Clone, Default)]
pub(super) struct Breaker {
    state: State,
    /// The last outcomes, the latest in the lowest bit; a failure is 1.
    history: u32,
    seen: u32,
    spared: Option<Instant>,
    returned: Option<Instant>,
    /// Counts the times that it opened: what was begun before is of another life.
    life: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Closed,
    Open {
        until: Instant,
        times: u32,
    },
    Trial {
        times: u32,
    },
}

/// That a request was let through. It must come back to [`Breaker::leave`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pass {
    life: u64,
    trial: bool,
}

impl Breaker {
    /// Whether it can take a request now.
    pub(super) fn standing(&self, now: Instant) -> Standing {
        match self.state {
            State::Closed if self.spared.is_some_and(|until| now < until) => Standing::Spared,
            State::Closed => Standing::Well,
            State::Open { until, .. } if now < until => Standing::Open(until),
            State::Open { .. } => Standing::Trial,
            State::Trial { .. } => Standing::Tried,
        }
    }

    /// The part of its load that it should get: below 1 for a while after it has come back.
    pub(super) fn share(&self, now: Instant, limits: &Limits) -> f64 {
        let Some(returned) = self.returned else { return 1.0 };
        let part = now.saturating_duration_since(returned).as_secs_f64() / limits.slow_start.as_secs_f64().max(1e-9);
        part.clamp(FIRST_SHARE, 1.0)
    }

    /// Whether nothing is remembered: a success would change nothing.
    pub(super) fn is_calm(&self) -> bool {
        self.state == State::Closed && self.history == 0 && self.spared.is_none() && self.returned.is_none()
    }

    /// A request goes there.
    pub(super) fn enter(&mut self, now: Instant, limits: &Limits) -> Pass {
        if self.spared.is_some_and(|until| until <= now) {
            self.spared = None;
        }
        if self.returned.is_some_and(|returned| now >= returned + limits.slow_start) {
            self.returned = None;
        }
        let trial = match self.state {
            State::Open { times, .. } => {
                self.state = State::Trial { times };
                true
            }
            State::Closed | State::Trial { .. } => false,
        };
        Pass { life: self.life, trial }
    }

    /// The pass of a request that went by while nothing was remembered.
    pub(super) fn unremarked(&self) -> Pass {
        Pass { life: self.life, trial: false }
    }

    /// It ended. `jitter`, between 0 and 1, spreads the trials of many gateways.
    pub(super) fn leave(&mut self, pass: Pass, verdict: Verdict, now: Instant, (limits, jitter): (&Limits, f64)) {
        if pass.life != self.life {
            return;
        }
        match (self.state, verdict) {
            (State::Trial { times }, Verdict::Nothing) if pass.trial => self.state = State::Open { until: now, times },
            (State::Trial { times }, Verdict::Sick) if pass.trial => self.open(now, times + 1, (limits, jitter)),
            (State::Trial { .. }, Verdict::Well | Verdict::Busy(_)) if pass.trial => {
                self.reset();
                self.returned(now);
            }
            (State::Closed, Verdict::Well | Verdict::Sick) => self.count(verdict == Verdict::Sick),
            _ => {}
        }
        if let Verdict::Busy(time) = verdict {
            self.spared = self.spared.max(Some(now + time));
        }
        if self.state == State::Closed && self.must_open(limits) {
            self.open(now, 0, (limits, jitter));
        }
    }

    /// Forget all: its own health has told that it was down, so that what failed is of another life.
    pub(super) fn reset(&mut self) {
        *self = Self { life: self.life + 1, ..Self::default() };
    }

    /// It is back: it gets little at first.
    pub(super) fn returned(&mut self, now: Instant) {
        self.returned = Some(now);
    }

    fn count(&mut self, failed: bool) {
        self.history = self.history << 1 | u32::from(failed);
        self.seen = (self.seen + 1).min(WINDOW);
        if self.history == 0 {
            self.seen = 0;
        }
    }

    fn must_open(&self, limits: &Limits) -> bool {
        if limits.failures == 0 || self.history == 0 {
            return false;
        }
        let in_a_row = self.history.trailing_ones() >= limits.failures.min(WINDOW);
        in_a_row || (self.seen >= ENOUGH && self.history.count_ones() * 2 >= self.seen)
    }

    fn open(&mut self, now: Instant, times: u32, (limits, jitter): (&Limits, f64)) {
        let pause = limits.pause.saturating_mul(1 << times.min(16)).min(limits.longest);
        let until = now + pause.mul_f64(0.75 + 0.5 * jitter.clamp(0.0, 1.0));
        *self = Self { state: State::Open { until, times }, life: self.life + 1, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn limits() -> Limits {
        Limits { failures: 5, pause: SECOND, longest: 8 * SECOND, slow_start: 10 * SECOND }
    }

    fn run(breaker: &mut Breaker, verdicts: impl IntoIterator<Item = Verdict>, now: Instant) {
        for verdict in verdicts {
            let pass = breaker.enter(now, &limits());
            breaker.leave(pass, verdict, now, (&limits(), 0.5));
        }
    }

    #[test]
    fn r1_only_sickness_opens() {
        let now = Instant::now();
        let mut breaker = Breaker::default();
        run(&mut breaker, [Verdict::Well, Verdict::Nothing, Verdict::Busy(SECOND)].repeat(50), now);
        assert_eq!(breaker.standing(now), Standing::Spared);
        assert_eq!(breaker.standing(now + SECOND), Standing::Well);
        run(&mut breaker, [Verdict::Sick; 4], now);
        run(&mut breaker, [Verdict::Well], now);
        run(&mut breaker, [Verdict::Sick; 4], now);
        assert_eq!(breaker.standing(now + SECOND), Standing::Well, "not so many in a row");
        run(&mut breaker, [Verdict::Sick], now);
        assert_eq!(breaker.standing(now), Standing::Open(now + SECOND));
    }

    #[test]
    fn half_of_the_last_ones_open_it_too() {
        let now = Instant::now();
        let mut breaker = Breaker::default();
        run(&mut breaker, [Verdict::Sick, Verdict::Well, Verdict::Well].repeat(40), now);
        assert_eq!(breaker.standing(now), Standing::Well);
        for verdict in [Verdict::Sick, Verdict::Well].repeat(16) {
            if breaker.standing(now) == Standing::Well {
                run(&mut breaker, [verdict], now);
            }
        }
        assert!(matches!(breaker.standing(now), Standing::Open(_)));
        let mut calm = Breaker::default();
        run(&mut calm, [Verdict::Sick], now);
        assert!(!calm.is_calm());
        run(&mut calm, [Verdict::Well; 32], now);
        assert!(calm.is_calm());
    }

    #[test]
    fn one_request_is_its_trial_and_it_comes_back_slowly() {
        let start = Instant::now();
        let mut breaker = Breaker::default();
        let early = breaker.enter(start, &limits());
        run(&mut breaker, [Verdict::Sick; 5], start);
        // What was begun before says nothing now.
        breaker.leave(early, Verdict::Well, start, (&limits(), 0.5));
        let mut now = start;
        for pause in [1, 2, 4, 8, 8] {
            assert_eq!(breaker.standing(now), Standing::Open(now + pause * SECOND));
            now += pause * SECOND;
            assert_eq!(breaker.standing(now), Standing::Trial);
            let trial = breaker.enter(now, &limits());
            assert_eq!(breaker.standing(now), Standing::Tried);
            breaker.leave(trial, Verdict::Nothing, now, (&limits(), 0.5));
            assert_eq!(breaker.standing(now), Standing::Trial, "a client that goes away does not use it up");
            run(&mut breaker, [Verdict::Sick], now);
        }
        now += 8 * SECOND;
        run(&mut breaker, [Verdict::Well], now);
        assert_eq!(breaker.standing(now), Standing::Well);
        let share = |after: u32| breaker.share(now + after * SECOND, &limits());
        assert_eq!((share(0), share(5), share(10), share(99)), (0.1, 0.5, 1.0, 1.0));
    }
}
