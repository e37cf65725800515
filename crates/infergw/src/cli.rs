//! The command line: flags over environment over file over defaults.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::config::load::{DEFAULT_FILE, LoadError, load};
use crate::config::{ApiKey, Config, EngineGroup, LogFormat, ReasoningParser, ToolParser, Upstream, duration, size};
use crate::reload::Source;

/// The front door of self-hosted LLM inference.
///
/// Clients of the OpenAI API talk to it; it talks to engines, over HTTP or over TokenSpeed's own wire. Identical streams
/// share one generation.
#[derive(Debug, Parser)]
#[command(name = "infergw", version, after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// What to do; without it, serve.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// The flags of `serve`.
    #[command(flatten)]
    pub serve: ServeFlags,
}

const EXAMPLES: &str = "Examples:
  infergw                                         serve the demo model on 127.0.0.1:8080
  infergw serve --upstream http://127.0.0.1:8000  in front of vLLM, SGLang, llama.cpp, ...
  infergw serve --engines tcp://127.0.0.1:30500 --model m --tokenizer /models/m
                                                  wait for a TokenSpeed engine that dials this address
  infergw check                                   print the effective configuration

Every flag has a key in infergw.toml (see infergw.example.toml) and a variable INFERGW_<FLAG>.";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve clients (the default).
    #[command(after_help = EXAMPLES)]
    Serve(Box<ServeFlags>),
    /// Check the configuration and print the effective one; exit status 0 if it is good, 2 if not.
    Check(Box<ServeFlags>),
    /// Run one rank of the reference engine as a process of its own.
    #[cfg(feature = "demo")]
    Engine(crate::engine_command::EngineArgs),
}

/// The flags of `serve` and `check`.
#[derive(Debug, Clone, Default, Args)]
pub struct ServeFlags {
    /// The configuration file [default: ./infergw.toml if there is one]
    #[arg(long, value_name = "FILE", env = "INFERGW_CONFIG")]
    pub config: Option<PathBuf>,
    /// The address that clients connect to [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR", env = "INFERGW_LISTEN")]
    pub listen: Option<SocketAddr>,
    /// An OpenAI-compatible HTTP backend, such as http://127.0.0.1:8000; may be repeated
    #[arg(long, value_name = "URL", env = "INFERGW_UPSTREAM", value_delimiter = ',')]
    pub upstream: Vec<String>,
    /// Bind this handshake address for a TokenSpeed engine group, such as tcp://127.0.0.1:30500
    #[arg(long, value_name = "ADDR", env = "INFERGW_ENGINES", requires = "tokenizer")]
    pub engines: Option<String>,
    /// Data-parallel ranks in that group [default: 1]
    #[arg(long, value_name = "N", env = "INFERGW_RANKS")]
    pub ranks: Option<u16>,
    /// The model's name for clients
    #[arg(long, value_name = "NAME", env = "INFERGW_MODEL")]
    pub model: Option<String>,
    /// The group's model directory (tokenizer.json, tokenizer_config.json, ...) or .gguf file
    #[arg(long, value_name = "PATH", env = "INFERGW_TOKENIZER")]
    pub tokenizer: Option<PathBuf>,
    /// How the group's model writes tool calls, such as hermes [default: auto, by its chat template]
    #[arg(long, value_name = "NAME", value_parser = named::<ToolParser>, env = "INFERGW_TOOL_PARSER", requires = "engines")]
    pub tool_parser: Option<ToolParser>,
    /// How the group's model writes reasoning, such as deepseek_r1 [default: auto, by its chat template]
    #[arg(long, value_name = "NAME", value_parser = named::<ReasoningParser>, env = "INFERGW_REASONING_PARSER", requires = "engines")]
    pub reasoning_parser: Option<ReasoningParser>,
    /// Serve the reference engine in this process [default file: .demo/smollm2-135m.gguf]
    #[arg(long, value_name = "FILE.gguf", num_args = 0..=1)]
    pub demo: Option<Option<PathBuf>>,
    /// Clients must present one of these keys; may be repeated
    #[arg(long, value_name = "KEY", env = "INFERGW_API_KEY", hide_env_values = true, value_delimiter = ',')]
    pub api_key: Vec<String>,
    /// The address of the admin listener: metrics and control [default: off, metrics are on the main one]
    #[arg(long, value_name = "ADDR", env = "INFERGW_ADMIN")]
    pub admin: Option<SocketAddr>,
    /// For an upstream's response head of a streaming request [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = duration::parse, env = "INFERGW_HEAD_TIMEOUT")]
    pub head_timeout: Option<Duration>,
    /// For the first event of a stream, or the first token of an engine [default: 120s]
    #[arg(long, value_name = "TIME", value_parser = duration::parse, env = "INFERGW_FIRST_EVENT_TIMEOUT")]
    pub first_event_timeout: Option<Duration>,
    /// Between two events of a stream [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = duration::parse, env = "INFERGW_IDLE_TIMEOUT")]
    pub idle_timeout: Option<Duration>,
    /// For the whole answer [default: 30m]
    #[arg(long, value_name = "TIME", value_parser = duration::parse, env = "INFERGW_TOTAL_TIMEOUT")]
    pub total_timeout: Option<Duration>,
    /// After SIGTERM: how long new requests are still taken while /readyz says 503 [default: 3s]
    #[arg(long, value_name = "TIME", value_parser = duration::parse, env = "INFERGW_DRAIN_PAUSE")]
    pub drain_pause: Option<Duration>,
    /// After the pause: how long running streams may take [default: 180s]
    #[arg(long, value_name = "TIME", value_parser = duration::parse, env = "INFERGW_DRAIN_LIMIT")]
    pub drain_limit: Option<Duration>,
    /// Largest request body [default: 32MiB]
    #[arg(long, value_name = "SIZE", value_parser = size::parse, env = "INFERGW_MAX_BODY")]
    pub max_body: Option<usize>,
    /// What is logged, such as info or infergw=debug [default: info]
    #[arg(long, value_name = "FILTER", env = "INFERGW_LOG")]
    pub log: Option<String>,
    /// One JSON object a line instead of text
    #[arg(long)]
    pub log_json: bool,
}

