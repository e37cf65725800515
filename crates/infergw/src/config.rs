//! The definition of every setting. The doc comments are the manual: `infergw.example.toml` and `infergw check` print them.
//!
//! Every section denies unknown keys; [`crate::config::load`] turns that error into one that names the nearest known key.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

mod admission;
mod backends;
pub mod check;
pub mod coalesce;
pub mod duration;
pub mod load;
pub mod size;

pub use admission::{Admission, Tenant};
pub use backends::{Discovery, DnsName, EngineGroup, RankLoss, ReasoningParser, ToolParser, Upstream};
pub use coalesce::{Coalesce, Sharing};

/// The whole configuration.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where clients connect.
    pub server: Server,
    /// Limits on what a client may send.
    pub limits: Limits,
    /// How long each step of an answer may take.
    pub timeouts: Timeouts,
    /// Sharing of generations among identical requests.
    pub coalesce: Coalesce,
    /// Keys that clients must present. None: everybody is let in.
    pub keys: Vec<ApiKey>,
    /// How much may run at once, who waits, and who comes next. Off by default, see docs/admission.md.
    pub admission: Admission,
    /// What is special about a tenant. One without an entry has what `[admission]` says.
    pub tenants: Vec<Tenant>,
    /// OpenAI-compatible HTTP backends.
    pub backends: Vec<Upstream>,
    /// TokenSpeed engine groups.
    pub engines: Vec<EngineGroup>,
    /// What is special about a model. One without an entry is served as its backends list it.
    pub models: Vec<Model>,
    /// HTTP backends that are named outside this file and come and go while the gateway runs, see docs/changing-backends.md.
    pub discovery: Discovery,
    /// How a backend is chosen for a request.
    pub routing: Routing,
    /// Trying elsewhere what failed before anything went to the client (R4).
    pub retries: Retries,
    /// When a backend that fails gets no more requests, and how it comes back (R1).
    pub breaker: Breaker,
    /// The reference engine inside this process.
    pub demo: Demo,
    /// How text is made from and into tokens on engine backends.
    pub text: Text,
    /// Logging.
    pub log: Log,
}

/// Where clients connect.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Server {
    /// The address that clients connect to.
    pub listen: SocketAddr,
    /// The address of the admin listener (metrics, flights, engines, control). Off by default: metrics are then on `listen`.
    pub admin: Option<SocketAddr>,
    /// Threads that serve connections; 0 is one for each core.
    pub workers: usize,
    /// After SIGTERM: how long new requests are still taken while `/readyz` already says 503 (R7).
    #[serde(with = "crate::config::duration")]
    pub drain_pause: Duration,
    /// After the pause: how long running streams may take to finish (R7).
    #[serde(with = "crate::config::duration")]
    pub drain_limit: Duration,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            admin: None,
            workers: 0,
            drain_pause: Duration::from_secs(3),
            drain_limit: Duration::from_secs(180),
        }
    }
}

/// Limits on what a client may send.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Largest request body (X4). A number of bytes, or text such as "32MiB".
    #[serde(with = "crate::config::size")]
    pub max_body: usize,
    /// Deepest nesting of JSON in a request (X4).
    pub max_depth: usize,
    /// Largest SSE event of an upstream (S2).
    #[serde(with = "crate::config::size")]
    pub max_event: usize,
    /// Largest non-streaming answer of an upstream.
    #[serde(with = "crate::config::size")]
    pub max_answer: usize,
    /// Largest head (request line and headers) of a request.
    #[serde(with = "crate::config::size")]
    pub max_head: usize,
    /// Most connections at once; more wait in the kernel's queue.
    pub max_connections: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_body: 32 << 20,
            max_depth: 256,
            max_event: 8 << 20,
            max_answer: 64 << 20,
            max_head: 64 << 10,
            max_connections: 20_000,
        }
    }
}

/// How long each step may take. Zero is no limit, except for `request_head`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Timeouts {
    /// For a client to send its request's head (M4).
    #[serde(with = "crate::config::duration")]
    pub request_head: Duration,
    /// Between two pieces of a request's body.
    #[serde(with = "crate::config::duration")]
    pub request_body: Duration,
    /// For a client's connection without a request.
    #[serde(with = "crate::config::duration")]
    pub client_idle: Duration,
    /// For a client to read some of what it is sent; then its connection is closed (M1).
    #[serde(with = "crate::config::duration")]
    pub client_stall: Duration,
    /// To connect to an HTTP upstream.
    #[serde(with = "crate::config::duration")]
    pub connect: Duration,
    /// For an upstream's response head of a streaming request.
    #[serde(with = "crate::config::duration")]
    pub head: Duration,
    /// For the first event of a stream, or the first token of an engine (R8).
    #[serde(with = "crate::config::duration")]
    pub first_event: Duration,
    /// Between two events of a stream.
    #[serde(with = "crate::config::duration")]
    pub idle: Duration,
    /// For the whole answer.
    #[serde(with = "crate::config::duration")]
    pub total: Duration,
    /// A comment is sent each time a stream has been silent this long (S8). Off by default.
    #[serde(with = "crate::config::duration")]
    pub keep_alive: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            request_head: Duration::from_secs(10),
            request_body: Duration::from_secs(30),
            client_idle: Duration::from_secs(75),
            client_stall: Duration::from_secs(120),
            connect: Duration::from_secs(5),
            head: Duration::from_secs(30),
            first_event: Duration::from_secs(120),
            idle: Duration::from_secs(60),
            total: Duration::from_secs(30 * 60),
            keep_alive: Duration::ZERO,
        }
    }
}

/// A key that clients may present.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApiKey {
    /// The key itself. Never shown.
    #[serde(skip_serializing)]
    pub key: String,
    /// Whose it is: the name in metrics and logs.
    #[serde(default = "default_tenant")]
    pub tenant: String,
}

