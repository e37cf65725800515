//! Coming back to a stream that was lost (`coalesce.resume`), and to what an `Idempotency-Key` names.

use std::net::SocketAddr;
use std::time::Duration;

use infergw::config::{ApiKey, Config};

use crate::support::client::{Answer, CHAT, ask, get};
use crate::support::upstream::{FINISH, content, good, good_events};
use crate::support::{Client, Script, Upstream, chat, gateway, metric, stream, until};

fn on(config: &mut Config) {
    config.coalesce.resume = true;
}

/// Ten words with a gate after the fifth.
fn words() -> Vec<String> {
    (0..10).map(|number| format!("w{number}")).collect()
}

fn gated() -> Script {
    let mut script = Script::new().stream();
    for (at, word) in words().iter().enumerate() {
        script = script.say(word);
        if at == 4 {
            script = script.wait_for(1);
        }
    }
    script.finish().done()
}

fn whole() -> String {
    good_events(&words().iter().map(String::as_str).collect::<Vec<_>>())
}

/// A body without the lines that are the gateway's own; and the ids on them.
fn without_ids(body: &str) -> (String, Vec<String>) {
    let ids = body.lines().filter_map(|line| line.strip_prefix("id: ")).map(str::to_owned).collect();
    (body.split_inclusive('\n').filter(|line| !line.starts_with("id: ")).collect(), ids)
}

/// The stream of an id, and the number of its event.
fn parts(id: &str) -> (String, u64) {
    let (stream, number) = id.split_once('-').unwrap();
    (stream.to_owned(), number.parse().unwrap())
}

/// The whole events at the beginning of a chunked response, as far as they have come, up to and with `event`.
fn seen(raw: &str, event: u64) -> String {
    let mut rest = raw.split_once("\r\n\r\n").unwrap().1;
    let mut body = String::new();
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        body.push_str(after.get(..size).unwrap_or(after));
        rest = after.get(size + 2..).unwrap_or_default();
    }
    let mark = format!("-{event}\n\n");
    let end = body.find(&mark).unwrap() + mark.len();
    body[..end].to_owned()
}

/// Ask, read up to the event `event`, and lose the connection: what was seen, and its stream.
async fn lose(address: SocketAddr, headers: &str, body: &str, event: u64) -> (String, String) {
    let mut client = Client::connect(address).await;
    client.post(CHAT, headers, body).await;
    let raw = client.read_until(&format!("-{event}\n\n")).await;
    let seen = seen(&raw, event);
    client.reset();
    let (_, ids) = without_ids(&seen);
    (seen, parts(&ids[0]).0)
}

async fn get_with(address: SocketAddr, path: &str, headers: &str) -> Answer {
    let mut client = Client::connect(address).await;
    client.send(format!("GET {path} HTTP/1.1\r\nhost: x\r\n{headers}\r\n")).await;
    client.answer().await
}

async fn lingering(address: SocketAddr) -> f64 {
    metric(address, "infergw_lingering_flights", &[]).await
}

