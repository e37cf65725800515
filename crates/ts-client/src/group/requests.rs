//! The requests: from their submission to their one end.

use std::sync::Arc;
use std::time::Instant;

use super::table::{Request, RequestKey};
use super::{Action, Group, Phase, Refusal, Rid, Row};
use crate::error::EndCause;

/// Requests whose abort one rank may owe, until it is reachable. More than any engine runs.
const MAX_OWED: usize = 65_536;
/// Requests of a former frontend that are aborted on one rank.
const MAX_ORPHANS: usize = 65_536;

// === impl Group: requests ===

impl<K: Clone> Group<K> {
    /// Take a request in, before it is sent.
    pub(crate) fn submit(&mut self, rid: Rid, rank: usize, stream: K, now: Instant) -> Result<(), Refusal> {
        if self.requests.get(&rid).is_some() {
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
        self.requests.insert(rid, rank, stream);
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

    /// Where the request with this id is in the table.
    pub(crate) fn find(&self, rid: &str) -> Option<RequestKey> {
        self.requests.find(rid)
    }

    /// Whether the request is still there.
    pub(crate) fn has(&self, key: RequestKey) -> bool {
        self.requests.has(key)
    }

    /// A row arrived: `new` tokens, `completion` in all by the engine's count.
    pub(crate) fn row(
        &mut self,
        key: RequestKey,
        new: usize,
        completion: i64,
        finish_reason: Option<&str>,
    ) -> Row<'_, K> {
        let Some(request) = self.requests.at(key) else { return Row::Unknown };
        let expected = request.tokens.saturating_add(i64::try_from(new).unwrap_or(i64::MAX));
        request.tokens = completion;
        // An engine that aborts may do so without a count.
        let gap = self.rules.check_gaps && expected != completion && finish_reason != Some("abort");
        if gap {
            let engine_index = self.rules.index_of(request.rank);
            let cause = EndCause::Gap { engine_index, expected, reported: completion };
            let rid = Arc::clone(&request.rid);
            return self
                .cancel(&rid, finish_reason.is_none())
                .map_or(Row::Unknown, |stream| Row::Gap { stream, cause });
        }
        if finish_reason.is_some() {
            let rid = Arc::clone(&request.rid);
            return self.remove(&rid).map_or(Row::Unknown, |request| Row::Last(request.stream));
        }
        // Looked up again, since a reference that is returned here would be held above as well.
        self.requests.at(key).map_or(Row::Unknown, |request| Row::Running(&request.stream))
    }

    /// A row of a request that is not in the table came from `rank`. If the rank was adopted, the request may be one of
    /// the former frontend's, which nobody reads: it is aborted, once.
    pub(crate) fn orphan(&mut self, rank: usize, rid: &str, now: Instant) {
        let Some(state) = self.ranks.get_mut(rank) else { return };
        if state.adoption.as_ref().is_some_and(|adoption| adoption.until <= now) {
            state.adoption = None;
        }
        let Some(adoption) = &mut state.adoption else { return };
        if adoption.settled.len() >= MAX_ORPHANS || adoption.settled.contains(rid) {
            return;
        }
        let rid: Rid = rid.into();
        adoption.settled.insert(Arc::clone(&rid));
        self.actions.push(Action::Abort { rank, rids: vec![rid] });
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
        let request = self.remove(rid)?;
        if abort {
            self.actions.push(Action::Abort { rank: request.rank, rids: vec![request.rid] });
        }
        Some(request.stream)
    }

    fn remove(&mut self, rid: &str) -> Option<Request<K>> {
        let request = self.requests.remove(rid)?;
        if let Some(state) = self.ranks.get_mut(request.rank) {
            state.settle(&request.rid);
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

    pub(super) fn end_all(&mut self, cause: &EndCause) {
        self.end_where(cause, |_| true);
    }

    pub(super) fn end_where(&mut self, cause: &EndCause, ends: impl Fn(&Request<K>) -> bool) {
        let mut aborts: Vec<Vec<Rid>> = vec![Vec::new(); self.ranks.len()];
        for request in self.requests.extract(ends) {
            if let Some(rids) = aborts.get_mut(request.rank) {
                rids.push(request.rid);
            }
            self.actions.push(Action::End { stream: request.stream, cause: cause.clone() });
        }
        for (rank, rids) in aborts.into_iter().enumerate().filter(|(_, rids)| !rids.is_empty()) {
            if let Some(state) = self.ranks.get_mut(rank) {
                rids.iter().for_each(|rid| state.settle(rid));
            }
            self.actions.push(Action::Abort { rank, rids });
        }
    }
}
