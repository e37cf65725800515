//! Sampling parameters (`sampling/sampling_params.py`; wire contract, section 4.2).

use crate::codec::{Dict, StrOrList, wire_struct};
use crate::value::Value;

wire_struct! {
    /// An untagged array struct nested in a request.
    ///
    /// A frontend may send raw API values with `is_normalized` false; the engine normalises them.
    pub struct SamplingParams: array {
        /// Generation length limit; `None` leaves it to the engine.
        pub max_new_tokens: Option<i64> = None,
        /// Stop strings as the API has them; normalisation copies them to `stop_strs`. Never send any: engines refuse them or fail.
        pub stop: Option<StrOrList> = None,
        /// Token ids that end the generation (a Python `set`).
        pub stop_token_ids: Option<Vec<i64>> = None,
        /// Sampling temperature.
        pub temperature: f64 = 1.0,
        /// Nucleus sampling mass.
        pub top_p: f64 = 1.0,
        /// Top-k cutoff; `-1` disables it before normalisation, `1 << 30` after.
        pub top_k: i64 = -1,
        /// Least probability, relative to the most likely token.
        pub min_p: f64 = 0.0,
        /// Frequency penalty.
        pub frequency_penalty: f64 = 0.0,
        /// Presence penalty.
        pub presence_penalty: f64 = 0.0,
        /// Repetition penalty.
        pub repetition_penalty: f64 = 1.0,
        /// Tokens generated before stop conditions apply.
        pub min_new_tokens: i64 = 0,
        /// JSON schema constraint.
        pub json_schema: Option<String> = None,
        /// Regex constraint.
        pub regex: Option<String> = None,
        /// EBNF grammar constraint.
        pub ebnf: Option<String> = None,
        /// Structural tag constraint.
        pub structural_tag: Option<String> = None,
        /// Keep generating past end-of-sequence tokens.
        pub ignore_eos: bool = false,
        /// Detokenization option, carried for the frontend.
        pub skip_special_tokens: bool = true,
        /// Detokenization option, carried for the frontend.
        pub spaces_between_special_tokens: bool = true,
        /// Keep the matched stop string in the output.
        pub no_stop_trim: bool = false,
        /// Reasoning-token budget.
        pub thinking_budget: Option<i64> = None,
        /// Free-form parameters for custom logit processors.
        pub custom_params: Option<Dict<String, Value>> = None,
        /// Tokens between two outputs of a streaming request.
        pub stream_interval: Option<i64> = None,
        /// Per-token logit offsets, keyed by the token id in decimal.
        pub logit_bias: Option<Dict<String, f64>> = None,
        /// Sampling seed.
        pub seed: Option<i64> = None,
        /// `None`: off, `0`: the sampled token; not read on this wire, see `return_logprob`.
        pub logprobs: Option<i64> = None,
        /// OpenAI `n`; the engine accepts only `1`.
        pub n: i64 = 1,
        /// Stop strings after normalisation.
        pub stop_strs: Option<StrOrList> = None,
        /// Longest stop string in characters, set by normalisation.
        pub stop_str_max_len: i64 = 0,
        /// Whether normalisation already ran on the sender.
        pub is_normalized: bool = false,
    }
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            max_new_tokens: None,
            stop: None,
            stop_token_ids: None,
            temperature: 1.0,
            top_p: 1.0,
            top_k: -1,
            min_p: 0.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            repetition_penalty: 1.0,
            min_new_tokens: 0,
            json_schema: None,
            regex: None,
            ebnf: None,
            structural_tag: None,
            ignore_eos: false,
            skip_special_tokens: true,
            spaces_between_special_tokens: true,
            no_stop_trim: false,
            thinking_budget: None,
            custom_params: None,
            stream_interval: None,
            logit_bias: None,
            seed: None,
            logprobs: None,
            n: 1,
            stop_strs: None,
            stop_str_max_len: 0,
            is_normalized: false,
        }
    }
}