fn code(answer: &Answer) -> (u16, String) {
    (answer.status, answer.error()["code"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn each_of_three_clients_goes_on_where_it_was_while_the_flight_runs() {
    let upstream = Upstream::always(gated()).await;
    let gateway = gateway(&[&upstream], on).await;
    let address = gateway.address();
    let mut steady = Client::connect(address).await;
    steady.post(CHAT, "", &stream("same")).await;
    steady.read_until("w4").await;
    let mut lost = Vec::new();
    for event in [1, 3, 5] {
        lost.push((event, lose(address, "", &stream("same"), event).await));
    }
    let mut back = Vec::new();
    for (event, (_, flight)) in &lost {
        let mut client = Client::connect(address).await;
        match event {
            1 => client.post(CHAT, &format!("last-event-id: {flight}-1\r\n"), &stream("same")).await,
            3 => {
                let request =
                    format!("GET /v1/streams/{flight} HTTP/1.1\r\nhost: x\r\nlast-event-id: {flight}-3\r\n\r\n");
                client.send(request).await;
            }
            _ => client.send(format!("GET /v1/streams/{flight}?after=5 HTTP/1.1\r\nhost: x\r\n\r\n")).await,
        }
        back.push(client);
    }
    let resumed = async || (metric(address, "infergw_resumed_total", &[]).await == 3.0).then_some(());
    until("all are back", resumed).await;
    upstream.go_on();
    let steady = steady.answer().await;
    let (events, ids) = without_ids(&steady.text());
    assert_eq!(events, whole(), "nothing else is changed");
    let numbers: Vec<u64> = ids.iter().map(|id| parts(id).1).collect();
    assert_eq!(numbers, (1..=12).collect::<Vec<_>>());
    assert_eq!(steady.header("x-infergw-stream"), Some(parts(&ids[0]).0.as_str()));
    for ((_, (before, _)), client) in lost.iter().zip(&mut back) {
        let rest = client.answer().await;
        assert_eq!(rest.header("content-type"), Some("text/event-stream"));
        assert_eq!(rest.header("x-infergw-coalesce"), Some("resumed"));
        assert_eq!(before.clone() + &rest.text(), steady.text());
    }
    assert_eq!((upstream.questions(), upstream.abandoned()), (1, 0));
}

#[tokio::test]
async fn a_flight_without_a_client_runs_on_and_its_end_is_kept() {
    let upstream = Upstream::always(gated()).await;
    let gateway = gateway(&[&upstream], on).await;
    let address = gateway.address();
    let (before, flight) = lose(address, "", &stream("x"), 3).await;
    until("it lingers", async || (lingering(address).await == 1.0).then_some(())).await;
    assert!(metric(address, "infergw_lingering_bytes", &[]).await > 500.0);
    upstream.go_on();
    until("it has ended", async || gateway.gateway().flights.is_empty().then_some(())).await;
    assert_eq!((upstream.questions(), upstream.abandoned()), (1, 0));
    for _ in 0..2 {
        let rest = get(address, &format!("/v1/streams/{flight}?after=3")).await;
        assert_eq!(without_ids(&(before.clone() + &rest.text())).0, whole());
        let rest = ask(address, &format!("last-event-id: {flight}-3\r\n"), &stream("x")).await;
        assert_eq!(without_ids(&(before.clone() + &rest.text())).0, whole());
        assert_eq!(without_ids(&get(address, &format!("/v1/streams/{flight}")).await.text()).0, whole());
    }
    let nothing = get(address, &format!("/v1/streams/{flight}?after=12")).await;
    assert_eq!((nothing.status, nothing.text()), (204, String::new()), "it has everything");
    assert_eq!(upstream.questions(), 1);
    // The same question without a mark is a new one: what is kept is no cache.
    assert_eq!(ask(address, "", &stream("x")).await.header("x-infergw-coalesce"), Some("leader"));
    assert_eq!(upstream.questions(), 2);
}

#[tokio::test]
async fn whoever_comes_too_late_is_told_for_how_long_streams_are_kept() {
    let upstream = Upstream::always(gated()).await;
    let gateway = gateway(&[&upstream], |config| {
        on(config);
        config.coalesce.linger = Duration::from_millis(50);
    })
    .await;
    let address = gateway.address();
    let (_, flight) = lose(address, "", &stream("x"), 3).await;
    // D1 holds at the end of the time.
    until("the upstream is closed", async || (upstream.abandoned() == 1).then_some(())).await;
    for answer in [
        get(address, &format!("/v1/streams/{flight}?after=3")).await,
        ask(address, &format!("last-event-id: {flight}-3\r\n"), &stream("x")).await,
    ] {
        assert_eq!(code(&answer), (410, "stream_expired".into()));
        assert!(answer.error()["message"].as_str().unwrap().contains("50ms"));
    }
    let unknown = get(address, &format!("/v1/streams/{}", "0".repeat(32))).await;
    assert_eq!(code(&unknown), (404, "stream_not_found".into()));
    assert!(unknown.error()["message"].as_str().unwrap().contains("50ms"));
    assert_eq!(metric(address, "infergw_resume_expired_total", &["reason=\"time\""]).await, 1.0);
    assert_eq!(lingering(address).await, 0.0);
    assert_eq!(metric(address, "infergw_lingering_bytes", &[]).await, 0.0);
    until("no log is left", async || (gateway.gateway().flights.log_bytes() == 0).then_some(())).await;
    assert_eq!(upstream.questions(), 1);
}

#[tokio::test]
async fn a_stream_is_its_callers_own() {
    let upstream = Upstream::always(gated()).await;
    let key = |key: &str, tenant: &str| ApiKey { key: key.into(), tenant: tenant.into() };
    let gateway = gateway(&[&upstream], |config| {
        on(config);
        config.keys = vec![key("a", "t"), key("b", "u")];
    })
    .await;
    let address = gateway.address();
    let (own, other) = ("authorization: Bearer a\r\n", "authorization: Bearer b\r\n");
    let (before, flight) = lose(address, own, &stream("x"), 3).await;
    upstream.go_on();
    let path = format!("/v1/streams/{flight}?after=3");
    let seen = format!("last-event-id: {flight}-3\r\n");
    assert_eq!(code(&get_with(address, &path, other).await), (404, "stream_not_found".into()));
    let stolen = ask(address, &format!("{other}{seen}"), &stream("x")).await;
    assert_eq!(code(&stolen), (404, "stream_not_found".into()));
    assert_eq!(get_with(address, &path, "").await.status, 401);
    let rest = get_with(address, &path, own).await.text();
    assert_eq!(without_ids(&(before + &rest)).0, whole());
    let keyed = "idempotency-key: k\r\n";
    let mine = ask(address, &format!("{own}{keyed}"), &stream("y")).await;
    let theirs = ask(address, &format!("{other}{keyed}"), &stream("y")).await;
    assert_eq!(
        (mine.header("x-infergw-coalesce"), theirs.header("x-infergw-coalesce")),
        (Some("leader"), Some("leader"))
    );
}

#[tokio::test]
async fn off_by_default() {
    let upstream = Upstream::always(good(&["a", "b"])).await;
    let gateway = gateway(&[&upstream], |_| {}).await;
    let headers = "last-event-id: anything\r\nidempotency-key: k\r\n";
    for _ in 0..2 {
        let answer = ask(gateway.address(), headers, &stream("x")).await;
        assert_eq!((answer.text(), answer.header("x-infergw-stream")), (good_events(&["a", "b"]), None));
    }
    assert_eq!(upstream.questions(), 2);
    let nothing = get(gateway.address(), &format!("/v1/streams/{}", "0".repeat(32))).await;
    assert_eq!(code(&nothing), (404, "unknown_url".into()));
}

#[tokio::test]
async fn a_mark_that_does_not_fit_is_refused_by_name() {
    let upstream = Upstream::always(gated()).await;
    let gateway = gateway(&[&upstream], on).await;
    let address = gateway.address();
    let (_, flight) = lose(address, "", &stream("x"), 3).await;
    let upper = flight.to_uppercase();
    for wrong in ["7", "x-1", &flight, &format!("{flight}-"), &format!("{flight}-+1"), &format!("{upper}-1"), "-1"] {
        let answer = ask(address, &format!("last-event-id: {wrong}\r\n"), &stream("x")).await;
        let numeric = upper == flight && wrong.ends_with("-1");
        assert!(numeric || code(&answer) == (400, "invalid_event_id".into()), "{wrong}: {answer:?}");
    }
    let ahead = ask(address, &format!("last-event-id: {flight}-9\r\n"), &stream("x")).await;
    assert_eq!(code(&ahead), (400, "invalid_event_id".into()));
    let other = ask(address, &format!("last-event-id: {flight}-3\r\n"), &stream("y")).await;
    assert_eq!(code(&other), (409, "stream_of_another_request".into()));
    for (path, status) in [("?after=x", 400), ("?after=", 400), ("?before=1", 400), ("/1", 404), ("-1", 404)] {
        assert_eq!(get(address, &format!("/v1/streams/{flight}{path}")).await.status, status, "{path}");
    }
    let path = format!("/v1/streams/{flight}?after=2");
    let two = get_with(address, &path, &format!("last-event-id: {flight}-3\r\n")).await;
    assert_eq!(two.status, 400, "two marks that differ");
    let posted = format!("POST /v1/streams/{flight} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n");
    let mut client = Client::connect(address).await;
    client.send(posted).await;
    assert_eq!(client.answer().await.status, 405);
    assert_eq!(upstream.questions(), 1, "none of it ran");
}

#[tokio::test]
async fn an_idempotency_key_runs_a_stream_once() {
    let upstream = Upstream::always(gated()).await;
    let gateway = gateway(&[&upstream], on).await;
    let address = gateway.address();
    let key = "idempotency-key: one\r\n";
    let (before, flight) = lose(address, key, &stream("x"), 3).await;
    let mut again = Client::connect(address).await;
    again.post(CHAT, key, &stream("x")).await;
    again.read_until("-5\n\n").await;
    upstream.go_on();
    let again = again.answer().await;
    assert_eq!(without_ids(&again.text()).0, whole());
    assert!(again.text().starts_with(&before), "the same stream");
    let after = ask(address, key, &stream("x")).await;
    assert_eq!((after.text(), after.header("x-infergw-coalesce")), (again.text(), Some("resumed")));
    let marked = ask(address, &format!("{key}last-event-id: {flight}-3\r\n"), &stream("x")).await;
    assert_eq!(before + &marked.text(), again.text());
    let other = ask(address, key, &stream("y")).await;
    assert_eq!(code(&other), (409, "idempotency_key_reused".into()));
    assert_eq!(other.error()["param"], "Idempotency-Key");
    assert_eq!(upstream.questions(), 1);
}

#[tokio::test]
async fn an_idempotency_key_runs_an_answer_in_one_piece_once() {
    let big = format!(r#"{{"choices":[],"x":"{}"}}"#, "y".repeat(5000));
    let answer = Script::new().wait_for(1).json("200 OK", &big);
    let upstream = Upstream::always(answer).await;
    let gateway = gateway(&[&upstream], |config| {
        on(config);
        config.coalesce.join_window = 1000;
    })
    .await;
    let address = gateway.address();
    let key = "idempotency-key: one\r\n";
    // The first is lost before its answer has come; nothing of it is deterministic, so nobody else shares it.
    let mut lost = Client::connect(address).await;
    lost.post(CHAT, key, &chat("x")).await;
    until("the question came", async || (upstream.questions() == 1).then_some(())).await;
    lost.reset();
    until("it lingers", async || (lingering(address).await == 1.0).then_some(())).await;
    let mut second = Client::connect(address).await;
    second.post(CHAT, key, &chat("x")).await;
    until("it is back", async || (metric(address, "infergw_resumed_total", &[]).await == 1.0).then_some(())).await;
    upstream.go_on();
    let second = second.answer().await;
    assert_eq!((second.text(), second.header("x-infergw-coalesce")), (big.clone(), Some("resumed")));
    for _ in 0..3 {
        assert_eq!(ask(address, key, &chat("x")).await.text(), big);
    }
    assert_eq!(code(&ask(address, key, &chat("y")).await), (409, "idempotency_key_reused".into()));
    assert_eq!((upstream.questions(), upstream.abandoned()), (1, 0));
    assert_eq!(ask(address, "idempotency-key: two\r\n", &chat("x")).await.header("x-infergw-coalesce"), Some("off"));
    assert_eq!(upstream.questions(), 2);
    let unkept = format!("{key}cache-control: no-store\r\n");
    assert_eq!(ask(address, &unkept, &chat("x")).await.header("x-infergw-coalesce"), Some("off"));
    assert_eq!(upstream.questions(), 3);
}

#[tokio::test]
async fn c6_a_failure_is_not_kept_for_an_idempotency_key() {
    let busy = r#"{"error":{"message":"slow down","type":"t","param":null,"code":null}}"#;
    let script = Script::new().json("429 Too Many Requests", busy);
    let upstream = Upstream::start(move |number, _| if number == 0 { script.clone() } else { good(&["a"]) }).await;
    let gateway = gateway(&[&upstream], on).await;
    let key = "idempotency-key: one\r\n";
    assert_eq!(ask(gateway.address(), key, &stream("x")).await.status, 429);
    assert_eq!(lingering(gateway.address()).await, 0.0);
    let second = ask(gateway.address(), key, &stream("x")).await;
    assert_eq!(without_ids(&second.text()).0, good_events(&["a"]));
    assert_eq!(upstream.questions(), 2);
}

#[tokio::test]
async fn s5_the_error_of_a_stream_that_broke_off_is_kept_for_its_client() {
    let upstream = Upstream::always(Script::new().stream().say("a").say("b").wait_for(1).rst()).await;
    let gateway = gateway(&[&upstream], on).await;
    let address = gateway.address();
    let (before, flight) = lose(address, "", &stream("x"), 2).await;
    upstream.go_on();
    let rest = get(address, &format!("/v1/streams/{flight}?after=2")).await.text();
    let (events, ids) = without_ids(&(before + &rest));
    let said = content("a") + &content("b");
    let end = events.strip_prefix(&said).unwrap();
    assert!(end.starts_with("data: {\"error\":") && end.ends_with("data: [DONE]\n\n"), "{end}");
    assert_eq!(ids.len(), 4);
}

#[tokio::test]
async fn d1_nobody_comes_back_to_what_nobody_has_seen() {
    let upstream = Upstream::always(Script::new().stream().hold()).await;
    let gateway = gateway(&[&upstream], on).await;
    let mut client = Client::connect(gateway.address()).await;
    client.post(CHAT, "", &stream("x")).await;
    until("the question came", async || (upstream.questions() == 1).then_some(())).await;
    client.reset();
    until("the upstream is closed", async || (upstream.abandoned() == 1).then_some(())).await;
    assert_eq!(lingering(gateway.address()).await, 0.0);
    let mut client = Client::connect(gateway.address()).await;
    client.post(CHAT, "x-infergw-coalesce: off\r\ncache-control: no-store\r\n", &stream("x")).await;
    until("the question came", async || (upstream.questions() == 2).then_some(())).await;
    drop(client);
    until("the upstream is closed", async || (upstream.abandoned() == 2).then_some(())).await;
}

#[tokio::test]
async fn c2_the_same_question_joins_a_flight_that_waits_for_its_client() {
    let upstream = Upstream::always(gated()).await;
    let gateway = gateway(&[&upstream], on).await;
    let address = gateway.address();
    let (before, flight) = lose(address, "", &stream("x"), 3).await;
    until("it lingers", async || (lingering(address).await == 1.0).then_some(())).await;
    let mut joiner = Client::connect(address).await;
    joiner.post(CHAT, "", &stream("x")).await;
    joiner.read_until("w4").await;
    assert_eq!(lingering(address).await, 0.0);
    upstream.go_on();
    let joined = joiner.answer().await;
    assert_eq!(joined.header("x-infergw-coalesce"), Some("follower"));
    let rest = get(address, &format!("/v1/streams/{flight}?after=3")).await;
    assert_eq!(before + &rest.text(), joined.text());
    assert_eq!(upstream.questions(), 1);
}

#[tokio::test]
async fn m1_of_the_flights_that_wait_the_first_one_goes_when_there_is_no_more_room() {
    let big = "y".repeat(2000);
    let upstream = Upstream::always(good(&["a", &big])).await;
    let gateway = gateway(&[&upstream], |config| {
        on(config);
        config.coalesce.linger_bytes = 12_000;
    })
    .await;
    let address = gateway.address();
    let mut flights = Vec::new();
    for number in 0..5 {
        let answer = ask(address, "", &stream(&number.to_string())).await;
        flights.push(answer.header("x-infergw-stream").unwrap().to_owned());
        let all = f64::from(number + 1);
        let gone = async || metric(address, "infergw_resume_expired_total", &["reason=\"bytes\""]).await;
        until("it lingers", async || (gone().await + lingering(address).await == all).then_some(())).await;
        assert!(metric(address, "infergw_lingering_bytes", &[]).await <= 12_000.0);
    }
    let mut statuses = Vec::new();
    for flight in &flights {
        statuses.push(get(address, &format!("/v1/streams/{flight}")).await.status);
    }
    assert_eq!(statuses, [410, 410, 200, 200, 200]);
    until("they wait again", async || (lingering(address).await == 3.0).then_some(())).await;
}

#[tokio::test]
async fn m1_of_a_long_stream_the_end_is_kept_and_without_a_client_the_upstream_waits() {
    let piece = "y".repeat(1000);
    let script = (0..40).fold(Script::new().stream(), |script, _| script.say(&piece).pause(0));
    let script = (0..4000).fold(script.wait_for(1), |script, _| script.say(&piece));
    let upstream = Upstream::always(script.finish().done()).await;
    let gateway = gateway(&[&upstream], |config| {
        on(config);
        config.coalesce.join_window = 16_000;
    })
    .await;
    let address = gateway.address();
    let (_, flight) = lose(address, "", &stream("x"), 40).await;
    until("it lingers", async || (lingering(address).await == 1.0).then_some(())).await;
    let begin = get(address, &format!("/v1/streams/{flight}?after=1")).await;
    assert_eq!(code(&begin), (410, "stream_position_gone".into()));
    upstream.go_on();
    let full = async || (gateway.gateway().flights.log_bytes() > 16_000).then_some(());
    until("the log is full", full).await;
    let held = gateway.gateway().flights.log_bytes();
    // One turn of a relay may go over the bound.
    assert!(held < 16_000 + 200_000, "{held}");
    let rest = get(address, &format!("/v1/streams/{flight}?after=40")).await.text();
    let (events, ids) = without_ids(&rest);
    assert_eq!(parts(&ids[0]).1, 41);
    assert_eq!(ids.len(), 4000 + 2);
    assert!(events.ends_with(&format!("{FINISH}data: [DONE]\n\n")));
    assert!(gateway.gateway().flights.log_bytes() < 20_000);
}
