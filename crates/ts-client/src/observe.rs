//! What an operator wants to count, per rank.

use std::fmt;

/// One thing that happened on a rank. [`crate::EngineClient::stats`] holds the totals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A batch arrived, with this many rows and tokens for streams of this client.
    Output {
        /// Rows.
        rows: u32,
        /// Tokens in them.
        tokens: u32,
    },
    /// A request was handed to the rank's socket.
    Submitted,
    /// Abort messages for this many requests were handed to the rank's socket.
    Aborted(u32),
    /// A message that does not decode was dropped.
    Malformed,
    /// A stream was ended because output was lost.
    Gap,
    /// A stream was cancelled because its reader fell too far behind.
    Overrun,
    /// The rank was lost: closed, silent, or announced its shutdown.
    Lost,
    /// The rank was taken (back) into service.
    Returned,
    /// A message could not be handed to the rank's socket in time.
    SendTimeout,
    /// A stranger or a broken peer was refused on the handshake or the input socket.
    Refused,
}

/// Told about events as they happen, from the thread that owns the sockets: implementations must return at once.
pub trait Observer: Send + Sync + fmt::Debug {
    /// `engine_index` is `None` where no rank can be named.
    fn event(&self, engine_index: Option<u16>, event: Event);
}

/// Totals of one rank since the client was bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RankStats {
    /// The rank's engine index.
    pub engine_index: u16,
    /// Requests handed to the rank's socket.
    pub submitted: u64,
    /// Rows delivered to streams.
    pub rows: u64,
    /// Tokens delivered to streams.
    pub tokens: u64,
    /// Requests aborted.
    pub aborts: u64,
    /// Messages that did not decode.
    pub malformed: u64,
    /// Streams ended because output was lost.
    pub gaps: u64,
    /// Streams cancelled because their reader fell behind.
    pub overruns: u64,
    /// Times that the rank was lost.
    pub losses: u64,
    /// Times that the rank was taken into service.
    pub returns: u64,
    /// Messages that could not be handed over in time.
    pub send_timeouts: u64,
    /// Peers refused in this rank's name.
    pub refused: u64,
}

// === impl RankStats ===

impl RankStats {
    pub(crate) fn count(&mut self, event: Event) {
        match event {
            Event::Output { rows, tokens } => {
                self.rows += u64::from(rows);
                self.tokens += u64::from(tokens);
            }
            Event::Submitted => self.submitted += 1,
            Event::Aborted(requests) => self.aborts += u64::from(requests),
            Event::Malformed => self.malformed += 1,
            Event::Gap => self.gaps += 1,
            Event::Overrun => self.overruns += 1,
            Event::Lost => self.losses += 1,
            Event::Returned => self.returns += 1,
            Event::SendTimeout => self.send_timeouts += 1,
            Event::Refused => self.refused += 1,
        }
    }
}
