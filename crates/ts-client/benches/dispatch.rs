//! Decode and dispatch of output batches, against the published client: the same engine (a process of its own), the
//! same readers (a task per stream), the CPU time of the receiving process.
//!
//! `cargo bench -p ts-client --bench dispatch`. The first two tables are rows per second of CPU time: with streams that
//! nobody reads meanwhile, and with a task per stream that reads all the time. The limit beside them is what copying the
//! bytes once would reach. The third is the time from the engine's send to the reader, at 200,000 rows/s.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark that cannot go on has failed")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ts_wire::output::BatchTokenIDOutSlim;
use ts_wire::{
    EngineCoreReadyResponse, HandshakeInitMessage, ReadyMessage, decode_bytes, encode_frames, engine_identity,
};

/// One load: rows per batch, logprobs per row or not, batches.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    rows: usize,
    logprobs: bool,
    batches: usize,
    /// Batches per second; as fast as possible if 0.
    rate: u64,
}

const LOADS: [Load; 5] = [
    Load { name: "1 row", rows: 1, logprobs: false, batches: 150_000, rate: 0 },
    Load { name: "64 rows", rows: 64, logprobs: false, batches: 20_000, rate: 0 },
    Load { name: "256 rows", rows: 256, logprobs: false, batches: 6_000, rate: 0 },
    Load { name: "1024 rows", rows: 1024, logprobs: false, batches: 1_500, rate: 0 },
    Load { name: "256 rows, logprobs", rows: 256, logprobs: true, batches: 6_000, rate: 0 },
];
const PACED: [Load; 2] = [
    Load { name: "64 streams", rows: 64, logprobs: false, batches: 12_500, rate: 3_125 },
    Load { name: "256 streams", rows: 256, logprobs: false, batches: 3_125, rate: 781 },
];

const TURNS: usize = 5;

#[derive(Debug, Default, Clone)]
struct Measured {
    cpu: Duration,
    wall: Duration,
    /// From the engine's send to the reader, in µs, sorted.
    delays: Vec<f64>,
}

fn rid(row: usize) -> String {
    format!("chatcmpl-0123456789abcdef-{row:08}")
}

fn batch(load: Load, step: usize, last: bool) -> Vec<u8> {
    let rows = load.rows;
    let token = 1_000 + i32::try_from(step % 100_000).unwrap();
    let logprobs = if load.logprobs { vec![vec![-0.734_375]; rows] } else { vec![vec![]; rows] };
    let batch = BatchTokenIDOutSlim {
        rids: Some((0..rows).map(rid).collect()),
        output_ids: vec![vec![token]; rows],
        finished_reasons: vec![if last { "stop".into() } else { String::new() }; rows],
        prompt_tokens: vec![if load.rate > 0 { NOT_SENT } else { 900 }; rows],
        completion_tokens: vec![i64::try_from(step + 1).unwrap(); rows],
        cached_tokens: vec![0; rows],
        output_token_logprobs_val: logprobs,
        output_token_logprobs_idx: if load.logprobs { vec![vec![token]; rows] } else { vec![vec![]; rows] },
        num_running: i64::try_from(rows).unwrap(),
        ..BatchTokenIDOutSlim::default()
    };
    encode_frames(&batch).remove(0).to_vec()
}

/// Where the time of sending goes: the engine's clock travels in a field that the client hands on.
const NOT_SENT: i64 = 0x0123_4567_89ab_cdef;

/// Put the time into a batch that is about to be sent.
fn stamp(message: &mut [u8]) {
    let now = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()).unwrap();
    let fields: Vec<usize> = memchr::memmem::find_iter(message, &NOT_SENT.to_be_bytes()).collect();
    for field in fields {
        message[field..field + 8].copy_from_slice(&now.to_be_bytes());
    }
}

