//! A request's place, first in line and then on its model; dropping it gives it back.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot::{self, error::TryRecvError};
use tokio::time::{Instant, timeout};

use super::Admission;
use super::line::Place;
use super::state::{Arrival, Refusal, Verdict};
use crate::types::Spent;

/// That a request may run.
#[derive(Debug)]
pub(super) struct Permit<'a> {
    admission: &'a Admission,
    arrival: Arrival,
    stage: Stage,
    spent: Arc<Spent>,
    /// The answer came to its end, good or bad; else its clients went away.
    ended: bool,
}

#[derive(Debug)]
enum Stage {
    Waiting(Place, oneshot::Receiver<()>),
    Running(Instant),
    Gone,
}

impl<'a> Permit<'a> {
    /// Wait for it.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) async fn get(admission: &'a Admission, arrival: Arrival) -> Result<Self, Refusal> {
        let came = Instant::now();
        let settings = admission.settings.load_full();
        let verdict = admission.lock().arrive(&arrival, &settings, came)?;
        let mut permit = Self { admission, arrival, stage: Stage::Running(came), spent: Arc::default(), ended: false };
        if let Verdict::Waits(place, granted) = verdict {
            permit.stage = Stage::Waiting(place, granted);
            permit.wait(settings.timeout).await?;
        }
        let now = Instant::now();
        admission.metrics.wait.observe((now - came).as_secs_f64());
        permit.stage = Stage::Running(now);
        Ok(permit)
    }

    /// Where its tokens are to be booked.
    pub(super) fn spent(&self) -> Arc<Spent> {
        Arc::clone(&self.spent)
    }

    /// The answer came to its end.
    pub(super) fn end(mut self) {
        self.ended = true;
    }

    async fn wait(&mut self, limit: Duration) -> Result<(), Refusal> {
        let Stage::Waiting(_, granted) = &mut self.stage else { return Ok(()) };
        let told = if limit.is_zero() { Ok(granted.await) } else { timeout(limit, granted).await };
        let mut state = self.admission.lock();
        let (settings, now) = (self.admission.settings.load(), Instant::now());
        let Stage::Waiting(place, granted) = &mut self.stage else { return Ok(()) };
        let refusal = match told {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(_)) => state.displaced(&self.arrival, &settings, now),
            // It may have been told since; under the lock that cannot change any more.
            Err(_) => match granted.try_recv() {
                Ok(()) => return Ok(()),
                Err(TryRecvError::Empty) => state.gives_up(&self.arrival, *place, &settings, now),
                Err(TryRecvError::Closed) => state.displaced(&self.arrival, &settings, now),
            },
        };
        drop(state);
        self.stage = Stage::Gone;
        Err(refusal)
    }

    /// Tokens of prompt and answer that are to be booked.
    fn used(&self) -> (u64, u64) {
        let spent = &self.spent;
        // Who goes away has had the prompt read; what failed before it began costs nothing.
        let begun = spent.has_content() || !self.ended;
        let prompt = spent.prompt().unwrap_or(if begun { self.arrival.tokens } else { 0 });
        (prompt, spent.generated())
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut state = self.admission.lock();
        let (settings, now) = (self.admission.settings.load(), Instant::now());
        let (used, took) = match &mut self.stage {
            Stage::Gone => return,
            Stage::Running(since) => {
                let took = now - *since;
                (self.used(), took)
            }
            Stage::Waiting(place, granted) => match granted.try_recv() {
                // It was told after it had gone away.
                Ok(()) => ((0, 0), Duration::ZERO),
                Err(TryRecvError::Empty) => {
                    state.gives_up(&self.arrival, *place, &settings, now);
                    return;
                }
                Err(TryRecvError::Closed) => {
                    state.displaced(&self.arrival, &settings, now);
                    return;
                }
            },
        };
        state.ends(&self.arrival, used, took, (&settings, now));
    }
}
