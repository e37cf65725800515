//! Step 2: what the client speaks, parsed once, and the one error shape.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;

use crate::types::{Caller, Endpoint, Question};

pub mod body;
pub mod error;
pub mod header;
pub mod route;

use body::Envelope;
use error::ApiError;

/// Make the question of a request for a generation.
///
/// # Errors
/// 400 with the field at fault; nothing has run yet.
pub fn question(
    endpoint: Endpoint,
    headers: &HeaderMap,
    body: Bytes,
    caller: Caller,
    request_id: Arc<str>,
) -> Result<(Question, Envelope), ApiError> {
    let envelope = Envelope::parse(endpoint, &body)?;
    let rank = header::rank(headers, envelope.rank)?;
    let question = Question {
        endpoint,
        model: envelope.model.clone(),
        stream: envelope.stream,
        include_usage: envelope.include_usage,
        body,
        headers: header::forwarded(headers),
        caller,
        request_id,
        choices: envelope.choices,
        rank,
    };
    Ok((question, envelope))
}
