//! The time limits of one answer: its first tokens, the silence between tokens, the whole (R8).

use std::pin::Pin;
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use crate::api::error::ApiError;
use crate::config::Timeouts;
use crate::types::{Cause, Failure};

/// What a deadline asks for.
#[derive(Debug)]
pub(super) enum Due {
    /// A comment is to be sent: nothing came for the keep-alive interval (S8).
    KeepAlive,
    /// The answer took too long.
    Expired(Failure),
}

/// The clock of one answer. Its timer is moved only when it fires, not with every token.
#[derive(Debug)]
pub(super) struct Deadlines {
    limits: Timeouts,
    started: Instant,
    /// When something was last heard from the engine, and when something was last told to the client.
    heard: Instant,
    told: Instant,
    /// Whether every choice has begun: from then on silence is measured, not the first token.
    begun: bool,
    comments: bool,
    timer: Pin<Box<Sleep>>,
}

impl Deadlines {
    /// From now on. `comments` says whether the client can be sent keep-alive comments.
    pub(super) fn start(limits: &Timeouts, comments: bool) -> Self {
        let now = Instant::now();
        let mut deadlines = Self {
            limits: limits.clone(),
            started: now,
            heard: now,
            told: now,
            begun: false,
            comments: comments && !limits.keep_alive.is_zero(),
            timer: Box::pin(sleep_until(now)),
        };
        deadlines.rearm();
        deadlines
    }

    /// The engine was heard; `begun` says whether every choice has begun.
    pub(super) fn heard(&mut self, begun: bool) {
        self.heard = Instant::now();
        self.told = self.heard;
        if begun && !self.begun {
            self.begun = true;
            // The silence limit may be the nearer one.
            self.rearm();
        }
    }

    /// Wait until something is due. Dropping the future loses nothing.
    pub(super) async fn due(&mut self) -> Due {
        loop {
            self.timer.as_mut().await;
            let now = Instant::now();
            if let Some(failure) = self.expired(now) {
                return Due::Expired(failure);
            }
            if self.comments && now >= self.told + self.limits.keep_alive {
                self.told = now;
                self.rearm();
                return Due::KeepAlive;
            }
            self.rearm();
        }
    }

    fn rearm(&mut self) {
        let comment = self.comments.then(|| self.told + self.limits.keep_alive);
        let next = self.marks().into_iter().map(|(at, _)| at).chain([comment]).flatten().min();
        // Without any limit the timer still needs a time; it is far away and harmless.
        let next = next.unwrap_or_else(|| Instant::now() + Duration::from_secs(24 * 3600));
        self.timer.as_mut().reset(next);
    }

    /// The limits in force and their keys in the configuration.
    fn marks(&self) -> [(Option<Instant>, &'static str); 2] {
        let at = |from: Instant, limit: Duration| (!limit.is_zero()).then(|| from + limit);
        let progress = if self.begun {
            (at(self.heard, self.limits.idle), "timeouts.idle")
        } else {
            (at(self.started, self.limits.first_event), "timeouts.first_event")
        };
        [progress, (at(self.started, self.limits.total), "timeouts.total")]
    }

    fn expired(&self, now: Instant) -> Option<Failure> {
        let passed = |(at, key): (Option<Instant>, &'static str)| at.filter(|&at| now >= at).map(|_| key);
        let key = self.marks().into_iter().find_map(passed)?;
        let message = match key {
            "timeouts.first_event" => "The engine did not begin to answer in time.",
            "timeouts.idle" => "The engine fell silent in the middle of its answer.",
            _ => "The answer took longer than is allowed.",
        };
        Some(Failure::new(Cause::Timeout, ApiError::timeout(message, key)))
    }
}

#[cfg(test)]
mod tests;
