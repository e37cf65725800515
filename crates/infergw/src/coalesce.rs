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

use apart::Apart;
use flight::FlightWriter;
use key::Key;
use log::{About, Bounds, Cursor, Log, LogTotal, Seen};

use crate::observe::Sharing;
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
}

#[derive(Debug, Default)]
struct Registry {
    open: HashMap<Key, Arc<Log>>,
    /// Flights that took no more joiners when a later one came under their key.
    displaced: Vec<(Key, Arc<Log>)>,
    apart: Apart,
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
        Self { registry: Arc::default(), bounds, total, sharing, remember: Duration::ZERO }
    }

    /// Remember for so long that a key's answer must not be shared.
    #[must_use]
    pub fn remembering(self, time: Duration) -> Self {
        Self { remember: time, ..self }
    }

    /// Join the flight under `key`, or lead a new one that `lead` runs. Without a key the flight is nobody else's.
    pub fn join<L, F>(&self, key: Option<Key>, lead: L) -> (Cursor, Role)
    where
        L: FnOnce(FlightWriter) -> F,
        F: Future<Output = ()> + Send + 'static,
    {
        self.board(key, About::default(), lead)
    }

    /// The same, with what operators see of the flight.
    ///
    /// `lead` is called at most once, and only for a leader. Its future runs in a task of its own, which no client
    /// connection owns (C1); the last cursor's drop cancels it (D1).
    pub fn board<L, F>(&self, key: Option<Key>, about: About, lead: L) -> (Cursor, Role)
    where
        L: FnOnce(FlightWriter) -> F,
        F: Future<Output = ()> + Send + 'static,
    {
        let alone = |lead: L| {
            let (log, cursor) = Log::start(self.bounds.clone(), false, Arc::clone(&self.total));
            flight::launch(&log, lead, || ());
            (cursor, Role::Off)
        };
        let Some(key) = key else { return alone(lead) };
        let (log, cursor) = {
            let mut registry = self.lock();
            let found = registry.open.get(&key).map(Log::join);
            let bypass = match found {
                Some(Ok(cursor)) => return (cursor, Role::Follower),
                Some(Err(bypass)) => bypass,
                None if registry.apart.holds(&key) => Some(Bypass::Unshareable),
                None => None,
            };
            if let Some(bypass) = bypass {
                self.sharing.bypassed(bypass);
                if bypass == Bypass::Unshareable {
                    drop(registry);
                    return alone(lead);
                }
            }
            let (log, cursor) = Log::start_about(about, self.bounds.clone(), true, Arc::clone(&self.total));
            if let Some(before) = registry.open.insert(key, Arc::clone(&log))
                && bypass.is_some()
            {
                registry.displaced.push((key, before));
            }
            (log, cursor)
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
