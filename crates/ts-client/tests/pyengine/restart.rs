//! Engines that come back, and frontends that do.

use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use ts_client::{ClientConfig, ClientListener, EngineClient, Error, GroupPhase, RankStatus, Tuning};

use super::engine::Engine;
use super::{chunk, config, finish, group, is, pinned, reaches, request, rest, until, within};

/// Fixed addresses, for what must be found again. Ports below the ephemeral range, different from run to run.
pub(crate) fn fixed(ranks: u16) -> ClientConfig {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let address = || {
        let number = u32::from(NEXT.fetch_add(1, Ordering::Relaxed)) + std::process::id() * 16;
        format!("tcp://127.0.0.1:{}", 10_000 + number % 22_000)
    };
    ClientConfig { handshake_address: address(), input_address: address(), output_address: address(), ..config(ranks) }
}

/// R3: back through a new HELLO, without a restart of the frontend; nothing of the old life shows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_engine_is_taken_back() {
    let (client, mut engines) = group(config(2), Tuning::default(), &["--max-model-len", "2000000"]).await;
    for round in 0..3 {
        let mut stream = within(client.generate(pinned("same-id", 1_000_000, 1))).await.unwrap();
        let first = chunk(&mut stream).await;
        assert_eq!(first.output_ids[0], 1001, "round {round}: no output of the old life");
        engines[1].kill();
        rest(&mut stream).await.1.unwrap_err();
        assert_eq!(client.state().phase, GroupPhase::Lost);
        engines[1] = Engine::start(client.handshake_address(), 1, &config(2), &["--max-model-len", "2000000"]);
        reaches(&client, "it is back", is(GroupPhase::Ready)).await;
    }
    let mut both = [
        within(client.generate(pinned("a", 3, 0))).await.unwrap(),
        within(client.generate(pinned("b", 3, 1))).await.unwrap(),
    ];
    for stream in &mut both {
        assert_eq!(finish(stream).await.len(), 3);
    }
    assert_eq!((client.stats()[1].losses, client.stats()[1].returns), (3, 4));
    assert_eq!(client.engines().len(), 2);
}

/// A new process says HELLO while the old one is thought alive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replacement_does_not_wait_for_the_old_one() {
    let (client, engines) = group(config(1), Tuning::default(), &["--max-model-len", "2000000"]).await;
    let mut stream = within(client.generate(request("old", 1_000_000))).await.unwrap();
    chunk(&mut stream).await;
    engines[0].signal("STOP");
    let _replacement = Engine::start(client.handshake_address(), 0, &config(1), &[]);
    let end = rest(&mut stream).await.1.unwrap_err();
    assert!(end.contains("restarted"), "{end}");
    reaches(&client, "the new one serves", is(GroupPhase::Ready)).await;
    let mut next = within(client.generate(request("new", 3))).await.unwrap();
    assert_eq!(finish(&mut next).await, [1, 2, 3]);
}

/// Engines that start before the frontend, and a frontend that does not wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_serves_when_its_engines_come() {
    let config = fixed(1);
    let _engine = Engine::start(&config.handshake_address, 0, &config, &[]);
    let client = ClientListener::bind(config).await.unwrap().into_client();
    assert_eq!(client.state().phase, GroupPhase::Waiting);
    let early = within(client.generate(request("early", 1))).await;
    assert!(matches!(&early, Err(Error::Unavailable(why)) if why.to_string().contains("engine 0")), "{early:?}");
    reaches(&client, "it serves", is(GroupPhase::Ready)).await;
    finish(&mut within(client.generate(request("now", 1))).await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_engines_are_named() {
    let config = ClientConfig { handshake_timeout: Duration::from_millis(300), first_engine_index: 5, ..config(2) };
    match within(EngineClient::connect(config)).await {
        Err(Error::HandshakeTimeout { pending, stage, .. }) => assert_eq!((pending, stage), (vec![5, 6], "HELLO")),
        other => panic!("{other:?}"),
    }
}

/// R9: an engine of the former frontend's life never registers again. It is reported at once, and a restart helps.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_surviving_engine_is_reported() {
    let config = fixed(1);
    let (client, mut engines) = group(config.clone(), Tuning::default(), &[]).await;
    client.close().await;
    let client = ClientListener::bind(config.clone()).await.unwrap().into_client();
    let needs = |state: &ts_client::GroupState| state.ranks[0].status == RankStatus::NeedsRestart;
    let state = reaches(&client, "it is reported", needs).await;
    assert_eq!(state.phase, GroupPhase::Waiting);
    assert!(state.trouble().unwrap().contains("engine 0 needs a restart"), "{state:?}");

    engines[0].kill();
    engines[0] = Engine::start(client.handshake_address(), 0, &config, &[]);
    reaches(&client, "a restart helps", is(GroupPhase::Ready)).await;
    finish(&mut within(client.generate(request("r", 3))).await.unwrap()).await;
}

/// R9: or it is adopted, and what still runs there for the former frontend is aborted once it shows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_surviving_engine_is_adopted() {
    let config = fixed(1);
    let (client, engines) = group(config.clone(), Tuning::default(), &["--max-model-len", "2000000"]).await;
    let known = client.engines().remove(0).ready;
    client.close().await;

    let mut tuning = Tuning::default();
    tuning.adopt = Some(known);
    let client = ClientListener::bind_with(config, tuning).await.unwrap().into_client();
    reaches(&client, "it is adopted", is(GroupPhase::Ready)).await;
    assert_eq!(client.engines()[0].ready.instance_id, "fake-model");
    assert_eq!(finish(&mut within(client.generate(request("new", 3))).await.unwrap()).await, [1, 2, 3]);
    until("it has the request", || engines[0].adds() == ["new"]).await;
}
