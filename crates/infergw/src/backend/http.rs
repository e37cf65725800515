//! The relay to an OpenAI-compatible HTTP server: the body goes up as it came, the answer comes down as it came (A2).
//!
//! `connect` keeps the connections, `scan` finds the borders of events, `watch` reads what a rule needs of them,
//! `pace` keeps the time limits, `learn` finds out what the upstream serves and whether it is well.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::Full;
use tokio::time::Instant;

use crate::api::error::ApiError;
use crate::backend::{BackendStatus, Fitness, StartError};
use crate::coalesce::flight::FlightWriter;
use crate::config::{Limits, Timeouts, Upstream};
use crate::hop_by_hop::strip_hop_by_hop;
use crate::observe::sharing::{generated_tokens, prompt_tokens};
use crate::types::{Cause, Failure, Head, Question};

mod connect;
#[cfg(any(test, feature = "fuzz"))]
pub mod foreign;
mod learn;
mod pace;
mod scan;
mod stream;
mod watch;

use connect::{Connections, Exchange, SendError};
use learn::{Health, Known};
use pace::{Expired, Pace};
use scan::Stop;
use stream::{Halt, Stream};
use watch::Watch;

/// How long an upstream may take for its usage event and `[DONE]` once every choice has its finish_reason (S4).
const AFTER_FINISH: Duration = Duration::from_secs(5);

/// How long and how much an answer's end is waited for after `[DONE]`, to keep the connection.
const TRAILING: (Duration, usize) = (Duration::from_secs(1), 64 << 10);

/// Largest error body that is read from an upstream.
const MAX_ERROR_BODY: usize = 256 << 10;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// One HTTP upstream.
#[derive(Debug)]
pub struct HttpBackend {
    inner: Arc<Inner>,
    /// Learns in the background until the backend is dropped.
    _learner: learn::Learner,
}

#[derive(Debug)]
struct Inner {
    /// Host and port, for logs; clients never see it (S3).
    authority: String,
    host: HeaderValue,
    /// What stands before the endpoint's path.
    base: String,
    key: Option<HeaderValue>,
    connections: Connections,
    known: Known,
    limits: Limits,
    timeouts: Timeouts,
    in_flight: AtomicUsize,
}

impl HttpBackend {
    /// Take an upstream into service. Returns at once; what it serves is learned in the background.
    ///
    /// # Errors
    /// An address that is no `http://host:port`, or a key that cannot stand in a header.
    pub fn start(upstream: &Upstream, timeouts: &Timeouts, limits: &Limits) -> Result<Self, StartError> {
        let (authority, base) = parse_url(&upstream.url)?;
        let wrong_key = |_| StartError(format!("the key of upstream {authority} has bytes that no header can carry"));
        let key = upstream.key.as_ref().map(|key| HeaderValue::try_from(format!("Bearer {key}"))).transpose();
        let host = HeaderValue::try_from(authority.as_str())
            .map_err(|_| StartError(format!("'{}' is no address", upstream.url)))?;
        let port =
            if authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) { "" } else { ":80" };
        let inner = Arc::new(Inner {
            connections: Connections::new(format!("{authority}{port}"), timeouts.connect),
            key: key.map_err(wrong_key)?,
            host,
            base,
            known: Known::new(upstream.models.clone()),
            limits: limits.clone(),
            timeouts: timeouts.clone(),
            in_flight: AtomicUsize::new(0),
            authority,
        });
        Ok(Self { _learner: learn::start(Arc::clone(&inner)), inner })
    }

    /// Host and port, for logs and the operator.
    pub fn name(&self) -> &str {
        &self.inner.authority
    }

    /// Its address, for the operator.
    pub fn url(&self) -> String {
        format!("http://{}{}", self.inner.authority, self.inner.base)
    }

    /// Serve these models from now on, or, where there are none, those that it lists.
    pub fn serve(&self, models: Vec<String>) {
        self.inner.known.fix(models);
    }

    /// A snapshot of this upstream.
    pub fn status(&self) -> BackendStatus {
        let (ready, reason) = match self.inner.known.health() {
            Health::Ready => (true, String::new()),
            Health::Unknown => (false, format!("waiting for the first answer of {}", self.inner.authority)),
            Health::Unreachable => (false, format!("{} cannot be reached", self.inner.authority)),
            Health::Sick => (false, format!("{} does not answer", self.inner.authority)),
        };
        let models = self.inner.known.models();
        BackendStatus { ready, reason, models, in_flight: self.inner.in_flight.load(Ordering::Relaxed) }
    }

    /// How it stands to a request for `model`; an upstream that lists no models takes any.
    pub fn fitness(&self, model: &str) -> Fitness {
        if !self.inner.known.serves(model) {
            return Fitness::OtherModel;
        }
        match self.inner.known.health() {
            Health::Ready | Health::Unknown => Fitness::Ready,
            Health::Unreachable => Fitness::LastResort,
            Health::Sick => Fitness::Down,
        }
    }

    /// The name of `model` as it is listed; `None` if it is not.
    pub fn label(&self, model: &str) -> Option<Arc<str>> {
        self.inner.known.label(model)
    }

    /// Relay `question`.
    ///
    /// # Errors
    /// See [`crate::backend::Backend::run`].
    pub async fn run(&self, question: &Question, writer: &mut FlightWriter) -> Result<(), Failure> {
        let inner = &self.inner;
        let _running = Running::enter(&inner.in_flight);
        let result = inner.relay(question, writer).await;
        inner.known.note(&result);
        if let Err(failure) = &result {
            tracing::info!(upstream = %inner.authority, cause = ?failure.cause, status = failure.error.status.as_u16(),
                request_id = %question.request_id, "the upstream failed a request");
        }
        result
    }
}

