//! Step 4: join the flight that already answers this question, or lead a new one.
//!
//! Joining is one atomic step under the registry's lock: look up the key; a flight that is still open to joiners is
//! subscribed, else a new one is registered and led. A subscriber is a cursor into the flight's log (C2).

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

pub mod flight;
pub mod key;
pub mod log;

use flight::FlightWriter;
use key::Key;
use log::{Bounds, Cursor, Log, LogTotal};

use crate::types::Role;

/// All flights that can be joined.
#[derive(Debug)]
pub struct Flights {
    open: Arc<Registry>,
    bounds: Bounds,
    total: Arc<LogTotal>,
}

type Registry = Mutex<HashMap<Key, Arc<Log>>>;

impl Flights {
    /// No flights yet; every log keeps within `bounds`, all together within `total_bytes`.
    pub fn new(bounds: Bounds, total_bytes: usize) -> Self {
        Self { open: Arc::default(), bounds, total: Arc::new(LogTotal::new(total_bytes)) }
    }

    /// Join the flight under `key`, or lead a new one that `lead` runs. Without a key the flight is nobody else's.
    ///
    /// `lead` is called at most once, and only for a leader. Its future runs in a task of its own, which no client
    /// connection owns (C1); the last cursor's drop cancels it (D1).
    pub fn join<L, F>(&self, key: Option<Key>, lead: L) -> (Cursor, Role)
    where
        L: FnOnce(FlightWriter) -> F,
        F: Future<Output = ()> + Send + 'static,
    {
        let Some(key) = key else {
            let (log, cursor) = Log::start(self.bounds.clone(), false, Arc::clone(&self.total));
            flight::launch(&log, lead, || ());
            return (cursor, Role::Off);
        };
        let (log, cursor) = {
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(cursor) = open.get(&key).and_then(Log::subscribe) {
                return (cursor, Role::Follower);
            }
            let (log, cursor) = Log::start(self.bounds.clone(), true, Arc::clone(&self.total));
            open.insert(key, Arc::clone(&log));
            (log, cursor)
        };
        let registry = Arc::clone(&self.open);
        let own = Arc::clone(&log);
        flight::launch(&log, lead, move || {
            let mut open = registry.lock().unwrap_or_else(PoisonError::into_inner);
            // A later flight may stand under the same key, once this one took no more joiners.
            if open.get(&key).is_some_and(|current| Arc::ptr_eq(current, &own)) {
                open.remove(&key);
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

    /// Number of flights that stand in the registry.
    pub fn len(&self) -> usize {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).len()
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
