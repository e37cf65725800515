//! Output whose order matters.

use std::sync::{Arc, Mutex};

use ts_client::{ClientConfig, ClientListener, EndCause, Event, Observer, Tuning};

use super::{chunk, config, group, request, until, within};

/// Keeps what it was told.
#[derive(Debug, Default)]
struct Witness {
    events: Mutex<Vec<(Option<u16>, Event)>>,
}

impl Witness {
    fn saw(&self, engine_index: Option<u16>, event: Event) -> bool {
        self.events.lock().unwrap().contains(&(engine_index, event))
    }
}

impl Observer for Witness {
    fn event(&self, engine_index: Option<u16>, event: Event) {
        self.events.lock().unwrap().push((engine_index, event));
    }
}

/// Lost output ends the stream that lost it, and that one only; the engine is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gap_ends_its_stream() {
    let (client, engines) = group(1, Tuning::default()).await;
    let engine = &engines[0];
    let mut torn = within(client.generate(request("torn"))).await.unwrap();
    let mut whole = within(client.generate(request("whole"))).await.unwrap();
    assert_eq!([engine.receive_add(), engine.receive_add()], ["torn", "whole"]);
    engine.send(&[("torn", &[1], "", 1), ("whole", &[1, 2], "", 2)]);
    assert_eq!(chunk(&mut torn).await.output_ids, [1]);
    // A batch with token 2 of `torn` never arrives.
    engine.send(&[("torn", &[3], "", 3), ("whole", &[3], "stop", 3)]);
    let error = within(torn.next()).await.unwrap().unwrap_err().to_string();
    assert!(error.contains("lost") && error.contains("engine 0"), "{error}");
    assert_eq!(torn.end_cause(), Some(EndCause::Gap { engine_index: 0, expected: 2, reported: 3 }));
    assert_eq!(engine.receive_abort(), ["torn"]);
    until("the other one ends", || client.in_flight() == [0]).await;
    let all = chunk(&mut whole).await;
    assert_eq!((all.output_ids, all.finish_reason.as_deref()), (vec![1, 2, 3], Some("stop")));
    assert_eq!(client.stats()[0].gaps, 1);
    // Late rows of an ended request are nothing.
    engine.send(&[("torn", &[4], "length", 4)]);
    let mut next = within(client.generate(request("next"))).await.unwrap();
    assert_eq!(engine.receive_add(), "next", "no second abort came between");
    engine.send(&[("next", &[9], "stop", 1)]);
    assert_eq!(chunk(&mut next).await.output_ids, [9]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gap_may_be_let_pass() {
    let mut tuning = Tuning::default();
    tuning.check_gaps = false;
    let (client, engines) = group(1, tuning).await;
    let mut stream = within(client.generate(request("r"))).await.unwrap();
    engines[0].send(&[("r", &[1], "", 1)]);
    engines[0].send(&[("r", &[7], "stop", 7)]);
    until("it ends", || client.in_flight() == [0]).await;
    assert_eq!(chunk(&mut stream).await.output_ids, [1, 7]);
}

/// The announcement of one rank's shutdown is told from a stranger's by the connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_strangers_announcement_is_ignored() {
    let mut tuning = Tuning::default();
    let witness = Arc::new(Witness::default());
    tuning.observer = Some(Arc::clone(&witness) as Arc<dyn Observer>);
    let (client, engines) = group(2, tuning).await;
    let mut streams = Vec::new();
    for (rank, engine) in engines.iter().enumerate() {
        let mut request = request(&format!("r{rank}"));
        request.data_parallel_rank = Some(rank as i64);
        let mut stream = within(client.generate(request)).await.unwrap();
        engine.send(&[(&format!("r{rank}"), &[1], "", 1)]);
        chunk(&mut stream).await;
        streams.push(stream);
    }
    let stranger = engines[0].context().socket(zmq::PUSH).unwrap();
    stranger.connect(&engines[0].init.addresses.outputs[0]).unwrap();
    stranger.send("ENGINE_CORE_DEAD", 0).unwrap();
    // A bad message behind it on the same connection is a fence.
    stranger.send("\u{1}", 0).unwrap();
    until("the stranger was heard", || witness.saw(None, Event::Malformed)).await;
    assert!(witness.saw(None, Event::Refused) && client.is_serving());
    engines[0].send(&[("r0", &[2], "stop", 2)]);
    assert_eq!(chunk(&mut streams[0]).await.finish_reason.as_deref(), Some("stop"));

    engines[1].send_bytes(b"ENGINE_CORE_DEAD");
    let error = within(streams[1].next()).await.unwrap().unwrap_err();
    assert_eq!(error, ts_client::StreamError::EngineDead);
    assert_eq!(streams[1].end_cause(), Some(EndCause::EngineShutDown { engine_index: Some(1) }));
}

/// R9: what an adopted engine still runs for the former frontend is aborted once it shows, and our own only as usual.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orphans_of_an_adopted_engine_are_aborted() {
    let (client, engines) = group(1, Tuning::default()).await;
    let engine = &engines[0];
    let addresses = engine.init.addresses.clone();
    let known = client.engines().remove(0).ready;
    client.close().await;

    let mut tuning = Tuning::default();
    tuning.adopt = Some(known);
    let config = ClientConfig {
        input_address: addresses.inputs[0].clone(),
        output_address: addresses.outputs[0].clone(),
        ..config(1)
    };
    let client = within(ClientListener::bind_with(config, tuning)).await.unwrap().into_client();
    until("it is adopted", || client.is_serving()).await;
    let mut stream = within(client.generate(request("ours"))).await.unwrap();
    assert_eq!(engine.receive_add(), "ours");
    engine.send(&[("orphan", &[8], "", 80), ("ours", &[1], "", 1), ("done", &[8], "stop", 80)]);
    assert_eq!(engine.receive_abort(), ["orphan"]);
    assert_eq!(chunk(&mut stream).await.output_ids, [1]);
    drop(stream);
    assert_eq!(engine.receive_abort(), ["ours"]);
    // Late rows of both are nothing.
    engine.send(&[("orphan", &[8], "", 81), ("ours", &[2], "", 2)]);
    let _next = within(client.generate(request("next"))).await.unwrap();
    assert_eq!(engine.receive_add(), "next");
}

/// 256,000 rows that nobody reads: what is kept is their token ids, one chunk; the published client kept 80 MB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_rows_cost_their_token_ids() {
    const ROWS: i32 = 256_000;
    let (client, engines) = group(1, Tuning::default()).await;
    let mut slow = within(client.generate(request("slow"))).await.unwrap();
    let mut fence = within(client.generate(request("fence"))).await.unwrap();
    let before = super::hostile::resident_kb();
    let sending = tokio::task::spawn_blocking(move || {
        for token in 0..ROWS {
            engines[0].send(&[("slow", &[token], "", i64::from(token) + 1)]);
        }
        engines[0].send(&[("fence", &[0], "stop", 1)]);
        engines
    });
    assert_eq!(chunk(&mut fence).await.finish_reason.as_deref(), Some("stop"));
    let grown = super::hostile::resident_kb().saturating_sub(before);
    // 1 MB of ids in a vector that doubles; the rest is the sockets' own.
    assert!(grown < 24 * 1024, "{grown} KiB for {ROWS} rows");
    let all = chunk(&mut slow).await;
    assert_eq!((all.output_ids.len(), all.output_ids.last()), (256_000, Some(&(ROWS - 1))));
    let _engines = sending.await.unwrap();
}
