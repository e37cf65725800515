//! `infergw engine`: one rank of the reference engine as a process of its own.

use std::path::PathBuf;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use ts_engine::serve::ModelSource;
use ts_engine::{EngineConfig, SimulateConfig};

/// The flags of `infergw engine`.
#[derive(Debug, Clone, clap::Args)]
pub struct EngineArgs {
    /// The gateway's handshake address, such as tcp://127.0.0.1:30500 (its --engines).
    #[arg(long, value_name = "tcp://HOST:PORT")]
    pub handshake: String,
    /// The engine's index: its identity at the gateway.
    #[arg(long, default_value_t = 0)]
    pub index: u16,
    /// Its data-parallel rank in the group [default: the index].
    #[arg(long)]
    pub dp_rank: Option<u16>,
    /// Ranks in the group.
    #[arg(long, default_value_t = 1)]
    pub dp_size: u16,
    /// A Llama-like model to run on the CPU.
    #[arg(long, value_name = "FILE.gguf", required_unless_present = "simulate", conflicts_with = "simulate")]
    pub model: Option<PathBuf>,
    /// Simulate a model instead: key=value,... such as prefill=50000,decode-base-us=8000,emit=echo ("" for the defaults).
    #[arg(long, value_name = "KEY=VALUE,...", num_args = 0..=1, default_missing_value = "")]
    pub simulate: Option<String>,
    /// The name to register the model under [default: the file's name].
    #[arg(long)]
    pub name: Option<String>,
    /// Threads that compute. One is best where cores are shared.
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
}

/// Run the engine until it ends or SIGTERM or SIGINT comes; then it announces its shutdown.
///
/// # Errors
/// A model or a simulation that cannot be loaded, or an engine that ended without being told to.
pub async fn run(args: EngineArgs) -> anyhow::Result<()> {
    let source = match (&args.model, &args.simulate) {
        (Some(file), _) => ModelSource::Gguf(file.clone()),
        (None, text) => {
            let text = text.as_deref().unwrap_or_default();
            ModelSource::Simulated(text.parse::<SimulateConfig>().context("--simulate")?)
        }
    };
    let mut config = EngineConfig::new(args.handshake, source);
    config.index = args.index;
    config.dp_rank = args.dp_rank.unwrap_or(args.index);
    config.dp_size = args.dp_size;
    config.name = args.name;
    config.threads = args.threads;
    let handshake = config.handshake.clone();
    let engine = tokio::task::spawn_blocking(move || ts_engine::start(config)).await??;
    tracing::info!(handshake, index = args.index, "engine dials the gateway");

    let stopper = engine.stopper();
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    let mut ended = tokio::task::spawn_blocking(move || engine.wait());
    loop {
        tokio::select! {
            result = &mut ended => return Ok(result??),
            _ = term.recv() => stopper.stop(),
            _ = int.recv() => stopper.stop(),
        }
    }
}
