//! Connections to one HTTP upstream, kept for reuse.
//!
//! Not `hyper-util`'s pooled client, for two reasons. It does not say whether a failed request went over a *reused*
//! connection, which decides whether it may be sent once more (R5). And it drives each connection in a task of its own:
//! here the connection is driven by whoever waits for its answer, so that an event passes one task less, and dropping the
//! request closes the socket at once (D1).

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder, Connection, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use crate::workers;

/// Lists of idle connections: workers whose numbers are this far apart share one.
const LISTS: usize = 16;

/// Idle connections that a list keeps; more than this many are closed after use.
const MAX_IDLE: usize = 1024;

/// An idle connection is closed after this time. Shorter than common servers' keep-alive is better: they close first
/// otherwise, and a request may be on its way.
const MAX_IDLE_TIME: Duration = Duration::from_secs(55);

/// One upstream's address and its idle connections.
#[derive(Debug)]
pub(super) struct Connections {
    /// Host and port, as `TcpStream` resolves them.
    address: String,
    connect_timeout: Duration,
    /// One list for each worker: a connection stays with the runtime that it is registered with.
    idle: [Mutex<Vec<Idle>>; LISTS],
}

#[derive(Debug)]
struct Idle {
    link: Box<Link>,
    since: Instant,
}

/// Why no response head came.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    /// No connection within the time limit.
    #[error("no connection within {0:?}")]
    ConnectTimeout(Duration),
    /// The connection was refused, or could not be made.
    #[error("cannot connect: {0}")]
    Connect(#[source] io::Error),
    /// The connection broke before a response head came.
    #[error("no answer: {0}")]
    Broken(#[source] hyper::Error),
}

impl Connections {
    /// No connection yet. `address` is host and port; a `connect_timeout` of zero is no limit.
    pub(super) fn new(address: String, connect_timeout: Duration) -> Self {
        Self { address, connect_timeout, idle: Default::default() }
    }

    /// Send the request that `request` builds and wait for the response's head. It is built a second time when a reused
    /// connection turns out to be dead before a byte of the response came (R5).
    ///
    /// # Errors
    /// See [`SendError`].
    pub(super) async fn send(&self, request: impl Fn() -> Request<Full<Bytes>>) -> Result<Exchange, SendError> {
        if let Some(mut link) = self.reusable() {
            match link.send(request()).await {
                Ok(response) => return Ok(Exchange::new(link, response)),
                Err(error) if link.heard() => return Err(SendError::Broken(error)),
                Err(_) => {}
            }
        }
        let mut link = self.connect().await?;
        let response = link.send(request()).await.map_err(SendError::Broken)?;
        Ok(Exchange::new(link, response))
    }

    /// Keep the connection of an exchange whose body has been read to its end; close it otherwise.
    pub(super) fn recycle(&self, exchange: Exchange) {
        let Exchange { mut link, body, .. } = exchange;
        drop(body);
        if !link.poll_idle() {
            return;
        }
        let mut idle = self.own();
        if idle.len() < MAX_IDLE {
            idle.push(Idle { link, since: Instant::now() });
        }
    }

    /// Close what the upstream has closed, and what has been idle for long.
    pub(super) fn sweep(&self) {
        for list in &self.idle {
            lock(list).retain_mut(|idle| idle.since.elapsed() < MAX_IDLE_TIME && idle.link.poll_idle());
        }
    }

    fn reusable(&self) -> Option<Box<Link>> {
        loop {
            // The last one used first: it is the least likely to have been closed. One a turn, so that the lock is
            // not held while a connection is looked at or closed.
            let mut found = self.own().pop()?;
            if found.since.elapsed() < MAX_IDLE_TIME && found.link.poll_idle() {
                return Some(found.link);
            }
        }
    }

    async fn connect(&self) -> Result<Box<Link>, SendError> {
        let connecting = TcpStream::connect(&self.address);
        let stream = if self.connect_timeout.is_zero() {
            connecting.await
        } else {
            timeout(self.connect_timeout, connecting)
                .await
                .map_err(|_| SendError::ConnectTimeout(self.connect_timeout))?
        };
        let stream = stream.and_then(|stream| stream.set_nodelay(true).map(|()| stream)).map_err(SendError::Connect)?;
        let heard = Arc::new(AtomicBool::new(false));
        let io = TokioIo::new(Socket { stream, heard: Arc::clone(&heard) });
        let (sender, driver) = Builder::new().handshake(io).await.map_err(SendError::Broken)?;
        Ok(Box::new(Link { sender, driver, closed: false, heard }))
    }

    /// The idle connections of this worker.
    fn own(&self) -> MutexGuard<'_, Vec<Idle>> {
        // The last one is for threads that are no workers: those of an embedding runtime, and of the probes.
        let [lists @ .., other] = &self.idle;
        lock(workers::current().and_then(|worker| lists.get(worker % lists.len())).unwrap_or(other))
    }
}