/// A request that runs; dropping it ends the count (D2).
struct Running<'a>(&'a AtomicUsize);

impl<'a> Running<'a> {
    fn enter(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Inner {
    async fn relay(self: &Arc<Self>, question: &Question, writer: &mut FlightWriter) -> Result<(), Failure> {
        let mut pace = Pace::new(self.timeouts.total);
        if question.stream {
            pace.step(self.timeouts.head + self.timeouts.connect, "timeouts.head");
        }
        let sent = self.connections.send(|| self.request(question));
        let exchange = pace.within(sent).await.map_err(|expired| timed_out(&expired))?.map_err(|e| self.unsent(&e))?;
        let status = exchange.head.status;
        if !status.is_success() {
            return Err(self.refused(exchange, pace).await);
        }
        let head = Head { status, headers: answer_headers(&exchange.head.headers) };
        // A stream that nobody asked for is collected like any other answer.
        if question.stream && head.is_event_stream() {
            self.stream(exchange, pace, head, (question, writer)).await
        } else {
            self.whole(exchange, pace, head, writer).await
        }
    }

    /// The request as it goes up: the client's body and end-to-end headers, this upstream's address and key.
    fn request(&self, question: &Question) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(question.body.clone()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.uri(question.endpoint.path());
        let headers = request.headers_mut();
        headers.clone_from(&question.headers);
        headers.insert(HOST, self.host.clone());
        // Events inside a compressed body cannot be seen.
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if let Some(key) = &self.key {
            headers.remove("x-api-key");
            headers.insert(AUTHORIZATION, key.clone());
        }
        if let Ok(id) = HeaderValue::try_from(&*question.request_id) {
            headers.insert(REQUEST_ID, id);
        }
        request
    }

    fn uri(&self, path: &'static str) -> Uri {
        if self.base.is_empty() {
            return Uri::from_static(path);
        }
        // The base was checked when the upstream was taken into service.
        Uri::try_from(format!("{}{path}", self.base)).unwrap_or_default()
    }

    fn unsent(&self, error: &SendError) -> Failure {
        tracing::debug!(upstream = %self.authority, %error, "no response head");
        match error {
            SendError::ConnectTimeout(_) => {
                // Nothing was sent: another backend may be tried (R4).
                let error = ApiError::timeout("The backend could not be connected in time.", "timeouts.connect");
                Failure::new(Cause::Unreachable, error)
            }
            SendError::Connect(_) => {
                Failure::new(Cause::Unreachable, ApiError::bad_gateway("The backend could not be reached."))
            }
            SendError::Broken(_) => {
                Failure::new(Cause::Backend, ApiError::bad_gateway("The backend closed the connection unanswered."))
            }
        }
    }

    /// An answer with an error status: its body passes where it has the shape of our errors.
    async fn refused(&self, mut exchange: Exchange, mut pace: Pace) -> Failure {
        let status = exchange.head.status;
        let cause = match status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => Cause::Busy,
            status if status.is_client_error() => Cause::Refused,
            _ => Cause::Backend,
        };
        if !status.is_client_error() && !status.is_server_error() {
            let message = format!("The backend answered with status {}.", status.as_u16());
            return Failure::new(Cause::Backend, ApiError::bad_gateway(&message));
        }
        let mut headers = answer_headers(&exchange.head.headers);
        pace.step(self.timeouts.idle, "timeouts.idle");
        let body = match pace.within(collect(&mut exchange, MAX_ERROR_BODY)).await {
            Ok(Ok(body)) => {
                self.connections.recycle(exchange);
                body
            }
            _ => Bytes::new(),
        };
        headers.remove(CONTENT_TYPE);
        headers.remove(CONTENT_ENCODING);
        Failure::new(cause, ApiError::upstream(status, headers, body))
    }

    /// An answer in one piece.
    async fn whole(
        &self,
        mut exchange: Exchange,
        mut pace: Pace,
        head: Head,
        writer: &mut FlightWriter,
    ) -> Result<(), Failure> {
        let limit = self.limits.max_answer;
        let announced = exchange.exact_length();
        if announced.is_some_and(|length| length > limit as u64) {
            return Err(too_large("limits.max_answer"));
        }
        pace.wait();
        let collected = pace.within(collect(&mut exchange, limit)).await.map_err(|expired| timed_out(&expired))?;
        let body = collected.map_err(|incomplete| match incomplete {
            Incomplete::Broken => truncated(),
            Incomplete::TooLarge => too_large("limits.max_answer"),
        })?;
        let closed_ended = announced.is_none() && !exchange.head.headers.contains_key(http::header::TRANSFER_ENCODING);
        if closed_ended && serde_json::from_slice::<serde::de::IgnoredAny>(&body).is_err() {
            // Only the closing of the connection ends this body: half a JSON text is a truncated one.
            return Err(truncated());
        }
        writer.head(head);
        writer.content();
        if let Some(spent) = writer.spent() {
            prompt_tokens(&body).into_iter().for_each(|tokens| spent.set_prompt(tokens));
            spent.set_generated(generated_tokens(&body).unwrap_or(0));
        }
        // With no subscriber left there is nobody to answer.
        let _ = writer.push(body).await;
        self.connections.recycle(exchange);
        Ok(())
    }

    /// An answer as a stream of events.
    async fn stream(
        self: &Arc<Self>,
        exchange: Exchange,
        mut pace: Pace,
        head: Head,
        (question, writer): (&Question, &mut FlightWriter),
    ) -> Result<(), Failure> {
        if head.headers.get(CONTENT_ENCODING).is_some_and(|coding| coding != "identity") {
            let error = ApiError::bad_gateway("The backend compressed its event stream although it was asked not to.");
            return Err(Failure::new(Cause::Backend, error));
        }
        writer.head(head);
        let mut stream = Stream::new(exchange, self.limits.max_event, question.choices, question.endpoint.end());
        let opened = Instant::now();
        loop {
            self.next_step(&mut pace, stream.watch(), opened);
            let waited = pace.within(poll_fn(|cx| stream.poll_arrived(cx))).await;
            if let Err(expired) = waited {
                // What has every finish_reason is whole, however it ends (S4).
                return if stream.watch().complete() {
                    done(stream.watch(), writer).await
                } else {
                    Err(timed_out(&expired))
                };
            }
            if stream.watch().has_content() {
                writer.content();
                writer.tokens(stream.watch().tokens());
                writer.said(stream.watch().said());
                if let (Some(spent), Some(prompt)) = (writer.spent(), stream.watch().prompt_tokens()) {
                    spent.set_prompt(prompt);
                }
            }
            if stream.watch().failed() {
                writer.failed(Cause::Backend);
            }
            if stream.has_events() {
                pace.wait();
                let pushing = writer.push_all(stream.events());
                if pace.within(pushing).await.map_err(|expired| timed_out(&expired))?.is_err() {
                    return Ok(());
                }
            }
            match stream.halt() {
                None => {}
                Some(Halt::Scan(Stop::Last)) => {
                    self.keep(stream.into_exchange());
                    return Ok(());
                }
                Some(Halt::Scan(Stop::Held)) => return Err(held(stream.watch_mut())),
                Some(Halt::Scan(Stop::TooLarge)) => return Err(too_large("limits.max_event")),
                Some(Halt::End) => return end_of_stream(stream, writer).await,
                Some(Halt::Broken) if stream.watch().complete() => return done(stream.watch(), writer).await,
                Some(Halt::Broken) => return Err(truncated()),
            }
        }
    }

    /// How long the next piece of a stream may take that was opened at `opened`.
    fn next_step(&self, pace: &mut Pace, watch: &Watch, opened: Instant) {
        if watch.complete() {
            pace.step(AFTER_FINISH, "timeouts.idle");
        } else if watch.begun() {
            pace.step(self.timeouts.idle, "timeouts.idle");
        } else {
            // Comments do not move this one: only an event ends the wait for the first event.
            pace.step_since(opened, self.timeouts.first_event, "timeouts.first_event");
        }
    }

    /// Keep the connection of a stream that has come to `[DONE]`, if its proper end follows soon.
    fn keep(self: &Arc<Self>, mut exchange: Exchange) {
        if exchange.is_finished() {
            return self.connections.recycle(exchange);
        }
        let inner = Arc::clone(self);
        tokio::spawn(async move {
            let rest = tokio::time::timeout(TRAILING.0, collect(&mut exchange, TRAILING.1)).await;
            if matches!(rest, Ok(Ok(_))) {
                inner.connections.recycle(exchange);
            }
        });
    }
}

async fn done(watch: &Watch, writer: &mut FlightWriter) -> Result<(), Failure> {
    if let Some(terminator) = watch.terminator() {
        let _ = writer.push(terminator).await;
    }
    Ok(())
}

/// The upstream has ended its answer without `[DONE]`.
async fn end_of_stream(mut stream: Stream, writer: &mut FlightWriter) -> Result<(), Failure> {
    let rest = stream.take_rest();
    let watch = stream.watch_mut();
    if !rest.is_empty() {
        // The last event may lack its blank line. It is taken if its data is whole.
        let mut event = rest.to_vec();
        event.extend_from_slice(b"\n\n");
        match watch.see_rest(&event) {
            Some(scan::Verdict::Hold) => return Err(held(watch)),
            Some(scan::Verdict::Last) => return done(watch, writer).await,
            Some(scan::Verdict::Pass) => {
                let _ = writer.push(event.into()).await;
            }
            None => {}
        }
    }
    if watch.complete() { done(watch, writer).await } else { Err(truncated()) }
}

/// An event was held back: an error of the upstream's, or `[DONE]` without any finish_reason.
fn held(watch: &mut Watch) -> Failure {
    match watch.take_error() {
        Some(data) => Failure::new(Cause::Backend, ApiError::upstream_event(data)),
        None => truncated(),
    }
}

fn truncated() -> Failure {
    let message = "The backend broke off before the end of its answer.";
    Failure::new(Cause::Truncated, ApiError::bad_gateway(message))
}

fn too_large(limit: &str) -> Failure {
    let message = format!("The backend's answer is larger than {limit} allows.");
    Failure::new(Cause::Cut, ApiError::bad_gateway(&message))
}

fn timed_out(expired: &Expired) -> Failure {
    let message = format!("The backend did not answer in time ({}).", expired.0);
    Failure::new(Cause::Timeout, ApiError::timeout(&message, expired.0))
}

/// Why a body could not be collected.
#[derive(Debug)]
enum Incomplete {
    Broken,
    TooLarge,
}

/// The whole body, without a copy where it comes in one piece.
async fn collect(exchange: &mut Exchange, limit: usize) -> Result<Bytes, Incomplete> {
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    while let Some(piece) = poll_fn(|cx| exchange.poll_piece(cx)).await {
        let piece = piece.map_err(|_| Incomplete::Broken)?;
        if first.len() + rest.len() + piece.len() > limit {
            return Err(Incomplete::TooLarge);
        }
        if first.is_empty() {
            first = piece;
        } else {
            rest.extend_from_slice(&piece);
        }
    }
    if rest.is_empty() {
        return Ok(first);
    }
    let mut whole = BytesMut::with_capacity(first.len() + rest.len());
    whole.extend_from_slice(&first);
    whole.extend_from_slice(&rest);
    Ok(whole.freeze())
}

/// The end-to-end headers of an upstream's answer. The length is set anew; the request's id is each caller's own.
fn answer_headers(from: &HeaderMap) -> HeaderMap {
    let mut headers = from.clone();
    strip_hop_by_hop(&mut headers, |name| name == CONTENT_LENGTH.as_str() || name == REQUEST_ID.as_str());
    headers
}

/// Host and port, and the path before `/v1`, of an upstream's address.
fn parse_url(url: &str) -> Result<(String, String), StartError> {
    let wrong = |why: &str| StartError(format!("'{url}' is no upstream address: {why}; write http://host:port"));
    let uri: Uri = url.parse().map_err(|_| wrong("it cannot be read"))?;
    match uri.scheme_str() {
        Some("http") => {}
        Some("https") => return Err(wrong("TLS to upstreams is not supported")),
        _ => return Err(wrong("it does not begin with http://")),
    }
    let authority = uri.authority().ok_or_else(|| wrong("it names no host"))?.as_str().to_owned();
    if authority.contains('@') {
        return Err(wrong("credentials belong into backends.key"));
    }
    // Endpoint paths begin with /v1 themselves.
    let base = uri.path().trim_end_matches('/');
    Ok((authority, base.strip_suffix("/v1").unwrap_or(base).to_owned()))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn an_upstream_is_written_with_or_without_its_v1() {
        let parsed = |url| parse_url(url).unwrap();
        assert_eq!(parsed("http://h:1"), ("h:1".to_owned(), String::new()));
        assert_eq!(parsed("http://h:1/v1/"), ("h:1".to_owned(), String::new()));
        assert_eq!(parsed("http://h/a/v1"), ("h".to_owned(), "/a".to_owned()));
        for wrong in ["h:1", "https://h", "http://u:p@h", "tcp://h:1", ""] {
            parse_url(wrong).unwrap_err();
        }
    }
}
