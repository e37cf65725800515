//! The byte format: msgpack with the choices msgspec makes, and the frames of
//! a message.
//!
//! [`Encoder`] always writes the smallest format of a value; [`Decoder`] takes
//! any width. Scalars and headers are written by the `rmp` crate and read by
//! its [`rmp::Marker`]; arrays of numbers, where the time goes, have paths of
//! their own in [`numbers`], because the benchmark `benches/codec.rs`
//! ("integers") measures them several times faster than one `rmp` call per
//! element.

mod decode;
mod encode;
pub(crate) mod numbers;

pub(crate) use decode::too_deep;
pub use decode::{Decoder, Integer, Kind};
pub use encode::Encoder;

/// Tensors of at least this many bytes travel as a frame of their own, smaller
/// ones inside the msgpack buffer (`MSGPACK_ZERO_COPY_THRESHOLD` of the
/// engine). Receivers take both forms at any size.
pub const INLINE_THRESHOLD: usize = 256;

/// How many arrays and maps may be nested in an untyped value, here and in
/// [`Decoder::skip`]. Deeper input is refused: it would otherwise choose how
/// much stack we use.
pub const MAX_DEPTH: usize = 64;
