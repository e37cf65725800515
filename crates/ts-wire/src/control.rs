//! Control operations (`engine/io_struct.py`; wire contract, section 5): cache flush, pause, memory release, weight
//! updates, profiling and the like.

use crate::codec::{Dict, StrOrList, Wire, wire_struct};
use crate::error::{Error, Result};
use crate::msgpack::{Decoder, Encoder};
use crate::value::Value;

/// `ProfileReq.kind` that starts the profiler.
pub const PROFILE_START: i64 = 1;
/// `ProfileReq.kind` that stops it.
pub const PROFILE_STOP: i64 = 2;

wire_struct! {
    /// Drop the prefix caches.
    pub struct FlushCacheReqInput: array("FlushCacheReqInput") {
        /// The request id; control operations rarely set it.
        pub rid: Option<StrOrList> = None,
        /// In-process HTTP worker address; unused across processes.
        pub http_worker_ipc: Option<String> = None,
    }
}

wire_struct! {
    /// The reply to [`FlushCacheReqInput`].
    pub struct FlushCacheReqOutput: array("FlushCacheReqOutput") {
        /// The request id; control operations rarely set it.
        pub rid: Option<StrOrList> = None,
        /// In-process HTTP worker address; unused across processes.
        pub http_worker_ipc: Option<String> = None,
        /// Whether the caches were dropped.
        pub success: bool,
    }
}

wire_struct! {
    /// Stop scheduling: `abort` aborts what runs, `wait` lets it finish, `keep` freezes it in place.
    pub struct PauseSchedulerReqInput: array("PauseSchedulerReqInput") {
        /// The request id; control operations rarely set it.
        pub rid: Option<StrOrList> = None,
        /// In-process HTTP worker address; unused across processes.
        pub http_worker_ipc: Option<String> = None,
        /// `abort`, `wait` or `keep`.
        pub mode: String = "abort".to_owned(),
    }
}

wire_struct! {
    /// The reply to [`PauseSchedulerReqInput`].
    pub struct PauseSchedulerReqOutput: array("PauseSchedulerReqOutput") {
        /// The request id; control operations rarely set it.
        pub rid: Option<StrOrList> = None,
        /// In-process HTTP worker address; unused across processes.
        pub http_worker_ipc: Option<String> = None,
        /// Whether the engine paused.
        pub success: bool,
        /// Why not, if it did not.
        pub message: String = String::new(),
    }
}

wire_struct! {
    /// Resume scheduling after a pause.
    pub struct ResumeSchedulerReqInput: array("ResumeSchedulerReqInput") {
        /// The request id; control operations rarely set it.
        pub rid: Option<StrOrList> = None,
        /// In-process HTTP worker address; unused across processes.
        pub http_worker_ipc: Option<String> = None,
    }
}

wire_struct! {
    /// The reply to [`ResumeSchedulerReqInput`].
    pub struct ResumeSchedulerReqOutput: array("ResumeSchedulerReqOutput") {
        /// The request id; control operations rarely set it.
        pub rid: Option<StrOrList> = None,
        /// In-process HTTP worker address; unused across processes.
        pub http_worker_ipc: Option<String> = None,
        /// Whether the engine resumed.
        pub success: bool,
        /// Why not, if it did not.
        pub message: String = String::new(),
    }
}

wire_struct! {
    /// Ask whether scheduling is paused.
    pub struct IsSchedulerPausedReqInput: array("IsSchedulerPausedReqInput") {
        /// The request id; control operations rarely set it.
        pub rid: Option<StrOrList> = None,
        /// In-process HTTP worker address; unused across processes.
        pub http_worker_ipc: Option<String> = None,
    }
}

wire_struct! {
    /// The reply to [`IsSchedulerPausedReqInput`].
    pub struct IsSchedulerPausedReqOutput: array("IsSchedulerPausedReqOutput") {
        /// The request id; control operations rarely set it.
        pub rid: Option<StrOrList> = None,
        /// In-process HTTP worker address; unused across processes.
        pub http_worker_ipc: Option<String> = None,
        /// Whether it is paused.
        pub is_paused: bool,
    }
}

