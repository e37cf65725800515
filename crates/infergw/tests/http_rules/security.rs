//! X: security and limits.

use infergw::config::ApiKey;

use crate::support::client::{CHAT, ask, get};
use crate::support::upstream::good;
use crate::support::{Client, Script, Upstream, chat, gateway, stream};

fn key(key: &str) -> ApiKey {
    ApiKey { key: key.into(), tenant: "t".into() }
}

#[tokio::test]
async fn x1_every_route_but_health_needs_a_key() {
    let upstream = Upstream::always(good(&["one"])).await;
    let gateway = gateway(&[&upstream], |config| config.keys = vec![key("sk-right")]).await;
    for path in
        ["/v1/models", "/v1/models/m", "/metrics", "//v1/models", "/v1/../v1/models", "/V1/models", "/v1%2fmodels"]
    {
        let answer = get(gateway.address(), path).await;
        assert!(answer.status == 401 || answer.status == 404, "{path}: {}", answer.status);
        answer.error();
    }
    assert_eq!(get(gateway.address(), "/healthz").await.status, 200);
    assert_ne!(get(gateway.address(), "/readyz").await.status, 401);
    for headers in
        ["", "authorization: Bearer sk-wrong\r\n", "authorization: sk-right\r\n", "authorization: Basic sk-right\r\n"]
    {
        let answer = ask(gateway.address(), headers, &stream("x")).await;
        assert_eq!(answer.status, 401, "{headers}");
        assert!(!answer.text().contains("sk-"), "X5");
    }
    assert_eq!(upstream.questions(), 0);
    assert_eq!(ask(gateway.address(), "authorization: Bearer sk-right\r\n", &stream("x")).await.status, 200);
}

#[tokio::test]
async fn x2_the_gateway_key_never_goes_up() {
    let upstream = Upstream::always(good(&["one"])).await;
    let with_keys = gateway(&[&upstream], |config| config.keys = vec![key("sk-gateway")]).await;
    let headers = "authorization: Bearer sk-gateway\r\nx-infergw-coalesce: off\r\nx-infergw-other: 1\r\n";
    assert_eq!(ask(with_keys.address(), headers, &stream("x")).await.status, 200);
    let asked = upstream.asked()[0].head.clone();
    assert!(!asked.contains("sk-gateway") && !asked.contains("x-infergw"), "{asked}");
}

#[tokio::test]
async fn x2_a_backends_own_key_replaces_the_clients() {
    let upstream = Upstream::always(good(&["one"])).await;
    let own = gateway(&[&upstream], |config| config.backends[0].key = Some("sk-backend".into())).await;
    ask(own.address(), "authorization: Bearer sk-client\r\nx-api-key: sk-client\r\n", &stream("x")).await;
    assert_eq!(upstream.asked()[0].header("x-api-key"), None);
    assert_eq!(upstream.asked()[0].header("authorization"), Some("Bearer sk-backend"));
    let none = gateway(&[&upstream], |_| {}).await;
    ask(none.address(), "authorization: Bearer sk-client\r\n", &stream("x")).await;
    assert_eq!(upstream.asked()[1].header("authorization"), Some("Bearer sk-client"), "relayed: no keys anywhere");
}

#[tokio::test]
async fn x2_what_two_readers_could_read_in_two_ways_is_refused() {
    let upstream = Upstream::always(good(&["one"])).await;
    let gateway = gateway(&[&upstream], |_| {}).await;
    let twice = "authorization: Bearer a\r\nauthorization: Bearer b\r\n";
    assert_eq!(ask(gateway.address(), twice, &stream("x")).await.status, 400);
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\n");
    let body = stream("x");
    for both in
        ["content-length: 5\r\ntransfer-encoding: chunked\r\n", "transfer-encoding: chunked\r\ncontent-length: 5\r\n"]
    {
        let mut client = Client::connect(gateway.address()).await;
        client.send(format!("{head}{both}\r\n{:x}\r\n{body}\r\n0\r\n\r\n", body.len())).await;
        assert_eq!(client.answer().await.status, 400, "{both}");
    }
    let mut client = Client::connect(gateway.address()).await;
    client.send(format!("{head}x-odd: a\rb\r\ncontent-length: 0\r\n\r\n")).await;
    client.read_until("HTTP/1.1 400").await;
    assert_eq!(upstream.questions(), 0);
}

#[tokio::test]
async fn x4_deep_json_is_a_400_and_the_gateway_lives() {
    let upstream = Upstream::always(Script::new().json("200 OK", "{}")).await;
    let gateway = gateway(&[&upstream], |_| {}).await;
    for depth in [300, 10_000, 1_000_000] {
        let deep = format!("{{\"model\":\"m\",\"x\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
        let answer = ask(gateway.address(), "", &deep).await;
        assert_eq!(answer.status, 400, "{depth}");
        answer.error();
    }
    let text = chat(&"[".repeat(10_000));
    assert_eq!(ask(gateway.address(), "", &text).await.status, 200, "brackets in text are text");
}
