//! The byte format: msgpack with the choices msgspec makes, and the frames of
//! a message.
//!
//! [`Encoder`] always writes the smallest format of a value; [`Decoder`] takes
//! any width. Scalars and headers are written by the `rmp` crate and read by
//! its [`rmp::Marker`]; arrays of numbers, where the time goes, have paths of
//! their own in `numbers`, because the benchmark `benches/codec.rs`
//! ("integers") measures them two to three times as fast as one `rmp` call per
//! element.

mod decode;
mod encode;
mod kind;
pub(crate) mod numbers;

pub use decode::Decoder;
pub(crate) use decode::too_deep;
pub use encode::Encoder;
pub use kind::{Integer, Kind};

/// Tensors of at least this many bytes travel as a frame of their own, smaller
/// ones inside the msgpack buffer (`MSGPACK_ZERO_COPY_THRESHOLD` of the
/// engine). Receivers take both forms at any size.
pub const INLINE_THRESHOLD: usize = 256;

/// How many arrays and maps may be nested in an untyped value, here and in
/// [`Decoder::skip`]. Deeper input is refused: it would otherwise choose how
/// much stack we use.
pub const MAX_DEPTH: usize = 64;
