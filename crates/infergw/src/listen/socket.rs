//! A client's socket, with the time limits that only the socket can see: a head that does not come, a connection without a
//! request, a client that does not read.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::config::Timeouts;

/// With this an HTTP/2 client begins.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What a client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

/// What a connection is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Phase {
    /// A request's head is on its way.
    Head,
    /// A request is being answered.
    Busy,
    /// Between two requests.
    Idle,
}

/// The phase of a connection; its service and its socket share it.
#[derive(Debug, Clone)]
pub(super) struct PhaseCell(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    phase: AtomicU8,
    opened: Instant,
    /// Milliseconds from `opened` to the end of the last answer.
    idle_since: AtomicU64,
    /// The head that is on its way, or has come last, has a `Content-Length`.
    length: AtomicBool,
}

impl PhaseCell {
    pub(super) fn new() -> Self {
        let phase = AtomicU8::new(Phase::Head as u8);
        let (idle_since, length) = (AtomicU64::new(0), AtomicBool::new(false));
        Self(Arc::new(Shared { phase, opened: Instant::now(), idle_since, length }))
    }

    pub(super) fn set(&self, phase: Phase) {
        if phase == Phase::Idle {
            let since = u64::try_from(self.0.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
            self.0.idle_since.store(since, Ordering::Relaxed);
        }
        self.0.phase.store(phase as u8, Ordering::Relaxed);
    }

    fn idle_since(&self) -> Instant {
        self.0.opened + Duration::from_millis(self.0.idle_since.load(Ordering::Relaxed))
    }

    fn get(&self) -> Phase {
        match self.0.phase.load(Ordering::Relaxed) {
            0 => Phase::Head,
            1 => Phase::Busy,
            _ => Phase::Idle,
        }
    }

    /// Whether the head that has just come has a `Content-Length`: hyper takes it out of those that are chunked too, which
    /// are to be refused (X2).
    pub(super) fn take_length(&self) -> bool {
        self.0.length.swap(false, Ordering::Relaxed)
    }
}

/// A client's socket.
#[derive(Debug)]
pub(super) struct ClientSocket {
    stream: TcpStream,
    phase: PhaseCell,
    /// The first bytes, read to tell the protocol.
    begin: ([u8; PREFACE.len()], usize, usize),
    lines: HeadLines,
    head: Alarm,
    idle: Alarm,
    stall: Alarm,
}

impl ClientSocket {
    pub(super) fn new(stream: TcpStream, phase: PhaseCell, timeouts: &Timeouts) -> Self {
        Self {
            stream,
            phase,
            begin: ([0; PREFACE.len()], 0, 0),
            lines: HeadLines::default(),
            head: Alarm::new(timeouts.request_head),
            idle: Alarm::new(timeouts.client_idle),
            stall: Alarm::new(timeouts.client_stall),
        }
    }

    /// Read just enough to tell what the client speaks.
    ///
    /// # Errors
    /// The client went away, or did not say enough in time.
    pub(super) async fn protocol(&mut self) -> io::Result<Protocol> {
        let mut begin = [0; PREFACE.len()];
        let mut length = 0;
        while length < begin.len() {
            let rest = begin.get_mut(length..).unwrap_or_default();
            let read = self.read(rest).await?;
            length += read;
            if read == 0 || begin.get(..length) != PREFACE.get(..length) {
                break;
            }
        }
        self.begin = (begin, 0, length);
        Ok(if &begin == PREFACE { Protocol::Http2 } else { Protocol::Http1 })
    }

    fn look_at_head(&mut self, bytes: &[u8]) {
        if self.phase.get() == Phase::Head && self.lines.have_length(bytes) {
            self.phase.0.length.store(true, Ordering::Relaxed);
        }
    }

    /// Ready when the client has been silent for longer than it may.
    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.phase.get() {
            Phase::Head => self.head.poll(cx),
            // The read that goes on while a request is answered goes on when the connection falls idle, without another
            // poll in between: so the timer runs from the beginning, and looks when it fires.
            Phase::Busy => {
                let _ = self.idle.poll_at(Instant::now(), cx);
                Poll::Pending
            }
            Phase::Idle => self.idle.poll_at(self.phase.idle_since(), cx),
        }
    }

    /// The client has taken something, or has to take nothing.
    fn wrote<T>(&mut self, cx: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.stall.off();
            return polled;
        }
        self.stall.poll(cx).map(|()| Err(io::Error::new(io::ErrorKind::TimedOut, "timeouts.client_stall")))
    }
}

