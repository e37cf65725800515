//! Step 4: join the flight that already answers this question, or lead a new one.
//!
//! Joining is one atomic step under the registry's lock: look up the key; a flight that is still open to joiners is
//! subscribed, else a new one is registered and led. A subscriber is a cursor into the flight's log (C2).

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

mod apart;
pub mod flight;
pub mod key;
pub mod log;
pub mod resume;

use apart::Apart;
use flight::FlightWriter;
use key::Key;
use log::{About, Bounds, Cursor, Log, LogTotal, Return, Seen};
use resume::sweep::Sweeper;
use resume::{Claim, EventId, NoReturn, Resumable, StreamId};
use tokio::sync::Notify;

use crate::observe::{Resuming, Sharing};
use crate::types::{Bypass, Role};

/// All flights.
#[derive(Debug)]
pub struct Flights {
    registry: Arc<Mutex<Registry>>,
    bounds: Bounds,
    total: Arc<LogTotal>,
    sharing: Sharing,
    /// How long an answer is remembered that must not be shared; zero is not at all.
    remember: Duration,
    /// Where clients can come back to what they lost.
    resume: Option<Resume>,
}

#[derive(Debug)]
struct Resume {
    metrics: Resuming,
    wake: Arc<Notify>,
    _sweeper: Sweeper,
}

/// A request that meets the flights.
#[derive(Debug, Default)]
pub struct Passage {
    /// Under which others can join its flight; without it the flight is nobody else's.
    pub key: Option<Key>,
    /// What operators see of the flight.
    pub about: About,
    /// By what its client may come back to the flight.
    pub claim: Option<Claim>,
}

/// Where a request has found its place.
enum Place {
    Joined(Cursor),
    Alone(Arc<Log>, Cursor),
    Leads(Key, Arc<Log>, Cursor),
}

#[derive(Debug, Default)]
struct Registry {
    open: HashMap<Key, Arc<Log>>,
    /// Flights that took no more joiners when a later one came under their key.
    displaced: Vec<(Key, Arc<Log>)>,
    apart: Apart,
    resumable: Option<Resumable>,
}

impl Registry {
    /// Take a flight out that has landed.
    fn land(&mut self, key: &Key, log: &Arc<Log>) {
        // A later flight may stand under the same key, once this one took no more joiners.
        if self.open.get(key).is_some_and(|current| Arc::ptr_eq(current, log)) {
            self.open.remove(key);
        } else {
            self.displaced.retain(|(_, other)| !Arc::ptr_eq(other, log));
        }
    }
}

impl Flights {
    /// No flights yet; every log keeps within `bounds`, all together within `total_bytes`.
    pub fn new(bounds: Bounds, total_bytes: usize) -> Self {
        Self::counting(bounds, total_bytes, Sharing::default())
    }

    /// The same, with counters that somebody looks at.
    pub fn counting(bounds: Bounds, total_bytes: usize, sharing: Sharing) -> Self {
        let total = Arc::new(LogTotal::counting(total_bytes, sharing.clone()));
        Self { registry: Arc::default(), bounds, total, sharing, remember: Duration::ZERO, resume: None }
    }

    /// Remember for so long that a key's answer must not be shared.
    #[must_use]
    pub fn remembering(self, time: Duration) -> Self {
        Self { remember: time, ..self }
    }

    /// Let clients come back to flights that they lost, for so long after the last one has left, and as long as all such flights
    /// hold no more than `bytes`. Belongs to the runtime that it is called on.
    #[must_use]
    pub fn resuming(self, linger: Duration, bytes: usize, metrics: Resuming) -> Self {
        self.lock().resumable = Some(Resumable::new(linger, bytes, metrics.clone()));
        let wake = Arc::new(Notify::new());
        let sweeper = Sweeper::start(Arc::downgrade(&self.registry), Arc::clone(&wake));
        Self { resume: Some(Resume { metrics, wake, _sweeper: sweeper }), ..self }
    }

    /// Whether clients can come back.
    pub fn resumes(&self) -> bool {
        self.resume.is_some()
    }

    /// Come back to a stream after the event `at`; with the whole question where the client asks it again.
    ///
    /// # Errors
    /// See [`NoReturn`].
    pub fn come_back(&self, at: EventId, scope: &[u8; 32], print: Option<&Key>) -> Result<Cursor, NoReturn> {
        match &mut self.lock().resumable {
            Some(resumable) => resumable.come_back(at, scope, print),
            None => Err(NoReturn::Unknown),
        }
    }

    /// Join the flight under `key`, or lead a new one that `lead` runs. Without a key the flight is nobody else's.
    pub fn join<L, F>(&self, key: Option<Key>, lead: L) -> (Cursor, Role)
    where
        L: FnOnce(FlightWriter) -> F,
        F: Future<Output = ()> + Send + 'static,
    {
        let place = self.place(&mut self.lock(), Passage { key, ..Passage::default() });
        self.launch(place, lead)
    }

