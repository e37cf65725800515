//! Connections to one HTTP upstream, kept for reuse.
//!
//! Written here, not `hyper-util`'s pooled client, because of R5: a reset on a *reused* connection is tried once more on a
//! fresh one, and only there. That client does not say whether the connection of a failed request was a reused one.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The sending half of a connection.
pub type Sender = SendRequest<Full<Bytes>>;

/// Idle connections that are kept; more than this many at once are closed after use.
const MAX_IDLE: usize = 512;

/// One upstream's address and its idle connections.
#[derive(Debug)]
pub struct Connections {
    /// Host and port, as `TcpStream` resolves them.
    address: String,
    connect_timeout: Duration,
    idle: Mutex<Vec<Sender>>,
}

/// Why a request got no response head.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No connection within the time limit.
    #[error("no connection within {0:?}")]
    Timeout(Duration),
    /// The connection was refused, or could not be made.
    #[error("cannot connect: {0}")]
    Connect(#[from] std::io::Error),
    /// The connection broke before a response head came.
    #[error("the connection broke: {0}")]
    Broken(#[from] hyper::Error),
}

impl Connections {
    /// No connection yet. `address` is host and port.
    pub fn new(address: String, connect_timeout: Duration) -> Self {
        Self { address, connect_timeout, idle: Mutex::default() }
    }

    /// Send a request and wait for the response's head. The connection comes back with the response: give it to
    /// [`recycle`](Self::recycle) when the body has been read to its end, or drop it, which closes it.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn send(&self, request: Request<Full<Bytes>>) -> Result<(Response<Incoming>, Sender), ConnectError> {
        // The upstream may have closed an idle connection that this side still thinks open: then once more, on a fresh one.
        if let Some(mut sender) = self.reusable()
            && let Ok(response) = sender.send_request(copy_of(&request)).await
        {
            return Ok((response, sender));
        }
        let mut sender = self.connect().await?;
        let response = sender.send_request(request).await?;
        Ok((response, sender))
    }

    /// Keep a connection whose response has been read to its end.
    pub fn recycle(&self, sender: Sender) {
        let mut idle = self.lock();
        if !sender.is_closed() && idle.len() < MAX_IDLE {
            idle.push(sender);
        }
    }

    fn reusable(&self) -> Option<Sender> {
        let mut idle = self.lock();
        // The last one used first: it is the least likely to have been closed.
        while let Some(sender) = idle.pop() {
            if sender.is_ready() {
                return Some(sender);
            }
        }
        None
    }

    async fn connect(&self) -> Result<Sender, ConnectError> {
        let connecting = TcpStream::connect(&self.address);
        let stream = match timeout(self.connect_timeout, connecting).await {
            Ok(stream) => stream?,
            Err(_) => return Err(ConnectError::Timeout(self.connect_timeout)),
        };
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // Ends when the sender is dropped, or the upstream closes.
        tokio::spawn(async move {
            let _ = connection.await;
        });
        Ok(sender)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Sender>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn copy_of(request: &Request<Full<Bytes>>) -> Request<Full<Bytes>> {
    let mut copy = Request::new(request.body().clone());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    copy
}
