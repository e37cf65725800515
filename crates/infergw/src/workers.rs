//! Worker threads, each with a runtime of its own. A connection stays on its worker, and so does what it starts: the flight
//! it leads, the upstream's connection. They wake each other without a lock or another core's help, which is most of what a
//! relayed request costs beyond its system calls (`bench/run.py relay`: 15 to 20 us of 110 on two cores).

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// The workers of a gateway. Dropping them ends their threads.
#[derive(Debug, Default)]
pub struct Workers(Vec<Worker>);

#[derive(Debug)]
struct Worker {
    runtime: Handle,
    connections: Arc<AtomicUsize>,
    /// The thread runs until this is dropped.
    _stop: oneshot::Sender<()>,
}

thread_local! {
    static INDEX: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The number of the worker that this thread is.
pub fn current() -> Option<usize> {
    INDEX.get()
}

impl Workers {
    /// No workers: connections are served by the runtime that accepts them.
    pub fn none() -> Self {
        Self::default()
    }

    /// Start `count` workers; 0 is one for each core.
    ///
    /// # Errors
    /// A thread or its runtime cannot be made.
    pub fn start(count: usize) -> io::Result<Self> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let count = if count == 0 { cores } else { count };
        (0..count).map(Worker::start).collect::<io::Result<_>>().map(Self)
    }

    /// The worker with the fewest connections, and a seat on it; `None` without workers.
    pub fn seat(&self) -> Option<(&Handle, Seat)> {
        let worker = self.0.iter().min_by_key(|worker| worker.connections.load(Ordering::Relaxed))?;
        worker.connections.fetch_add(1, Ordering::Relaxed);
        Some((&worker.runtime, Seat(Arc::clone(&worker.connections))))
    }
}

impl Worker {
    fn start(index: usize) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().thread_name(format!("worker-{index}-io")).build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        thread::Builder::new().name(format!("worker-{index}")).spawn(move || {
            INDEX.set(Some(index));
            // Nothing is ever sent: it ends when the workers are dropped.
            let _ = runtime.block_on(stopped);
            // What still runs on its blocking threads is not waited for.
            runtime.shutdown_background();
        })?;
        Ok(Self { runtime: handle, connections: Arc::default(), _stop: stop })
    }
}

/// A connection's place on its worker; dropping it leaves.
#[derive(Debug)]
pub struct Seat(Arc<AtomicUsize>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn connections_spread_over_the_workers_and_what_they_start_stays() {
        let workers = Workers::start(3).unwrap();
        let seats: Vec<_> = (0..6).map(|_| workers.seat().unwrap()).collect();
        let mut indices: Vec<Option<usize>> = seats
            .iter()
            .map(|(runtime, _)| {
                let (tell, told) = std::sync::mpsc::channel();
                runtime.spawn(async move {
                    let inner = tokio::spawn(async { current() }).await;
                    tell.send((current(), inner.unwrap())).unwrap();
                });
                let (outer, inner) = told.recv().unwrap();
                assert_eq!(outer, inner);
                outer
            })
            .collect();
        indices.sort_unstable();
        assert_eq!(indices, [0, 0, 1, 1, 2, 2].map(Some));
        assert_eq!(current(), None);
        drop(seats);
        assert!(workers.0.iter().all(|worker| worker.connections.load(Ordering::Relaxed) == 0));
        assert!(Workers::none().seat().is_none());
    }
}
