//! The group: its ranks' lives and its requests, as a state machine without sockets and without a clock.
//!
//! The driver tells it what happened and when; it keeps the tables and says what to do in [`Action`]s. `K` is the
//! driver's handle on a stream.
//!
//! A rank's life: absent → greeted (HELLO, INIT) → live (registered) → gone or silent → live again, through a new HELLO
//! (a new process, nothing of the old life is left), or without one (the same process on a new connection; what was
//! reported as failed is aborted there first).

mod life;
mod requests;
mod table;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ts_wire::EngineCoreReadyResponse;

use crate::config::{RankLoss, Tuning};
use crate::error::EndCause;
use crate::liveness::{Limits, Pulse};
pub(crate) use table::RequestKey;
use table::Requests;

use crate::state::{GroupPhase, GroupState, RankState, RankStatus};

pub(crate) type Rid = Arc<str>;

/// What the driver has to do.
#[derive(Debug)]
pub(crate) enum Action<K> {
    /// Tell a stream that it ended. The request is out of the tables.
    End { stream: K, cause: EndCause },
    /// Send an abort for these requests. If it cannot be sent, tell [`Group::owe`].
    Abort { rank: usize, rids: Vec<Rid> },
    /// Ask for a sign of life.
    Ping { rank: usize },
    /// The rank is lost: drop what waits for it.
    Lost { rank: usize },
    /// The rank serves.
    Returned { rank: usize },
}

/// How one row of a batch ends.
#[derive(Debug)]
pub(crate) enum Row<'a, K> {
    /// No such request; it ended before.
    Unknown,
    /// Tokens of a request.
    Running(&'a K),
    /// The last row of a request, which is out of the tables.
    Last(K),
    /// Tokens before this row are missing; the request is out of the tables, and its abort is an action.
    Gap { stream: K, cause: EndCause },
}

/// Why a request is not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    Duplicate,
    /// The rank, or the group, does not serve.
    NotServing(String),
}

/// The rules a group lives by.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    pub(crate) first_index: u16,
    pub(crate) ranks: usize,
    pub(crate) rank_loss: RankLoss,
    pub(crate) limits: Limits,
    pub(crate) sentinel_grace: Duration,
    pub(crate) check_gaps: bool,
    pub(crate) adopt: Option<EngineCoreReadyResponse>,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Group<K> {
    rules: Rules,
    ranks: Vec<Rank>,
    requests: Requests<K>,
    /// Shutdown announcements that no closed connection explains yet, and until when to wait for one.
    announced: Option<(u32, Instant)>,
    actions: Vec<Action<K>>,
    changed: bool,
}

#[derive(Debug)]
struct Rank {
    phase: Phase,
    reason: String,
    /// Its last registration.
    ready: Option<EngineCoreReadyResponse>,
    /// Requests in the table.
    running: usize,
    pulse: Pulse,
    /// Aborts that could not be sent to this life of the rank.
    owed: Vec<Rid>,
    /// Its connection closed; it is lost at this time.
    closing: Option<Instant>,
    /// It announced its shutdown and is connected still: do not take it back before.
    leaving: Option<Instant>,
    lost_at: Option<Instant>,
    /// The last registration that was refused, and why.
    refused: Option<String>,
    adoption: Option<Adoption>,
}

/// An engine that served another frontend before: what it still runs for that one is aborted once it shows.
#[derive(Debug)]
struct Adoption {
    until: Instant,
    /// Requests that need no abort: those that had one, and our own that ended.
    settled: HashSet<Rid>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Absent,
    Greeted {
        confirmed: bool,
    },
    Live,
    /// Connected, but hung or talking nonsense.
    Silent,
    Gone,
    /// Connected since before this frontend's life.
    Stale,
}

// === impl Rules ===

impl Rules {
    pub(crate) fn new(first_index: u16, ranks: u16, tuning: &Tuning) -> Self {
        Self {
            first_index,
            ranks: usize::from(ranks),
            rank_loss: tuning.rank_loss,
            limits: Limits { silence: tuning.silence, ping_after: tuning.ping_after },
            sentinel_grace: tuning.sentinel_grace,
            check_gaps: tuning.check_gaps,
            adopt: tuning.adopt.clone(),
        }
    }

    pub(crate) fn index_of(&self, rank: usize) -> u16 {
        self.first_index.saturating_add(u16::try_from(rank).unwrap_or(u16::MAX))
    }

    pub(crate) fn rank_of(&self, engine_index: i64) -> Option<usize> {
        let rank = usize::try_from(engine_index.checked_sub(i64::from(self.first_index))?).ok()?;
        (rank < self.ranks).then_some(rank)
    }

    /// The rank that a routing identity names.
    pub(crate) fn rank_of_identity(&self, identity: &[u8]) -> Option<usize> {
        let index = u16::from_le_bytes(identity.try_into().ok()?);
        self.rank_of(i64::from(index))
    }
}

// === impl Group: queries ===

impl<K: Clone> Group<K> {
    pub(crate) fn new(rules: Rules, now: Instant) -> Self {
        let ranks = (0..rules.ranks).map(|_| Rank::new(now)).collect();
        Self { rules, ranks, requests: Requests::default(), announced: None, actions: Vec::new(), changed: true }
    }

    pub(crate) fn rules(&self) -> &Rules {
        &self.rules
    }

    /// What to do, in order.
    pub(crate) fn take_actions(&mut self) -> Vec<Action<K>> {
        std::mem::take(&mut self.actions)
    }

