// Compiled against both crates, see `tests/api.rs`. `wire` is the crate.

use bytes::Bytes;
use wire::codec::{Dict, StrOrList, Wire};
use wire::control::{self, ControlOutput, ControlRequest};
use wire::error::{Error, Result};
use wire::frames::{EngineOutput, EngineRequest};
use wire::handshake::{EngineCoreReadyResponse, HandshakeAddresses, HandshakeInitMessage, ReadyMessage};
use wire::msgpack::{Decoder, Encoder, Integer, Kind};
use wire::multimodal::{EncodeRequest, Modality, MultimodalDataItem, MultimodalInputs, ShmTensorHandle};
use wire::output::{BatchTokenIDOutSlim, FinishDetails, RequestOutput};
use wire::request::{SessionParams, TokenizedGenerateReqInput};
use wire::sampling::SamplingParams;
use wire::tensor::Tensor;
use wire::value::Value;

fn plain<T: std::fmt::Debug + Clone + PartialEq + Wire>() {}
fn eq<T: Eq>() {}
fn default<T: Default>() {}
fn copy<T: Copy>() {}
fn shared<T: Send + Sync + 'static>() {}

pub(super) fn traits() {
    plain::<TokenizedGenerateReqInput>();
    plain::<SamplingParams>();
    plain::<SessionParams>();
    plain::<BatchTokenIDOutSlim>();
    plain::<ControlRequest>();
    plain::<ControlOutput>();
    plain::<ReadyMessage>();
    plain::<HandshakeAddresses>();
    plain::<HandshakeInitMessage>();
    plain::<EngineCoreReadyResponse>();
    plain::<Modality>();
    plain::<ShmTensorHandle>();
    plain::<MultimodalDataItem>();
    plain::<MultimodalInputs>();
    plain::<EncodeRequest>();
    plain::<Tensor>();
    plain::<Value>();
    plain::<StrOrList>();
    plain::<Dict<String, Value>>();
    plain::<Option<Vec<(i64, bool)>>>();
    plain::<Vec<i32>>();
    plain::<Vec<f64>>();
    plain::<u64>();
    plain::<FinishDetails>();
    eq::<SessionParams>();
    eq::<ReadyMessage>();
    eq::<HandshakeAddresses>();
    eq::<Modality>();
    eq::<ShmTensorHandle>();
    eq::<Tensor>();
    eq::<StrOrList>();
    eq::<Integer>();
    eq::<Kind>();
    default::<SamplingParams>();
    default::<SessionParams>();
    default::<ReadyMessage>();
    default::<HandshakeAddresses>();
    default::<EngineCoreReadyResponse>();
    default::<Dict<Value, Value>>();
    default::<Encoder>();
    copy::<Modality>();
    copy::<Integer>();
    copy::<Kind>();
    copy::<RequestOutput<'static>>();
    shared::<EngineRequest>();
    shared::<EngineOutput>();
    shared::<Error>();
}

