//! The load generator: a closed loop of questions on each of N kept-alive connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::TcpStream;

use crate::delay::Delays;
use crate::report::{Percentiles, Report};

/// What to ask, how often, from how many connections.
#[derive(Debug, Clone, clap::Args)]
pub struct Plan {
    /// The address under test, such as `http://127.0.0.1:8080`.
    #[arg(long)]
    pub url: Uri,
    /// The path to ask on.
    #[arg(long, default_value = "/v1/chat/completions")]
    pub path: String,
    /// The model to ask for.
    #[arg(long, default_value = "mock")]
    pub model: String,
    /// Connections that ask at once.
    #[arg(long, default_value_t = 32)]
    pub connections: usize,
    /// Questions in all, the warm-up not counted.
    #[arg(long, default_value_t = 10_000)]
    pub requests: u64,
    /// Questions before the clock starts.
    #[arg(long, default_value_t = 500)]
    pub warmup: u64,
    /// `max_tokens` of each question.
    #[arg(long, default_value_t = 64)]
    pub max_tokens: u32,
    /// Ask for streams, with usage.
    #[arg(long)]
    pub stream: bool,
    /// Every connection asks the same question; otherwise no two questions are equal.
    #[arg(long)]
    pub identical: bool,
    /// Words of prompt.
    #[arg(long, default_value_t = 30)]
    pub prompt_words: usize,
    /// Let an engine generate to `max_tokens` whatever it says.
    #[arg(long)]
    pub ignore_eos: bool,
    /// Present this key.
    #[arg(long)]
    pub key: Option<String>,
    /// Mean pause of a connection before each question, in microseconds; the pauses differ at random, from none to twice
    /// the mean. Without it connections that were answered together ask together again, for ever.
    #[arg(long, default_value_t = 0)]
    pub pause_us: u64,
    /// Give up on a question after this many seconds.
    #[arg(long, default_value_t = 60)]
    pub timeout_s: u64,
}

/// What one connection saw.
#[derive(Default)]
struct Tally {
    latencies: Vec<Duration>,
    first_bytes: Vec<Duration>,
    errors: u64,
    first_error: Option<String>,
    events: u64,
    tokens: u64,
    bytes: u64,
}

struct Answer {
    first_byte: Duration,
    latency: Duration,
    events: u64,
    tokens: u64,
    bytes: u64,
}

/// Run the plan.
///
/// # Errors
/// The address cannot be reached. Failed questions are counted in the report instead.
pub async fn run(plan: Plan) -> anyhow::Result<Report> {
    let plan = Arc::new(plan);
    let asked = Arc::new(AtomicU64::new(0));
    let warmup = Plan { requests: plan.warmup, ..Plan::clone(&plan) };
    spread(&Arc::new(warmup), &asked).await?;
    let goal = Arc::new(Plan { requests: plan.warmup + plan.requests, ..Plan::clone(&plan) });
    asked.store(plan.warmup, Ordering::Relaxed);
    let start = Instant::now();
    let total = spread(&goal, &asked).await?;
    Ok(report(&plan, total, start.elapsed()))
}

/// Ask on all connections until `plan.requests` questions are asked.
async fn spread(plan: &Arc<Plan>, asked: &Arc<AtomicU64>) -> anyhow::Result<Tally> {
    let mut workers = Vec::new();
    let delays = Delays::start();
    for seed in 1..=plan.connections as u64 {
        let sender = connect(plan).await?;
        workers.push(tokio::spawn(work(sender, Arc::clone(plan), Arc::clone(asked), (delays.clone(), seed))));
    }
    let mut total = Tally::default();
    for worker in workers {
        let tally = worker.await?;
        total.latencies.extend(tally.latencies);
        total.first_bytes.extend(tally.first_bytes);
        total.errors += tally.errors;
        total.first_error = total.first_error.or(tally.first_error);
        total.events += tally.events;
        total.tokens += tally.tokens;
        total.bytes += tally.bytes;
    }
    Ok(total)
}

/// Pauses need to differ, and to be the same in every run; a generator of one line does (xorshift64*).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % limit
    }
}

type Sender = SendRequest<Full<Bytes>>;

async fn connect(plan: &Plan) -> anyhow::Result<Sender> {
    let host = plan.url.host().context("--url has no host")?;
    let socket = TcpStream::connect((host, plan.url.port_u16().unwrap_or(80))).await.context("cannot connect")?;
    socket.set_nodelay(true)?;
    let (sender, connection) = handshake(TokioIo::new(socket)).await?;
    tokio::spawn(async move {
        // Its end shows as the error of the request that was on it.
        let _ = connection.await;
    });
    Ok(sender)
}

async fn work(mut sender: Sender, plan: Arc<Plan>, asked: Arc<AtomicU64>, (delays, seed): (Delays, u64)) -> Tally {
    let mut tally = Tally::default();
    let mut random = Random(seed);
    loop {
        let number = asked.fetch_add(1, Ordering::Relaxed);
        if number >= plan.requests {
            return tally;
        }
        delays.wait(Duration::from_micros(random.below(2 * plan.pause_us + 1))).await;
        let limit = Duration::from_secs(plan.timeout_s);
        let outcome = match tokio::time::timeout(limit, ask(&mut sender, &plan, number)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(anyhow::anyhow!("no answer within {limit:?}")),
        };
        match outcome {
            Ok(answer) => {
                tally.latencies.push(answer.latency);
                tally.first_bytes.push(answer.first_byte);
                tally.events += answer.events;
                tally.tokens += answer.tokens;
                tally.bytes += answer.bytes;
            }
            Err(error) => {
                tally.errors += 1;
                tally.first_error.get_or_insert(format!("{error:#}"));
                match connect(&plan).await {
                    Ok(fresh) => sender = fresh,
                    Err(_) => return tally,
                }
            }
        }
    }
}

