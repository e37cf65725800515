//! Liveness, readiness, metrics and the model list: what looks in from the side.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use serde_json::json;

use crate::Gateway;
use crate::api::error::ApiError;
use crate::backend::engine::SeenGroup;
use crate::reply::Reply;

/// `/healthz`: the process lives.
pub fn alive() -> Response<Reply> {
    reply(StatusCode::OK, "application/json", json!({"status": "alive"}).to_string())
}

/// `/readyz`: 200 only when a backend can serve; 503 with the reasons else, and while draining (R7). Where there are engine
/// groups it says where each stands: one can be ready and lack a rank.
pub fn ready(gateway: &Gateway) -> Response<Reply> {
    let groups: Vec<_> =
        gateway.pool.engine_groups().into_iter().map(|(name, group)| standing(&name, &group)).collect();
    let told = |mut body: serde_json::Value| {
        if !groups.is_empty() {
            body["engines"] = json!(groups);
        }
        body.to_string()
    };
    let reasons = if gateway.drain.announced() {
        vec!["draining".to_owned()]
    } else {
        match gateway.pool.ready() {
            Ok(()) => return reply(StatusCode::OK, "application/json", told(json!({"status": "ready"}))),
            Err(not_ready) => not_ready.reasons,
        }
    };
    let body = told(json!({"status": "not ready", "reasons": reasons}));
    let mut response = reply(StatusCode::SERVICE_UNAVAILABLE, "application/json", body);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(1));
    response
}

fn standing(name: &str, group: &SeenGroup) -> serde_json::Value {
    let mut standing = json!({"name": name, "life": group.life});
    if let Some(reason) = &group.reason {
        standing["reason"] = json!(reason);
    }
    standing
}

/// `/metrics`, in the OpenMetrics text form.
pub fn metrics(gateway: &Gateway) -> Response<Reply> {
    gateway.pool.measure();
    let text = gateway.metrics.encode(gateway.flights.len(), gateway.flights.log_bytes());
    reply(StatusCode::OK, "application/openmetrics-text; version=1.0.0; charset=utf-8", text)
}

/// `/v1/models`
pub fn models(gateway: &Gateway) -> Response<Reply> {
    let data: Vec<_> = gateway.pool.models().iter().map(|model| entry(model)).collect();
    reply(StatusCode::OK, "application/json", json!({"object": "list", "data": data}).to_string())
}

/// `/v1/models/{id}`
///
/// # Errors
/// 404 for a model that nothing serves.
pub fn model(gateway: &Gateway, model: &str) -> Result<Response<Reply>, ApiError> {
    if gateway.pool.models().contains(model) {
        return Ok(reply(StatusCode::OK, "application/json", entry(model).to_string()));
    }
    Err(ApiError::model_not_found(model))
}

/// Something as JSON.
pub fn json(value: &serde_json::Value) -> Response<Reply> {
    reply(StatusCode::OK, "application/json", value.to_string())
}

fn entry(model: &str) -> serde_json::Value {
    json!({"id": model, "object": "model", "created": 0, "owned_by": "infergw"})
}

fn reply(status: StatusCode, content_type: &'static str, body: String) -> Response<Reply> {
    let mut response = Response::new(Reply::full(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
