//! The life of the group as its user sees it.

use std::fmt;

use tokio::sync::watch;

/// Where a rank stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RankStatus {
    /// It has not been seen.
    Waiting,
    /// It is in the handshake.
    Handshaking,
    /// It serves.
    Ready,
    /// It is connected but sends nothing that makes sense; it gets no requests until it does.
    Silent,
    /// Its connection closed, or it announced its shutdown.
    Lost,
    /// It was started by an earlier life of this frontend and will not register again: restart it, or see
    /// [`crate::Tuning::adopt`].
    NeedsRestart,
}

/// Where the group stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GroupPhase {
    /// Not every engine has registered yet, and none was lost. Requests are refused under [`crate::RankLoss::Group`].
    Waiting,
    /// Every rank serves.
    Ready,
    /// Some rank does not serve, the others do ([`crate::RankLoss::Rank`]).
    Degraded,
    /// A rank was lost, and no request can be served.
    Lost,
    /// As `Lost`, and a lost rank is in the handshake.
    Returning,
}

/// One rank's status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankState {
    /// The rank's engine index.
    pub engine_index: u16,
    /// Where it stands.
    pub status: RankStatus,
    /// Why, in words; empty while nothing is wrong.
    pub reason: String,
}

/// The group's status at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupState {
    /// Where the group stands.
    pub phase: GroupPhase,
    /// Whether a request would be accepted.
    pub serving: bool,
    /// The ranks, in index order.
    pub ranks: Vec<RankState>,
}

/// A subscription to [`GroupState`]; see [`crate::EngineClient::watch`].
#[derive(Debug, Clone)]
pub struct GroupWatch {
    pub(crate) receiver: watch::Receiver<GroupState>,
}

// === impl GroupState ===

impl GroupState {
    /// Why no request can be served, in one sentence that names the first rank in trouble; `None` while serving.
    pub fn trouble(&self) -> Option<String> {
        if self.serving {
            return None;
        }
        let troubled = self.ranks.iter().filter(|rank| rank.status != RankStatus::Ready);
        let told = troubled.clone().find(|rank| !rank.reason.is_empty()).or_else(|| troubled.clone().next());
        Some(told.map_or_else(|| "the group does not serve".to_owned(), ToString::to_string))
    }
}

impl fmt::Display for RankState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = match self.status {
            RankStatus::Waiting => "is waited for",
            RankStatus::Handshaking => "is in the handshake",
            RankStatus::Ready => "serves",
            RankStatus::Silent => "is silent",
            RankStatus::Lost => "is lost",
            RankStatus::NeedsRestart => "needs a restart",
        };
        write!(f, "engine {} {status}", self.engine_index)?;
        if self.reason.is_empty() { Ok(()) } else { write!(f, ": {}", self.reason) }
    }
}

// === impl GroupWatch ===

impl GroupWatch {
    /// The state now.
    pub fn current(&self) -> GroupState {
        self.receiver.borrow().clone()
    }

    /// Wait for a state that was not seen yet, and return it; `None` once the client is closed. Cancel safe.
    pub async fn changed(&mut self) -> Option<GroupState> {
        self.receiver.changed().await.ok()?;
        Some(self.receiver.borrow_and_update().clone())
    }

    /// Wait until `condition` holds, and return the state; `None` once the client is closed. Cancel safe.
    pub async fn wait_for(&mut self, condition: impl FnMut(&GroupState) -> bool) -> Option<GroupState> {
        self.receiver.wait_for(condition).await.ok().map(|state| state.clone())
    }
}
