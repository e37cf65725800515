//! Every golden frame, written by the engine's own encoder, decodes to its stated value and encodes back byte for byte.
//!
//! The stated value is compared with what *our* encoding of *our* decoded struct holds, position by position: a field
//! read into the wrong place, lost or defaulted would show.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

use bytes::Bytes;
use serde_json::Value as Json;
use ts_wire::msgpack::Integer;
use ts_wire::*;

/// Cases whose frames are shorter than ours, because the schema has grown at its end since 0.1.1 wrote them (wire
/// contract, section 7). They do not encode back to their bytes: ours begin with the same elements, and hold the
/// defaults of what follows.
const GROWN: [&str; 14] = [
    // Finish details, speculation, prompt logprobs and alternatives came after 0.1.1's 14 elements.
    "one_row",
    "no_rows",
    "rids_nil",
    "distinct",
    "extremes",
    "rows_16",
    "tokens_70000",
    "from_full",
    "prefix_14",
    // Cut shorter by hand, as older engines are.
    "prefix_9",
    "prefix_10",
    "prefix_12",
    // `flush_cache` came after 0.1.1.
    "UpdateWeightFromDiskReqInput_distinct",
    "UpdateWeightFromDiskReqInput_plain",
];

fn grown(name: &str, kind: &str) -> bool {
    // "distinct" is a name in several files.
    GROWN.contains(&name) && matches!(kind, "output" | "control")
}

/// Structs of the Python module that are no part of this wire (wire contract, section 5).
const NOT_ON_THE_WIRE: [&str; 2] = ["GetLoadReqOutput_distinct", "GetLoadReqOutput_plain"];

#[test]
fn abort() {
    assert_eq!(check(include_str!("golden/abort.json")), 6);
}

#[test]
fn add() {
    assert_eq!(check(include_str!("golden/add.json")), 29);
}

#[test]
fn control() {
    assert_eq!(check(include_str!("golden/control.json")), 70);
}

#[test]
fn encode_request() {
    assert_eq!(check(include_str!("golden/encode_request.json")), 2);
}

#[test]
fn handshake() {
    assert_eq!(check(include_str!("golden/handshake.json")), 15);
}

#[test]
fn multimodal() {
    assert_eq!(check(include_str!("golden/multimodal.json")), 33);
}

#[test]
fn output() {
    assert_eq!(check(include_str!("golden/output.json")), 13);
}

fn check(file: &str) -> usize {
    let file: Json = serde_json::from_str(file).unwrap();
    let cases = file["cases"].as_array().unwrap();
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let kind = case["kind"].as_str().unwrap();
        assert!(kind != "output" || name == "engine_core_dead" || grown(name, kind), "{name}");
        let frames: Vec<Bytes> =
            case["frames"].as_array().unwrap().iter().map(|hex| unhex(hex.as_str().unwrap())).collect();
        match kind {
            "abort" | "add" | "control" => {
                let message = EngineRequest::from_frames(&frames).unwrap_or_else(|e| panic!("{name}: {e}"));
                compare(case, &frames[1..], &message.to_frames()[1..]);
                assert_eq!(frames[0], message.to_frames()[0], "{name}");
            }
            "control_output" if NOT_ON_THE_WIRE.contains(&name) => {
                let error = EngineOutput::from_frames(&frames).unwrap_err();
                assert!(matches!(&error, Error::Tag { found, .. } if found == "GetLoadReqOutput"), "{name}: {error}");
            }
            "output" if name == "engine_core_dead" => {
                assert_eq!(EngineOutput::from_frames(&frames).unwrap(), EngineOutput::Dead);
                assert_eq!(EngineOutput::Dead.to_frames(), frames);
            }
            "control_output" | "output" => {
                let message = EngineOutput::from_frames(&frames).unwrap_or_else(|e| panic!("{name}: {e}"));
                compare(case, &frames, &message.to_frames());
            }
            "bare" => compare(case, &frames, &again::<EncodeRequest>(&frames)),
            "registration" => compare(case, &frames, &again::<EngineCoreReadyResponse>(&frames)),
            "handshake" => match case["value"]["struct"].as_str().unwrap() {
                "WireReadyMessage" => compare(case, &frames, &again::<ReadyMessage>(&frames)),
                "WireHandshakeInitMessage" => compare(case, &frames, &again::<HandshakeInitMessage>(&frames)),
                "WireHandshakeAddresses" => compare(case, &frames, &again::<HandshakeAddresses>(&frames)),
                other => panic!("{name}: {other}"),
            },
            other => panic!("{name}: unknown kind {other}"),
        }
    }
    cases.len()
}

fn again<T: Wire>(frames: &[Bytes]) -> Vec<Bytes> {
    encode_frames(&decode_frames::<T>(frames).unwrap())
}

