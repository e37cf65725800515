//! A backend's place in the pool: its name, its breaker, and what runs on it.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use http::HeaderValue;
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64;

use super::breaker::{Breaker, Pass, Standing, Verdict};
use super::policy::Candidate;
use super::retry::spare;
use super::roster::{Origin, Seen};
use crate::backend::{Backend, Fitness};
use crate::config;
use crate::observe::BackendMetrics;
use crate::types::{BackendKind, Cause, Failure};

/// One backend of the pool.
#[derive(Debug)]
pub(super) struct Member {
    /// Its name, from the configuration or by its place; never its address.
    pub(super) name: Arc<str>,
    /// The same as a header's value.
    pub(super) stamp: HeaderValue,
    pub(super) backend: Backend,
    /// Its place for policies that remember: no other member has it while this one lives.
    pub(super) slot: usize,
    pub(super) origin: Origin,
    /// A [`Duty`].
    duty: AtomicU8,
    identity: u64,
    /// The bits of an `f64`: it can change while requests run.
    weight: AtomicU64,
    in_flight: AtomicUsize,
    breaker: Mutex<Breaker>,
    limits: config::Breaker,
    /// The breaker remembers nothing: most requests need no look at it.
    calm: AtomicBool,
    /// The backend's own health has said that it cannot serve.
    down: AtomicBool,
    metrics: BackendMetrics,
}

/// Whether a member gets requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Duty {
    /// It does.
    Serving,
    /// None for now; running ones finish.
    Draining,
    /// None any more: it was taken out of the pool, and running ones finish.
    Left,
}

/// How a member stands to a question.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Place {
    /// It can take it.
    Ready(Candidate),
    /// It can, but has asked to be spared (429, 503).
    Spared(Candidate),
    /// It was unreachable a moment ago.
    LastResort(Candidate),
    /// Its breaker is open, until this time where that is known.
    Open(Option<Instant>),
    /// It cannot.
    Out,
}

impl Member {
    /// The member of this name and weight, which were found sane, in a slot that is free.
    pub(super) fn new(
        (name, origin, slot): (Arc<str>, Origin, usize),
        weight: f64,
        backend: Backend,
        limits: config::Breaker,
        metrics: BackendMetrics,
    ) -> Self {
        Self {
            slot,
            origin,
            duty: AtomicU8::new(Duty::Serving as u8),
            stamp: HeaderValue::from_str(&name).unwrap_or_else(|_| HeaderValue::from_static("unnamed")),
            identity: xxh3_64(name.as_bytes()),
            name,
            backend,
            weight: AtomicU64::new(weight.to_bits()),
            in_flight: AtomicUsize::new(0),
            breaker: Mutex::default(),
            limits,
            calm: AtomicBool::new(true),
            down: AtomicBool::new(false),
            metrics,
        }
    }

    /// Whether it gets requests.
    pub(super) fn duty(&self) -> Duty {
        match self.duty.load(Ordering::SeqCst) {
            0 => Duty::Serving,
            1 => Duty::Draining,
            _ => Duty::Left,
        }
    }

    /// From now on it gets requests, or none. One that has left the pool does not come back.
    pub(super) fn set_duty(&self, duty: Duty) {
        if self.duty() != Duty::Left {
            self.duty.store(duty as u8, Ordering::SeqCst);
        }
    }

