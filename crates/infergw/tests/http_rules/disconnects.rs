//! D: disconnects.

use std::time::{Duration, Instant};

use crate::support::client::CHAT;
use crate::support::{Client, Script, Upstream, chat, gateway, metric, stream, until};

/// A client asks, waits for `seen`, and leaves; the upstream's socket must be closed within a second.
async fn leave(script: Script, body: &str, seen: &str, reset: bool) {
    let upstream = Upstream::always(script).await;
    let gateway = gateway(&[&upstream], |_| {}).await;
    let mut client = Client::connect(gateway.address()).await;
    client.post(CHAT, "", body).await;
    until("the question came", async || (upstream.questions() == 1).then_some(())).await;
    if !seen.is_empty() {
        client.read_until(seen).await;
    }
    let left = Instant::now();
    if reset {
        client.reset();
    } else {
        drop(client);
    }
    until("the upstream is closed", async || (upstream.abandoned() == 1).then_some(())).await;
    assert!(left.elapsed() < Duration::from_secs(1), "{:?}", left.elapsed());
    let outcome = ["outcome=\"client_closed\""];
    let count = async || metric(gateway.address(), "infergw_requests_total", &outcome).await;
    until("the record says so", async || (count().await == 1.0).then_some(())).await;
    assert_eq!(metric(gateway.address(), "infergw_in_flight", &[]).await, 0.0, "D2");
    assert_eq!(gateway.gateway().flights.len(), 0);
}

#[tokio::test]
async fn d1_before_the_head() {
    leave(Script::new().hold(), &stream("x"), "", false).await;
    leave(Script::new().hold(), &chat("x"), "", true).await;
}

#[tokio::test]
async fn d1_before_the_first_event() {
    leave(Script::new().stream().hold(), &stream("x"), "", false).await;
}

#[tokio::test]
async fn d1_in_the_middle_of_a_stream() {
    leave(Script::new().stream().say("one").hold(), &stream("x"), "one", false).await;
    leave(Script::new().stream().say("one").hold(), &stream("x"), "one", true).await;
}

#[tokio::test]
async fn d1_in_the_middle_of_a_whole_answer() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{\"choices\":";
    leave(Script::new().raw(head).hold(), &chat("x"), "", false).await;
}