/// `ours` is what we encoded from what we decoded from `theirs`.
fn compare(case: &Json, theirs: &[Bytes], ours: &[Bytes]) {
    let name = case["name"].as_str().unwrap();
    let value: Value = decode_bytes(&ours[0]).unwrap();
    if grown(name, case["kind"].as_str().unwrap()) {
        let Value::Array(ours) = value else { panic!("{name}: no array") };
        let Value::Array(theirs) = decode_bytes::<Value>(&theirs[0]).unwrap() else { panic!("{name}: no array") };
        assert!(ours.len() > theirs.len(), "{name}: nothing has grown");
        // As bytes: a NaN is not equal to itself.
        assert_eq!(encode_frames(&ours[..theirs.len()].to_vec()), encode_frames(&theirs), "{name}");
        let theirs_len = theirs.len();
        stated(name, &case["value"], &Value::Array(theirs), &[]);
        // What the frame lacks has its default.
        for default in &ours[theirs_len..] {
            let expected = [Value::Array(vec![]), Value::from(0), Value::from(true)];
            assert!(expected.contains(default), "{name}: {default:?}");
        }
    } else {
        assert_eq!(ours, theirs, "{name}");
        stated(name, &case["value"], &value, ours);
    }
}

/// The stated value, as the golden files write it, against a decoded one.
fn stated(at: &str, json: &Json, value: &Value, frames: &[Bytes]) {
    match (json, value) {
        (Json::Null, Value::Nil) => {}
        (Json::Bool(a), Value::Bool(b)) if a == b => {}
        (Json::String(a), Value::Str(b)) if a == b => {}
        (Json::Number(a), Value::Int(Integer::Unsigned(b))) if a.as_u64() == Some(*b) => {}
        (Json::Number(a), Value::Int(Integer::Signed(b))) if a.as_i64() == Some(*b) => {}
        (Json::Number(a), Value::Float(b)) if a.as_f64() == Some(*b) => {}
        (Json::Array(a), Value::Array(b)) => all(at, a, b, frames),
        (Json::Object(object), value) => special(at, object, value, frames),
        _ => panic!("{at}: stated {json}, got {value:?}"),
    }
}

fn all(at: &str, a: &[Json], b: &[Value], frames: &[Bytes]) {
    assert_eq!(a.len(), b.len(), "{at}");
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        stated(&format!("{at}.{i}"), a, b, frames);
    }
}

fn special(at: &str, object: &serde_json::Map<String, Json>, value: &Value, frames: &[Bytes]) {
    if let Some(fields) = object.get("fields") {
        let fields = fields.as_array().unwrap();
        match (object["layout"].as_str().unwrap(), value) {
            ("array", Value::Array(got)) => {
                let tag: Vec<Json> = object["tag"].is_string().then(|| object["tag"].clone()).into_iter().collect();
                let stated: Vec<Json> = tag.into_iter().chain(fields.iter().map(|f| f[1].clone())).collect();
                // A frame cut by hand holds fewer fields than its struct.
                all(at, &stated[..got.len().min(stated.len())], got, frames);
            }
            ("map", Value::Map(got)) => {
                assert_eq!(fields.len(), got.len(), "{at}");
                for (field, (key, value)) in fields.iter().zip(got) {
                    assert_eq!(&Value::Str(field[0].as_str().unwrap().into()), key, "{at}");
                    stated(&format!("{at}.{}", field[0]), &field[1], value, frames);
                }
            }
            other => panic!("{at}: {other:?}"),
        }
    } else if let Some(set) = object.get("set") {
        // The order of a Python set is its own; the golden bytes have shown that ours keeps it.
        let Value::Array(got) = value else { panic!("{at}: {value:?}") };
        let mut got: Vec<String> = got.iter().map(|v| format!("{v:?}")).collect();
        let mut stated: Vec<String> =
            set.as_array().unwrap().iter().map(|v| format!("{:?}", Value::from(v.as_i64().unwrap()))).collect();
        got.sort();
        stated.sort();
        assert_eq!(got, stated, "{at}");
    } else if let Some(map) = object.get("map") {
        let Value::Map(got) = value else { panic!("{at}: {value:?}") };
        let map = map.as_array().unwrap();
        assert_eq!(map.len(), got.len(), "{at}");
        for (entry, (key, value)) in map.iter().zip(got) {
            stated(at, &entry[0], key, frames);
            stated(at, &entry[1], value, frames);
        }
    } else if let Some(number) = object.get("f64") {
        let Value::Float(got) = value else { panic!("{at}: {value:?}") };
        assert_eq!(u64::from_str_radix(number.as_str().unwrap(), 16).unwrap(), got.to_bits(), "{at}");
    } else if let Some(hex) = object.get("bin") {
        assert_eq!(&Value::Bin(unhex(hex.as_str().unwrap())), value, "{at}");
    } else if object.contains_key("enum") {
        stated(at, &object["value"], value, frames);
    } else {
        tensor(at, &object["tensor"], value, frames);
    }
}

fn tensor(at: &str, stated_tensor: &Json, value: &Value, frames: &[Bytes]) {
    let Value::Array(got) = value else { panic!("{at}: {value:?}") };
    stated(at, &stated_tensor["dtype"], &got[0], frames);
    stated(at, &stated_tensor["shape"], &got[1], frames);
    let data = unhex(stated_tensor["data"].as_str().unwrap());
    match (&got[2], &stated_tensor["frame"]) {
        (Value::Ext(3, inline), frame) => {
            assert_eq!(frame, 0, "{at}");
            assert_eq!(inline, &data, "{at}");
        }
        (Value::Int(Integer::Unsigned(number)), Json::Number(frame)) => {
            assert_eq!(Some(*number), frame.as_u64(), "{at}");
            assert_eq!(frames[*number as usize], data, "{at}");
        }
        other => panic!("{at}: {other:?}"),
    }
}

fn unhex(hex: &str) -> Bytes {
    hex.as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect::<Vec<u8>>()
        .into()
}
