use bytes::Bytes;
use rmp::encode::{self, ByteBuf};

use super::{INLINE_THRESHOLD, numbers};

/// Writes one message: the msgpack buffer plus its out-of-band frames.
///
/// Nothing here can fail. msgpack has no lengths above `u32::MAX`; a longer
/// string or array (4 GiB and more) would be written with a clamped header,
/// which every decoder refuses.
#[derive(Debug)]
pub struct Encoder {
    buffer: ByteBuf,
    aux: Vec<Bytes>,
    inline_threshold: usize,
}

impl Default for Encoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Encoder {
    /// An encoder with the engine's threshold for inline tensors,
    /// [`INLINE_THRESHOLD`].
    pub fn new() -> Self {
        Self::with_inline_threshold(INLINE_THRESHOLD)
    }

    /// An encoder that moves tensors of at least `inline_threshold` bytes to
    /// frames of their own.
    pub fn with_inline_threshold(inline_threshold: usize) -> Self {
        Self { buffer: ByteBuf::with_capacity(256), aux: Vec::new(), inline_threshold }
    }

    /// The finished message: the msgpack buffer, then the out-of-band frames.
    pub fn into_frames(self) -> Vec<Bytes> {
        let mut frames = Vec::with_capacity(1 + self.aux.len());
        frames.push(Bytes::from(self.buffer.into_vec()));
        frames.extend(self.aux);
        frames
    }

    /// The finished msgpack buffer of a message without out-of-band frames
    /// (frames that were written are dropped).
    pub fn into_single_frame(self) -> Vec<u8> {
        debug_assert!(self.aux.is_empty(), "the message has out-of-band frames");
        self.buffer.into_vec()
    }

    /// Write `nil`.
    pub fn nil(&mut self) {
        written(encode::write_nil(&mut self.buffer));
    }

    /// Write a boolean.
    pub fn bool(&mut self, value: bool) {
        written(encode::write_bool(&mut self.buffer, value));
    }

    /// Write a signed integer; non-negative values use the unsigned formats.
    pub fn int(&mut self, value: i64) {
        written(encode::write_sint(&mut self.buffer, value));
    }

    /// Write an unsigned integer.
    pub fn uint(&mut self, value: u64) {
        written(encode::write_uint(&mut self.buffer, value));
    }

    /// Write a float, always as float64.
    pub fn float(&mut self, value: f64) {
        written(encode::write_f64(&mut self.buffer, value));
    }

    /// Write a string.
    pub fn str(&mut self, value: &str) {
        written(encode::write_str_len(&mut self.buffer, length(value.len())));
        self.buffer.as_mut_vec().extend_from_slice(value.as_bytes());
    }

    /// Write a binary value.
    pub fn bin(&mut self, value: &[u8]) {
        written(encode::write_bin_len(&mut self.buffer, length(value.len())));
        self.buffer.as_mut_vec().extend_from_slice(value);
    }

    /// Write an array header for `len` elements; the elements follow.
    pub fn array_len(&mut self, len: usize) {
        written(encode::write_array_len(&mut self.buffer, length(len)));
    }

    /// Write a map header for `len` entries; key, value, key, value, ... follow.
    pub fn map_len(&mut self, len: usize) {
        written(encode::write_map_len(&mut self.buffer, length(len)));
    }

    /// Write an extension value.
    pub fn ext(&mut self, code: i8, data: &[u8]) {
        written(encode::write_ext_meta(&mut self.buffer, length(data.len()), code));
        self.buffer.as_mut_vec().extend_from_slice(data);
    }

    /// Write an array of token ids: the bytes of one [`Encoder::int`] each, in a
    /// fraction of the time.
    pub fn token_ids(&mut self, values: &[i32]) {
        self.array_len(values.len());
        numbers::append_ints(self.buffer.as_mut_vec(), values);
    }

    /// Write an array of floats.
    pub fn floats(&mut self, values: &[f64]) {
        self.array_len(values.len());
        numbers::append_floats(self.buffer.as_mut_vec(), values);
    }

    /// Write a tensor's bytes: small ones as an extension value with `code`,
    /// large ones as the index of a frame that carries them (frame 0 is the
    /// msgpack buffer). The frame shares `data`; nothing is copied.
    pub(crate) fn raw_view(&mut self, code: i8, data: &Bytes) {
        if data.len() < self.inline_threshold {
            self.ext(code, data);
        } else {
            self.aux.push(data.clone());
            self.uint(self.aux.len() as u64);
        }
    }
}

/// `rmp` reports the errors of the writer beneath; a growing buffer has none.
fn written<T, E>(result: Result<T, E>) {
    debug_assert!(result.is_ok(), "a growing buffer takes every byte");
}

fn length(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
