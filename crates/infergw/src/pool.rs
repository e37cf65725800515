//! Step 6: which backend serves this model; retry before the first byte (R4).

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use http::HeaderValue;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use crate::api::error::ApiError;
use crate::backend::engine::{EngineBackend, SeenGroup};
use crate::backend::{Backend, StartError};
use crate::coalesce::flight::FlightWriter;
use crate::config::{self, Config};
use crate::drain::{Drain, Phase};
use crate::observe::Metrics;
use crate::types::{Cause, Failure, Question, Stamp};

mod breaker;
mod change;
mod member;
mod models;
pub mod policy;
mod retry;
mod roster;

use change::Sources;
pub use change::{ChangeError, Changed};
use member::{Duty, Member};
use models::Models;
use policy::Policy;
use retry::{Budget, may_retry};
use roster::Roster;
pub use roster::{Origin, Seen};

/// How long an answer's headers ask to be spared, for `crate::foreign`.
#[cfg(any(test, feature = "fuzz"))]
pub fn spare_of(headers: &http::HeaderMap) -> std::time::Duration {
    retry::spare(headers, std::time::SystemTime::now())
}

/// Seconds after which a client may ask again when no backend is ready.
const RETRY_AFTER: u64 = 2;

/// All backends.
#[derive(Debug)]
pub struct Pool {
    roster: ArcSwap<Roster>,
    /// Locked by changes, never by requests.
    sources: Mutex<Sources>,
    breaker: config::Breaker,
    timeouts: config::Timeouts,
    limits: config::Limits,
    metrics: Arc<Metrics>,
    drain: Arc<Drain>,
    /// Where what backends do beside their requests runs.
    runtime: Handle,
}

/// Why the gateway is not ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotReady {
    /// One clause for each backend that cannot serve.
    pub reasons: Vec<String>,
}

impl Pool {
    /// A pool of these engine groups, in the order of the configuration, and of the HTTP backends that it names.
    ///
    /// # Errors
    /// An HTTP backend that cannot be started.
    pub fn new(
        config: &Config,
        engines: Vec<EngineBackend>,
        metrics: Arc<Metrics>,
        drain: Arc<Drain>,
    ) -> Result<Self, StartError> {
        let names = config.backend_names().into_iter().skip(config.backends.len());
        let member = |(slot, (name, group)): (usize, (String, EngineBackend))| {
            let name: Arc<str> = Arc::from(name);
            let own = metrics.backends.of(&name);
            let weight = config.engines.get(slot).and_then(|group| group.weight).unwrap_or(1.0);
            let group = group.witnessed(Arc::clone(&name), metrics.engines.clone());
            let backend = Backend::Engine(Box::new(group));
            Arc::new(Member::new((name, Origin::Engines, slot), weight, backend, config.breaker.clone(), own))
        };
        let roster = Roster {
            members: names.zip(engines).enumerate().map(member).collect(),
            models: Arc::new(Models::new(&[], &config.routing)),
            budget: Arc::new(Budget::new(&config::Retries::default())),
        };
        let pool = Self {
            roster: ArcSwap::from_pointee(roster),
            sources: Mutex::default(),
            breaker: config.breaker.clone(),
            timeouts: config.timeouts.clone(),
            limits: config.limits.clone(),
            metrics,
            drain,
            runtime: Handle::current(),
        };
        pool.reconfigure(config).map_err(|error| StartError(error.to_string()))?;
        Ok(pool)
    }

    fn sources(&self) -> MutexGuard<'_, Sources> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The models that clients can ask for, sorted; aliases are among them.
    pub fn models(&self) -> BTreeSet<String> {
        let roster = self.roster.load();
        let mut names = roster.listed();
        roster.models.add_names(&mut names, |model| roster.serves(model));
        names
    }

    /// The engine groups as operators see them, by their names.
    pub fn engine_groups(&self) -> Vec<(String, SeenGroup)> {
        self.engines(|member, group| (member.name.to_string(), group.seen()))
    }

    /// Show in the metrics what the engines have reported of their load.
    pub fn measure(&self) {
        self.engines(|member, group| group.measure(&member.name, &self.metrics.engines));
    }

    fn engines<T>(&self, look: impl Fn(&Member, &EngineBackend) -> T) -> Vec<T> {
        let roster = self.roster.load();
        let groups = roster.members.iter().filter_map(|member| match &member.backend {
            Backend::Engine(group) => Some(look(member, group)),
            Backend::Http(_) => None,
        });
        groups.collect()
    }

