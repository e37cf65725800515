//! Shutting down without cutting a stream (R7): announce, refuse, wait, cut what is left.

use tokio::sync::watch;

/// Where the gateway stands on its way down. Only ever grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Serving.
    Serving,
    /// `/readyz` says 503, requests are still taken.
    Announced,
    /// New requests are refused, running ones finish.
    Refusing,
    /// Running ones end with an error event.
    Cutting,
}

/// The gateway's phase, and a way to wait for it.
#[derive(Debug)]
pub struct Drain(watch::Sender<Phase>);

impl Default for Drain {
    fn default() -> Self {
        Self(watch::Sender::new(Phase::Serving))
    }
}

impl Drain {
    /// Go on to a later phase; an earlier one changes nothing.
    pub fn enter(&self, phase: Phase) {
        self.0.send_if_modified(|current| {
            let later = phase > *current;
            *current = phase.max(*current);
            later
        });
    }

    /// Whether readiness is off.
    pub fn announced(&self) -> bool {
        *self.0.borrow() >= Phase::Announced
    }

    /// Whether new requests are refused.
    pub fn refuses(&self) -> bool {
        *self.0.borrow() >= Phase::Refusing
    }

    /// Ready once `phase` is reached.
    pub async fn reached(&self, phase: Phase) {
        let mut watch = self.0.subscribe();
        // The sender lives as long as this.
        let _ = watch.wait_for(|current| *current >= phase).await;
    }
}
