//! Which path is what: exact matches only, so that no variant of a path slips by a check (X1).

use http::Method;

use super::error::ApiError;
use crate::types::Endpoint;

/// What a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// A question for a backend.
    Ask(Endpoint),
    /// The list of models.
    Models,
    /// One model.
    Model(String),
    /// A stream to come back to, by its id.
    Stream(String),
    /// Liveness.
    Health,
    /// Readiness.
    Ready,
    /// Prometheus metrics.
    Metrics,
}

impl Route {
    /// The route of a path and a method.
    ///
    /// # Errors
    /// 404 for an unknown path, 405 for a known one with the wrong method.
    pub fn of(method: &Method, path: &str) -> Result<Self, ApiError> {
        let route = match path {
            "/v1/models" => Route::Models,
            "/healthz" => Route::Health,
            "/readyz" => Route::Ready,
            "/metrics" => Route::Metrics,
            _ => match (Endpoint::of(path), path.strip_prefix("/v1/models/"), path.strip_prefix("/v1/streams/")) {
                (Some(endpoint), ..) => Route::Ask(endpoint),
                (None, None, Some(id)) => Route::Stream(id.to_owned()),
                (None, Some(model), _) if !model.is_empty() => {
                    Route::Model(decoded(model).ok_or_else(ApiError::unknown_path)?)
                }
                _ => return Err(ApiError::unknown_path()),
            },
        };
        let allowed = match route {
            Route::Ask(_) => method == Method::POST,
            Route::Stream(_) => method == Method::GET,
            _ => method == Method::GET || method == Method::HEAD,
        };
        match (allowed, &route) {
            (true, _) => Ok(route),
            (false, Route::Ask(_)) => Err(ApiError::method_not_allowed("POST")),
            (false, _) => Err(ApiError::method_not_allowed("GET")),
        }
    }

    /// Whether it is served without a key (X1).
    pub fn is_open(&self) -> bool {
        matches!(self, Route::Health | Route::Ready)
    }
}

/// The path as it stands in logs and metrics: one of ours, else `other`. What clients made up is in neither (O1, M3).
pub fn known(path: &str) -> &'static str {
    const OTHERS: [&str; 4] = ["/v1/models", "/healthz", "/readyz", "/metrics"];
    if let Some(endpoint) = Endpoint::of(path) {
        return endpoint.path();
    }
    let (models, streams) = (path.starts_with("/v1/models/"), path.starts_with("/v1/streams/"));
    match OTHERS.iter().find(|other| **other == path) {
        Some(other) => other,
        None if models => "/v1/models",
        None if streams => "/v1/streams",
        None => "other",
    }
}

/// A percent-encoded model name: names such as `org/model` come with `%2F`.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte == b'%' {
            let digits = rest.get(..2).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = rest.get(2..)?;
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a4_paths_and_methods() {
        let route = |method: Method, path| Route::of(&method, path).map_err(|error| error.status.as_u16());
        assert_eq!(route(Method::POST, "/v1/chat/completions"), Ok(Route::Ask(Endpoint::ChatCompletions)));
        assert_eq!(route(Method::GET, "/v1/chat/completions"), Err(405));
        assert_eq!(route(Method::POST, "/v1/messages/count_tokens"), Ok(Route::Ask(Endpoint::CountTokens)));
        assert_eq!(route(Method::POST, "/healthz"), Err(405));
        assert_eq!(route(Method::GET, "/v1/models/org%2Fmodel"), Ok(Route::Model("org/model".into())));
        assert_eq!(route(Method::GET, "/v1/models/org/model"), Ok(Route::Model("org/model".into())));
        assert_eq!(route(Method::GET, "/v1/models/%zz"), Err(404));
    }

    #[test]
    fn x1_no_variant_of_a_path_slips_by() {
        for path in
            ["//v1/models", "/v1/../v1/models", "/V1/models", "/v1%2fmodels", "/v1/models/", "/v1/models;x", "/"]
        {
            assert_eq!(Route::of(&Method::GET, path).unwrap_err().status.as_u16(), 404, "{path}");
        }
    }
}
