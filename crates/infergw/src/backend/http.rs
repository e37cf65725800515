//! The relay to an OpenAI-compatible HTTP server: the body goes up as it came, the answer comes down as it came (A2).
//!
//! It looks into the answer only where a rule needs it: event borders (S1), the end (S4), a missing end (S3), an error.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use tokio::time::{Instant, timeout};

use crate::api::error::ApiError;
use crate::backend::{BackendStatus, StartError};
use crate::coalesce::flight::FlightWriter;
use crate::config::{Limits, Timeouts, Upstream};
use crate::hop_by_hop::strip_hop_by_hop;
use crate::types::{Cause, DONE, Failure, Head, Question};

pub mod connect;
pub mod models;
pub mod scan;

use connect::{ConnectError, Connections, Sender};
use models::LearnedModels;
use scan::{Scanner, meaning};

/// Largest error body of an upstream that is passed on.
const MAX_ERROR_BODY: usize = 1 << 20;
/// How long a finished stream's connection may take to end its body before it is closed instead of reused.
const REUSE_WAIT: Duration = Duration::from_millis(200);

/// One HTTP upstream.
#[derive(Debug)]
pub struct HttpBackend {
    /// `host:port` as in the configuration; never shown to clients (S3).
    authority: HeaderValue,
    /// Path in front of `/v1`, usually empty.
    base_path: String,
    key: Option<HeaderValue>,
    connections: Arc<Connections>,
    models: Arc<LearnedModels>,
    in_flight: AtomicUsize,
    timeouts: Timeouts,
    limits: Limits,
}

