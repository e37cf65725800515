//! `infergw-bench mock` answers, `infergw-bench load` asks and measures.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Parser, Subcommand};
use infergw_bench::{load, mock};

#[derive(Parser)]
#[command(about = "Mock upstream and load generator for infergw's benchmarks")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Answer as an OpenAI-compatible server that needs no thought; runs until it is killed.
    Mock {
        /// Where to listen; port 0 picks a free one. The address is printed on the first line.
        #[arg(long, default_value = "127.0.0.1:0")]
        listen: SocketAddr,
        /// Threads to serve with.
        #[arg(long, default_value_t = 1)]
        threads: usize,
        #[command(flatten)]
        script: mock::Script,
    },
    /// Ask from many connections at once, print one JSON report.
    Load {
        /// Threads to ask with.
        #[arg(long, default_value_t = 1)]
        threads: usize,
        /// Write the report here as well.
        #[arg(long)]
        out: Option<PathBuf>,
        #[command(flatten)]
        plan: load::Plan,
    },
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Mock { listen, threads, script } => runtime(threads)?.block_on(async {
            let listener = tokio::net::TcpListener::bind(listen).await.context("cannot listen")?;
            println!("{}", listener.local_addr()?);
            mock::serve(listener, script).await
        }),
        Command::Load { threads, out, plan } => {
            let report = runtime(threads)?.block_on(load::run(plan))?;
            let text = serde_json::to_string_pretty(&report)?;
            println!("{text}");
            match out {
                Some(file) => std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display())),
                None => Ok(()),
            }
        }
    }
}

fn runtime(threads: usize) -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?)
}