    /// The handshake address of the first engine group, as bound.
    pub fn handshake_address(&self) -> Option<String> {
        self.roster.load().members.iter().find_map(|member| match &member.backend {
            Backend::Engine(group) => Some(group.handshake_address().to_owned()),
            Backend::Http(_) => None,
        })
    }

    /// Check that a question's model is served by something, ready or not (R1).
    ///
    /// # Errors
    /// 404 for a model that no backend has.
    pub fn check_model(&self, model: &str) -> Result<(), ApiError> {
        let roster = self.roster.load();
        if roster.models.meant(model).any(|model| roster.serves(model)) {
            return Ok(());
        }
        Err(ApiError::model_not_found(model))
    }

    /// The model that a name means, by its name at its backends.
    pub fn meant(&self, model: &str) -> Arc<str> {
        let roster = self.roster.load();
        roster.models.get(model).map_or_else(|| Arc::from(model), |entry| Arc::clone(&entry.name))
    }

    /// The model that is meant where a question names none: the only one.
    ///
    /// # Errors
    /// 400 where there are several, 503 where none is known yet.
    pub fn only_model(&self) -> Result<String, ApiError> {
        let mut models = self.roster.load().listed();
        match (models.pop_first(), models.is_empty()) {
            (Some(model), true) => Ok(model),
            (Some(_), false) => {
                Err(ApiError::invalid("Several models are served: the field 'model' is required.", Some("model")))
            }
            (None, _) => Err(ApiError::unavailable("No model is known yet. /readyz says why.", RETRY_AFTER)),
        }
    }

    /// The name of a model that the configuration or a backend lists; `None` where only the client has named it (O1).
    pub fn label(&self, model: &str) -> Option<Arc<str>> {
        let roster = self.roster.load();
        roster.models.label(model).or_else(|| roster.members.iter().find_map(|member| member.backend.label(model)))
    }

    /// Ready when a backend can serve.
    ///
    /// # Errors
    /// The reasons, where none can.
    pub fn ready(&self) -> Result<(), NotReady> {
        let (roster, now) = (self.roster.load(), Instant::now());
        let reasons: Vec<_> = roster.members.iter().map_while(|member| unfit(member, now)).collect();
        match (reasons.len() < roster.members.len(), roster.members.is_empty()) {
            (true, _) => Ok(()),
            (false, true) => Err(NotReady { reasons: vec!["there is no backend".into()] }),
            (false, false) => Err(NotReady { reasons }),
        }
    }

    /// Answer `question` into `writer`: on a ready backend that the model's policy chooses, and where that fails before anything has gone to
    /// a client, on each other one at most once.
    pub async fn answer(&self, question: &Question, mut writer: FlightWriter) {
        writer.errors(question.endpoint.errors());
        if question.stream {
            writer.measure(self.metrics.inter_token.flight());
        }
        let result = tokio::select! {
            result = self.run(question, &mut writer) => result,
            // Over the drain limit: an error event instead of a cut connection (R7).
            () = self.drain.reached(Phase::Cutting) => Err(Failure::new(Cause::Cut, ApiError::draining())),
        };
        if let Err(failure) = &result {
            self.metrics.failure(failure.cause);
        }
        writer.finish(result, question.stream);
    }

    /// The models that may answer, one after the other, each on the backends that serve it.
    async fn run(&self, question: &Question, writer: &mut FlightWriter) -> Result<(), Failure> {
        // Not the roster itself: who left it must not be held by a request that runs elsewhere.
        let (models, budget) = self.roster.load().settings();
        budget.deposit();
        let mut round = Round { tried: Vec::new(), failed: None, budget };
        for (place, model) in models.meant(&question.model).enumerate() {
            let as_named = named(question, model);
            let fallback = (place > 0).then(|| HeaderValue::from_str(model).ok()).flatten();
            match self.run_model((&as_named, models.policy(model)), fallback, &mut round, writer).await {
                Step::Over(result) => return result,
                Step::Next => {}
            }
        }
        Err(round.failed.unwrap_or_else(|| self.nobody(&question.model)))
    }