    /// Requests that run on it.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::SeqCst)
    }

    /// How much it can take beside the others.
    pub(super) fn weight(&self) -> f64 {
        f64::from_bits(self.weight.load(Ordering::Relaxed))
    }

    /// Change that.
    pub(super) fn set_weight(&self, weight: f64) {
        self.weight.store(weight.to_bits(), Ordering::Relaxed);
    }

    /// It comes to others that are warm already: it gets little at first.
    pub(super) fn is_new(&self) {
        let now = Instant::now();
        let mut breaker = self.lock();
        breaker.returned(now);
        self.settle(&breaker, now);
    }

    /// What operators see of it.
    pub(super) fn seen(&self, now: Instant) -> Seen {
        let status = self.backend.status();
        let breaker = match self.lock().standing(now) {
            Standing::Well => "closed",
            Standing::Spared => "spared",
            Standing::Trial | Standing::Tried => "trial",
            Standing::Open(_) => "open",
        };
        let state = match (self.duty(), status.ready) {
            (Duty::Left, _) => "leaving",
            (Duty::Draining, _) => "draining",
            (Duty::Serving, true) => "ready",
            (Duty::Serving, false) => "not_ready",
        };
        Seen {
            name: self.name.to_string(),
            kind: match self.backend.kind() {
                BackendKind::Http => "http",
                BackendKind::Engine => "engine",
            },
            url: self.backend.url(),
            origin: self.origin.as_str(),
            models: status.models,
            weight: self.weight(),
            state,
            reason: status.reason,
            breaker,
            in_flight: self.in_flight(),
        }
    }

    /// How it stands to a question for `model`.
    pub(super) fn place(&self, model: &str, now: Instant) -> Place {
        if self.duty() != Duty::Serving {
            return Place::Out;
        }
        let fitness = self.backend.fitness(model);
        match fitness {
            Fitness::OtherModel => return Place::Out,
            Fitness::Down | Fitness::LastResort => {
                // From here on its own health decides; what failed before is of another life.
                if !self.down.swap(true, Ordering::Relaxed) {
                    let mut breaker = self.lock();
                    breaker.reset();
                    self.settle(&breaker, now);
                }
            }
            Fitness::Ready if self.down.load(Ordering::Relaxed) && self.down.swap(false, Ordering::Relaxed) => {
                let mut breaker = self.lock();
                breaker.returned(now);
                self.settle(&breaker, now);
            }
            Fitness::Ready => {}
        }
        let (standing, share) = if self.calm.load(Ordering::Relaxed) {
            (Standing::Well, 1.0)
        } else {
            let breaker = self.lock();
            (breaker.standing(now), breaker.share(now, &self.limits))
        };
        let in_flight = self.in_flight.load(Ordering::Relaxed);
        // A group that has lost half of its ranks gets half of its part.
        let share = share * self.backend.part();
        let candidate = Candidate { id: self.slot, identity: self.identity, in_flight, weight: self.weight(), share };
        match (fitness, standing) {
            (Fitness::Down | Fitness::OtherModel, _) => Place::Out,
            (Fitness::LastResort, _) => Place::LastResort(candidate),
            (Fitness::Ready, Standing::Well | Standing::Trial) => Place::Ready(candidate),
            (Fitness::Ready, Standing::Spared) => Place::Spared(candidate),
            (Fitness::Ready, Standing::Open(until)) => Place::Open(Some(until)),
            (Fitness::Ready, Standing::Tried) => Place::Open(None),
        }
    }

    /// Until when it gets no requests, where its breaker is open; without a time while its trial runs.
    pub(super) fn open(&self, now: Instant) -> Option<Option<Instant>> {
        if self.calm.load(Ordering::Relaxed) {
            return None;
        }
        match self.lock().standing(now) {
            Standing::Open(until) => Some(Some(until)),
            Standing::Tried => Some(None),
            Standing::Well | Standing::Spared | Standing::Trial => None,
        }
    }

    /// Count a request in; `None` where another one has become the trial in the meantime, or it was taken out.
    pub(super) fn enter(&self, now: Instant) -> Option<Running<'_>> {
        // Counted before the duty is looked at: whoever takes it out sees the request, or the request sees that.
        self.in_flight.fetch_add(1, Ordering::SeqCst);
        self.metrics.in_flight.inc();
        let mut running = Running { member: self, pass: None, entered: false, ended: false };
        if self.duty() != Duty::Serving {
            return None;
        }
        let pass = if self.calm.load(Ordering::Relaxed) {
            None
        } else {
            let mut breaker = self.lock();
            if matches!(breaker.standing(now), Standing::Open(_) | Standing::Tried) {
                return None;
            }
            let pass = breaker.enter(now, &self.limits);
            self.settle(&breaker, now);
            Some(pass)
        };
        (running.pass, running.entered) = (pass, true);
        Some(running)
    }

    fn left(&self, pass: Option<Pass>, verdict: Verdict) {
        if self.calm.load(Ordering::Relaxed) && matches!(verdict, Verdict::Well | Verdict::Nothing) {
            return;
        }
        let now = Instant::now();
        let mut breaker = self.lock();
        let before = breaker.standing(now);
        // One that was let through while the breaker was calm is of the life that it has now, unless it has opened since.
        let pass = pass.unwrap_or_else(|| breaker.unremarked());
        breaker.leave(pass, verdict, now, (&self.limits, rand::random()));
        let after = breaker.standing(now);
        if std::mem::discriminant(&before) != std::mem::discriminant(&after) {
            tracing::info!(backend = %self.name, ?before, ?after, "breaker");
        }
        self.settle(&breaker, now);
    }

    /// Show what the breaker's state is to those who do not lock it.
    fn settle(&self, breaker: &Breaker, now: Instant) {
        self.calm.store(breaker.is_calm(), Ordering::Relaxed);
        self.metrics.breaker.set(match breaker.standing(now) {
            Standing::Well | Standing::Spared => 0,
            Standing::Trial | Standing::Tried => 1,
            Standing::Open(_) => 2,
        });
    }

    fn lock(&self) -> MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that runs on a member; dropping it ends the count (D2).
#[derive(Debug)]
pub(super) struct Running<'a> {
    member: &'a Member,
    pass: Option<Pass>,
    /// It was let in.
    entered: bool,
    ended: bool,
}

impl Running<'_> {
    /// It ended so.
    pub(super) fn end(mut self, result: &Result<(), Failure>) {
        self.ended = true;
        let verdict = match result {
            Ok(()) => {
                self.member.metrics.ok.inc();
                Verdict::Well
            }
            Err(failure) => {
                self.member.metrics.failed(failure.cause);
                verdict(failure)
            }
        };
        self.member.left(self.pass, verdict);
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.member.in_flight.fetch_sub(1, Ordering::SeqCst);
        self.member.metrics.in_flight.dec();
        if self.entered && !self.ended {
            self.member.metrics.abandoned.inc();
            self.member.left(self.pass, Verdict::Nothing);
        }
    }
}

/// What a failure says of its backend (R1).
fn verdict(failure: &Failure) -> Verdict {
    match failure.cause {
        Cause::Refused => Verdict::Well,
        Cause::Busy => Verdict::Busy(spare(&failure.error.headers, SystemTime::now())),
        Cause::Backend | Cause::Truncated | Cause::Timeout => Verdict::Sick,
        // That no connection was made is known to the backend's own health, which decides until one is.
        Cause::Unreachable | Cause::Cut => Verdict::Nothing,
    }
}
