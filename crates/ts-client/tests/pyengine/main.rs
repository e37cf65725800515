//! The client against engines made of TokenSpeed's own published sockets (`tests/pyengine` at the workspace root).
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod control;
mod death;
mod drop_in;
mod engine;
mod output;
mod requests;
mod restart;

use std::time::Duration;

use engine::Engine;
use ts_client::{
    ClientConfig, ClientListener, EngineClient, GroupPhase, GroupState, LoadBalance, OutputChunk, RequestStream,
    Routing, Tuning,
};
use ts_wire::{SamplingParams, TokenizedGenerateReqInput};

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
        handshake_timeout: Duration::from_secs(60),
        send_timeout: Duration::from_secs(5),
    }
}

/// A client and its engines, ready.
async fn group(config: ClientConfig, tuning: Tuning, args: &[&str]) -> (EngineClient, Vec<Engine>) {
    let listener = ClientListener::bind_with(config.clone(), tuning).await.unwrap();
    let indices = config.first_engine_index..config.first_engine_index + config.num_engines;
    let engines = indices.map(|index| Engine::start(listener.handshake_address(), index, &config, args)).collect();
    (listener.accept().await.unwrap(), engines)
}

fn request(rid: &str, max_new_tokens: i64) -> TokenizedGenerateReqInput {
    let sampling = SamplingParams { max_new_tokens: Some(max_new_tokens), ..SamplingParams::default() };
    TokenizedGenerateReqInput {
        input_ids: Some(vec![11, 12, 13]),
        stream: true,
        ..TokenizedGenerateReqInput::new(rid, sampling)
    }
}

fn pinned(rid: &str, max_new_tokens: i64, rank: i64) -> TokenizedGenerateReqInput {
    TokenizedGenerateReqInput { data_parallel_rank: Some(rank), ..request(rid, max_new_tokens) }
}

/// The next chunk, which must come.
async fn chunk(stream: &mut RequestStream) -> OutputChunk {
    within(stream.next()).await.expect("the stream goes on").expect("without an error")
}

/// A stream's tokens up to its end, and how it ended.
async fn rest(stream: &mut RequestStream) -> (Vec<i32>, Result<String, String>) {
    let mut tokens = Vec::new();
    loop {
        match within(stream.next()).await {
            Some(Ok(chunk)) => {
                tokens.extend(chunk.output_ids);
                if let Some(reason) = chunk.finish_reason {
                    assert!(within(stream.next()).await.is_none(), "nothing follows a finish reason");
                    return (tokens, Ok(reason));
                }
            }
            Some(Err(error)) => {
                assert!(within(stream.next()).await.is_none(), "nothing follows an error");
                return (tokens, Err(error.to_string()));
            }
            None => panic!("the stream ended without a finish reason or an error"),
        }
    }
}

/// Read a stream to a regular end.
async fn finish(stream: &mut RequestStream) -> Vec<i32> {
    let (tokens, end) = rest(stream).await;
    end.expect("a finish reason");
    tokens
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("in time")
}

/// Wait until the group is in a state that `holds` describes.
async fn reaches(client: &EngineClient, what: &str, holds: impl FnMut(&GroupState) -> bool) -> GroupState {
    let mut watch = client.watch();
    let reached = tokio::time::timeout(PATIENCE, watch.wait_for(holds)).await;
    reached.unwrap_or_else(|_| panic!("waited in vain: {what}; {:?}", client.state())).expect("the client lives")
}

fn is(phase: GroupPhase) -> impl Fn(&GroupState) -> bool {
    move |state| state.phase == phase
}

/// Wait for a state, looking often.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