wire_struct! {
    /// Load new weights from a checkpoint on disk.
    pub struct UpdateWeightFromDiskReqInput: array("UpdateWeightFromDiskReqInput") {
        /// The request id; control operations rarely set it.
        pub rid: Option<StrOrList> = None,
        /// In-process HTTP worker address; unused across processes.
        pub http_worker_ipc: Option<String> = None,
        /// The checkpoint.
        pub model_path: String,
        /// Its format.
        pub load_format: Option<String> = None,
        /// The weight version after a successful load.
        pub weight_version: Option<String> = None,
        /// Drop the cached KV first: it was computed under the old weights.
        pub flush_cache: bool = true,
    }
}

wire_struct! {
    /// The reply to [`UpdateWeightFromDiskReqInput`].
    pub struct UpdateWeightFromDiskReqOutput: array("UpdateWeightFromDiskReqOutput") {
        /// The request id; control operations rarely set it.
        pub rid: Option<StrOrList> = None,
        /// In-process HTTP worker address; unused across processes.
        pub http_worker_ipc: Option<String> = None,
        /// Whether the weights were loaded.
        pub success: bool,
        /// Details.
        pub message: String,
        /// Requests that were paused during the load.
        pub num_paused_requests: Option<i64> = Some(0),
    }
}

wire_struct! {
    /// Receive new weights from the trainer's NCCL group.
    pub struct UpdateWeightsFromDistributedReqInput: array("UpdateWeightsFromDistributedReqInput") {
        /// The request id; control operations rarely set it.
        pub rid: Option<StrOrList> = None,
        /// In-process HTTP worker address; unused across processes.
        pub http_worker_ipc: Option<String> = None,
        /// Parameter names, in broadcast order.
        pub names: Vec<String>,
        /// Their dtypes.
        pub dtype_names: Vec<String>,
        /// Their shapes.
        pub shapes: Vec<Vec<i64>>,
        /// The weight-update group.
        pub group_name: String = "weight_update_group".to_owned(),
        /// Drop the cached KV first.
        pub flush_cache: bool = true,
        /// The weight version afterwards; `None` keeps the current one.
        pub weight_version: Option<String>,
    }
}

wire_struct! {
    /// The reply to [`UpdateWeightsFromDistributedReqInput`].
    pub struct UpdateWeightsFromDistributedReqOutput: array("UpdateWeightsFromDistributedReqOutput") {
        /// The request id; control operations rarely set it.
        pub rid: Option<StrOrList> = None,
        /// In-process HTTP worker address; unused across processes.
        pub http_worker_ipc: Option<String> = None,
        /// Whether it was done.
        pub success: bool,
        /// Details.
        pub message: String,
    }
}

wire_struct! {
    /// Load weights from serialized tensors; the engines refuse it.
    pub struct UpdateWeightsFromTensorReqInput: array("UpdateWeightsFromTensorReqInput") {
        /// The request id; control operations rarely set it.
        pub rid: Option<StrOrList> = None,
        /// In-process HTTP worker address; unused across processes.
        pub http_worker_ipc: Option<String> = None,
        /// One serialized tensor dict per world rank.
        pub serialized_named_tensors: Vec<Value>,
        /// Their format.
        pub load_format: Option<String>,
        /// Drop the cached KV first.
        pub flush_cache: bool,
        /// The weight version afterwards.
        pub weight_version: Option<String> = None,
    }
}

wire_struct! {
    /// The reply to [`UpdateWeightsFromTensorReqInput`].
    pub struct UpdateWeightsFromTensorReqOutput: array("UpdateWeightsFromTensorReqOutput") {
        /// The request id; control operations rarely set it.
        pub rid: Option<StrOrList> = None,
        /// In-process HTTP worker address; unused across processes.
        pub http_worker_ipc: Option<String> = None,
        /// Whether it was done.
        pub success: bool,
        /// Details.
        pub message: String,
    }
}