fn lock(list: &Mutex<Vec<Idle>>) -> MutexGuard<'_, Vec<Idle>> {
    list.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection together with what drives it. Boxed everywhere: it changes hands several times in a request, and is large.
#[derive(Debug)]
struct Link {
    sender: SendRequest<Full<Bytes>>,
    driver: Connection<TokioIo<Socket>, Full<Bytes>>,
    closed: bool,
    /// Whether a byte has come since the last request was sent.
    heard: Arc<AtomicBool>,
}

impl Link {
    async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, hyper::Error> {
        self.heard.store(false, Ordering::Relaxed);
        let sent = self.sender.send_request(request);
        let mut sent = std::pin::pin!(sent);
        let (driver, closed) = (&mut self.driver, &mut self.closed);
        poll_fn(|cx| {
            drive(driver, closed, cx);
            sent.as_mut().poll(cx)
        })
        .await
    }

    fn heard(&self) -> bool {
        self.heard.load(Ordering::Relaxed)
    }

    /// Let the connection look at its socket once; whether it can take another request.
    fn poll_idle(&mut self) -> bool {
        drive(&mut self.driver, &mut self.closed, &mut Context::from_waker(Waker::noop()));
        !self.closed && self.sender.is_ready()
    }
}

/// Move the connection on. Its own error is no news: whoever waits on it is told through the response or its body.
fn drive(driver: &mut Connection<TokioIo<Socket>, Full<Bytes>>, closed: &mut bool, cx: &mut Context<'_>) {
    if !*closed && Pin::new(driver).poll(cx).is_ready() {
        *closed = true;
    }
}

/// A request that was sent, its response's head, and the body that is still to be read. Dropping it closes the connection.
#[derive(Debug)]
pub(super) struct Exchange {
    link: Box<Link>,
    /// The head of the response.
    pub(super) head: http::response::Parts,
    body: Incoming,
}

impl Exchange {
    fn new(link: Box<Link>, response: Response<Incoming>) -> Self {
        let (head, body) = response.into_parts();
        Self { link, head, body }
    }

    /// The length of the body, where the upstream announced one.
    pub(super) fn exact_length(&self) -> Option<u64> {
        self.body.size_hint().exact()
    }

    /// Whether the whole body has been read.
    pub(super) fn is_finished(&self) -> bool {
        self.body.is_end_stream()
    }

    /// The next piece of the body; `None` at its proper end.
    ///
    /// The connection moves only while this is polled: a reader that waits slows the upstream down (M1).
    pub(super) fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, hyper::Error>>> {
        loop {
            let mut polled = Pin::new(&mut self.body).poll_frame(cx);
            if polled.is_pending() {
                drive(&mut self.link.driver, &mut self.link.closed, cx);
                polled = Pin::new(&mut self.body).poll_frame(cx);
            }
            match polled {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                // Trailers are dropped: they are hop-by-hop for us.
                Poll::Ready(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        return Poll::Ready(Some(Ok(data)));
                    }
                }
            }
        }
    }
}

/// The upstream's socket; it notes that something came.
#[derive(Debug)]
struct Socket {
    stream: TcpStream,
    heard: Arc<AtomicBool>,
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.heard.store(true, Ordering::Relaxed);
        }
        polled
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