    /// The same, for clients that may come back: the same `Idempotency-Key` gets the answer that was begun for it.
    ///
    /// `lead` is called at most once, and only for a leader. Its future runs in a task of its own, which no client
    /// connection owns (C1); the last cursor's drop cancels it (D1), or the end of the time to come back.
    ///
    /// # Errors
    /// Where the `Idempotency-Key` was another question's, or its answer is not held any more: see [`NoReturn`].
    pub fn board<L, F>(&self, passage: Passage, lead: L) -> Result<(Cursor, Role), NoReturn>
    where
        L: FnOnce(FlightWriter) -> F,
        F: Future<Output = ()> + Send + 'static,
    {
        let place = {
            let mut registry = self.lock();
            if let (Some(claim), Some(resumable)) = (&passage.claim, &mut registry.resumable)
                && let Some(cursor) = resumable.again(claim)?
            {
                return Ok((cursor, Role::Resumed));
            }
            self.place(&mut registry, passage)
        };
        Ok(self.launch(place, lead))
    }

    /// Find a place, in one step under the registry's lock: a flight that is there, or a new one that stands there from now on.
    fn place(&self, registry: &mut Registry, Passage { key, about, claim }: Passage) -> Place {
        let found = key.and_then(|key| registry.open.get(&key)).map(Log::join);
        let bypass = match (found, &key) {
            (Some(Ok(cursor)), _) => return Place::Joined(cursor),
            (Some(Err(bypass)), _) => bypass,
            (None, Some(key)) if registry.apart.holds(key) => Some(Bypass::Unshareable),
            (None, _) => None,
        };
        if let Some(bypass) = bypass {
            self.sharing.bypassed(bypass);
        }
        let key = key.filter(|_| bypass != Some(Bypass::Unshareable));
        let resume = claim.and_then(|claim| Some((self.returning(&claim)?, claim)));
        let (resume, claim) = resume.unzip();
        let id = resume.as_ref().map(|resume| resume.id);
        let (log, cursor) = Log::start_as((about, resume), self.bounds.clone(), key.is_some(), Arc::clone(&self.total));
        if let (Some(resumable), Some(id), Some(claim)) = (&mut registry.resumable, id, claim) {
            resumable.insert(id, claim, Arc::clone(&log));
        }
        let Some(key) = key else { return Place::Alone(log, cursor) };
        if let Some(before) = registry.open.insert(key, Arc::clone(&log))
            && bypass.is_some()
        {
            registry.displaced.push((key, before));
        }
        Place::Leads(key, log, cursor)
    }

    fn returning(&self, claim: &Claim) -> Option<Return> {
        let resume = self.resume.as_ref()?;
        Some(Return {
            id: StreamId::mint(),
            stream: claim.stream,
            idempotent: claim.idempotency.is_some(),
            registry: Arc::downgrade(&self.registry),
            wake: Arc::clone(&resume.wake),
            metrics: resume.metrics.clone(),
        })
    }

    fn launch<L, F>(&self, place: Place, lead: L) -> (Cursor, Role)
    where
        L: FnOnce(FlightWriter) -> F,
        F: Future<Output = ()> + Send + 'static,
    {
        let (key, log, cursor) = match place {
            Place::Joined(cursor) => return (cursor, Role::Follower),
            Place::Alone(log, cursor) => {
                flight::launch(&log, lead, || ());
                return (cursor, Role::Off);
            }
            Place::Leads(key, log, cursor) => (key, log, cursor),
        };
        self.sharing.flights.inc();
        let registry = Arc::clone(&self.registry);
        let own = Arc::clone(&log);
        let remember = self.remember;
        flight::launch(&log, lead, move || {
            let mut registry = registry.lock().unwrap_or_else(PoisonError::into_inner);
            registry.land(&key, &own);
            if !remember.is_zero() && own.is_unshareable() {
                registry.apart.remember(key, remember);
            }
        });
        (cursor, Role::Leader)
    }

    /// A flight of one: nobody can join, and its run is the caller's to poll beside the cursor. Dropping both cancels it.
    ///
    /// For answers in one piece that nobody shares: a task of their own, and the two hops to it and back, would only cost.
    pub fn alone<L, F>(&self, lead: L) -> (Cursor, Pin<Box<F>>)
    where
        L: FnOnce(FlightWriter) -> F,
        F: Future<Output = ()>,
    {
        let (log, cursor) = Log::start(self.bounds.clone(), false, Arc::clone(&self.total));
        (cursor, Box::pin(lead(FlightWriter::new(log))))
    }

    /// What operators see of the flights, the oldest first, at most `limit`; and how many there are.
    pub fn seen(&self, limit: usize) -> (Vec<Seen>, usize) {
        let all: Vec<(Key, Arc<Log>)> = {
            let registry = self.lock();
            let open = registry.open.iter().map(|(key, log)| (*key, Arc::clone(log)));
            open.chain(registry.displaced.iter().cloned()).collect()
        };
        let count = all.len();
        let mut seen: Vec<Seen> = all.iter().map(|(key, log)| log.seen(key)).collect();
        seen.sort_by_key(|flight| std::cmp::Reverse(flight.age_ms));
        seen.truncate(limit);
        (seen, count)
    }

    /// Number of flights that stand in the registry.
    pub fn len(&self) -> usize {
        let registry = self.lock();
        registry.open.len() + registry.displaced.len()
    }

    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no flight stands in the registry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that all logs hold, those of unshared flights included.
    pub fn log_bytes(&self) -> usize {
        self.total.held()
    }
}

#[cfg(test)]
mod tests;
