//! The whole gateway: after a first byte, what an upstream answers, or what a client sends. It answers or closes, and lives.
#![no_main]

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use infergw::config::{Config, Upstream};
use infergw::{Gateway, Running};
use libfuzzer_sys::fuzz_target;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};

const QUESTION: &str = "{\"model\":\"m\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}";
const SHORT: Duration = Duration::from_millis(50);

struct Door {
    runtime: Runtime,
    gateway: Running,
    /// What the upstream answers next.
    answer: Arc<Mutex<Vec<u8>>>,
}

static DOOR: LazyLock<Door> = LazyLock::new(|| {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let answer = Arc::default();
    let gateway = runtime.block_on(start(Arc::clone(&answer)));
    Door { runtime, gateway, answer }
});

async fn start(answer: Arc<Mutex<Vec<u8>>>) -> Running {
    let upstream = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let mut config = Config::default();
    let url = format!("http://{}", upstream.local_addr().expect("bound"));
    config.backends.push(Upstream { url, models: vec!["m".into()], ..Upstream::default() });
    config.coalesce.resume = true;
    config.breaker.failures = 0;
    let timeouts = &mut config.timeouts;
    (timeouts.request_head, timeouts.request_body, timeouts.client_idle) = (SHORT, SHORT, SHORT);
    (timeouts.head, timeouts.first_event, timeouts.idle) = (SHORT, SHORT, SHORT);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = upstream.accept().await {
            let answer = answer.lock().map(|answer| answer.clone()).unwrap_or_default();
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(&answer).await;
        }
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    Gateway::start(config, listener, None).await.expect("a gateway")
}

/// What the gateway answers until it closes, or for a second: another protocol may have begun, which has its own times.
async fn say(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut answer = Vec::new();
    let mut client = TcpStream::connect(address).await.expect("the gateway lives");
    let _ = client.write_all(bytes).await;
    let _ = tokio::time::timeout(Duration::from_secs(1), client.read_to_end(&mut answer)).await;
    answer
}

fuzz_target!(|bytes: &[u8]| {
    let Some((side, bytes)) = bytes.split_first() else { return };
    let Door { runtime, gateway, answer } = &*DOOR;
    if side % 2 == 0 {
        runtime.block_on(say(gateway.address(), bytes));
        return;
    }
    if let Ok(mut answer) = answer.lock() {
        *answer = bytes.to_vec();
    }
    let length = QUESTION.len();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
    );
    let answered = runtime.block_on(say(gateway.address(), (head + QUESTION).as_bytes()));
    assert!(answered.starts_with(b"HTTP/1.1 "), "{}", answered.escape_ascii());
});
