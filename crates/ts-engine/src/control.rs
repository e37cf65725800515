//! Control operations: pause and resume, cache flush, state, profile. What this engine cannot do is refused with the
//! reason.

use std::time::Instant;

use ts_wire::control::*;
use ts_wire::{Dict, EngineOutput};

use crate::scheduler::Scheduler;
use crate::sequence::{Finish, UNKNOWN_ERROR};

/// How far scheduling is paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pause {
    /// It is not.
    No,
    /// What runs ends, nothing new starts; the reply to the pause is due when nothing runs.
    Draining,
    /// What ran has ended, nothing new starts.
    Drained,
    /// Everything stands still.
    Frozen,
}

/// What was done since a profile was started.
#[derive(Debug)]
pub(crate) struct Profile {
    started: Instant,
    pub(crate) steps: usize,
    pub(crate) computed: usize,
    pub(crate) generated: usize,
}

const FIXED_WEIGHTS: &str = "this engine cannot change its weights";
const NO_RELEASE: &str = "this engine cannot release its memory";

/// A reply that has only `success` and `message`.
macro_rules! reply {
    ($variant:ident($type:ident), $success:expr, $message:expr) => {
        ControlOutput::$variant($type { rid: None, http_worker_ipc: None, success: $success, message: $message.into() })
    };
}

impl Scheduler {
    /// Answers an operation, at once but for a pause that waits for its drain.
    pub(crate) fn control(&mut self, request: ControlRequest) {
        tracing::info!(operation = request.tag(), "control operation");
        if let Some(reply) = self.answer(request) {
            self.reply(reply);
        }
    }

    fn reply(&mut self, reply: ControlOutput) {
        self.say(EngineOutput::Control(Box::new(reply)));
    }

    fn answer(&mut self, request: ControlRequest) -> Option<ControlOutput> {
        use ControlRequest as R;
        let (rid, http_worker_ipc) = (None, None);
        Some(match request {
            R::FlushCache(_) => {
                let success = self.flush();
                ControlOutput::FlushCache(FlushCacheReqOutput { rid, http_worker_ipc, success })
            }
            R::PauseScheduler(pause) => return self.pause(&pause.mode),
            R::ResumeScheduler(_) => self.resume(),
            R::IsSchedulerPaused(_) => {
                let is_paused = self.pause != Pause::No;
                ControlOutput::IsSchedulerPaused(IsSchedulerPausedReqOutput { rid, http_worker_ipc, is_paused })
            }
            R::IsSleeping(_) => {
                ControlOutput::IsSleeping(IsSleepingReqOutput { rid, http_worker_ipc, is_sleeping: false })
            }
            R::GetInternalState(_) => {
                let internal_state = Dict::default();
                ControlOutput::GetInternalState(GetInternalStateReqOutput { rid, http_worker_ipc, internal_state })
            }
            R::SetInternalState(_) => {
                let (updated, server_args) = (false, Dict::default());
                ControlOutput::SetInternalState(SetInternalStateReqOutput {
                    rid,
                    http_worker_ipc,
                    updated,
                    server_args,
                })
            }
            R::Profile(profile) => self.profile(profile.kind),
            R::UpdateWeightFromDisk(_) => ControlOutput::UpdateWeightFromDisk(UpdateWeightFromDiskReqOutput {
                rid,
                http_worker_ipc,
                success: false,
                message: FIXED_WEIGHTS.into(),
                num_paused_requests: Some(0),
            }),
            R::UpdateWeightsFromDistributed(_) => {
                reply!(UpdateWeightsFromDistributed(UpdateWeightsFromDistributedReqOutput), false, FIXED_WEIGHTS)
            }
            R::UpdateWeightsFromTensor(_) => {
                reply!(UpdateWeightsFromTensor(UpdateWeightsFromTensorReqOutput), false, FIXED_WEIGHTS)
            }
            R::InitWeightsUpdateGroup(_) => {
                reply!(InitWeightsUpdateGroup(InitWeightsUpdateGroupReqOutput), false, FIXED_WEIGHTS)
            }
            R::DestroyWeightsUpdateGroup(_) => {
                reply!(DestroyWeightsUpdateGroup(DestroyWeightsUpdateGroupReqOutput), false, FIXED_WEIGHTS)
            }
            R::UpdateWeightsFromMooncake(_) => {
                reply!(UpdateWeightsFromMooncake(UpdateWeightsFromMooncakeReqOutput), false, FIXED_WEIGHTS)
            }
            R::RebalanceExperts(_) => {
                reply!(RebalanceExperts(RebalanceExpertsReqOutput), false, "this engine's model has no experts")
            }
            R::ReleaseMemoryOccupation(_) => {
                reply!(ReleaseMemoryOccupation(ReleaseMemoryOccupationReqOutput), false, NO_RELEASE)
            }
            R::ResumeMemoryOccupation(_) => {
                reply!(ResumeMemoryOccupation(ResumeMemoryOccupationReqOutput), false, NO_RELEASE)
            }
        })
    }

