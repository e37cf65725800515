//! R: routing, retries, recovery.

use std::time::Duration;

use crate::support::client::ask;
use crate::support::upstream::{good, good_events};
use crate::support::{Script, Upstream, chat, gateway, gateway_at, metric, stream, until};

#[tokio::test]
async fn r1_a_4xx_does_not_count_against_a_backend() {
    let upstream = Upstream::start(|number, _| match number {
        0..20 => Script::new().json("400 Bad Request", "{}"),
        20..40 => Script::new().json("429 Too Many Requests", "{}"),
        _ => good(&["one"]),
    })
    .await;
    let gateway = gateway(&[&upstream], |_| {}).await;
    for _ in 0..20 {
        assert_eq!(ask(gateway.address(), "", &stream("x")).await.status, 400);
    }
    for _ in 0..20 {
        assert_eq!(ask(gateway.address(), "", &stream("x")).await.status, 429);
    }
    assert_eq!(ask(gateway.address(), "", &stream("x")).await.status, 200);
}

#[tokio::test]
async fn r4_another_backend_is_tried_before_anything_went_out() {
    for (name, bad) in [
        ("a reset", Script::new().rst()),
        ("a 500", Script::new().json("500 Internal Server Error", "{}")),
        ("a 503", Script::new().json("503 Service Unavailable", "{}")),
        ("a reset between head and first event", Script::new().stream().pause(20).rst()),
    ] {
        let broken = Upstream::always(bad).await;
        let well = Upstream::always(good(&["one"])).await;
        let gateway = gateway(&[&broken, &well], |_| {}).await;
        for _ in 0..2 {
            let answer = ask(gateway.address(), "", &stream("x")).await;
            assert_eq!((answer.status, answer.text()), (200, good_events(&["one"])), "{name}");
        }
        assert_eq!(well.questions(), 2, "{name}");
    }
}

#[tokio::test]
async fn r4_each_other_backend_is_tried_once_and_the_last_failure_told() {
    let a = Upstream::always(Script::new().json("500 Internal Server Error", "{}")).await;
    let b = Upstream::always(Script::new().json("500 Internal Server Error", "{}")).await;
    let gateway = gateway(&[&a, &b], |_| {}).await;
    let answer = ask(gateway.address(), "", &chat("x")).await;
    assert_eq!(answer.status, 500);
    assert_eq!((a.questions(), b.questions()), (1, 1));
}

#[tokio::test]
async fn r4_no_retry_after_the_first_event_or_a_time_out() {
    let broken = || Script::new().stream().say("one").pause(20).rst();
    let (a, b) = (Upstream::always(broken()).await, Upstream::always(broken()).await);
    let two = gateway(&[&a, &b], |_| {}).await;
    let text = ask(two.address(), "", &stream("x")).await.text();
    assert!(text.contains("\"error\""), "{text}");
    assert_eq!(a.questions() + b.questions(), 1);

    let (a, b) = (Upstream::always(Script::new().hold()).await, Upstream::always(Script::new().hold()).await);
    let two = gateway(&[&a, &b], |config| config.timeouts.head = Duration::from_millis(100)).await;
    assert_eq!(ask(two.address(), "", &stream("x")).await.status, 504);
    assert_eq!(a.questions() + b.questions(), 1);
}

#[tokio::test]
async fn r4_a_refusal_is_not_retried() {
    let a = Upstream::always(Script::new().json("400 Bad Request", "{}")).await;
    let b = Upstream::always(Script::new().json("400 Bad Request", "{}")).await;
    let gateway = gateway(&[&a, &b], |_| {}).await;
    assert_eq!(ask(gateway.address(), "", &chat("x")).await.status, 400);
    assert_eq!(a.questions() + b.questions(), 1);
}

#[tokio::test]
async fn r5_connections_are_used_again() {
    let upstream = Upstream::always(good(&["one"])).await;
    let gateway = gateway(&[&upstream], |_| {}).await;
    for number in 0..10 {
        assert_eq!(ask(gateway.address(), "", &stream(&number.to_string())).await.status, 200);
    }
    assert!(upstream.connections() <= 2, "{} connections for 10 requests", upstream.connections());
}

#[tokio::test]
async fn r5_idle_connections_that_the_upstream_closes_cost_no_request() {
    for close in [Script::fin as fn(Script) -> Script, Script::rst] {
        let upstream = Upstream::start(move |_, _| close(good(&["one"]).pause(5))).await;
        let gateway = gateway(&[&upstream], |_| {}).await;
        for number in 0..30 {
            let answer = ask(gateway.address(), "", &stream(&number.to_string())).await;
            assert_eq!((answer.status, answer.text()), (200, good_events(&["one"])), "request {number}");
            if number % 3 == 0 {
                tokio::time::sleep(Duration::from_millis(number)).await;
            }
        }
    }
}

#[tokio::test]
async fn r5_a_reset_instead_of_an_answer_on_a_reused_connection_is_tried_once_more() {
    let upstream = Upstream::start(|number, _| match number {
        0 | 2 => good(&["one"]),
        // On the connection of question 0, after the request has come.
        1 => Script::new().rst(),
        _ => Script::new().rst(),
    })
    .await;
    let gateway = gateway(&[&upstream], |_| {}).await;
    assert_eq!(ask(gateway.address(), "", &stream("a")).await.status, 200);
    assert_eq!(ask(gateway.address(), "", &stream("b")).await.status, 200);
    assert_eq!(upstream.questions(), 3);
    // Not more than once: the fresh connection's reset is a failure.
    assert_eq!(ask(gateway.address(), "", &stream("c")).await.status, 502);
    assert_eq!(upstream.questions(), 5);
}

#[tokio::test]
async fn s6_refused_connections_are_a_502_and_recovery_is_immediate() {
    let probe = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = probe.local_addr().unwrap();
    drop(probe);
    let gateway = gateway_at(&[address], |_| {}).await;
    for _ in 0..10 {
        let answer = ask(gateway.address(), "", &stream("x")).await;
        assert_eq!(answer.status, 502);
        assert!(!answer.error().to_string().contains(&address.to_string()), "S3");
    }
    assert_eq!(crate::support::client::get(gateway.address(), "/readyz").await.status, 503);
}

#[tokio::test]
async fn r1_a_backend_that_keeps_failing_is_left_alone_until_it_is_well() {
    let upstream = Upstream::start(|number, _| {
        if number < 5 { Script::new().json("500 Internal Server Error", "{}") } else { good(&["one"]) }
    })
    .await;
    let gateway = gateway(&[&upstream], |_| {}).await;
    let failures = async || metric(gateway.address(), "infergw_flight_failures_total", &["cause=\"backend\""]).await;
    while failures().await < 5.0 {
        let status = ask(gateway.address(), "", &stream("x")).await.status;
        assert!(status == 500 || status == 503, "{status}");
    }
    // An unknown model is a 404 even now.
    let other = ask(gateway.address(), "", "{\"model\":\"other\",\"stream\":true}").await;
    assert_eq!(other.status, 404);
    let well = async || (ask(gateway.address(), "", &stream("x")).await.status == 200).then_some(());
    until("the probe has found it well", well).await;
}
