//! What an engine did wrong, as the client is told it: the client library's errors, and aborts that come as an answer's end.

use http::StatusCode;
use ts_client::{EndCause, Error, StreamError};
use ts_wire::Value;
use ts_wire::output::FinishDetails;

use crate::api::error::ApiError;
use crate::types::{Cause, Failure};

/// Longest message of an engine that is shown.
const MAX_MESSAGE: usize = 500;
/// The engine ran out of memory for this request; a retry may succeed.
const CAPACITY: i64 = 524;

/// No engine can take requests now. Which and why is for the operator: `/readyz` and the log.
pub(super) fn not_ready() -> Failure {
    Failure::new(Cause::Unreachable, ApiError::unavailable("No engine of this model is ready.", 2))
}

/// A request that could not be submitted.
pub(super) fn submit(error: &Error, rank_given: bool) -> Failure {
    match error {
        // The request was judged before: what is left for the client library to refuse is the rank (R6).
        Error::InvalidRequest(message) => {
            let param = rank_given.then_some("data_parallel_rank");
            Failure::new(Cause::Refused, ApiError::invalid(&format!("The engine client refused: {message}."), param))
        }
        Error::SendTimeout { .. } => {
            let message = "The engine did not take the request in time.";
            Failure::new(Cause::Timeout, ApiError::timeout(message, "send_timeout"))
        }
        Error::Unavailable(error) => {
            let message = format!("The engine group is gone: {}.", word(error));
            Failure::new(Cause::Unreachable, ApiError::unavailable(&message, 2))
        }
        Error::Wire(_) | Error::DuplicateRequestId(_) => {
            Failure::new(Cause::Backend, ApiError::internal("The request could not be put on the engine's wire."))
        }
        _ => {
            let message = "The engine could not be reached.";
            Failure::new(Cause::Unreachable, ApiError::bad_gateway(message))
        }
    }
}

/// A stream that broke, and why as far as the client library knows. `begun` says whether anything of the answer came before.
pub(super) fn stream(error: &StreamError, cause: Option<&EndCause>, begun: bool) -> Failure {
    let told = match cause {
        Some(EndCause::RankLost { engine_index, .. }) => format!("engine {engine_index} was lost"),
        Some(EndCause::EngineShutDown { engine_index: Some(index) }) => format!("engine {index} shut down"),
        Some(EndCause::Gap { .. }) => "output was lost on the way".into(),
        Some(EndCause::Overrun { .. }) => {
            // The one end that is the client's doing: it did not read (M1).
            return Failure::new(Cause::Cut, ApiError::internal("The answer was read too slowly."));
        }
        Some(EndCause::BadOutput { .. }) => "the engine's output could not be read".into(),
        _ => word(error).to_owned(),
    };
    let cause = if begun { Cause::Truncated } else { Cause::Unreachable };
    Failure::new(cause, ApiError::bad_gateway(&format!("The engine broke off the answer: {told}.")))
}

/// A stream that ended without an end.
pub(super) fn unfinished() -> Failure {
    Failure::new(Cause::Truncated, ApiError::bad_gateway("The engine ended the answer without a finish reason."))
}

/// Not the library's own text: that may carry addresses.
fn word(error: &StreamError) -> &'static str {
    match error {
        StreamError::EngineDead => "an engine shut down",
        StreamError::Transport(_) => "the connection to an engine was lost",
        StreamError::ClientClosed => "the connection to the engines was closed",
    }
}

/// An answer that the engine ended with "abort": an error status, never an empty answer (R8). Engines of the newer wire say
/// why; of the older ones only the word comes. `constraint` is the field that the answer's constraint came from: a refusal that
/// speaks of a grammar is about that field.
pub(super) fn abort(details: Option<&FinishDetails>, constraint: Option<&str>) -> Failure {
    let int = |key: &str| match details?.get(key)? {
        Value::Int(int) => int.narrow::<i64>("code").ok(),
        _ => None,
    };
    let message = match details.and_then(|d| d.get("message")) {
        Some(Value::Str(message)) => message.chars().take(MAX_MESSAGE).collect(),
        _ => String::new(),
    };
    let said = if message.is_empty() { "it gave no reason".to_owned() } else { message };
    let status = int("status_code").and_then(|s| u16::try_from(s).ok()).and_then(|s| StatusCode::from_u16(s).ok());
    match status {
        Some(status) if status.is_client_error() => {
            let field = constraint.filter(|_| is_of_grammars(&said));
            let what = field.map_or("the request".to_owned(), |field| format!("'{field}'"));
            let message = format!("The engine refused {what}: {said}");
            let kind = "invalid_request_error";
            Failure::new(Cause::Refused, ApiError::new(status, kind, &message, field, Some("engine_refused")))
        }
        _ if int("err_type") == Some(CAPACITY) => {
            let message = format!("The engine has no room for the request: {said}");
            Failure::new(Cause::Busy, ApiError::unavailable(&message, 1))
        }
        _ => {
            let message = format!("The engine aborted the request: {said}");
            Failure::new(Cause::Backend, ApiError::bad_gateway(&message))
        }
    }
}

/// Engines say what they refuse by the wire's names, or as their grammar backend puts it.
fn is_of_grammars(said: &str) -> bool {
    let said = said.to_ascii_lowercase();
    ["json_schema", "regex", "ebnf", "structural_tag", "grammar", "schema"].iter().any(|word| said.contains(word))
}

#[cfg(test)]
mod tests;