impl HttpBackend {
    /// Check the address and start to learn the upstream's models where the configuration names none.
    ///
    /// # Errors
    /// An address that is not `http://host[:port][/path]`, or a key that no header can carry.
    pub fn start(upstream: &Upstream, timeouts: &Timeouts, limits: &Limits) -> Result<Self, StartError> {
        let place = |why: &str| StartError(format!("upstream {}: {why}", upstream.url));
        let uri: Uri = upstream.url.parse().map_err(|_| place("this is no URL; write http://host:port"))?;
        if uri.scheme_str() != Some("http") {
            return Err(place("only http:// upstreams are supported; put a TLS proxy in between for others"));
        }
        let authority = uri.authority().ok_or_else(|| place("the host is missing; write http://host:port"))?;
        let address = format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(80));
        let key = upstream.key.as_ref().map(|key| HeaderValue::try_from(format!("Bearer {key}")));
        let mut key = key.transpose().map_err(|_| place("its key has characters that a header cannot carry"))?;
        if let Some(key) = &mut key {
            key.set_sensitive(true);
        }
        let connections = Arc::new(Connections::new(address, timeouts.connect));
        let authority = HeaderValue::try_from(authority.as_str()).map_err(|_| place("this host is no header value"))?;
        // `http://host/v1` is what clients of the API are used to write.
        let base_path = uri.path().trim_end_matches('/').trim_end_matches("/v1").to_owned();
        let request = models::request(&base_path, &authority, key.as_ref()).map_err(|e| place(&e.to_string()))?;
        let models = LearnedModels::start(upstream.models.clone(), Arc::clone(&connections), request);
        let (timeouts, limits) = (timeouts.clone(), limits.clone());
        Ok(Self { authority, base_path, key, connections, models, in_flight: AtomicUsize::new(0), timeouts, limits })
    }

    /// A snapshot of this upstream.
    pub fn status(&self) -> BackendStatus {
        let (ready, reason, models) = self.models.snapshot();
        BackendStatus { ready, reason, models, in_flight: self.in_flight.load(Ordering::Relaxed) }
    }

    /// Whether it takes requests for any model: nothing is configured and nothing learned yet.
    pub fn takes_any_model(&self) -> bool {
        self.models.unknown()
    }

    /// Relay `question`.
    ///
    /// # Errors
    /// See [`crate::backend::Backend::run`].
    pub async fn run(&self, question: &Question, writer: &mut FlightWriter) -> Result<(), Failure> {
        let _running = Running::start(&self.in_flight);
        let total = self.timeouts.total;
        within(total, "total", self.relay(question, writer)).await?
    }

    async fn relay(&self, question: &Question, writer: &mut FlightWriter) -> Result<(), Failure> {
        let request = self.request(question)?;
        let sending = self.connections.send(request);
        // A whole answer may take as long as the generation: only a stream's head comes early.
        let limit = if question.stream { self.timeouts.head } else { Duration::ZERO };
        let (response, sender) = within(limit, "head", sending).await?.map_err(unreachable)?;
        let status = response.status();
        if !status.is_success() {
            return Err(self.refused(response).await);
        }
        let answer = Answer { sender, connections: Arc::clone(&self.connections) };
        if is_event_stream(response.headers()) {
            self.stream(question, response, answer, writer).await
        } else {
            self.whole(response, answer, writer).await
        }
    }

    fn request(&self, question: &Question) -> Result<Request<Full<Bytes>>, Failure> {
        let internal =
            || Failure::new(Cause::Backend, ApiError::internal("The request cannot be written for the backend."));
        let path = format!("{}{}", self.base_path, question.endpoint.path());
        let mut request = Request::new(Full::new(question.body.clone()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = path.parse().map_err(|_| internal())?;
        let headers = request.headers_mut();
        *headers = question.headers.clone();
        headers.insert(HOST, self.authority.clone());
        headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
        headers.entry(ACCEPT).or_insert(HeaderValue::from_static("*/*"));
        if let Some(key) = &self.key {
            headers.insert(AUTHORIZATION, key.clone());
        }
        if let Ok(id) = HeaderValue::try_from(question.request_id.as_ref()) {
            headers.insert("x-request-id", id);
        }
        Ok(request)
    }

    async fn refused(&self, response: Response<Incoming>) -> Failure {
        let status = response.status();
        let cause = match status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => Cause::Busy,
            status if status.is_client_error() => Cause::Refused,
            _ => Cause::Backend,
        };
        // A redirect, or what is no HTTP answer to a POST, says nothing to a client.
        let status =
            if status.is_client_error() || status.is_server_error() { status } else { StatusCode::BAD_GATEWAY };
        let mut headers = HeaderMap::new();
        if let Some(value) = response.headers().get(http::header::RETRY_AFTER) {
            headers.insert(http::header::RETRY_AFTER, value.clone());
        }
        let mut body = response.into_body();
        let reading = collect(&mut body, MAX_ERROR_BODY);
        let body = match within(self.timeouts.idle, "idle", reading).await {
            Ok(Ok(body)) => body,
            _ => Bytes::new(),
        };
        Failure::new(cause, ApiError::upstream(status, headers, body))
    }

    /// A JSON answer: collected whole, so that a broken one is a 502 and not half a body (S3).
    async fn whole(
        &self,
        response: Response<Incoming>,
        answer: Answer,
        writer: &mut FlightWriter,
    ) -> Result<(), Failure> {
        let (parts, mut body) = response.into_parts();
        let framed = parts.headers.contains_key(CONTENT_LENGTH) || parts.headers.contains_key(TRANSFER_ENCODING);
        let bytes = match collect(&mut body, self.limits.max_answer).await {
            Ok(bytes) => bytes,
            Err(Collect::TooLarge) => {
                let message = "The backend's answer is larger than the limit (limits.max_answer).";
                return Err(Failure::new(Cause::Backend, ApiError::bad_gateway(message)));
            }
            Err(Collect::Broken) => return Err(truncated()),
        };
        let plain = !parts.headers.contains_key(CONTENT_ENCODING);
        if !framed && plain && serde_json::from_slice::<serde::de::IgnoredAny>(&bytes).is_err() {
            // Only the end of the connection ended it: half a JSON text is a cut one.
            return Err(truncated());
        }
        answer.recycle();
        let mut headers = end_to_end(parts.headers);
        headers.insert(CONTENT_LENGTH, HeaderValue::from(bytes.len()));
        writer.head(Head { status: parts.status, headers });
        writer.content();
        let _ = writer.push(bytes).await;
        Ok(())
    }

    async fn stream(
        &self,
        question: &Question,
        response: Response<Incoming>,
        answer: Answer,
        writer: &mut FlightWriter,
    ) -> Result<(), Failure> {
        let (parts, mut body) = response.into_parts();
        writer.head(Head { status: parts.status, headers: end_to_end(parts.headers) });
        let mut scanner = Scanner::new(self.limits.max_event);
        let mut progress = Progress { choices: question.choices, ..Progress::default() };
        let began = Instant::now();
        while !progress.done {
            let limit =
                if progress.events == 0 { remaining(self.timeouts.first_event, began) } else { self.timeouts.idle };
            let name = if progress.events == 0 { "first_event" } else { "idle" };
            match within(limit, name, body.frame()).await? {
                Some(Ok(frame)) => {
                    let Ok(chunk) = frame.into_data() else { continue };
                    let frame = progress.take(&mut scanner, chunk)?;
                    if progress.content {
                        writer.content();
                    }
                    if !frame.is_empty() && writer.push(frame).await.is_err() {
                        return Ok(());
                    }
                }
                // The connection ended, in order or not: whole if it had come to its end (S3, S4).
                Some(Err(_)) | None => break,
            }
        }
        let clean = progress.done;
        progress.end(writer, scanner.rest()).await?;
        if clean {
            answer.recycle_after(body);
        }
        Ok(())
    }
}

/// What has come of a stream.
#[derive(Debug, Default)]
struct Progress {
    choices: usize,
    finished: usize,
    events: usize,
    content: bool,
    done: bool,
    error: bool,
}