pub(super) fn signatures() {
    let _: fn(&SamplingParams) -> Vec<Bytes> = wire::encode_frames::<SamplingParams>;
    let _: fn(&[Bytes]) -> Result<SamplingParams> = wire::decode_frames::<SamplingParams>;
    let _: fn(&[u8]) -> Result<SamplingParams> = wire::decode_bytes::<SamplingParams>;
    let _: fn(&BatchTokenIDOutSlim) -> Result<Vec<RequestOutput<'_>>> = lifetime_of_rows;
    let _: fn(u16) -> [u8; 2] = wire::engine_identity;
    let _: fn(&EngineRequest) -> Vec<Bytes> = EngineRequest::to_frames;
    let _: fn(&[Bytes]) -> Result<EngineRequest> = EngineRequest::from_frames;
    let _: fn(&EngineOutput) -> Vec<Bytes> = EngineOutput::to_frames;
    let _: fn(&[Bytes]) -> Result<EngineOutput> = EngineOutput::from_frames;
    let _: fn(&ControlRequest) -> &'static str = ControlRequest::tag;
    let _: fn(&ControlRequest) -> &'static str = ControlRequest::reply_tag;
    let _: fn(&str) -> bool = ControlRequest::knows;
    let _: fn(&ControlOutput) -> &'static str = ControlOutput::tag;
    let _: fn(&str) -> bool = ControlOutput::knows;
    let _: fn(Error, &'static str) -> Error = Error::in_field;
    let _: fn(Integer, &'static str) -> Result<u8> = Integer::narrow::<u8>;
    let _: fn() -> Encoder = Encoder::new;
    let _: fn(usize) -> Encoder = Encoder::with_inline_threshold;
    let _: fn(Encoder) -> Vec<Bytes> = Encoder::into_frames;
    let _: fn(Encoder) -> Vec<u8> = Encoder::into_single_frame;
    let _: [i64; 2] = [control::PROFILE_START, control::PROFILE_STOP];
    let _: [u8; 3] = [wire::frames::REQ_TYPE_ADD, wire::frames::REQ_TYPE_ABORT, wire::frames::REQ_TYPE_CONTROL];
    let _: &[u8] = wire::ENGINE_CORE_DEAD;
    let _: i8 = wire::tensor::RAW_VIEW_EXT;
    let _: usize = wire::msgpack::INLINE_THRESHOLD;
    let _: [&str; 2] = [wire::handshake::STATUS_HELLO, wire::handshake::STATUS_READY];
    let _: [Value; 4] = [Value::from("a"), Value::from(1i64), Value::from(1.0), Value::from(true)];
    assert_eq!(Modality::Audio as i64, 3);
}

/// A type of the program's own, with all the primitives.
#[derive(Debug, PartialEq)]
struct Own(i64, Bytes);

impl Wire for Own {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.array_len(8);
        encoder.int(self.0);
        encoder.uint(7);
        encoder.nil();
        encoder.bool(true);
        encoder.float(0.5);
        encoder.str("text");
        encoder.map_len(1);
        encoder.ext(5, b"e");
        encoder.bin(&self.1);
        encoder.nil();
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self> {
        assert_eq!(decoder.peek_kind()?, Kind::Array);
        assert_eq!(decoder.array_len()?, 8);
        let number: i64 = decoder.integer()?.narrow("i64")?;
        assert_eq!(decoder.integer()?, Integer::Unsigned(7));
        assert!(decoder.take_nil()?);
        assert!(decoder.bool()?);
        assert_eq!(decoder.float()?, 0.5);
        assert_eq!(decoder.str()?, "text");
        assert_eq!(decoder.map_len()?, 1);
        assert_eq!(decoder.ext()?, (5, Bytes::from_static(b"e")));
        let bytes = decoder.bin()?;
        decoder.skip()?;
        Ok(Own(number, bytes))
    }
}

pub(super) fn own_type() {
    let own = vec![Own(-3, Bytes::from_static(b"abc"))];
    let frames = wire::encode_frames(&own);
    let mut decoder = Decoder::new(&frames).clone();
    assert!(decoder.peek_tag().is_err());
    assert_eq!(Vec::<Own>::decode(&mut decoder).unwrap(), own);
    decoder.finish().unwrap();
}

fn describe(error: &Error) -> String {
    match error {
        Error::Truncated { offset, needed } => format!("{offset} {needed}"),
        Error::Type { expected, found, offset } => format!("{expected} {found} {offset}"),
        Error::IntRange { value, target } => format!("{value} {target}"),
        Error::Utf8 { offset } => format!("{offset}"),
        Error::Tag { expected, found } => format!("{expected} {found}"),
        Error::MissingField(field) => (*field).to_owned(),
        Error::TrailingBytes(count) => count.to_string(),
        Error::Invalid(message) => message.clone(),
        Error::Field { field, source } => format!("{field}: {}", describe(source)),
    }
}

fn lifetime_of_rows(batch: &BatchTokenIDOutSlim) -> Result<Vec<RequestOutput<'_>>> {
    let rows = batch.requests()?;
    Ok(rows.collect())
}

/// What goes wrong, as both crates say it.
pub(super) fn errors() -> Vec<String> {
    let bad: [&[u8]; 7] = [b"\xa5abc", b"\xc0", b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff", b"\xa1\xff", b"\x05\x06", b"\x90", b"\xc1"];
    let mut said: Vec<String> = Vec::new();
    for bytes in bad {
        said.extend(wire::decode_bytes::<String>(bytes).err().map(|e| kind(&e)));
        said.extend(wire::decode_bytes::<i64>(bytes).err().map(|e| kind(&e)));
        said.extend(wire::decode_bytes::<SamplingParams>(bytes).err().map(|e| kind(&e)));
        said.extend(wire::decode_bytes::<EncodeRequest>(bytes).err().map(|e| kind(&e)));
    }
    said
}

fn kind(error: &Error) -> String {
    let _ = describe(error);
    let debug = format!("{error:?}");
    debug.chars().take_while(|c| c.is_alphanumeric()).collect()
}
