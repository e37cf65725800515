//! The gateway binary: read the configuration, bind, start, say where it listens, wait for a signal, drain.
#![forbid(unsafe_code)]

use std::io::Write;
use std::process::ExitCode;

use anyhow::bail;
use clap::Parser;
use infergw::cli::{Cli, Command};
use infergw::config::Config;
use infergw::logging;
use infergw::reload::Source;
use infergw::serve::Served;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Exit status when the command line or the configuration is at fault.
const BAD_CONFIG: u8 = 2;

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    let (result, status) = match cli.command.unwrap_or(Command::Serve(Box::new(cli.serve))) {
        Command::Check(flags) => (flags.effective().map_err(Into::into).and_then(|config| print(&config)), BAD_CONFIG),
        #[cfg(feature = "demo")]
        Command::Engine(args) => match logging::start(&infergw::config::Log::default()) {
            Ok(_writing) => (infergw::engine_command::run(args).await, 1),
            Err(error) => (Err(error.into()), BAD_CONFIG),
        },
        Command::Serve(flags) => match flags.clone().effective() {
            Ok(config) => (serve(config, flags.source()).await, 1),
            Err(error) => (Err(error.into()), BAD_CONFIG),
        },
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Standard error may be closed; the status tells it too.
            let _ = writeln!(std::io::stderr(), "infergw: {error:#}");
            ExitCode::from(status)
        }
    }
}

async fn serve(config: Config, source: Source) -> anyhow::Result<()> {
    let _writing = logging::start(&config.log)?;
    // Before anything else, so that a signal at start-up ends it too (R7).
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut hangup = signal(SignalKind::hangup())?;
    let served = tokio::select! {
        served = Served::start(config, source) => served?,
        () = either(&mut term, &mut int) => return Ok(()),
    };
    tracing::info!(address = %served.address(), "listening; ask GET /readyz whether a backend can serve");
    loop {
        tokio::select! {
            () = either(&mut term, &mut int) => break,
            _ = hangup.recv() => served.reload().await,
        }
    }
    tokio::select! {
        () = served.drain() => Ok(()),
        () = either(&mut term, &mut int) => bail!("a second signal: stopped at once"),
    }
}

async fn either(term: &mut Signal, int: &mut Signal) {
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}

#[expect(clippy::print_stdout, reason = "the command's output")]
fn print(config: &Config) -> anyhow::Result<()> {
    println!("{}", toml::to_string_pretty(config)?);
    Ok(())
}
