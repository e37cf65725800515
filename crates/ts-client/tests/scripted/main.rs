//! The client against scripted engines and hostile peers: where the order of bytes matters.
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod addresses;
mod dark;
mod engine;
mod hostile;
mod output;
mod raw;
mod sending;

use std::time::Duration;

use ts_client::{ClientConfig, ClientListener, EngineClient, LoadBalance, OutputChunk, RequestStream, Routing, Tuning};
use ts_wire::{SamplingParams, TokenizedGenerateReqInput};

use engine::Engine;

/// Longest wait for something that should happen at once: the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(30);

fn config(ranks: u16) -> ClientConfig {
    ClientConfig {
        handshake_address: "tcp://127.0.0.1:0".into(),
        input_address: "tcp://127.0.0.1:0".into(),
        output_address: "tcp://127.0.0.1:0".into(),
        first_engine_index: 0,
        num_engines: ranks,
        routing: Routing::Aggregated(LoadBalance::RoundRobin),
        handshake_timeout: Duration::from_secs(30),
        send_timeout: Duration::from_secs(5),
    }
}

/// A client and its scripted engines, ready.
async fn group(ranks: u16, tuning: Tuning) -> (EngineClient, Vec<Engine>) {
    let listener = ClientListener::bind_with(config(ranks), tuning).await.unwrap();
    let engines = (0..ranks).map(|index| Engine::join(listener.handshake_address(), index, ranks)).collect();
    (listener.accept().await.unwrap(), engines)
}

fn request(rid: &str) -> TokenizedGenerateReqInput {
    TokenizedGenerateReqInput {
        input_ids: Some(vec![1, 2, 3]),
        stream: true,
        ..TokenizedGenerateReqInput::new(rid, SamplingParams::default())
    }
}

async fn chunk(stream: &mut RequestStream) -> OutputChunk {
    within(stream.next()).await.expect("the stream goes on").expect("without an error")
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("in time")
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