fn default_tenant() -> String {
    "default".into()
}

impl std::fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiKey").field("tenant", &self.tenant).finish_non_exhaustive()
    }
}

/// What is special about a model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// The model, as its backends name it.
    pub name: String,
    /// More names under which clients can ask for it. In a body that goes to an HTTP backend the model's own name stands instead.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// Models that answer instead, in this order, where no backend can serve this one, or all that can have failed before
    /// anything went to the client. The header `x-infergw-model-fallback` then names the one that did.
    #[serde(default)]
    pub fallbacks: Vec<String>,
    /// How one of its backends is chosen. Default: `routing.policy`.
    #[serde(default)]
    pub policy: Option<PolicyName>,
    /// Requests of it that run at once; more wait. Default: `admission.concurrency`.
    #[serde(default)]
    pub concurrency: Option<usize>,
    /// Most requests that wait for it. Default: `admission.queue`.
    #[serde(default)]
    pub queue: Option<usize>,
}

/// How one of several backends is chosen; docs/routing.md says when to use which.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyName {
    /// Each in turn.
    RoundRobin,
    /// The one with the fewest requests for its weight.
    LeastInFlight,
    /// The less loaded of two drawn at random.
    PowerOfTwo,
    /// Each in turn, by weight.
    Weighted,
    /// The same session on the same backend.
    Hash,
    /// Where the longest beginning of the prompt has been before.
    PrefixAffinity,
}

/// How a backend is chosen for a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Routing {
    /// For models that name no policy of their own: "round_robin", "least_in_flight", "power_of_two", "weighted", "hash" or
    /// "prefix_affinity". docs/routing.md says when to use which.
    pub policy: PolicyName,
    /// "hash" and "prefix_affinity": no backend gets more than this many times its fair part of the requests in flight.
    pub load_bound: f64,
    /// "hash": the headers that name a session, the first that is there counts.
    pub session_headers: Vec<String>,
    /// "hash": the body's fields that name a session where no header does.
    pub session_fields: Vec<String>,
    /// "prefix_affinity": memory, for each policy in use, for the beginnings of prompts.
    #[serde(with = "crate::config::size")]
    pub prefix_memory: usize,
}

impl Default for Routing {
    fn default() -> Self {
        Self {
            policy: PolicyName::PowerOfTwo,
            load_bound: 1.25,
            session_headers: vec!["x-session-id".into()],
            session_fields: vec!["prompt_cache_key".into(), "session_id".into(), "user".into()],
            prefix_memory: 16 << 20,
        }
    }
}

/// Trying elsewhere what failed before anything went to the client (R4).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Retries {
    /// Most retries of one request, each on another backend.
    pub most: usize,
    /// Retries of all requests together, as a part of the traffic of the last ten seconds; 0.2 is one for five requests.
    pub share: f64,
    /// Retries that there may be in a second however little the traffic is.
    pub floor: u32,
    /// The most that is waited before the first retry, unless no connection was made; twice as much before each later one.
    #[serde(with = "crate::config::duration")]
    pub pause: Duration,
}

impl Default for Retries {
    fn default() -> Self {
        Self { most: 3, share: 0.2, floor: 10, pause: Duration::from_millis(25) }
    }
}

/// When a backend that fails gets no more requests, and how it comes back (R1). 4xx, 429 and 503 are no failures here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Breaker {
    /// Failures in a row (5xx, resets, time-outs) after which it gets none, at most 32; 0 switches the breaker off. Half of the
    /// last 20 to 32 are too many too.
    pub failures: u32,
    /// For how long, the first time, give or take a quarter; then one request is let through on trial.
    #[serde(with = "crate::config::duration")]
    pub pause: Duration,
    /// The longest: a trial that fails doubles the pause up to this.
    #[serde(with = "crate::config::duration")]
    pub longest: Duration,
    /// A backend that has come back gets a tenth of its part at first, and the whole after this time.
    #[serde(with = "crate::config::duration")]
    pub slow_start: Duration,
}

impl Default for Breaker {
    fn default() -> Self {
        Self {
            failures: 5,
            pause: Duration::from_secs(1),
            longest: Duration::from_secs(30),
            slow_start: Duration::from_secs(10),
        }
    }
}

/// The reference engine inside this process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Demo {
    /// Start it. With no backend configured at all it is started too, if the demo model is there.
    pub enabled: bool,
    /// The model file. Default: `.demo/smollm2-135m.gguf`.
    pub model: Option<PathBuf>,
    /// Threads that compute. Default 1: two threads that share two busy cores are slower than one.
    pub threads: Option<usize>,
    /// Simulate the model instead: cost model and script as `infergw engine --simulate` takes them.
    pub simulate: Option<String>,
}

/// How text is made from and into tokens on engine backends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Text {
    /// Turn control tokens that stand inside user text into plain text (A9). Off: as the reference library does.
    pub escape_control_tokens: bool,
    /// Memory, for each engine group, for the tokens of long pieces of text that were seen before, such as the turns of a
    /// conversation that goes on. 0 is none.
    #[serde(with = "crate::config::size")]
    pub token_cache: usize,
}

impl Default for Text {
    fn default() -> Self {
        Self { escape_control_tokens: false, token_cache: 32 << 20 }
    }
}

/// Logging, to standard error.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// `text` or `json`.
    pub format: LogFormat,
    /// What is logged, in the syntax of tracing's EnvFilter, such as `info` or `infergw=debug`.
    pub filter: String,
}

/// The form of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// For machines: one JSON object a line.
    Json,
}

impl Default for Log {
    fn default() -> Self {
        Self { format: LogFormat::Text, filter: "info".into() }
    }
}
