//! Lets go the flights that have lingered their time, also when no request comes.

use std::sync::Arc;
use std::sync::{Mutex, PoisonError, Weak};

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::super::Registry;

/// The task that does it; it ends when this is dropped.
#[derive(Debug)]
pub(in crate::coalesce) struct Sweeper(JoinHandle<()>);

impl Sweeper {
    /// Begin to sweep. `wake` tells that a flight lingers while none did.
    pub(in crate::coalesce) fn start(registry: Weak<Mutex<Registry>>, wake: Arc<Notify>) -> Self {
        Self(tokio::spawn(async move {
            while let Some(registry) = registry.upgrade() {
                let next = {
                    let mut registry = registry.lock().unwrap_or_else(PoisonError::into_inner);
                    registry.resumable.as_mut().and_then(|resumable| resumable.expire(Instant::now()))
                };
                drop(registry);
                match next {
                    Some(at) => sleep_until(at).await,
                    None => wake.notified().await,
                }
            }
        }))
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        self.0.abort();
    }
}
