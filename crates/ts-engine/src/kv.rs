//! KV pages: who holds which, which finished pages can serve another prompt, and which go first when room is needed.
//!
//! A page that is full and computed is known by the page before it and its own tokens, compared exactly: two prompts share
//! a page only if they are equal up to its end. Pages that nobody holds stay known until their room is needed, the
//! longest unused first.

use std::collections::{HashMap, VecDeque};

/// Names a known page for as long as the engine lives; page numbers are reused, these are not. The chain starts at 0.
type Serial = u64;

/// The start of every chain of known pages.
pub(crate) const ROOT: Serial = 0;

#[derive(Debug, Default, Clone)]
struct Page {
    holders: u32,
    /// How the page is known, if it is.
    key: Option<(Serial, Box<[i32]>)>,
    serial: Serial,
    /// Time of its last release; tells valid entries of the queue from old ones.
    released: u64,
}

/// The pages of one engine.
#[derive(Debug)]
pub(crate) struct Pages {
    size: usize,
    pages: Vec<Page>,
    free: Vec<u32>,
    known: HashMap<(Serial, Box<[i32]>), u32>,
    /// Known pages without holders, longest unused first; may have outdated entries.
    idle: VecDeque<(u32, u64)>,
    /// Known pages without holders.
    idle_count: usize,
    clock: u64,
    serials: Serial,
}

impl Pages {
    /// `count` pages of `size` tokens, all free.
    pub(crate) fn new(count: usize, size: usize) -> Self {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        Pages {
            size: size.max(1),
            pages: vec![Page::default(); count as usize],
            // Taken from the end: low numbers first, so that memory is touched only as far as it is needed.
            free: (0..count).rev().collect(),
            known: HashMap::new(),
            idle: VecDeque::new(),
            idle_count: 0,
            clock: 0,
            serials: ROOT,
        }
    }

    /// Tokens of a page.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Pages in all.
    pub(crate) fn total(&self) -> usize {
        self.pages.len()
    }

    /// Pages that can be taken now, those of the prefix cache among them.
    pub(crate) fn available(&self) -> usize {
        self.free.len() + self.idle_count
    }

    /// Pages held by sequences.
    pub(crate) fn active(&self) -> usize {
        self.total() - self.available()
    }

    /// Pages needed for `tokens` tokens.
    pub(crate) fn needed(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.size)
    }

    /// Takes a page, forgetting the longest unused known one if none is free. `None` when all are held.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let number = self.free.pop().or_else(|| self.evict())?;
        let page = self.pages.get_mut(number as usize)?;
        page.holders = 1;
        page.key = None;
        Some(number)
    }

    fn evict(&mut self) -> Option<u32> {
        while let Some((number, released)) = self.idle.pop_front() {
            let page = self.pages.get_mut(number as usize)?;
            if page.holders == 0 && page.released == released {
                if let Some(key) = page.key.take() {
                    self.known.remove(&key);
                }
                self.idle_count -= 1;
                return Some(number);
            }
        }
        None
    }

    /// Takes a share in the known pages that `tokens` starts with, at most `limit` tokens of them. Returns the pages and
    /// the end of their chain.
    pub(crate) fn share(&mut self, tokens: &[i32], limit: usize) -> (Vec<u32>, Serial) {
        let mut shared = Vec::new();
        let mut chain = ROOT;
        let whole = limit.min(tokens.len()) / self.size * self.size;
        for chunk in tokens[..whole].chunks_exact(self.size) {
            let Some(&number) = self.known.get(&(chain, Box::from(chunk))) else { break };
            let Some(page) = self.pages.get_mut(number as usize) else { break };
            if page.holders == 0 {
                self.idle_count -= 1;
            }
            page.holders += 1;
            chain = page.serial;
            shared.push(number);
        }
        (shared, chain)
    }

    /// Makes a full and computed page known under the chain before it. Returns the chain's new end. Where the same
    /// tokens are known already, that page continues the chain and this one stays private.
    pub(crate) fn publish(&mut self, chain: Serial, tokens: &[i32], number: u32) -> Serial {
        let key = (chain, Box::from(tokens));
        if let Some(page) = self.known.get(&key).and_then(|known| self.pages.get(*known as usize)) {
            return page.serial;
        }
        let Some(page) = self.pages.get_mut(number as usize) else { return chain };
        self.serials += 1;
        page.serial = self.serials;
        page.key = Some(key.clone());
        self.known.insert(key, number);
        self.serials
    }

    /// Gives up a share in pages. Those that nobody holds any more are free, or idle if they are known.
    pub(crate) fn release(&mut self, pages: &[u32]) {
        // From the end, so that the start of a chain is evicted last: without it the rest cannot be found.
        for &number in pages.iter().rev() {
            let Some(page) = self.pages.get_mut(number as usize) else { continue };
            page.holders = page.holders.saturating_sub(1);
            if page.holders > 0 {
                continue;
            }
            if page.key.is_none() {
                self.free.push(number);
                continue;
            }
            self.clock += 1;
            page.released = self.clock;
            self.idle.push_back((number, self.clock));
            self.idle_count += 1;
        }
        if self.idle.len() > 4 * self.pages.len() + 64 {
            let pages = &self.pages;
            self.idle.retain(|(number, released)| {
                pages.get(*number as usize).is_some_and(|page| page.holders == 0 && page.released == *released)
            });
        }
    }

    /// Forgets every known page. Pages that are held stay with their holders.
    pub(crate) fn forget(&mut self) {
        for number in 0..self.pages.len() {
            let page = &mut self.pages[number];
            if page.key.take().is_some() && page.holders == 0 {
                self.free.push(number as u32);
            }
        }
        self.known.clear();
        self.idle.clear();
        self.idle_count = 0;
    }
}
