//! Where the client listens, which engines it expects, and how it treats them.

use std::sync::Arc;
use std::time::Duration;

use ts_wire::EngineCoreReadyResponse;

use crate::observe::Observer;

/// Where the client listens and which engines it expects.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// Handshake address that the engines dial (their `--data-parallel-address` and `--data-parallel-rpc-port`).
    /// `tcp://<host>:0` binds a free port; see [`crate::ClientListener::handshake_address`].
    pub handshake_address: String,
    /// Input address. `tcp://<host>:0` binds a free port. What was bound is sent to the engines, so `<host>` must be
    /// one that they can reach; a wildcard needs [`Tuning::advertise`].
    pub input_address: String,
    /// Output address, bound and sent like `input_address`.
    pub output_address: String,
    /// The first engine's index (its `--zmq-engine-index`).
    pub first_engine_index: u16,
    /// Engines in the group: indices `first_engine_index..first_engine_index + num_engines`, one per attention-DP rank.
    pub num_engines: u16,
    /// How requests are placed.
    pub routing: Routing,
    /// Limit of [`crate::ClientListener::accept`], from its call to the last registration.
    pub handshake_timeout: Duration,
    /// Limit for handing one message to an engine's socket.
    pub send_timeout: Duration,
}

/// How requests are assigned to engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Routing {
    /// A request's `data_parallel_rank` pins it to that rank; the others are placed by the policy.
    Aggregated(LoadBalance),
    /// Prefill/decode disaggregation: rank `bootstrap_room % num_engines`, the rule that both sides apply.
    BootstrapRoom,
}

/// Placement of unpinned requests. [`Tuning::placement`] has more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadBalance {
    /// One engine after the other.
    RoundRobin,
    /// The engine with the fewest of this client's requests in flight.
    LeastInFlight,
    /// The engine that last reported the fewest KV pages in use, then the fewest requests in flight.
    MinimumCacheUsage,
}

/// Placements beside the published ones; one set in [`Tuning::placement`] replaces the policy of
/// [`Routing::Aggregated`] for unpinned requests.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Placement {
    /// Of two engines drawn at random, the one with fewer requests in flight. Balances nearly as well as
    /// [`LoadBalance::LeastInFlight`] and does not herd when several frontends share the engines.
    PowerOfTwo,
    /// Requests whose prompts start alike go to the same engine, so that its prefix cache serves them, as long as that
    /// engine is not overloaded: it takes at most `load_bound` times its even share of the requests in flight, then
    /// the prefix's next engine is asked (rendezvous hashing with bounded loads).
    PrefixAffinity {
        /// How many leading prompt tokens make the key.
        prefix_tokens: usize,
        /// Times the even share that an engine may hold; at least 1. 1.25 is a good value.
        load_bound: f64,
    },
}

/// What the loss of one rank means for the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RankLoss {
    /// Attention-DP ranks work in lockstep: without one of them the group cannot serve. All streams end; requests are
    /// refused until every rank is back.
    #[default]
    Group,
    /// The ranks are independent replicas: only the lost rank's streams end, the others take the requests.
    Rank,
}

/// ZMTP heartbeats on the input and output connections.
///
/// They find an engine that hangs while idle. They are off by default, because libzmq sends its PING to every peer,
/// whatever ZMTP version that announced, and a peer that knows ZMTP 3.0 only (`zeromq` for Rust up to 0.7, which newer
/// engine hosts use) closes the connection on it. Engines in Python (libzmq) answer them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heartbeat {
    /// Time between two PINGs.
    pub interval: Duration,
    /// How long to wait for any traffic after a PING before the connection counts as broken.
    pub timeout: Duration,
}

/// How the client treats its engines: everything that the published [`ClientConfig`] has no field for.
///
/// Start from [`Tuning::default`] and set fields.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Tuning {
    /// Host that engines are told to dial for input and output, in place of the bound one (behind NAT, or with a
    /// wildcard bound). A bare host or IP address; IPv6 without brackets is fine.
    pub advertise: Option<String>,
    /// What the loss of one rank means for the others.
    pub rank_loss: RankLoss,
    /// How long a rank with requests running may send nothing before it counts as hung. Longer than the engine's
    /// longest step. A rank that answers the check of `ping_after` is not silent.
    pub silence: Duration,
    /// How long a rank with requests running may send nothing before it is asked for a sign of life: an ADD that
    /// carries a `validation_error`, which every engine answers with one abort row and does not run.
    pub ping_after: Duration,
    /// Time between two checks that each rank's connection stands.
    pub probe_interval: Duration,
    /// ZMTP heartbeats; see [`Heartbeat`] for why they are off.
    pub heartbeat: Option<Heartbeat>,
    /// After an engine announced its shutdown, how long to wait for one's connection to close before the
    /// announcement counts as false.
    pub sentinel_grace: Duration,
    /// Take over engines that were started by an earlier life of this frontend on the same addresses, with this
    /// registration assumed for them: such engines never register again. Without it they are reported as
    /// [`crate::RankStatus::NeedsRestart`].
    pub adopt: Option<EngineCoreReadyResponse>,
    /// Limit of [`crate::EngineClient::control`]. 0.1.1 engines answer no control operation at all.
    pub control_timeout: Duration,
    /// Unread output that one stream may hold, in bytes, before it alone is cancelled.
    pub stream_buffer_bytes: usize,
    /// Largest message accepted on the output connections, in bytes. A peer that announces more is disconnected.
    pub max_output_bytes: usize,
    /// Bytes of messages that may wait for one engine that does not read.
    pub send_queue_bytes: usize,
    /// Messages that may wait inside the socket library for one engine.
    pub send_queue_messages: u16,
    /// Undecodable messages in a row after which the sending rank's requests are failed.
    pub bad_output_run: u32,
    /// End a stream whose `completion_tokens` do not add up.
    pub check_gaps: bool,
    /// How long dropping the client waits for the last aborts to leave.
    pub close_timeout: Duration,
    /// Replaces the policy of [`Routing::Aggregated`] for unpinned requests.
    pub placement: Option<Placement>,
    /// Told about what happens to the ranks; see [`Observer`].
    pub observer: Option<Arc<dyn Observer>>,
}

// === impl Tuning ===

impl Default for Tuning {
    fn default() -> Self {
        Self {
            advertise: None,
            rank_loss: RankLoss::default(),
            silence: Duration::from_secs(30),
            ping_after: Duration::from_secs(5),
            probe_interval: Duration::from_secs(1),
            heartbeat: None,
            sentinel_grace: Duration::from_secs(5),
            adopt: None,
            control_timeout: Duration::from_secs(60),
            stream_buffer_bytes: 16 << 20,
            max_output_bytes: 64 << 20,
            send_queue_bytes: 64 << 20,
            send_queue_messages: 256,
            bad_output_run: 8,
            check_gaps: true,
            close_timeout: Duration::from_millis(500),
            placement: None,
            observer: None,
        }
    }
}
