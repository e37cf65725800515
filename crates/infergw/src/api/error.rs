//! The one place that makes error statuses and error bodies (behaviours A4), for JSON answers and for SSE error events (S5).

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::Serialize;

mod resume;
mod shape;

/// An error as the client sees it: a status, extra headers and an OpenAI-shaped body.
#[derive(Debug, Clone)]
pub struct ApiError {
    /// The HTTP status, where the response head has not gone out yet.
    pub status: StatusCode,
    /// Headers beyond the content type, for example `Retry-After`.
    pub headers: HeaderMap,
    body: Bytes,
}

#[derive(Serialize)]
struct Shape<'a> {
    error: Inner<'a>,
}

#[derive(Serialize)]
struct Inner<'a> {
    message: &'a str,
    r#type: &'a str,
    param: Option<&'a str>,
    code: Option<&'a str>,
}

impl ApiError {
    /// An error with its four fields. `message` must not carry prompts, keys or backend addresses (X5, S3).
    pub fn new(status: StatusCode, kind: &str, message: &str, param: Option<&str>, code: Option<&str>) -> Self {
        let shape = Shape { error: Inner { message, r#type: kind, param, code } };
        // A struct of strings always serialises; the fallback keeps this total.
        let body = serde_json::to_vec(&shape).unwrap_or_else(|_| br#"{"error":{}}"#.to_vec());
        Self { status, headers: HeaderMap::new(), body: body.into() }
    }

    /// 400: the request is not valid; `param` names the field.
    pub fn invalid(message: &str, param: Option<&str>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message, param, None)
    }

    /// 401: no key, or not one of ours.
    pub fn unauthorized() -> Self {
        let message = "Incorrect or missing API key. Send one as 'Authorization: Bearer KEY'.";
        let mut error =
            Self::new(StatusCode::UNAUTHORIZED, "authentication_error", message, None, Some("invalid_api_key"));
        error.headers.insert(http::header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        error
    }

    /// 404 for a model that nothing serves (A4, R1).
    pub fn model_not_found(model: &str) -> Self {
        let shown: String = model.chars().take(200).collect();
        let message = format!("The model '{shown}' does not exist. GET /v1/models lists those that do.");
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", &message, Some("model"), Some("model_not_found"))
    }

    /// 404 for a path that is no endpoint.
    pub fn unknown_path() -> Self {
        let message = "Unknown path. The endpoints are under /v1; see the README.";
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message, None, Some("unknown_url"))
    }

    /// 400: the model is served by an engine, and engines have nothing to answer this endpoint with.
    pub fn unsupported_endpoint(path: &str) -> Self {
        let message = format!("{path} is not supported by this model's engine.");
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", &message, None, Some("unsupported_endpoint"))
    }

    /// 404 for a backend that is not there; for operators.
    pub fn backend_not_found(name: &str) -> Self {
        let shown: String = name.chars().take(100).collect();
        let message = format!("There is no backend '{shown}'. GET /admin/backends lists them.");
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", &message, Some("name"), Some("backend_not_found"))
    }

    /// 409: the change cannot be made to what is there; for operators.
    pub fn conflict(message: &str, code: &str) -> Self {
        Self::new(StatusCode::CONFLICT, "invalid_request_error", message, None, Some(code))
    }

    /// 403 for a change that a web page asks for: a page that an operator looks at must not act in his place.
    pub fn from_a_page() -> Self {
        let message = "Changes are not taken from web pages (the request has an Origin header).";
        Self::new(StatusCode::FORBIDDEN, "permission_error", message, None, Some("cross_origin"))
    }

    /// 405 with the allowed method.
    pub fn method_not_allowed(allow: &'static str) -> Self {
        let message = format!("This path takes {allow} only.");
        let mut error = Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "invalid_request_error",
            &message,
            None,
            Some("method_not_allowed"),
        );
        error.headers.insert(http::header::ALLOW, HeaderValue::from_static(allow));
        error
    }

    /// 413: the body is over the limit (X4).
    pub fn too_large(limit: usize) -> Self {
        let message = format!("The request body is larger than the limit of {limit} bytes (limits.max_body).");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", &message, None, Some("request_too_large"))
    }

    /// 408: the client paused too long in the middle of its body.
    pub fn slow_body() -> Self {
        let message = "The request's body did not arrive in time (timeouts.request_body).";
        Self::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", message, None, Some("request_body_timeout"))
    }

    /// 502: the backend could not be reached, or broke off.
    pub fn bad_gateway(message: &str) -> Self {
        Self::new(StatusCode::BAD_GATEWAY, "upstream_error", message, None, Some("bad_gateway"))
    }

    /// 503 with `Retry-After`: nothing can serve this now (S6).
    pub fn unavailable(message: &str, retry_after_secs: u64) -> Self {
        let mut error =
            Self::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", message, None, Some("no_backend"));
        error.headers.insert(RETRY_AFTER, HeaderValue::from(retry_after_secs));
        error
    }

    /// 429: the caller's own limit is reached (`code` says which), or 503: there is no room for the model.
    pub fn not_admitted(status: StatusCode, message: &str, code: &str, retry_after_secs: u64) -> Self {
        let own = status == StatusCode::TOO_MANY_REQUESTS;
        let kind = if own { "rate_limit_error" } else { "service_unavailable" };
        let mut error = Self::new(status, kind, message, None, Some(code));
        error.headers.insert(RETRY_AFTER, HeaderValue::from(retry_after_secs));
        error
    }

    /// 504: gave up waiting; `limit` names the time limit's key.
    pub fn timeout(message: &str, limit: &str) -> Self {
        Self::new(StatusCode::GATEWAY_TIMEOUT, "timeout_error", message, None, Some(limit))
    }

    /// The SSE error of a client that reads too slowly beside a faster one on the same flight (M1).
    pub fn lagged() -> Self {
        let message = "This client read its stream too slowly (coalesce.join_window) and was cut off.";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "client_too_slow", message, None, Some("client_too_slow"))
    }

