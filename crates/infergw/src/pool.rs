//! Step 5: which backend serves this model; retry before the first byte (R4).

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use http::HeaderValue;
use tokio::time::{Instant, sleep};

use crate::api::error::ApiError;
use crate::backend::Backend;
use crate::coalesce::flight::FlightWriter;
use crate::config::Config;
use crate::drain::{Drain, Phase};
use crate::observe::Metrics;
use crate::types::{Cause, Failure, Question, Stamp};

mod breaker;
mod member;
mod models;
pub mod policy;
mod retry;

use member::{Member, Place};
use models::Models;
use policy::Candidate;
use retry::{Budget, may_retry};

/// Seconds after which a client may ask again when no backend is ready.
const RETRY_AFTER: u64 = 2;

/// All backends.
#[derive(Debug)]
pub struct Pool {
    members: Vec<Member>,
    models: Models,
    budget: Budget,
    metrics: Arc<Metrics>,
    drain: Arc<Drain>,
}

/// Why the gateway is not ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotReady {
    /// One clause for each backend that cannot serve.
    pub reasons: Vec<String>,
}

impl Pool {
    /// A pool of these backends, in the order of [`Config::backend_names`].
    pub fn new(config: &Config, backends: Vec<Backend>, metrics: Arc<Metrics>, drain: Arc<Drain>) -> Self {
        let names = config.backend_names();
        let weights = config.backends.iter().map(|backend| backend.weight.unwrap_or(1.0)).chain(std::iter::repeat(1.0));
        let members = names.iter().zip(weights).zip(backends);
        let members = members.map(|((name, weight), backend)| {
            let name = Arc::from(name.as_str());
            let own = metrics.backends.of(&name);
            Member::new(name, weight, backend, config.breaker.clone(), own)
        });
        let members = members.collect();
        let (models, budget) = (Models::new(&config.models, &config.routing), Budget::new(&config.retries));
        Self { members, models, budget, metrics, drain }
    }

    /// The models that clients can ask for, sorted; aliases are among them.
    pub fn models(&self) -> BTreeSet<String> {
        let mut names = self.listed();
        self.models.add_names(&mut names, |model| self.serves(model));
        names
    }

    /// The models that backends list.
    fn listed(&self) -> BTreeSet<String> {
        self.members.iter().flat_map(|member| member.backend.status().models).collect()
    }

    /// The handshake address of the first engine group, as bound.
    pub fn handshake_address(&self) -> Option<&str> {
        self.members.iter().find_map(|member| match &member.backend {
            Backend::Engine(group) => Some(group.handshake_address()),
            Backend::Http(_) => None,
        })
    }

    /// Check that a question's model is served by something, ready or not (R1).
    ///
    /// # Errors
    /// 404 for a model that no backend has.
    pub fn check_model(&self, model: &str) -> Result<(), ApiError> {
        if self.models.meant(model).any(|model| self.serves(model)) {
            return Ok(());
        }
        Err(ApiError::model_not_found(model))
    }

    /// The model that is meant where a question names none: the only one.
    ///
    /// # Errors
    /// 400 where there are several, 503 where none is known yet.
    pub fn only_model(&self) -> Result<String, ApiError> {
        let mut models = self.listed();
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
        self.models.label(model).or_else(|| self.members.iter().find_map(|member| member.backend.label(model)))
    }

    /// Ready when a backend can serve.
    ///
    /// # Errors
    /// The reasons, where none can.
    pub fn ready(&self) -> Result<(), NotReady> {
        let now = Instant::now();
        let reasons: Vec<_> = self.members.iter().map_while(|member| unfit(member, now)).collect();
        if reasons.len() < self.members.len() { Ok(()) } else { Err(NotReady { reasons }) }
    }

