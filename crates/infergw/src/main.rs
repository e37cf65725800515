//! The gateway binary: read the configuration, bind, start, say where it listens, wait for a signal, drain.
#![forbid(unsafe_code)]

use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::bail;
use clap::Parser;
use infergw::cli::{Cli, Command};
use infergw::config::{Config, Log, LogFormat};
use infergw::serve::Served;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::format;

/// Exit status when the command line or the configuration is at fault.
const BAD_CONFIG: u8 = 2;

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    let (result, status) = match cli.command.unwrap_or(Command::Serve(Box::new(cli.serve))) {
        Command::Check(flags) => (flags.effective().map_err(Into::into).and_then(|config| print(&config)), BAD_CONFIG),
        #[cfg(feature = "demo")]
        Command::Engine(args) => match log(&Log::default()) {
            Ok(()) => (infergw::engine_command::run(args).await, 1),
            Err(error) => (Err(error), BAD_CONFIG),
        },
        Command::Serve(flags) => match flags.effective() {
            Ok(config) => (serve(config).await, 1),
            Err(error) => (Err(error.into()), BAD_CONFIG),
        },
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("infergw: {error:#}");
            ExitCode::from(status)
        }
    }
}

async fn serve(config: Config) -> anyhow::Result<()> {
    log(&config.log)?;
    // Before anything else, so that a signal at start-up ends it too (R7).
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let served = tokio::select! {
        served = Served::start(config) => served?,
        () = either(&mut term, &mut int) => return Ok(()),
    };
    tracing::info!(address = %served.address(), "listening; ask GET /readyz whether a backend can serve");
    either(&mut term, &mut int).await;
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

fn log(config: &Log) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(&config.filter)?;
    let colours = std::io::stderr().is_terminal();
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours);
    match config.format {
        LogFormat::Text if colours => builder.init(),
        // The formatter for terminals writes empty styles around every name and value: half the cost of a line.
        LogFormat::Text => builder
            .fmt_fields(
                format::debug_fn(|line, field, value| match field.name() {
                    "message" => write!(line, "{value:?}"),
                    name => write!(line, "{name}={value:?}"),
                })
                .delimited(" "),
            )
            .init(),
        LogFormat::Json => builder.json().init(),
    }
    Ok(())
}
