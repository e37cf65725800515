//! From evidence to a verdict on one rank. Pure: what was observed and when goes in, what it means comes out.
//!
//! The wire says nothing about a rank that is killed, hangs, or whose host is gone. What there is to see: its
//! connection closes; a send finds no such peer; it sends nothing while requests run, and nothing when asked for a sign
//! of life.

use std::time::{Duration, Instant};

/// How long to wait for which evidence.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Silence while requests run, until the rank counts as hung.
    pub(crate) silence: Duration,
    /// Silence while requests run, until the rank is asked for a sign of life, and from then between two askings.
    pub(crate) ping_after: Duration,
}

/// When a rank was last heard.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pulse {
    /// The last output, or the moment from which output was due.
    due_since: Instant,
    pinged: Option<Instant>,
}

/// What a rank's silence means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing is due, or not for long.
    Fine,
    /// Ask for a sign of life.
    Ask,
    /// It hangs.
    Hung,
}

// === impl Pulse ===

impl Pulse {
    pub(crate) fn new(now: Instant) -> Self {
        Self { due_since: now, pinged: None }
    }

    /// Output arrived, or the first request after a pause was submitted: silence counts from now.
    pub(crate) fn restart(&mut self, now: Instant) {
        *self = Self::new(now);
    }

    /// A sign of life was asked for.
    pub(crate) fn asked(&mut self, now: Instant) {
        self.pinged = Some(now);
    }

    /// How long nothing came.
    pub(crate) fn silent_for(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.due_since)
    }

    /// The verdict on a rank that should be sending.
    pub(crate) fn judge(&self, now: Instant, limits: Limits) -> Verdict {
        let silent = self.silent_for(now);
        if silent >= limits.silence {
            return Verdict::Hung;
        }
        if silent >= limits.ping_after && self.may_ask(now, limits) {
            return Verdict::Ask;
        }
        Verdict::Fine
    }

    /// Whether the last asking is long enough ago.
    pub(crate) fn may_ask(&self, now: Instant, limits: Limits) -> bool {
        self.pinged.is_none_or(|at| now.saturating_duration_since(at) >= limits.ping_after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { silence: Duration::from_secs(30), ping_after: Duration::from_secs(5) };

    #[test]
    fn silence_is_asked_about_before_it_is_judged() {
        let start = Instant::now();
        let mut pulse = Pulse::new(start);
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(pulse.judge(after(4), LIMITS), Verdict::Fine);
        assert_eq!(pulse.judge(after(5), LIMITS), Verdict::Ask);
        pulse.asked(after(5));
        assert_eq!(pulse.judge(after(9), LIMITS), Verdict::Fine);
        assert_eq!(pulse.judge(after(10), LIMITS), Verdict::Ask);
        assert_eq!(pulse.judge(after(30), LIMITS), Verdict::Hung);
        pulse.restart(after(30));
        assert_eq!(pulse.judge(after(31), LIMITS), Verdict::Fine);
    }
}
