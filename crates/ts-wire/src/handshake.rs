//! The startup handshake (`engine/zmq_wire.py`; wire contract, section 2). Map structs: fields go by name.

use crate::codec::{Dict, wire_struct};
use crate::value::Value;

/// HELLO status.
pub const STATUS_HELLO: &str = "HELLO";
/// READY status.
pub const STATUS_READY: &str = "READY";

wire_struct! {
    /// Engine to frontend handshake status (HELLO or READY).
    #[derive(Eq, Default)]
    pub struct ReadyMessage: map {
        /// [`STATUS_HELLO`] or [`STATUS_READY`].
        pub status: Option<String> = None,
        /// The engine runs on the frontend's host.
        pub local: Option<bool> = None,
        /// The engine runs without an in-process frontend.
        pub headless: Option<bool> = None,
        /// Hash of the engine's parallel configuration.
        pub parallel_config_hash: Option<String> = None,
    }
}

wire_struct! {
    /// Frontend-owned socket addresses sent in INIT.
    #[derive(Eq, Default)]
    pub struct HandshakeAddresses: map {
        /// Input ROUTER addresses; engines use the first.
        pub inputs: Vec<String> = Vec::new(),
        /// Output PULL addresses; engines use the first.
        pub outputs: Vec<String> = Vec::new(),
        /// DP coordinator input, unused by TokenSpeed.
        pub coordinator_input: Option<String> = None,
        /// DP coordinator output, unused by TokenSpeed.
        pub coordinator_output: Option<String> = None,
        /// Frontend stats publisher, unused by TokenSpeed.
        pub frontend_stats_publish_address: Option<String> = None,
    }
}

wire_struct! {
    /// Frontend to engine INIT, the reply to HELLO.
    pub struct HandshakeInitMessage: map {
        /// Where to connect.
        pub addresses: HandshakeAddresses,
        /// Opaque to the engine.
        pub parallel_config: Dict<Value, Value> = Dict::default(),
    }
}

wire_struct! {
    /// The engine's configuration, sent when it registers on the input socket.
    ///
    /// No EOS ids, vocabulary size, tokenizer or chat template cross the wire.
    pub struct EngineCoreReadyResponse: map {
        /// Longest supported sequence in tokens.
        pub max_model_len: i64 = 0,
        /// KV pages on the device.
        pub num_gpu_blocks: i64 = 0,
        /// Prefix-cache matching granularity in tokens.
        pub prefix_granularity: i64 = 0,
        /// DP stats address, unused by TokenSpeed.
        pub dp_stats_address: Option<String> = None,
        /// Model dtype: `bfloat16`, `float16` or `float32`.
        pub dtype: String = "bfloat16".to_owned(),
        /// Multimodal encoder dtype, if any.
        pub multimodal_encoder_dtype: Option<String> = None,
        /// `tokenspeed-<version>`; the frontend's field name.
        pub vllm_version: String = String::new(),
        /// Ranks in the engine.
        pub world_size: i64 = 1,
        /// Attention-DP ranks.
        pub data_parallel_size: i64 = 1,
        /// Attention-TP ranks.
        pub tensor_parallel_size: i64 = 1,
        /// Pipeline stages.
        pub pipeline_parallel_size: i64 = 1,
        /// KV parallelism (`--kv-parallel-size`); the frontend's field name.
        pub decode_context_parallel_size: i64 = 1,
        /// This engine's attention-DP rank.
        pub data_parallel_rank: i64 = 0,
        /// Most running requests.
        pub max_num_seqs: i64 = 0,
        /// Most tokens per step; `0` is no cap.
        pub max_num_batched_tokens: i64 = 0,
        /// Served model name.
        pub instance_id: String = String::new(),
        /// KV cache capacity in tokens.
        pub kv_cache_size_tokens: Option<i64> = None,
        /// KV cache capacity in maximum-length requests.
        pub kv_cache_max_concurrency: Option<f64> = None,
        /// KV event publisher configuration.
        pub kv_events_config: Option<Dict<Value, Value>> = None,
    }
}

impl Default for EngineCoreReadyResponse {
    fn default() -> Self {
        Self {
            max_model_len: 0,
            num_gpu_blocks: 0,
            prefix_granularity: 0,
            dp_stats_address: None,
            dtype: "bfloat16".to_owned(),
            multimodal_encoder_dtype: None,
            vllm_version: String::new(),
            world_size: 1,
            data_parallel_size: 1,
            tensor_parallel_size: 1,
            pipeline_parallel_size: 1,
            decode_context_parallel_size: 1,
            data_parallel_rank: 0,
            max_num_seqs: 0,
            max_num_batched_tokens: 0,
            instance_id: String::new(),
            kv_cache_size_tokens: None,
            kv_cache_max_concurrency: None,
            kv_events_config: None,
        }
    }
}
