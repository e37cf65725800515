//! A: the API on HTTP backends.

use crate::support::client::{CHAT, ask, get};
use crate::support::{Client, Script, Upstream, chat, gateway, stream};

#[tokio::test]
async fn a2_the_body_goes_up_and_the_answer_comes_down_unchanged() {
    let odd = "{ \"choices\" : [], \"big\": 12345678901234567890123, \"x\": 1.0, \"u\": \"\\u00e9\" }\n";
    let upstream = Upstream::always(Script::new().json_with("200 OK", "x-vendor: v\r\n", odd)).await;
    let gateway = gateway(&[&upstream], |_| {}).await;
    let body = "{\"model\":\"m\", \"messages\":[],\n \"n\": 1e0, \"vendor\":{\"b\":1.0,\"a\":98765432109876543210}}";
    let answer = ask(gateway.address(), "x-mine: 1\r\n", body).await;
    assert_eq!((answer.text().as_str(), answer.header("x-vendor")), (odd, Some("v")));
    let asked = &upstream.asked()[0];
    assert_eq!(asked.body, body.as_bytes());
    assert_eq!(asked.header("x-mine"), Some("1"));
    assert!(asked.head.starts_with("POST /v1/chat/completions HTTP/1.1"));
    assert_eq!(asked.header("host"), Some(upstream.address.to_string().as_str()));
}

#[tokio::test]
async fn a2_only_errors_of_another_shape_are_put_into_ours() {
    let upstream = Upstream::always(Script::new().json("418 Teapot", "{\"detail\":\"short and stout\"}")).await;
    let gateway = gateway(&[&upstream], |_| {}).await;
    let answer = ask(gateway.address(), "", &chat("x")).await;
    assert_eq!(answer.status, 418);
    answer.error();
}

#[tokio::test]
async fn a4_every_refusal_has_the_one_shape() {
    let upstream = Upstream::always(Script::new().json("200 OK", "{}")).await;
    let gateway = gateway(&[&upstream], |config| config.limits.max_body = 10_000).await;
    for (body, status, param) in [
        ("", 400, None),
        ("{", 400, None),
        ("[]", 400, None),
        ("{}", 400, Some("model")),
        ("{\"model\":7}", 400, Some("model")),
        ("{\"model\":\"m\",\"stream\":1}", 400, Some("stream")),
        ("{\"model\":\"other\"}", 404, Some("model")),
        (&"x".repeat(10_001), 413, None),
    ] {
        let answer = ask(gateway.address(), "", body).await;
        assert_eq!(answer.status, status, "{body}");
        assert_eq!(answer.error()["param"].as_str(), param, "{body}");
        assert!(answer.header("x-request-id").is_some());
    }
    assert_eq!(ask(gateway.address(), "", "{\"model\":\"other\"}").await.error()["code"], "model_not_found");
    let answer = get(gateway.address(), "/v1/nothing").await;
    assert_eq!(answer.status, 404);
    answer.error();
    let answer = get(gateway.address(), CHAT).await;
    assert_eq!((answer.status, answer.header("allow")), (405, Some("POST")));
    answer.error();
    assert_eq!(upstream.questions(), 0);
}

#[tokio::test]
async fn a4_too_large_a_body_is_a_413_without_a_length_too() {
    let upstream = Upstream::always(Script::new().json("200 OK", "{}")).await;
    let gateway = gateway(&[&upstream], |config| config.limits.max_body = 10_000).await;
    let mut client = Client::connect(gateway.address()).await;
    client.send(format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")).await;
    for _ in 0..11 {
        client.send(format!("3e8\r\n{}\r\n", "x".repeat(1000))).await;
    }
    assert_eq!(client.answer().await.status, 413);
}

#[tokio::test]
async fn models_and_health_are_told() {
    let upstream = Upstream::always(Script::new().json("200 OK", "{}")).await;
    let gateway = gateway(&[&upstream], |_| {}).await;
    let listed = get(gateway.address(), "/v1/models").await.json();
    assert_eq!(listed["data"][0]["id"], "m");
    assert_eq!(get(gateway.address(), "/v1/models/m").await.json()["id"], "m");
    assert_eq!(get(gateway.address(), "/v1/models/n").await.status, 404);
    assert_eq!(get(gateway.address(), "/healthz").await.status, 200);
    let mut client = Client::connect(gateway.address()).await;
    client.send("HEAD /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    client.read_until("HTTP/1.1 200 OK").await;
}

#[tokio::test]
async fn the_callers_request_id_comes_back() {
    let upstream = Upstream::always(Script::new().json("200 OK", "{}")).await;
    let gateway = gateway(&[&upstream], |_| {}).await;
    let answer = ask(gateway.address(), "x-request-id: mine-1\r\n", &chat("x")).await;
    assert_eq!(answer.header("x-request-id"), Some("mine-1"));
    assert_eq!(upstream.asked()[0].header("x-request-id"), Some("mine-1"));
    let answer = ask(gateway.address(), "x-request-id: a b\r\n", &stream("y")).await;
    assert_ne!(answer.header("x-request-id"), Some("a b"));
}