    /// Whether [`Group::state`] may differ from what it was at the last call of this.
    pub(crate) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Whether a rank takes requests.
    pub(crate) fn serves(&self, rank: usize) -> bool {
        let Some(asked) = self.ranks.get(rank) else { return false };
        asked.is_serving()
            && match self.rules.rank_loss {
                RankLoss::Rank => true,
                RankLoss::Group => self.announced.is_none() && self.ranks.iter().all(Rank::is_serving),
            }
    }

    pub(crate) fn state(&self) -> GroupState {
        let ranks: Vec<RankState> =
            self.ranks.iter().enumerate().map(|(rank, state)| self.rank_state(rank, state)).collect();
        let serving = (0..ranks.len()).any(|rank| self.serves(rank));
        let all = |wanted: RankStatus| ranks.iter().all(|rank| rank.status == wanted);
        let lost = self.ranks.iter().any(|rank| rank.lost_at.is_some() && !rank.is_serving());
        let returning =
            self.ranks.iter().any(|rank| rank.lost_at.is_some() && matches!(rank.phase, Phase::Greeted { .. }));
        let phase = if serving && all(RankStatus::Ready) {
            GroupPhase::Ready
        } else if serving {
            GroupPhase::Degraded
        } else if returning {
            GroupPhase::Returning
        } else if lost || self.announced.is_some() {
            GroupPhase::Lost
        } else {
            GroupPhase::Waiting
        };
        GroupState { phase, serving, ranks }
    }

    fn rank_state(&self, rank: usize, state: &Rank) -> RankState {
        let status = match state.phase {
            Phase::Absent => RankStatus::Waiting,
            Phase::Greeted { .. } => RankStatus::Handshaking,
            Phase::Live if state.closing.is_some() => RankStatus::Lost,
            Phase::Live => RankStatus::Ready,
            Phase::Silent => RankStatus::Silent,
            Phase::Gone => RankStatus::Lost,
            Phase::Stale => RankStatus::NeedsRestart,
        };
        let reason = match (&state.refused, status) {
            (Some(refused), RankStatus::Waiting | RankStatus::Handshaking) => refused.clone(),
            _ => state.reason.clone(),
        };
        RankState { engine_index: self.rules.index_of(rank), status, reason }
    }

    /// What each registered engine registered with.
    pub(crate) fn registrations(&self) -> impl Iterator<Item = (u16, &EngineCoreReadyResponse)> {
        let ranks = self.ranks.iter().enumerate();
        ranks.filter_map(|(rank, state)| Some((self.rules.index_of(rank), state.ready.as_ref()?)))
    }

    /// Why an engine's registration was refused, if the last one was.
    pub(crate) fn refusals(&self) -> impl Iterator<Item = (u16, &str)> {
        let ranks = self.ranks.iter().enumerate();
        ranks.filter_map(|(rank, state)| Some((self.rules.index_of(rank), state.refused.as_deref()?)))
    }

    /// The earliest unfinished stage of the handshake, and the engines that are not live.
    pub(crate) fn pending(&self) -> Option<(&'static str, Vec<u16>)> {
        let waiting = self.ranks.iter().enumerate().filter(|(_, rank)| !rank.is_serving());
        let stage = waiting.clone().map(|(_, rank)| rank.phase.stage()).min()?;
        let engines = waiting.map(|(rank, _)| self.rules.index_of(rank)).collect();
        Some((["HELLO", "READY", "registration"].get(stage).copied().unwrap_or("registration"), engines))
    }

    /// Whether the driver should find out if the rank is connected: nothing else would tell.
    pub(crate) fn wants_probe(&self, rank: usize) -> bool {
        self.ranks.get(rank).is_some_and(|rank| match rank.phase {
            Phase::Absent | Phase::Gone | Phase::Stale => rank.leaving.is_none(),
            Phase::Greeted { .. } => false,
            Phase::Live | Phase::Silent => rank.closing.is_none(),
        })
    }

    /// The ranks that are connected and take messages.
    pub(crate) fn connected(&self) -> Vec<usize> {
        (0..self.ranks.len()).filter(|rank| self.ranks.get(*rank).is_some_and(Rank::is_serving)).collect()
    }

    /// When [`Group::tick`] is due, if something waits for a time.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let closing = self.ranks.iter().filter_map(|rank| rank.closing);
        closing.chain(self.announced.map(|(_, until)| until)).min()
    }
}

// === impl Rank ===

impl Rank {
    fn new(now: Instant) -> Self {
        Self {
            phase: Phase::Absent,
            reason: String::new(),
            ready: None,
            running: 0,
            pulse: Pulse::new(now),
            owed: Vec::new(),
            closing: None,
            leaving: None,
            lost_at: None,
            refused: None,
            adoption: None,
        }
    }

    /// A request of ours is over.
    fn settle(&mut self, rid: &Rid) {
        self.running = self.running.saturating_sub(1);
        if let Some(adoption) = &mut self.adoption {
            adoption.settled.insert(Arc::clone(rid));
        }
    }

    fn is_serving(&self) -> bool {
        self.phase == Phase::Live && self.closing.is_none()
    }
}

// === impl Phase ===

impl Phase {
    /// The stage of the handshake that is open: 0 HELLO, 1 READY, 2 registration.
    fn stage(self) -> usize {
        match self {
            Self::Greeted { confirmed: false } => 1,
            Self::Greeted { confirmed: true } => 2,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests;
