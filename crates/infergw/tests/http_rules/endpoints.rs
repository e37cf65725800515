//! The endpoints beside chat completions: what is relayed, and how their streams end.

use infergw::types::ENDPOINTS;
use serde_json::json;

use crate::support::client::Answer;
use crate::support::{Client, Script, Upstream, gateway, metric};

const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";
const STREAM: &str = r#"{"model":"m","stream":true}"#;

async fn post(address: std::net::SocketAddr, path: &str, headers: &str, body: &str) -> Answer {
    let mut client = Client::connect(address).await;
    client.post(path, headers, body).await;
    client.answer().await
}

/// What a client of `path` gets when its upstream plays `script`.
async fn relayed(path: &str, script: Script) -> String {
    let upstream = Upstream::always(script).await;
    let gateway = gateway(&[&upstream], |_| {}).await;
    let answer = post(gateway.address(), path, "", STREAM).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.text()
}

/// An event that is named after its type.
fn event(data: &serde_json::Value) -> String {
    format!("event: {}\ndata: {data}\n\n", data["type"].as_str().unwrap())
}

fn text_delta() -> String {
    event(
        &json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "\"stop_reason\""}}),
    )
}

fn stop_reason() -> String {
    event(&json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}}))
}

fn message_stop() -> String {
    event(&json!({"type": "message_stop"}))
}

