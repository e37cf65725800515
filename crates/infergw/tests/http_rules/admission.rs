//! Who runs, who waits, who is refused; by the order in which a scripted upstream is asked.

use std::net::SocketAddr;
use std::time::Duration;

use infergw::config::{ApiKey, Config, Model, Tenant};
use serde_json::Value;

use crate::support::client::{Answer, CHAT, Client, get};
use crate::support::upstream::{content, good, good_events};
use crate::support::{Script, Upstream, chat, gateway_with_admin, metric, stream, until};

/// Each answer ends when the upstream is told to go on once more.
async fn one_by_one() -> Upstream {
    Upstream::start(|number, _| Script::new().stream().say("one").wait_for(number + 1).finish().done()).await
}

fn keys(config: &mut Config, tenants: &[&str]) {
    config.keys = tenants.iter().map(|name| ApiKey { key: format!("sk-{name}"), tenant: (*name).into() }).collect();
}

fn tenant(name: &str) -> Tenant {
    Tenant { name: name.into(), ..Tenant::default() }
}

fn as_tenant(name: &str) -> String {
    format!("authorization: Bearer sk-{name}\r\n")
}

/// A request on its way.
async fn sent(address: SocketAddr, headers: &str, body: &str) -> Client {
    let mut client = Client::connect(address).await;
    client.post(CHAT, headers, body).await;
    client
}

async fn asked(address: SocketAddr, headers: &str, body: &str) -> Answer {
    sent(address, headers, body).await.answer().await
}

async fn seen(admin: SocketAddr) -> Value {
    get(admin, "/admin/admission").await.json()
}

/// Wait until so many wait in all.
async fn waiting(admin: SocketAddr, count: u64) {
    let sum = |seen: &Value| -> u64 {
        seen["tenants"].as_array().unwrap().iter().map(|tenant| tenant["waiting"].as_u64().unwrap()).sum()
    };
    until(&format!("{count} wait"), async || (sum(&seen(admin).await) == count).then_some(())).await;
}

async fn questions(upstream: &Upstream, count: usize) {
    until(&format!("{count} questions"), async || (upstream.questions() == count).then_some(())).await;
}

/// The contents that the upstream was asked, in order.
fn order(upstream: &Upstream) -> Vec<String> {
    let content = |body: &[u8]| serde_json::from_slice::<Value>(body).unwrap()["messages"][0]["content"].clone();
    upstream.asked().iter().map(|asked| content(&asked.body).as_str().unwrap().to_owned()).collect()
}

/// Let the upstream answer all, one after the other.
async fn run_all(upstream: &Upstream, count: usize) {
    for number in 1..=count {
        questions(upstream, number).await;
        upstream.go_on();
    }
}

#[tokio::test]
async fn a_greedy_tenant_and_a_modest_one_take_turns() {
    let upstream = one_by_one().await;
    let (running, admin) = gateway_with_admin(&[&upstream], |config| {
        keys(config, &["greedy", "modest"]);
        config.admission.concurrency = 1;
    })
    .await;
    let mut clients = vec![sent(running.address(), &as_tenant("greedy"), &stream("g0")).await];
    questions(&upstream, 1).await;
    for number in 1..=6 {
        clients.push(sent(running.address(), &as_tenant("greedy"), &stream(&format!("g{number}"))).await);
        waiting(admin, number).await;
    }
    for number in 1..=2 {
        clients.push(sent(running.address(), &as_tenant("modest"), &stream(&format!("m{number}"))).await);
        waiting(admin, 6 + number).await;
    }
    let queued = metric(admin, "infergw_admission_queued", &["tenant=\"greedy\""]).await;
    assert_eq!(queued, 6.0);
    run_all(&upstream, 9).await;
    for client in &mut clients {
        assert_eq!(client.answer().await.text(), good_events(&["one"]));
    }
    // One of the greedy ones may come before: the modest one's first turn begins when the greedy one's next does.
    let order = order(&upstream);
    let place = |name: &str| order.iter().position(|asked| asked == name).unwrap();
    assert!(place("m1") <= 2 && place("m2") <= 4, "{order:?}");
    assert_eq!(metric(admin, "infergw_admission_admitted_total", &["tenant=\"modest\""]).await, 2.0);
    assert_eq!(metric(admin, "infergw_admission_wait_seconds_count", &[]).await, 9.0);
    assert_eq!(metric(admin, "infergw_admission_running", &[]).await, 0.0);
}

