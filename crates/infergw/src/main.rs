//! The gateway binary: read the configuration, bind, start, say where it listens, wait for a signal, drain.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Parser;
use infergw::Gateway;
use infergw::cli::{Cli, Command};
use infergw::config::{Config, LogFormat};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// The configuration is at fault, or the command line.
const BAD_CONFIG: u8 = 2;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let (flags, check) = match cli.command {
        None => (cli.serve, false),
        Some(Command::Serve(flags)) => (*flags, false),
        Some(Command::Check(flags)) => (*flags, true),
    };
    let config = match flags.effective() {
        Ok(config) => config,
        Err(error) => return fail(BAD_CONFIG, &error.into()),
    };
    let done = if check { print(&config) } else { run(config) };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(if check { BAD_CONFIG } else { 1 }, &error),
    }
}

fn fail(status: u8, error: &anyhow::Error) -> ExitCode {
    eprintln!("infergw: {error:#}");
    ExitCode::from(status)
}

#[expect(clippy::print_stdout, reason = "the command's output")]
fn print(config: &Config) -> anyhow::Result<()> {
    println!("{}", toml::to_string_pretty(config)?);
    Ok(())
}

#[tokio::main]
async fn run(config: Config) -> anyhow::Result<()> {
    log(&config)?;
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    if config.upstreams.is_empty() && config.engines.is_empty() {
        bail!("no backend: name one with --upstream URL, or get the demo model with `make demo-model`");
    }
    let listen = config.server.listen;
    let listener = TcpListener::bind(listen).await.with_context(|| format!("cannot listen on {listen}"))?;
    let admin = match config.server.admin {
        Some(address) => Some(TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?),
        None => None,
    };
    let running = Gateway::start(config, listener, admin).await?;
    tracing::info!(address = %running.address(), "listening");
    either(&mut term, &mut int).await;
    tokio::select! {
        () = running.drain() => Ok(()),
        () = either(&mut term, &mut int) => bail!("a second signal: stopped at once"),
    }
}

async fn either(term: &mut Signal, int: &mut Signal) {
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}

fn log(config: &Config) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(&config.log.filter).context("log.filter")?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match config.log.format {
        LogFormat::Text => builder.init(),
        LogFormat::Json => builder.json().init(),
    }
    Ok(())
}
