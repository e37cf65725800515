//! Step 1: accept connections, HTTP/1.1 and HTTP/2, within limits; and let them go when the gateway drains.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::Gateway;
use crate::drain::Phase;
use crate::reply::Reply;

/// After an accept that failed for want of file descriptors or memory (M4): no busy loop, and soon tried again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Requests that one HTTP/2 connection may have at once.
const MAX_HTTP2_STREAMS: u32 = 256;
/// After running streams were told to end: how long their last bytes may take.
const CUT_GRACE: Duration = Duration::from_secs(2);

/// Accept connections until the gateway refuses new ones, then wait until those that are open have ended.
pub async fn serve<A, F>(gateway: Arc<Gateway>, listener: TcpListener, answer: A)
where
    A: Fn(Arc<Gateway>, Request<Incoming>) -> F + Copy + Send + Sync + 'static,
    F: Future<Output = Response<Reply>> + Send + 'static,
{
    let slots = Arc::new(Semaphore::new(gateway.config.limits.max_connections.max(1)));
    let mut connections = JoinSet::new();
    let refusing = gateway.drain.reached(Phase::Refusing);
    tokio::pin!(refusing);
    loop {
        tokio::select! {
            accepted = accept(&listener, &slots) => match accepted {
                Ok((stream, slot)) => {
                    connections.spawn(connection(Arc::clone(&gateway), stream, slot, answer));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
            () = &mut refusing => break,
        }
    }
    // Whoever connects from now on is refused by the kernel: a load balancer takes another instance.
    drop(listener);
    let all = async { while connections.join_next().await.is_some() {} };
    let cut = async {
        gateway.drain.reached(Phase::Cutting).await;
        sleep(CUT_GRACE).await;
    };
    tokio::select! {
        () = all => {}
        () = cut => {}
    }
}

async fn accept(listener: &TcpListener, slots: &Arc<Semaphore>) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
    // Over the limit, clients wait in the kernel's queue.
    let slot = Arc::clone(slots).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok((stream, slot))
}

async fn connection<A, F>(gateway: Arc<Gateway>, stream: TcpStream, slot: OwnedSemaphorePermit, answer: A)
where
    A: Fn(Arc<Gateway>, Request<Incoming>) -> F + Copy + Send + Sync + 'static,
    F: Future<Output = Response<Reply>> + Send + 'static,
{
    let _slot = slot;
    let config = &gateway.config;
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(config.timeouts.request_head)
        .max_buf_size(config.limits.max_head.max(8192));
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(u32::try_from(config.limits.max_head).unwrap_or(u32::MAX))
        .max_concurrent_streams(MAX_HTTP2_STREAMS)
        .keep_alive_interval(Duration::from_secs(20));
    let service = service_fn(|request| {
        let answering = answer(Arc::clone(&gateway), request);
        async move { Ok::<_, Infallible>(answering.await) }
    });
    let serving = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(serving);
    let refusing = gateway.drain.reached(Phase::Refusing);
    tokio::pin!(refusing);
    let mut told = false;
    loop {
        tokio::select! {
            // Errors are the client's: a reset, a head that is no HTTP, a slow head. Requests have their own record.
            ended = serving.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(error = %error, "a connection ended with an error");
                }
                return;
            }
            () = &mut refusing, if !told => {
                told = true;
                serving.as_mut().graceful_shutdown();
            }
        }
    }
}