/// The engine: joins, says so, waits for a line, sends.
fn engine(handshake: &str, load: Load) {
    let context = zmq::Context::new();
    let dealer = |address: &str| {
        let socket = context.socket(zmq::DEALER).unwrap();
        socket.set_identity(&engine_identity(0)).unwrap();
        socket.connect(address).unwrap();
        socket
    };
    let status = |status: &str| {
        encode_frames(&ReadyMessage { status: Some(status.into()), ..ReadyMessage::default() }).remove(0)
    };
    let hello = dealer(handshake);
    hello.send(status("HELLO").as_ref(), 0).unwrap();
    let init: HandshakeInitMessage = decode_bytes(&hello.recv_bytes(0).unwrap()).unwrap();
    hello.send(status("READY").as_ref(), 0).unwrap();
    let input = dealer(&init.addresses.inputs[0]);
    input.send(encode_frames(&EngineCoreReadyResponse::default()).remove(0).as_ref(), 0).unwrap();
    let output = context.socket(zmq::PUSH).unwrap();
    output.connect(&init.addresses.outputs[0]).unwrap();
    let prepared: Vec<Vec<u8>> = match load.rate {
        0 => (0..load.batches).map(|step| batch(load, step, step + 1 == load.batches)).collect(),
        _ => Vec::new(),
    };
    println!("ready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    for message in prepared {
        output.send(message, 0).unwrap();
    }
    if let Some(pause) = 1_000_000_000_u64.checked_div(load.rate) {
        let start = Instant::now();
        for step in 0..load.batches {
            let due = start + Duration::from_nanos(pause * step as u64);
            let mut message = batch(load, step, step + 1 == load.batches);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            stamp(&mut message);
            output.send(message, 0).unwrap();
        }
    }
    // Until the client is gone.
    std::io::stdin().read_line(&mut line).unwrap();
}