    /// 503 while the gateway shuts down.
    pub fn draining() -> Self {
        let message = "The gateway is shutting down. Send the request again; another instance will take it.";
        let mut error =
            Self::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", message, None, Some("draining"));
        error.headers.insert(RETRY_AFTER, HeaderValue::from(1));
        error
    }

    /// 500: a fault of the gateway's own.
    pub fn internal(message: &str) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message, None, Some("internal_error"))
    }

    /// An upstream's own error: a body in our shape passes unchanged, anything else is put into it (A2, A4).
    pub fn upstream(status: StatusCode, headers: HeaderMap, body: Bytes) -> Self {
        if is_error_shape(&body) {
            return Self { status, headers, body };
        }
        let message = format!("The backend answered with status {}.", status.as_u16());
        let kind = if status.is_client_error() { "invalid_request_error" } else { "upstream_error" };
        Self { headers, ..Self::new(status, kind, &message, None, None) }
    }

    /// An upstream's error that came as an event of a stream. Before anything went to the client it has a status again:
    /// the one its `code` names, or 502.
    pub fn upstream_event(data: Bytes) -> Self {
        #[derive(serde::Deserialize)]
        struct Coded {
            error: Code,
        }
        #[derive(serde::Deserialize)]
        struct Code {
            code: u16,
        }
        let data = shape::nested(data);
        let named =
            serde_json::from_slice::<Coded>(&data).ok().and_then(|coded| StatusCode::from_u16(coded.error.code).ok());
        let status = named.filter(|s| s.is_client_error() || s.is_server_error()).unwrap_or(StatusCode::BAD_GATEWAY);
        Self::upstream(status, HeaderMap::new(), data)
    }

    /// The JSON body.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// Response headers for the JSON form.
    pub fn response_headers(&self) -> HeaderMap {
        let mut headers = self.headers.clone();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers
    }
}

fn is_error_shape(body: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Probe<'a> {
        #[serde(borrow)]
        error: std::collections::HashMap<&'a str, &'a serde_json::value::RawValue>,
    }
    serde_json::from_slice::<Probe<'_>>(body).is_ok_and(|probe| probe.error.contains_key("message"))
}