#[tokio::test]
async fn a2_every_endpoint_is_relayed_as_it_is() {
    for row in &ENDPOINTS {
        let upstream = Upstream::always(Script::new().json("200 OK", r#"{"any": [1.0, {"answer":null}]}"#)).await;
        let gateway = gateway(&[&upstream], |_| {}).await;
        let body = r#"{"model":"m", "input": ["a", 12345678901234567890123], "vendor": {"b": 1.0}}"#;
        let answer = post(gateway.address(), row.path, "", body).await;
        assert_eq!(
            (answer.status, answer.text().as_str()),
            (200, r#"{"any": [1.0, {"answer":null}]}"#),
            "{}",
            row.path
        );
        let asked = upstream.asked().remove(0);
        assert!(asked.head.starts_with(&format!("POST {} ", row.path)), "{}", asked.head);
        assert_eq!(asked.body, body.as_bytes());
    }
}

#[tokio::test]
async fn a2_a_model_that_need_not_be_named_is_the_only_one() {
    let upstream = Upstream::always(Script::new().json("200 OK", "{}")).await;
    let gateway = gateway(&[&upstream], |config| config.backends[0].models = vec!["m".into()]).await;
    assert_eq!(post(gateway.address(), "/tokenize", "", r#"{"prompt":"x"}"#).await.status, 200);
    assert_eq!(upstream.asked()[0].body, br#"{"prompt":"x"}"#);
    assert_eq!(post(gateway.address(), "/v1/embeddings", "", r#"{"input":"x"}"#).await.error()["param"], "model");
    let several = crate::support::gateway(&[&upstream], |config| config.backends[0].models.push("n".into())).await;
    assert_eq!(post(several.address(), "/tokenize", "", r#"{"prompt":"x"}"#).await.error()["param"], "model");
}

#[tokio::test]
async fn c5_what_generates_nothing_is_not_shared() {
    let upstream = Upstream::always(Script::new().json("200 OK", "{}")).await;
    let gateway = gateway(&[&upstream], |_| {}).await;
    let body = r#"{"model":"m","input":"x","temperature":0,"stream":true}"#;
    let answer = post(gateway.address(), "/v1/embeddings", "", body).await;
    assert_eq!(answer.header("x-infergw-coalesce"), Some("off"));
}

#[tokio::test]
async fn s4_a_message_is_whole_with_its_stop_reason() {
    let (text, stop, end) = (text_delta(), stop_reason(), message_stop());
    let whole = format!("{text}{stop}{end}");
    assert_eq!(relayed(MESSAGES, Script::new().stream().chunks_of(7, whole.as_bytes()).end()).await, whole);
    // The last event is missing, or the connection breaks: the gateway says it.
    for script in
        [Script::new().stream().chunk(&text).chunk(&stop), Script::new().stream().chunk(format!("{text}{stop}"))]
    {
        assert_eq!(relayed(MESSAGES, script.clone().end()).await, whole);
        assert_eq!(relayed(MESSAGES, script.rst()).await, whole);
    }
    // Some servers send the other API's end, too.
    let done = format!("{whole}data: [DONE]\n\n");
    assert_eq!(relayed(MESSAGES, Script::new().stream().chunk(&done).hold()).await, done);
}

#[tokio::test]
async fn s3_a_message_without_a_stop_reason_is_a_failure() {
    let text = text_delta();
    for script in [Script::new().stream().chunk(&text).end(), Script::new().stream().chunk(&text).rst()] {
        let upstream = Upstream::always(script).await;
        let gateway = gateway(&[&upstream], |_| {}).await;
        let answer = post(gateway.address(), MESSAGES, "", STREAM).await.text();
        let error = answer.strip_prefix(&text).unwrap();
        assert!(error.starts_with("event: error\ndata: {"), "{error}");
        assert!(error.contains(r#""type":"api_error""#) && !error.contains("DONE"), "{error}");
        let failed = metric(gateway.address(), "infergw_requests_total", &["outcome=\"upstream_truncated\""]).await;
        assert!(failed > 0.0);
    }
}

#[tokio::test]
async fn s5_a_messages_error_event_passes() {
    let error = event(&json!({"type": "error", "error": {"type": "overloaded_error", "message": "later"}}));
    let text = text_delta();
    let answer = relayed(MESSAGES, Script::new().stream().chunk(&text).chunk(&error).end()).await;
    assert_eq!(answer, format!("{text}{error}"));
}

#[tokio::test]
async fn s4_a_response_is_whole_when_it_says_so() {
    let delta = event(&json!({"type": "response.output_text.delta", "delta": "\"response.completed\""}));
    for end in ["response.completed", "response.incomplete", "response.failed"] {
        let whole = format!("{delta}{}", event(&json!({"type": end, "response": {"error": null}})));
        for script in [Script::new().stream().chunks_of(9, whole.as_bytes()), Script::new().stream().chunk(&whole)] {
            assert_eq!(relayed(RESPONSES, script.clone().end()).await, whole);
            assert_eq!(relayed(RESPONSES, script.rst()).await, whole);
        }
    }
    // S3: nothing else is an end.
    let cut = relayed(RESPONSES, Script::new().stream().chunk(&delta).end()).await;
    let error = cut.strip_prefix(&delta).unwrap();
    assert!(error.starts_with("event: error\ndata: {") && error.contains(r#""type":"error""#), "{error}");
    // S6: before anything came, an error has a status.
    let early = event(&json!({"type": "error", "message": "no room", "code": "full", "sequence_number": 0}));
    let upstream = Upstream::always(Script::new().stream().chunk(early).end()).await;
    let gateway = gateway(&[&upstream], |_| {}).await;
    let answer = post(gateway.address(), RESPONSES, "", STREAM).await;
    assert_eq!((answer.status, &answer.error()["message"]), (502, &json!("no room")));
}

#[tokio::test]
async fn s4_a_native_generation_is_whole_with_its_finish_reason() {
    let part = |finish: serde_json::Value| {
        format!("data: {}\n\n", json!({"text": "a", "meta_info": {"finish_reason": finish}}))
    };
    let (begun, ended) = (part(json!(null)), part(json!({"type": "stop"})));
    let whole = format!("{begun}{ended}data: [DONE]\n\n");
    for script in
        [Script::new().stream().chunk(&whole).hold(), Script::new().stream().chunk(format!("{begun}{ended}")).end()]
    {
        assert_eq!(relayed("/generate", script).await, whole);
    }
    let cut = relayed("/generate", Script::new().stream().chunk(&begun).end()).await;
    assert!(cut.starts_with(&format!("{begun}data: {{\"error\":")) && cut.ends_with("data: [DONE]\n\n"), "{cut}");
}

#[tokio::test]
async fn a4_refusals_of_messages_have_anthropics_shape() {
    let upstream = Upstream::always(Script::new().json("500 Oh", "oh")).await;
    let gateway = gateway(&[&upstream], |config| {
        config.keys.push(infergw::config::ApiKey { key: "k".into(), tenant: "t".into() });
    })
    .await;
    let address = gateway.address();
    for (headers, body, status, kind) in [
        ("", STREAM, 401, "authentication_error"),
        ("x-api-key: k\r\n", "{", 400, "invalid_request_error"),
        ("x-api-key: k\r\n", "{}", 400, "invalid_request_error"),
        ("x-api-key: k\r\n", r#"{"model":"other"}"#, 404, "not_found_error"),
        ("x-api-key: k\r\n", STREAM, 500, "api_error"),
        ("x-api-key: k\r\n", r#"{"model":"m"}"#, 500, "api_error"),
    ] {
        for path in [MESSAGES, "/v1/messages/count_tokens"] {
            let answer = post(address, path, headers, body).await;
            let json = answer.json();
            assert_eq!(
                (answer.status, &json["type"], &json["error"]["type"]),
                (status, &json!("error"), &json!(kind)),
                "{json}"
            );
            assert!(json["error"]["message"].as_str().is_some_and(|message| !message.is_empty()));
        }
    }
    assert!(upstream.asked().iter().all(|asked| asked.header("x-api-key").is_none()), "X2");
}
