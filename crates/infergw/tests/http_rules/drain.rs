//! R7: shutting down.

use std::time::Duration;

use crate::support::client::{CHAT, ask, get};
use crate::support::upstream::{good, good_events};
use crate::support::{Client, Script, Upstream, gateway, soon, stream, until};

#[tokio::test]
async fn r7_running_streams_finish_and_new_requests_are_refused() {
    let held = Script::new().stream().say("one").wait_for(1).finish().done();
    let upstream = Upstream::start(move |number, _| if number == 0 { held.clone() } else { good(&["one"]) }).await;
    let gateway = gateway(&[&upstream], |config| config.server.drain_pause = Duration::from_millis(300)).await;
    let address = gateway.address();
    let mut client = Client::connect(address).await;
    client.post(CHAT, "", &stream("x")).await;
    client.read_until("one").await;
    let mut idle = Client::connect(address).await;
    idle.send("GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert_eq!(idle.answer().await.status, 200);

    let draining = tokio::spawn(gateway.drain());
    until("not ready", async || (get(address, "/readyz").await.status == 503).then_some(())).await;
    assert_eq!(get(address, "/healthz").await.status, 200);
    assert_eq!(ask(address, "", &stream("during the pause")).await.status, 200, "still taken during the pause");

    let refused = async || Some(ask(address, "", &stream("y")).await).filter(|answer| answer.status != 200);
    let answer = until("new requests are refused", refused).await;
    assert_eq!(answer.status, 503);
    assert!(answer.header("retry-after").is_some());
    assert_eq!(answer.header("connection"), Some("close"));
    answer.error();
    assert!(idle.is_closed().await, "idle connections are closed");
    assert_eq!(get(address, "/healthz").await.status, 200, "liveness stays");
    assert!(!draining.is_finished());

    upstream.go_on();
    assert_eq!(client.answer().await.text(), good_events(&["one"]));
    soon("the end of the drain", draining).await.unwrap();
}

#[tokio::test]
async fn r7_a_stream_over_the_limit_gets_an_error_event() {
    let upstream = Upstream::always(Script::new().stream().say("one").hold()).await;
    let gateway = gateway(&[&upstream], |config| {
        config.server.drain_pause = Duration::ZERO;
        config.server.drain_limit = Duration::from_millis(200);
    })
    .await;
    let mut client = Client::connect(gateway.address()).await;
    client.post(CHAT, "", &stream("x")).await;
    client.read_until("one").await;
    let draining = tokio::spawn(gateway.drain());
    let text = client.answer().await.text();
    assert!(text.contains("\"error\"") && text.ends_with("data: [DONE]\n\n"), "{text}");
    soon("the end of the drain", draining).await.unwrap();
}

#[tokio::test]
async fn dropping_the_handle_stops_at_once() {
    let upstream = Upstream::always(Script::new().stream().say("one").hold()).await;
    let gateway = gateway(&[&upstream], |_| {}).await;
    let mut client = Client::connect(gateway.address()).await;
    client.post(CHAT, "", &stream("x")).await;
    client.read_until("one").await;
    drop(gateway);
    assert!(client.is_closed().await);
    until("the upstream is closed", async || (upstream.abandoned() == 1).then_some(())).await;
}
