//! Step 1: accept connections, HTTP/1.1 and HTTP/2, within limits; and let them go when the gateway drains.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::Gateway;
use crate::drain::{Drain, Phase as Stage};
use crate::observe::Record;
use crate::reply::Reply;

mod socket;

use crate::workers::Seat;
use socket::{ClientSocket, Phase, PhaseCell, Protocol};

/// After an accept that failed for want of file descriptors or memory (M4): no busy loop, and soon tried again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Requests that one HTTP/2 connection may have at once.
const MAX_HTTP2_STREAMS: u32 = 256;

/// How often a silent HTTP/2 connection is asked whether it lives, and how long it may take to answer.
const PING: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(20));

/// After running streams were told to end: how long their last bytes may take.
const CUT_GRACE: Duration = Duration::from_secs(2);

/// The least that hyper takes for its buffer.
const MIN_BUFFER: usize = 8192;

/// Accept connections until the gateway refuses new requests, then wait until those that are open have ended.
///
/// Until then new connections are still taken, for one request each: it is told 503, and when to come again (R7).
pub async fn serve<A, F>(gateway: Arc<Gateway>, listener: TcpListener, answer: A)
where
    A: Fn(Arc<Gateway>, Request<Incoming>) -> F + Copy + Send + Sync + 'static,
    F: Future<Output = Response<Reply>> + Send + 'static,
{
    let slots = Arc::new(Semaphore::new(gateway.config.limits.max_connections.clamp(1, Semaphore::MAX_PERMITS)));
    let (mut connections, mut late) = (JoinSet::new(), JoinSet::new());
    let refusing = gateway.drain.reached(Stage::Refusing);
    let cut = async {
        gateway.drain.reached(Stage::Cutting).await;
        sleep(CUT_GRACE).await;
    };
    tokio::pin!(refusing, cut);
    let mut refuses = false;
    while !(refuses && connections.is_empty()) {
        tokio::select! {
            accepted = accept(&listener, &slots) => match accepted {
                Ok((stream, slot)) => {
                    let group = if refuses { &mut late } else { &mut connections };
                    match gateway.workers.seat() {
                        Some((runtime, seat)) => {
                            let served = connection(Arc::clone(&gateway), stream, (slot, Some(seat)), answer);
                            group.spawn_on(served, runtime);
                        }
                        None => {
                            group.spawn(connection(Arc::clone(&gateway), stream, (slot, None), answer));
                        }
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
            Some(_) = late.join_next() => {}
            () = &mut refusing, if !refuses => refuses = true,
            () = &mut cut => break,
        }
    }
}

async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> io::Result<(std::net::TcpStream, OwnedSemaphorePermit)> {
    // Over the limit, clients wait in the kernel's queue.
    let slot = Arc::clone(slots).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    stream.set_nodelay(true)?;
    // It is registered anew with the runtime that serves it.
    Ok((stream.into_std()?, slot))
}

/// Serve one connection to its end. Its errors are the client's affair: requests on it have their own records.
async fn connection<A, F>(
    gateway: Arc<Gateway>,
    stream: std::net::TcpStream,
    _held: (OwnedSemaphorePermit, Option<Seat>),
    answer: A,
) where
    A: Fn(Arc<Gateway>, Request<Incoming>) -> F + Copy + Send + Sync + 'static,
    F: Future<Output = Response<Reply>> + Send + 'static,
{
    let stream = match TcpStream::from_std(stream) {
        Ok(stream) => stream,
        Err(error) => return tracing::warn!(%error, "cannot serve a connection"),
    };
    let phase = PhaseCell::new();
    let mut socket = ClientSocket::new(stream, phase.clone(), &gateway.config.timeouts);
    let ended = match socket.protocol().await {
        Err(error) => Err(error.to_string()),
        Ok(Protocol::Http1) => http1(&gateway, socket, phase, answer).await.map_err(|error| {
            record_unreadable(&gateway, &error);
            error.to_string()
        }),
        Ok(Protocol::Http2) => {
            phase.set(Phase::Busy);
            http2(&gateway, socket, answer).await.map_err(|error| error.to_string())
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error, "a connection ended with an error");
    }
}

/// Hyper answers by itself what it cannot read as a request: that has a record as every refusal has.
fn record_unreadable(gateway: &Gateway, error: &hyper::Error) {
    if error.is_parse() {
        let too_large = error.is_parse_too_large();
        let status = if too_large { StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE } else { StatusCode::BAD_REQUEST };
        Record::start(&gateway.metrics, "other", Arc::from("-")).refused(status);
    }
}

async fn http1<A, F>(gateway: &Arc<Gateway>, socket: ClientSocket, phase: PhaseCell, answer: A) -> hyper::Result<()>
where
    A: Fn(Arc<Gateway>, Request<Incoming>) -> F,
    F: Future<Output = Response<Reply>>,
{
    let service = service_fn(|mut request: Request<Incoming>| {
        phase.set(Phase::Busy);
        if phase.take_length() && request.headers().contains_key(TRANSFER_ENCODING) {
            // Hyper took it out. Back it goes, for the rule that refuses both to see it (X2).
            request.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        }
        let (answering, phase) = (answer(Arc::clone(gateway), request), phase.clone());
        async move { Ok::<_, hyper::Error>(answering.await.map(|body| Tracked { body, phase })) }
    });
    let max_head = gateway.config.limits.max_head;
    let mut builder = http1::Builder::new();
    // A connection that comes while the gateway refuses gets its one answer.
    builder.keep_alive(!gateway.drain.refuses()).max_buf_size(max_head.max(MIN_BUFFER)).max_header_size(max_head);
    let connection = pin!(builder.serve_connection(TokioIo::new(socket), service));
    until_end(connection, &gateway.drain, http1::Connection::graceful_shutdown).await
}

async fn http2<A, F>(gateway: &Arc<Gateway>, socket: ClientSocket, answer: A) -> hyper::Result<()>
where
    A: Fn(Arc<Gateway>, Request<Incoming>) -> F,
    F: Future<Output = Response<Reply>> + Send + 'static,
{
    let service = service_fn(|request| {
        let answering = answer(Arc::clone(gateway), request);
        async move { Ok::<_, hyper::Error>(answering.await) }
    });
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(PING.0)
        .keep_alive_timeout(PING.1)
        .max_concurrent_streams(MAX_HTTP2_STREAMS)
        .max_header_list_size(u32::try_from(gateway.config.limits.max_head).unwrap_or(u32::MAX));
    let connection = pin!(builder.serve_connection(TokioIo::new(socket), service));
    until_end(connection, &gateway.drain, http2::Connection::graceful_shutdown).await
}

/// Drive a connection to its end; when the gateway refuses requests, tell it once to end after its current response.
async fn until_end<C: Future>(
    mut connection: Pin<&mut C>,
    drain: &Drain,
    shut_down: impl Fn(Pin<&mut C>),
) -> C::Output {
    let mut told = pin!(drain.reached(Stage::Refusing));
    let (mut waiting, mut registered) = (!drain.refuses(), false);
    poll_fn(|cx| {
        // The signal is polled once to leave its waker, then only when it is near: every event passes here.
        if waiting && (!registered || drain.announced()) {
            registered = true;
            if told.as_mut().poll(cx).is_ready() {
                waiting = false;
                shut_down(connection.as_mut());
            }
        }
        connection.as_mut().poll(cx)
    })
    .await
}

/// A body that says when it is over: the connection then waits for its next request.
struct Tracked<B> {
    body: B,
    phase: PhaseCell,
}

impl<B: Body + Unpin> Body for Tracked<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B> Drop for Tracked<B> {
    fn drop(&mut self) {
        self.phase.set(Phase::Idle);
    }
}
