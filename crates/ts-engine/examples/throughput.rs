//! How fast the engine is by itself: tokens per second over the wire, without a gateway.
//!
//! `cargo run --release -p ts-engine --example throughput -- simulate` (or a GGUF file, and the number of threads).
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    reason = "a measurement that cannot go on has failed"
)]

#[path = "../tests/support/mod.rs"]
mod support;

use std::time::Instant;

use support::{Frontend, request};
use ts_engine::serve::EngineConfig;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let what = arguments.next().unwrap_or_else(|| "simulate".into());
    let option = arguments.next();
    let simulated = what == "simulate";
    let (frontend, _engine, _) = Frontend::with_engine(|address| {
        if simulated {
            return EngineConfig::simulated(address, option.as_deref().unwrap_or_default().parse().unwrap());
        }
        let mut config = EngineConfig::gguf(address, &what);
        config.threads = option.map_or(1, |threads| threads.parse().unwrap());
        config
    });
    let (batches, tokens): (&[usize], i64) = if simulated { (&[1, 8, 64, 256], 4000) } else { (&[1, 8, 16], 64) };
    for batch in batches {
        let requests: Vec<_> = (0..*batch)
            .map(|index| {
                let prompt: Vec<i32> = (0..12).map(|k| 400 + (*batch + index * 12 + k) as i32).collect();
                let mut request = request(&format!("{batch}-{index}"), &prompt, tokens);
                request.sampling_params.ignore_eos = true;
                request
            })
            .collect();
        let start = Instant::now();
        let answers = frontend.run(&requests);
        let total: usize = answers.iter().map(|answer| answer.tokens.len()).sum();
        println!("{batch:4} at once: {:12.0} tokens/s", total as f64 / start.elapsed().as_secs_f64());
    }
    if !simulated {
        for length in [256usize, 1024] {
            let prompt: Vec<i32> = (0..length).map(|k| 300 + (k * 7919 + length) as i32 % 40_000).collect();
            let start = Instant::now();
            frontend.run(&[request(&format!("prompt-{length}"), &prompt, 1)]);
            println!("prompt of {length}: {:8.0} tokens/s", length as f64 / start.elapsed().as_secs_f64());
        }
    }
}