impl AsyncRead for ClientSocket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let (begin, at, length) = &mut this.begin;
        if at < length {
            let left = begin.get(*at..*length).unwrap_or_default();
            let count = left.len().min(buf.remaining());
            buf.put_slice(left.get(..count).unwrap_or_default());
            *at += count;
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        let polled = Pin::new(&mut this.stream).poll_read(cx, buf);
        if polled.is_pending() {
            // As if the client had gone: there is no request that could be answered.
            return this.poll_late(cx).map(Ok);
        }
        if this.phase.get() == Phase::Idle {
            this.phase.set(Phase::Head);
            this.lines = HeadLines::default();
            this.head.off();
        }
        this.look_at_head(buf.filled().get(before..).unwrap_or_default());
        polled
    }
}

impl AsyncWrite for ClientSocket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.wrote(cx, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.wrote(cx, polled)
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

/// The lines of a request's head as they come in pieces.
#[derive(Debug, Default)]
struct HeadLines {
    /// The beginning of the current line.
    begin: [u8; LENGTH.len()],
    /// Bytes of the current line so far.
    length: usize,
    over: bool,
}

const LENGTH: &[u8; 15] = b"content-length:";

impl HeadLines {
    /// Whether a line that ends in `bytes` is a `Content-Length`.
    fn have_length(&mut self, bytes: &[u8]) -> bool {
        let mut found = false;
        let mut rest = bytes;
        while !self.over && !rest.is_empty() {
            let end = memchr::memchr(b'\n', rest);
            let (part, after) = rest.split_at(end.map_or(rest.len(), |end| end + 1));
            rest = after;
            let room = self.begin.get_mut(self.length.min(LENGTH.len())..).unwrap_or_default();
            let count = room.len().min(part.len());
            if let (Some(to), Some(from)) = (room.get_mut(..count), part.get(..count)) {
                to.copy_from_slice(from);
            }
            self.length += part.len();
            if end.is_some() {
                found |= self.length > LENGTH.len() && self.begin.eq_ignore_ascii_case(LENGTH);
                // The blank line: what follows is the body.
                self.over =
                    self.length <= 2 && self.begin.get(..self.length).is_some_and(|line| line.trim_ascii().is_empty());
                self.length = 0;
            }
        }
        found
    }
}

/// A time limit on waiting. Beginning and ending a wait costs no timer: it looks at the deadline when it fires.
#[derive(Debug)]
struct Alarm {
    limit: Duration,
    deadline: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Alarm {
    /// Zero is no limit.
    fn new(limit: Duration) -> Self {
        Self { limit, deadline: None, timer: None }
    }

    /// The wait is over; the next poll begins another.
    fn off(&mut self) {
        self.deadline = None;
    }

    /// Ready when the wait has taken longer than the limit.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let limit = self.limit;
        let deadline = *self.deadline.get_or_insert_with(|| Instant::now() + limit);
        self.poll_until(deadline, cx)
    }

    /// The same for a wait that began at `since`.
    fn poll_at(&mut self, since: Instant, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_until(since + self.limit, cx)
    }

    fn poll_until(&mut self, deadline: Instant, cx: &mut Context<'_>) -> Poll<()> {
        if self.limit.is_zero() {
            return Poll::Pending;
        }
        let timer = match &mut self.timer {
            // Its waker is this connection's task, now as before.
            Some(timer) if timer.deadline() <= deadline && Instant::now() < timer.deadline() => return Poll::Pending,
            Some(timer) => timer,
            none => none.insert(Box::pin(sleep_until(deadline))),
        };
        if timer.deadline() > deadline {
            timer.as_mut().reset(deadline);
        }
        while timer.as_mut().poll(cx).is_ready() {
            if Instant::now() >= deadline {
                return Poll::Ready(());
            }
            timer.as_mut().reset(deadline);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x2_a_length_is_seen_whatever_the_cuts() {
        let head = b"POST / HTTP/1.1\r\nHost: x\r\nCONTENT-length: 5\r\nTransfer-Encoding: chunked\r\n\r\n";
        for size in 1..head.len() {
            let mut lines = HeadLines::default();
            let found = head.chunks(size).fold(false, |found, piece| lines.have_length(piece) | found);
            assert!(found, "in pieces of {size}");
        }
        let none = b"POST / HTTP/1.1\r\nX-Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\ncontent-length: 5\r\n";
        for size in 1..none.len() {
            let mut lines = HeadLines::default();
            let found = none.chunks(size).fold(false, |found, piece| lines.have_length(piece) | found);
            assert!(!found, "in pieces of {size}");
        }
    }
}
