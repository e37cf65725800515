//! One operation on all ranks: who was asked, who answered, who is late. No sockets, no clock.
//!
//! Replies name neither the request nor the engine. So operations of one kind run one at a time, and a reply that comes
//! after its call gave up must not be taken for the answer to the next call: each rank's late replies are expected and
//! dropped.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use ts_wire::{ControlOutput, ControlRequest};

/// Calls of one kind that may wait for their turn.
const MAX_QUEUED: usize = 64;

/// The tag of an operation's reply.
type Kind = &'static str;

/// The control operations under way. `R` answers a caller.
#[derive(Debug)]
pub(crate) struct Controls<R> {
    kinds: HashMap<Kind, Operations<R>>,
    ranks: usize,
}

#[derive(Debug)]
struct Operations<R> {
    active: Option<Active<R>>,
    queue: VecDeque<Call<R>>,
    /// Replies that each rank still owes to calls that gave up.
    late: Vec<Late>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Late {
    owed: u32,
    /// Dropped as late since the active call began.
    dropped: u32,
}

/// A call of [`crate::EngineClient::control`].
#[derive(Debug)]
pub(crate) struct Call<R> {
    pub(crate) request: Box<ControlRequest>,
    pub(crate) deadline: Instant,
    pub(crate) reply: R,
}

#[derive(Debug)]
struct Active<R> {
    call: Call<R>,
    /// Ranks that have not answered.
    missing: Vec<usize>,
    /// Ranks that were lost before they answered.
    lost: Vec<usize>,
    /// Replies over connections that no rank is known for yet: each is one of the missing, none can be named. To guess
    /// one would turn the named reply of that rank away, and the call would never be complete.
    unnamed: usize,
    replies: Vec<ControlOutput>,
}

/// What to do next.
#[derive(Debug)]
pub(crate) enum Step<R> {
    /// Send the operation to these ranks.
    Send { ranks: Vec<usize>, request: Box<ControlRequest> },
    /// Every rank answered.
    Done { reply: R, outputs: Vec<ControlOutput> },
    /// These ranks did not answer.
    Failed { reply: R, kind: Kind, missing: Vec<usize>, answered: usize },
    /// Too many calls of the kind wait already.
    Refused { reply: R, kind: Kind },
}

// === impl Controls ===

impl<R> Controls<R> {
    pub(crate) fn new(ranks: usize) -> Self {
        Self { kinds: HashMap::new(), ranks }
    }

    /// Begin a call on `ranks`, or queue it behind another of its kind.
    pub(crate) fn call(&mut self, call: Call<R>, ranks: Vec<usize>) -> Option<Step<R>> {
        let kind = call.request.reply_tag();
        let ranks_in_all = self.ranks;
        let operations = self.kinds.entry(kind).or_insert_with(|| Operations {
            active: None,
            queue: VecDeque::new(),
            late: vec![Late::default(); ranks_in_all],
        });
        if operations.active.is_none() {
            return Some(operations.begin(call, ranks));
        }
        if operations.queue.len() >= MAX_QUEUED {
            return Some(Step::Refused { reply: call.reply, kind });
        }
        operations.queue.push_back(call);
        None
    }

    /// A reply arrived, from `rank` if its connection is known.
    pub(crate) fn reply(&mut self, rank: Option<usize>, output: ControlOutput) -> Option<Step<R>> {
        self.kinds.get_mut(output.tag())?.reply(rank, output)
    }

    /// A rank is lost: it answers nothing that it was asked before.
    pub(crate) fn rank_lost(&mut self, rank: usize) -> Vec<Step<R>> {
        self.kinds.values_mut().filter_map(|operations| operations.rank_lost(rank)).collect()
    }

    /// Calls whose time is over.
    pub(crate) fn expire(&mut self, now: Instant) -> Vec<Step<R>> {
        self.kinds.values_mut().flat_map(|operations| operations.expire(now)).collect()
    }

    /// A queued call whose turn has come.
    pub(crate) fn next(&mut self, ranks: &[usize]) -> Option<Step<R>> {
        let operations = self.kinds.values_mut().find(|each| each.active.is_none() && !each.queue.is_empty())?;
        let call = operations.queue.pop_front()?;
        Some(operations.begin(call, ranks.to_vec()))
    }
}

// === impl Operations ===

impl<R> Operations<R> {
    fn begin(&mut self, call: Call<R>, ranks: Vec<usize>) -> Step<R> {
        for late in &mut self.late {
            late.dropped = 0;
        }
        let request = call.request.clone();
        self.active = Some(Active { call, missing: ranks.clone(), lost: Vec::new(), unnamed: 0, replies: Vec::new() });
        Step::Send { ranks, request }
    }

