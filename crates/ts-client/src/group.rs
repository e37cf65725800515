//! The group: its ranks' lives and its requests, as a state machine without sockets and without a clock.
//!
//! The driver tells it what happened and when; it keeps the tables and says what to do in [`Action`]s. `K` is the
//! driver's handle on a stream.
//!
//! A rank's life: absent → greeted (HELLO, INIT) → live (registered) → gone or silent → live again, through a new HELLO
//! (a new process, nothing of the old life is left), or without one (the same process on a new connection; what was
//! reported as failed is aborted there first).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ts_wire::EngineCoreReadyResponse;

use crate::config::{RankLoss, Tuning};
use crate::error::EndCause;
use crate::liveness::{Limits, Pulse, Verdict};
use crate::state::{GroupPhase, GroupState, RankState, RankStatus};

/// Requests whose abort one rank may owe, until it is reachable. More than any engine runs.
const MAX_OWED: usize = 65_536;
/// After a connection closed, output that is still on its way over the other one is waited for this long.
const LAST_WORDS: Duration = Duration::from_millis(30);

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
pub(crate) enum Row<K> {
    /// No such request; it ended before.
    Unknown,
    /// Tokens of a request.
    Running(K),
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
    requests: HashMap<Rid, Request<K>>,
    /// Shutdown announcements that no closed connection explains yet, and until when to wait for one.
    announced: Option<(u32, Instant)>,
    actions: Vec<Action<K>>,
    changed: bool,
}

#[derive(Debug)]
struct Request<K> {
    rank: usize,
    tokens: i64,
    stream: K,
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
        Self { rules, ranks, requests: HashMap::new(), announced: None, actions: Vec::new(), changed: true }
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

// === impl Group: the handshake ===

impl<K: Clone> Group<K> {
    /// A HELLO: a new process. Whatever ran on the rank's former life has ended. INIT is to be sent.
    pub(crate) fn hello(&mut self, rank: usize, now: Instant) {
        if self.ranks.get(rank).is_some_and(|rank| matches!(rank.phase, Phase::Live | Phase::Silent)) {
            self.lose(rank, "it was restarted", now);
        }
        let Some(state) = self.ranks.get_mut(rank) else { return };
        state.owed.clear();
        state.phase = Phase::Greeted { confirmed: false };
        state.reason.clear();
        state.closing = None;
        state.leaving = None;
        self.changed = true;
    }

    /// A READY on the handshake socket. Returns whether it made sense.
    pub(crate) fn confirm(&mut self, rank: usize) -> bool {
        match self.ranks.get_mut(rank).map(|rank| &mut rank.phase) {
            Some(Phase::Greeted { confirmed }) => {
                *confirmed = true;
                true
            }
            // The registration came over another socket and was faster.
            Some(Phase::Live) => true,
            _ => false,
        }
    }

    /// A registration on the input socket.
    ///
    /// # Errors
    ///
    /// Says why the engine cannot be this rank of this group.
    pub(crate) fn register(&mut self, rank: usize, ready: EngineCoreReadyResponse, now: Instant) -> Result<(), String> {
        let ranks = self.rules.ranks;
        let Some(state) = self.ranks.get_mut(rank) else { return Err("no such rank".into()) };
        let size = usize::try_from(ready.data_parallel_size).ok();
        let reported = usize::try_from(ready.data_parallel_rank).ok();
        if size != Some(ranks) || reported != Some(rank) {
            let reason = format!(
                "it registered as rank {} of {}, and is rank {rank} of {ranks} here",
                ready.data_parallel_rank, ready.data_parallel_size
            );
            state.refused = Some(reason.clone());
            self.changed = true;
            return Err(reason);
        }
        state.ready = Some(ready);
        state.refused = None;
        if !state.is_serving() {
            self.enlist(rank, now);
        }
        Ok(())
    }

