#![expect(clippy::panic, reason = "tests")]

use super::*;

fn limits() -> Timeouts {
    Timeouts {
        first_event: Duration::from_secs(10),
        idle: Duration::from_secs(3),
        total: Duration::from_secs(60),
        keep_alive: Duration::ZERO,
        ..Timeouts::default()
    }
}

/// What is due, and after how many seconds.
async fn due(deadlines: &mut Deadlines, since: Instant) -> (String, u64) {
    match tokio::time::timeout(Duration::from_secs(3600), deadlines.due()).await {
        Ok(Due::KeepAlive) => ("comment".into(), since.elapsed().as_secs()),
        Ok(Due::Expired(failure)) => {
            assert_eq!(failure.cause, Cause::Timeout);
            assert_eq!(failure.error.status, 504);
            let body = String::from_utf8_lossy(failure.error.body()).into_owned();
            let key =
                ["first_event", "idle", "total"].into_iter().find(|key| body.contains(&format!("timeouts.{key}")));
            (key.unwrap_or_default().into(), since.elapsed().as_secs())
        }
        Err(_) => panic!("nothing was due for an hour"),
    }
}

/// R8: an engine that never answers ends at the first-output deadline.
#[tokio::test(start_paused = true)]
async fn r8_no_first_token() {
    let start = Instant::now();
    let mut deadlines = Deadlines::start(&limits(), false);
    deadlines.heard(false);
    assert_eq!(due(&mut deadlines, start).await, ("first_event".into(), 10));
}

/// Silence is measured from the last token.
#[tokio::test(start_paused = true)]
async fn silence_between_tokens() {
    let start = Instant::now();
    let mut deadlines = Deadlines::start(&limits(), false);
    for _ in 0..5 {
        tokio::time::advance(Duration::from_secs(2)).await;
        deadlines.heard(true);
    }
    assert_eq!(due(&mut deadlines, start).await, ("idle".into(), 13));
}

/// The whole answer has its limit however lively it is.
#[tokio::test(start_paused = true)]
async fn the_whole_answer() {
    let start = Instant::now();
    let mut deadlines = Deadlines::start(&limits(), false);
    for _ in 0..59 {
        tokio::time::advance(Duration::from_secs(1)).await;
        deadlines.heard(true);
    }
    assert_eq!(due(&mut deadlines, start).await, ("total".into(), 60));
}

/// S8: comments start after the interval and come again and again; zero limits are none.
#[tokio::test(start_paused = true)]
async fn s8_keep_alive() {
    let start = Instant::now();
    let none =
        Timeouts { first_event: Duration::ZERO, total: Duration::ZERO, keep_alive: Duration::from_secs(4), ..limits() };
    let mut deadlines = Deadlines::start(&none, true);
    assert_eq!(due(&mut deadlines, start).await, ("comment".into(), 4));
    assert_eq!(due(&mut deadlines, start).await, ("comment".into(), 8));
    deadlines.heard(true);
    assert_eq!(due(&mut deadlines, start).await, ("idle".into(), 11));
}
