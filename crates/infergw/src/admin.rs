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
        _ => refusal(&ApiError::unknown_path()),
    }
}
