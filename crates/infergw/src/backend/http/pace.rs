//! Time limits of one answer: one timer for the limit of the current step and that of the whole.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep, sleep_until};

/// The limit that was reached, by the name of its setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Expired(pub(super) &'static str);

pin_project! {
    /// Work within limits. A type and not an `async fn`, which would hold the work twice: as its argument and pinned.
    pub(super) struct Within<'a, F> {
        pace: &'a mut Pace,
        #[pin]
        work: F,
    }
}

impl<F: Future> Future for Within<'_, F> {
    type Output = Result<F::Output, Expired>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        match this.work.poll(cx) {
            Poll::Ready(output) => Poll::Ready(Ok(output)),
            Poll::Pending => this.pace.poll_expired(cx).map(Err),
        }
    }
}

/// Deadlines of an answer. Moving a deadline costs no timer: the timer looks at the deadlines when it fires.
#[derive(Debug)]
pub(super) struct Pace {
    whole: Option<Instant>,
    step: Option<(Instant, &'static str)>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Pace {
    /// The whole answer may take `total`; zero is no limit.
    pub(super) fn new(total: Duration) -> Self {
        Self { whole: after(Instant::now(), total), step: None, timer: None }
    }

    /// From now on the current step may take `limit`, which the setting `name` set; zero is no limit.
    pub(super) fn step(&mut self, limit: Duration, name: &'static str) {
        self.step_since(Instant::now(), limit, name);
    }

    /// The current step began at `since` and may take `limit`, which the setting `name` set; zero is no limit.
    pub(super) fn step_since(&mut self, since: Instant, limit: Duration, name: &'static str) {
        self.step = after(since, limit).map(|at| (at, name));
    }

    /// The current step has no limit of its own: it waits for the client.
    pub(super) fn wait(&mut self) {
        self.step = None;
    }

    /// Run `work` within the limits.
    ///
    /// # Errors
    /// The limit that was reached first.
    pub(super) fn within<F: Future>(&mut self, work: F) -> Within<'_, F> {
        Within { pace: self, work }
    }

    fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<Expired> {
        let Some((deadline, name)) = self.next() else { return Poll::Pending };
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        // A timer that fires early only looks again; one that would fire late is moved.
        if timer.deadline() > deadline {
            timer.as_mut().reset(deadline);
        }
        while timer.as_mut().poll(cx).is_ready() {
            if Instant::now() >= deadline {
                return Poll::Ready(Expired(name));
            }
            timer.as_mut().reset(deadline);
        }
        Poll::Pending
    }

    fn next(&self) -> Option<(Instant, &'static str)> {
        let whole = self.whole.map(|at| (at, "timeouts.total"));
        match (whole, self.step) {
            (Some(whole), Some(step)) => Some(if step.0 <= whole.0 { step } else { whole }),
            (whole, step) => whole.or(step),
        }
    }
}

fn after(since: Instant, limit: Duration) -> Option<Instant> {
    if limit.is_zero() { None } else { since.checked_add(limit) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_nearer_limit_is_named() {
        let mut pace = Pace::new(Duration::from_secs(10));
        pace.step(Duration::from_secs(3), "timeouts.idle");
        let started = Instant::now();
        assert_eq!(pace.within(std::future::pending::<()>()).await, Err(Expired("timeouts.idle")));
        assert_eq!(started.elapsed().as_secs(), 3);
        pace.step(Duration::from_secs(30), "timeouts.idle");
        assert_eq!(pace.within(std::future::pending::<()>()).await, Err(Expired("timeouts.total")));
        assert_eq!(started.elapsed().as_secs(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_that_moves_is_kept() {
        let mut pace = Pace::new(Duration::ZERO);
        let started = Instant::now();
        for _ in 0..10 {
            pace.step(Duration::from_secs(2), "timeouts.idle");
            assert_eq!(pace.within(tokio::time::sleep(Duration::from_secs(1))).await, Ok(()));
        }
        pace.step(Duration::from_millis(500), "timeouts.first_event");
        assert_eq!(pace.within(std::future::pending::<()>()).await, Err(Expired("timeouts.first_event")));
        assert_eq!(started.elapsed().as_millis(), 10_500);
    }
}
