//! What is shown of sharing: its metrics, the operator's view of flights, and the memory of what must not be shared.

use std::net::SocketAddr;

use infergw::config::Sharing;

use crate::support::client::{CHAT, ask, get};
use crate::support::upstream::{FINISH, content, good, good_events};
use crate::support::{Client, Script, Upstream, chat, gateway, gateway_with_admin, metric, stream, until};

async fn streaming(address: SocketAddr, headers: &str, body: &str) -> Client {
    let mut client = Client::connect(address).await;
    client.post(CHAT, headers, body).await;
    client.read_until("one").await;
    client
}

/// Wait until a metric has a value.
async fn reaches(address: SocketAddr, name: &str, labels: &[&str], wanted: f64) {
    until(&format!("{name} {labels:?} is {wanted}"), async || {
        (metric(address, name, labels).await == wanted).then_some(())
    })
    .await;
}

#[tokio::test]
async fn c2_what_sharing_saves_is_counted_in_bytes_and_reported_tokens() {
    let usage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":40}}\n\n";
    let script = Script::new().stream().say("one").wait_for(1).say("two").finish().chunk(usage).done();
    let upstream = Upstream::always(script).await;
    let gateway = gateway(&[&upstream], |_| {}).await;
    let at = gateway.address();
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(streaming(at, "", &stream("same")).await);
    }
    reaches(at, "infergw_coalesce_subscribers", &[], 3.0).await;
    reaches(at, "infergw_coalesce_flights_total", &[], 1.0).await;
    upstream.go_on();
    let mut size = 0;
    for client in &mut clients {
        size = client.answer().await.body.len();
    }
    assert!(size > 100);
    reaches(at, "infergw_coalesce_saved_bytes_total", &[], 2.0 * size as f64).await;
    reaches(at, "infergw_coalesce_saved_tokens_total", &[], 80.0).await;
    reaches(at, "infergw_coalesce_subscribers", &[], 0.0).await;
    reaches(at, "infergw_coalesce_requests_total", &["role=\"leader\""], 1.0).await;
    reaches(at, "infergw_coalesce_requests_total", &["role=\"follower\""], 2.0).await;
}

#[tokio::test]
async fn c2_without_usage_the_events_with_content_are_counted() {
    let upstream =
        Upstream::always(Script::new().stream().say("one").wait_for(1).say("two").say("x").finish().done()).await;
    let gateway = gateway(&[&upstream], |_| {}).await;
    let mut leader = streaming(gateway.address(), "", &stream("same")).await;
    let mut follower = streaming(gateway.address(), "", &stream("same")).await;
    upstream.go_on();
    leader.answer().await;
    follower.answer().await;
    reaches(gateway.address(), "infergw_coalesce_saved_tokens_total", &[], 3.0).await;
}

#[tokio::test]
async fn c1_a_leader_that_left_has_only_its_own_part_saved() {
    let upstream = Upstream::always(Script::new().stream().say("one").wait_for(1).say("two").finish().done()).await;
    let gateway = gateway(&[&upstream], |_| {}).await;
    let leader = streaming(gateway.address(), "", &stream("same")).await;
    let mut follower = streaming(gateway.address(), "", &stream("same")).await;
    drop(leader);
    reaches(gateway.address(), "infergw_coalesce_subscribers", &[], 1.0).await;
    upstream.go_on();
    follower.answer().await;
    // Both got the first event; what came after it went to one client only.
    reaches(gateway.address(), "infergw_coalesce_saved_bytes_total", &[], content("one").len() as f64).await;
}

#[tokio::test]
async fn c5_whole_answers_that_are_shared_count_their_usage() {
    let body = r#"{"choices":[{"index":0,"finish_reason":"stop"}],"usage":{"completion_tokens":7}}"#;
    let upstream = Upstream::always(Script::new().wait_for(1).json("200 OK", body)).await;
    let gateway = gateway(&[&upstream], |config| config.coalesce.non_stream = Sharing::All).await;
    let at = gateway.address();
    let mut clients = Vec::new();
    for _ in 0..2 {
        let mut client = Client::connect(at).await;
        client.post(CHAT, "", &chat("same")).await;
        clients.push(client);
    }
    reaches(at, "infergw_coalesce_requests_total", &["role=\"follower\""], 1.0).await;
    upstream.go_on();
    for client in &mut clients {
        assert_eq!(client.answer().await.text(), body);
    }
    reaches(at, "infergw_coalesce_saved_tokens_total", &[], 7.0).await;
    reaches(at, "infergw_coalesce_saved_bytes_total", &[], body.len() as f64).await;
}

