//! Sampling parameters, nested in a request.

use crate::codec::{Dict, StrOrList};
use crate::layout::array_struct;
use crate::value::Value;

array_struct! {
    defaulted
    /// How the engine samples and when it stops. An untagged array of 29.
    ///
    /// The engine normalises what it receives unless
    /// [`is_normalized`](Self::is_normalized) is set, so a frontend sends the
    /// API's values as they are.
    #[derive(Debug, Clone, PartialEq)]
    pub struct SamplingParams {
        /// Most tokens to generate; `None` is as many as the context holds.
        pub max_new_tokens: Option<i64> = None,
        /// Stop strings. Current engines refuse them: the frontend cuts.
        pub stop: Option<StrOrList> = None,
        /// Tokens that end the generation (a Python `set`).
        pub stop_token_ids: Option<Vec<i64>> = None,
        /// Temperature; below 1e-6 is greedy.
        pub temperature: f64 = 1.0,
        /// Nucleus mass, in (0, 1].
        pub top_p: f64 = 1.0,
        /// Most likely tokens to choose from, below 128; `-1` is all.
        pub top_k: i64 = -1,
        /// Least probability relative to the most likely token's.
        pub min_p: f64 = 0.0,
        /// Frequency penalty, in [-2, 2].
        pub frequency_penalty: f64 = 0.0,
        /// Presence penalty, in [-2, 2].
        pub presence_penalty: f64 = 0.0,
        /// Repetition penalty, in [0, 2].
        pub repetition_penalty: f64 = 1.0,
        /// Tokens to generate before a stop condition counts.
        pub min_new_tokens: i64 = 0,
        /// JSON schema the output follows; at most one of this, `regex`, `ebnf`.
        pub json_schema: Option<String> = None,
        /// Regular expression the output follows.
        pub regex: Option<String> = None,
        /// EBNF grammar the output follows.
        pub ebnf: Option<String> = None,
        /// Structural tag constraint.
        pub structural_tag: Option<String> = None,
        /// Go on after an end-of-sequence token.
        pub ignore_eos: bool = false,
        /// For the detokenizer: leave special tokens out of the text.
        pub skip_special_tokens: bool = true,
        /// For the detokenizer: spaces between special tokens.
        pub spaces_between_special_tokens: bool = true,
        /// Leave the matched stop string in the text.
        pub no_stop_trim: bool = false,
        /// Most tokens of reasoning.
        pub thinking_budget: Option<i64> = None,
        /// Parameters of a custom logit processor.
        pub custom_params: Option<Dict<String, Value>> = None,
        /// Tokens per output row; `None` is a row every step.
        pub stream_interval: Option<i64> = None,
        /// Offsets to logits, keyed by the token id in decimal.
        pub logit_bias: Option<Dict<String, f64>> = None,
        /// Seed; `None` lets the engine derive one from the request id.
        pub seed: Option<i64> = None,
        /// `None` or `0`; logprobs are asked for by the request's
        /// `return_logprob`.
        pub logprobs: Option<i64> = None,
        /// Choices; engines take `1` only.
        pub n: i64 = 1,
        /// Stop strings after normalisation.
        pub stop_strs: Option<StrOrList> = None,
        /// Longest stop string in characters, after normalisation.
        pub stop_str_max_len: i64 = 0,
        /// The sender has normalised already.
        pub is_normalized: bool = false,
    }
}
