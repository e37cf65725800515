//! A question becomes a request with its prompts' tokens: body, template and tokenizer as one piece of text work.

use serde_json::Value;

use super::form::Form;
use super::model::TextModel;
use super::parse::{Families, Plan, Wishes};
use super::prompt::{ChatTemplate, Conversation};
use super::request::{self, Dialect, Input, Prompt, Request};
use super::tokenize::{ControlTokens, Pieces, encode};
use crate::api::error::ApiError;
use crate::config::{ReasoningParser, Text, ToolParser};
use crate::observe::Tokenizing;
use crate::types::Endpoint;

/// A request that is ready for an engine, if its prompts fit the context.
#[derive(Debug)]
pub struct Prepared {
    /// The form that it came in.
    pub form: Form,
    /// The judged request.
    pub request: Request,
    /// Its prompts, at least one.
    pub prompts: Vec<PromptTokens>,
    /// How its answers are parsed; `None` where all is content.
    pub parse: Option<Plan>,
}

/// Tokens of a prompt that are looked at for an open mark.
const PROMPT_END: usize = 16;

/// One prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PromptTokens {
    /// Its tokens.
    pub ids: Vec<u32>,
    /// Its text as the client sees it, where the answer shows it (`echo`).
    pub shown: Option<String>,
}

/// What text work needs: shared with the thread that does it.
#[derive(Debug)]
pub struct TextSide {
    /// The model.
    pub model: TextModel,
    /// Set where control tokens in user text are made plain (A9).
    pub control: Option<ControlTokens>,
    /// The tokens of long pieces that were seen before.
    pub pieces: Option<Pieces>,
    /// How the model writes calls and reasoning.
    pub families: Families,
}

impl TextSide {
    /// For `model`, with the settings of `text`.
    pub fn new(model: TextModel, text: &Text, counters: Tokenizing) -> Self {
        let control = text.escape_control_tokens.then(|| ControlTokens::new(&model.tokenizer));
        let pieces = Pieces::new(&model.tokenizer, text.token_cache, counters);
        let source = model.template.as_ref().map(ChatTemplate::source).unwrap_or_default();
        let families = Families::of(ToolParser::Auto, ReasoningParser::Auto, &source);
        Self { model, control, pieces, families }
    }

    /// With the families that the configuration names.
    #[must_use]
    pub fn with_parsers(mut self, tools: ToolParser, reasoning: ReasoningParser) -> Self {
        let source = self.model.template.as_ref().map(ChatTemplate::source).unwrap_or_default();
        self.families = Families::of(tools, reasoning, &source);
        self
    }

    /// The ids of `text`; see [`tokenize::encode`](super::tokenize::encode).
    ///
    /// # Errors
    /// The tokenizer's words.
    pub(super) fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, String> {
        match &self.pieces {
            Some(pieces) => pieces.encode(&self.model.tokenizer, text, add_special),
            None => encode(&self.model.tokenizer, text, add_special),
        }
    }

    /// Judge a body and make its prompts' tokens.
    ///
    /// # Errors
    /// A 400 that says what is wrong with the request.
    pub fn prepare(&self, endpoint: Endpoint, body: &[u8]) -> Result<Prepared, ApiError> {
        let (form, mut request) = self.read(endpoint, body)?;
        let dialect = form.dialect();
        let echo = request.output.echo;
        let mut parse = None;
        let prompts = match &mut request.input {
            Input::Chat { conversation, add_special_tokens } => {
                let ids = self.chat(conversation, *add_special_tokens)?;
                parse = self.plan(&request.wishes, &ids);
                request.output.marks = self.marks(parse.as_ref());
                vec![PromptTokens { ids, shown: None }]
            }
            Input::Prompts { prompts, add_special_tokens } => {
                let special = *add_special_tokens;
                let skip = request.output.skip_special_tokens;
                prompts.drain(..).map(|p| self.completion(p, special, echo, skip)).collect::<Result<_, _>>()?
            }
        };
        if prompts.iter().any(|prompt| prompt.ids.is_empty()) {
            let param = param_of(dialect);
            return Err(ApiError::invalid("The prompt has no tokens.", Some(param)));
        }
        Ok(Prepared { form, request, prompts, parse })
    }

    /// How the answers to a prompt are parsed: its end says whether reasoning is open.
    fn plan(&self, wishes: &Wishes, ids: &[u32]) -> Option<Plan> {
        let end = ids.get(ids.len().saturating_sub(PROMPT_END)..).unwrap_or_default();
        self.families.plan(wishes, &self.model.table.decode(end, false))
    }

    /// The control tokens that a plan looks for.
    fn marks(&self, plan: Option<&Plan>) -> Vec<u32> {
        let marks = plan.map(Plan::marks).unwrap_or_default();
        let id = |mark| self.model.tokenizer.token_to_id(mark).filter(|&id| self.model.table.is_special(id));
        marks.into_iter().filter_map(id).collect()
    }

    /// A body's form and its judged request.
    pub(super) fn read(&self, endpoint: Endpoint, body: &[u8]) -> Result<(Form, Request), ApiError> {
        let body = request::object(body)?;
        let (form, body) = Form::read(endpoint, body)?;
        let mut request = Request::of(form.dialect(), &body, self.model.table.len())?;
        request.output.ids = form.shows_ids();
        Ok((form, request))
    }

    /// The tokens of a conversation, by the chat template.
    pub(super) fn chat(&self, conversation: &mut Conversation, add_special: bool) -> Result<Vec<u32>, ApiError> {
        let bad = |message: &str| ApiError::invalid(message, Some("messages"));
        let Some(template) = &self.model.template else {
            return Err(bad("This model has no chat template; use /v1/completions."));
        };
        let mut marked = false;
        if let Some(control) = &self.control {
            for message in &mut conversation.messages {
                marked |= mark(control, message);
            }
        }
        let text = template.render(conversation).map_err(|e| bad(&format!("The chat template says: {e}.")))?;
        let ids = match &self.control {
            Some(control) if marked => control.encode(&text),
            _ => self.encode(&text, add_special),
        };
        ids.map_err(|e| bad(&format!("The messages cannot be tokenized: {e}.")))
    }

    fn completion(&self, prompt: Prompt, special: bool, echo: bool, skip: bool) -> Result<PromptTokens, ApiError> {
        match prompt {
            Prompt::Ids(ids) => {
                let shown = echo.then(|| self.model.table.decode(&ids, skip));
                Ok(PromptTokens { ids, shown })
            }
            Prompt::Text(text) => {
                let ids = self
                    .encode(&text, special)
                    .map_err(|e| ApiError::invalid(&format!("The prompt cannot be tokenized: {e}."), Some("prompt")))?;
                Ok(PromptTokens { ids, shown: echo.then_some(text) })
            }
        }
    }
}

/// The field that holds an endpoint's prompt, for errors.
pub fn param_of(endpoint: Dialect) -> &'static str {
    match endpoint {
        Dialect::ChatCompletions => "messages",
        Dialect::Completions => "prompt",
    }
}

/// Mark the control tokens in every string of a message; true if there were any.
fn mark(control: &ControlTokens, value: &mut Value) -> bool {
    match value {
        Value::String(text) => match control.mark(text) {
            Some(marked) => {
                *text = marked;
                true
            }
            None => false,
        },
        Value::Array(items) => items.iter_mut().fold(false, |any, item| mark(control, item) | any),
        Value::Object(entries) => entries.values_mut().fold(false, |any, item| mark(control, item) | any),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
