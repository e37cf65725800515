use ts_wire::Dict;

use super::*;

fn details(entries: &[(&str, Value)]) -> FinishDetails {
    Dict(entries.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect())
}

fn told(details: Option<&FinishDetails>) -> (u16, Cause, String) {
    let failure = abort(details, None);
    let body = String::from_utf8_lossy(failure.error.body()).into_owned();
    (failure.error.status.as_u16(), failure.cause, body)
}

/// R8: an abort without a word is an error status.
#[test]
fn r8_abort_without_a_reason() {
    let (status, cause, body) = told(None);
    assert_eq!((status, cause), (502, Cause::Backend));
    assert!(body.contains("no reason"));
}

/// R8: an admission refusal is the client's 400, with the engine's words.
#[test]
fn r8_refusal_keeps_its_words() {
    let details = details(&[("message", "Invalid request: top_k".into()), ("status_code", 400_i64.into())]);
    let (status, cause, body) = told(Some(&details));
    assert_eq!((status, cause), (400, Cause::Refused));
    assert!(body.contains("Invalid request: top_k") && body.contains("invalid_request_error"));
}

/// A6: a refusal of a constraint names the field that it came from, another one does not.
#[test]
fn a6_refused_constraints_are_named() {
    let param = |message: &str| {
        let details = details(&[("message", message.into()), ("status_code", 400_i64.into())]);
        let failure = abort(Some(&details), Some("response_format"));
        let body: serde_json::Value = serde_json::from_slice(failure.error.body()).unwrap_or_default();
        body["error"]["param"].clone()
    };
    assert_eq!(param("Invalid request: json_schema: unknown type"), "response_format");
    assert_eq!(param("Grammar compilation failed"), "response_format");
    assert_eq!(param("Invalid request: top_k"), serde_json::Value::Null);
}

/// Out of memory is back-pressure; other faults are the engine's.
#[test]
fn engine_faults() {
    let capacity = details(&[("message", "kv".into()), ("err_type", 524_i64.into())]);
    assert_eq!((told(Some(&capacity)).0, told(Some(&capacity)).1), (503, Cause::Busy));
    let numerical =
        details(&[("message", "nan".into()), ("err_type", 523_i64.into()), ("status_code", 500_i64.into())]);
    assert_eq!((told(Some(&numerical)).0, told(Some(&numerical)).1), (502, Cause::Backend));
    let endless = details(&[("message", "x".repeat(100_000).as_str().into())]);
    assert!(told(Some(&endless)).2.len() < 1000);
}

/// S3: a broken stream names no address.
#[test]
fn s3_no_address() {
    let broken = stream(&StreamError::Transport("tcp://10.0.0.1:5555 reset".into()), None, true);
    assert_eq!((broken.error.status.as_u16(), broken.cause), (502, Cause::Truncated));
    assert!(!String::from_utf8_lossy(broken.error.body()).contains("10.0.0.1"));
    let lost = EndCause::RankLost { engine_index: 3, reason: "tcp://10.0.0.1:5555 closed".into() };
    let broken = stream(&StreamError::EngineDead, Some(&lost), false);
    assert_eq!((broken.error.status.as_u16(), broken.cause), (502, Cause::Unreachable));
    let body = String::from_utf8_lossy(broken.error.body()).into_owned();
    assert!(body.contains("engine 3") && !body.contains("10.0.0.1"), "{body}");
}