fn start_engine(handshake: &str, load: usize, paced: bool) -> Child {
    let program = std::env::current_exe().unwrap();
    let kind = if paced { "paced" } else { "full" };
    let mut child = Command::new(program)
        .args(["engine", handshake, kind, &load.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    child
}

/// CPU time of this process so far.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

macro_rules! client_run {
    ($run:ident, $client:ident, $wire:ident) => {
        async fn $run(number: usize, load: Load, paced: bool, reading: bool) -> Measured {
            let listener = $client::ClientListener::bind($client::ClientConfig {
                handshake_address: "tcp://127.0.0.1:0".into(),
                input_address: "tcp://127.0.0.1:0".into(),
                output_address: "tcp://127.0.0.1:0".into(),
                first_engine_index: 0,
                num_engines: 1,
                routing: $client::Routing::Aggregated($client::LoadBalance::RoundRobin),
                handshake_timeout: Duration::from_secs(60),
                send_timeout: Duration::from_secs(10),
            })
            .await
            .unwrap();
            let handshake = listener.handshake_address().to_owned();
            let child = tokio::task::spawn_blocking(move || start_engine(&handshake, number, paced));
            let client = listener.accept().await.unwrap();
            let mut child = child.await.unwrap();
            let delays = Arc::new(Mutex::new(Vec::new()));
            let release = tokio::sync::watch::Sender::new(());
            let mut readers = Vec::new();
            for row in 0..load.rows {
                let request = $wire::TokenizedGenerateReqInput {
                    input_ids: Some(vec![1]),
                    stream: true,
                    ..$wire::TokenizedGenerateReqInput::new(rid(row), $wire::SamplingParams::default())
                };
                let mut stream = client.generate(request).await.unwrap();
                let delays = Arc::clone(&delays);
                let mut released = release.subscribe();
                readers.push(tokio::spawn(async move {
                    if !reading {
                        released.changed().await.unwrap();
                    }
                    let mut tokens = 0;
                    let mut mine = Vec::new();
                    while let Some(chunk) = stream.next().await {
                        let chunk = chunk.unwrap();
                        tokens += chunk.output_ids.len();
                        if load.rate > 0 {
                            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros();
                            mine.push(now as f64 - chunk.prompt_tokens as f64);
                        }
                    }
                    delays.lock().unwrap().extend(mine);
                    tokens
                }));
            }
            let (before, start) = (cpu(), Instant::now());
            child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
            let mut dispatched = None;
            if !reading {
                while client.in_flight() != [0] {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                dispatched = Some((cpu() - before, start.elapsed()));
            }
            release.send(()).unwrap_or_default();
            for reader in readers {
                assert_eq!(reader.await.unwrap(), load.batches);
            }
            let (cpu, wall) = dispatched.unwrap_or_else(|| (cpu() - before, start.elapsed()));
            drop(client);
            child.kill().unwrap();
            child.wait().unwrap();
            let mut delays = std::mem::take(&mut *delays.lock().unwrap());
            delays.sort_by(f64::total_cmp);
            Measured { cpu, wall, delays }
        }
    };
}

client_run!(ours, ts_client, ts_wire);
client_run!(published, published_client, published_wire);

/// Rows per second if their bytes were only copied.
fn copied(load: Load) -> f64 {
    let message = batch(load, 77, false);
    let mut copy = vec![0_u8; message.len()];
    let rounds = 200_000_000 / message.len();
    let start = Instant::now();
    for _ in 0..rounds {
        copy.copy_from_slice(std::hint::black_box(&message));
        std::hint::black_box(&mut copy);
    }
    (rounds * load.rows) as f64 / start.elapsed().as_secs_f64()
}

fn quantile(sorted: &[f64], at: f64) -> f64 {
    let index = ((sorted.len() as f64 - 1.0) * at).round() as usize;
    sorted.get(index).copied().unwrap_or(f64::NAN)
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if let [_, mode, handshake, kind, load] = args.as_slice()
        && mode == "engine"
    {
        let loads: &[Load] = if kind == "paced" { &PACED } else { &LOADS };
        return engine(handshake, loads[load.parse::<usize>().unwrap()]);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for reading in [false, true] {
        let what = if reading { "to reading tasks" } else { "decode + dispatch" };
        println!(
            "{what:<22} {:>12} {:>12} {:>7} {:>14} {:>9}",
            "ours rows/s", "published", "ratio", "copy rows/s", "of copy"
        );
        for (number, load) in LOADS.into_iter().enumerate() {
            let per_cpu = |measured: &Measured| (load.rows * load.batches) as f64 / measured.cpu.as_secs_f64();
            // In turns, so that what disturbs the machine disturbs both; the middle one of the ratios counts.
            let mut turns: Vec<[f64; 3]> = (0..TURNS)
                .map(|_| {
                    let ours = per_cpu(&runtime.block_on(ours(number, load, false, reading)));
                    let theirs = per_cpu(&runtime.block_on(published(number, load, false, reading)));
                    [ours / theirs, ours, theirs]
                })
                .collect();
            turns.sort_by(|a, b| a[0].total_cmp(&b[0]));
            let [ratio, ours, theirs] = turns[TURNS / 2];
            let copy = copied(load);
            let share = 100.0 * ours / copy;
            println!("{:<22} {ours:>12.0} {theirs:>12.0} {ratio:>6.2}x {copy:>14.0} {share:>8.2}%", load.name);
        }
        println!();
    }
    println!("{:<22} {:>10} {:>10} {:>10} {:>12}", "200,000 rows/s", "p50 µs", "p99 µs", "p99.9 µs", "rows/s");
    for (number, load) in PACED.into_iter().enumerate() {
        for (who, measured) in [
            ("ours", runtime.block_on(ours(number, load, true, true))),
            ("published", runtime.block_on(published(number, load, true, true))),
        ] {
            let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|at| quantile(&measured.delays, at));
            let rate = (load.rows * load.batches) as f64 / measured.wall.as_secs_f64();
            println!("{:<22} {p50:>10.0} {p99:>10.0} {p999:>10.0} {rate:>12.0}", format!("{who}, {}", load.name));
        }
    }
}
