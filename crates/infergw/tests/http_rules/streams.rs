//! S: streams.

use crate::support::client::ask;
use crate::support::upstream::{FINISH, content, good, good_events};
use crate::support::{Client, Script, Upstream, chat, gateway, metric, stream, until};

/// Everything that came after the head of a stream, as text, and whether it has ended properly.
async fn relayed(script: Script) -> String {
    let upstream = Upstream::always(script).await;
    let gateway = gateway(&[&upstream], |_| {}).await;
    let answer = ask(gateway.address(), "", &stream("x")).await;
    assert_eq!(answer.status, 200);
    answer.text()
}

/// The error event that `text` ends with, followed by `[DONE]` (S5).
fn error_at_the_end(text: &str) -> (&str, serde_json::Value) {
    let rest = text.strip_suffix("data: [DONE]\n\n").expect("[DONE] follows an error");
    assert!(!rest.contains("[DONE]"), "exactly one [DONE]: {text}");
    let (before, event) = rest.trim_end().rsplit_once("data: ").unwrap();
    let event: serde_json::Value = serde_json::from_str(event).unwrap();
    assert!(event["error"]["message"].is_string(), "{text}");
    (before, event["error"].clone())
}

#[tokio::test]
async fn s1_any_cut_of_the_upstreams_bytes_gives_the_same_events() {
    let events = good_events(&["one", "zw\u{f6}lf \u{1f600}", "three"]);
    for size in [1, 2, 3, 7, 50, 1000] {
        let script = Script::new().stream().chunks_of(size, events.as_bytes()).end();
        assert_eq!(relayed(script).await, events, "in chunks of {size}");
    }
    // Many events in one write.
    assert_eq!(relayed(Script::new().stream().chunk(&events).end()).await, events);
}

#[tokio::test]
async fn s2_line_ends_comments_and_a_byte_order_mark_pass() {
    for end in ["\n", "\r\n", "\r"] {
        let events = format!("\u{feff}: hello\n\n{}{FINISH}data: [DONE]\n\n", content("x")).replace('\n', end);
        let script = Script::new().stream().chunks_of(5, events.as_bytes()).end();
        assert_eq!(relayed(script).await, events, "{end:?}");
    }
}

#[tokio::test]
async fn s2_an_event_leaves_when_it_arrives() {
    let script = Script::new().stream().say("one").wait_for(1).say("two").wait_for(2).finish().done();
    let upstream = Upstream::always(script).await;
    let gateway = gateway(&[&upstream], |_| {}).await;
    let mut client = Client::connect(gateway.address()).await;
    client.post("/v1/chat/completions", "", &stream("x")).await;
    client.read_until("one").await;
    upstream.go_on();
    client.read_until("two").await;
    upstream.go_on();
    client.read_until("[DONE]").await;
}

#[tokio::test]
async fn s2_an_event_that_never_ends_is_cut_off_at_the_limit() {
    let script = Script::new().stream().say("one").chunk(vec![b'x'; 100_000]).hold();
    let upstream = Upstream::always(script).await;
    let gateway = gateway(&[&upstream], |config| config.limits.max_event = 50_000).await;
    let answer = ask(gateway.address(), "", &stream("x")).await;
    let text = answer.text();
    let (before, error) = error_at_the_end(&text);
    assert_eq!(before, content("one"));
    assert!(error["message"].as_str().unwrap().contains("limits.max_event"));
    until("the upstream is closed", async || (upstream.abandoned() == 1).then_some(())).await;
}

#[tokio::test]
async fn s3_an_answer_without_a_finish_is_a_failure() {
    let begun = || Script::new().stream().say("one");
    for (name, script) in [
        ("FIN in the middle of the body", begun().fin()),
        ("RST", begun().pause(20).rst()),
        ("the proper end of the body", begun().end()),
        ("[DONE] without a finish", begun().done()),
        ("half an event", begun().chunk("data: {\"choices\":[{\"ind").end()),
    ] {
        let upstream = Upstream::always(script).await;
        let gateway = gateway(&[&upstream], |_| {}).await;
        let text = ask(gateway.address(), "", &stream("x")).await.text();
        let (before, error) = error_at_the_end(&text);
        assert_eq!(before, content("one"), "{name}");
        assert!(!error.to_string().contains(&upstream.address.to_string()), "{name}");
        let outcome = ["outcome=\"upstream_truncated\""];
        let count = metric(gateway.address(), "infergw_requests_total", &outcome).await;
        assert_eq!(count, 1.0, "{name}: metrics book a failure");
    }
}

