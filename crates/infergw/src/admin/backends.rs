//! The backends, seen and changed by operators. Changes hold until the gateway ends: no file is written.
//!
//! | request | what it does |
//! |---|---|
//! | `GET /admin/backends`, `GET /admin/backends/{name}` | all of them, or one |
//! | `POST /admin/backends` | add one: the body is an entry of `[[backends]]` as JSON |
//! | `POST /admin/backends/{name}/drain`, `.../undrain` | no new requests, or some again |
//! | `DELETE /admin/backends/{name}` | take it out; running requests finish |

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body::Body;
use serde_json::json;

use crate::Gateway;
use crate::api::body;
use crate::api::error::ApiError;
use crate::config::Upstream;
use crate::config::load::explain;
use crate::health;
use crate::pool::{ChangeError, Seen};
use crate::reply::Reply;

/// Answer a request for what stands after `/admin/backends` in its path.
pub(super) async fn answer<B>(
    gateway: &Arc<Gateway>,
    rest: &str,
    request: Request<B>,
) -> Result<Response<Reply>, ApiError>
where
    B: Body<Data = Bytes> + Unpin,
{
    let (name, action) = match rest.strip_prefix('/') {
        None if rest.is_empty() => ("", ""),
        None => return Err(ApiError::unknown_path()),
        Some(path) => path.split_once('/').unwrap_or((path, "")),
    };
    let (pool, method) = (&gateway.pool, request.method());
    let looks = *method == Method::GET || *method == Method::HEAD;
    match (name.is_empty(), action) {
        (true, "") if looks => Ok(health::json(&json!({"backends": pool.seen()}))),
        (true, "") if *method == Method::POST => {
            let upstream = entry(gateway, request).await?;
            one(StatusCode::CREATED, pool.add(upstream))
        }
        (true, "") => Err(ApiError::method_not_allowed("GET, POST")),
        (false, "") if looks => {
            let found = pool.seen().into_iter().find(|seen| seen.name == name);
            one(StatusCode::OK, found.ok_or_else(|| ChangeError::Unknown(name.to_owned())))
        }
        (false, "") if *method == Method::DELETE => one(StatusCode::ACCEPTED, pool.remove(name)),
        (false, "") => Err(ApiError::method_not_allowed("GET, DELETE")),
        (false, "drain" | "undrain") if *method == Method::POST => {
            one(StatusCode::OK, pool.set_draining(name, action == "drain"))
        }
        (false, "drain" | "undrain") => Err(ApiError::method_not_allowed("POST")),
        _ => Err(ApiError::unknown_path()),
    }
}

/// The body as an entry of `[[backends]]`.
async fn entry<B>(gateway: &Gateway, request: Request<B>) -> Result<Upstream, ApiError>
where
    B: Body<Data = Bytes> + Unpin,
{
    let config = &gateway.config;
    let bytes = body::read(request.into_body(), &config.limits, config.timeouts.request_body).await?;
    serde_json::from_slice(&bytes).map_err(|error| {
        let message = error.to_string();
        let message = message.rsplit_once(" at line ").map_or(message.as_str(), |(message, _)| message);
        ApiError::invalid(&format!("The body is no backend (line {}): {}.", error.line(), explain(message)), None)
    })
}

fn one(status: StatusCode, seen: Result<Seen, ChangeError>) -> Result<Response<Reply>, ApiError> {
    match seen {
        Ok(seen) => {
            let mut response = health::json(&json!(seen));
            *response.status_mut() = status;
            Ok(response)
        }
        Err(error) => Err(refused(&error)),
    }
}

fn refused(error: &ChangeError) -> ApiError {
    let told = error.to_string();
    match error {
        ChangeError::Unknown(name) => ApiError::backend_not_found(name),
        ChangeError::Taken { .. } => ApiError::conflict(&told, "backend_exists"),
        ChangeError::EngineGroup(_) => ApiError::conflict(&told, "engine_group"),
        ChangeError::TooMany => ApiError::conflict(&told, "too_many_backends"),
        ChangeError::Contradiction(_) | ChangeError::Start(_) => ApiError::invalid(&told, None),
    }
}
