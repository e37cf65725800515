//! A stream of events as it comes from an upstream: what has arrived is taken in one turn, so that a burst of events costs
//! one passage through the flight's log instead of one each.

use std::task::{Context, Poll};

use bytes::Bytes;

use super::connect::Exchange;
use super::scan::{Scanner, Stop};
use super::watch::Watch;
use crate::types::StreamEnd;

/// Most bytes that are taken in one turn: more would only keep the readers waiting.
const TURN: usize = 64 << 10;

/// An answer's events, the part that has arrived, and what is known of the whole.
#[derive(Debug)]
pub(super) struct Stream {
    exchange: Exchange,
    scanner: Scanner,
    watch: Watch,
    /// Whole events that have arrived, in runs as they came.
    events: Vec<Bytes>,
    halt: Option<Halt>,
}

/// Why nothing more comes after the events that have arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Halt {
    /// What an event said.
    Scan(Stop),
    /// The answer's proper end.
    End,
    /// The connection broke.
    Broken,
}

impl Stream {
    /// The beginning of an answer of `choices` choices that ends so. An event may have `max_event` bytes.
    pub(super) fn new(exchange: Exchange, max_event: usize, choices: usize, end: StreamEnd) -> Self {
        let (scanner, watch) = (Scanner::new(max_event), Watch::new(choices, end));
        Self { exchange, scanner, watch, events: Vec::new(), halt: None }
    }

    /// Ready once something has arrived; takes all that is there, up to a bound. An event never waits for the next one.
    pub(super) fn poll_arrived(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut taken = 0;
        while self.halt.is_none() && taken < TURN {
            match self.exchange.poll_piece(cx) {
                Poll::Pending if taken == 0 => return Poll::Pending,
                Poll::Pending => break,
                Poll::Ready(Some(Ok(piece))) => {
                    taken += piece.len();
                    let run = self.scanner.feed(piece, |event| self.watch.see(event));
                    if !run.events.is_empty() {
                        self.events.push(run.events);
                    }
                    self.halt = run.stop.map(Halt::Scan);
                }
                Poll::Ready(None) => self.halt = Some(Halt::End),
                Poll::Ready(Some(Err(_))) => self.halt = Some(Halt::Broken),
            }
        }
        Poll::Ready(())
    }

    /// Whether there are events that have not gone on.
    pub(super) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// The events that have not gone on.
    pub(super) fn events(&mut self) -> impl Iterator<Item = Bytes> {
        self.events.drain(..)
    }

    /// Why nothing more comes.
    pub(super) fn halt(&self) -> Option<Halt> {
        self.halt
    }

    /// What is known of the answer.
    pub(super) fn watch(&self) -> &Watch {
        &self.watch
    }

    /// The same, to take something out of it.
    pub(super) fn watch_mut(&mut self) -> &mut Watch {
        &mut self.watch
    }

    /// At the end: an event that lacks its blank line.
    pub(super) fn take_rest(&mut self) -> Bytes {
        self.scanner.rest()
    }

    /// The connection, when no more is wanted of it.
    pub(super) fn into_exchange(self) -> Exchange {
        self.exchange
    }
}
