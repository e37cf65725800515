//! C: coalescing.

use std::net::SocketAddr;

use futures_util::future::join_all;
use infergw::config::{ApiKey, Sharing};

use crate::support::client::{CHAT, ask};
use crate::support::upstream::{good, good_events};
use crate::support::{Client, Script, Upstream, chat, gateway, stream, until};

async fn streaming(address: SocketAddr, body: &str) -> Client {
    let mut client = Client::connect(address).await;
    client.post(CHAT, "", body).await;
    client
}

#[tokio::test]
async fn c2_identical_streams_are_one_call_and_byte_identical() {
    let words: Vec<String> = (0..50).map(|number| format!("w{number}")).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut script = Script::new().stream();
    for (at, word) in words.iter().enumerate() {
        script = script.say(word);
        if at == 10 {
            script = script.wait_for(1);
        }
    }
    let upstream = Upstream::always(script.finish().done()).await;
    let gateway = gateway(&[&upstream], |_| {}).await;
    let mut early = Vec::new();
    for _ in 0..3 {
        early.push(streaming(gateway.address(), &stream("same")).await);
    }
    for client in &mut early {
        client.read_until("w10").await;
    }
    // A joiner in the middle gets all of it.
    let mut late = streaming(gateway.address(), &stream("same")).await;
    late.read_until("w10").await;
    upstream.go_on();
    early.push(late);
    let answers = join_all(early.iter_mut().map(Client::answer)).await;
    for answer in &answers {
        assert_eq!(answer.text(), good_events(&words));
    }
    assert_eq!(upstream.questions(), 1);
    let mut roles: Vec<_> = answers.iter().map(|answer| answer.header("x-infergw-coalesce").unwrap()).collect();
    roles.sort_unstable();
    assert_eq!(roles, ["follower", "follower", "follower", "leader"], "C7");
    let mut ids: Vec<_> = answers.iter().map(|answer| answer.header("x-request-id").unwrap()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 4, "C7: each has his own id");
}

#[tokio::test]
async fn c1_the_leader_leaves_and_the_followers_go_on() {
    let upstream = Upstream::always(Script::new().stream().say("one").wait_for(1).finish().done()).await;
    let gateway = gateway(&[&upstream], |_| {}).await;
    let mut leader = streaming(gateway.address(), &stream("same")).await;
    leader.read_until("one").await;
    let mut follower = streaming(gateway.address(), &stream("same")).await;
    follower.read_until("one").await;
    drop(leader);
    upstream.go_on();
    let answer = follower.answer().await;
    assert_eq!((answer.text(), answer.header("x-infergw-coalesce")), (good_events(&["one"]), Some("follower")));
    assert_eq!((upstream.questions(), upstream.abandoned()), (1, 0));
}

#[tokio::test]
async fn c1_when_the_last_one_leaves_the_upstream_is_closed_at_once() {
    let upstream = Upstream::always(Script::new().stream().say("one").hold()).await;
    let gateway = gateway(&[&upstream], |_| {}).await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        let mut client = streaming(gateway.address(), &stream("same")).await;
        client.read_until("one").await;
        clients.push(client);
    }
    let last = clients.pop();
    drop(clients);
    assert_eq!(upstream.abandoned(), 0);
    let left = std::time::Instant::now();
    drop(last);
    until("the upstream is closed", async || (upstream.abandoned() == 1).then_some(())).await;
    assert!(left.elapsed().as_secs_f64() < 1.0, "{:?}", left.elapsed());
    until("no flight is left", async || (gateway.gateway().flights.is_empty()).then_some(())).await;
    until("no log is left", async || (gateway.gateway().flights.log_bytes() == 0).then_some(())).await;
}

#[tokio::test]
async fn c3_what_differs_does_not_share() {
    let upstream = Upstream::always(Script::new().stream().say("one").wait_for(1).finish().done()).await;
    let gateway = gateway(&[&upstream], |_| {}).await;
    let bodies = [
        r#"{"model":"m","stream":true,"messages":[],"x":1}"#,
        r#"{"model":"m","stream":true,"messages":[],"x":1.0}"#,
        r#"{"model":"m","stream":true,"messages":[],"x":"e\u0301"}"#,
        r#"{"model":"m","stream":true,"messages":[],"x":"\u00e9"}"#,
        r#"{"model":"m","stream":true,"messages":[],"x":1,"x":1}"#,
        r#"{"model":"m","stream":true,"messages":[],"x":1,"x":1}"#,
    ];
    let mut clients = Vec::new();
    for body in bodies {
        let mut client = streaming(gateway.address(), body).await;
        client.read_until("one").await;
        clients.push(client);
    }
    assert_eq!(upstream.questions(), bodies.len());
    let same = r#" {"x" : 1, "messages":[], "stream":true,"model":"m"}"#;
    let mut same = streaming(gateway.address(), same).await;
    same.read_until("one").await;
    assert_eq!(upstream.questions(), bodies.len(), "order and white space do not matter");
    upstream.go_on();
    assert_eq!(same.answer().await.header("x-infergw-coalesce"), Some("follower"));
}

