//! The settings of backends: HTTP servers, how they are discovered, and engine groups.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// An OpenAI-compatible HTTP backend.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Upstream {
    /// Its name in metrics, logs and the header `x-infergw-backend`. Default: `http-1` and so on, in their order.
    #[serde(default)]
    pub name: Option<String>,
    /// Its address, such as `http://127.0.0.1:8000`.
    pub url: String,
    /// The models it serves. Empty: learned from its `/v1/models`; until that is known it takes any model.
    #[serde(default)]
    pub models: Vec<String>,
    /// How much it can take beside the others. Default 1: twice the load for a weight of 2. Round robin gives each its turn all the
    /// same.
    #[serde(default)]
    pub weight: Option<f64>,
    /// Its own key, sent instead of the client's (X2). Never shown.
    #[serde(default, skip_serializing)]
    pub key: Option<String>,
}

impl std::fmt::Debug for Upstream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upstream")
            .field("name", &self.name)
            .field("url", &self.url)
            .field("models", &self.models)
            .finish_non_exhaustive()
    }
}

/// HTTP backends that are named outside this file and come and go while the gateway runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Discovery {
    /// A file with more `[[backends]]`: TOML, or JSON where its name ends in .json. It is read again when it has changed.
    pub file: Option<PathBuf>,
    /// DNS names each of whose addresses is a backend: { host = "vllm.default.svc", port = 8000, name = "vllm" }.
    /// They are named after `name`, with a number; `models`, `weight` and `key` can stand there as in `[[backends]]`.
    /// Addresses of the first family are taken that has any, IPv4 before IPv6.
    pub dns: Vec<DnsName>,
    /// How often DNS is asked.
    #[serde(with = "crate::config::duration")]
    pub interval: Duration,
}

impl Default for Discovery {
    fn default() -> Self {
        Self { file: None, dns: Vec::new(), interval: Duration::from_secs(10) }
    }
}

/// A DNS name each of whose addresses is a backend.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DnsName {
    /// The name that is looked up.
    pub host: String,
    /// Where the backends listen.
    pub port: u16,
    /// What the backends are named after, with a number.
    pub name: String,
    /// See [`Upstream::models`].
    #[serde(default)]
    pub models: Vec<String>,
    /// See [`Upstream::weight`].
    #[serde(default)]
    pub weight: Option<f64>,
    /// See [`Upstream::key`].
    #[serde(default, skip_serializing)]
    pub key: Option<String>,
}

impl std::fmt::Debug for DnsName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DnsName").field("host", &self.host).field("port", &self.port).finish_non_exhaustive()
    }
}

/// A TokenSpeed engine group: its ranks connect to `handshake`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineGroup {
    /// Its name in metrics, logs and the header `x-infergw-backend`. Default: `engine-1` and so on, in their order.
    #[serde(default)]
    pub name: Option<String>,
    /// The address that the engines dial, such as `tcp://127.0.0.1:30500` or `ipc:///run/infergw/group`. The gateway binds
    /// it, and two sockets more beside it: on free ports of the same host, or `-input` and `-output` at the same path.
    pub handshake: String,
    /// How much it can take beside other backends of its model. Default 1.
    #[serde(default)]
    pub weight: Option<f64>,
    /// Data-parallel ranks in the group.
    #[serde(default = "one")]
    pub ranks: u16,
    /// The model's name for clients. Default: what the engine reports, else the tokenizer's folder or file name.
    #[serde(default)]
    pub model: Option<String>,
    /// A model directory (tokenizer.json, tokenizer_config.json, ...) or a .gguf file.
    pub tokenizer: PathBuf,
    /// How the model writes tool calls: `auto` (by its chat template), `none`, `hermes`, `qwen3_coder`, `llama3_json`,
    /// `mistral`, `deepseek_v3`, `deepseek_v31`, `kimi_k2` or `harmony`.
    #[serde(default)]
    pub tool_parser: ToolParser,
    /// How the model writes reasoning: `auto` (by its chat template), `none`, `qwen3`, `deepseek_r1`, `kimi`, `kimi_k2`,
    /// `mistral` or `harmony`.
    #[serde(default)]
    pub reasoning_parser: ReasoningParser,
    /// The host that engines are told to dial, in place of the one of `handshake`: needed where that is a wildcard
    /// (`tcp://0.0.0.0:30500`), or where engines reach this host under another address.
    #[serde(default)]
    pub advertise: Option<String>,
    /// What the loss of one rank means: `group`, attention-DP ranks work in lockstep and none serves without the others, or
    /// `rank`, they are independent replicas and the others go on.
    #[serde(default)]
    pub rank_loss: RankLoss,
}

impl Default for EngineGroup {
    fn default() -> Self {
        Self {
            name: None,
            handshake: String::new(),
            weight: None,
            ranks: one(),
            model: None,
            tokenizer: PathBuf::new(),
            tool_parser: ToolParser::default(),
            reasoning_parser: ReasoningParser::default(),
            advertise: None,
            rank_loss: RankLoss::default(),
        }
    }
}

/// What the loss of one rank means for the others of its group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RankLoss {
    /// The group cannot serve without it: every stream ends.
    #[default]
    Group,
    /// Only its own streams end.
    Rank,
}

/// How a model writes tool calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolParser {
    /// As its chat template gives away.
    #[default]
    Auto,
    /// Calls stay content.
    None,
    /// `<tool_call>` and a JSON object.
    #[serde(alias = "qwen")]
    Hermes,
    /// `<tool_call>`, `<function=` and `<parameter=`.
    Qwen3Coder,
    /// A JSON object, after `<|python_tag|>` or by itself.
    Llama3Json,
    /// `[TOOL_CALLS]`.
    Mistral,
    /// Marks, and a fenced block of JSON.
    DeepseekV3,
    /// Marks and JSON.
    DeepseekV31,
    /// Marks and JSON, with ids.
    KimiK2,
    /// The channels of gpt-oss.
    #[serde(alias = "gpt_oss", alias = "openai")]
    Harmony,
}

/// How a model writes reasoning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReasoningParser {
    /// As its chat template gives away.
    #[default]
    Auto,
    /// Reasoning stays content.
    None,
    /// `<think>` at the start, or at the prompt's end.
    Qwen3,
    /// The same; an answer begins inside it even if the prompt does not say so.
    DeepseekR1,
    /// `◁think▷`.
    Kimi,
    /// `<think>`, ended by calls too.
    KimiK2,
    /// `[THINK]`.
    Mistral,
    /// The channels of gpt-oss.
    #[serde(alias = "gpt_oss", alias = "openai_gptoss")]
    Harmony,
}

fn one() -> u16 {
    1
}