wire_struct! {
    /// Join the trainer's weight-update group.
    pub struct InitWeightsUpdateGroupReqInput: array("InitWeightsUpdateGroupReqInput") {
        /// The request id; control operations rarely set it.
        pub rid: Option<StrOrList> = None,
        /// In-process HTTP worker address; unused across processes.
        pub http_worker_ipc: Option<String> = None,
        /// The group's rendezvous host.
        pub master_address: String,
        /// Its port.
        pub master_port: i64,
        /// This engine's first rank in the group.
        pub rank_offset: i64,
        /// The group's size.
        pub world_size: i64,
        /// The group's name.
        pub group_name: String = "weight_update_group".to_owned(),
        /// Its backend.
        pub backend: String = "nccl".to_owned(),
    }
}

wire_struct! {
    /// The reply to [`InitWeightsUpdateGroupReqInput`].
    pub struct InitWeightsUpdateGroupReqOutput: array("InitWeightsUpdateGroupReqOutput") {
        /// The request id; control operations rarely set it.
        pub rid: Option<StrOrList> = None,
        /// In-process HTTP worker address; unused across processes.
        pub http_worker_ipc: Option<String> = None,
        /// Whether it was done.
        pub success: bool,
        /// Details.
        pub message: String,
    }
}

wire_struct! {
    /// Leave a weight-update group.
    pub struct DestroyWeightsUpdateGroupReqInput: array("DestroyWeightsUpdateGroupReqInput") {
        /// The request id; control operations rarely set it.
        pub rid: Option<StrOrList> = None,
        /// In-process HTTP worker address; unused across processes.
        pub http_worker_ipc: Option<String> = None,
        /// The group's name.
        pub group_name: String = "weight_update_group".to_owned(),
    }
}

wire_struct! {
    /// The reply to [`DestroyWeightsUpdateGroupReqInput`].
    pub struct DestroyWeightsUpdateGroupReqOutput: array("DestroyWeightsUpdateGroupReqOutput") {
        /// The request id; control operations rarely set it.
        pub rid: Option<StrOrList> = None,
        /// In-process HTTP worker address; unused across processes.
        pub http_worker_ipc: Option<String> = None,
        /// Whether it was done.
        pub success: bool,
        /// Details.
        pub message: String,
    }
}

wire_struct! {
    /// Load one committed version from a Mooncake weight store.
    pub struct UpdateWeightsFromMooncakeReqInput: array("UpdateWeightsFromMooncakeReqInput") {
        /// The request id; control operations rarely set it.
        pub rid: Option<StrOrList> = None,
        /// In-process HTTP worker address; unused across processes.
        pub http_worker_ipc: Option<String> = None,
        /// The version.
        pub version: i64,
        /// Drop the cached KV first.
        pub flush_cache: bool,
        /// The weight version afterwards; `None` for the version's default.
        pub weight_version: Option<String>,
    }
}

wire_struct! {
    /// The reply to [`UpdateWeightsFromMooncakeReqInput`].
    pub struct UpdateWeightsFromMooncakeReqOutput: array("UpdateWeightsFromMooncakeReqOutput") {
        /// The request id; control operations rarely set it.
        pub rid: Option<StrOrList> = None,
        /// In-process HTTP worker address; unused across processes.
        pub http_worker_ipc: Option<String> = None,
        /// Whether it was done.
        pub success: bool,
        /// Details.
        pub message: String,
    }
}

wire_struct! {
    /// Start one online expert rebalance now.
    pub struct RebalanceExpertsReqInput: array("RebalanceExpertsReqInput") {
        /// The request id; control operations rarely set it.
        pub rid: Option<StrOrList> = None,
        /// In-process HTTP worker address; unused across processes.
        pub http_worker_ipc: Option<String> = None,
    }
}

wire_struct! {
    /// The reply to [`RebalanceExpertsReqInput`].
    pub struct RebalanceExpertsReqOutput: array("RebalanceExpertsReqOutput") {
        /// The request id; control operations rarely set it.
        pub rid: Option<StrOrList> = None,
        /// In-process HTTP worker address; unused across processes.
        pub http_worker_ipc: Option<String> = None,
        /// Whether it was done.
        pub success: bool,
        /// Details.
        pub message: String,
    }
}

