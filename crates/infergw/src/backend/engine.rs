//! The engine path: the gateway is the frontend and owns the text.
//!
//! In order: a body becomes a [`request`], its messages a [`prompt`], the prompt tokens ([`tokenize`], all three as one
//! piece of work in [`prepare`]); they are [`submit`]ted; the engine's tokens become text ([`detokenize`]), cut at [`stop`]
//! strings in a [`choice`], told as [`events`] while the answer is generated (`generate`). [`model`] holds what all of it needs to know
//! about a model, `link` the connection to the engines.

use std::sync::Arc;

use ts_client::{EngineClient, EngineInfo};

use crate::api::error::ApiError;
use crate::backend::{BackendStatus, StartError};
use crate::coalesce::flight::FlightWriter;
use crate::config::{EngineGroup, Text, Timeouts};
use crate::types::{Cause, Endpoint, Failure, Question};

pub mod choice;
mod deadline;
pub mod detokenize;
pub mod events;
mod failure;
mod generate;
pub mod gguf;
mod link;
pub mod model;
pub mod prepare;
pub mod prompt;
pub mod request;
pub mod stop;
pub mod submit;
pub mod tokenize;

#[cfg(test)]
mod sample_models;

use generate::Generation;
use link::Link;
use model::TextModel;
use prepare::{Prepared, TextSide};
use request::Dialect;
use submit::{IdMint, Plan};
use tokenize::{ControlTokens, TextWork};

/// One TokenSpeed engine group.
#[derive(Debug)]
pub struct EngineBackend {
    text: Arc<TextSide>,
    work: TextWork,
    link: Box<Link>,
    ids: IdMint,
    timeouts: Timeouts,
    /// The model's name where the configuration gives one.
    name: Option<String>,
}

impl EngineBackend {
    /// Bind the group's handshake address and load its tokenizer. Returns at once: the engines may come later, see
    /// [`EngineBackend::status`].
    ///
    /// # Errors
    /// A tokenizer that cannot be loaded, or an address that cannot be bound.
    pub async fn start(group: &EngineGroup, text: &Text, timeouts: &Timeouts) -> Result<Self, StartError> {
        let path = group.tokenizer.clone();
        let escape = text.escape_control_tokens;
        let load = tokio::task::spawn_blocking(move || {
            let model = TextModel::load(&path)?;
            let control = escape.then(|| ControlTokens::new(&model.tokenizer));
            Ok::<_, model::LoadError>(TextSide { model, control })
        });
        let text = match load.await {
            Ok(loaded) => loaded.map_err(|e| StartError(format!("tokenizer: {e}")))?,
            Err(_) => return Err(StartError(format!("tokenizer: {} cannot be read", group.tokenizer.display()))),
        };
        Ok(Self {
            text: Arc::new(text),
            work: TextWork::default(),
            link: Box::new(Link::start(group).await?),
            ids: IdMint::default(),
            timeouts: timeouts.clone(),
            name: group.model.clone(),
        })
    }

    /// The handshake address that the engines dial, as bound.
    pub fn handshake_address(&self) -> &str {
        self.link.client.handshake_address()
    }

    /// A snapshot of this group.
    pub fn status(&self) -> BackendStatus {
        let trouble = self.link.trouble();
        BackendStatus {
            ready: trouble.is_none(),
            reason: trouble.unwrap_or_default(),
            models: vec![self.model_name()],
            in_flight: self.link.client.in_flight().iter().sum(),
        }
    }

    /// The configured name, else what the engine reports, else the tokenizer's folder or file name.
    fn model_name(&self) -> String {
        let engines = || self.link.client.engines().into_iter();
        let reported = || engines().map(|engine| engine.ready.instance_id).find(|name| !name.is_empty());
        self.name.clone().or_else(reported).unwrap_or_else(|| self.text.model.name.clone())
    }

    /// Answer `question` on this group.
    ///
    /// # Errors
    /// See [`crate::backend::Backend::run`].
    pub async fn run(&self, question: &Question, writer: &mut FlightWriter) -> Result<(), Failure> {
        match question.endpoint {
            Endpoint::ChatCompletions => self.generate(question, Dialect::ChatCompletions, writer).await,
            Endpoint::Completions => self.generate(question, Dialect::Completions, writer).await,
            other => Err(Failure::new(Cause::Refused, ApiError::unsupported_endpoint(other.path()))),
        }
    }

    async fn generate(&self, question: &Question, dialect: Dialect, writer: &mut FlightWriter) -> Result<(), Failure> {
        let prepared = self.prepare(question, dialect).await?;
        let client = &self.link.client;
        if !client.is_serving() {
            return Err(failure::not_ready());
        }
        refuse_top_logprobs(client, &prepared)?;
        let model = &self.text.model;
        let refused = |error| Failure::new(Cause::Refused, error);
        // The engine's own limit counts: it may serve less context than the model was made for.
        let served = client.engines().iter().map(|e| e.ready.max_model_len).filter(|&n| n > 0).min();
        let context = served.and_then(|n| u64::try_from(n).ok()).or(model.context);
        let budgets = submit::budgets(&prepared, context, dialect).map_err(refused)?;
        let ends = submit::ends(model, &prepared.request.sampling).map_err(refused)?;

        let mut streams = Vec::with_capacity(budgets.len() * prepared.request.n);
        for (prompt, budget) in prepared.prompts.iter().zip(budgets) {
            for choice in 0..prepared.request.n {
                let plan = Plan { prompt, choice, budget, rank: question.rank };
                let request = submit::wire_request(self.ids.mint(), &prepared, plan, model, &ends);
                // An early return drops the streams before it: what was submitted is aborted (A7).
                let stream = client.generate(request).await;
                streams.push(stream.map_err(|error| failure::submit(&error, question.rank.is_some()))?);
            }
        }
        let prefix = match dialect {
            Dialect::ChatCompletions => "chatcmpl",
            Dialect::Completions => "cmpl",
        };
        let id = format!("{prefix}-{}", self.ids.mint());
        let generation = Generation { question, dialect, prepared: &prepared, table: &model.table, ends, id };
        generation.run(streams, &self.timeouts, writer).await
    }

    async fn prepare(&self, question: &Question, dialect: Dialect) -> Result<Prepared, Failure> {
        let (text, body) = (Arc::clone(&self.text), question.body.clone());
        let prepared = self.work.run(body.len(), move || text.prepare(dialect, &body)).await;
        let failed = || {
            let message = "The gateway failed to make the prompt's tokens.";
            Failure::new(Cause::Backend, ApiError::internal(message))
        };
        prepared.ok_or_else(failed)?.map_err(|error| Failure::new(Cause::Refused, error))
    }
}

/// The one published Python engine refuses alternatives without saying so on the wire; the answer here names the field.
fn refuse_top_logprobs(client: &EngineClient, prepared: &Prepared) -> Result<(), Failure> {
    let old = |engine: &EngineInfo| engine.ready.vllm_version == "tokenspeed-0.1.1";
    if prepared.request.output.logprobs.is_some_and(|top| top > 0) && client.engines().iter().any(old) {
        let message = "This model's engine gives no alternatives: 'top_logprobs' must be 0.";
        return Err(Failure::new(Cause::Refused, ApiError::invalid(message, Some("top_logprobs"))));
    }
    Ok(())
}
