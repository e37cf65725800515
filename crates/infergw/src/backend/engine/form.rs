//! The form that a request came in, which is the form of its answer. Whatever the form, the text path sees one of two
//! dialects.

use serde_json::{Map, Value};

use super::messages;
use super::native::{self, Native};
use super::request::Dialect;
use super::responses::{self, Responses};
use super::teller::{Teller, Telling};
use crate::api::error::ApiError;
use crate::types::Endpoint;

/// The form of a request and its answer.
#[derive(Debug)]
pub enum Form {
    /// OpenAI's chat completions or completions: a dialect of its own.
    OpenAi(Dialect),
    /// SGLang's own.
    Native(Native),
    /// Anthropic's.
    Messages,
    /// OpenAI's responses.
    Responses(Box<Responses>),
}

impl Form {
    /// Read a body of `endpoint`: its form, and the same request in the form's dialect.
    ///
    /// # Errors
    /// A 400 with the field at fault.
    pub fn read(endpoint: Endpoint, body: Map<String, Value>) -> Result<(Self, Map<String, Value>), ApiError> {
        match endpoint {
            Endpoint::ChatCompletions => Ok((Form::OpenAi(Dialect::ChatCompletions), body)),
            Endpoint::Completions => Ok((Form::OpenAi(Dialect::Completions), body)),
            Endpoint::Generate => native::read(body).map(|(form, body)| (Form::Native(form), body)),
            Endpoint::Messages => messages::read(body, false).map(|body| (Form::Messages, body)),
            Endpoint::CountTokens => messages::read(body, true).map(|body| (Form::Messages, body)),
            Endpoint::Responses => responses::read(body).map(|(form, body)| (Form::Responses(Box::new(form)), body)),
            other => Err(ApiError::unsupported_endpoint(other.path())),
        }
    }

    /// The dialect that its requests are brought into.
    pub fn dialect(&self) -> Dialect {
        match self {
            Form::OpenAi(dialect) => *dialect,
            Form::Native(_) => Dialect::Completions,
            Form::Messages | Form::Responses(_) => Dialect::ChatCompletions,
        }
    }

    /// Whether its answers show their tokens.
    pub fn shows_ids(&self) -> bool {
        matches!(self, Form::Native(_))
    }

    /// Whether an answer that calls a named function ends like any other (A8): OpenAI's chat completions alone do.
    pub fn ends_named_calls_with_stop(&self) -> bool {
        matches!(self, Form::OpenAi(_))
    }

    /// What the ids of its answers begin with.
    pub(super) fn id_prefix(&self) -> &'static str {
        match self {
            Form::OpenAi(Dialect::ChatCompletions) => "chatcmpl-",
            Form::OpenAi(Dialect::Completions) => "cmpl-",
            Form::Native(_) => "",
            Form::Messages => "msg_",
            Form::Responses(_) => "resp_",
        }
    }

    /// Who tells its answers.
    pub(super) fn teller(&self, telling: Telling<'_>) -> Box<dyn Teller> {
        match self {
            Form::OpenAi(dialect) => telling.openai(*dialect),
            Form::Native(form) => form.teller(telling),
            Form::Messages => messages::teller(telling),
            Form::Responses(form) => form.teller(telling),
        }
    }
}

/// How an endpoint calls what the dialect calls otherwise: errors name the client's fields.
pub fn renames(endpoint: Endpoint) -> &'static [(&'static str, &'static str)] {
    match endpoint {
        Endpoint::Generate => native::RENAMES,
        Endpoint::Messages | Endpoint::CountTokens => messages::RENAMES,
        Endpoint::Responses => responses::RENAMES,
        _ => &[],
    }
}
