//! The log, to standard error. Whoever reads it may stall or go away: no request waits for it, and none fails by it.

use std::io::{self, IsTerminal};
use std::time::Duration;

use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::format;

use crate::config::{Log, LogFormat};

/// Lines that wait to be written; more are dropped and counted. About 5 MB.
const WAITING_LINES: usize = 16 << 10;

/// How often it is looked whether lines were dropped.
const LOOK: Duration = Duration::from_secs(10);

/// A filter that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("log.filter '{filter}'")]
pub struct FilterError {
    filter: String,
    source: tracing_subscriber::filter::ParseError,
}

/// Log from now on as `config` says. A thread writes the lines; it ends, after those that wait, when what this returns is
/// dropped.
///
/// # Errors
/// A filter that cannot be read.
pub fn start(config: &Log) -> Result<WorkerGuard, FilterError> {
    let filter =
        EnvFilter::try_new(&config.filter).map_err(|source| FilterError { filter: config.filter.clone(), source })?;
    let colours = io::stderr().is_terminal();
    let (lines, guard) =
        NonBlockingBuilder::default().lossy(true).buffered_lines_limit(WAITING_LINES).finish(io::stderr());
    let dropped = lines.error_counter();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(lines)
        .with_ansi(colours)
        // It would tell standard error that standard error is closed, and panic.
        .log_internal_errors(false);
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
    tokio::spawn(async move {
        let mut told = 0;
        loop {
            tokio::time::sleep(LOOK).await;
            let lines = dropped.dropped_lines();
            if lines > told {
                tracing::warn!(lines = lines - told, "log lines were dropped: standard error was not read in time");
                told = lines;
            }
        }
    });
    Ok(guard)
}