#[tokio::test]
async fn c3_credentials_and_headers_separate() {
    let upstream = Upstream::always(Script::new().stream().say("one").wait_for(1).finish().done()).await;
    let gateway = gateway(&[&upstream], |_| {}).await;
    for headers in ["", "authorization: Bearer a\r\n", "authorization: Bearer b\r\n", "openai-project: p\r\n"] {
        let mut client = Client::connect(gateway.address()).await;
        client.post(CHAT, headers, &stream("same")).await;
        client.read_until("one").await;
    }
    assert_eq!(upstream.questions(), 4);
}

#[tokio::test]
async fn c4_a_stranger_does_not_join() {
    let upstream = Upstream::always(Script::new().stream().say("one").wait_for(1).finish().done()).await;
    let key = |key: &str, tenant: &str| ApiKey { key: key.into(), tenant: tenant.into() };
    let gateway = gateway(&[&upstream], |config| config.keys = vec![key("a", "t"), key("b", "t"), key("c", "u")]).await;
    let mut clients = Vec::new();
    for name in ["a", "b", "c"] {
        let mut client = Client::connect(gateway.address()).await;
        client.post(CHAT, &format!("authorization: Bearer {name}\r\n"), &stream("same")).await;
        client.read_until("one").await;
        clients.push(client);
    }
    assert_eq!(upstream.questions(), 2, "a and b are one tenant");
    assert_eq!(ask(gateway.address(), "authorization: Bearer d\r\n", &stream("same")).await.status, 401);
    assert_eq!(ask(gateway.address(), "", &stream("same")).await.status, 401);
}

#[tokio::test]
async fn c5_who_shares_by_default_and_who_opts_out() {
    let answer = Script::new().wait_for(1).json("200 OK", "{\"choices\":[]}");
    let upstream = Upstream::start(move |_, asked| {
        if asked.body.windows(6).any(|part| part == b"stream") { good(&["x"]) } else { answer.clone() }
    })
    .await;
    let gateway = gateway(&[&upstream], |_| {}).await;
    let plain = chat("same");
    let cold = plain.replace("\"model\"", "\"temperature\":0,\"model\"");
    let seeded = plain.replace("\"model\"", "\"seed\":7,\"model\"");
    let mut clients = Vec::new();
    let mut ask = async |headers: &str, body: &str, total: usize| {
        let mut client = Client::connect(gateway.address()).await;
        client.post(CHAT, headers, body).await;
        until("the question came", async || (upstream.questions() == total).then_some(())).await;
        clients.push(client);
    };
    ask("", &plain, 1).await;
    ask("", &plain, 2).await;
    ask("", &cold, 3).await;
    ask("x-infergw-coalesce: off\r\n", &cold, 4).await;
    ask("cache-control: no-store\r\n", &cold, 5).await;
    ask("", &seeded, 6).await;
    ask("", &cold, 6).await;
    ask("", &seeded, 6).await;
    upstream.go_on();
    let mut roles = Vec::new();
    for mut client in clients {
        roles.push(client.answer().await.header("x-infergw-coalesce").unwrap().to_owned());
    }
    assert_eq!(roles, ["off", "off", "leader", "off", "off", "leader", "follower", "follower"]);
}

#[tokio::test]
async fn c5_the_operator_decides() {
    let upstream = Upstream::always(Script::new().stream().say("one").wait_for(1).finish().done()).await;
    let gateway = gateway(&[&upstream], |config| config.coalesce.stream = Sharing::Off).await;
    for _ in 0..2 {
        let mut client = streaming(gateway.address(), &stream("same")).await;
        let begun = client.read_until("one").await;
        assert!(begun.contains("x-infergw-coalesce: off"), "{begun}");
    }
    assert_eq!(upstream.questions(), 2);
}

#[tokio::test]
async fn c6_an_error_is_shared_and_never_kept() {
    let busy = r#"{"error":{"message":"slow down","type":"t","param":null,"code":null}}"#;
    let script = Script::new().wait_for(1).json_with("429 Too Many Requests", "retry-after: 3\r\n", busy);
    let upstream = Upstream::start(move |number, _| if number == 0 { script.clone() } else { good(&["one"]) }).await;
    let gateway = gateway(&[&upstream], |_| {}).await;
    let mut clients = Vec::new();
    for number in 0..3 {
        clients.push(streaming(gateway.address(), &stream("same")).await);
        let role = if number == 0 { "leader" } else { "follower" };
        let joined = async || {
            let labels = [format!("role=\"{role}\"")];
            crate::support::metric(gateway.address(), "infergw_coalesce_requests_total", &[&labels[0]]).await
        };
        let wanted = f64::from(if number == 0 { 1 } else { number });
        until("it joined", async || (joined().await >= wanted).then_some(())).await;
    }
    upstream.go_on();
    for client in &mut clients {
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.header("retry-after"), answer.text()), (429, Some("3"), busy.to_owned()));
    }
    assert_eq!(upstream.questions(), 1, "followers do not retry");
    assert_eq!(ask(gateway.address(), "", &stream("same")).await.text(), good_events(&["one"]));
}