#[tokio::test]
async fn s3_a_truncated_whole_answer_is_a_502() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{\"choices\":";
    let closed_ended = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{\"choices\":";
    for script in
        [Script::new().raw(head).fin(), Script::new().raw(head).pause(20).rst(), Script::new().raw(closed_ended).fin()]
    {
        let upstream = Upstream::always(script).await;
        let gateway = gateway(&[&upstream], |_| {}).await;
        let answer = ask(gateway.address(), "", &chat("x")).await;
        assert_eq!(answer.status, 502);
        answer.error();
    }
}

#[tokio::test]
async fn s4_a_finish_is_complete_without_done() {
    let events = format!("{}{FINISH}data: [DONE]\n\n", content("one"));
    let finished = || Script::new().stream().say("one").finish();
    for (name, script) in [
        ("the proper end", finished().end()),
        ("FIN", finished().fin()),
        ("RST", finished().pause(20).rst()),
        ("no blank line", Script::new().stream().say("one").chunk(FINISH.trim_end()).end()),
    ] {
        assert_eq!(relayed(script).await, events, "{name}");
    }
}

#[tokio::test]
async fn s4_the_stream_ends_at_done_though_the_socket_stays_open() {
    let script = Script::new().stream().say("one").finish().chunk("data: [DONE]\n\ndata: more\n\n").hold();
    assert_eq!(relayed(script).await, good_events(&["one"]));
}

#[tokio::test]
async fn s5_an_upstreams_own_error_event_is_followed_by_done() {
    let script =
        Script::new().stream().say("one").chunk("data: {\"error\": {\"message\": \"out of memory\"}}\n\n").end();
    let text = relayed(script).await;
    let (before, error) = error_at_the_end(&text);
    assert_eq!((before, error["message"].as_str()), (content("one").as_str(), Some("out of memory")));
}

#[tokio::test]
async fn s6_a_failure_before_the_first_byte_has_its_true_status() {
    let busy = r#"{"error":{"message":"slow down","type":"rate_limit","param":null,"code":"busy"}}"#;
    let upstream = Upstream::always(Script::new().json_with("429 Too Many Requests", "retry-after: 7\r\n", busy)).await;
    let gateway = gateway(&[&upstream], |_| {}).await;
    for body in [chat("x"), stream("x")] {
        let answer = ask(gateway.address(), "", &body).await;
        assert_eq!((answer.status, answer.header("retry-after")), (429, Some("7")));
        assert_eq!(answer.error()["message"], "slow down");
        assert_eq!(answer.text(), busy, "A2: unchanged");
    }
}

#[tokio::test]
async fn s6_a_reset_is_a_502_and_a_wait_that_is_given_up_a_504() {
    let upstream =
        Upstream::start(
            |_, asked| {
                if asked.body.ends_with(b"\"reset\"}]}") { Script::new().rst() } else { Script::new().hold() }
            },
        )
        .await;
    let gateway = gateway(&[&upstream], |config| config.timeouts.head = std::time::Duration::from_millis(200)).await;
    let answer = ask(gateway.address(), "", &stream("reset")).await;
    assert_eq!(answer.status, 502);
    answer.error();
    let answer = ask(gateway.address(), "", &stream("silent")).await;
    assert_eq!(answer.status, 504);
    assert_eq!(answer.error()["code"], "timeouts.head");
}

#[tokio::test]
async fn s6_an_error_as_the_first_event_has_a_status() {
    let event = "data: {\"error\": {\"message\": \"no such adapter\", \"code\": 404}}\n\n";
    let upstream = Upstream::always(Script::new().stream().chunk(event).end()).await;
    let gateway = gateway(&[&upstream], |_| {}).await;
    let answer = ask(gateway.address(), "", &stream("x")).await;
    assert_eq!(answer.status, 404);
    assert_eq!(answer.json()["error"]["message"], "no such adapter");
}

#[tokio::test]
async fn s7_stream_options_without_stream_are_refused() {
    let upstream = Upstream::always(good(&["x"])).await;
    let gateway = gateway(&[&upstream], |_| {}).await;
    let body = chat("x").replace("\"model\"", "\"stream_options\":{\"include_usage\":true},\"model\"");
    let answer = ask(gateway.address(), "", &body).await;
    assert_eq!((answer.status, answer.error()["param"].as_str()), (400, Some("stream_options")));
    assert_eq!(upstream.questions(), 0);
}

#[tokio::test]
async fn s8_keep_alive_comments_hold_a_silent_stream_open() {
    let upstream = Upstream::always(Script::new().wait_for(1).stream().say("one").wait_for(2).finish().done()).await;
    let every = std::time::Duration::from_millis(50);
    let gateway = gateway(&[&upstream], |config| config.timeouts.keep_alive = every).await;
    let mut client = Client::connect(gateway.address()).await;
    client.post("/v1/chat/completions", "", &stream("x")).await;
    let begun = client.read_until(": keep-alive\n\n").await;
    assert!(begun.starts_with("HTTP/1.1 200") && begun.to_lowercase().contains("text/event-stream"), "{begun}");
    upstream.go_on();
    client.read_until("one").await;
    upstream.go_on();
    let text = client.answer().await.text();
    assert_eq!(text.replace(": keep-alive\n\n", ""), good_events(&["one"]));
}

#[tokio::test]
async fn s8_an_error_after_a_comment_is_an_event() {
    let upstream = Upstream::always(Script::new().wait_for(1).json("500 Internal Server Error", "{}")).await;
    let every = std::time::Duration::from_millis(50);
    let gateway = gateway(&[&upstream], |config| config.timeouts.keep_alive = every).await;
    let mut client = Client::connect(gateway.address()).await;
    client.post("/v1/chat/completions", "", &stream("x")).await;
    client.read_until(": keep-alive").await;
    upstream.go_on();
    let text = client.answer().await.text().replace(": keep-alive\n\n", "");
    let (before, error) = error_at_the_end(&text);
    assert!(before.is_empty() && error["message"].as_str().unwrap().contains("500"), "{text}");
}

#[tokio::test]
async fn s8_no_comments_by_default() {
    let upstream = Upstream::always(Script::new().stream().pause(200).say("one").finish().done()).await;
    let gateway = gateway(&[&upstream], |_| {}).await;
    assert_eq!(ask(gateway.address(), "", &stream("x")).await.text(), good_events(&["one"]));
}

#[tokio::test]
async fn s9_headers_of_a_stream() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\nx-kept: 1\r\n\
                connection: keep-alive, x-dropped\r\nx-dropped: 1\r\ntransfer-encoding: chunked\r\n\r\n";
    let upstream = Upstream::always(Script::new().raw(head).say("one").finish().done()).await;
    let gateway = gateway(&[&upstream], |_| {}).await;
    let headers = "connection: keep-alive, x-mine\r\nx-mine: 1\r\nx-end: 2\r\nte: trailers\r\n";
    let answer = ask(gateway.address(), headers, &stream("x")).await;
    assert_eq!(answer.header("content-type"), Some("text/event-stream; charset=utf-8"));
    assert_eq!(answer.header("cache-control"), Some("no-cache"));
    assert_eq!(answer.header("x-accel-buffering"), Some("no"));
    assert_eq!((answer.header("x-kept"), answer.header("x-dropped")), (Some("1"), None));
    assert_eq!((answer.header("content-length"), answer.header("transfer-encoding")), (None, Some("chunked")));
    let asked = &upstream.asked()[0];
    assert_eq!((asked.header("x-end"), asked.header("x-mine"), asked.header("te")), (Some("2"), None, None));
}

