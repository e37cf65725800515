//! A host that is gone without a word: no FIN, no RST, nothing.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ts_client::{ClientListener, EndCause, EngineClient, RankLoss, RankStatus, Tuning};
use ts_wire::TokenizedGenerateReqInput;

use super::engine::Engine;
use super::{chunk, config, request, until, within};

/// A wire between two hosts that can be cut: both ends keep their connections, and nothing passes any more.
struct Cable {
    cut: Arc<AtomicBool>,
}

impl Cable {
    fn new() -> Self {
        Self { cut: Arc::new(AtomicBool::new(false)) }
    }

    /// An address that leads to `target` over this cable.
    fn to(&self, target: &str) -> String {
        let target = target.strip_prefix("tcp://").unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("tcp://{}", listener.local_addr().unwrap());
        let cut = Arc::clone(&self.cut);
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(&target) else { return };
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let cut = Arc::clone(&cut);
                    thread::spawn(move || carry(from, to, &cut));
                }
            }
        });
        address
    }

    fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
    }
}

/// Pass bytes on until an end closes; after the cut, take nothing and close nothing.
fn carry(mut from: TcpStream, mut to: TcpStream, cut: &AtomicBool) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        while cut.load(Ordering::SeqCst) {
            thread::park();
        }
        if to.write_all(bytes.get(..count).unwrap()).is_err() {
            return;
        }
    }
}

fn pinned(rid: &str, rank: i64) -> TokenizedGenerateReqInput {
    TokenizedGenerateReqInput { data_parallel_rank: Some(rank), ..request(rid) }
}

/// A request on rank 1 that its engine answers at once: how long that takes.
async fn timed(client: &EngineClient, engine: &Engine, rid: &str) -> Duration {
    let start = Instant::now();
    let mut stream = within(client.generate(pinned(rid, 1))).await.unwrap();
    assert_eq!(engine.receive_add(), rid);
    engine.send(&[(rid, &[1], "stop", 1)]);
    assert_eq!(chunk(&mut stream).await.output_ids, [1]);
    start.elapsed()
}

/// The 99th percentile of 200 requests on rank 1.
async fn p99(client: &EngineClient, engine: &Engine, round: &str) -> Duration {
    let mut times = Vec::new();
    for number in 0..200 {
        times.push(timed(client, engine, &format!("{round}-{number}")).await);
    }
    times.sort();
    times.get(197).copied().unwrap()
}

/// R2: its streams end within the set silence, other ranks are as quick as before, and a new host takes its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_goes_dark() {
    let mut tuning = Tuning::default();
    tuning.rank_loss = RankLoss::Rank;
    tuning.silence = Duration::from_secs(2);
    tuning.ping_after = Duration::from_millis(500);
    let listener = ClientListener::bind_with(config(2), tuning).await.unwrap();
    let cable = Cable::new();
    let far = Engine::join_over(listener.handshake_address(), 0, 2, |address| cable.to(address));
    let near = Engine::join(listener.handshake_address(), 1, 2);
    let client = listener.accept().await.unwrap();
    let before = p99(&client, &near, "before").await;

    let mut lost = within(client.generate(pinned("lost", 0))).await.unwrap();
    assert_eq!(far.receive_add(), "lost");
    far.send(&[("lost", &[1], "", 1)]);
    assert_eq!(chunk(&mut lost).await.output_ids, [1]);
    cable.cut();
    let dark = Instant::now();
    let during = p99(&client, &near, "during").await;
    // Ten times and a scheduler's hiccup: a send that waited for the dark rank would take seconds.
    assert!(during < before * 10 + Duration::from_millis(20), "p99 {before:?} became {during:?}");
    let error = within(lost.next()).await.unwrap().unwrap_err().to_string();
    assert!(error.contains("engine 0"), "{error}");
    assert!(matches!(lost.end_cause(), Some(EndCause::RankLost { engine_index: 0, .. })));
    assert!(dark.elapsed() < Duration::from_secs(2 + 2), "within the silence and a check: {:?}", dark.elapsed());
    assert_eq!(client.state().ranks[0].status, RankStatus::Silent);
    for number in 0..20 {
        let rid = format!("later-{number}");
        let mut stream = within(client.generate(request(&rid))).await.unwrap();
        assert_eq!(stream.engine_index(), 1, "0 of 20 are placed on it");
        assert_eq!(near.receive_add(), rid);
        near.send(&[(&rid, &[1], "stop", 1)]);
        // Dropped before its last row it would be aborted.
        assert_eq!(chunk(&mut stream).await.output_ids, [1]);
    }

    // The host is replaced; the old connection was never closed.
    let replaced = Engine::join(client.handshake_address(), 0, 2);
    until("it serves", || client.state().ranks[0].status == RankStatus::Ready).await;
    let mut again = within(client.generate(pinned("again", 0))).await.unwrap();
    assert_eq!(replaced.receive_add(), "again");
    replaced.send(&[("again", &[7], "stop", 1)]);
    assert_eq!(chunk(&mut again).await.output_ids, [7]);
}
