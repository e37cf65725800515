//! An OpenAI-compatible server that plays a script for each question and notes what it was asked.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What an upstream does with one question, step by step.
#[derive(Debug, Clone, Default)]
pub(crate) struct Script(Vec<Step>);

#[derive(Debug, Clone)]
enum Step {
    Send(Vec<u8>),
    Pause(Duration),
    Await(usize),
    Fin,
    Rst,
    Hold,
}

/// The head of a stream whose body is chunked.
const STREAM_HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

impl Script {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// These bytes, in one write.
    pub(crate) fn raw(mut self, bytes: impl AsRef<[u8]>) -> Self {
        self.0.push(Step::Send(bytes.as_ref().to_vec()));
        self
    }

    /// The head of an event stream.
    pub(crate) fn stream(self) -> Self {
        self.raw(STREAM_HEAD)
    }

    /// These bytes as one HTTP chunk.
    pub(crate) fn chunk(self, bytes: impl AsRef<[u8]>) -> Self {
        let bytes = bytes.as_ref();
        let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
        chunk.extend_from_slice(bytes);
        chunk.extend_from_slice(b"\r\n");
        self.raw(chunk)
    }

    /// These bytes in HTTP chunks of so many bytes, each its own write.
    pub(crate) fn chunks_of(mut self, size: usize, bytes: &[u8]) -> Self {
        for piece in bytes.chunks(size) {
            self = self.chunk(piece).pause(0);
        }
        self
    }

    /// A content event as one chunk.
    pub(crate) fn say(self, text: &str) -> Self {
        self.chunk(content(text))
    }

    /// The finish event.
    pub(crate) fn finish(self) -> Self {
        self.chunk(FINISH)
    }

    /// `[DONE]` and the end of the body.
    pub(crate) fn done(self) -> Self {
        self.chunk("data: [DONE]\n\n").end()
    }

    /// The end of a chunked body.
    pub(crate) fn end(self) -> Self {
        self.raw("0\r\n\r\n")
    }

    /// A whole JSON answer.
    pub(crate) fn json(self, status: &str, body: &str) -> Self {
        self.json_with(status, "", body)
    }

    /// A whole JSON answer with more header lines.
    pub(crate) fn json_with(self, status: &str, headers: &str, body: &str) -> Self {
        let length = body.len();
        self.raw(format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{headers}content-length: {length}\r\n\r\n{body}"
        ))
    }

    /// Let what was written be read alone.
    pub(crate) fn pause(mut self, millis: u64) -> Self {
        self.0.push(Step::Pause(Duration::from_millis(millis)));
        self
    }

    /// Go on once [`Upstream::go_on`] has been called so many times.
    pub(crate) fn wait_for(mut self, calls: usize) -> Self {
        self.0.push(Step::Await(calls));
        self
    }

    pub(crate) fn fin(mut self) -> Self {
        self.0.push(Step::Fin);
        self
    }

    pub(crate) fn rst(mut self) -> Self {
        self.0.push(Step::Rst);
        self
    }

    /// Say nothing more until the other side closes.
    pub(crate) fn hold(mut self) -> Self {
        self.0.push(Step::Hold);
        self
    }
}

/// A content event.
pub(crate) fn content(text: &str) -> String {
    format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}},\"finish_reason\":null}}]}}\n\n")
}

pub(crate) const FINISH: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";

/// A whole good stream of these words.
pub(crate) fn good(words: &[&str]) -> Script {
    words.iter().fold(Script::new().stream(), |script, word| script.say(word)).finish().done()
}

/// The bytes of the events of [`good`].
pub(crate) fn good_events(words: &[&str]) -> String {
    let said: String = words.iter().map(|word| content(word)).collect();
    format!("{said}{FINISH}data: [DONE]\n\n")
}

/// One question as it came.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Asked {
    /// A header's value.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

type Choose = dyn Fn(usize, &Asked) -> Script + Send + Sync;

#[derive(Debug)]
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    notes: Arc<Notes>,
    go: watch::Sender<usize>,
    task: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Notes {
    asked: Mutex<Vec<Asked>>,
    /// Questions whose connection the gateway closed before the script was over.
    abandoned: AtomicUsize,
    connections: AtomicUsize,
}

impl Upstream {
    /// Plays the same script for every question.
    pub(crate) async fn always(script: Script) -> Self {
        Self::start(move |_, _| script.clone()).await
    }