#[tokio::test]
async fn s9_a_whole_answer_has_its_length() {
    let upstream = Upstream::always(Script::new().json("200 OK", "{\"choices\":[]}")).await;
    let gateway = gateway(&[&upstream], |_| {}).await;
    let answer = ask(gateway.address(), "", &chat("x")).await;
    assert_eq!((answer.header("content-length"), answer.header("transfer-encoding")), (Some("14"), None));
    let count = metric(gateway.address(), "infergw_requests_total", &["outcome=\"ok\""]).await;
    assert_eq!(count, 1.0);
}

#[tokio::test]
async fn s9_an_http_1_0_client_gets_no_chunked_coding() {
    let upstream = Upstream::always(good(&["one"])).await;
    let gateway = gateway(&[&upstream], |_| {}).await;
    let mut client = Client::connect(gateway.address()).await;
    let body = stream("x");
    client.send(format!("POST /v1/chat/completions HTTP/1.0\r\ncontent-length: {}\r\n\r\n{body}", body.len())).await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.header("transfer-encoding")), (200, None));
    assert_eq!(answer.text(), good_events(&["one"]));
}

#[tokio::test]
async fn s9_http_2_clients_work() {
    use http_body_util::{BodyExt, Full};
    use hyper_util::rt::{TokioExecutor, TokioIo};

    let upstream = Upstream::always(good(&["one"])).await;
    let gateway = gateway(&[&upstream], |_| {}).await;
    let socket = tokio::net::TcpStream::connect(gateway.address()).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(socket)).await.unwrap();
    let driving = tokio::spawn(connection);
    let uri = format!("http://{}/v1/chat/completions", gateway.address());
    for _ in 0..3 {
        let request = http::Request::post(&uri).body(Full::new(bytes::Bytes::from(stream("x")))).unwrap();
        let response = sender.send_request(request).await.unwrap();
        assert_eq!(response.status(), 200);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, good_events(&["one"]));
    }
    driving.abort();
}