wire_struct! {
    /// Release GPU memory: `weights`, `kv_cache`; all of it when `None`.
    pub struct ReleaseMemoryOccupationReqInput: array("ReleaseMemoryOccupationReqInput") {
        /// The request id; control operations rarely set it.
        pub rid: Option<StrOrList> = None,
        /// In-process HTTP worker address; unused across processes.
        pub http_worker_ipc: Option<String> = None,
        /// The regions.
        pub tags: Option<Vec<String>> = None,
    }
}

wire_struct! {
    /// The reply to [`ReleaseMemoryOccupationReqInput`].
    pub struct ReleaseMemoryOccupationReqOutput: array("ReleaseMemoryOccupationReqOutput") {
        /// The request id; control operations rarely set it.
        pub rid: Option<StrOrList> = None,
        /// In-process HTTP worker address; unused across processes.
        pub http_worker_ipc: Option<String> = None,
        /// Whether the memory was released.
        pub success: bool = true,
        /// Details.
        pub message: String = String::new(),
    }
}

wire_struct! {
    /// Take released GPU memory back; all released regions when `None`.
    pub struct ResumeMemoryOccupationReqInput: array("ResumeMemoryOccupationReqInput") {
        /// The request id; control operations rarely set it.
        pub rid: Option<StrOrList> = None,
        /// In-process HTTP worker address; unused across processes.
        pub http_worker_ipc: Option<String> = None,
        /// The regions.
        pub tags: Option<Vec<String>> = None,
    }
}

wire_struct! {
    /// The reply to [`ResumeMemoryOccupationReqInput`].
    pub struct ResumeMemoryOccupationReqOutput: array("ResumeMemoryOccupationReqOutput") {
        /// The request id; control operations rarely set it.
        pub rid: Option<StrOrList> = None,
        /// In-process HTTP worker address; unused across processes.
        pub http_worker_ipc: Option<String> = None,
        /// Whether the memory was taken back.
        pub success: bool = true,
        /// Details.
        pub message: String = String::new(),
    }
}

wire_struct! {
    /// Ask whether the engine released its memory.
    pub struct IsSleepingReqInput: array("IsSleepingReqInput") {
        /// The request id; control operations rarely set it.
        pub rid: Option<StrOrList> = None,
        /// In-process HTTP worker address; unused across processes.
        pub http_worker_ipc: Option<String> = None,
    }
}

wire_struct! {
    /// The reply to [`IsSleepingReqInput`].
    pub struct IsSleepingReqOutput: array("IsSleepingReqOutput") {
        /// The request id; control operations rarely set it.
        pub rid: Option<StrOrList> = None,
        /// In-process HTTP worker address; unused across processes.
        pub http_worker_ipc: Option<String> = None,
        /// Whether it did.
        pub is_sleeping: bool,
    }
}

wire_struct! {
    /// Ask for the engine's internal state.
    pub struct GetInternalStateReq: array("GetInternalStateReq") {
        /// The request id; control operations rarely set it.
        pub rid: Option<StrOrList> = None,
        /// In-process HTTP worker address; unused across processes.
        pub http_worker_ipc: Option<String> = None,
    }
}

wire_struct! {
    /// The reply to [`GetInternalStateReq`].
    pub struct GetInternalStateReqOutput: array("GetInternalStateReqOutput") {
        /// The request id; control operations rarely set it.
        pub rid: Option<StrOrList> = None,
        /// In-process HTTP worker address; unused across processes.
        pub http_worker_ipc: Option<String> = None,
        /// The state; real engines answer an empty map.
        pub internal_state: Dict<Value, Value>,
    }
}

