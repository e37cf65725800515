//! What is bound and advertised; Z2.

use std::os::unix::net::UnixListener;

use ts_client::{ClientConfig, ClientListener, Error, Tuning};

use super::engine::Engine;
use super::{chunk, config, request, within};

fn folder(name: &str) -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("ts-client-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

async fn one_request(config: ClientConfig, tuning: Tuning) -> Engine {
    let listener = within(ClientListener::bind_with(config, tuning)).await.unwrap();
    let dial = listener.handshake_address().replace("0.0.0.0", "127.0.0.1");
    let engine = Engine::join(&dial, 0, 1);
    let client = within(listener.accept()).await.unwrap();
    let mut stream = within(client.generate(request("r"))).await.unwrap();
    assert_eq!(engine.receive_add(), "r");
    engine.send(&[("r", &[5], "stop", 1)]);
    assert_eq!(chunk(&mut stream).await.output_ids, [5]);
    engine
}

async fn refused(config: ClientConfig) -> String {
    match within(ClientListener::bind(config)).await {
        Err(Error::Zmq(error)) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_socket_file_is_replaced() {
    let folder = folder("stale");
    let path = folder.join("in");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "the file outlives its listener");
    let input_address = format!("ipc://{}", path.display());
    let engine =
        one_request(ClientConfig { input_address: input_address.clone(), ..config(1) }, Tuning::default()).await;
    assert_eq!(engine.init.addresses.inputs[0], input_address);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_a_stale_socket_is_left_alone() {
    let folder = folder("kept");
    let live = folder.join("live");
    let _listener = UnixListener::bind(&live).unwrap();
    let file = folder.join("file");
    std::fs::write(&file, "precious").unwrap();
    let link = folder.join("link");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    for (path, why) in
        [(&live, "another process"), (&file, "not a socket"), (&link, "not a socket"), (&folder, "not a socket")]
    {
        let error = refused(ClientConfig { output_address: format!("ipc://{}", path.display()), ..config(1) }).await;
        assert!(error.contains(why) && error.contains("ipc://"), "{error}");
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    assert!(std::os::unix::net::UnixStream::connect(&live).is_ok(), "the live peer still listens");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wildcard_path_gets_a_name() {
    let address = || "ipc://*".to_owned();
    let engine = one_request(
        ClientConfig { input_address: address(), output_address: address(), ..config(1) },
        Tuning::default(),
    )
    .await;
    assert!(engine.init.addresses.inputs[0].starts_with("ipc:///"), "{:?}", engine.init);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn localhost_is_resolved() {
    let address = || "tcp://localhost:0".to_owned();
    let config =
        ClientConfig { handshake_address: address(), input_address: address(), output_address: address(), ..config(1) };
    let engine = one_request(config, Tuning::default()).await;
    assert!(engine.init.addresses.inputs[0].starts_with("tcp://127.0.0.1:"), "{:?}", engine.init);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wildcard_needs_an_address_to_advertise() {
    for wildcard in ["tcp://0.0.0.0:0", "tcp://*:0"] {
        let config = || ClientConfig { input_address: wildcard.into(), output_address: wildcard.into(), ..config(1) };
        let error = refused(config()).await;
        assert!(error.contains("advertise"), "{error}");
        let mut tuning = Tuning::default();
        tuning.advertise = Some("127.0.0.1".into());
        let engine = one_request(config(), tuning).await;
        assert!(engine.init.addresses.outputs[0].starts_with("tcp://127.0.0.1:"), "{:?}", engine.init);
    }
    // The handshake address is advertised by nobody: the operator tells it to the engines.
    one_request(ClientConfig { handshake_address: "tcp://0.0.0.0:0".into(), ..config(1) }, Tuning::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_in_use_is_an_error() {
    let listener = within(ClientListener::bind(config(1))).await.unwrap();
    let taken = listener.handshake_address().to_owned();
    let error = refused(ClientConfig { handshake_address: taken.clone(), ..config(1) }).await;
    assert!(error.contains(&taken), "{error}");
    // It is free once the client is gone.
    listener.into_client().close().await;
    within(ClientListener::bind(ClientConfig { handshake_address: taken, ..config(1) })).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn indices_that_do_not_exist_are_refused() {
    for (first_engine_index, num_engines) in [(0, 0), (65_535, 2), (1, 65_535 - 1)] {
        let config = ClientConfig { first_engine_index, num_engines, ..config(1) };
        let fits = u32::from(first_engine_index) + u32::from(num_engines) <= 65_536 && num_engines > 0;
        if !fits {
            assert!(matches!(within(ClientListener::bind(config)).await, Err(Error::Handshake(_))));
        }
    }
    within(ClientListener::bind(ClientConfig { first_engine_index: 65_535, ..config(1) })).await.unwrap();
}

/// IPv6, where the machine has it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ipv6_is_bound_and_advertised() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        return;
    }
    let config = ClientConfig { handshake_address: "tcp://[::1]:0".into(), ..config(1) };
    let listener = within(ClientListener::bind(config)).await.unwrap();
    assert!(listener.handshake_address().starts_with("tcp://[::1]:"), "{}", listener.handshake_address());
}
