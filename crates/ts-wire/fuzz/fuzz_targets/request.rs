//! What an engine reads: ADD, ABORT, CONTROL, and an encode node's intake.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use ts_wire::{EncodeRequest, EngineRequest, decode_frames, encode_frames};

fuzz_target!(|message: &[u8]| {
    let message = Bytes::copy_from_slice(message);
    let aux = Bytes::from_static(b"an out-of-band frame");
    for kind in 0..3u8 {
        let frames = [Bytes::copy_from_slice(&[kind]), message.clone(), aux.clone()];
        if let Ok(request) = EngineRequest::from_frames(&frames) {
            let encoded = request.to_frames();
            assert_eq!(EngineRequest::from_frames(&encoded).map(|again| again.to_frames()).ok(), Some(encoded));
        }
    }
    if let Ok(request) = decode_frames::<EncodeRequest>(&[message, aux]) {
        let encoded = encode_frames(&request);
        assert_eq!(decode_frames::<EncodeRequest>(&encoded).map(|again| encode_frames(&again)).ok(), Some(encoded));
    }
});
