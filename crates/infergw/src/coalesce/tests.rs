//! Flights: who leads, who joins, who is cancelled when.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use tokio::sync::{Notify, oneshot};

use super::log::Step;
use super::*;
use crate::api::error::ApiError;
use crate::types::{Caller, Cause, End, Endpoint, Failure, Head, Question};

fn flights() -> Flights {
    let bounds = Bounds { join_window: 1 << 20, join_age: Duration::from_secs(60), max_subscribers: 100 };
    Flights::new(bounds, 1 << 30)
}

fn key(body: &'static str) -> Option<Key> {
    Key::of(&Question {
        endpoint: Endpoint::ChatCompletions,
        model: "m".into(),
        stream: true,
        include_usage: false,
        body: Bytes::from_static(body.as_bytes()),
        headers: HeaderMap::new(),
        caller: Caller { tenant: "t".into(), scope: [0; 32], keyed: false },
        request_id: "r".into(),
        choices: 1,
        rank: None,
    })
}

fn ok() -> Head {
    Head { status: StatusCode::OK, headers: HeaderMap::new() }
}

async fn read(mut cursor: Cursor) -> (StatusCode, Vec<u8>, Step) {
    let status = cursor.head().await.status;
    let mut bytes = Vec::new();
    loop {
        match cursor.step().await {
            Step::Frame(frame) => bytes.extend_from_slice(&frame),
            stop => return (status, bytes, stop),
        }
    }
}

#[tokio::test]
async fn c1_the_leader_leaves_and_the_followers_go_on() {
    let flights = flights();
    let go = Arc::new(Notify::new());
    let gate = Arc::clone(&go);
    let (leader, role) = flights.join(key("{}"), |mut writer| async move {
        writer.head(ok());
        writer.push(Bytes::from_static(b"one ")).await.unwrap();
        gate.notified().await;
        writer.push(Bytes::from_static(b"two")).await.unwrap();
        writer.finish(Ok(()), true);
    });
    assert_eq!(role, Role::Leader);
    let never = |_: FlightWriter| std::future::ready(());
    let (early, role) = flights.join(key("{}"), never);
    assert_eq!(role, Role::Follower);
    drop(leader);
    let (late, role) = flights.join(key("{ }"), never);
    assert_eq!(role, Role::Follower);
    go.notify_one();
    for cursor in [early, late] {
        let got = read(cursor).await;
        assert_eq!(got, (StatusCode::OK, b"one two".to_vec(), Step::End(End::Done)));
    }
    while !flights.is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(flights.log_bytes(), 0);
}

/// Tells when the future that holds it is dropped.
struct Dropped(Option<oneshot::Sender<()>>);

impl Drop for Dropped {
    fn drop(&mut self) {
        let _ = self.0.take().unwrap().send(());
    }
}

#[tokio::test]
async fn c1_d1_the_last_one_leaving_cancels_the_flight() {
    let flights = flights();
    let (tell, told) = oneshot::channel();
    let guard = Dropped(Some(tell));
    let (leader, _) = flights.join(key("{}"), |writer| async move {
        let _held = (guard, writer);
        std::future::pending().await
    });
    let (follower, _) = flights.join(key("{}"), |_| std::future::ready(()));
    drop(leader);
    assert_eq!(flights.len(), 1);
    drop(follower);
    told.await.unwrap();
    while !flights.is_empty() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn c6_an_error_is_shared_with_its_status_and_never_kept() {
    let flights = flights();
    let calls = Arc::new(AtomicUsize::new(0));
    let run = |calls: Arc<AtomicUsize>| {
        |writer: FlightWriter| async move {
            calls.fetch_add(1, Ordering::SeqCst);
            let error = ApiError::unavailable("no backend", 7);
            writer.finish(Err(Failure::new(Cause::Busy, error)), true);
        }
    };
    let (a, first) = flights.join(key("{}"), run(Arc::clone(&calls)));
    let (mut b, second) = flights.join(key("{}"), run(Arc::clone(&calls)));
    assert_eq!((first, second), (Role::Leader, Role::Follower));
    assert_eq!(b.head().await.headers["retry-after"], "7");
    for cursor in [a, b] {
        let (status, body, stop) = read(cursor).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(body.starts_with(b"{\"error\":{\"message\":\"no backend\""));
        assert_eq!(stop, Step::End(End::Failed(Cause::Busy)));
    }
    let (_, role) = flights.join(key("{}"), run(Arc::clone(&calls)));
    assert_eq!(role, Role::Leader);
}

#[tokio::test]
async fn s5_a_failure_after_the_first_event_is_an_event_then_done() {
    let (cursor, role) = flights().join(None, |mut writer| async move {
        writer.head(ok());
        writer.push(Bytes::from_static(b"data: {}\n\n")).await.unwrap();
        writer.finish(Err(Failure::new(Cause::Truncated, ApiError::bad_gateway("broke off"))), true);
    });
    assert_eq!(role, Role::Off);
    let (status, body, stop) = read(cursor).await;
    let body = String::from_utf8(body).unwrap();
    assert_eq!(status, StatusCode::OK);
    assert!(body.starts_with("data: {}\n\ndata: {\"error\":{\"message\":\"broke off\""), "{body}");
    assert!(body.ends_with("}}\n\ndata: [DONE]\n\n"), "{body}");
    assert_eq!(stop, Step::End(End::Failed(Cause::Truncated)));
}

#[tokio::test]
async fn a_flight_that_panics_ends_with_an_error() {
    let flights = flights();
    let (cursor, _) = flights.join(key("{}"), |writer| async move {
        let _writer = writer;
        std::panic::panic_any("on purpose");
    });
    let (status, _, stop) = read(cursor).await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(stop, Step::End(End::Failed(Cause::Cut)));
    while !flights.is_empty() {
        tokio::task::yield_now().await;
    }
}
