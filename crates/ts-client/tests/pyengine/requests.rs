//! Requests that run, end, are aborted, are dropped.

use ts_client::{ClientConfig, EndCause, Error, LoadBalance, Routing, Tuning};

use super::{chunk, config, finish, group, pinned, request, rest, until, within};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_runs_to_its_end() {
    let (client, _engines) = group(config(2), Tuning::default(), &[]).await;
    let infos = client.engines();
    assert_eq!(infos.iter().map(|info| info.index).collect::<Vec<_>>(), [0, 1]);
    assert!(infos.iter().all(|info| info.ready.instance_id == "fake-model"));

    for rank in 0..2 {
        let mut stream = within(client.generate(pinned(&format!("r{rank}"), 5, rank))).await.unwrap();
        assert_eq!(stream.engine_index(), rank as u16);
        let (tokens, end) = rest(&mut stream).await;
        let first = 1000 * rank as i32;
        assert_eq!((tokens, end), ((first + 1..=first + 5).collect(), Ok("length".to_owned())));
    }
    assert_eq!(client.in_flight(), [0, 0]);
    assert!(client.loads().iter().all(|load| load.kv_total_pages == 4096), "{:?}", client.loads());
    let stats = client.stats();
    assert!(stats.iter().all(|rank| rank.submitted == 1 && rank.tokens == 5 && rank.aborts == 0), "{stats:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_requests_run_side_by_side() {
    let (client, _engines) = group(config(2), Tuning::default(), &[]).await;
    let mut streams = Vec::new();
    for number in 0..64 {
        streams.push(within(client.generate(request(&format!("r{number}"), 20))).await.unwrap());
    }
    for stream in &mut streams {
        let (tokens, end) = rest(stream).await;
        assert_eq!((tokens.len(), end), (20, Ok("length".to_owned())));
    }
    assert_eq!(client.in_flight(), [0, 0]);
}

/// D1, D3: the stream ends at once though real engines answer an abort with silence; one abort goes out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abort_ends_the_stream_at_once() {
    let (client, engines) = group(config(1), Tuning::default(), &[]).await;
    let mut stream = within(client.generate(request("long", 100_000))).await.unwrap();
    chunk(&mut stream).await;
    assert_eq!(client.in_flight(), [1]);

    assert!(within(client.abort("long")).await.unwrap());
    assert_eq!(client.in_flight(), [0], "the slot is free when abort returns");
    let (_, end) = rest(&mut stream).await;
    assert_eq!(end, Ok("abort".to_owned()));
    assert_eq!(stream.end_cause(), Some(EndCause::Aborted));
    assert!(!within(client.abort("long")).await.unwrap(), "it is not in flight any more");
    drop(stream);

    // A later request on the same connection is a fence: the abort came before it.
    let mut fence = within(client.generate(request("fence", 1))).await.unwrap();
    finish(&mut fence).await;
    assert_eq!(engines[0].aborts(), ["long"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_stream_is_aborted_once() {
    let (client, engines) = group(config(1), Tuning::default(), &[]).await;
    let mut stream = within(client.generate(request("dropped", 100_000))).await.unwrap();
    chunk(&mut stream).await;
    drop(stream);
    assert_eq!(client.in_flight(), [0], "the slot is free at once");
    until("the engine has the abort", || engines[0].aborts() == ["dropped"]).await;

    let mut finished = within(client.generate(request("finished", 3))).await.unwrap();
    finish(&mut finished).await;
    drop(finished);
    let mut fence = within(client.generate(request("fence", 1))).await.unwrap();
    finish(&mut fence).await;
    assert_eq!(engines[0].aborts(), ["dropped"], "what has finished is not aborted");
    assert_eq!(engines[0].count("stale-abort-hit"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_the_client_aborts_what_runs() {
    let (client, engines) = group(config(2), Tuning::default(), &[]).await;
    let mut streams = Vec::new();
    for (rid, rank) in [("a", 0), ("b", 1), ("c", 0)] {
        let mut stream = within(client.generate(pinned(rid, 100_000, rank))).await.unwrap();
        chunk(&mut stream).await;
        streams.push(stream);
    }
    tokio::task::spawn_blocking(move || drop(client)).await.unwrap();
    for stream in &mut streams {
        assert_eq!(rest(stream).await.1, Err("the client was dropped".to_owned()));
    }
    drop(streams);
    until("both engines have their aborts", || {
        let mut first = engines[0].aborts();
        first.sort();
        first == ["a", "c"] && engines[1].aborts() == ["b"]
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_cannot_be_are_refused() {
    let (client, engines) = group(config(2), Tuning::default(), &[]).await;
    let mut stream = within(client.generate(pinned("twin", 100_000, 0))).await.unwrap();
    chunk(&mut stream).await;
    let again = within(client.generate(pinned("twin", 5, 1))).await;
    assert!(matches!(again, Err(Error::DuplicateRequestId(rid)) if rid == "twin"));
    for rank in [-1, 2, i64::MAX] {
        let outside = within(client.generate(pinned("r", 5, rank))).await;
        assert!(matches!(outside, Err(Error::InvalidRequest(_))), "R6: rank {rank}");
    }
    let nameless = ts_wire::TokenizedGenerateReqInput { rid: None, ..request("", 1) };
    assert!(matches!(within(client.generate(nameless)).await, Err(Error::InvalidRequest(_))));
    assert_eq!(client.in_flight(), [1, 0]);
    assert_eq!(engines[1].adds(), Vec::<String>::new());
}

/// R6: room modulo ranks is the rank.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bootstrap_room_selects_its_rank() {
    let config = ClientConfig { routing: Routing::BootstrapRoom, first_engine_index: 6, ..config(2) };
    let (client, engines) = group(config, Tuning::default(), &[]).await;
    for room in [7_u64, u64::MAX, 4] {
        let rid = format!("room-{room}");
        let request = ts_wire::TokenizedGenerateReqInput { bootstrap_room: Some(room), ..request(&rid, 1) };
        let mut stream = within(client.generate(request)).await.unwrap();
        assert_eq!(u64::from(stream.engine_index()), 6 + room % 2);
        finish(&mut stream).await;
        assert!(engines[(room % 2) as usize].adds().contains(&rid));
    }
    assert!(matches!(within(client.generate(request("none", 1))).await, Err(Error::InvalidRequest(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn least_in_flight_goes_where_there_is_room() {
    let config = ClientConfig { routing: Routing::Aggregated(LoadBalance::LeastInFlight), ..config(2) };
    let (client, _engines) = group(config, Tuning::default(), &[]).await;
    let mut held = Vec::new();
    for number in 0..3 {
        held.push(within(client.generate(pinned(&format!("held-{number}"), 100_000, 0))).await.unwrap());
    }
    for number in 0..3 {
        let stream = within(client.generate(request(&format!("free-{number}"), 100_000))).await.unwrap();
        assert_eq!(stream.engine_index(), 1);
        held.push(stream);
    }
    assert_eq!(client.in_flight(), [3, 3]);
}