    /// `choose` gives the script for the question of this number.
    pub(crate) async fn start(choose: impl Fn(usize, &Asked) -> Script + Send + Sync + 'static) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(2048).unwrap();
        let address = listener.local_addr().unwrap();
        let notes = Arc::new(Notes::default());
        let (go, gone) = watch::channel(0);
        let task = tokio::spawn(accept(listener, Arc::clone(&notes), gone, Arc::new(choose)));
        Self { address, notes, go, task }
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.notes.asked.lock().unwrap().clone()
    }

    pub(crate) fn questions(&self) -> usize {
        self.notes.asked.lock().unwrap().len()
    }

    pub(crate) fn abandoned(&self) -> usize {
        self.notes.abandoned.load(Ordering::SeqCst)
    }

    pub(crate) fn connections(&self) -> usize {
        self.notes.connections.load(Ordering::SeqCst)
    }

    /// Let scripts that wait go on.
    pub(crate) fn go_on(&self) {
        self.go.send_modify(|calls| *calls += 1);
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, notes: Arc<Notes>, go: watch::Receiver<usize>, choose: Arc<Choose>) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (notes, go, choose) = (Arc::clone(&notes), go.clone(), Arc::clone(&choose));
        connections.spawn(async move {
            // A broken connection ends the play; the test sees what the gateway made of it.
            let _ = serve(stream, &notes, go, &*choose).await;
        });
    }
}

async fn serve(
    mut stream: TcpStream,
    notes: &Notes,
    mut go: watch::Receiver<usize>,
    choose: &Choose,
) -> std::io::Result<()> {
    let mut buffer = Vec::new();
    let mut counted = false;
    while let Some(asked) = read_request(&mut stream, &mut buffer).await? {
        if asked.head.starts_with("GET /v1/models") {
            let script = Script::new().json("200 OK", r#"{"object":"list","data":[{"id":"m"}]}"#);
            play(&mut stream, script, &mut go).await?;
            continue;
        }
        if !std::mem::replace(&mut counted, true) {
            notes.connections.fetch_add(1, Ordering::SeqCst);
        }
        let number = {
            let mut all = notes.asked.lock().unwrap();
            all.push(asked.clone());
            all.len() - 1
        };
        match play(&mut stream, choose(number, &asked), &mut go).await? {
            Played::Whole => {}
            Played::Closed => return Ok(()),
            Played::Abandoned => {
                notes.abandoned.fetch_add(1, Ordering::SeqCst);
                return Ok(());
            }
        }
    }
    Ok(())
}

enum Played {
    Whole,
    Closed,
    Abandoned,
}

async fn play(stream: &mut TcpStream, script: Script, go: &mut watch::Receiver<usize>) -> std::io::Result<Played> {
    for step in script.0 {
        let wait = async {
            match &step {
                Step::Pause(time) => tokio::time::sleep(*time).await,
                Step::Await(calls) => drop(go.wait_for(|count| count >= calls).await),
                Step::Hold => std::future::pending().await,
                Step::Send(_) | Step::Fin | Step::Rst => {}
            }
        };
        let mut nothing = [0; 1];
        tokio::select! {
            biased;
            () = wait => {}
            read = stream.peek(&mut nothing) => {
                // The next request may be here already; only an end is news.
                if matches!(read, Ok(0) | Err(_)) {
                    return Ok(Played::Abandoned);
                }
            }
        }
        match step {
            Step::Send(bytes) => {
                if stream.write_all(&bytes).await.is_err() {
                    return Ok(Played::Abandoned);
                }
            }
            Step::Fin => {
                stream.shutdown().await?;
                return Ok(Played::Closed);
            }
            Step::Rst => {
                stream.set_zero_linger()?;
                return Ok(Played::Closed);
            }
            Step::Pause(_) | Step::Await(_) | Step::Hold => {}
        }
    }
    Ok(Played::Whole)
}

async fn read_request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> std::io::Result<Option<Asked>> {
    loop {
        if let Some(end) = buffer.windows(4).position(|part| part == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
            let asked = Asked { head, body: Vec::new() };
            let length: usize = asked.header("content-length").map_or(0, |length| length.parse().unwrap());
            let whole = end + 4 + length;
            if buffer.len() >= whole {
                let body = buffer[end + 4..whole].to_vec();
                buffer.drain(..whole);
                return Ok(Some(Asked { body, ..asked }));
            }
        }
        let mut piece = vec![0; 64 * 1024];
        let read = stream.read(&mut piece).await?;
        if read == 0 {
            return Ok(None);
        }
        buffer.extend_from_slice(&piece[..read]);
    }
}
