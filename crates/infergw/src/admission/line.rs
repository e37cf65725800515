//! Who waits for one model, and who is next: the most urgent first, and among those that are equally urgent the tenants in turn,
//! by weight (start-time fair queueing: Goyal, Vin and Cheng, 1996).
//!
//! Each turn of a tenant lasts one over its weight on a clock of its own. The tenant whose next turn would begin first is next;
//! one that has not asked for a while begins at the clock of the one that was served last, so that nobody saves turns up.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tokio::sync::oneshot;

/// Where a request stands in its tenant's line: how urgent it is, and its number in the order of arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) urgency: u8,
    pub(super) number: u64,
}

/// Tells the one that waits; dropped untold it says that the place is lost.
type Grant = oneshot::Sender<()>;

/// All lines for one model.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// When the last turn began.
    clock: f64,
    lines: HashMap<Arc<str>, Line>,
    waiting: usize,
}

#[derive(Debug, Default)]
struct Line {
    /// When the tenant's last turn ended.
    end: f64,
    waiting: BTreeMap<Place, Grant>,
}

impl Lines {
    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.waiting
    }

    /// Whether this tenant has requests that wait here.
    pub(super) fn first_of(&self, tenant: &str) -> Option<Place> {
        self.lines.get(tenant)?.waiting.first_key_value().map(|(place, _)| *place)
    }

    /// Stand in line.
    pub(super) fn push(&mut self, tenant: &Arc<str>, place: Place, grant: Grant) {
        self.lines.entry(Arc::clone(tenant)).or_default().waiting.insert(place, grant);
        self.waiting += 1;
    }

    /// Leave the line.
    pub(super) fn remove(&mut self, tenant: &str, place: Place) {
        if self.lines.get_mut(tenant).is_some_and(|line| line.waiting.remove(&place).is_some()) {
            self.waiting -= 1;
        }
    }

    /// Take the next one out whose tenant may run another one, as a turn of its tenant.
    pub(super) fn next(&mut self, weight: impl Fn(&str) -> Option<f64>) -> Option<(Arc<str>, Grant)> {
        let firsts = self.lines.iter().filter_map(|(tenant, line)| {
            let (place, _) = line.waiting.first_key_value()?;
            weight(tenant).map(|weight| (*place, line.end.max(self.clock), tenant, weight))
        });
        let (place, _, tenant, weight) = firsts.min_by(|a, b| {
            (a.0.urgency.cmp(&b.0.urgency)).then(a.1.total_cmp(&b.1)).then(a.0.number.cmp(&b.0.number))
        })?;
        let tenant = Arc::clone(tenant);
        let grant = self.lines.get_mut(&tenant)?.waiting.remove(&place)?;
        self.waiting -= 1;
        self.turn(&tenant, weight);
        Some((tenant, grant))
    }

    /// A turn of this tenant begins.
    pub(super) fn turn(&mut self, tenant: &Arc<str>, weight: f64) {
        let line = self.lines.entry(Arc::clone(tenant)).or_default();
        let start = line.end.max(self.clock);
        line.end = start + 1.0 / weight;
        self.clock = start;
        // Who is not ahead of the clock and does not wait need not be known.
        let clock = self.clock;
        self.lines.retain(|_, line| !line.waiting.is_empty() || line.end > clock);
    }

    /// Make room for one more of `tenant`, at the cost of the tenant whose line is the longest for its weight: its last one
    /// loses its place. `None` where that is `tenant` itself.
    pub(super) fn displace(&mut self, tenant: &str, weight: impl Fn(&str) -> f64) -> Option<Arc<str>> {
        let length = |tenant: &str, count: usize| count as f64 / weight(tenant);
        let own = self.lines.get(tenant).map_or(0, |line| line.waiting.len());
        let (longest, line) = self
            .lines
            .iter_mut()
            .max_by(|a, b| length(a.0, a.1.waiting.len()).total_cmp(&length(b.0, b.1.waiting.len())))?;
        if **longest == *tenant || length(longest, line.waiting.len()) <= length(tenant, own + 1) {
            return None;
        }
        line.waiting.pop_last()?;
        self.waiting -= 1;
        Some(Arc::clone(longest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(waiting: &[(&str, u8)]) -> Lines {
        let mut lines = Lines::default();
        for (number, (tenant, urgency)) in waiting.iter().enumerate() {
            lines.push(&Arc::from(*tenant), Place { urgency: *urgency, number: number as u64 }, oneshot::channel().0);
        }
        lines
    }

    fn order(lines: &mut Lines, weight: impl Fn(&str) -> Option<f64>) -> String {
        std::iter::from_fn(|| lines.next(&weight)).map(|(tenant, _)| tenant.to_string()).collect()
    }

    #[test]
    fn tenants_take_turns_however_many_wait() {
        let mut greedy = lines(&[("a", 3), ("a", 3), ("a", 3), ("a", 3), ("b", 3), ("b", 3)]);
        assert_eq!(order(&mut greedy, |_| Some(1.0)), "ababaa");
        let mut weighted = lines(&[("a", 3); 3].into_iter().chain([("b", 3); 6]).collect::<Vec<_>>());
        assert_eq!(order(&mut weighted, |tenant| Some(if tenant == "b" { 2.0 } else { 1.0 })), "abbabbabb");
    }

    #[test]
    fn nobody_saves_turns_up() {
        let mut lines = lines(&[("a", 3); 6]);
        for _ in 0..4 {
            lines.next(|_| Some(1.0));
        }
        for number in 10..14 {
            lines.push(&Arc::from("b"), Place { urgency: 3, number }, oneshot::channel().0);
        }
        assert_eq!(order(&mut lines, |_| Some(1.0)), "bababb");
    }

    #[test]
    fn the_more_urgent_come_first_and_who_may_not_run_is_passed_over() {
        let mut lines = lines(&[("a", 5), ("b", 3), ("a", 1), ("c", 0)]);
        assert_eq!(order(&mut lines, |tenant| (tenant != "c").then_some(1.0)), "aba");
        assert_eq!((lines.len(), order(&mut lines, |_| Some(1.0)).as_str()), (1, "c"));
    }

    #[test]
    fn the_longest_line_makes_room() {
        let mut lines = lines(&[("a", 3), ("a", 3), ("a", 3), ("b", 3)]);
        assert_eq!(lines.displace("a", |_| 1.0), None);
        assert_eq!(lines.displace("c", |_| 1.0).as_deref(), Some("a"));
        assert_eq!(lines.displace("b", |_| 1.0), None, "it would be as long itself");
        assert_eq!(lines.len(), 3);
    }
}
