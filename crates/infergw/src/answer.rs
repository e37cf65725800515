//! The life of a request, in one function.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join;
use http::header::{CACHE_CONTROL, CONNECTION};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body::Body;

use crate::Gateway;
use crate::admit;
use crate::api::error::ApiError;
use crate::api::route::{self, Route};
use crate::api::{self, body, header};
use crate::coalesce::Passage;
use crate::coalesce::key::Key;
use crate::coalesce::log::{About, Cursor};
use crate::coalesce::resume::{Claim, EventId};
use crate::config::Sharing;
use crate::health;
use crate::observe::sharing::generated_tokens;
use crate::observe::{Outcome, Record};
use crate::reply::{self, KeepAlive, Reply};
use crate::types::{Bypass, Caller, Endpoint, Head, Question, Role};

mod resume;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const COALESCE: HeaderName = HeaderName::from_static(header::COALESCE);
/// The id of the stream, where its client can come back to it.
const STREAM: HeaderName = HeaderName::from_static("x-infergw-stream");

/// Answer one request. Never fails: every fault has its response.
pub async fn answer<B>(gateway: Arc<Gateway>, request: Request<B>) -> Response<Reply>
where
    B: Body<Data = Bytes> + Unpin,
{
    let request_id = request_id(request.headers());
    let shape = Endpoint::of(request.uri().path()).map(Endpoint::errors).unwrap_or_default();
    let mut response = match routed(&gateway, request, &request_id).await {
        Ok(response) => response,
        Err(error) => refusal(&error.in_shape(shape)),
    };
    if let Ok(id) = HeaderValue::try_from(request_id.as_ref()) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    // After these the rest of the body is still on its way: the connection cannot be used again.
    let unread = matches!(response.status(), StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_TIMEOUT);
    if gateway.drain.refuses() || unread {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

async fn routed<B>(gateway: &Arc<Gateway>, request: Request<B>, id: &Arc<str>) -> Result<Response<Reply>, ApiError>
where
    B: Body<Data = Bytes> + Unpin,
{
    // Whoever is turned away at the door has a record too; the path is the client's own text.
    let path = route::known(request.uri().path());
    let refused = |error: ApiError| {
        Record::start(&gateway.metrics, path, Arc::clone(id)).refused(error.status);
        error
    };
    match enter(gateway, &request).map_err(refused)? {
        (Route::Health, _) => Ok(health::alive()),
        (Route::Ready, _) => Ok(health::ready(gateway)),
        (Route::Metrics, _) if gateway.config.server.admin.is_none() => Ok(health::metrics(gateway)),
        (Route::Metrics, _) => Err(refused(ApiError::unknown_path())),
        (Route::Models, _) => Ok(health::models(gateway)),
        (Route::Model(model), _) => health::model(gateway, &model).map_err(refused),
        (Route::Stream(stream), Some(caller)) if gateway.flights.resumes() => {
            resume::stream(gateway, &stream, &request, (caller, Arc::clone(id))).await
        }
        (Route::Stream(_), _) => Err(refused(ApiError::unknown_path())),
        (Route::Ask(endpoint), Some(caller)) => generate(gateway, endpoint, request, (caller, Arc::clone(id))).await,
        (Route::Ask(_), None) => Err(refused(ApiError::unauthorized())),
    }
}

/// What a request asks for, and who asks where that matters.
fn enter<B>(gateway: &Gateway, request: &Request<B>) -> Result<(Route, Option<Caller>), ApiError> {
    header::check(request.headers())?;
    let route = Route::of(request.method(), request.uri().path());
    // Without a key nobody learns which paths there are (X1).
    let caller = match &route {
        Ok(route) if route.is_open() => None,
        Ok(Route::Metrics) if gateway.config.server.admin.is_none() && !gateway.keys.needs_key() => None,
        _ => Some(gateway.keys.enter(request.headers())?),
    };
    Ok((route?, caller))
}

/// A generation and its one completion record: also when the client vanishes, or the answer is a refusal.
async fn generate<B>(
    gateway: &Arc<Gateway>,
    endpoint: Endpoint,
    request: Request<B>,
    (caller, request_id): (Caller, Arc<str>),
) -> Result<Response<Reply>, ApiError>
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut record = Record::start(&gateway.metrics, endpoint.path(), Arc::clone(&request_id));
    let asked = match ask(gateway, endpoint, request, (caller, request_id)).await {
        Ok(asked) => asked,
        Err(error) => {
            record.refused(error.status);
            return Err(error);
        }
    };
    let Asked { question, shared, claim, seen } = asked;
    let model = gateway.pool.label(&question.model);
    record.known(model.clone(), &question.caller.tenant);

    // Step 4: join, or lead. The leader's flight goes on in `Admission::answer`, in a task of its own: followers take no place.
    let (stream, shape) = (question.stream, question.endpoint.errors());
    if let (Some(claim), Some(seen)) = (&claim, seen) {
        return resume::again(gateway, claim, seen, record).await;
    }
    let key = shared.inspect_err(|bypass| gateway.metrics.sharing.bypassed(*bypass)).ok();
    let (admission, pool) = (Arc::clone(&gateway.admission), Arc::clone(&gateway.pool));
    let id = Arc::clone(&question.request_id);
    let lead = move |writer| async move { admission.answer(&pool, &question, writer).await };
    if key.is_none() && !stream && claim.is_none() {
        let (cursor, run) = gateway.flights.alone(lead);
        record.joined(Role::Off);
        let (answered, ()) = join(in_one_piece(cursor, record), run).await;
        return answered;
    }
    let passage = Passage { key, about: About { model, path: endpoint.path() }, claim };
    let (cursor, role) = match gateway.flights.board(passage, lead) {
        Ok(boarded) => boarded,
        Err(why) => return Err(resume::refused(gateway, why, record)),
    };
    record.joined(role);
    if let Some(key) = key {
        tracing::info!(request_id = %id, key = %key.short(), role = role.as_str(), "coalesce");
    }
    let silence = if stream { gateway.config.timeouts.keep_alive } else { Duration::ZERO };
    subscribed(cursor, KeepAlive::every(silence, shape), record, role).await
}

/// Step 8: the head comes from the flight, so that an upstream's 429 is a 429 for all; then the body, event by event.
async fn subscribed(
    mut cursor: Cursor,
    mut keep_alive: KeepAlive,
    mut record: Record,
    role: Role,
) -> Result<Response<Reply>, ApiError> {
    let head = match head_or_comment(&mut cursor, &mut keep_alive).await {
        Some(head) => head,
        None => Arc::new(Head::event_stream()),
    };
    if !head.is_event_stream() {
        return collected(cursor, &head, record, role).await;
    }
    record.head(head.status);
    let id = cursor.stream_id();
    let mut response = response(&head, Reply::flight(cursor, keep_alive, record), role);
    if let Some(id) = id.and_then(|id| HeaderValue::try_from(id.to_string()).ok()) {
        response.headers_mut().insert(STREAM, id);
    }
    Ok(response)
}

/// The answer of a flight of one that is run beside this.
async fn in_one_piece(mut cursor: Cursor, record: Record) -> Result<Response<Reply>, ApiError> {
    let head = cursor.head().await;
    collected(cursor, &head, record, Role::Off).await
}

async fn collected(
    mut cursor: Cursor,
    head: &Head,
    mut record: Record,
    role: Role,
) -> Result<Response<Reply>, ApiError> {
    record.head(head.status);
    let (body, outcome) = reply::collect(&mut cursor).await;
    if role == Role::Follower {
        cursor.generated(generated_tokens(&body).unwrap_or(0));
    }
    if head.status.is_success() && outcome != Outcome::Ok {
        return Err(broken_off(record, outcome));
    }
    Ok(response(head, Reply::recorded(body, record, outcome), role))
}

fn response(head: &Head, body: Reply, role: Role) -> Response<Reply> {
    let mut response = Response::new(body);
    *response.status_mut() = head.status;
    response.headers_mut().clone_from(&head.headers);
    if head.is_event_stream() {
        stream_headers(response.headers_mut());
    }
    response.headers_mut().insert(COALESCE, HeaderValue::from_static(role.as_str()));
    response
}

/// Wait for the flight's head; `None` when a keep-alive comment is due before, which commits a head of our own (S8).
async fn head_or_comment(cursor: &mut Cursor, keep_alive: &mut KeepAlive) -> Option<Arc<Head>> {
    let mut head = pin!(cursor.head());
    poll_fn(|cx| match head.as_mut().poll(cx) {
        Poll::Ready(head) => Poll::Ready(Some(head)),
        Poll::Pending => keep_alive.poll_early(cx).map(|()| None),
    })
    .await
}

/// The flight failed between its head and the end of a body in one piece, of which nothing has gone out (S3).
fn broken_off(mut record: Record, outcome: Outcome) -> ApiError {
    let error = ApiError::bad_gateway("The backend broke off before the end of its answer.");
    record.head(error.status);
    record.end(outcome);
    error
}

/// Steps 2 and 3: read, parse, check; and whether the question may be shared (C5).
async fn ask<B>(
    gateway: &Arc<Gateway>,
    endpoint: Endpoint,
    request: Request<B>,
    (caller, request_id): (Caller, Arc<str>),
) -> Result<Asked, ApiError>
where
    B: Body<Data = Bytes> + Unpin,
{
    if gateway.drain.refuses() {
        return Err(ApiError::draining());
    }
    let (parts, incoming) = request.into_parts();
    let bytes = body::read(incoming, &gateway.config.limits, gateway.config.timeouts.request_body).await?;
    body::check_depth(&bytes, gateway.config.limits.max_depth)?;
    let (mut question, envelope) = api::question(endpoint, &parts.headers, bytes, caller, request_id)?;
    admit::hide_key(&question.caller, &mut question.headers);
    if question.model.is_empty() {
        question.model = gateway.pool.only_model()?;
    }
    gateway.pool.check_model(&question.model)?;
    let policy = &gateway.config.coalesce;
    let allowed = match if question.stream { policy.stream } else { policy.non_stream } {
        Sharing::All => true,
        Sharing::Deterministic => envelope.deterministic,
        Sharing::Off => false,
    };
    let shared = match header::opts_out(&parts.headers) {
        _ if !endpoint.generates() => Err(Bypass::Endpoint),
        Some(bypass) => Err(bypass),
        None if !allowed => Err(Bypass::Policy),
        None => Ok(()),
    };
    let shared = shared.and_then(|()| Key::of(&question).ok_or(Bypass::NotCanonical));
    let resumes = gateway.flights.resumes();
    let (claim, seen) = if resumes { resume::claim(&question, &shared, &parts.headers)? } else { (None, None) };
    Ok(Asked { question, shared, claim, seen })
}

/// A request that is in order.
struct Asked {
    question: Question,
    /// The key under which it shares, or why it does not.
    shared: Result<Key, Bypass>,
    /// By what its client may come back.
    claim: Option<Claim>,
    /// What it has seen, where it does come back.
    seen: Option<EventId>,
}

/// S9: what keeps intermediaries from collecting a stream.
fn stream_headers(headers: &mut HeaderMap) {
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
}

/// The response of a refusal that no flight was started for.
pub fn refusal(error: &ApiError) -> Response<Reply> {
    let mut response = Response::new(Reply::full(error.body().clone()));
    *response.status_mut() = error.status;
    *response.headers_mut() = error.response_headers();
    response
}

/// The client's own id where it is sane, else one of ours. Only for logs and headers, never for the engine (D4).
fn request_id(headers: &HeaderMap) -> Arc<str> {
    let sane = |id: &&str| {
        (1..=128).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.:".contains(&b))
    };
    match headers.get(&REQUEST_ID).and_then(|value| value.to_str().ok()).filter(sane) {
        Some(id) => Arc::from(id),
        None => Arc::from(format!("req-{:032x}", rand::random::<u128>())),
    }
}
