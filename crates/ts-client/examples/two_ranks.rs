//! Two data-parallel ranks that are independent replicas: requests go where the fewest run, one is pinned, and the loss
//! of a rank ends only its own streams.
//!
//! ```text
//! cargo run -p ts-client --example two_ranks -- tcp://127.0.0.1:30500
//! infergw engine --handshake tcp://127.0.0.1:30500 --index 0 --dp-rank 0 --dp-size 2 --simulate
//! infergw engine --handshake tcp://127.0.0.1:30500 --index 1 --dp-rank 1 --dp-size 2 --simulate
//! ```

use std::error::Error;
use std::time::Duration;

use ts_client::{ClientConfig, ClientListener, EndCause, LoadBalance, RankLoss, Routing, Tuning};
use ts_wire::{SamplingParams, TokenizedGenerateReqInput};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "tcp://127.0.0.1:30500".into());
    let config = ClientConfig {
        handshake_address: address,
        input_address: "tcp://127.0.0.1:0".into(),
        output_address: "tcp://127.0.0.1:0".into(),
        first_engine_index: 0,
        num_engines: 2,
        routing: Routing::Aggregated(LoadBalance::LeastInFlight),
        handshake_timeout: Duration::from_secs(60),
        send_timeout: Duration::from_secs(5),
    };
    let mut tuning = Tuning::default();
    // The default, `Group`, is for attention-DP: there a group cannot serve without one of its ranks.
    tuning.rank_loss = RankLoss::Rank;
    let listener = ClientListener::bind_with(config, tuning).await?;
    println!("waiting for engines 0 and 1 at {}", listener.handshake_address());
    let client = listener.accept().await?;

    let mut streams = Vec::new();
    for number in 0..6 {
        let sampling = SamplingParams { max_new_tokens: Some(8), ..SamplingParams::default() };
        let mut request = TokenizedGenerateReqInput::new(format!("example-{number}"), sampling);
        request.input_ids = Some(vec![1, 2, 3]);
        request.stream = true;
        if number == 5 {
            request.data_parallel_rank = Some(1);
        }
        streams.push(client.generate(request).await?);
    }
    for mut stream in streams {
        let mut tokens = 0;
        while let Some(chunk) = stream.next().await {
            match chunk {
                Ok(chunk) => tokens += chunk.output_ids.len(),
                Err(error) => match stream.end_cause() {
                    Some(EndCause::RankLost { engine_index, .. }) => println!("rank {engine_index} is gone: {error}"),
                    _ => println!("{error}"),
                },
            }
        }
        println!("{} on rank {}: {tokens} tokens", stream.rid(), stream.engine_index());
    }
    for rank in client.stats() {
        println!("rank {}: {} requests, {} tokens", rank.engine_index, rank.submitted, rank.tokens);
    }
    client.close().await;
    Ok(())
}
