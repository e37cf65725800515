//! An OpenAI-compatible upstream whose answers are made before the first request comes.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt};
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::TcpListener;

use crate::delay::Delays;

/// What the mock answers.
#[derive(Debug, Clone, clap::Args)]
pub struct Script {
    /// Time before the head of an answer, in microseconds.
    #[arg(long, default_value_t = 0)]
    pub delay_us: u64,
    /// Content events in a stream; also the completion tokens that the usage reports.
    #[arg(long, default_value_t = 64)]
    pub tokens: usize,
    /// Time between two events of a stream, in microseconds; 0 is as fast as the reader reads.
    #[arg(long, default_value_t = 0)]
    pub interval_us: u64,
    /// Bytes of content in a non-streaming answer.
    #[arg(long, default_value_t = 400)]
    pub content_bytes: usize,
}

struct Answers {
    script: Script,
    delays: Delays,
    models: Bytes,
    json: Bytes,
    events: Vec<Bytes>,
}

impl Answers {
    fn new(script: Script) -> Self {
        let usage =
            json!({"prompt_tokens": 12, "completion_tokens": script.tokens, "total_tokens": 12 + script.tokens});
        let content = "word ".repeat(script.content_bytes.div_ceil(5));
        let json = json!({
            "id": "chatcmpl-mock", "object": "chat.completion", "created": 1_700_000_000, "model": "mock",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}],
            "usage": usage,
        });
        let models =
            json!({"object": "list", "data": [{"id": "mock", "object": "model", "created": 0, "owned_by": "bench"}]});
        Self {
            models: text(&models),
            json: text(&json),
            events: events(script.tokens, &usage),
            delays: Delays::start(),
            script,
        }
    }
}

fn text(value: &serde_json::Value) -> Bytes {
    value.to_string().into()
}

/// The events of one stream: the role, the tokens, the finish, the usage, `[DONE]`.
fn events(tokens: usize, usage: &serde_json::Value) -> Vec<Bytes> {
    let chunk = |choices: serde_json::Value, usage: &serde_json::Value| {
        let body = json!({
            "id": "chatcmpl-mock", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "mock",
            "choices": choices, "usage": usage,
        });
        Bytes::from(format!("data: {body}\n\n"))
    };
    let none = serde_json::Value::Null;
    let delta = |delta: serde_json::Value, finish: &serde_json::Value| {
        chunk(json!([{"index": 0, "delta": delta, "finish_reason": finish}]), &none)
    };
    let mut events = vec![delta(json!({"role": "assistant", "content": ""}), &none)];
    events.extend((0..tokens).map(|_| delta(json!({"content": " word"}), &none)));
    events.push(delta(json!({}), &json!("stop")));
    events.push(chunk(json!([]), usage));
    events.push(Bytes::from_static(b"data: [DONE]\n\n"));
    events
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Serve until the listener fails.
///
/// # Errors
/// Those of the listener.
pub async fn serve(listener: TcpListener, script: Script) -> anyhow::Result<()> {
    let answers = Arc::new(Answers::new(script));
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        let answers = Arc::clone(&answers);
        tokio::spawn(async move {
            let service = service_fn(|request| answer(request, Arc::clone(&answers)));
            // A connection that breaks is the client's affair; the load report counts it.
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), service).await;
        });
    }
}

async fn answer(request: Request<Incoming>, answers: Arc<Answers>) -> Result<Response<Body>, Infallible> {
    let (head, body) = request.into_parts();
    if head.method == http::Method::GET {
        return Ok(respond(StatusCode::OK, "application/json", Full::new(answers.models.clone()).boxed_unsync()));
    }
    let Ok(body) = body.collect().await else {
        return Ok(respond(StatusCode::BAD_REQUEST, "application/json", Full::default().boxed_unsync()));
    };
    answers.delays.wait(Duration::from_micros(answers.script.delay_us)).await;
    if wants_stream(&body.to_bytes()) {
        let frames = paced(answers).map(|event| Ok(Frame::data(event)));
        return Ok(respond(StatusCode::OK, "text/event-stream", StreamBody::new(frames).boxed_unsync()));
    }
    Ok(respond(StatusCode::OK, "application/json", Full::new(answers.json.clone()).boxed_unsync()))
}

fn paced(answers: Arc<Answers>) -> BoxStream<'static, Bytes> {
    let gap = Duration::from_micros(answers.script.interval_us);
    stream::unfold((answers, 0), move |(answers, index)| async move {
        let event = answers.events.get(index)?.clone();
        if index > 0 {
            answers.delays.wait(gap).await;
        }
        Some((event, (answers, index + 1)))
    })
    .boxed()
}

fn respond(status: StatusCode, content_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(content_type));
    response
}

/// Good enough for bodies that the generator or a proxy wrote: no JSON parser in the way of the measurement.
fn wants_stream(body: &[u8]) -> bool {
    [b"\"stream\":true".as_slice(), b"\"stream\": true"]
        .iter()
        .any(|form| body.windows(form.len()).any(|part| part == *form))
}
