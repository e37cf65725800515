//! The table of the requests: every row of every batch is looked up here.

use std::collections::HashMap;
use std::sync::Arc;

use slab::Slab;

use super::Rid;

#[derive(Debug)]
pub(super) struct Request<K> {
    pub(super) rid: Rid,
    /// Of all requests there were; tells who has a place in the table from who had it before.
    serial: u64,
    pub(super) rank: usize,
    pub(super) tokens: i64,
    pub(super) stream: K,
}

/// Where a request is in the table, for as long as it is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestKey {
    place: usize,
    serial: u64,
}

#[derive(Debug)]
pub(super) struct Requests<K> {
    places: Slab<Request<K>>,
    /// The seed is random; the ids are the frontend's own.
    by_rid: HashMap<Rid, usize, foldhash::fast::RandomState>,
    last: u64,
}

impl<K> Default for Requests<K> {
    fn default() -> Self {
        Self { places: Slab::new(), by_rid: HashMap::default(), last: 0 }
    }
}

impl<K> Requests<K> {
    /// Add a request, whose id is not there yet.
    pub(super) fn insert(&mut self, rid: Rid, rank: usize, stream: K) {
        self.last += 1;
        let place = self.places.insert(Request { rid: Arc::clone(&rid), serial: self.last, rank, tokens: 0, stream });
        self.by_rid.insert(rid, place);
    }

    pub(super) fn find(&self, rid: &str) -> Option<RequestKey> {
        let place = *self.by_rid.get(rid)?;
        self.places.get(place).map(|request| RequestKey { place, serial: request.serial })
    }

    pub(super) fn get(&self, rid: &str) -> Option<&Request<K>> {
        self.places.get(*self.by_rid.get(rid)?)
    }

    #[inline]
    pub(super) fn has(&self, key: RequestKey) -> bool {
        self.places.get(key.place).is_some_and(|request| request.serial == key.serial)
    }

    /// `None` once the request is out of the table, whoever has its place now.
    #[inline]
    pub(super) fn at(&mut self, key: RequestKey) -> Option<&mut Request<K>> {
        self.places.get_mut(key.place).filter(|request| request.serial == key.serial)
    }

    pub(super) fn remove(&mut self, rid: &str) -> Option<Request<K>> {
        let place = self.by_rid.remove(rid)?;
        self.places.try_remove(place)
    }

    /// Take out all for which `ends`.
    pub(super) fn extract(&mut self, ends: impl Fn(&Request<K>) -> bool) -> Vec<Request<K>> {
        let places = self.places.iter().filter(|(_, request)| ends(request)).map(|(place, _)| place);
        let places: Vec<usize> = places.collect();
        let taken: Vec<Request<K>> = places.into_iter().filter_map(|place| self.places.try_remove(place)).collect();
        for request in &taken {
            self.by_rid.remove(&request.rid);
        }
        taken
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = &Request<K>> {
        self.places.iter().map(|(_, request)| request)
    }
}
