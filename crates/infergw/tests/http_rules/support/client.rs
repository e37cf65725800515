//! Clients on raw sockets.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::soon;

/// A connection to the gateway.
#[derive(Debug)]
pub(crate) struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
}

/// A whole response.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        header(&self.head, name)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// The A4 error in the body, whose shape is checked.
    pub(crate) fn error(&self) -> serde_json::Value {
        assert_eq!(self.header("content-type"), Some("application/json"), "{self:?}");
        let error = self.json()["error"].clone();
        let mut names: Vec<_> = error.as_object().unwrap().keys().cloned().collect();
        names.sort();
        assert_eq!(names, ["code", "message", "param", "type"]);
        assert!(!error["message"].as_str().unwrap().is_empty());
        error
    }
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (found, value) = line.split_once(':')?;
        found.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self { stream: TcpStream::connect(address).await.unwrap(), buffer: Vec::new() }
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        // The gateway may close before it has read everything: then its answer counts.
        let _ = self.stream.write_all(bytes.as_ref()).await;
    }

    /// Ask with this body and these header lines.
    pub(crate) async fn post(&mut self, path: &str, headers: &str, body: &str) {
        let length = body.len();
        self.send(format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\n{headers}content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        ))
        .await;
    }

    /// Read until the bytes that came contain `text`; gives all of them.
    pub(crate) async fn read_until(&mut self, text: &str) -> String {
        while !contains(&self.buffer, text.as_bytes()) {
            assert!(self.read_more().await, "closed before {text:?}: {}", String::from_utf8_lossy(&self.buffer));
        }
        String::from_utf8_lossy(&self.buffer).into_owned()
    }

    /// Whether the gateway closes the connection without another byte.
    pub(crate) async fn is_closed(&mut self) -> bool {
        !self.read_more().await
    }

    /// All that comes until the gateway closes.
    pub(crate) async fn rest(&mut self) -> Vec<u8> {
        while self.read_more().await {}
        std::mem::take(&mut self.buffer)
    }

    async fn read_more(&mut self) -> bool {
        let mut piece = vec![0; 64 * 1024];
        let read = soon("more bytes, or the end", self.stream.read(&mut piece)).await.unwrap_or(0);
        self.buffer.extend_from_slice(&piece[..read]);
        read > 0
    }

    /// The next whole response.
    pub(crate) async fn answer(&mut self) -> Answer {
        let head = loop {
            if let Some(end) = self.buffer.windows(4).position(|part| part == b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&self.buffer[..end + 4]).into_owned();
                self.buffer.drain(..end + 4);
                if !head.starts_with("HTTP/1.1 100") {
                    break head;
                }
                continue;
            }
            assert!(self.read_more().await, "closed without an answer");
        };
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let body = if status == 204 {
            Vec::new()
        } else if header(&head, "transfer-encoding").is_some() {
            self.chunked().await
        } else if let Some(length) = header(&head, "content-length") {
            self.exactly(length.parse().unwrap()).await
        } else {
            while self.read_more().await {}
            std::mem::take(&mut self.buffer)
        };
        Answer { status, head, body }
    }

    async fn exactly(&mut self, length: usize) -> Vec<u8> {
        while self.buffer.len() < length {
            assert!(self.read_more().await, "closed in the middle of a body");
        }
        self.buffer.drain(..length).collect()
    }

    async fn chunked(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            let end = loop {
                if let Some(end) = self.buffer.windows(2).position(|part| part == b"\r\n") {
                    break end;
                }
                assert!(self.read_more().await, "closed in the middle of a chunked body");
            };
            let line: Vec<u8> = self.buffer.drain(..end + 2).collect();
            let size = usize::from_str_radix(std::str::from_utf8(&line[..end]).unwrap(), 16).unwrap();
            let chunk = self.exactly(size + 2).await;
            if size == 0 {
                return body;
            }
            body.extend_from_slice(&chunk[..size]);
        }
    }

    /// Close with a reset.
    pub(crate) fn reset(self) {
        self.stream.set_zero_linger().unwrap();
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// A chat question with this content.
pub(crate) fn chat(content: &str) -> String {
    format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{content}"}}]}}"#)
}

/// The same as a stream.
pub(crate) fn stream(content: &str) -> String {
    format!(r#"{{"model":"m","stream":true,"messages":[{{"role":"user","content":"{content}"}}]}}"#)
}

pub(crate) const CHAT: &str = "/v1/chat/completions";

/// Ask on a connection of its own and read the whole answer.
pub(crate) async fn ask(address: SocketAddr, headers: &str, body: &str) -> Answer {
    let mut client = Client::connect(address).await;
    client.post(CHAT, headers, body).await;
    client.answer().await
}

pub(crate) async fn get(address: SocketAddr, path: &str) -> Answer {
    let mut client = Client::connect(address).await;
    client.send(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n")).await;
    client.answer().await
}
