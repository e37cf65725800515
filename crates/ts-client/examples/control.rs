//! Update the weights of a running engine: pause, load from disk, resume.
//!
//! ```text
//! cargo run -p ts-client --example control -- tcp://127.0.0.1:30500 /models/next-checkpoint
//! infergw engine --handshake tcp://127.0.0.1:30500 --simulate
//! ```
//!
//! An engine that cannot do an operation answers `success: false` with its reason; engines of version 0.1.1 answer no
//! control operation at all, and the call ends with an error that names them.

use std::error::Error;
use std::time::Duration;

use ts_client::{ClientConfig, EngineClient, LoadBalance, Routing};
use ts_wire::control::{PauseSchedulerReqInput, ResumeSchedulerReqInput, UpdateWeightFromDiskReqInput};
use ts_wire::{ControlOutput, ControlRequest};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "tcp://127.0.0.1:30500".into());
    let checkpoint = arguments.next().unwrap_or_else(|| "/models/next-checkpoint".into());
    println!("waiting for engine 0 at {address}");
    let client = EngineClient::connect(ClientConfig {
        handshake_address: address,
        input_address: "tcp://127.0.0.1:0".into(),
        output_address: "tcp://127.0.0.1:0".into(),
        first_engine_index: 0,
        num_engines: 1,
        routing: Routing::Aggregated(LoadBalance::RoundRobin),
        handshake_timeout: Duration::from_secs(60),
        send_timeout: Duration::from_secs(5),
    })
    .await?;

    // "wait" lets running requests finish first, so it has a limit of its own.
    let pause = PauseSchedulerReqInput { rid: None, http_worker_ipc: None, mode: "wait".into() };
    client.control_within(ControlRequest::PauseScheduler(pause), Duration::from_secs(600)).await?;
    println!("paused");

    let update = UpdateWeightFromDiskReqInput {
        rid: None,
        http_worker_ipc: None,
        model_path: checkpoint,
        load_format: None,
        weight_version: None,
        flush_cache: true,
    };
    // One reply per rank. Whatever became of it, the engines must not stay paused.
    match client.control(ControlRequest::UpdateWeightFromDisk(update)).await {
        Ok(replies) => {
            for reply in replies {
                if let ControlOutput::UpdateWeightFromDisk(reply) = reply {
                    println!("weights: success {}, {}", reply.success, reply.message);
                }
            }
        }
        Err(error) => println!("weights: {error}"),
    }

    let resume = ResumeSchedulerReqInput { rid: None, http_worker_ipc: None };
    client.control(ControlRequest::ResumeScheduler(resume)).await?;
    println!("resumed");
    client.close().await;
    Ok(())
}