wire_struct! {
    /// Change server arguments at run time.
    pub struct SetInternalStateReq: array("SetInternalStateReq") {
        /// The request id; control operations rarely set it.
        pub rid: Option<StrOrList> = None,
        /// In-process HTTP worker address; unused across processes.
        pub http_worker_ipc: Option<String> = None,
        /// The arguments to change.
        pub server_args: Dict<Value, Value>,
    }
}

wire_struct! {
    /// The reply to [`SetInternalStateReq`].
    pub struct SetInternalStateReqOutput: array("SetInternalStateReqOutput") {
        /// The request id; control operations rarely set it.
        pub rid: Option<StrOrList> = None,
        /// In-process HTTP worker address; unused across processes.
        pub http_worker_ipc: Option<String> = None,
        /// Whether anything changed.
        pub updated: bool,
        /// The arguments now.
        pub server_args: Dict<Value, Value>,
    }
}

wire_struct! {
    /// Start (`kind` 1) or stop (`kind` 2) the profiler.
    pub struct ProfileReq: array("ProfileReq") {
        /// The request id; control operations rarely set it.
        pub rid: Option<StrOrList> = None,
        /// In-process HTTP worker address; unused across processes.
        pub http_worker_ipc: Option<String> = None,
        /// [`PROFILE_START`] or [`PROFILE_STOP`]; Python calls it `type`.
        pub kind: i64,
        /// Where traces go.
        pub output_dir: Option<String> = None,
        /// The forward step to start at.
        pub start_step: Option<i64> = None,
        /// Steps to profile before stopping.
        pub num_steps: Option<i64> = None,
        /// What to record: `CPU`, `GPU`, `MEM`, and so on.
        pub activities: Option<Vec<String>> = None,
        /// One trace per stage (prefill, decode).
        pub profile_by_stage: bool = false,
        /// Record Python stacks.
        pub with_stack: Option<bool> = None,
        /// Record tensor shapes.
        pub record_shapes: Option<bool> = None,
        /// Names the trace files.
        pub profile_id: Option<String> = None,
    }
}

wire_struct! {
    /// The reply to [`ProfileReq`].
    pub struct ProfileReqOutput: array("ProfileReqOutput") {
        /// The request id; control operations rarely set it.
        pub rid: Option<StrOrList> = None,
        /// In-process HTTP worker address; unused across processes.
        pub http_worker_ipc: Option<String> = None,
        /// Whether it was done.
        pub success: bool,
        /// Details.
        pub message: String,
    }
}

