//! One error, in the shape of the endpoint that was asked, as JSON or as the end of a stream.

use bytes::Bytes;
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::ApiError;
use crate::types::{DONE, ErrorShape};

/// What can be read of an error's body, ours or an upstream's.
#[derive(Default, Deserialize)]
struct Read {
    /// Anthropic's bodies say what they are.
    #[serde(default)]
    r#type: Option<String>,
    #[serde(default)]
    error: ReadInner,
}

#[derive(Default, Deserialize)]
struct ReadInner {
    #[serde(default)]
    message: Value,
    #[serde(default)]
    param: Value,
    #[serde(default)]
    code: Value,
}

impl ApiError {
    /// The same error in the shape of another API.
    pub fn in_shape(self, shape: ErrorShape) -> Self {
        match shape {
            ErrorShape::OpenAi | ErrorShape::Responses => self,
            ErrorShape::Anthropic => Self { body: self.anthropic().unwrap_or_else(|| self.body.clone()), ..self },
        }
    }

    /// The message alone.
    pub fn message(&self) -> String {
        match self.read().error.message {
            Value::String(message) => message,
            _ => String::new(),
        }
    }

    /// The same error with other names of fields: the client called them so.
    pub fn renamed(self, names: &[(&str, &str)]) -> Self {
        if names.is_empty() || !self.status.is_client_error() {
            return self;
        }
        let Ok(mut body) = serde_json::from_slice::<Value>(&self.body) else { return self };
        for (from, to) in names {
            if let Some(Value::String(message)) = body.pointer_mut("/error/message") {
                *message = message.replace(&format!("'{from}'"), &format!("'{to}'"));
            }
            if body["error"]["param"] == *from {
                body["error"]["param"] = json!(to);
                break;
            }
        }
        Self { body: body.to_string().into(), ..self }
    }

    /// What ends a stream whose head has gone out (S5): the error, and where it belongs there, `[DONE]`.
    pub fn stream_end(&self, shape: ErrorShape) -> Bytes {
        let (name, body) = match shape {
            ErrorShape::OpenAi => (None, self.body.clone()),
            ErrorShape::Anthropic => (Some("error"), self.anthropic().unwrap_or_else(|| self.body.clone())),
            ErrorShape::Responses => (Some("error"), self.responses()),
        };
        let mut event = Vec::with_capacity(body.len() + 40);
        if let Some(name) = name {
            event.extend_from_slice(format!("event: {name}\n").as_bytes());
        }
        event.extend_from_slice(b"data: ");
        // One line: a relayed body may be pretty-printed.
        event.extend(body.iter().map(|&b| if b == b'\n' || b == b'\r' { b' ' } else { b }));
        event.extend_from_slice(b"\n\n");
        if shape == ErrorShape::OpenAi {
            event.extend_from_slice(&DONE);
        }
        event.into()
    }

    /// `None` where the body is in that shape already.
    fn anthropic(&self) -> Option<Bytes> {
        let read = self.read();
        if read.r#type.as_deref() == Some("error") {
            return None;
        }
        let kind = match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            StatusCode::GATEWAY_TIMEOUT | StatusCode::REQUEST_TIMEOUT => "timeout_error",
            status if status.is_client_error() => "invalid_request_error",
            _ => "api_error",
        };
        let body = json!({"type": "error", "error": {"type": kind, "message": read.error.message}});
        Some(body.to_string().into())
    }

    fn responses(&self) -> Bytes {
        let ReadInner { message, param, code } = self.read().error;
        json!({"type": "error", "code": code, "message": message, "param": param}).to_string().into()
    }

    fn read(&self) -> Read {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// An error event of the responses API, which has its fields at the top, in the shape of every other error.
pub(super) fn nested(data: Bytes) -> Bytes {
    #[derive(Deserialize)]
    struct Flat {
        r#type: String,
        message: String,
        #[serde(default)]
        param: Value,
        #[serde(default)]
        code: Value,
    }
    match serde_json::from_slice::<Flat>(&data) {
        Ok(Flat { r#type, message, param, code }) if r#type == "error" => {
            let error = json!({"message": message, "type": "upstream_error", "param": param, "code": code});
            json!({"error": error}).to_string().into()
        }
        _ => data,
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn text(bytes: &Bytes) -> &str {
        std::str::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a4_anthropics_paths_have_anthropics_errors() {
        let shaped = ApiError::invalid("No.", Some("x")).in_shape(ErrorShape::Anthropic);
        assert_eq!(shaped.status, StatusCode::BAD_REQUEST);
        let expected = json!({"type": "error", "error": {"type": "invalid_request_error", "message": "No."}});
        assert_eq!(serde_json::from_slice::<Value>(shaped.body()).unwrap(), expected);
        assert_eq!(shaped.clone().in_shape(ErrorShape::Anthropic).body(), shaped.body(), "once is enough");
    }

    #[test]
    fn s5_the_end_of_a_failed_stream() {
        let error = ApiError::new(StatusCode::BAD_GATEWAY, "upstream_error", "Broke.", None, Some("bad_gateway"));
        assert!(text(&error.stream_end(ErrorShape::OpenAi)).ends_with("}\n\ndata: [DONE]\n\n"));
        let anthropic = error.stream_end(ErrorShape::Anthropic);
        assert!(text(&anthropic).starts_with("event: error\ndata: {\"type\":\"error\","), "{}", text(&anthropic));
        assert!(text(&anthropic).contains("\"api_error\"") && !text(&anthropic).contains("DONE"));
        let responses = error.stream_end(ErrorShape::Responses);
        assert!(text(&responses).starts_with("event: error\ndata: {") && text(&responses).contains("\"Broke.\""));
    }
}