#[tokio::test]
async fn c5_requests_that_do_not_share_are_counted_by_their_reason() {
    let long = "x".repeat(300);
    let script = Script::new().stream().say("one").say(&long).wait_for(1).finish().done();
    let upstream = Upstream::always(script).await;
    let tune = |config: &mut infergw::config::Config| {
        config.coalesce.join_window = 300;
        config.coalesce.max_subscribers = 1;
    };
    let gateway = gateway(&[&upstream], tune).await;
    let at = gateway.address();
    let reason = "infergw_coalesce_bypasses_total";
    let reasons = [
        "opted_out",
        "no_store",
        "policy",
        "endpoint",
        "not_canonical",
        "window",
        "age",
        "subscribers",
        "total",
        "unshareable",
    ];
    for name in reasons {
        reaches(at, reason, &[&format!("\"{name}\"")], 0.0).await;
    }
    let _off = streaming(at, "x-infergw-coalesce: off\r\n", &stream("same")).await;
    reaches(at, reason, &["\"opted_out\""], 1.0).await;
    let _no_store = streaming(at, "cache-control: no-store\r\n", &stream("same")).await;
    reaches(at, reason, &["\"no_store\""], 1.0).await;
    let _twice = streaming(at, "", r#"{"model":"m","stream":true,"messages":[],"x":1,"x":1}"#).await;
    reaches(at, reason, &["\"not_canonical\""], 1.0).await;
    let mut whole = Client::connect(at).await;
    whole.post(CHAT, "", &chat("same")).await;
    reaches(at, reason, &["\"policy\""], 1.0).await;
    let mut leader = streaming(at, "", &stream("same")).await;
    leader.read_until(&long).await;
    let _late = streaming(at, "", &stream("same")).await;
    reaches(at, reason, &["\"window\""], 1.0).await;
    assert_eq!(metric(at, reason, &[]).await, 5.0);
}

#[tokio::test]
async fn c2_a_full_flight_and_an_old_one_say_so() {
    let script = Script::new().stream().say("one").wait_for(1).finish().done();
    let upstream = Upstream::always(script).await;
    let full = gateway(&[&upstream], |config| config.coalesce.max_subscribers = 1).await;
    let old = gateway(&[&upstream], |config| config.coalesce.join_age = std::time::Duration::from_millis(1)).await;
    let over = gateway(&[&upstream], |config| config.coalesce.total = 10).await;
    for (gateway, reason) in [(full, "subscribers"), (old, "age"), (over, "total")] {
        let at = gateway.address();
        let mut clients = Vec::new();
        until("one came too late", async || {
            clients.push(streaming(at, "", &stream("same")).await);
            let label = format!("reason=\"{reason}\"");
            (metric(at, "infergw_coalesce_bypasses_total", &[&label]).await > 0.0).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn c5_what_the_upstream_says_must_not_be_shared_is_not_and_that_is_remembered() {
    let head = |line: &str| {
        format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{line}transfer-encoding: chunked\r\n\r\n")
    };
    let private = Script::new().raw(head("cache-control: max-age=0, Private\r\n"));
    let usual = Script::new().raw(head("cache-control: no-store\r\n"));
    let upstream = Upstream::start(move |_, asked| {
        let private_one = String::from_utf8_lossy(&asked.body).contains("private");
        let script = if private_one { private.clone() } else { usual.clone() };
        script.say("one").wait_for(1).finish().done()
    })
    .await;
    let gateway = gateway(&[&upstream], |_| {}).await;
    let at = gateway.address();
    let role =
        |client: String| client.split("x-infergw-coalesce: ").nth(1).unwrap().split('\r').next().unwrap().to_owned();
    let mut roles = Vec::new();
    let mut clients = Vec::new();
    for _ in 0..2 {
        let mut client = streaming(at, "", &stream("private")).await;
        roles.push(role(client.read_until("one").await));
        clients.push(client);
    }
    assert_eq!(roles, ["leader", "off"]);
    upstream.go_on();
    for client in &mut clients {
        assert_eq!(client.answer().await.text(), good_events(&["one"]));
    }
    until("the flight has landed", async || gateway.gateway().flights.is_empty().then_some(())).await;
    let again = ask(at, "", &stream("private")).await;
    assert_eq!(again.header("x-infergw-coalesce"), Some("off"), "remembered");
    reaches(at, "infergw_coalesce_bypasses_total", &["\"unshareable\""], 2.0).await;
    // Libraries for event streams send no-store with every stream: it says nothing of this one.
    assert_eq!(ask(at, "", &stream("other")).await.header("x-infergw-coalesce"), Some("leader"));
    assert_eq!(ask(at, "", &stream("other")).await.header("x-infergw-coalesce"), Some("leader"));
}

#[tokio::test]
async fn c5_the_memory_of_what_must_not_be_shared_can_be_off() {
    let body = r#"{"choices":[]}"#;
    let upstream = Upstream::always(Script::new().json_with("200 OK", "cache-control: no-store\r\n", body)).await;
    let share = |config: &mut infergw::config::Config| config.coalesce.non_stream = Sharing::All;
    for (remember, second) in [(60, "off"), (0, "leader")] {
        let gateway = gateway(&[&upstream], |config| {
            share(config);
            config.coalesce.remember = std::time::Duration::from_secs(remember);
        })
        .await;
        assert_eq!(ask(gateway.address(), "", &chat("same")).await.header("x-infergw-coalesce"), Some("leader"));
        until("the flight has landed", async || gateway.gateway().flights.is_empty().then_some(())).await;
        assert_eq!(ask(gateway.address(), "", &chat("same")).await.header("x-infergw-coalesce"), Some(second));
    }
}

#[tokio::test]
async fn x5_operators_see_flights_but_no_prompts() {
    let upstream = Upstream::always(Script::new().stream().say("one").wait_for(1).finish().done()).await;
    let (gateway, admin) = gateway_with_admin(&[&upstream], |_| {}).await;
    let at = gateway.address();
    let empty = get(admin, "/admin/flights").await.json();
    assert_eq!(empty, serde_json::json!({"total": 0, "flights": []}));
    let mut clients = Vec::new();
    for content in ["a secret", "a secret", "another"] {
        clients.push(streaming(at, "", &stream(content)).await);
    }
    let answer = get(admin, "/admin/flights").await;
    assert!(!answer.text().contains("secret"));
    let seen = answer.json();
    assert_eq!(seen["total"], 2);
    let flight = &seen["flights"][0];
    assert_eq!(flight["key"].as_str().unwrap().len(), 12);
    assert_eq!((&flight["model"], &flight["endpoint"]), (&"m".into(), &CHAT.into()));
    assert_eq!((&flight["subscribers"], &flight["open"], &flight["shut"]), (&2.into(), &true.into(), &().into()));
    let size = content("one").len();
    assert_eq!((&flight["log_bytes"], &flight["written_bytes"]), (&size.into(), &size.into()));
    assert_eq!(flight["slowest_lag_bytes"], 0);
    assert!(flight["age_ms"].is_u64());
    assert_eq!(get(admin, "/admin/flights?limit=1").await.json()["flights"].as_array().unwrap().len(), 1);
    assert_eq!(get(admin, "/admin/flights?limit=x").await.error()["param"], "limit");
    assert_eq!(get(admin, "/admin/flights?prompt=1").await.status, 400);
    assert_eq!(get(at, "/admin/flights").await.status, 404, "not among the clients' routes");
    upstream.go_on();
    for client in &mut clients {
        assert!(client.answer().await.text().ends_with(&format!("{FINISH}data: [DONE]\n\n")));
    }
    until("none is left", async || (get(admin, "/admin/flights").await.json()["total"] == 0).then_some(())).await;
}

#[tokio::test]
async fn c2_a_flight_that_has_outgrown_its_window_is_seen_until_it_lands() {
    let long = "x".repeat(300);
    let first = Script::new().stream().say("one").say(&long).wait_for(1).finish().done();
    let upstream = Upstream::start(move |number, _| if number == 0 { first.clone() } else { good(&["one"]) }).await;
    let (gateway, admin) = gateway_with_admin(&[&upstream], |config| config.coalesce.join_window = 300).await;
    let mut outgrown = streaming(gateway.address(), "", &stream("same")).await;
    outgrown.read_until(&long).await;
    assert_eq!(ask(gateway.address(), "", &stream("same")).await.header("x-infergw-coalesce"), Some("leader"));
    let seen = until("one is left", async || {
        Some(get(admin, "/admin/flights").await.json()).filter(|seen| seen["total"] == 1)
    })
    .await;
    let flight = &seen["flights"][0];
    assert_eq!((&flight["open"], &flight["shut"]), (&false.into(), &"window".into()));
    upstream.go_on();
    outgrown.answer().await;
    until("none is left", async || gateway.gateway().flights.is_empty().then_some(())).await;
}