    /// Take a rank into service.
    fn enlist(&mut self, rank: usize, now: Instant) {
        let Some(state) = self.ranks.get_mut(rank) else { return };
        state.phase = Phase::Live;
        state.reason.clear();
        state.closing = None;
        state.leaving = None;
        state.pulse.restart(now);
        // What was reported as failed must not run on, if this is the process that was given it.
        let owed = std::mem::take(&mut state.owed);
        if !owed.is_empty() {
            self.actions.push(Action::Abort { rank, rids: owed });
        }
        self.actions.push(Action::Returned { rank });
        self.changed = true;
    }
}

// === impl Group: evidence about ranks ===

impl<K: Clone> Group<K> {
    /// The rank's input connection closed. It is lost once its last output had time to arrive.
    pub(crate) fn disconnected(&mut self, rank: usize, now: Instant) {
        let Some(state) = self.ranks.get_mut(rank) else { return };
        state.leaving = None;
        match state.phase {
            Phase::Live => {
                if state.closing.is_none() {
                    state.closing = Some(now + LAST_WORDS);
                    "its connection closed".clone_into(&mut state.reason);
                    self.changed = true;
                }
            }
            Phase::Silent => state.phase = Phase::Gone,
            Phase::Stale => {
                state.phase = Phase::Absent;
                state.reason.clear();
            }
            Phase::Absent | Phase::Greeted { .. } | Phase::Gone => return,
        }
        self.changed = true;
        if state.phase == Phase::Live && self.explain_announcement() {
            self.lose_with(rank, "it announced its shutdown", now, true);
        }
    }

    /// A probe found the rank connected.
    pub(crate) fn routable(&mut self, rank: usize, now: Instant) {
        let Some(state) = self.ranks.get_mut(rank) else { return };
        match state.phase {
            // It did not say HELLO, so it is the process that registered before.
            Phase::Gone if state.leaving.is_none() => self.enlist(rank, now),
            Phase::Absent => match self.rules.adopt.clone() {
                Some(assumed) => {
                    state.ready = Some(assumed);
                    self.enlist(rank, now);
                }
                None => {
                    state.phase = Phase::Stale;
                    "it was started by an earlier life of this frontend and does not register again"
                        .clone_into(&mut state.reason);
                    self.changed = true;
                }
            },
            _ => {}
        }
    }

    /// A probe or a send found the rank not connected.
    pub(crate) fn unroutable(&mut self, rank: usize, now: Instant) {
        self.disconnected(rank, now);
    }

    /// A message that makes sense came from the rank.
    pub(crate) fn heard(&mut self, rank: usize, now: Instant) {
        let Some(state) = self.ranks.get_mut(rank) else { return };
        state.pulse.restart(now);
        if state.phase == Phase::Silent {
            self.enlist(rank, now);
        }
    }

    /// An engine announced its shutdown: `rank`, if the connection told.
    pub(crate) fn shutdown_announced(&mut self, rank: Option<usize>, now: Instant) {
        if let Some(rank) = rank {
            if self.ranks.get(rank).is_some_and(|rank| rank.phase == Phase::Live || rank.phase == Phase::Silent) {
                self.lose_with(rank, "it announced its shutdown", now, true);
                let grace = self.rules.sentinel_grace;
                if let Some(state) = self.ranks.get_mut(rank) {
                    state.leaving = Some(now + grace);
                }
            }
            return;
        }
        let closing = self.ranks.iter().position(|rank| rank.closing.is_some());
        if let Some(closing) = closing {
            return self.lose_with(closing, "it announced its shutdown", now, true);
        }
        let grace = self.rules.sentinel_grace;
        let just_lost = |rank: &Rank| rank.lost_at.is_some_and(|at| now.saturating_duration_since(at) < grace);
        if self.ranks.iter().any(|rank| rank.phase == Phase::Gone && just_lost(rank)) {
            return;
        }
        let (count, _) = self.announced.unwrap_or((0, now));
        self.announced = Some((count + 1, now + grace));
        self.changed = true;
        if self.rules.rank_loss == RankLoss::Group {
            self.end_all(&EndCause::EngineShutDown { engine_index: None });
        }
    }

    /// Take one announcement as explained by a connection that closed.
    fn explain_announcement(&mut self) -> bool {
        let Some((count, until)) = self.announced else { return false };
        self.announced = (count > 1).then_some((count - 1, until));
        true
    }

