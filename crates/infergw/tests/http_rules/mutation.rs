//! Damaged answers of upstreams and damaged requests of clients, through the whole gateway: it answers or closes, and lives.
//! `INFERGW_FUZZ_ROUNDS` damages so many of each; the seed is `INFERGW_FUZZ_SEED`.

use std::time::Duration;

use futures_util::future::join_all;

use crate::support::client::{CHAT, ask};
use crate::support::upstream::{content, good, good_events};
use crate::support::{Client, Script, Upstream, chat, gateway, metric, stream, until};

/// A small deterministic generator (splitmix64).
struct Seed(u64);

impl Seed {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Where HTTP turns.
const TURNS: &[&[u8]] = &[
    b"\r\n",
    b"\n",
    b"\r\n\r\n",
    b":",
    b" ",
    b"0",
    b"ffffffffffffffff",
    b"-1",
    b"\0",
    b"\xff",
    b"HTTP/1.1 ",
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"content-length: 5\r\n",
    b"transfer-encoding: chunked\r\n",
    b"connection: close\r\n",
    b"0\r\n\r\n",
    b"data: [DONE]\n\n",
    b"content-encoding: gzip\r\n",
];

fn damage(seed: &mut Seed, corpus: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = corpus[seed.below(corpus.len())].clone();
    for _ in 0..=seed.below(4) {
        if bytes.is_empty() {
            break;
        }
        // Half of the damage is in the head.
        let reach = if seed.below(2) == 0 { bytes.len().min(120) } else { bytes.len() };
        let at = seed.below(reach);
        match seed.below(6) {
            0 => bytes[at] ^= 1 << seed.below(8),
            1 => bytes[at] = seed.next() as u8,
            2 => bytes.truncate(at),
            3 => drop(bytes.drain(at..(at + seed.below(12)).min(bytes.len()))),
            4 => {
                let again = bytes[at..(at + seed.below(60)).min(bytes.len())].to_vec();
                drop(bytes.splice(at..at, again));
            }
            _ => drop(bytes.splice(at..at, TURNS[seed.below(TURNS.len())].to_vec())),
        }
    }
    bytes
}

/// Answers as upstreams write them.
fn answers() -> Vec<Vec<u8>> {
    let events = good_events(&["one", "two"]);
    let chunks: String =
        events.split_inclusive("\n\n").map(|event| format!("{:x}\r\n{event}\r\n", event.len())).collect();
    let typed = "content-type: text/event-stream\r\n";
    let json = r#"{"choices":[{"index":0,"message":{"content":"x"},"finish_reason":"stop"}]}"#;
    let error = r#"{"error":{"message":"m","type":"t","param":null,"code":null}}"#;
    let framed = |status: &str, body: &str| {
        format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    };
    [
        format!("HTTP/1.1 200 OK\r\n{typed}transfer-encoding: chunked\r\n\r\n{chunks}0\r\n\r\n"),
        format!("HTTP/1.1 200 OK\r\n{typed}\r\n{events}"),
        format!("HTTP/1.0 200 OK\r\n{typed}connection: close\r\nx-request-id: theirs\r\n\r\n{}", content("half")),
        framed("200 OK", json),
        framed("429 Too Many Requests", error),
        framed("500 Oops", "<html>no</html>"),
    ]
    .map(String::into_bytes)
    .to_vec()
}

fn fast(config: &mut infergw::config::Config) {
    let short = Duration::from_millis(200);
    let timeouts = &mut config.timeouts;
    (timeouts.request_head, timeouts.request_body, timeouts.client_idle) = (short, short, short);
    (timeouts.head, timeouts.first_event, timeouts.idle) = (short, short, short);
    config.breaker.failures = 0;
}

#[tokio::test]
async fn whatever_an_upstream_says_the_client_gets_an_answer() {
    let (first, rounds) = (number("INFERGW_FUZZ_SEED", 1), number("INFERGW_FUZZ_ROUNDS", 400));
    let upstream = Upstream::start(move |asked, _| {
        if asked as u64 >= rounds {
            return good(&["one"]);
        }
        let seed = &mut Seed(first.wrapping_mul(1 << 32).wrapping_add(asked as u64));
        Script::new().raw(damage(seed, &answers())).fin()
    })
    .await;
    let gateway = gateway(&[&upstream], fast).await;
    let mut whole = 0;
    let mut round = 0;
    while upstream.questions() < rounds as usize {
        round += 1;
        let body = if round % 3 == 0 { chat(&round.to_string()) } else { stream(&round.to_string()) };
        let answer = ask(gateway.address(), "", &body).await;
        whole += u64::from(answer.status == 200);
        if answer.status >= 400 {
            assert!(answer.json().get("error").is_some(), "{answer:?}");
        } else if answer.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"))
            && round % 3 != 0
        {
            assert!(answer.body.ends_with(b"data: [DONE]\n\n"), "S4, S5: {}", String::from_utf8_lossy(&answer.body));
        }
        assert!(answer.header("x-request-id").is_some_and(|id| id.starts_with("req-")), "{}", answer.head);
    }
    assert!(whole > rounds / 20, "{whole} of {rounds} were whole in spite of it");
    let good = ask(gateway.address(), "", &stream("good")).await;
    assert_eq!((good.status, good.text()), (200, good_events(&["one"])));
    until("nothing is left", async || {
        let running = metric(gateway.address(), "infergw_in_flight", &[]).await;
        (running == 0.0 && gateway.gateway().flights.log_bytes() == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn whatever_a_client_says_the_others_are_served() {
    let (first, rounds) = (number("INFERGW_FUZZ_SEED", 1), number("INFERGW_FUZZ_ROUNDS", 400));
    let upstream = Upstream::start(|_, _| good(&["one"])).await;
    let gateway = gateway(&[&upstream], |config| {
        fast(config);
        config.coalesce.resume = true;
    })
    .await;
    let id = "0".repeat(32);
    let body = stream("x");
    let length = body.len();
    let requests: Vec<Vec<u8>> = [
        format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"),
        format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\nidempotency-key: k\r\ntransfer-encoding: chunked\r\n\r\n{length:x}\r\n{body}\r\n0\r\n\r\n"),
        format!("POST {CHAT} HTTP/1.0\r\nlast-event-id: {id}-1\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"),
        format!("GET /v1/streams/{id}?after=3 HTTP/1.1\r\nhost: x\r\n\r\nGET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"),
        "GET /v1/models/a%2Fb HTTP/1.1\r\nhost: x\r\nauthorization: Bearer k\r\nexpect: 100-continue\r\n\r\n".to_owned(),
    ]
    .map(String::into_bytes)
    .to_vec();
    let mut seed = Seed(first);
    let mut answered = 0;
    for _ in 0..rounds.div_ceil(40) {
        let clients = (0..40).map(|_| {
            let bytes = damage(&mut seed, &requests);
            async {
                let mut client = Client::connect(gateway.address()).await;
                client.send(bytes).await;
                client.rest().await
            }
        });
        for answer in join_all(clients.collect::<Vec<_>>()).await {
            let http1 = answer.starts_with(b"HTTP/1.");
            answered += u64::from(http1);
            assert!(answer.is_empty() || http1, "{}", answer.escape_ascii());
        }
    }
    assert!(answered > rounds / 4, "{answered} of {rounds} were answered");
    let good = ask(gateway.address(), "x-infergw-coalesce: off\r\ncache-control: no-store\r\n", &stream("good")).await;
    assert_eq!((good.status, good.text()), (200, good_events(&["one"])));
    until("nothing runs", async || (metric(gateway.address(), "infergw_in_flight", &[]).await == 0.0).then_some(()))
        .await;
}
