//! Who runs and who waits: a function of arrivals, ends and time. The lock around it is held for one of these steps.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::bucket::Bucket;
use super::line::{Lines, Place};
use super::settings::Settings;
use crate::observe::{Admissions, TenantMetrics};
use crate::types::Refused;

/// The longest that a client is told to wait before it asks again, in seconds.
const LONGEST_RETRY: u64 = 60;

/// How much of the mean the last answer's time is.
const SMOOTHING: f64 = 0.1;

/// A request that has come.
#[derive(Debug, Clone)]
pub(super) struct Arrival {
    pub(super) model: Arc<str>,
    pub(super) tenant: Arc<str>,
    pub(super) urgency: u8,
    /// Tokens that its prompt probably has.
    pub(super) tokens: u64,
}

/// What becomes of it.
#[derive(Debug)]
pub(super) enum Verdict {
    /// It runs.
    Runs,
    /// It waits until this tells it that it runs, or that its place was given away.
    Waits(Place, oneshot::Receiver<()>),
}

/// Why it is not admitted, and after how many seconds it may come again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) reason: Refused,
    pub(super) again: u64,
}

/// Everybody.
#[derive(Debug)]
pub(super) struct State {
    /// Those of which something runs or waits.
    pub(super) models: HashMap<Arc<str>, Model>,
    /// As many as the configuration names.
    pub(super) tenants: HashMap<Arc<str>, Tenant>,
    arrivals: u64,
    metrics: Admissions,
}

#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) running: usize,
    pub(super) lines: Lines,
    /// Mean seconds of an answer.
    service: f64,
}

#[derive(Debug)]
pub(super) struct Tenant {
    pub(super) running: usize,
    pub(super) waiting: usize,
    pub(super) bucket: Bucket,
    pub(super) metrics: TenantMetrics,
}

impl State {
    pub(super) fn new(metrics: Admissions) -> Self {
        Self { models: HashMap::new(), tenants: HashMap::new(), arrivals: 0, metrics }
    }

    /// A request comes.
    ///
    /// # Errors
    /// It is refused at once.
    pub(super) fn arrive(&mut self, arrival: &Arrival, all: &Settings, now: Instant) -> Result<Verdict, Refusal> {
        let (limits, own) = (all.model(&arrival.model), all.tenant(&arrival.tenant));
        let metrics = &self.metrics;
        let tenant = self.tenants.entry(Arc::clone(&arrival.tenant)).or_insert_with(|| Tenant {
            running: 0,
            waiting: 0,
            bucket: Bucket::default(),
            metrics: metrics.of(&arrival.tenant),
        });
        if own.tokens > 0 {
            tenant
                .bucket
                .take(arrival.tokens, own.tokens, now)
                .map_err(|wait| Refusal { reason: Refused::TenantTokens, again: seconds(wait.as_secs_f64()) })?;
        }
        let model = self.models.entry(Arc::clone(&arrival.model)).or_default();
        self.arrivals += 1;
        // Who waits although there is room for the model waits for its tenant's own limit.
        if model.running < limits.concurrency && tenant.running < own.concurrency {
            model.running += 1;
            model.lines.turn(&arrival.tenant, own.weight);
            tenant.begins();
            return Ok(Verdict::Runs);
        }
        let again = seconds(model.service * (model.lines.len() + 1) as f64 / limits.concurrency as f64);
        let refused = if tenant.waiting >= own.queue {
            Some(Refused::TenantQueueFull)
        } else if model.lines.len() < limits.queue {
            None
        } else if limits.queue == 0 {
            Some(Refused::ModelQueueFull)
        } else {
            // One that asks for much must not keep the others out.
            match model.lines.displace(&arrival.tenant, |tenant| all.tenant(tenant).weight) {
                Some(other) => {
                    self.tenants.entry(other).and_modify(Tenant::stops_waiting);
                    None
                }
                None => Some(Refused::ModelQueueFull),
            }
        };
        let Some(tenant) = self.tenants.get_mut(&arrival.tenant) else { return Ok(Verdict::Runs) };
        if let Some(reason) = refused {
            tenant.bucket.settle(arrival.tokens, 0, own.tokens, now);
            self.forget(&arrival.model);
            return Err(Refusal { reason, again });
        }
        tenant.waits();
        let place = Place { urgency: arrival.urgency, number: self.arrivals };
        let (grant, granted) = oneshot::channel();
        let model = self.models.entry(Arc::clone(&arrival.model)).or_default();
        model.lines.push(&arrival.tenant, place, grant);
        Ok(Verdict::Waits(place, granted))
    }

