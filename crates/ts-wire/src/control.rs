//! Control operations and their replies: cache flush, pause, weight updates,
//! memory release, profiling. One reply per engine; replies name neither the
//! request nor the engine.

use crate::codec::{Dict, StrOrList, Wire};
use crate::error::Result;
use crate::layout::{array_struct, wrong_tag};
use crate::msgpack::{Decoder, Encoder};
use crate::value::Value;

/// [`ProfileReq::kind`] that starts the profiler.
pub const PROFILE_START: i64 = 1;
/// [`ProfileReq::kind`] that stops it.
pub const PROFILE_STOP: i64 = 2;

/// Define tagged structs that begin, as every control struct does, with `rid`
/// and `http_worker_ipc`. The tag is the struct's name.
macro_rules! control_structs {
    ($(
        $(#[$meta:meta])*
        $name:ident {
            $($(#[$field_meta:meta])* $field:ident: $ty:ty $(= $default:expr)?),* $(,)?
        }
    )*) => {$(
        control_structs!(@one stringify!($name), $(#[$meta])* $name {
            $($(#[$field_meta])* $field: $ty $(= $default)?),*
        });
    )*};
    (@one $tag:expr, $(#[$meta:meta])* $name:ident {
        $($(#[$field_meta:meta])* $field:ident: $ty:ty $(= $default:expr)?),*
    }) => {
        array_struct! {
            $(#[$meta])*
            #[derive(Debug, Clone, PartialEq)]
            pub struct $name tagged $tag {
                /// Request id; control operations rarely have one.
                pub rid: Option<StrOrList> = None,
                /// Unused across processes.
                pub http_worker_ipc: Option<String> = None,
                $($(#[$field_meta])* pub $field: $ty $(= $default)?),*
            }
        }
    };
}

control_structs! {
    /// Drop the prefix cache.
    FlushCacheReqInput {}

    /// Reply to [`FlushCacheReqInput`].
    FlushCacheReqOutput {
        /// The cache was dropped.
        success: bool,
    }

    /// Stop scheduling.
    PauseSchedulerReqInput {
        /// `abort` ends what runs, `wait` lets it finish, `keep` freezes it.
        mode: String = "abort".to_owned(),
    }

    /// Reply to [`PauseSchedulerReqInput`], once the pause holds.
    PauseSchedulerReqOutput {
        /// The engine is paused.
        success: bool,
        /// Why it is not.
        message: String = String::new(),
    }

    /// Schedule again after a pause.
    ResumeSchedulerReqInput {}

    /// Reply to [`ResumeSchedulerReqInput`].
    ResumeSchedulerReqOutput {
        /// The engine runs.
        success: bool,
        /// Why it does not.
        message: String = String::new(),
    }

    /// Ask whether the scheduler is paused.
    IsSchedulerPausedReqInput {}

    /// Reply to [`IsSchedulerPausedReqInput`].
    IsSchedulerPausedReqOutput {
        /// It is.
        is_paused: bool,
    }

    /// Load weights from a checkpoint on the engine's disk.
    UpdateWeightFromDiskReqInput {
        /// The checkpoint.
        model_path: String,
        /// Its format.
        load_format: Option<String> = None,
        /// The weights' version from then on.
        weight_version: Option<String> = None,
        /// Drop the KV of the old weights first.
        flush_cache: bool = true,
    }

    /// Reply to [`UpdateWeightFromDiskReqInput`].
    UpdateWeightFromDiskReqOutput {
        /// The weights were loaded.
        success: bool,
        /// Detail.
        message: String,
        /// Requests that were paused meanwhile.
        num_paused_requests: Option<i64> = Some(0),
    }

    /// Take weights from the trainer's group.
    UpdateWeightsFromDistributedReqInput {
        /// The parameters, in broadcast order.
        names: Vec<String>,
        /// Their dtypes.
        dtype_names: Vec<String>,
        /// Their shapes.
        shapes: Vec<Vec<i64>>,
        /// The group.
        group_name: String = "weight_update_group".to_owned(),
        /// Drop the KV of the old weights first.
        flush_cache: bool = true,
        /// The weights' version from then on; `None` keeps it.
        weight_version: Option<String>,
    }

    /// Reply to [`UpdateWeightsFromDistributedReqInput`].
    UpdateWeightsFromDistributedReqOutput {
        /// The weights were received.
        success: bool,
        /// Detail.
        message: String,
    }

    /// Load weights from serialized tensors; engines refuse it.
    UpdateWeightsFromTensorReqInput {
        /// The tensors of each rank.
        serialized_named_tensors: Vec<Value>,
        /// Their format.
        load_format: Option<String>,
        /// Drop the KV of the old weights first.
        flush_cache: bool,
        /// The weights' version from then on.
        weight_version: Option<String> = None,
    }

    /// Reply to [`UpdateWeightsFromTensorReqInput`].
    UpdateWeightsFromTensorReqOutput {
        /// The weights were loaded.
        success: bool,
        /// Detail.
        message: String,
    }

    /// Join the trainer's group.
    InitWeightsUpdateGroupReqInput {
        /// The host where the group meets.
        master_address: String,
        /// Its port.
        master_port: i64,
        /// This engine's first rank in the group.
        rank_offset: i64,
        /// Ranks in the group.
        world_size: i64,
        /// The group.
        group_name: String = "weight_update_group".to_owned(),
        /// Its backend.
        backend: String = "nccl".to_owned(),
    }

    /// Reply to [`InitWeightsUpdateGroupReqInput`].
    InitWeightsUpdateGroupReqOutput {
        /// The engine joined.
        success: bool,
        /// Detail.
        message: String,
    }

    /// Leave the trainer's group.
    DestroyWeightsUpdateGroupReqInput {
        /// The group.
        group_name: String = "weight_update_group".to_owned(),
    }

    /// Reply to [`DestroyWeightsUpdateGroupReqInput`].
    DestroyWeightsUpdateGroupReqOutput {
        /// The engine left.
        success: bool,
        /// Detail.
        message: String,
    }

    /// Load a version from a Mooncake weight store.
    UpdateWeightsFromMooncakeReqInput {
        /// The version.
        version: i64,
        /// Drop the KV of the old weights first.
        flush_cache: bool,
        /// The weights' version from then on; `None` is the store's.
        weight_version: Option<String>,
    }

    /// Reply to [`UpdateWeightsFromMooncakeReqInput`].
    UpdateWeightsFromMooncakeReqOutput {
        /// The weights were loaded.
        success: bool,
        /// Detail.
        message: String,
    }

    /// Rebalance experts now.
    RebalanceExpertsReqInput {}

    /// Reply to [`RebalanceExpertsReqInput`].
    RebalanceExpertsReqOutput {
        /// The rebalance started.
        success: bool,
        /// Detail.
        message: String,
    }

    /// Release device memory.
    ReleaseMemoryOccupationReqInput {
        /// `weights`, `kv_cache`; `None` is all.
        tags: Option<Vec<String>> = None,
    }

    /// Reply to [`ReleaseMemoryOccupationReqInput`].
    ReleaseMemoryOccupationReqOutput {
        /// The memory was released.
        success: bool = true,
        /// Detail.
        message: String = String::new(),
    }

    /// Take released device memory back.
    ResumeMemoryOccupationReqInput {
        /// `weights`, `kv_cache`; `None` is all that was released.
        tags: Option<Vec<String>> = None,
    }

    /// Reply to [`ResumeMemoryOccupationReqInput`].
    ResumeMemoryOccupationReqOutput {
        /// The memory was taken back.
        success: bool = true,
        /// Detail.
        message: String = String::new(),
    }

    /// Ask whether memory is released.
    IsSleepingReqInput {}

    /// Reply to [`IsSleepingReqInput`].
    IsSleepingReqOutput {
        /// It is.
        is_sleeping: bool,
    }

    /// Ask for the engine's internal state.
    GetInternalStateReq {}

    /// Reply to [`GetInternalStateReq`].
    GetInternalStateReqOutput {
        /// The state; real engines answer with an empty one.
        internal_state: Dict<Value, Value>,
    }

    /// Change arguments of the running engine.
    SetInternalStateReq {
        /// The arguments.
        server_args: Dict<Value, Value>,
    }

    /// Reply to [`SetInternalStateReq`].
    SetInternalStateReqOutput {
        /// Something changed.
        updated: bool,
        /// The arguments now.
        server_args: Dict<Value, Value>,
    }

    /// Start or stop the profiler.
    ProfileReq {
        /// [`PROFILE_START`] or [`PROFILE_STOP`].
        kind: i64,
        /// Where traces go.
        output_dir: Option<String> = None,
        /// The forward step to start at.
        start_step: Option<i64> = None,
        /// Steps to record.
        num_steps: Option<i64> = None,
        /// What to record: `CPU`, `GPU`, `MEM`.
        activities: Option<Vec<String>> = None,
        /// A trace each for prefill and decode.
        profile_by_stage: bool = false,
        /// Record Python stacks.
        with_stack: Option<bool> = None,
        /// Record the shapes of tensors.
        record_shapes: Option<bool> = None,
        /// Names the trace files.
        profile_id: Option<String> = None,
    }

    /// Reply to [`ProfileReq`].
    ProfileReqOutput {
        /// The profiler changed state.
        success: bool,
        /// Detail.
        message: String,
    }
}

/// Define an enum over tagged structs; a variant's tag is its struct's name.
macro_rules! tagged_enum {
    (
        $(#[$meta:meta])*
        pub enum $name:ident ($expected:literal) {
            $($variant:ident($ty:ident)),* $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq)]
        pub enum $name {
            $(#[doc = concat!("See [`", stringify!($ty), "`].")] $variant($ty)),*
        }

        impl $name {
            /// The variant's tag on the wire: the Python class's name.
            pub fn tag(&self) -> &'static str {
                match self {
                    $(Self::$variant(_) => stringify!($ty)),*
                }
            }

            /// Whether `tag` names a variant.
            pub fn knows(tag: &str) -> bool {
                matches!(tag, $(stringify!($ty))|*)
            }
        }

        impl Wire for $name {
            fn encode(&self, encoder: &mut Encoder) {
                match self {
                    $(Self::$variant(inner) => inner.encode(encoder)),*
                }
            }

            fn decode(decoder: &mut Decoder<'_>) -> Result<Self> {
                match decoder.peek_tag()? {
                    $(stringify!($ty) => <$ty>::decode(decoder).map(Self::$variant),)*
                    other => Err(wrong_tag($expected, other)),
                }
            }
        }
    };
}

tagged_enum! {
    /// A control operation, the payload of a CONTROL message.
    pub enum ControlRequest ("a control request") {
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

tagged_enum! {
    /// A control operation's reply.
    pub enum ControlOutput ("a control reply") {
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
            Self::FlushCache(_) => "FlushCacheReqOutput",
            Self::PauseScheduler(_) => "PauseSchedulerReqOutput",
            Self::ResumeScheduler(_) => "ResumeSchedulerReqOutput",
            Self::IsSchedulerPaused(_) => "IsSchedulerPausedReqOutput",
            Self::UpdateWeightFromDisk(_) => "UpdateWeightFromDiskReqOutput",
            Self::UpdateWeightsFromDistributed(_) => "UpdateWeightsFromDistributedReqOutput",
            Self::UpdateWeightsFromTensor(_) => "UpdateWeightsFromTensorReqOutput",
            Self::InitWeightsUpdateGroup(_) => "InitWeightsUpdateGroupReqOutput",
            Self::DestroyWeightsUpdateGroup(_) => "DestroyWeightsUpdateGroupReqOutput",
            Self::UpdateWeightsFromMooncake(_) => "UpdateWeightsFromMooncakeReqOutput",
            Self::RebalanceExperts(_) => "RebalanceExpertsReqOutput",
            Self::ReleaseMemoryOccupation(_) => "ReleaseMemoryOccupationReqOutput",
            Self::ResumeMemoryOccupation(_) => "ResumeMemoryOccupationReqOutput",
            Self::IsSleeping(_) => "IsSleepingReqOutput",
            Self::GetInternalState(_) => "GetInternalStateReqOutput",
            Self::SetInternalState(_) => "SetInternalStateReqOutput",
            Self::Profile(_) => "ProfileReqOutput",
        }
    }
}
