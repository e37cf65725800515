//! Messages that an engine's socket did not take yet: in order, bounded in bytes and in time. No sockets, no clock.

use std::collections::VecDeque;
use std::time::Instant;

use bytes::Bytes;

/// A message that waits. `T` is what its sender is told with.
#[derive(Debug)]
pub(crate) struct Parcel<T> {
    pub(crate) frames: Vec<Bytes>,
    pub(crate) deadline: Instant,
    pub(crate) ticket: T,
}

/// What waits for one rank.
#[derive(Debug)]
pub(crate) struct Outbox<T> {
    parcels: VecDeque<Parcel<T>>,
    bytes: usize,
    limit: usize,
}

// === impl Outbox ===

impl<T> Outbox<T> {
    pub(crate) fn new(limit: usize) -> Self {
        Self { parcels: VecDeque::new(), bytes: 0, limit }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.parcels.is_empty()
    }

    /// Put a message at the end, or give it back if there is no room. A message always has room in an empty outbox.
    pub(crate) fn push(&mut self, parcel: Parcel<T>) -> Result<(), Parcel<T>> {
        let bytes = parcel.bytes();
        if !self.parcels.is_empty() && self.bytes + bytes > self.limit {
            return Err(parcel);
        }
        self.bytes += bytes;
        self.parcels.push_back(parcel);
        Ok(())
    }

    pub(crate) fn front(&self) -> Option<&Parcel<T>> {
        self.parcels.front()
    }

    pub(crate) fn pop(&mut self) -> Option<Parcel<T>> {
        let parcel = self.parcels.pop_front()?;
        self.bytes -= parcel.bytes();
        Some(parcel)
    }

    /// Take out the first message whose ticket is meant.
    pub(crate) fn take(&mut self, meant: impl Fn(&T) -> bool) -> Option<Parcel<T>> {
        let position = self.parcels.iter().position(|parcel| meant(&parcel.ticket))?;
        let parcel = self.parcels.remove(position)?;
        self.bytes -= parcel.bytes();
        Some(parcel)
    }

    /// Take out a message whose time is over.
    pub(crate) fn take_expired(&mut self, now: Instant) -> Option<Parcel<T>> {
        let position = self.parcels.iter().position(|parcel| parcel.deadline <= now)?;
        let parcel = self.parcels.remove(position)?;
        self.bytes -= parcel.bytes();
        Some(parcel)
    }
}

impl<T> Parcel<T> {
    fn bytes(&self) -> usize {
        self.frames.iter().map(Bytes::len).sum()
    }
}