impl Progress {
    /// The whole events that `chunk` completes, as one frame.
    fn take(&mut self, scanner: &mut Scanner, chunk: Bytes) -> Result<Bytes, Failure> {
        let mut frame = Run::default();
        let scanned = scanner.push(chunk, |event| {
            if self.done {
                return;
            }
            let meaning = meaning(&event);
            self.done |= meaning.done;
            self.finished += meaning.finished;
            self.error |= meaning.error;
            self.content |= meaning.content;
            self.events += usize::from(meaning.data);
            // What follows `[DONE]` is dropped; it is sent once, at the end (S4).
            if !meaning.done {
                frame.add(event);
            }
        });
        match scanned {
            Ok(()) => Ok(frame.take()),
            Err(error) => Err(Failure::new(Cause::Backend, ApiError::bad_gateway(&error.to_string()))),
        }
    }

    /// The stream's end: `[DONE]` after a whole answer, a failure after a cut one (S3 to S5).
    async fn end(&self, writer: &mut FlightWriter, rest: &[u8]) -> Result<(), Failure> {
        if self.error {
            // The client has the backend's own error event already.
            writer.failed(Cause::Backend);
        } else if !self.done && self.finished < self.choices.max(1) {
            return Err(truncated());
        } else if !rest.is_empty() && !self.done {
            // A last event without its blank line: an SSE client would not see it, whole or not.
            tracing::debug!(bytes = rest.len(), "the backend's stream ends inside an event");
        }
        let _ = writer.push(DONE).await;
        Ok(())
    }
}

/// Neighbouring events as one frame: slices of one chunk are joined again without a copy.
#[derive(Debug, Default)]
struct Run {
    first: Bytes,
    more: Option<BytesMut>,
}

impl Run {
    fn add(&mut self, event: Bytes) {
        if self.first.is_empty() {
            self.first = event;
        } else {
            self.more.get_or_insert_with(|| BytesMut::from(self.first.as_ref())).extend_from_slice(&event);
        }
    }

    fn take(self) -> Bytes {
        self.more.map_or(self.first, BytesMut::freeze)
    }
}

/// The connection under an answer.
struct Answer {
    sender: Sender,
    connections: Arc<Connections>,
}

impl Answer {
    fn recycle(self) {
        self.connections.recycle(self.sender);
    }

    /// A stream that has said `[DONE]` is over for the client; its connection can be used again if its body ends soon.
    fn recycle_after(self, mut body: Incoming) {
        tokio::spawn(async move {
            let ended = timeout(REUSE_WAIT, async { while let Some(Ok(_)) = body.frame().await {} }).await;
            if ended.is_ok() {
                self.recycle();
            }
        });
    }
}

/// Counts a request for as long as it lives (D2).
struct Running<'a>(&'a AtomicUsize);

impl<'a> Running<'a> {
    fn start(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

enum Collect {
    TooLarge,
    Broken,
}

async fn collect(body: &mut Incoming, limit: usize) -> Result<Bytes, Collect> {
    let mut run = Run::default();
    let mut size = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Collect::Broken)?;
        if let Ok(data) = frame.into_data() {
            size += data.len();
            if size > limit {
                return Err(Collect::TooLarge);
            }
            run.add(data);
        }
    }
    Ok(run.take())
}

/// Run a step within its time limit; zero is none. The error names the limit's key.
async fn within<T>(limit: Duration, name: &str, step: impl Future<Output = T>) -> Result<T, Failure> {
    if limit.is_zero() {
        return Ok(step.await);
    }
    timeout(limit, step).await.map_err(|_| {
        let message = format!("The backend took longer than {} ({name}).", crate::config::duration::show(limit));
        Failure::new(Cause::Timeout, ApiError::timeout(&message, &format!("{name}_timeout")))
    })
}

/// What is left of a limit; at least a moment, because zero means none.
fn remaining(limit: Duration, began: Instant) -> Duration {
    if limit.is_zero() { limit } else { limit.saturating_sub(began.elapsed()).max(Duration::from_millis(1)) }
}

fn unreachable(error: ConnectError) -> Failure {
    tracing::debug!(%error, "no answer from the backend");
    match error {
        ConnectError::Timeout(_) => Failure::new(
            Cause::Unreachable,
            ApiError::timeout("No connection to the backend in time.", "connect_timeout"),
        ),
        ConnectError::Connect(_) => {
            Failure::new(Cause::Unreachable, ApiError::bad_gateway("The backend cannot be reached."))
        }
        ConnectError::Broken(_) => Failure::new(
            Cause::Unreachable,
            ApiError::bad_gateway("The backend closed the connection without an answer."),
        ),
    }
}

fn truncated() -> Failure {
    Failure::new(Cause::Truncated, ApiError::bad_gateway("The backend broke off in the middle of its answer."))
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    let stream = |value: &HeaderValue| value.as_bytes().to_ascii_lowercase().starts_with(b"text/event-stream");
    headers.get(CONTENT_TYPE).is_some_and(stream) && !headers.contains_key(CONTENT_ENCODING)
}

/// The upstream's headers that go to the client (S9).
fn end_to_end(mut headers: HeaderMap) -> HeaderMap {
    strip_hop_by_hop(&mut headers);
    headers.remove(CONTENT_LENGTH);
    for name in ["server", "date", "x-request-id"] {
        headers.remove(name);
    }
    headers
}