    /// Answer `question` into `writer`: on a ready backend that the model's policy chooses, and where that fails before anything has gone to
    /// a client, on each other one at most once.
    pub async fn answer(&self, question: &Question, mut writer: FlightWriter) {
        writer.errors(question.endpoint.errors());
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
        self.budget.deposit();
        let mut round = Round { tried: Vec::new(), failed: None };
        for (place, model) in self.models.meant(&question.model).enumerate() {
            let as_named = self.named(question, model);
            let fallback = (place > 0).then(|| HeaderValue::from_str(model).ok()).flatten();
            match self.run_model(&as_named, fallback, &mut round, writer).await {
                Step::Over(result) => return result,
                Step::Next => {}
            }
        }
        Err(round.failed.unwrap_or_else(|| self.nobody(&question.model)))
    }

    /// On the backends of one model that have not been tried yet, in the order of its policy.
    async fn run_model(
        &self,
        question: &Question,
        fallback: Option<HeaderValue>,
        round: &mut Round,
        writer: &mut FlightWriter,
    ) -> Step {
        let policy = self.models.policy(&question.model);
        let mut asked = None;
        loop {
            let now = Instant::now();
            let candidates = self.candidates(&question.model, round, now);
            let asked = asked.get_or_insert_with(|| policy.read(&question.model, &question.headers, &question.body));
            let Some(choice) = policy.choose(&candidates, asked, rand::random()) else { return Step::Next };
            let Some(id) = candidates.get(choice.at).map(|candidate| candidate.id) else { return Step::Next };
            let Some(member) = self.members.get(id) else { return Step::Next };
            if let Some(failure) = round.failed.take() {
                if !self.budget.withdraw(round.tried.len()) {
                    self.metrics.backends.retries_refused.inc();
                    return Step::Over(Err(failure));
                }
                let pause = self.budget.pause(round.tried.len(), failure.cause, rand::random());
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

    /// The members that a question for `model` can go to and that have not been tried: those that are well, else those that
    /// have asked to be spared, else those of the last resort.
    fn candidates(&self, model: &str, round: &Round, now: Instant) -> Vec<Candidate> {
        let mut ready = Vec::with_capacity(self.members.len());
        let (mut spared, mut last_resort) = (Vec::new(), Vec::new());
        for (id, member) in self.members.iter().enumerate().filter(|(id, _)| !round.tried.contains(id)) {
            match member.place(id, model, now) {
                Place::Ready(candidate) => ready.push(candidate),
                Place::Spared(candidate) => spared.push(candidate),
                Place::LastResort(candidate) => last_resort.push(candidate),
                Place::Open(_) | Place::Out => {}
            }
        }
        // Where connections were refused a moment ago is tried as long as nothing else has been: it costs no time (S6).
        let unreached = round.failed.as_ref().is_none_or(|failure| failure.cause == Cause::Unreachable);
        let asked_to_spare = round.failed.as_ref().is_some_and(|failure| failure.cause == Cause::Busy);
        match (ready.is_empty(), spared.is_empty()) {
            (false, _) => ready,
            // Of those that want to be spared one is asked, not each: what it says goes to the client.
            (true, false) if !asked_to_spare => spared,
            _ if unreached => last_resort,
            _ => ready,
        }
    }

    /// The question under the name that backends know its model by.
    fn named<'a>(&self, question: &'a Question, model: &str) -> Cow<'a, Question> {
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

    fn serves(&self, model: &str) -> bool {
        self.members.iter().any(|member| member.backend.serves(model))
    }

    fn nobody(&self, model: &str) -> Failure {
        if self.check_model(model).is_err() {
            return Failure::new(Cause::Refused, ApiError::model_not_found(model));
        }
        let now = Instant::now();
        let reasons = self.members.iter().filter_map(|member| unfit(member, now)).collect::<Vec<_>>().join("; ");
        tracing::warn!(%reasons, "no backend is ready");
        let again = self.members.iter().filter_map(|member| member.open(now).flatten()).min();
        let seconds = again.map_or(RETRY_AFTER, |until| until.saturating_duration_since(now).as_secs() + 1);
        let message = "No backend for this model is ready. /readyz says why.";
        Failure::new(Cause::Busy, ApiError::unavailable(message, seconds))
    }
}

/// Why a member cannot serve now.
fn unfit(member: &Member, now: Instant) -> Option<String> {
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