    fn reply(&mut self, rank: Option<usize>, output: ControlOutput) -> Option<Step<R>> {
        // From an unknown connection: any rank that may have sent it.
        let late = match rank {
            Some(rank) => self.late.get_mut(rank).filter(|late| late.owed > 0),
            None => self.late.iter_mut().find(|late| late.owed > 0),
        };
        if let Some(late) = late {
            late.owed -= 1;
            late.dropped += 1;
            return None;
        }
        let active = self.active.as_mut()?;
        match rank {
            Some(rank) => {
                let position = active.missing.iter().position(|missing| *missing == rank)?;
                active.missing.remove(position);
            }
            None => active.unnamed += 1,
        }
        active.replies.push(output);
        self.finish_if_complete()
    }

    fn rank_lost(&mut self, rank: usize) -> Option<Step<R>> {
        if let Some(late) = self.late.get_mut(rank) {
            *late = Late::default();
        }
        let active = self.active.as_mut()?;
        let position = active.missing.iter().position(|missing| *missing == rank)?;
        active.missing.remove(position);
        active.lost.push(rank);
        self.finish_if_complete()
    }

    fn finish_if_complete(&mut self) -> Option<Step<R>> {
        let active = self.active.take_if(|active| active.missing.len() <= active.unnamed)?;
        let reply = active.call.reply;
        if active.lost.is_empty() {
            return Some(Step::Done { reply, outputs: active.replies });
        }
        let kind = active.call.request.reply_tag();
        Some(Step::Failed { reply, kind, missing: active.lost, answered: active.replies.len() })
    }

    fn expire(&mut self, now: Instant) -> Vec<Step<R>> {
        let mut steps = Vec::new();
        if let Some(active) = self.active.take_if(|active| active.call.deadline <= now) {
            let kind = active.call.request.reply_tag();
            for rank in active.missing.iter().skip(active.unnamed) {
                if let Some(late) = self.late.get_mut(*rank) {
                    // A rank that answered something during this call, though not enough, has nothing queued: what was
                    // taken for late was the answer, and counting on would shift every later call.
                    late.owed = if late.dropped > 0 { 0 } else { late.owed + 1 };
                }
            }
            let mut missing = active.missing;
            missing.extend(active.lost);
            missing.sort_unstable();
            steps.push(Step::Failed { reply: active.call.reply, kind, missing, answered: active.replies.len() });
        }
        while self.queue.front().is_some_and(|call| call.deadline <= now) {
            let Some(call) = self.queue.pop_front() else { break };
            let kind = call.request.reply_tag();
            steps.push(Step::Failed { reply: call.reply, kind, missing: Vec::new(), answered: 0 });
        }
        steps
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

    use std::time::Duration;

    use ts_wire::control::{IsSchedulerPausedReqInput, IsSchedulerPausedReqOutput};

    use super::*;

    fn call(deadline: Instant) -> Call<()> {
        let request = IsSchedulerPausedReqInput { rid: None, http_worker_ipc: None };
        Call { request: Box::new(ControlRequest::IsSchedulerPaused(request)), deadline, reply: () }
    }

    fn reply() -> ControlOutput {
        let reply = IsSchedulerPausedReqOutput { rid: None, http_worker_ipc: None, is_paused: false };
        ControlOutput::IsSchedulerPaused(reply)
    }

    /// Three ranks answer, each over a connection that is known or is not, in every order.
    #[test]
    fn replies_without_a_name_complete_a_call() {
        let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
        for (order, known) in orders.iter().flat_map(|order| (0..8_u32).map(move |known| (order, known))) {
            let mut controls = Controls::new(3);
            let later = Instant::now() + Duration::from_secs(60);
            assert!(matches!(controls.call(call(later), vec![0, 1, 2]), Some(Step::Send { .. })));
            let [first, second, third] =
                order.map(|rank: usize| controls.reply((known >> rank & 1 == 1).then_some(rank), reply()));
            assert!(first.is_none() && second.is_none(), "{order:?} {known:b}");
            match third {
                Some(Step::Done { outputs, .. }) => assert_eq!(outputs.len(), 3),
                other => panic!("{order:?} {known:b}: {other:?}"),
            }
        }
    }

    /// Who did not answer is named, and what comes late is not taken for the next answer.
    #[test]
    fn late_replies_are_nobodys() {
        let now = Instant::now();
        let mut controls = Controls::new(2);
        controls.call(call(now), vec![0, 1]);
        assert!(controls.reply(Some(0), reply()).is_none());
        match controls.expire(now).pop() {
            Some(Step::Failed { missing, answered, .. }) => assert_eq!((missing, answered), (vec![1], 1)),
            other => panic!("{other:?}"),
        }
        controls.call(call(now + Duration::from_secs(60)), vec![0, 1]);
        assert!(controls.reply(Some(1), reply()).is_none(), "this one is late");
        assert!(controls.reply(Some(0), reply()).is_none());
        assert!(matches!(controls.reply(Some(1), reply()).unwrap(), Step::Done { .. }));
    }
}
