//! Step 5: which backend serves this model; retry before the first byte (R4).

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use http::HeaderValue;

use crate::api::error::ApiError;
use crate::backend::{Backend, Fitness};
use crate::coalesce::flight::FlightWriter;
use crate::config::Config;
use crate::drain::{Drain, Phase};
use crate::observe::Metrics;
use crate::types::{Cause, Failure, Question, Stamp};

mod member;
mod models;
pub mod policy;

use member::Member;
use models::Models;
use policy::Candidate;

/// Seconds after which a client may ask again when no backend is ready.
const RETRY_AFTER: u64 = 2;

/// All backends.
#[derive(Debug)]
pub struct Pool {
    members: Vec<Member>,
    models: Models,
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
        let members = members.map(|((name, weight), backend)| Member::new(name, weight, backend)).collect();
        Self { members, models: Models::new(&config.models, &config.routing), metrics, drain }
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
        let statuses: Vec<_> = self.members.iter().map(|member| member.backend.status()).collect();
        if statuses.iter().any(|status| status.ready) {
            return Ok(());
        }
        Err(NotReady { reasons: statuses.into_iter().map(|status| status.reason).collect() })
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
            let candidates = self.candidates(&question.model, round);
            // With one candidate there is nothing to choose; a policy is still told, for it may remember.
            let asked = asked.get_or_insert_with(|| policy.read(&question.model, &question.headers, &question.body));
            let Some(choice) = policy.choose(&candidates, asked, rand::random()) else { return Step::Next };
            let Some(id) = candidates.get(choice.at).map(|candidate| candidate.id) else { return Step::Next };
            let Some(member) = self.members.get(id) else { return Step::Next };
            self.metrics.backend_request(member.backend.kind());
            let reason = reason(choice.why, fallback.is_some(), round.failed.is_some());
            round.tried.push(id);
            let stamp = Stamp { backend: member.stamp.clone(), reason, fallback: fallback.clone() };
            let running = member.enter();
            let result = member.backend.run(question, &stamp, writer).await;
            drop(running);
            let Err(mut failure) = result else { return Step::Over(Ok(())) };
            stamp.put(&mut failure.error.headers);
            if writer.committed() || !may_retry(failure.cause) {
                return Step::Over(Err(failure));
            }
            tracing::info!(backend = %member.name, request_id = %question.request_id, "another backend may be tried");
            round.failed = Some(failure);
        }
    }

    /// The members that can take a question for `model` and have not been tried; where none can, those of the last resort.
    fn candidates(&self, model: &str, round: &Round) -> Vec<Candidate> {
        let mut ready = Vec::with_capacity(self.members.len());
        let mut last_resort = Vec::new();
        for (id, member) in self.members.iter().enumerate().filter(|(id, _)| !round.tried.contains(id)) {
            match member.backend.fitness(model) {
                Fitness::Ready => ready.push(member.candidate(id)),
                Fitness::LastResort => last_resort.push(member.candidate(id)),
                Fitness::Down | Fitness::OtherModel => {}
            }
        }
        // Where connections were refused a moment ago is tried as long as nothing else has been: it costs no time (S6).
        let unreached = round.failed.as_ref().is_none_or(|failure| failure.cause == Cause::Unreachable);
        if ready.is_empty() && unreached { last_resort } else { ready }
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
        let reasons = self.members.iter().map(|member| member.backend.status().reason).collect::<Vec<_>>().join("; ");
        tracing::warn!(%reasons, "no backend is ready");
        let message = "No backend for this model is ready. /readyz says why.";
        Failure::new(Cause::Busy, ApiError::unavailable(message, RETRY_AFTER))
    }
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

/// A time-out is never retried, nor what the client asked for wrongly (R1, R4).
fn may_retry(cause: Cause) -> bool {
    match cause {
        Cause::Unreachable | Cause::Busy | Cause::Backend | Cause::Truncated => true,
        Cause::Refused | Cause::Timeout | Cause::Cut => false,
    }
}
