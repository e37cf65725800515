//! Rules on headers: what is refused, what is never forwarded (S9, X2).

use http::HeaderMap;
use http::header::{AUTHORIZATION, CONTENT_LENGTH, TRANSFER_ENCODING};

use super::error::ApiError;
use crate::hop_by_hop::strip_hop_by_hop;
use crate::types::Bypass;

/// What an upstream must not see beyond that: it gets its own, or none.
const NOT_FORWARDED: [&str; 4] = ["host", "content-length", "accept-encoding", "expect"];

/// Where a caller opts out of sharing (C5).
pub const COALESCE: &str = "x-infergw-coalesce";
/// Where a caller may name a data-parallel rank (X2).
pub const RANK: &str = "x-data-parallel-rank";

/// Refuse what two parsers could read in two ways.
///
/// # Errors
/// 400 for a second `Authorization`, or for both a length and chunked coding.
pub fn check(headers: &HeaderMap) -> Result<(), ApiError> {
    if headers.get_all(AUTHORIZATION).iter().nth(1).is_some() {
        return Err(ApiError::invalid("The request has more than one Authorization header.", None));
    }
    if headers.contains_key(CONTENT_LENGTH) && headers.contains_key(TRANSFER_ENCODING) {
        return Err(ApiError::invalid("The request has both Content-Length and Transfer-Encoding.", None));
    }
    Ok(())
}

/// The headers that go to an upstream. The caller's key is taken out by `admit` where it is the gateway's.
pub fn forwarded(headers: &HeaderMap) -> HeaderMap {
    let mut forwarded = headers.clone();
    strip_hop_by_hop(&mut forwarded, |name| NOT_FORWARDED.contains(&name) || name.starts_with("x-infergw-"));
    forwarded
}

/// The rank that body or header names (R6, X2).
///
/// # Errors
/// 400 where the header is no rank, or the two differ.
pub fn rank(headers: &HeaderMap, in_body: Option<u16>) -> Result<Option<u16>, ApiError> {
    let Some(value) = headers.get(RANK) else { return Ok(in_body) };
    let rank = value.to_str().ok().and_then(|text| text.trim().parse::<u16>().ok());
    match (rank, in_body) {
        (None, _) => Err(ApiError::invalid(
            "x-data-parallel-rank must be an integer from 0 to 65535.",
            Some("data_parallel_rank"),
        )),
        (Some(header), Some(body)) if header != body => {
            Err(ApiError::invalid("data_parallel_rank and x-data-parallel-rank differ.", Some("data_parallel_rank")))
        }
        (rank, _) => Ok(rank),
    }
}

/// The event that the client saw last, where it comes back to a stream. An empty one is none.
///
/// # Errors
/// 400 for a value that no header of ours is.
pub fn last_event_id(headers: &HeaderMap) -> Result<Option<&str>, ApiError> {
    let Some(value) = headers.get("last-event-id").filter(|value| !value.is_empty()) else { return Ok(None) };
    value.to_str().map(Some).map_err(|_| ApiError::malformed_event_id())
}

/// The caller's own name for a request that is to run once only. An empty one is none.
pub fn idempotency_key(headers: &HeaderMap) -> Option<&[u8]> {
    headers.get("idempotency-key").map(|value| value.as_bytes()).filter(|value| !value.is_empty())
}

/// Whether, and how, the caller wants its request to itself (C5).
pub fn opts_out(headers: &HeaderMap) -> Option<Bypass> {
    if headers.get(COALESCE).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"off")) {
        return Some(Bypass::OptedOut);
    }
    no_store(headers).then_some(Bypass::NoStore)
}

/// Whether the caller forbids to keep its answer.
pub fn no_store(headers: &HeaderMap) -> bool {
    headers
        .get_all(http::header::CACHE_CONTROL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|directive| directive.trim().eq_ignore_ascii_case("no-store"))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(name.parse::<http::HeaderName>().unwrap(), value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn s9_hop_by_hop_headers_and_those_named_in_connection_go_no_further() {
        let sent = headers(&[
            ("connection", "close, X-Private"),
            ("x-private", "1"),
            ("te", "trailers"),
            ("x-infergw-anything", "1"),
            ("accept-encoding", "gzip"),
            ("openai-beta", "y"),
        ]);
        let kept = forwarded(&sent);
        assert_eq!(kept, headers(&[("openai-beta", "y")]));
    }

    #[test]
    fn x2_ambiguous_requests_are_refused() {
        assert!(check(&headers(&[("authorization", "Bearer a"), ("authorization", "Bearer b")])).is_err());
        assert!(check(&headers(&[("content-length", "1"), ("transfer-encoding", "chunked")])).is_err());
        assert!(check(&headers(&[("authorization", "Bearer a"), ("content-length", "1")])).is_ok());
    }

    #[test]
    fn x2_a_rank_may_be_named_in_the_header() {
        let rank = |value, body| rank(&headers(&[(RANK, value)]), body).map_err(|_| ());
        assert_eq!(rank("3", None), Ok(Some(3)));
        assert_eq!(rank("3", Some(3)), Ok(Some(3)));
        assert_eq!(rank("3", Some(4)), Err(()));
        assert_eq!(rank("-1", None), Err(()));
        assert_eq!(rank("70000", None), Err(()));
    }

    #[test]
    fn c5_a_caller_opts_out() {
        assert_eq!(opts_out(&headers(&[("x-infergw-coalesce", "off")])), Some(Bypass::OptedOut));
        assert_eq!(opts_out(&headers(&[("cache-control", "no-cache, No-Store")])), Some(Bypass::NoStore));
        assert_eq!(opts_out(&headers(&[("cache-control", "no-cache")])), None);
    }
}
