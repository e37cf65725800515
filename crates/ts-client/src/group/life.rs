//! The ranks' lives: the handshake, and what the evidence about a rank means.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use ts_wire::EngineCoreReadyResponse;

use super::{Action, Adoption, Group, Phase, Rank};
use crate::config::RankLoss;
use crate::error::EndCause;
use crate::liveness::Verdict;

/// How long after an engine was adopted its rows for unknown requests are taken for the former frontend's.
const ADOPTION: Duration = Duration::from_secs(60);
/// After a connection closed, output that is still on its way over the other one is waited for this long.
const LAST_WORDS: Duration = Duration::from_millis(30);

// === impl Group: the handshake ===

impl<K: Clone> Group<K> {
    /// A HELLO: a new process. Whatever ran on the rank's former life has ended. INIT is to be sent.
    pub(crate) fn hello(&mut self, rank: usize, now: Instant) {
        if self.ranks.get(rank).is_some_and(|rank| matches!(rank.phase, Phase::Live | Phase::Silent)) {
            self.lose(rank, "it was restarted", now);
        }
        let Some(state) = self.ranks.get_mut(rank) else { return };
        state.owed.clear();
        state.adoption = None;
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
                    state.adoption = Some(Adoption { until: now + ADOPTION, settled: HashSet::new() });
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
