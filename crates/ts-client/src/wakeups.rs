//! Waking the readers of a whole batch at the price of one.
//!
//! To wake a task from a thread outside its runtime takes the runtime's queue lock and often a system call, each time.
//! From inside it is a push on a local queue. So the socket thread collects the wakers of a batch and wakes one task,
//! which wakes the others.

use std::future::poll_fn;
use std::sync::Mutex;
use std::task::{Poll, Waker};

use crate::client::lock;

/// Wakers on their way from the socket thread to the task that calls them.
#[derive(Debug, Default)]
pub(crate) struct Wakeups {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Readers to wake; one waker per stream and batch, so bounded by the streams there are.
    readers: Vec<Waker>,
    /// The task that wakes them, while it sleeps.
    caller: Option<Waker>,
    /// The task has run: whenever it does not sleep, it is about to look at `readers`.
    running: bool,
    closed: bool,
}

// === impl Wakeups ===

impl Wakeups {
    /// Wake these readers, soon. Leaves the list empty.
    pub(crate) fn wake_all(&self, readers: &mut Vec<Waker>) {
        // One or two are cheaper without the detour.
        if readers.len() > 2 {
            let mut inner = lock(&self.inner);
            if let Some(caller) = inner.caller.take() {
                inner.readers.append(readers);
                drop(inner);
                return caller.wake();
            }
            // The task is awake and looks again before it sleeps; without a task (no runtime), wake from here.
            if inner.running && !inner.closed {
                return inner.readers.append(readers);
            }
        }
        readers.drain(..).for_each(Waker::wake);
    }

    /// Let the task end.
    pub(crate) fn close(&self) {
        let mut inner = lock(&self.inner);
        inner.closed = true;
        let left = std::mem::take(&mut inner.readers);
        let caller = inner.caller.take();
        drop(inner);
        left.into_iter().chain(caller).for_each(Waker::wake);
    }

    /// The task: wakes readers until it is closed.
    pub(crate) async fn run(&self) {
        let mut readers = Vec::new();
        poll_fn(|cx| {
            loop {
                let mut inner = lock(&self.inner);
                if inner.closed {
                    return Poll::Ready(());
                }
                if inner.readers.is_empty() {
                    inner.running = true;
                    inner.caller = Some(cx.waker().clone());
                    return Poll::Pending;
                }
                std::mem::swap(&mut inner.readers, &mut readers);
                drop(inner);
                readers.drain(..).for_each(Waker::wake);
            }
        })
        .await;
    }
}