impl ServeFlags {
    /// The effective configuration: the file's, with what the flags and the environment say instead.
    ///
    /// # Errors
    /// A file that cannot be read or is no configuration.
    pub fn effective(self) -> Result<Config, LoadError> {
        let mut config = load(self.config.as_deref())?;
        set(&mut config.server.listen, self.listen);
        config.server.admin = self.admin.or(config.server.admin);
        set(&mut config.server.drain_pause, self.drain_pause);
        set(&mut config.server.drain_limit, self.drain_limit);
        set(&mut config.limits.max_body, self.max_body);
        set(&mut config.timeouts.head, self.head_timeout);
        set(&mut config.timeouts.first_event, self.first_event_timeout);
        set(&mut config.timeouts.idle, self.idle_timeout);
        set(&mut config.timeouts.total, self.total_timeout);
        set(&mut config.log.filter, self.log);
        if self.log_json {
            config.log.format = LogFormat::Json;
        }
        // A list on the command line replaces the file's.
        if !self.upstream.is_empty() {
            let upstream = |url| Upstream { url, ..Upstream::default() };
            config.backends = self.upstream.into_iter().map(upstream).collect();
        }
        if !self.api_key.is_empty() {
            let key = |key| ApiKey { key, tenant: "default".into() };
            config.keys = self.api_key.into_iter().map(key).collect();
        }
        if let (Some(handshake), Some(tokenizer)) = (self.engines, self.tokenizer) {
            let ranks = self.ranks.unwrap_or(1);
            let tool_parser = self.tool_parser.unwrap_or_default();
            let reasoning_parser = self.reasoning_parser.unwrap_or_default();
            let model = self.model;
            config.engines = vec![EngineGroup {
                handshake,
                ranks,
                model,
                tokenizer,
                tool_parser,
                reasoning_parser,
                ..EngineGroup::default()
            }];
        }
        if let Some(file) = self.demo {
            config.demo.enabled = true;
            config.demo.model = file.or(config.demo.model);
        }
        Ok(config)
    }

    /// Where the effective configuration comes from, to read it again later.
    pub fn source(self) -> Source {
        let file = self.config.clone().unwrap_or_else(|| DEFAULT_FILE.into());
        Source::new(file, move || self.clone().effective())
    }
}

/// A name as the configuration file has it.
fn named<T: serde::de::DeserializeOwned>(name: &str) -> Result<T, String> {
    serde_json::from_value(name.into()).map_err(|e| e.to_string())
}

fn set<T>(target: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *target = value;
    }
}