/// One question and the whole of its answer.
async fn ask(sender: &mut Sender, plan: &Plan, number: u64) -> anyhow::Result<Answer> {
    let request = question(plan, number)?;
    sender.ready().await?;
    let start = Instant::now();
    let response = sender.send_request(request).await?;
    let status = response.status();
    let mut body = response.into_body();
    let mut answer = Answer { first_byte: Duration::ZERO, latency: Duration::ZERO, events: 0, tokens: 0, bytes: 0 };
    let mut text = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        if answer.bytes == 0 {
            answer.first_byte = start.elapsed();
        }
        answer.bytes += data.len() as u64;
        text.extend_from_slice(&data);
        if plan.stream {
            answer.events += settle(&mut text);
        }
    }
    answer.latency = start.elapsed();
    if status != StatusCode::OK {
        bail!("status {status}: {}", String::from_utf8_lossy(&text).chars().take(200).collect::<String>());
    }
    if plan.stream && !text.ends_with(b"data: [DONE]\n\n") {
        bail!("the stream ended without [DONE]");
    }
    if find(&text, b"\"error\":{").is_some() {
        bail!("error event: {}", String::from_utf8_lossy(&text).chars().take(200).collect::<String>());
    }
    answer.tokens = completion_tokens(&text);
    Ok(answer)
}

/// Most bytes of a stream that are kept: the usage event and `[DONE]` fit, however they were cut.
const KEPT: usize = 4096;

/// Counts the events that ended in the fresh part of `text` and lets go of all but the stream's tail.
///
/// Only what lies past the tail is dropped, so an end that was counted is never seen twice: the count is of what is dropped
/// now, and of the rest at the end of the stream.
fn settle(text: &mut Vec<u8>) -> u64 {
    if text.ends_with(b"data: [DONE]\n\n") {
        return ends(text);
    }
    if text.len() < 4 * KEPT {
        return 0;
    }
    // Cut behind an event's end, so that no end is cut in two.
    let tail = text.len() - KEPT;
    let cut = find(text.get(tail..).unwrap_or_default(), b"\n\n").map_or(text.len(), |at| tail + at + 2);
    let counted = ends(text.get(..cut).unwrap_or_default());
    text.drain(..cut);
    counted
}

fn ends(text: &[u8]) -> u64 {
    text.windows(2).filter(|pair| *pair == b"\n\n").count() as u64
}

fn find(text: &[u8], needle: &[u8]) -> Option<usize> {
    text.windows(needle.len()).position(|part| part == needle)
}

/// The number behind the last `"completion_tokens":`; 0 if there is none.
fn completion_tokens(text: &[u8]) -> u64 {
    const NAME: &[u8] = b"\"completion_tokens\":";
    let Some(at) = text.windows(NAME.len()).rposition(|part| part == NAME) else { return 0 };
    let digits = text.iter().skip(at + NAME.len()).skip_while(|byte| byte.is_ascii_whitespace());
    digits.take_while(|byte| byte.is_ascii_digit()).fold(0, |sum, byte| sum * 10 + u64::from(byte - b'0'))
}

fn question(plan: &Plan, number: u64) -> anyhow::Result<Request<Full<Bytes>>> {
    let number = if plan.identical { 0 } else { number };
    let prompt = format!("{number} {}", "word ".repeat(plan.prompt_words));
    let mut body = json!({
        "model": plan.model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": plan.max_tokens,
    });
    if let Some(fields) = body.as_object_mut() {
        if plan.stream {
            fields.insert("stream".into(), json!(true));
            fields.insert("stream_options".into(), json!({"include_usage": true}));
        }
        if plan.ignore_eos {
            fields.insert("ignore_eos".into(), json!(true));
        }
    }
    let mut request = Request::post(&plan.path)
        .header(header::HOST, plan.url.authority().map(|authority| authority.as_str()).unwrap_or_default())
        .header(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(key) = &plan.key {
        request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
    }
    Ok(request.body(Full::new(Bytes::from(body.to_string())))?)
}

fn report(plan: &Plan, tally: Tally, elapsed: Duration) -> Report {
    let seconds = elapsed.as_secs_f64();
    let requests = tally.latencies.len() as u64;
    Report {
        connections: plan.connections,
        requests,
        errors: tally.errors,
        first_error: tally.first_error,
        seconds,
        requests_per_s: requests as f64 / seconds,
        latency: Percentiles::of(tally.latencies),
        first_byte: Percentiles::of(tally.first_bytes),
        events: tally.events,
        events_per_s: tally.events as f64 / seconds,
        tokens: tally.tokens,
        tokens_per_s: tally.tokens as f64 / seconds,
        bytes: tally.bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_counted_once_however_they_are_cut() {
        let stream: Vec<u8> = (0..5000).flat_map(|n| format!("data: {{\"n\":{n}}}\n\n").into_bytes()).collect();
        let stream = [stream.as_slice(), b"data: [DONE]\n\n"].concat();
        for size in [1, 3, 7, 1000, 100_000] {
            let mut text = Vec::new();
            let mut events = 0;
            for part in stream.chunks(size) {
                text.extend_from_slice(part);
                events += settle(&mut text);
            }
            assert_eq!(events, 5001, "pieces of {size}");
        }
    }

    #[test]
    fn the_last_usage_is_read() {
        assert_eq!(completion_tokens(br#"{"completion_tokens":1} {"completion_tokens": 42, "x":7}"#), 42);
        assert_eq!(completion_tokens(b"{}"), 0);
    }
}
