//! Sends to an engine that does not read.

use std::time::{Duration, Instant};

use ts_client::{ClientListener, Error, RankLoss, Tuning};
use ts_wire::TokenizedGenerateReqInput;

use super::engine::{Engine, registration, shake_hands};
use super::raw::RawPeer;
use super::{config, request, within};

fn heavy(rid: &str, rank: i64) -> TokenizedGenerateReqInput {
    TokenizedGenerateReqInput {
        input_ids: Some(vec![100_000; 400_000]),
        data_parallel_rank: Some(rank),
        ..request(rid)
    }
}

/// Z1: bounded in time; the other rank does not wait; a request reported as failed is never delivered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_send_that_timed_out_is_never_delivered() {
    let mut tuning = Tuning::default();
    tuning.rank_loss = RankLoss::Rank;
    tuning.send_queue_messages = 2;
    let config = ts_client::ClientConfig { send_timeout: Duration::from_millis(500), ..config(2) };
    let listener = ClientListener::bind_with(config, tuning).await.unwrap();
    let other = Engine::join(listener.handshake_address(), 1, 2);
    // Rank 0 connects, registers, and reads nothing.
    let context = zmq::Context::new();
    let init = shake_hands(&context, listener.handshake_address(), 0);
    let mut wedged = RawPeer::connect(&init.addresses.inputs[0], "DEALER", &[0, 0], 1);
    wedged.send(0, &registration(0, 2));
    let client = listener.accept().await.unwrap();

    let (mut delivered, mut failed) = (Vec::new(), Vec::new());
    let mut streams = Vec::new();
    while failed.len() < 3 {
        let rid = format!("r{}", delivered.len() + failed.len());
        assert!(delivered.len() < 200, "it takes everything");
        let start = Instant::now();
        match within(client.generate(heavy(&rid, 0))).await {
            Ok(stream) => {
                delivered.push(rid);
                streams.push(stream);
            }
            Err(Error::SendTimeout { engine_index: 0, .. }) => {
                assert!(start.elapsed() >= Duration::from_millis(400));
                failed.push(rid);
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(client.in_flight(), [delivered.len(), 0]);
    assert_eq!(client.stats()[0].send_timeouts, 3);

    // While a send to rank 0 waits, rank 1 is served at once.
    let waiting = client.generate(heavy("waiting", 0));
    let served = async {
        for number in 0..20 {
            let rid = format!("other-{number}");
            let mut request = request(&rid);
            request.data_parallel_rank = Some(1);
            let mut stream = client.generate(request).await.unwrap();
            assert_eq!(other.receive_add(), rid);
            other.send(&[(&rid, &[1], "stop", 1)]);
            assert!(stream.next().await.unwrap().is_ok());
        }
        Instant::now()
    };
    let (timed_out, served) = tokio::join!(async { (within(waiting).await, Instant::now()) }, within(served));
    assert!(matches!(timed_out.0, Err(Error::SendTimeout { .. })));
    assert!(served < timed_out.1, "rank 1 waited for rank 0");

    // Rank 0 reads again: what was accepted arrives, what was reported as failed does not, what is aborted is aborted.
    drop(streams);
    let expected = delivered.clone();
    let (adds, aborts) = tokio::task::spawn_blocking(move || {
        let (mut adds, mut aborts) = (Vec::new(), Vec::new());
        while aborts.len() < expected.len() {
            let frames = wedged.receive_message().expect("the connection stands");
            let frames: Vec<bytes::Bytes> = frames.into_iter().map(Into::into).collect();
            match ts_wire::EngineRequest::from_frames(&frames).unwrap() {
                ts_wire::EngineRequest::Add(add) => match add.rid {
                    Some(ts_wire::StrOrList::One(rid)) if !rid.starts_with("liveness") => adds.push(rid),
                    _ => {}
                },
                ts_wire::EngineRequest::Abort(rids) => aborts.extend(rids),
                ts_wire::EngineRequest::Control(_) => {}
            }
        }
        (adds, aborts)
    })
    .await
    .unwrap();
    assert_eq!(adds, delivered);
    let mut aborted = aborts;
    aborted.sort();
    let mut all = delivered;
    all.sort();
    assert_eq!(aborted, all);
}
