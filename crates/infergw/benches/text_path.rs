//! What one token costs on the engine path's way out: detokenizer, stop scan and SSE event, for 64 streams in turn; and what a
//! prompt costs on its way in. Prints nanoseconds; the target is under a microsecond a token on one core.
//!
//! `cargo bench -p infergw --bench text_path` needs the demo model (`make demo-model`, or `INFERGW_DEMO_MODEL`).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use infergw::backend::engine::choice::{Choice, Delta, Step};
use infergw::backend::engine::events::{Events, Identity};
use infergw::backend::engine::model::TextModel;
use infergw::backend::engine::prepare::TextSide;
use infergw::backend::engine::request::{Dialect, Output, Sampling};
use infergw::backend::engine::tokenize::encode;
use infergw::config::Text;
use infergw::observe::Tokenizing;
use infergw::types::Endpoint;

const STREAMS: usize = 64;
const ROUNDS: usize = 2_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../.demo/smollm2-135m.gguf");
    let file = std::env::var_os("INFERGW_DEMO_MODEL").map_or(root, PathBuf::from);
    let start = Instant::now();
    let model = TextModel::load(&file).map_err(|e| format!("{e} (run `make demo-model`)"))?;
    report("load tokenizer and table", start.elapsed().as_nanos() as f64, "ns");

    let text =
        "The quick brown fox jumps over the lazy dog; 日本語 and 😀, \"quoted\"\nand 12345 more words than before. ";
    let ids = encode(&model.tokenizer, &text.repeat(8), false)?;
    for (name, stops) in [("", vec![]), (", with 2 stop strings", vec!["</answer>".to_owned(), "\n\nUser:".to_owned()])]
    {
        for size in [1, 4] {
            let nanos = out(&model, &ids, stops.clone(), size);
            report(&format!("token out{name}, {size} per event"), nanos, "ns/token");
        }
    }
    let long: String = text.repeat(70);
    let body = serde_json::json!({"model": "m", "messages": [{"role": "user", "content": long}]}).to_string();
    let side = Arc::new(TextSide::new(model, &Text { token_cache: 0, ..Text::default() }, Tokenizing::default()));
    let tokens =
        side.prepare(Endpoint::ChatCompletions, body.as_bytes()).map_err(|e| format!("{e:?}"))?.prompts[0].ids.len();
    let start = Instant::now();
    const PROMPTS: u32 = 50;
    for _ in 0..PROMPTS {
        std::hint::black_box(side.prepare(Endpoint::ChatCompletions, body.as_bytes()).is_ok());
    }
    report(&format!("prompt of {tokens} tokens in"), (start.elapsed() / PROMPTS).as_nanos() as f64, "ns");
    Ok(())
}

/// Nanoseconds per token, `size` tokens a step, the streams taken in turn.
fn out(model: &TextModel, ids: &[u32], stops: Vec<String>, size: usize) -> f64 {
    let output = Output { stops, skip_special_tokens: true, ..Output::default() };
    let identity = Identity { id: "chatcmpl-0123456789abcdef-1234", created: 1_700_000_000, model: "smollm2-135m" };
    let mut streams: Vec<(Choice, Events, Delta)> = (0..STREAMS)
        .map(|_| {
            let choice = Choice::new(Arc::clone(&model.table), &output, &Sampling::default(), Arc::from([2]));
            let events = Events::new(Dialect::ChatCompletions, identity, false, Arc::clone(&model.table));
            (choice, events, Delta::default())
        })
        .collect();
    let steps: Vec<Step> = ids.chunks(size).map(|ids| Step { ids: ids.to_vec(), ..Step::default() }).collect();
    let (mut tokens, start) = (0, Instant::now());
    for round in 0..ROUNDS {
        let step = &steps[round % steps.len()];
        for (choice, events, delta) in &mut streams {
            delta.clear();
            choice.take(step, delta);
            // One buffer per step is what the flight's log takes.
            let mut buffer = Vec::new();
            if !delta.is_empty() {
                events.delta(&mut buffer, 0, delta, 0);
            }
            std::hint::black_box(&buffer);
            tokens += step.ids.len();
        }
    }
    start.elapsed().as_nanos() as f64 / tokens as f64
}

#[expect(clippy::print_stdout, reason = "a benchmark's result")]
fn report(name: &str, value: f64, unit: &str) {
    println!("{name}: {value:.0} {unit}");
}
