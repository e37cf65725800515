//! The admin listener: what operators see, apart from clients.

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body::Body;

use crate::Gateway;
use crate::answer::refusal;
use crate::api::error::ApiError;
use crate::health;
use crate::reply::Reply;

/// Answer a request on the admin listener.
pub async fn answer<B>(gateway: Arc<Gateway>, request: Request<B>) -> Response<Reply>
where
    B: Body<Data = Bytes> + Unpin,
{
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return refusal(&ApiError::method_not_allowed("GET"));
    }
    match request.uri().path() {
        "/healthz" => health::alive(),
        "/readyz" => health::ready(&gateway),
        "/metrics" => health::metrics(&gateway),
        "/admin/flights" => flights(&gateway, request.uri().query()),
        _ => refusal(&ApiError::unknown_path()),
    }
}

/// Most flights that are shown, and how many are where `limit` is not given.
const MOST_SHOWN: (usize, usize) = (10_000, 100);

/// `/admin/flights?limit=N`: the flights that others can join or could, the oldest first. Flights of one are not among them.
fn flights(gateway: &Gateway, query: Option<&str>) -> Response<Reply> {
    let mut limit = MOST_SHOWN.1;
    for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        match pair.strip_prefix("limit=").map(str::parse::<usize>) {
            Some(Ok(number)) => limit = number.min(MOST_SHOWN.0),
            Some(Err(_)) => return refusal(&ApiError::invalid("'limit' must be a whole number.", Some("limit"))),
            None => return refusal(&ApiError::invalid("The only parameter here is 'limit'.", None)),
        }
    }
    let (flights, total) = gateway.flights.seen(limit);
    health::json(&serde_json::json!({"total": total, "flights": flights}))
}
