//! M: resources.

use std::time::Duration;

use crate::support::client::{CHAT, ask};
use crate::support::upstream::{content, good, good_events};
use crate::support::{Client, Script, Upstream, chat, gateway, metric_series, stream, until};

/// A stream of so many events of 10 kB.
fn long(events: usize) -> Script {
    let word = "w".repeat(10_000);
    (0..events).fold(Script::new().stream(), |script, _| script.say(&word)).finish().done()
}

#[tokio::test]
async fn m1_a_client_that_stops_reading_slows_the_upstream_and_costs_a_bounded_log() {
    // 100 MB: more than the sockets on the way can hold.
    let upstream = Upstream::always(long(10_000)).await;
    let gateway = gateway(&[&upstream], |config| config.coalesce.join_window = 256 << 10).await;
    let mut client = Client::connect(gateway.address()).await;
    client.post(CHAT, "", &stream("x")).await;
    let held = async || Some(gateway.gateway().flights.log_bytes()).filter(|held| *held > 256 << 10);
    until("the log is full", held).await;
    for _ in 0..50 {
        let held = gateway.gateway().flights.log_bytes();
        assert!(held < 1 << 20, "{held} bytes");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    // Others are not slowed.
    let other = Upstream::always(good(&["one"])).await;
    drop(other);
    let text = client.answer().await.text();
    assert_eq!(text.len(), 10_000 * content(&"w".repeat(10_000)).len() + good_events(&[]).len());
}

#[tokio::test]
async fn m1_a_slow_reader_is_cut_where_a_fast_one_is_there() {
    let upstream = Upstream::always(long(3000)).await;
    let gateway = gateway(&[&upstream], |config| config.coalesce.join_window = 256 << 10).await;
    let mut slow = Client::connect(gateway.address()).await;
    slow.post(CHAT, "", &stream("same")).await;
    slow.read_until("www").await;
    let fast = ask(gateway.address(), "", &stream("same")).await;
    assert!(fast.text().ends_with("data: [DONE]\n\n") && !fast.text().contains("\"error\""));
    let text = slow.answer().await.text();
    assert!(text.ends_with("data: [DONE]\n\n"));
    if upstream.questions() == 1 {
        assert!(text.contains("\"error\""), "it lagged by megabytes and was cut");
    }
}

#[tokio::test]
async fn m1_a_client_that_never_reads_is_closed_after_the_stall() {
    let upstream = Upstream::always(long(10_000)).await;
    let gateway = gateway(&[&upstream], |config| config.timeouts.client_stall = Duration::from_millis(300)).await;
    let mut client = Client::connect(gateway.address()).await;
    client.post(CHAT, "", &stream("x")).await;
    until("the upstream is closed", async || (upstream.abandoned() == 1).then_some(())).await;
    until("no log is left", async || (gateway.gateway().flights.log_bytes() == 0).then_some(())).await;
    drop(client);
}

#[tokio::test]
async fn m3_metric_series_do_not_grow_with_what_clients_name() {
    let upstream = Upstream::always(Script::new().json("200 OK", "{}")).await;
    let gateway = gateway(&[&upstream], |_| {}).await;
    let ask_many = async |round: usize| {
        for number in 0..20 {
            let body = format!("{{\"model\":\"m{round}-{number}\",\"user\":\"u{number}\"}}");
            assert_eq!(ask(gateway.address(), "", &body).await.status, 404);
            ask(gateway.address(), &format!("x-request-id: r{round}-{number}\r\n"), &chat(&number.to_string())).await;
        }
        metric_series(gateway.address()).await
    };
    let before = ask_many(0).await;
    assert_eq!(ask_many(1).await, before);
}

#[tokio::test]
async fn m4_a_half_sent_head_times_out() {
    let upstream = Upstream::always(good(&["one"])).await;
    let gateway = gateway(&[&upstream], |config| config.timeouts.request_head = Duration::from_millis(200)).await;
    for begun in ["", "P", "PRI * HT", "POST / HTTP/1.1\r\nhost: x\r\nx-half"] {
        let mut client = Client::connect(gateway.address()).await;
        client.send(begun).await;
        assert!(client.is_closed().await, "{begun:?}");
    }
    // Not the time between two requests.
    let mut client = Client::connect(gateway.address()).await;
    for _ in 0..2 {
        client.post(CHAT, "", &stream("x")).await;
        assert_eq!(client.answer().await.status, 200);
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
    client.send("POST / HT").await;
    assert!(client.is_closed().await, "nor does the second head have more time than the first");
}

#[tokio::test]
async fn m4_an_idle_connection_and_a_slow_body_end() {
    let upstream = Upstream::always(good(&["one"])).await;
    let gateway = gateway(&[&upstream], |config| {
        config.timeouts.client_idle = Duration::from_millis(200);
        config.timeouts.request_body = Duration::from_millis(200);
    })
    .await;
    let mut client = Client::connect(gateway.address()).await;
    client.post(CHAT, "", &stream("x")).await;
    assert_eq!(client.answer().await.status, 200);
    assert!(client.is_closed().await);
    let mut client = Client::connect(gateway.address()).await;
    client.send(format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{{")).await;
    let answer = client.answer().await;
    assert_eq!(answer.status, 408);
    answer.error();
}

#[tokio::test]
async fn m4_connections_over_the_limit_wait() {
    let upstream = Upstream::always(good(&["one"])).await;
    let gateway = gateway(&[&upstream], |config| config.limits.max_connections = 2).await;
    let mut first = Client::connect(gateway.address()).await;
    let second = Client::connect(gateway.address()).await;
    first.post(CHAT, "", &stream("a")).await;
    assert_eq!(first.answer().await.status, 200);
    let mut third = Client::connect(gateway.address()).await;
    third.post(CHAT, "", &stream("b")).await;
    assert_eq!(upstream.questions(), 1);
    drop(second);
    assert_eq!(third.answer().await.status, 200);
}