    /// Forgets the prefix cache; only an idle engine does.
    fn flush(&mut self) -> bool {
        let idle = self.running.is_empty() && self.waiting.is_empty();
        if idle {
            self.pages.forget();
        }
        idle
    }

    fn pause(&mut self, mode: &str) -> Option<ControlOutput> {
        if self.pause == Pause::Draining {
            return Some(paused(false, "a pause is already in progress"));
        }
        match mode {
            "keep" => {
                self.pause = Pause::Frozen;
                return Some(paused(true, ""));
            }
            "wait" => {}
            "abort" => self.abort_all(),
            _ => return Some(paused(false, "the mode must be abort, wait or keep")),
        }
        // The reply comes when nothing runs any more.
        self.pause = Pause::Draining;
        None
    }

    fn abort_all(&mut self) {
        let running = std::mem::take(&mut self.running);
        let waiting = std::mem::take(&mut self.waiting);
        for mut sequence in running.into_iter().chain(waiting) {
            sequence.finish = Some(Finish::aborted("Aborted by pause", UNKNOWN_ERROR));
            self.rows.push(&mut sequence);
            self.pages.release(&sequence.unload());
        }
    }

    /// Whether a pause has drained and its reply is due.
    pub(crate) fn drained(&self) -> bool {
        self.pause == Pause::Draining && self.running.is_empty() && !self.waiting.iter().any(|waits| waits.started)
    }

    /// Called after a step's rows are sent, so that the reply comes behind them.
    pub(crate) fn answer_drained_pause(&mut self) {
        if self.drained() {
            self.pause = Pause::Drained;
            self.reply(paused(true, ""));
        }
    }

    fn resume(&mut self) -> ControlOutput {
        if self.pause == Pause::Draining {
            self.reply(paused(false, "resumed before pause drained"));
        }
        self.pause = Pause::No;
        reply!(ResumeScheduler(ResumeSchedulerReqOutput), true, "")
    }

    fn profile(&mut self, kind: i64) -> ControlOutput {
        let (success, message) = match (kind, &self.profile) {
            (PROFILE_START, Some(_)) => (false, "a profile is already in progress".to_owned()),
            (PROFILE_START, None) => {
                self.profile = Some(Profile { started: Instant::now(), steps: 0, computed: 0, generated: 0 });
                (true, "counting steps and tokens; this engine writes no trace".to_owned())
            }
            (PROFILE_STOP, None) => (false, "no profile is in progress".to_owned()),
            (PROFILE_STOP, Some(profile)) => {
                let seconds = profile.started.elapsed().as_secs_f64();
                let message = format!(
                    "{} steps, {} tokens computed, {} generated in {seconds:.3} s",
                    profile.steps, profile.computed, profile.generated
                );
                self.profile = None;
                (true, message)
            }
            _ => (false, format!("unknown profile request {kind}")),
        };
        reply!(Profile(ProfileReqOutput), success, message)
    }
}

fn paused(success: bool, message: &str) -> ControlOutput {
    reply!(PauseScheduler(PauseSchedulerReqOutput), success, message)
}
