//! A short memory of questions whose answers must not be shared: bounded, and each entry expires.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use super::key::Key;

/// Most questions that are remembered; the oldest is forgotten first.
const MOST: usize = 4096;

/// The memory.
#[derive(Debug, Default)]
pub(super) struct Apart {
    until: HashMap<Key, Instant>,
    /// The same in the order in which they expire: the time is one for all.
    order: VecDeque<(Instant, Key)>,
}

impl Apart {
    /// Remember a question for so long.
    pub(super) fn remember(&mut self, key: Key, time: Duration) {
        self.forget();
        let until = Instant::now() + time;
        self.until.insert(key, until);
        self.order.push_back((until, key));
        while self.order.len() > MOST {
            self.pop();
        }
    }

    /// Whether a question is remembered.
    pub(super) fn holds(&mut self, key: &Key) -> bool {
        // Without an entry, which is usual, this looks at no clock.
        !self.until.is_empty() && {
            self.forget();
            self.until.contains_key(key)
        }
    }

    /// Forget what has expired.
    fn forget(&mut self) {
        let now = Instant::now();
        while self.order.front().is_some_and(|(until, _)| *until <= now) {
            self.pop();
        }
    }

    fn pop(&mut self) {
        if let Some((until, key)) = self.order.pop_front()
            && self.until.get(&key) == Some(&until)
        {
            self.until.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn key(n: usize) -> Key {
        Key::of_text(&n.to_string())
    }

    #[tokio::test(start_paused = true)]
    async fn m3_the_memory_is_bounded_and_forgets() {
        let mut apart = Apart::default();
        for n in 0..MOST + 10 {
            apart.remember(key(n), Duration::from_secs(60));
        }
        assert_eq!((apart.until.len(), apart.order.len()), (MOST, MOST));
        assert!(!apart.holds(&key(9)) && apart.holds(&key(10)));
        tokio::time::advance(Duration::from_secs(30)).await;
        apart.remember(key(10), Duration::from_secs(60));
        tokio::time::advance(Duration::from_secs(31)).await;
        assert!(apart.holds(&key(10)) && !apart.holds(&key(11)));
        assert_eq!(apart.until.len(), 1);
        tokio::time::advance(Duration::from_secs(30)).await;
        assert!(!apart.holds(&key(10)));
        assert!(apart.order.front().is_none_or(|(_, other)| *other != key(10)), "{:?}", apart.order.front().unwrap());
    }
}
