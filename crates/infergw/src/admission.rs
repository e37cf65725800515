//! Step 5: may it run now, or who comes before it.
//!
//! The places of a model and of a tenant are limited, and who finds none waits: the more urgent first, and equally urgent tenants
//! in turn ([`line`]). It is the flight that takes a place, not the client: those who join one take none (C1). When its last client
//! has gone its task is cancelled, and with it goes its place in line. A tenant's tokens are limited too: the prompt is counted
//! before, as it can be guessed, and what was really used after.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use http::{HeaderMap, StatusCode};
use serde::Serialize;
use tokio::time::Instant;

use crate::api::error::ApiError;
use crate::coalesce::flight::FlightWriter;
use crate::config::Config;
use crate::drain::{Drain, Phase};
use crate::observe::Admissions;
use crate::pool::Pool;
use crate::types::{Cause, Endpoint, Failure, Question, Refused};

mod bucket;
mod line;
mod permit;
mod settings;
mod state;

use permit::Permit;
use settings::Settings;
use state::{Arrival, Refusal, State};

/// Bytes of a body for one token of its prompt, as long as nothing better is known.
const BYTES_PER_TOKEN: usize = 4;

/// The least urgent that a request can be (RFC 9218).
const LEAST_URGENT: u8 = 7;

/// Who runs and who waits.
#[derive(Debug)]
pub struct Admission {
    settings: ArcSwap<Settings>,
    state: Mutex<State>,
    metrics: Admissions,
    drain: Arc<Drain>,
}

/// A model as operators see it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SeenModel {
    /// Its name at its backends.
    pub name: String,
    /// Requests of it that were admitted and run.
    pub running: usize,
    /// Requests that wait for it.
    pub waiting: usize,
    /// How many may run; `None` is no limit.
    pub concurrency: Option<usize>,
}

/// A tenant as operators see it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SeenTenant {
    /// Its name.
    pub name: String,
    /// Its requests that were admitted and run.
    pub running: usize,
    /// Its requests that wait.
    pub waiting: usize,
    /// How many may run; `None` is no limit.
    pub concurrency: Option<usize>,
    /// Tokens that it may use now, below zero where it has used more than it may; `None` is no limit.
    pub tokens_left: Option<i64>,
    /// Prompt tokens that were booked on it.
    pub prompt_tokens: u64,
    /// Generated tokens that were booked on it.
    pub generated_tokens: u64,
}

/// What operators see.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Seen {
    /// Whether there is any limit.
    pub on: bool,
    /// Models of which something runs or waits.
    pub models: Vec<SeenModel>,
    /// Tenants that have asked.
    pub tenants: Vec<SeenTenant>,
}

impl Admission {
    /// Nobody runs yet.
    pub fn new(config: &Config, metrics: Admissions, drain: Arc<Drain>) -> Self {
        let state = Mutex::new(State::new(metrics.clone()));
        Self { settings: ArcSwap::from_pointee(Settings::new(config)), state, metrics, drain }
    }

    /// Other limits hold from now on; what runs goes on.
    pub fn reconfigure(&self, config: &Config) {
        self.settings.store(Arc::new(Settings::new(config)));
        self.lock().fill_all(&self.settings.load());
    }

    /// Answer `question` into `writer` once it may run.
    pub async fn answer(&self, pool: &Pool, question: &Question, mut writer: FlightWriter) {
        let mut permit = None;
        if let Some(arrival) = self.arrival(pool, question) {
            let tenant = Arc::clone(&arrival.tenant);
            let got = tokio::select! {
                biased;
                got = Permit::get(self, arrival) => got.map_err(|refusal| self.refused(&tenant, refusal)),
                // Over the drain limit nobody waits any more (R7).
                () = self.drain.reached(Phase::Cutting) => Err(ApiError::draining()),
            };
            match got {
                Ok(got) => {
                    writer.book(got.spent());
                    permit = Some(got);
                }
                Err(error) => {
                    writer.errors(question.endpoint.errors());
                    return writer.finish(Err(Failure::new(Cause::Busy, error)), question.stream);
                }
            }
        }
        pool.answer(question, writer).await;
        if let Some(permit) = permit {
            permit.end();
        }
    }

    /// What a question is here; `None` where nothing is limited, or it gives its backend nothing to do.
    fn arrival(&self, pool: &Pool, question: &Question) -> Option<Arrival> {
        let settings = self.settings.load();
        let idle = matches!(question.endpoint, Endpoint::CountTokens | Endpoint::Tokenize | Endpoint::Detokenize);
        if !settings.on || idle {
            return None;
        }
        let tenant = Arc::clone(&question.caller.tenant);
        let own = settings.tenant(&tenant).urgency;
        let urgency = match urgency(&question.headers) {
            Some(asked) if settings.trust_priority => asked,
            Some(asked) => asked.max(own),
            None => own,
        };
        let tokens = question.body.len().div_ceil(BYTES_PER_TOKEN) as u64;
        Some(Arrival { model: pool.meant(&question.model), tenant, urgency, tokens })
    }

    fn refused(&self, tenant: &Arc<str>, refusal: Refusal) -> ApiError {
        if let Some(tenant) = self.lock().tenants.get(tenant) {
            tenant.metrics.refused(refusal.reason);
        }
        let message = match refusal.reason {
            Refused::TenantTokens => "The tokens of this minute are used up.",
            Refused::TenantQueueFull => "Too many requests of this caller wait already.",
            Refused::TenantQueueTimeout => "Other requests of this caller ran for too long.",
            Refused::ModelQueueFull => "Too many requests wait for this model already.",
            Refused::ModelQueueTimeout => "This model was busy for too long.",
        };
        let own = refusal.reason.is_the_tenants();
        let status = if own { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::SERVICE_UNAVAILABLE };
        ApiError::not_admitted(status, message, refusal.reason.as_str(), refusal.again)
    }

    /// What operators see.
    pub fn seen(&self) -> Seen {
        let (settings, now) = (self.settings.load(), Instant::now());
        let state = self.lock();
        let limit = |number: usize| (number != usize::MAX).then_some(number);
        let models = state.models.iter().map(|(name, model)| SeenModel {
            name: name.to_string(),
            running: model.running,
            waiting: model.lines.len(),
            concurrency: limit(settings.model(name).concurrency),
        });
        let tenants = state.tenants.iter().map(|(name, tenant)| {
            let limits = settings.tenant(name);
            let left = tenant.bucket.level(limits.tokens, now).floor() as i64;
            SeenTenant {
                name: name.to_string(),
                running: tenant.running,
                waiting: tenant.waiting,
                concurrency: limit(limits.concurrency),
                tokens_left: (limits.tokens > 0).then_some(left),
                prompt_tokens: tenant.metrics.prompt.get(),
                generated_tokens: tenant.metrics.generated.get(),
            }
        });
        let mut seen = Seen { on: settings.on, models: models.collect(), tenants: tenants.collect() };
        seen.models.sort_by(|a, b| a.name.cmp(&b.name));
        seen.tenants.sort_by(|a, b| a.name.cmp(&b.name));
        seen
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The urgency in a `priority` header: `u=2`, beside other members. `None` where it says none.
fn urgency(headers: &HeaderMap) -> Option<u8> {
    let value = headers.get("priority")?.to_str().ok()?;
    let members = value.split(',').map(str::trim);
    let urgency = members.filter_map(|member| member.strip_prefix("u=")).next_back()?;
    let urgency = urgency.split(';').next()?.trim().parse::<u8>().ok()?;
    (urgency <= LEAST_URGENT).then_some(urgency)
}
