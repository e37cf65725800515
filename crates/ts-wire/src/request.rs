//! The ADD payload: a generate request.

use crate::codec::{Dict, StrOrList};
use crate::layout::array_struct;
use crate::multimodal::MultimodalInputs;
use crate::sampling::SamplingParams;
use crate::value::Value;

array_struct! {
    defaulted
    /// The session a request continues. An untagged array of 4.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct SessionParams {
        /// The session.
        pub id: Option<String> = None,
        /// The request in the session to continue from.
        pub rid: Option<String> = None,
        /// The token to continue from.
        pub offset: Option<i64> = None,
        /// Replace the continued request instead of branching off.
        pub replace: Option<bool> = None,
    }
}

array_struct! {
    /// A generate request with a tokenized prompt: a tagged array of 25.
    ///
    /// Only `sampling_params` and what comes before it must be on the wire.
    #[derive(Debug, Clone, PartialEq)]
    pub struct TokenizedGenerateReqInput tagged "TokenizedGenerateReqInput" {
        /// The request's id. Engines take exactly one string, and a frontend
        /// must never use one twice.
        pub rid: Option<StrOrList> = None,
        /// Unused across processes.
        pub http_worker_ipc: Option<String> = None,
        /// The prompt's text; engines do without.
        pub input_text: Option<String> = None,
        /// The prompt's token ids.
        pub input_ids: Option<Vec<i32>> = None,
        /// How to sample.
        pub sampling_params: SamplingParams,
        /// Return the sampled tokens' logprobs.
        pub return_logprob: bool = false,
        /// First prompt position to return logprobs for; `-1` is the last.
        pub logprob_start_len: i64 = -1,
        /// Alternatives per position, 0 to 20.
        pub top_logprobs_num: i64 = 0,
        /// Token ids to score at each position.
        pub token_ids_logprob: Option<Vec<i32>> = None,
        /// Send a row per step; without it rows come at token 1, every 50th and
        /// the last.
        pub stream: bool = false,
        /// Prompt embeddings (nested lists of floats).
        pub input_embeds: Option<Vec<Value>> = None,
        /// The session to continue.
        pub session_params: Option<SessionParams> = None,
        /// A serialized logit processor.
        pub custom_logit_processor: Option<String> = None,
        /// Return hidden states.
        pub return_hidden_states: bool = false,
        /// When the frontend took the request, in Unix seconds.
        pub created_time: f64 = 0.0,
        /// Disaggregation: host of the prefill bootstrap server.
        pub bootstrap_host: Option<String> = None,
        /// Disaggregation: its port.
        pub bootstrap_port: Option<i64> = None,
        /// Disaggregation: the transfer room, a random number; it selects the
        /// rank.
        pub bootstrap_room: Option<u64> = None,
        /// More streams of token ids, for models with several.
        pub input_multi_ids: Option<Vec<Vec<i32>>> = None,
        /// Inputs only the model knows.
        pub input_extra_infos: Option<Vec<Dict<Value, Value>>> = None,
        /// The prompt's ids before multimodal placeholders were substituted.
        pub input_ids_unpadded: Option<Vec<i32>> = None,
        /// Images, video, audio.
        pub multimodal_inputs: Option<MultimodalInputs> = None,
        /// Set by a transport that checked the request: the engine ends it with
        /// an abort that carries this text.
        pub validation_error: Option<String> = None,
        /// The attention data-parallel rank to run on; read by the frontend.
        pub data_parallel_rank: Option<i64> = None,
    }
}

impl TokenizedGenerateReqInput {
    /// A request with every other field at the schema's default: no prompt,
    /// not streamed.
    pub fn new(rid: impl Into<String>, sampling_params: SamplingParams) -> Self {
        Self {
            rid: Some(StrOrList::One(rid.into())),
            http_worker_ipc: None,
            input_text: None,
            input_ids: None,
            sampling_params,
            return_logprob: false,
            logprob_start_len: -1,
            top_logprobs_num: 0,
            token_ids_logprob: None,
            stream: false,
            input_embeds: None,
            session_params: None,
            custom_logit_processor: None,
            return_hidden_states: false,
            created_time: 0.0,
            bootstrap_host: None,
            bootstrap_port: None,
            bootstrap_room: None,
            input_multi_ids: None,
            input_extra_infos: None,
            input_ids_unpadded: None,
            multimodal_inputs: None,
            validation_error: None,
            data_parallel_rank: None,
        }
    }
}