#[tokio::test]
async fn a_weight_is_a_number_of_turns() {
    let upstream = one_by_one().await;
    let (running, admin) = gateway_with_admin(&[&upstream], |config| {
        keys(config, &["a", "b"]);
        config.admission.concurrency = 1;
        config.tenants = vec![Tenant { weight: Some(4.0), ..tenant("b") }];
    })
    .await;
    let mut clients = vec![sent(running.address(), &as_tenant("a"), &stream("first")).await];
    questions(&upstream, 1).await;
    for number in 0..10 {
        for (place, name) in ["a", "b"].into_iter().enumerate() {
            clients.push(sent(running.address(), &as_tenant(name), &stream(&format!("{name}{number}"))).await);
            waiting(admin, number * 2 + place as u64 + 1).await;
        }
    }
    run_all(&upstream, 11).await;
    let turns: String = order(&upstream)[1..].iter().take(10).map(|asked| &asked[..1]).collect();
    assert_eq!(turns, "bbbbabbbba");
}

#[tokio::test]
async fn a_full_queue_is_a_429_for_the_tenant_and_a_503_for_the_model() {
    let upstream = one_by_one().await;
    let (running, admin) = gateway_with_admin(&[&upstream], |config| {
        keys(config, &["a", "b", "c"]);
        config.models = vec![Model { name: "m".into(), concurrency: Some(1), queue: Some(2), ..Model::default() }];
        config.tenants = vec![Tenant { queue: Some(1), ..tenant("a") }];
    })
    .await;
    let _runs = sent(running.address(), &as_tenant("a"), &stream("0")).await;
    questions(&upstream, 1).await;
    let _waits = sent(running.address(), &as_tenant("a"), &stream("1")).await;
    waiting(admin, 1).await;
    let refused = asked(running.address(), &as_tenant("a"), &stream("2")).await;
    assert_eq!((refused.status, &refused.error()["code"]), (429, &"tenant_queue_full".into()));
    assert_eq!(refused.error()["type"], "rate_limit_error");
    assert!(refused.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    let _waits_too = sent(running.address(), &as_tenant("b"), &stream("3")).await;
    waiting(admin, 2).await;
    let refused = asked(running.address(), &as_tenant("c"), &stream("4")).await;
    assert_eq!((refused.status, &refused.error()["code"]), (503, &"model_queue_full".into()));
    assert!(refused.header("retry-after").is_some());
    // Not only for streams.
    assert_eq!(asked(running.address(), &as_tenant("c"), &chat("5")).await.status, 503);
    assert_eq!(metric(admin, "infergw_admission_refused_total", &["reason=\"tenant_queue_full\""]).await, 1.0);
    assert_eq!(metric(admin, "infergw_admission_refused_total", &["reason=\"model_queue_full\""]).await, 2.0);
    assert_eq!(upstream.questions(), 1);
}

#[tokio::test]
async fn a_tenant_that_fills_the_queue_makes_room_for_the_others() {
    let upstream = one_by_one().await;
    let (running, admin) = gateway_with_admin(&[&upstream], |config| {
        keys(config, &["greedy", "modest"]);
        config.admission.concurrency = 1;
        config.admission.queue = 3;
    })
    .await;
    let _runs = sent(running.address(), &as_tenant("greedy"), &stream("0")).await;
    questions(&upstream, 1).await;
    let mut clients = Vec::new();
    for number in 1..=3 {
        clients.push(sent(running.address(), &as_tenant("greedy"), &stream(&number.to_string())).await);
        waiting(admin, number).await;
    }
    let _modest = sent(running.address(), &as_tenant("modest"), &stream("m")).await;
    let displaced = clients.pop().unwrap().answer().await;
    assert_eq!((displaced.status, &displaced.error()["code"]), (503, &"model_queue_full".into()));
    waiting(admin, 3).await;
}

#[tokio::test]
async fn who_waits_too_long_is_told_why() {
    let upstream = one_by_one().await;
    let (running, admin) = gateway_with_admin(&[&upstream], |config| {
        keys(config, &["a", "b"]);
        config.admission.concurrency = 2;
        config.admission.queue_timeout = Duration::from_millis(200);
        config.tenants = vec![Tenant { concurrency: Some(1), ..tenant("a") }];
    })
    .await;
    let _runs = sent(running.address(), &as_tenant("a"), &stream("0")).await;
    questions(&upstream, 1).await;
    let own = asked(running.address(), &as_tenant("a"), &stream("1")).await;
    assert_eq!((own.status, &own.error()["code"]), (429, &"tenant_queue_timeout".into()));
    let _runs_too = sent(running.address(), &as_tenant("b"), &stream("2")).await;
    questions(&upstream, 2).await;
    let busy = asked(running.address(), &as_tenant("b"), &stream("3")).await;
    assert_eq!((busy.status, &busy.error()["code"]), (503, &"model_queue_timeout".into()));
    waiting(admin, 0).await;
    // The places are there again.
    upstream.go_on();
    upstream.go_on();
    until("nothing runs", async || (metric(admin, "infergw_admission_running", &[]).await == 0.0).then_some(())).await;
    assert_eq!(seen(admin).await["models"].as_array().unwrap().len(), 0, "M3");
}

#[tokio::test]
async fn the_more_urgent_come_first() {
    let upstream = one_by_one().await;
    let (running, admin) = gateway_with_admin(&[&upstream], |config| {
        keys(config, &["a", "batch"]);
        config.admission.concurrency = 1;
        config.tenants = vec![Tenant { priority: Some(5), ..tenant("batch") }];
    })
    .await;
    let a = as_tenant("a");
    let _runs = sent(running.address(), &a, &stream("first")).await;
    questions(&upstream, 1).await;
    let mut clients = Vec::new();
    for (number, (headers, name)) in [
        (as_tenant("batch"), "batch"),
        (format!("{a}priority: u=4, i\r\n"), "less"),
        // It may not: the operator does not trust it.
        (format!("{a}priority: u=0\r\n"), "usual"),
        (format!("{}priority: u=1\r\n", as_tenant("batch")), "batch2"),
        (a.clone(), "usual2"),
    ]
    .into_iter()
    .enumerate()
    {
        clients.push(sent(running.address(), &headers, &stream(name)).await);
        waiting(admin, number as u64 + 1).await;
    }
    run_all(&upstream, 6).await;
    assert_eq!(order(&upstream), ["first", "usual", "usual2", "less", "batch", "batch2"]);

    let upstream = one_by_one().await;
    let (running, admin) = gateway_with_admin(&[&upstream], |config| {
        config.admission.concurrency = 1;
        config.admission.trust_priority = true;
    })
    .await;
    let mut clients = vec![sent(running.address(), "", &stream("first")).await];
    questions(&upstream, 1).await;
    for (number, urgency) in [7, 0, 3].into_iter().enumerate() {
        let headers = format!("priority: u={urgency}\r\n");
        clients.push(sent(running.address(), &headers, &stream(&urgency.to_string())).await);
        waiting(admin, number as u64 + 1).await;
    }
    run_all(&upstream, 4).await;
    assert_eq!(order(&upstream), ["first", "0", "3", "7"]);
}

#[tokio::test]
async fn d1_a_client_that_leaves_leaves_the_line_and_gives_its_place_back() {
    let upstream = Upstream::always(Script::new().stream().say("one").hold()).await;
    let (running, admin) = gateway_with_admin(&[&upstream], |config| config.admission.concurrency = 1).await;
    let runs = sent(running.address(), "", &stream("0")).await;
    questions(&upstream, 1).await;
    let leaves = sent(running.address(), "", &stream("1")).await;
    waiting(admin, 1).await;
    let leaves_too = sent(running.address(), "", &chat("2")).await;
    waiting(admin, 2).await;
    let _next = sent(running.address(), "", &stream("3")).await;
    waiting(admin, 3).await;
    drop(leaves);
    waiting(admin, 2).await;
    drop(leaves_too);
    waiting(admin, 1).await;
    drop(runs);
    questions(&upstream, 2).await;
    assert_eq!(order(&upstream), ["0", "3"]);
}

#[tokio::test]
async fn c1_who_joins_a_flight_takes_no_place() {
    let upstream = one_by_one().await;
    let (running, admin) = gateway_with_admin(&[&upstream], |config| {
        config.admission.tenant_concurrency = 1;
        config.admission.tenant_queue = 1;
    })
    .await;
    let mut clients = vec![sent(running.address(), "", &stream("same")).await];
    questions(&upstream, 1).await;
    clients.push(sent(running.address(), "", &stream("waits")).await);
    waiting(admin, 1).await;
    // One joins what runs, one what waits; the line would be full for another question.
    clients.push(sent(running.address(), "", &stream("same")).await);
    clients.push(sent(running.address(), "", &stream("waits")).await);
    let joined = async || metric(admin, "infergw_coalesce_requests_total", &["role=\"follower\""]).await;
    until("both have joined", async || (joined().await == 2.0).then_some(())).await;
    assert_eq!(asked(running.address(), "", &stream("other")).await.status, 429);
    run_all(&upstream, 2).await;
    for client in &mut clients {
        assert_eq!(client.answer().await.text(), good_events(&["one"]));
    }
    assert_eq!(metric(admin, "infergw_admission_admitted_total", &[]).await, 2.0);
}

/// Tokens that were booked: of prompts, and generated.
async fn booked(admin: SocketAddr) -> (f64, f64) {
    let of = async |kind: &str| metric(admin, "infergw_tenant_tokens_total", &[&format!("kind=\"{kind}\"")]).await;
    (of("prompt").await, of("generated").await)
}

#[tokio::test]
async fn tokens_are_booked_as_the_answer_reports_them() {
    let usage = "{\"prompt_tokens\":7,\"completion_tokens\":5,\"total_tokens\":12}";
    let upstream = Upstream::start(move |number, _| match number {
        0 => Script::new().json("200 OK", &format!("{{\"choices\":[],\"usage\":{usage}}}")),
        1 => Script::new()
            .stream()
            .say("one")
            .say("two")
            .finish()
            .chunk(format!("data: {{\"choices\":[],\"usage\":{usage}}}\n\n"))
            .done(),
        // Without usage: the prompt as it was guessed, an event of content for a token.
        2 => good(&["one", "two", "three"]),
        // Refused: nothing.
        3 => Script::new().json("400 Bad Request", "{}"),
        _ => Script::new().stream().chunk(content("one")).hold(),
    })
    .await;
    let (running, admin) =
        gateway_with_admin(&[&upstream], |config| config.admission.tenant_tokens_per_minute = 1_000_000).await;
    let ended = async || (metric(admin, "infergw_admission_running", &[]).await == 0.0).then_some(());
    let (mut prompt, mut generated) = (0.0, 0.0);
    let mut body = chat("x");
    for (number, (p, g)) in [(7.0, 5.0), (7.0, 5.0), (18.0, 3.0), (0.0, 0.0)].into_iter().enumerate() {
        asked(running.address(), "", &body).await;
        until("it has ended", ended).await;
        (prompt, generated) = (prompt + p, generated + g);
        assert_eq!(booked(admin).await, (prompt, generated), "question {number}");
        body = stream(&format!("{number}"));
        assert_eq!(body.len().div_ceil(4), 18);
    }
    // A client that goes away has used what was generated until then.
    let mut client = sent(running.address(), "", &stream("5")).await;
    client.read_until("one").await;
    drop(client);
    until("it has ended", ended).await;
    assert_eq!(booked(admin).await, (prompt + 18.0, generated + 1.0));
    let left = seen(admin).await["tenants"][0]["tokens_left"].as_i64().unwrap();
    assert!(left >= 1_000_000 - 64, "{left}");
}

#[tokio::test]
async fn who_has_used_up_his_tokens_waits_for_others() {
    let usage = "{\"prompt_tokens\":100,\"completion_tokens\":200}";
    let upstream = Upstream::always(Script::new().json("200 OK", &format!("{{\"usage\":{usage}}}"))).await;
    let (running, admin) = gateway_with_admin(&[&upstream], |config| {
        keys(config, &["a", "b"]);
        config.tenants = vec![Tenant { tokens_per_minute: Some(120), ..tenant("a") }];
    })
    .await;
    assert_eq!(asked(running.address(), &as_tenant("a"), &chat("x")).await.status, 200);
    let left = async || seen(admin).await["tenants"][0]["tokens_left"].as_i64().unwrap();
    until("it is booked", async || (left().await < 0).then_some(())).await;
    let refused = asked(running.address(), &as_tenant("a"), &chat("y")).await;
    assert_eq!((refused.status, &refused.error()["code"]), (429, &"tenant_tokens".into()));
    // 180 tokens of debt and about 18 for the prompt, at two a second; told is a minute at most.
    assert_eq!(refused.header("retry-after"), Some("60"));
    assert_eq!(asked(running.address(), &as_tenant("b"), &chat("y")).await.status, 200);
}
