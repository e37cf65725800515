//! Submit one request and print its tokens as they come.
//!
//! Start this, then an engine that dials the same address:
//!
//! ```text
//! cargo run -p ts-client --example generate -- tcp://127.0.0.1:30500
//! infergw engine --handshake tcp://127.0.0.1:30500 --simulate
//! ```

use std::error::Error;
use std::time::Duration;

use ts_client::{ClientConfig, ClientListener, LoadBalance, Routing};
use ts_wire::{SamplingParams, TokenizedGenerateReqInput};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "tcp://127.0.0.1:30500".into());
    let listener = ClientListener::bind(ClientConfig {
        handshake_address: address,
        // Free ports; engines learn them in the handshake.
        input_address: "tcp://127.0.0.1:0".into(),
        output_address: "tcp://127.0.0.1:0".into(),
        first_engine_index: 0,
        num_engines: 1,
        routing: Routing::Aggregated(LoadBalance::RoundRobin),
        handshake_timeout: Duration::from_secs(60),
        send_timeout: Duration::from_secs(5),
    })
    .await?;
    println!("waiting for engine 0 at {}", listener.handshake_address());
    let client = listener.accept().await?;

    let sampling = SamplingParams { max_new_tokens: Some(16), ..SamplingParams::default() };
    let mut request = TokenizedGenerateReqInput::new("example-1", sampling);
    request.input_ids = Some(vec![1, 2, 3]);
    request.stream = true;
    let mut stream = client.generate(request).await?;
    while let Some(chunk) = stream.next().await {
        let chunk = chunk?;
        println!("{:?} {}", chunk.output_ids, chunk.finish_reason.unwrap_or_default());
    }
    client.close().await;
    Ok(())
}
