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
use crate::observe::{Engines, Tokenizing};
use crate::types::{Cause, Endpoint, Failure, Head, Question};

pub mod choice;
mod deadline;
pub mod detokenize;
pub mod events;
pub mod form;
mod failure;
mod generate;
pub mod gguf;
mod life;
mod link;
pub mod messages;
pub mod model;
pub mod native;
pub mod parse;
pub mod prepare;
pub mod prompt;
pub mod request;
pub mod responses;
pub mod stop;
pub mod submit;
mod teller;
pub mod tokenize;
mod tokens;

#[cfg(test)]
mod sample_models;

use generate::Generation;
use life::Witness;
pub use life::{SeenGroup, SeenRank};
use link::Link;
use model::TextModel;
use prepare::{Prepared, TextSide};
use submit::{IdMint, Plan};
use tokenize::TextWork;

/// One TokenSpeed engine group.
#[derive(Debug)]
pub struct EngineBackend {
    text: Arc<TextSide>,
    work: TextWork,
    link: Box<Link>,
    /// Tells what becomes of the group, once somebody wants to know.
    _witness: Option<Witness>,
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
        Self::counting(group, text, timeouts, Tokenizing::default()).await
    }

    /// The same, with the counters of the gateway's metrics.
    ///
    /// # Errors
    /// See [`EngineBackend::start`].
    pub async fn counting(
        group: &EngineGroup,
        text: &Text,
        timeouts: &Timeouts,
        counters: Tokenizing,
    ) -> Result<Self, StartError> {
        let (path, text) = (group.tokenizer.clone(), text.clone());
        let (tools, reasoning) = (group.tool_parser, group.reasoning_parser);
        let load = tokio::task::spawn_blocking(move || {
            TextModel::load(&path).map(|model| TextSide::new(model, &text, counters).with_parsers(tools, reasoning))
        });
        let text = match load.await {
            Ok(loaded) => loaded.map_err(|e| StartError(format!("tokenizer: {e}")))?,
            Err(_) => return Err(StartError(format!("tokenizer: {} cannot be read", group.tokenizer.display()))),
        };
        Ok(Self {
            text: Arc::new(text),
            work: TextWork::default(),
            link: Box::new(Link::start(group).await?),
            _witness: None,
            ids: IdMint::default(),
            timeouts: timeouts.clone(),
            name: group.model.clone(),
        })
    }

    /// Tell the log and `metrics` what becomes of the group, under this name.
    #[must_use]
    pub fn witnessed(self, name: Arc<str>, metrics: Engines) -> Self {
        Self { _witness: Some(life::witness(&self.link.client, name, metrics)), ..self }
    }

    /// The group as operators see it.
    pub fn seen(&self) -> SeenGroup {
        life::seen(&self.link.client, self.link.trouble())
    }

    /// Show the load of its ranks as it is now.
    pub fn measure(&self, name: &Arc<str>, metrics: &Engines) {
        life::measure(&self.link.client, name, metrics);
    }

    /// The part of the group that serves: less than 1 where ranks are missing that the others do without.
    pub fn part(&self) -> f64 {
        // The state is a copy of all ranks; one alone serves or does not.
        if self.link.ranks() < 2 { 1.0 } else { life::part(&self.link.client.state()) }
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
            Endpoint::Tokenize => {
                let context = self.context();
                self.answer_text(question, writer, move |text, body| text.tokenize(body, context)).await
            }
            Endpoint::CountTokens => self.answer_text(question, writer, TextSide::count_tokens).await,
            Endpoint::Detokenize => self.answer_text(question, writer, TextSide::detokenize).await,
            endpoint => {
                let answered = self.generate(question, writer).await;
                answered.map_err(|failure| failure.renamed(form::renames(endpoint)))
            }
        }
    }

    async fn generate(&self, question: &Question, writer: &mut FlightWriter) -> Result<(), Failure> {
        let prepared = self.prepare(question).await?;
        let client = &self.link.client;
        if !client.is_serving() {
            return Err(failure::not_ready());
        }
        refuse_top_logprobs(client, &prepared)?;
        let model = &self.text.model;
        let refused = |error| Failure::new(Cause::Refused, error);
        let budgets = submit::budgets(&prepared, self.context(), prepared.form.dialect()).map_err(refused)?;
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
        if let Some(spent) = writer.spent() {
            spent.set_prompt(prepared.prompts.iter().map(|prompt| prompt.ids.len() as u64).sum());
        }
        let id = format!("{}{}", prepared.form.id_prefix(), self.ids.mint());
        let generation = Generation { question, prepared: &prepared, table: &model.table, ends, id };
        generation.run(streams, &self.timeouts, writer).await
    }

    /// Tokens of context. The engine's own limit counts: it may serve less than the model was made for.
    fn context(&self) -> Option<u64> {
        let engines = self.link.client.engines();
        let served = engines.iter().map(|engine| engine.ready.max_model_len).filter(|&n| n > 0).min();
        served.and_then(|n| u64::try_from(n).ok()).or(self.text.model.context)
    }

    /// An answer that takes the text side only.
    async fn answer_text(
        &self,
        question: &Question,
        writer: &mut FlightWriter,
        answer: impl FnOnce(&TextSide, &[u8]) -> Result<Vec<u8>, ApiError> + Send + 'static,
    ) -> Result<(), Failure> {
        let (text, body) = (Arc::clone(&self.text), question.body.clone());
        let answered = self.work.run(body.len(), move || answer(&text, &body)).await;
        let answer = answered.ok_or_else(no_tokens)?.map_err(|error| Failure::new(Cause::Refused, error))?;
        writer.head(Head::json());
        writer.content();
        // With no subscriber left there is nobody to answer.
        let _ = writer.push(answer.into()).await;
        Ok(())
    }

    async fn prepare(&self, question: &Question) -> Result<Prepared, Failure> {
        let (text, body, endpoint) = (Arc::clone(&self.text), question.body.clone(), question.endpoint);
        let prepared = self.work.run(body.len(), move || text.prepare(endpoint, &body)).await;
        prepared.ok_or_else(no_tokens)?.map_err(|error| Failure::new(Cause::Refused, error))
    }
}

/// Text work that panicked.
fn no_tokens() -> Failure {
    Failure::new(Cause::Backend, ApiError::internal("The gateway failed to make the prompt's tokens."))
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
