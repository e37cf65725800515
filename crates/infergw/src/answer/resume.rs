//! Coming back: by the id of an event that was seen, by the id of a stream, or by an `Idempotency-Key`.

use std::sync::Arc;

use bytes::Bytes;
use http::header::CACHE_CONTROL;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};

use super::{COALESCE, subscribed};
use crate::Gateway;
use crate::api::error::ApiError;
use crate::api::header;
use crate::coalesce::key::Key;
use crate::coalesce::log::Cursor;
use crate::coalesce::resume::{Claim, EventId, NoReturn, StreamId, event_number};
use crate::config::duration;
use crate::observe::{Outcome, Record};
use crate::reply::{KeepAlive, Reply};
use crate::types::{Bypass, Caller, Endpoint, ErrorShape, Question, Role};

/// What the records of `GET /v1/streams/{id}` say for their endpoint.
const PATH: &str = "/v1/streams";

/// By what the client of a question may come back, and what it has seen where it does so now.
///
/// A stream's client can: its events have ids. That of an answer in one piece can if it gave the request a name.
/// `Cache-Control: no-store` forbids to keep anything.
pub(super) fn claim(
    question: &Question,
    shared: &Result<Key, Bypass>,
    headers: &HeaderMap,
) -> Result<(Option<Claim>, Option<EventId>), ApiError> {
    let seen = header::last_event_id(headers)?;
    let seen = seen.map(|text| EventId::parse(text).ok_or_else(ApiError::malformed_event_id)).transpose()?;
    let scope = question.caller.scope;
    let idempotency = header::idempotency_key(headers).map(|value| Claim::idempotency(&scope, value));
    let stream = question.stream && question.endpoint.generates();
    let keeps = (stream || idempotency.is_some()) && !header::no_store(headers);
    if !keeps && seen.is_none() {
        return Ok((None, None));
    }
    let print = match shared {
        Ok(key) => *key,
        Err(_) => Key::of(question).unwrap_or_else(|| Key::of_bytes(question)),
    };
    Ok((Some(Claim { scope, print, idempotency, stream }), seen))
}

/// The same request again, after an event that its client has seen.
pub(super) async fn again(
    gateway: &Gateway,
    claim: &Claim,
    seen: EventId,
    record: Record,
) -> Result<Response<Reply>, ApiError> {
    match gateway.flights.come_back(seen, &claim.scope, Some(&claim.print)) {
        Ok(cursor) => go_on(gateway, cursor, record).await,
        Err(why) => Err(refused(gateway, why, record)),
    }
}

/// `GET /v1/streams/{id}`, after the event of `Last-Event-ID` or `?after=`; without either from the first event.
pub(super) async fn stream<B>(
    gateway: &Gateway,
    id: &str,
    request: &Request<B>,
    (caller, request_id): (Caller, Arc<str>),
) -> Result<Response<Reply>, ApiError> {
    let mut record = Record::start(&gateway.metrics, PATH, request_id);
    record.known(None, &caller.tenant);
    let cursor = if gateway.drain.refuses() {
        Err(ApiError::draining())
    } else {
        let stream = StreamId::parse(id).ok_or(NoReturn::Unknown).map_err(|why| error(gateway, why));
        stream.and_then(|stream| {
            let at = position(stream, request)?;
            gateway.flights.come_back(at, &caller.scope, None).map_err(|why| error(gateway, why))
        })
    };
    match cursor {
        Ok(cursor) => {
            record.known(cursor.model(), &caller.tenant);
            go_on(gateway, cursor, record).await
        }
        Err(error) => {
            record.refused(error.status);
            Err(error)
        }
    }
}

fn position<B>(stream: StreamId, request: &Request<B>) -> Result<EventId, ApiError> {
    let mut after = None;
    for pair in request.uri().query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let Some(number) = pair.strip_prefix("after=") else {
            return Err(ApiError::invalid("The only parameter here is 'after'.", None));
        };
        let wrong = || ApiError::invalid("'after' must be the number of an event.", Some("after"));
        after = Some(event_number(number).ok_or_else(wrong)?);
    }
    let seen = match header::last_event_id(request.headers())? {
        Some(text) => Some(EventId::parse(text).ok_or_else(ApiError::malformed_event_id)?),
        None => None,
    };
    if seen.is_some_and(|seen| seen.stream != stream || after.is_some_and(|after| after != seen.event)) {
        return Err(ApiError::invalid("Last-Event-ID is of another event than the path.", Some("Last-Event-ID")));
    }
    Ok(seen.unwrap_or(EventId { stream, event: after.unwrap_or(0) }))
}

async fn go_on(gateway: &Gateway, cursor: Cursor, mut record: Record) -> Result<Response<Reply>, ApiError> {
    record.joined(Role::Resumed);
    if cursor.is_over() {
        // It has everything. This status tells a browser's event source to stop coming back.
        return Ok(nothing_more(record));
    }
    let shape: ErrorShape = Endpoint::of(cursor.path()).map(Endpoint::errors).unwrap_or_default();
    let keep_alive = KeepAlive::every(gateway.config.timeouts.keep_alive, shape);
    subscribed(cursor, keep_alive, record, Role::Resumed).await
}

fn nothing_more(mut record: Record) -> Response<Reply> {
    record.head(StatusCode::NO_CONTENT);
    let mut response = Response::new(Reply::recorded(Bytes::new(), record, Outcome::Ok));
    *response.status_mut() = StatusCode::NO_CONTENT;
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response.headers_mut().insert(COALESCE, HeaderValue::from_static(Role::Resumed.as_str()));
    response
}

/// The error of a client that cannot come back, with its record.
pub(super) fn refused(gateway: &Gateway, why: NoReturn, mut record: Record) -> ApiError {
    let error = error(gateway, why);
    record.refused(error.status);
    error
}

fn error(gateway: &Gateway, why: NoReturn) -> ApiError {
    let linger = duration::show(gateway.config.coalesce.linger);
    match why {
        NoReturn::Unknown => ApiError::stream_not_found(&linger),
        NoReturn::Expired => ApiError::stream_expired(&linger),
        NoReturn::Freed => ApiError::stream_position_gone(),
        NoReturn::Ahead => ApiError::event_to_come(),
        NoReturn::OtherQuestion => ApiError::stream_of_another_request(),
        NoReturn::OtherBody => ApiError::idempotency_key_reused(),
        NoReturn::Full => ApiError::stream_full(),
    }
}
