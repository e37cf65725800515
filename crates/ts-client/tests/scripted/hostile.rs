//! Peers that are broken, or mean harm: they lose their connection, and nobody else notices.

use std::time::Duration;

use ts_client::{ClientListener, EngineClient, Error, Tuning};

use super::engine::{Engine, registration, shake_hands};
use super::raw::RawPeer;
use super::{chunk, config, group, request, until, within};

/// The client still serves.
async fn serves(client: &EngineClient, engine: &Engine) {
    let mut stream = within(client.generate(request("after"))).await.unwrap();
    assert_eq!(engine.receive_add(), "after");
    engine.send(&[("after", &[5], "stop", 1)]);
    assert_eq!(chunk(&mut stream).await.output_ids, [5]);
}

pub(super) fn resident_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ping_is_answered() {
    let (client, engines) = group(1, Tuning::default()).await;
    for address in [&engines[0].init.addresses.outputs[0], &engines[0].init.addresses.inputs[0]] {
        let kind = if address == &engines[0].init.addresses.outputs[0] { "PUSH" } else { "DEALER" };
        let mut peer = RawPeer::connect(address, kind, b"", 1);
        peer.send(4, b"\x04PING\x00\x00context");
        let pong = peer.receive().expect("an answer");
        assert_eq!((pong.flags, pong.body.as_slice()), (4, b"\x04PONGcontext".as_slice()));
    }
    serves(&client, &engines[0]).await;
}

/// Frames of 2^40 and 2^62 bytes, announced on each socket.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_huge_frame_costs_its_connection() {
    let (client, engines) = group(1, Tuning::default()).await;
    let addresses = engines[0].init.addresses.clone();
    let before = resident_kb();
    for (address, kind) in [
        (addresses.outputs[0].as_str(), "PUSH"),
        (addresses.inputs[0].as_str(), "DEALER"),
        (client.handshake_address(), "DEALER"),
    ] {
        for length in [1_u64 << 40, 1 << 62, u64::MAX] {
            let mut peer = RawPeer::connect(address, kind, b"x", 1);
            let mut header = vec![2];
            header.extend(length.to_be_bytes());
            peer.write(&header);
            assert!(peer.receive_message().is_none(), "the connection is closed: {length} on {address}");
        }
    }
    assert!(resident_kb() < before + 64 * 1024, "memory is bounded");
    serves(&client, &engines[0]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_command_costs_its_connection() {
    let (client, engines) = group(1, Tuning::default()).await;
    for body in [b"\xffABC".as_slice(), b"\x00", b"\x04PING", b"\x09SUBSCRIBEx", b""] {
        let mut peer = RawPeer::connect(&engines[0].init.addresses.outputs[0], "PUSH", b"", 1);
        peer.send(4, body);
        drop(peer);
    }
    // Not ZMTP at all.
    for junk in [b"GET / HTTP/1.1\r\n\r\n".as_slice(), &[0; 4096], &[0xff; 4096]] {
        use std::io::Write;
        let address = engines[0].init.addresses.outputs[0].strip_prefix("tcp://").unwrap();
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        let _closed = stream.write_all(junk);
    }
    serves(&client, &engines[0]).await;
}

/// A reply with a million nested arrays in a field of any type.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deep_nesting_is_malformed() {
    let (client, engines) = group(1, Tuning::default()).await;
    let tag = "GetInternalStateReqOutput";
    let mut reply = vec![0x94, 0xa0 | u8::try_from(tag.len()).unwrap()];
    reply.extend(tag.as_bytes());
    reply.extend([0xc0, 0xc0, 0x81, 0xa1, b'k']);
    reply.extend(vec![0x91; 1_000_000]);
    reply.push(0xc0);
    engines[0].send_bytes(&reply);
    until("it is counted", || client.stats()[0].malformed == 1).await;
    serves(&client, &engines[0]).await;
}

/// Strangers on the handshake and the input socket, before and among those that are expected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_are_refused_alone() {
    let listener = ClientListener::bind(config(2)).await.unwrap();
    let context = zmq::Context::new();
    let stranger = |identity: &[u8], message: &[u8], address: &str| {
        let socket = context.socket(zmq::DEALER).unwrap();
        if !identity.is_empty() {
            socket.set_identity(identity).unwrap();
        }
        socket.set_linger(1_000).unwrap();
        socket.connect(address).unwrap();
        socket.send(message, 0).unwrap();
        socket
    };
    let handshake = listener.handshake_address().to_owned();
    let first = Engine::join(&handshake, 0, 2);
    let hello = b"\x81\xa6status\xa5HELLO";
    let _strangers = [
        stranger(b"", hello, &handshake),
        stranger(b"abc", hello, &handshake),
        stranger(&[7, 0], hello, &handshake),
        stranger(&[1, 0], b"junk", &handshake),
        stranger(&[9, 9], &registration(0, 2), &first.init.addresses.inputs[0]),
        stranger(b"zz", &[0xc1; 300], &first.init.addresses.inputs[0]),
    ];
    // HELLO twice: an engine that crashed while starting and starts again.
    shake_hands(&context, &handshake, 1);
    let second = Engine::join(&handshake, 1, 2);
    let client = within(listener.accept()).await.unwrap();
    assert_eq!(client.engines().len(), 2);
    serves(&client, &first).await;
    let mut stream = within(client.generate(request("second"))).await.unwrap();
    assert_eq!(second.receive_add(), "second");
    second.send(&[("second", &[5], "stop", 1)]);
    assert_eq!(chunk(&mut stream).await.output_ids, [5]);
}

/// An engine that belongs to another group is refused by name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rank_of_another_group_is_named() {
    let config = ts_client::ClientConfig { handshake_timeout: Duration::from_secs(2), ..config(2) };
    let listener = ClientListener::bind(config).await.unwrap();
    let _right = Engine::join(listener.handshake_address(), 0, 2);
    let _wrong = Engine::join(listener.handshake_address(), 1, 8);
    match within(listener.accept()).await {
        Err(Error::Handshake(why)) => assert!(why.contains("engine 1") && why.contains('8'), "{why}"),
        other => panic!("{other:?}"),
    }
}
