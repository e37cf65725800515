//! Waiting that is exact to some 0.1 ms. Tokio's timer ticks in whole milliseconds, which would blur what a relay adds.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

/// A thread that wakes waiters at their time.
#[derive(Clone)]
pub struct Delays {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    waiters: Mutex<Waiters>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiters {
    queue: BinaryHeap<Reverse<(Instant, u64)>>,
    wakers: std::collections::HashMap<u64, oneshot::Sender<()>>,
    next: u64,
}

impl Delays {
    /// Start the thread. It lives as long as the process.
    pub fn start() -> Self {
        let inner = Arc::<Inner>::default();
        let owned = Arc::clone(&inner);
        std::thread::spawn(move || owned.run());
        Self { inner }
    }

    /// Return after `delay`; at once if it is zero.
    pub async fn wait(&self, delay: Duration) {
        if delay.is_zero() {
            return;
        }
        let (waker, woken) = oneshot::channel();
        {
            let mut waiters = self.inner.waiters.lock().unwrap_or_else(PoisonError::into_inner);
            let id = waiters.next;
            waiters.next += 1;
            waiters.queue.push(Reverse((Instant::now() + delay, id)));
            waiters.wakers.insert(id, waker);
        }
        self.inner.changed.notify_one();
        // The sender lives in the queue until it is used.
        let _ = woken.await;
    }
}

impl Inner {
    fn run(&self) {
        let mut waiters = self.waiters.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let now = Instant::now();
            while let Some(&Reverse((due, id))) = waiters.queue.peek()
                && due <= now
            {
                waiters.queue.pop();
                if let Some(waker) = waiters.wakers.remove(&id) {
                    // A waiter that went away needs no waking.
                    let _ = waker.send(());
                }
            }
            let pause = match waiters.queue.peek() {
                Some(&Reverse((due, _))) => due.saturating_duration_since(now),
                None => Duration::from_secs(3600),
            };
            waiters = self.changed.wait_timeout(waiters, pause).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
