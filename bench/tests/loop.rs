//! The generator against the mock: what the benchmarks stand on.
#![expect(clippy::unwrap_used, reason = "tests")]

use infergw_bench::{load, mock};

async fn measured(stream: bool) -> infergw_bench::report::Report {
    let script = mock::Script { delay_us: 1000, tokens: 10, interval_us: 0, content_bytes: 100 };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    tokio::spawn(mock::serve(listener, script));
    let plan = load::Plan {
        url,
        path: "/v1/chat/completions".into(),
        model: "mock".into(),
        connections: 4,
        requests: 100,
        warmup: 8,
        max_tokens: 10,
        stream,
        identical: false,
        prompt_words: 3,
        ignore_eos: false,
        key: None,
        pause_us: 100,
        timeout_s: 30,
    };
    load::run(plan).await.unwrap()
}

#[tokio::test]
async fn whole_answers_are_counted() {
    let report = measured(false).await;
    assert_eq!((report.requests, report.errors, report.tokens), (100, 0, 1000), "{:?}", report.first_error);
    assert!(report.latency.p50_us >= 1000.0, "the delay is in the latency: {}", report.latency.p50_us);
}

#[tokio::test]
async fn streams_are_counted_by_event() {
    let report = measured(true).await;
    // The role, ten tokens, the finish, the usage, [DONE].
    assert_eq!((report.requests, report.errors, report.events), (100, 0, 1400), "{:?}", report.first_error);
    assert_eq!(report.tokens, 1000);
}
