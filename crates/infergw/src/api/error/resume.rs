//! What a client is told that cannot come back to its stream.

use http::StatusCode;

use super::ApiError;

const KIND: &str = "invalid_request_error";
const LAST_EVENT_ID: &str = "Last-Event-ID";

impl ApiError {
    /// 404: this caller has no such stream. `linger` is how long streams are kept.
    pub fn stream_not_found(linger: &str) -> Self {
        let message = format!(
            "There is no such stream. A stream is kept for {linger} after its last client has left (coalesce.linger)."
        );
        Self::new(StatusCode::NOT_FOUND, KIND, &message, None, Some("stream_not_found"))
    }

    /// 410: the stream has waited for its client as long as streams do, or there was no more room.
    pub fn stream_expired(linger: &str) -> Self {
        let message = format!(
            "This stream is not kept any more: it is for {linger} after its last client has left (coalesce.linger), or \
             until there is no more room (coalesce.linger_bytes)."
        );
        Self::new(StatusCode::GONE, KIND, &message, None, Some("stream_expired"))
    }

    /// 410: what comes next is not held any more.
    pub fn stream_position_gone() -> Self {
        let message =
            "What comes after this event is not kept any more: of a long stream the end is (coalesce.join_window).";
        Self::new(StatusCode::GONE, KIND, message, Some(LAST_EVENT_ID), Some("stream_position_gone"))
    }

    /// 400: no event's id.
    pub fn malformed_event_id() -> Self {
        let message = "Last-Event-ID must be the 'id' of an event of this gateway's, as it came.";
        Self::new(StatusCode::BAD_REQUEST, KIND, message, Some(LAST_EVENT_ID), Some("invalid_event_id"))
    }

    /// 400: the stream has not come to this event.
    pub fn event_to_come() -> Self {
        let message = "The stream has not come to this event.";
        Self::new(StatusCode::BAD_REQUEST, KIND, message, Some(LAST_EVENT_ID), Some("invalid_event_id"))
    }

    /// 409: the stream is the answer to another request.
    pub fn stream_of_another_request() -> Self {
        let message = "Last-Event-ID names a stream that answers another request.";
        Self::new(StatusCode::CONFLICT, KIND, message, Some(LAST_EVENT_ID), Some("stream_of_another_request"))
    }

    /// 409: the key stands for another request.
    pub fn idempotency_key_reused() -> Self {
        let message = "This Idempotency-Key was sent with another request a short while ago.";
        Self::new(StatusCode::CONFLICT, KIND, message, Some("Idempotency-Key"), Some("idempotency_key_reused"))
    }

    /// 503: as many clients read the stream as may.
    pub fn stream_full() -> Self {
        let message = "As many clients read this stream as may (coalesce.max_subscribers).";
        let mut error =
            Self::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", message, None, Some("stream_full"));
        error.headers.insert(http::header::RETRY_AFTER, http::HeaderValue::from(1));
        error
    }
}
