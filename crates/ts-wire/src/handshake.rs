//! The startup handshake: HELLO, INIT, READY and the registration. All of them
//! are maps keyed by field name.

use crate::codec::Dict;
use crate::layout::map_struct;
use crate::value::Value;

/// [`ReadyMessage::status`] of the engine's first message.
pub const STATUS_HELLO: &str = "HELLO";
/// [`ReadyMessage::status`] of the engine's answer to INIT.
pub const STATUS_READY: &str = "READY";

map_struct! {
    defaulted
    /// Engine to frontend, on the handshake socket: HELLO or READY.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ReadyMessage {
        /// [`STATUS_HELLO`] or [`STATUS_READY`].
        pub status: Option<String> = None,
        /// The engine runs on the frontend's host.
        pub local: Option<bool> = None,
        /// The engine runs without a frontend in its process.
        pub headless: Option<bool> = None,
        /// Hash of the engine's parallel configuration.
        pub parallel_config_hash: Option<String> = None,
    }
}

map_struct! {
    defaulted
    /// The addresses the frontend has bound, as INIT tells them.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct HandshakeAddresses {
        /// Input (ROUTER) addresses; the engine connects to the first.
        pub inputs: Vec<String> = Vec::new(),
        /// Output (PULL) addresses; the engine connects to the first.
        pub outputs: Vec<String> = Vec::new(),
        /// Input of a data-parallel coordinator; TokenSpeed has none.
        pub coordinator_input: Option<String> = None,
        /// Output of a data-parallel coordinator; TokenSpeed has none.
        pub coordinator_output: Option<String> = None,
        /// Where frontends publish statistics; TokenSpeed does not.
        pub frontend_stats_publish_address: Option<String> = None,
    }
}

map_struct! {
    /// Frontend to engine, the answer to HELLO.
    #[derive(Debug, Clone, PartialEq)]
    pub struct HandshakeInitMessage {
        /// Where the engine shall connect.
        pub addresses: HandshakeAddresses,
        /// Opaque to the engine.
        pub parallel_config: Dict<Value, Value> = Dict::default(),
    }
}

map_struct! {
    defaulted
    /// The engine's registration: its configuration, the first and only message
    /// it sends on the input socket.
    #[derive(Debug, Clone, PartialEq)]
    pub struct EngineCoreReadyResponse {
        /// Longest sequence the engine takes, prompt and output, in tokens.
        pub max_model_len: i64 = 0,
        /// KV pages on the device.
        pub num_gpu_blocks: i64 = 0,
        /// Granularity of prefix matching, in tokens.
        pub prefix_granularity: i64 = 0,
        /// Address of data-parallel statistics; TokenSpeed has none.
        pub dp_stats_address: Option<String> = None,
        /// Model dtype: `bfloat16`, `float16` or `float32`.
        pub dtype: String = "bfloat16".to_owned(),
        /// dtype of the multimodal encoder, where there is one.
        pub multimodal_encoder_dtype: Option<String> = None,
        /// `tokenspeed-<version>`.
        pub vllm_version: String = String::new(),
        /// Ranks in the engine.
        pub world_size: i64 = 1,
        /// Attention data-parallel ranks: the engines of the group.
        pub data_parallel_size: i64 = 1,
        /// Attention tensor-parallel ranks.
        pub tensor_parallel_size: i64 = 1,
        /// Pipeline stages.
        pub pipeline_parallel_size: i64 = 1,
        /// KV parallelism.
        pub decode_context_parallel_size: i64 = 1,
        /// This engine's attention data-parallel rank.
        pub data_parallel_rank: i64 = 0,
        /// Requests that run at once.
        pub max_num_seqs: i64 = 0,
        /// Tokens per step; `0` is no cap.
        pub max_num_batched_tokens: i64 = 0,
        /// The served model's name.
        pub instance_id: String = String::new(),
        /// Capacity of the KV cache in tokens.
        pub kv_cache_size_tokens: Option<i64> = None,
        /// Capacity of the KV cache in requests of full length.
        pub kv_cache_max_concurrency: Option<f64> = None,
        /// Configuration of the KV event publisher.
        pub kv_events_config: Option<Dict<Value, Value>> = None,
    }
}