    /// One that waits goes away, or has waited long enough: then this is why.
    pub(super) fn gives_up(&mut self, arrival: &Arrival, place: Place, all: &Settings, now: Instant) -> Refusal {
        let (limits, own) = (all.model(&arrival.model), all.tenant(&arrival.tenant));
        let mut refusal = Refusal { reason: Refused::ModelQueueTimeout, again: 1 };
        if let Some(model) = self.models.get_mut(&arrival.model) {
            model.lines.remove(&arrival.tenant, place);
            refusal.again = seconds(model.service * (model.lines.len() + 1) as f64 / limits.concurrency as f64);
        }
        if let Some(tenant) = self.tenants.get_mut(&arrival.tenant) {
            tenant.stops_waiting();
            tenant.bucket.settle(arrival.tokens, 0, own.tokens, now);
            if tenant.running >= own.concurrency {
                refusal.reason = Refused::TenantQueueTimeout;
            }
        }
        self.forget(&arrival.model);
        refusal
    }

    /// One that waited had its place given away: its tokens come back.
    pub(super) fn displaced(&mut self, arrival: &Arrival, all: &Settings, now: Instant) -> Refusal {
        if let Some(tenant) = self.tenants.get_mut(&arrival.tenant) {
            tenant.bucket.settle(arrival.tokens, 0, all.tenant(&arrival.tenant).tokens, now);
        }
        Refusal { reason: Refused::ModelQueueFull, again: 1 }
    }

    /// One that ran has ended after `took`, having used so many tokens of prompt and answer.
    pub(super) fn ends(
        &mut self,
        arrival: &Arrival,
        used: (u64, u64),
        took: Duration,
        (all, now): (&Settings, Instant),
    ) {
        if let Some(tenant) = self.tenants.get_mut(&arrival.tenant) {
            tenant.running = tenant.running.saturating_sub(1);
            tenant.metrics.running.set(tenant.running as i64);
            tenant.metrics.prompt.inc_by(used.0);
            tenant.metrics.generated.inc_by(used.1);
            let per_minute = all.tenant(&arrival.tenant).tokens;
            tenant.bucket.settle(arrival.tokens, used.0 + used.1, per_minute, now);
        }
        if let Some(model) = self.models.get_mut(&arrival.model) {
            model.running = model.running.saturating_sub(1);
            let took = took.as_secs_f64();
            let first = model.service == 0.0;
            model.service = if first { took } else { model.service + SMOOTHING * (took - model.service) };
        }
        self.fill(&arrival.model, all);
        // Its tenant may have waited for this on other models: the oldest first.
        let waits = |(model, own): (&Arc<str>, &Model)| Some((own.lines.first_of(&arrival.tenant)?, Arc::clone(model)));
        let mut others: Vec<_> = self.models.iter().filter_map(waits).collect();
        others.sort();
        for (_, model) in others {
            self.fill(&model, all);
        }
        self.forget(&arrival.model);
    }

    /// Let run what may run: other limits hold.
    pub(super) fn fill_all(&mut self, all: &Settings) {
        for model in self.models.keys().cloned().collect::<Vec<_>>() {
            self.fill(&model, all);
        }
    }

    fn fill(&mut self, name: &Arc<str>, all: &Settings) {
        let concurrency = all.model(name).concurrency;
        let Some(model) = self.models.get_mut(name) else { return };
        while model.running < concurrency {
            let tenants = &self.tenants;
            let may_run = |tenant: &str| {
                let own = all.tenant(tenant);
                let running = tenants.get(tenant).map_or(0, |tenant| tenant.running);
                (running < own.concurrency).then_some(own.weight)
            };
            let Some((tenant, grant)) = model.lines.next(may_run) else { break };
            // Whoever has gone away in the meantime finds that it was told, and ends at once.
            let _ = grant.send(());
            model.running += 1;
            if let Some(tenant) = self.tenants.get_mut(&tenant) {
                tenant.stops_waiting();
                tenant.begins();
            }
        }
    }

    /// A model of which nothing runs or waits need not be known (M3).
    fn forget(&mut self, name: &Arc<str>) {
        if self.models.get(name).is_some_and(|model| model.running == 0 && model.lines.len() == 0) {
            self.models.remove(name);
        }
    }
}

impl Tenant {
    fn begins(&mut self) {
        self.running += 1;
        self.metrics.running.set(self.running as i64);
        self.metrics.admitted.inc();
    }

    fn waits(&mut self) {
        self.waiting += 1;
        self.metrics.queued.set(self.waiting as i64);
    }

    fn stops_waiting(&mut self) {
        self.waiting = self.waiting.saturating_sub(1);
        self.metrics.queued.set(self.waiting as i64);
    }
}

/// Whole seconds, at least one and not too many.
fn seconds(time: f64) -> u64 {
    (time.ceil() as u64).clamp(1, LONGEST_RETRY)
}

#[cfg(test)]
mod tests;