    /// On the backends of one model that have not been tried yet, in the order of its policy.
    async fn run_model(
        &self,
        (question, policy): (&Question, &Policy),
        fallback: Option<HeaderValue>,
        round: &mut Round,
        writer: &mut FlightWriter,
    ) -> Step {
        let mut asked = None;
        loop {
            let now = Instant::now();
            // Anew for each attempt: a backend that has just left gets none, one that has just come may be the one.
            let roster = self.roster.load();
            let candidates = roster.candidates(&question.model, round, now);
            let asked = asked.get_or_insert_with(|| policy.read(&question.model, &question.headers, &question.body));
            let Some(choice) = policy.choose(&candidates, asked, rand::random()) else { return Step::Next };
            let Some(id) = candidates.get(choice.at).map(|candidate| candidate.id) else { return Step::Next };
            let Some(member) = roster.members.iter().find(|member| member.slot == id).cloned() else {
                return Step::Next;
            };
            drop(roster);
            if let Some(failure) = round.failed.take() {
                if !round.budget.withdraw(round.tried.len()) {
                    self.metrics.backends.retries_refused.inc();
                    return Step::Over(Err(failure));
                }
                let pause = round.budget.pause(round.tried.len(), failure.cause, rand::random());
                round.failed = Some(failure);
                self.metrics.backends.retries.inc();
                if !pause.is_zero() {
                    sleep(pause).await;
                }
            }
            let Some(running) = member.enter(Instant::now()) else {
                // Its trial began in the meantime. It is passed over, for this question for good.
                round.tried.push(id);
                continue;
            };
            self.metrics.backend_request(member.backend.kind());
            if fallback.is_some() {
                self.metrics.backends.fallbacks.inc();
            }
            let reason = reason(choice.why, fallback.is_some(), round.failed.is_some());
            round.tried.push(id);
            let stamp = Stamp { backend: member.stamp.clone(), reason, fallback: fallback.clone() };
            writer.stamp(stamp.clone());
            let result = member.backend.run(question, writer).await;
            running.end(&result);
            let Err(mut failure) = result else { return Step::Over(Ok(())) };
            stamp.put(&mut failure.error.headers);
            if writer.committed() || !may_retry(failure.cause) {
                return Step::Over(Err(failure));
            }
            round.failed = Some(failure);
        }
    }

    fn nobody(&self, model: &str) -> Failure {
        if self.check_model(model).is_err() {
            return Failure::new(Cause::Refused, ApiError::model_not_found(model));
        }
        let (roster, now) = (self.roster.load(), Instant::now());
        let reasons = roster.members.iter().filter_map(|member| unfit(member, now)).collect::<Vec<_>>().join("; ");
        tracing::warn!(%reasons, "no backend is ready");
        let again = roster.members.iter().filter_map(|member| member.open(now).flatten()).min();
        let seconds = again.map_or(RETRY_AFTER, |until| until.saturating_duration_since(now).as_secs() + 1);
        let message = "No backend for this model is ready. /readyz says why.";
        Failure::new(Cause::Busy, ApiError::unavailable(message, seconds))
    }
}

/// The question under the name that backends know its model by.
fn named<'a>(question: &'a Question, model: &str) -> Cow<'a, Question> {
    if question.model == model {
        return Cow::Borrowed(question);
    }
    let mut question = question.clone();
    if let Some(body) = models::renamed(&question.body, model) {
        question.body = body;
    }
    question.model = model.to_owned();
    Cow::Owned(question)
}

/// Why a member cannot serve now.
fn unfit(member: &Member, now: Instant) -> Option<String> {
    if member.duty() != Duty::Serving {
        return Some(format!("{} is being drained", member.name));
    }
    let status = member.backend.status();
    if !status.ready {
        return Some(status.reason);
    }
    member.open(now).map(|_| format!("{} has failed too often and is left alone for a while", member.name))
}

/// What has happened to a question so far.
struct Round {
    /// The members that were tried: none is tried twice (R4).
    tried: Vec<usize>,
    failed: Option<Failure>,
    budget: Arc<Budget>,
}

/// Whether a question is over, or another model may answer it.
enum Step {
    Over(Result<(), Failure>),
    Next,
}

/// Why a backend was taken: the policy's word, after `fallback` and `retry` where they hold.
fn reason(policy: &'static str, fallback: bool, retry: bool) -> HeaderValue {
    if !fallback && !retry {
        return HeaderValue::from_static(policy);
    }
    let before = [("fallback, ", fallback), ("retry, ", retry)];
    let words: String = before.iter().filter(|(_, holds)| *holds).map(|(word, _)| *word).collect();
    HeaderValue::try_from(words + policy).unwrap_or_else(|_| HeaderValue::from_static(policy))
}