    /// The rank sends what does not decode, again and again.
    pub(crate) fn talks_nonsense(&mut self, rank: usize, now: Instant) {
        if self.ranks.get(rank).is_none_or(|rank| rank.phase != Phase::Live) {
            return;
        }
        let cause = EndCause::BadOutput { engine_index: self.rules.index_of(rank) };
        self.silence(rank, "its output does not decode", &cause, now);
    }

    /// Take a connected rank out of service.
    fn silence(&mut self, rank: usize, reason: &str, cause: &EndCause, now: Instant) {
        if let Some(state) = self.ranks.get_mut(rank) {
            state.phase = Phase::Silent;
            reason.clone_into(&mut state.reason);
            state.lost_at = Some(now);
        }
        self.after_loss(rank, cause);
    }

    fn lose(&mut self, rank: usize, reason: &str, now: Instant) {
        self.lose_with(rank, reason, now, false);
    }

    fn lose_with(&mut self, rank: usize, reason: &str, now: Instant, announced: bool) {
        let engine_index = self.rules.index_of(rank);
        let Some(state) = self.ranks.get_mut(rank) else { return };
        state.phase = Phase::Gone;
        state.closing = None;
        reason.clone_into(&mut state.reason);
        state.lost_at = Some(now);
        let cause = if announced {
            EndCause::EngineShutDown { engine_index: Some(engine_index) }
        } else {
            EndCause::RankLost { engine_index, reason: reason.to_owned() }
        };
        self.after_loss(rank, &cause);
    }

    fn after_loss(&mut self, rank: usize, cause: &EndCause) {
        self.changed = true;
        self.actions.push(Action::Lost { rank });
        match self.rules.rank_loss {
            RankLoss::Group => self.end_all(cause),
            RankLoss::Rank => self.end_where(cause, |request| request.rank == rank),
        }
    }

    /// Time passes.
    pub(crate) fn tick(&mut self, now: Instant) {
        for rank in 0..self.ranks.len() {
            self.tick_rank(rank, now);
        }
        if self.announced.is_some_and(|(_, until)| until <= now) {
            self.announced = None;
            self.changed = true;
        }
    }

    fn tick_rank(&mut self, rank: usize, now: Instant) {
        let limits = self.rules.limits;
        let Some(state) = self.ranks.get_mut(rank) else { return };
        if state.leaving.is_some_and(|until| until <= now) {
            state.leaving = None;
        }
        if state.closing.is_some_and(|at| at <= now) {
            return self.lose(rank, "its connection closed", now);
        }
        match state.phase {
            Phase::Live if state.running > 0 && state.closing.is_none() => match state.pulse.judge(now, limits) {
                Verdict::Fine => {}
                Verdict::Ask => {
                    state.pulse.asked(now);
                    self.actions.push(Action::Ping { rank });
                }
                Verdict::Hung => {
                    let reason = format!("it sent nothing for {:.1?}", state.pulse.silent_for(now));
                    let cause = EndCause::RankLost { engine_index: self.rules.index_of(rank), reason: reason.clone() };
                    self.silence(rank, &reason, &cause, now);
                }
            },
            Phase::Silent if state.pulse.may_ask(now, limits) => {
                state.pulse.asked(now);
                self.actions.push(Action::Ping { rank });
            }
            _ => {}
        }
        self.retry_owed(rank);
    }

    fn retry_owed(&mut self, rank: usize) {
        let Some(state) = self.ranks.get_mut(rank) else { return };
        if matches!(state.phase, Phase::Live | Phase::Silent) && state.closing.is_none() && !state.owed.is_empty() {
            let rids = std::mem::take(&mut state.owed);
            self.actions.push(Action::Abort { rank, rids });
        }
    }
}

// === impl Group: requests ===

impl<K: Clone> Group<K> {
    /// Take a request in, before it is sent.
    pub(crate) fn submit(&mut self, rid: Rid, rank: usize, stream: K, now: Instant) -> Result<(), Refusal> {
        if self.requests.contains_key(&rid) {
            return Err(Refusal::Duplicate);
        }
        if !self.serves(rank) {
            return Err(Refusal::NotServing(self.why_not(rank)));
        }
        if let Some(state) = self.ranks.get_mut(rank) {
            if state.running == 0 {
                state.pulse.restart(now);
            }
            state.running += 1;
        }
        self.requests.insert(rid, Request { rank, tokens: 0, stream });
        Ok(())
    }

