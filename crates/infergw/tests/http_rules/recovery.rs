//! R: breakers, back-pressure and the budget of retries.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use infergw::Running;
use infergw::config::{Config, PolicyName};

use crate::support::client::{ask, get};
use crate::support::upstream::good;
use crate::support::{Client, Script, Upstream, gateway, metric, stream, until};

fn in_turn(config: &mut Config) {
    config.routing.policy = PolicyName::RoundRobin;
    config.retries.pause = Duration::ZERO;
}

/// Ask so many questions, all different, that all must be answered well.
async fn ask_well(gateway: &Running, count: usize) {
    for number in 0..count {
        assert_eq!(ask(gateway.address(), "", &stream(&number.to_string())).await.status, 200);
    }
}

fn error(status: &str, headers: &str) -> Script {
    Script::new().json_with(status, headers, "{}")
}

#[tokio::test]
async fn r1_an_open_breaker_spares_the_clients_and_a_trial_closes_it() {
    let healed = Arc::new(AtomicBool::new(false));
    let well_again = Arc::clone(&healed);
    let sick = Upstream::start(move |_, _| match well_again.load(Ordering::SeqCst) {
        true => good(&["one"]),
        false => error("500 Internal Server Error", ""),
    })
    .await;
    let well = Upstream::always(good(&["one"])).await;
    let gateway = gateway(&[&sick, &well], |config| {
        in_turn(config);
        config.breaker.pause = Duration::from_millis(100);
        config.breaker.longest = Duration::from_millis(100);
        config.breaker.slow_start = Duration::from_secs(3600);
    })
    .await;
    ask_well(&gateway, 30).await;
    // Five in a row, and a trial each 75 to 125 ms since.
    let asked = sick.questions();
    assert!((5..20).contains(&asked), "{asked} of 30 questions went to the sick one");
    assert_eq!(
        metric(gateway.address(), "infergw_backend_requests_total", &["http-1", "\"backend\""]).await,
        asked as f64
    );
    healed.store(true, Ordering::SeqCst);
    until("a trial has closed it", async || {
        ask_well(&gateway, 1).await;
        (metric(gateway.address(), "infergw_backend_requests_total", &["http-1", "\"ok\""]).await > 0.0).then_some(())
    })
    .await;
    assert_eq!(metric(gateway.address(), "infergw_backend_breaker", &["http-1"]).await, 0.0);
    // It comes back slowly: a tenth of its turns at first.
    let before = sick.questions();
    ask_well(&gateway, 100).await;
    let asked = sick.questions() - before;
    assert!((0..25).contains(&asked), "{asked} of 100");
}

#[tokio::test]
async fn r1_an_unready_gateway_says_for_how_long_and_which_backend() {
    let sick = Upstream::always(error("500 Internal Server Error", "")).await;
    let gateway = gateway(&[&sick], |config| config.breaker.pause = Duration::from_secs(20)).await;
    for _ in 0..5 {
        assert_eq!(ask(gateway.address(), "", &stream("x")).await.status, 500);
    }
    let refused = ask(gateway.address(), "", &stream("x")).await;
    assert_eq!((refused.status, sick.questions()), (503, 5));
    let seconds: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((14..=26).contains(&seconds), "{seconds}");
    assert_eq!(ask(gateway.address(), "", "{\"model\":\"other\"}").await.status, 404);
    let ready = get(gateway.address(), "/readyz").await;
    assert!(ready.status == 503 && ready.text().contains("http-1 has failed too often"), "{}", ready.text());
    assert_eq!(metric(gateway.address(), "infergw_backend_breaker", &["http-1"]).await, 2.0);
}

#[tokio::test]
async fn r1_a_backend_that_says_retry_after_is_spared_where_others_can_serve() {
    for status in ["429 Too Many Requests", "503 Service Unavailable"] {
        let busy = Upstream::always(error(status, "retry-after: 60\r\n")).await;
        let well = Upstream::always(good(&["one"])).await;
        let two = gateway(&[&busy, &well], in_turn).await;
        ask_well(&two, 20).await;
        assert_eq!(busy.questions(), 1, "{status}");
        // Alone it is asked, and what it says goes to the client (S6).
        let alone = gateway(&[&busy], in_turn).await;
        for _ in 0..3 {
            let answer = ask(alone.address(), "", &stream("x")).await;
            assert_eq!((answer.status.to_string().as_str(), answer.header("retry-after")), (&status[..3], Some("60")));
        }
        assert_eq!(busy.questions(), 4, "{status}");
    }
}

#[tokio::test]
async fn r4_retries_are_a_share_of_the_traffic() {
    let upstreams = [
        Upstream::always(error("500 Internal Server Error", "")).await,
        Upstream::always(error("500 Internal Server Error", "")).await,
        Upstream::always(error("500 Internal Server Error", "")).await,
    ];
    let all: Vec<&Upstream> = upstreams.iter().collect();
    let gateway = gateway(&all, |config| {
        in_turn(config);
        config.breaker.failures = 0;
        config.retries.floor = 0;
        config.retries.share = 0.1;
    })
    .await;
    for number in 0..50 {
        assert_eq!(ask(gateway.address(), "", &stream(&number.to_string())).await.status, 500);
    }
    let asked: usize = upstreams.iter().map(Upstream::questions).sum();
    assert!((52..=55).contains(&asked), "{asked} attempts for 50 questions");
    assert!(metric(gateway.address(), "infergw_retries_refused_total", &[]).await >= 45.0);
    assert_eq!(metric(gateway.address(), "infergw_retries_total", &[]).await, (asked - 50) as f64);
}

#[tokio::test]
async fn r4_a_question_is_never_on_one_backend_twice_and_on_few_at_most() {
    let mut upstreams = Vec::new();
    for _ in 0..6 {
        upstreams.push(Upstream::always(error("502 Bad Gateway", "")).await);
    }
    let all: Vec<&Upstream> = upstreams.iter().collect();
    let gateway = gateway(&all, |config| config.retries.most = 3).await;
    assert_eq!(ask(gateway.address(), "", &stream("x")).await.status, 502);
    let mut asked: Vec<usize> = upstreams.iter().map(Upstream::questions).collect();
    asked.sort_unstable();
    assert_eq!(asked, [0, 0, 1, 1, 1, 1]);
}

#[tokio::test]
async fn d2_what_runs_on_a_backend_is_counted_until_its_client_leaves() {
    let upstream = Upstream::always(Script::new().stream().say("one").hold()).await;
    let gateway = gateway(&[&upstream], |_| {}).await;
    let running = async || metric(gateway.address(), "infergw_backend_in_flight", &["backend=\"http-1\""]).await;
    let mut client = Client::connect(gateway.address()).await;
    client.post("/v1/chat/completions", "", &stream("x")).await;
    client.read_until("one").await;
    assert_eq!(running().await, 1.0);
    drop(client);
    until("it is counted out", async || (running().await == 0.0).then_some(())).await;
    assert_eq!(metric(gateway.address(), "infergw_backend_requests_total", &["\"abandoned\""]).await, 1.0);
}