/// Declares a union of tagged structs, told apart by their tags.
macro_rules! wire_union {
    ($(#[$meta:meta])* pub enum $name:ident { $( $variant:ident($type:ident), )* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq)]
        pub enum $name {
            $( #[doc = concat!("See [`", stringify!($type), "`].")] $variant($type), )*
        }

        impl $name {
            /// The variant's wire tag (its Python class name).
            pub fn tag(&self) -> &'static str {
                match self { $( $name::$variant(_) => stringify!($type), )* }
            }

            /// Whether `tag` names a variant.
            pub fn knows(tag: &str) -> bool {
                matches!(tag, $( stringify!($type) )|*)
            }
        }

        impl Wire for $name {
            fn encode(&self, encoder: &mut Encoder) {
                match self { $( $name::$variant(inner) => inner.encode(encoder), )* }
            }

            fn decode(decoder: &mut Decoder<'_>) -> Result<Self> {
                match decoder.peek_tag()? {
                    $( stringify!($type) => Wire::decode(decoder).map($name::$variant), )*
                    found => Err(Error::Tag { expected: stringify!($name), found: found.chars().take(80).collect() }),
                }
            }
        }
    };
}

wire_union! {
    /// A control operation, the payload of a CONTROL message.
    pub enum ControlRequest {
        FlushCache(FlushCacheReqInput),
        PauseScheduler(PauseSchedulerReqInput),
        ResumeScheduler(ResumeSchedulerReqInput),
        IsSchedulerPaused(IsSchedulerPausedReqInput),
        UpdateWeightFromDisk(UpdateWeightFromDiskReqInput),
        UpdateWeightsFromDistributed(UpdateWeightsFromDistributedReqInput),
        UpdateWeightsFromTensor(UpdateWeightsFromTensorReqInput),
        InitWeightsUpdateGroup(InitWeightsUpdateGroupReqInput),
        DestroyWeightsUpdateGroup(DestroyWeightsUpdateGroupReqInput),
        UpdateWeightsFromMooncake(UpdateWeightsFromMooncakeReqInput),
        RebalanceExperts(RebalanceExpertsReqInput),
        ReleaseMemoryOccupation(ReleaseMemoryOccupationReqInput),
        ResumeMemoryOccupation(ResumeMemoryOccupationReqInput),
        IsSleeping(IsSleepingReqInput),
        GetInternalState(GetInternalStateReq),
        SetInternalState(SetInternalStateReq),
        Profile(ProfileReq),
    }
}

wire_union! {
    /// A control operation's reply.
    pub enum ControlOutput {
        FlushCache(FlushCacheReqOutput),
        PauseScheduler(PauseSchedulerReqOutput),
        ResumeScheduler(ResumeSchedulerReqOutput),
        IsSchedulerPaused(IsSchedulerPausedReqOutput),
        UpdateWeightFromDisk(UpdateWeightFromDiskReqOutput),
        UpdateWeightsFromDistributed(UpdateWeightsFromDistributedReqOutput),
        UpdateWeightsFromTensor(UpdateWeightsFromTensorReqOutput),
        InitWeightsUpdateGroup(InitWeightsUpdateGroupReqOutput),
        DestroyWeightsUpdateGroup(DestroyWeightsUpdateGroupReqOutput),
        UpdateWeightsFromMooncake(UpdateWeightsFromMooncakeReqOutput),
        RebalanceExperts(RebalanceExpertsReqOutput),
        ReleaseMemoryOccupation(ReleaseMemoryOccupationReqOutput),
        ResumeMemoryOccupation(ResumeMemoryOccupationReqOutput),
        IsSleeping(IsSleepingReqOutput),
        GetInternalState(GetInternalStateReqOutput),
        SetInternalState(SetInternalStateReqOutput),
        Profile(ProfileReqOutput),
    }
}

impl ControlRequest {
    /// The tag of the reply this operation gets.
    pub fn reply_tag(&self) -> &'static str {
        match self {
            ControlRequest::FlushCache(_) => "FlushCacheReqOutput",
            ControlRequest::PauseScheduler(_) => "PauseSchedulerReqOutput",
            ControlRequest::ResumeScheduler(_) => "ResumeSchedulerReqOutput",
            ControlRequest::IsSchedulerPaused(_) => "IsSchedulerPausedReqOutput",
            ControlRequest::UpdateWeightFromDisk(_) => "UpdateWeightFromDiskReqOutput",
            ControlRequest::UpdateWeightsFromDistributed(_) => "UpdateWeightsFromDistributedReqOutput",
            ControlRequest::UpdateWeightsFromTensor(_) => "UpdateWeightsFromTensorReqOutput",
            ControlRequest::InitWeightsUpdateGroup(_) => "InitWeightsUpdateGroupReqOutput",
            ControlRequest::DestroyWeightsUpdateGroup(_) => "DestroyWeightsUpdateGroupReqOutput",
            ControlRequest::UpdateWeightsFromMooncake(_) => "UpdateWeightsFromMooncakeReqOutput",
            ControlRequest::RebalanceExperts(_) => "RebalanceExpertsReqOutput",
            ControlRequest::ReleaseMemoryOccupation(_) => "ReleaseMemoryOccupationReqOutput",
            ControlRequest::ResumeMemoryOccupation(_) => "ResumeMemoryOccupationReqOutput",
            ControlRequest::IsSleeping(_) => "IsSleepingReqOutput",
            ControlRequest::GetInternalState(_) => "GetInternalStateReqOutput",
            ControlRequest::SetInternalState(_) => "SetInternalStateReqOutput",
            ControlRequest::Profile(_) => "ProfileReqOutput",
        }
    }
}
