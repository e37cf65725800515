//! The admin listener: what operators see, apart from clients.

use std::sync::Arc;

use bytes::Bytes;
use http::header::ORIGIN;
use http::{Method, Request, Response};
use http_body::Body;

use crate::Gateway;
use crate::answer::refusal;
use crate::api::error::ApiError;
use crate::health;
use crate::reload::{Outcome, Trigger};
use crate::reply::Reply;

mod backends;

/// Answer a request on the admin listener.
pub async fn answer<B>(gateway: Arc<Gateway>, request: Request<B>) -> Response<Reply>
where
    B: Body<Data = Bytes> + Unpin,
{
    match routed(&gateway, request).await {
        Ok(response) => response,
        Err(error) => refusal(&error),
    }
}

async fn routed<B>(gateway: &Arc<Gateway>, request: Request<B>) -> Result<Response<Reply>, ApiError>
where
    B: Body<Data = Bytes> + Unpin,
{
    let looks = request.method() == Method::GET || request.method() == Method::HEAD;
    if !looks && request.headers().contains_key(ORIGIN) {
        return Err(ApiError::from_a_page());
    }
    let path = request.uri().path().to_owned();
    if let Some(rest) = path.strip_prefix("/admin/backends") {
        return backends::answer(gateway, rest, request).await;
    }
    if path == "/admin/reload" && request.method() == Method::POST {
        return reloaded(gateway).await;
    }
    if !looks {
        return Err(ApiError::method_not_allowed("GET"));
    }
    match path.as_str() {
        "/healthz" => Ok(health::alive()),
        "/readyz" => Ok(health::ready(gateway)),
        "/metrics" => Ok(health::metrics(gateway)),
        "/admin/flights" => flights(gateway, request.uri().query()),
        "/admin/engines" => Ok(engines(gateway)),
        "/admin/admission" => Ok(health::json(&serde_json::json!(gateway.admission.seen()))),
        "/admin/reload" => Ok(health::json(&serde_json::json!({"last": gateway.reload.last()}))),
        _ => Err(ApiError::unknown_path()),
    }
}

/// `GET /admin/engines`: the engine groups with their ranks.
fn engines(gateway: &Gateway) -> Response<Reply> {
    let groups = gateway.pool.engine_groups().into_iter().map(|(name, group)| {
        let mut seen = serde_json::json!(group);
        seen["name"] = name.into();
        seen
    });
    health::json(&serde_json::json!({"engines": groups.collect::<Vec<_>>()}))
}

/// `POST /admin/reload`: as SIGHUP, with what came of it as the answer.
async fn reloaded(gateway: &Gateway) -> Result<Response<Reply>, ApiError> {
    match gateway.reload.now(Trigger::Admin).await {
        Some(Outcome::Rejected { error }) => Err(ApiError::conflict(&error, "config_rejected")),
        Some(_) => Ok(health::json(&serde_json::json!({"last": gateway.reload.last()}))),
        None => Err(ApiError::conflict("This gateway's configuration comes from no file.", "no_config_source")),
    }
}

/// Most flights that are shown, and how many are where `limit` is not given.
const MOST_SHOWN: (usize, usize) = (10_000, 100);

/// `/admin/flights?limit=N`: the flights that others can join or could, the oldest first. Flights of one are not among them.
fn flights(gateway: &Gateway, query: Option<&str>) -> Result<Response<Reply>, ApiError> {
    let mut limit = MOST_SHOWN.1;
    for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        match pair.strip_prefix("limit=").map(str::parse::<usize>) {
            Some(Ok(number)) => limit = number.min(MOST_SHOWN.0),
            Some(Err(_)) => return Err(ApiError::invalid("'limit' must be a whole number.", Some("limit"))),
            None => return Err(ApiError::invalid("The only parameter here is 'limit'.", None)),
        }
    }
    let (flights, total) = gateway.flights.seen(limit);
    Ok(health::json(&serde_json::json!({"total": total, "flights": flights})))
}