    /// Why a rank takes no requests.
    pub(crate) fn why_not(&self, rank: usize) -> String {
        let own = self.ranks.get(rank).filter(|state| !state.is_serving()).map(|state| self.rank_state(rank, state));
        own.map(|state| state.to_string())
            .or_else(|| self.state().trouble())
            .unwrap_or_else(|| "an engine announced its shutdown".to_owned())
    }

    /// A request could not be sent: forget it. Nothing of it is on the rank.
    pub(crate) fn withdraw(&mut self, rid: &str) -> Option<K> {
        self.remove(rid).map(|request| request.stream)
    }

    /// A row arrived: `new` tokens, `completion` in all by the engine's count.
    pub(crate) fn row(&mut self, rid: &str, new: usize, completion: i64, finish_reason: Option<&str>) -> Row<K> {
        let Some(request) = self.requests.get_mut(rid) else { return Row::Unknown };
        let expected = request.tokens.saturating_add(i64::try_from(new).unwrap_or(i64::MAX));
        request.tokens = completion;
        // An engine that aborts may do so without a count.
        if self.rules.check_gaps && expected != completion && finish_reason != Some("abort") {
            let cause =
                EndCause::Gap { engine_index: self.rules.index_of(request.rank), expected, reported: completion };
            let stream = request.stream.clone();
            self.cancel(rid, finish_reason.is_none());
            return Row::Gap { stream, cause };
        }
        if finish_reason.is_none() {
            return Row::Running(request.stream.clone());
        }
        self.remove(rid).map_or(Row::Unknown, |request| Row::Last(request.stream))
    }

    /// Take a request out and abort it. Returns its stream.
    pub(crate) fn abort(&mut self, rid: &str) -> Option<K> {
        self.cancel(rid, true)
    }

    /// The rank on which a request runs.
    pub(crate) fn rank_of_request(&self, rid: &str) -> Option<(usize, &K)> {
        self.requests.get(rid).map(|request| (request.rank, &request.stream))
    }

    fn cancel(&mut self, rid: &str, abort: bool) -> Option<K> {
        let (rid, request) = self.requests.remove_entry(rid)?;
        if let Some(state) = self.ranks.get_mut(request.rank) {
            state.running = state.running.saturating_sub(1);
        }
        if abort {
            self.actions.push(Action::Abort { rank: request.rank, rids: vec![rid] });
        }
        Some(request.stream)
    }

    fn remove(&mut self, rid: &str) -> Option<Request<K>> {
        let request = self.requests.remove(rid)?;
        if let Some(state) = self.ranks.get_mut(request.rank) {
            state.running = state.running.saturating_sub(1);
        }
        Some(request)
    }

    /// Aborts that could not be sent: they are sent when the rank can take them, unless that is a new process.
    pub(crate) fn owe(&mut self, rank: usize, rids: Vec<Rid>) {
        let Some(state) = self.ranks.get_mut(rank) else { return };
        if matches!(state.phase, Phase::Absent | Phase::Greeted { .. }) {
            return;
        }
        let room = MAX_OWED.saturating_sub(state.owed.len());
        state.owed.extend(rids.into_iter().take(room));
    }

    /// End everything, for good.
    pub(crate) fn close(&mut self) {
        self.end_all(&EndCause::ClientClosed);
    }

    fn end_all(&mut self, cause: &EndCause) {
        self.end_where(cause, |_| true);
    }

    fn end_where(&mut self, cause: &EndCause, ends: impl Fn(&Request<K>) -> bool) {
        let mut aborts: Vec<Vec<Rid>> = vec![Vec::new(); self.ranks.len()];
        for (rid, request) in self.requests.extract_if(|_, request| ends(request)) {
            if let Some(rids) = aborts.get_mut(request.rank) {
                rids.push(rid);
            }
            self.actions.push(Action::End { stream: request.stream, cause: cause.clone() });
        }
        for (rank, rids) in aborts.into_iter().enumerate().filter(|(_, rids)| !rids.is_empty()) {
            if let Some(state) = self.ranks.get_mut(rank) {
                state.running = state.running.saturating_sub(rids.len());
            }
            self.actions.push(Action::Abort { rank, rids });
        }
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
