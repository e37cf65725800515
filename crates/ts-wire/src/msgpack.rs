//! msgpack primitives that make msgspec's encoding choices (wire contract, section 3).
//!
//! The byte format is `rmp`'s: it writes the smallest form of every value, as msgspec does. What stands here by hand is
//! what a crate for one buffer cannot know: out-of-band frames for tensors, borrowed strings and shared binaries, bounds
//! against hostile lengths and depths, and a bulk path for arrays of integers (`benches/codec.rs` measures it).

use bytes::Bytes;
use rmp::{Marker, encode};

use crate::error::{Error, Result};

/// Tensors smaller than this many bytes are inlined in the msgpack buffer; larger ones become their own frame.
pub const INLINE_THRESHOLD: usize = 256;

/// Deepest nesting that is decoded or skipped. Far above what the schema needs; a deeper value is refused, so that no
/// peer can exhaust the stack.
pub const MAX_DEPTH: usize = 64;

/// Writes one message: the msgpack buffer plus out-of-band frames.
#[derive(Debug)]
pub struct Encoder {
    buffer: Vec<u8>,
    frames: Vec<Bytes>,
    inline_threshold: usize,
}

impl Default for Encoder {
    fn default() -> Self {
        Self::new()
    }
}

// Writing into a `Vec` cannot fail, so the results of `rmp`'s writers are dropped throughout. Lengths above `u32::MAX`
// have no msgpack form; they would need 4 GiB of one field, and are cut to the largest length a header can say.
impl Encoder {
    /// An encoder with the Python side's inline threshold.
    pub fn new() -> Self {
        Self::with_inline_threshold(INLINE_THRESHOLD)
    }

    /// An encoder that frames out buffers of at least `inline_threshold` bytes.
    pub fn with_inline_threshold(inline_threshold: usize) -> Self {
        Self { buffer: Vec::with_capacity(256), frames: Vec::new(), inline_threshold }
    }

    /// Finish the message: the msgpack buffer, then the out-of-band frames.
    pub fn into_frames(self) -> Vec<Bytes> {
        let mut frames = Vec::with_capacity(1 + self.frames.len());
        frames.push(self.buffer.into());
        frames.extend(self.frames);
        frames
    }

    /// Finish a message that has no out-of-band frames.
    pub fn into_single_frame(self) -> Vec<u8> {
        self.buffer
    }

    /// Write `nil`.
    pub fn nil(&mut self) {
        let _ = encode::write_nil(&mut self.buffer);
    }

    /// Write a boolean.
    pub fn bool(&mut self, value: bool) {
        let _ = encode::write_bool(&mut self.buffer, value);
    }

    /// Write a signed integer: non-negative values use the unsigned formats.
    pub fn int(&mut self, value: i64) {
        let _ = encode::write_sint(&mut self.buffer, value);
    }

    /// Write an unsigned integer.
    pub fn uint(&mut self, value: u64) {
        let _ = encode::write_uint(&mut self.buffer, value);
    }

    /// Write a float, always as float64.
    pub fn float(&mut self, value: f64) {
        let _ = encode::write_f64(&mut self.buffer, value);
    }

    /// Write a string.
    pub fn str(&mut self, value: &str) {
        let _ = encode::write_str(&mut self.buffer, value);
    }

    /// Write a binary value.
    pub fn bin(&mut self, value: &[u8]) {
        let _ = encode::write_bin(&mut self.buffer, value);
    }

    /// Write an array header for `len` elements.
    pub fn array_len(&mut self, len: usize) {
        let _ = encode::write_array_len(&mut self.buffer, header(len));
    }

    /// Write a map header for `len` entries.
    pub fn map_len(&mut self, len: usize) {
        let _ = encode::write_map_len(&mut self.buffer, header(len));
    }

    /// Write an extension value.
    pub fn ext(&mut self, code: i8, data: &[u8]) {
        let _ = encode::write_ext_meta(&mut self.buffer, header(data.len()), code);
        self.buffer.extend_from_slice(data);
    }

    /// Write an array of token ids: the same bytes as [`int`](Self::int) one by one, several times as fast.
    pub fn token_ids(&mut self, ids: &[i32]) {
        self.array_len(ids.len());
        // Five bytes is the widest form of a 32-bit integer.
        self.buffer.reserve(ids.len() * 5);
        for &id in ids {
            match id {
                0..=0x7f => self.buffer.push(id as u8),
                0x80..=0xff => self.buffer.extend_from_slice(&[0xcc, id as u8]),
                0x100..=0xffff => {
                    let [high, low] = (id as u16).to_be_bytes();
                    self.buffer.extend_from_slice(&[0xcd, high, low]);
                }
                0x1_0000.. => {
                    let [a, b, c, d] = id.to_be_bytes();
                    self.buffer.extend_from_slice(&[0xce, a, b, c, d]);
                }
                _ => self.int(i64::from(id)),
            }
        }
    }

    /// Write tensor data: inline below the threshold, else as a frame of its own named by its number.
    pub(crate) fn tensor_data(&mut self, code: i8, data: &Bytes) {
        if data.len() < self.inline_threshold {
            self.ext(code, data);
        } else {
            self.frames.push(data.clone());
            self.uint(self.frames.len() as u64);
        }
    }
}

fn header(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// The msgpack type of the next value, for decoding unions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `nil`
    Nil,
    /// `true` / `false`
    Bool,
    /// Any integer format.
    Int,
    /// float32 or float64.
    Float,
    /// A string.
    Str,
    /// A binary value.
    Bin,
    /// An array.
    Array,
    /// A map.
    Map,
    /// An extension value.
    Ext,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Nil => "nil",
            Kind::Bool => "bool",
            Kind::Int => "int",
            Kind::Float => "float",
            Kind::Str => "str",
            Kind::Bin => "bin",
            Kind::Array => "array",
            Kind::Map => "map",
            Kind::Ext => "ext",
        }
    }
}

/// An integer as read from the wire, before narrowing to a schema type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Integer {
    /// A value from a signed format, or any value below zero.
    Signed(i64),
    /// A value from an unsigned format.
    Unsigned(u64),
}

impl Integer {
    /// Narrow to any integer type, failing loudly on overflow.
    ///
    /// # Errors
    /// [`Error::IntRange`] with `target`, the schema type's name.
    pub fn narrow<T: TryFrom<i128>>(self, target: &'static str) -> Result<T> {
        let value = match self {
            Integer::Signed(value) => i128::from(value),
            Integer::Unsigned(value) => i128::from(value),
        };
        T::try_from(value).map_err(|_| Error::IntRange { value, target })
    }
}

/// Reads one message from its frames.
#[derive(Debug, Clone)]
pub struct Decoder<'f> {
    frames: &'f [Bytes],
    buffer: &'f [u8],
    position: usize,
    depth: usize,
}

impl<'f> Decoder<'f> {
    /// A decoder over a message's frames (frame 0 is the msgpack buffer).
    pub fn new(frames: &'f [Bytes]) -> Self {
        Self { frames, buffer: frames.first().map_or(&[], |frame| frame), position: 0, depth: 0 }
    }

    /// A decoder over a msgpack buffer without out-of-band frames. Binaries are copied instead of shared.
    pub fn over(buffer: &'f [u8]) -> Self {
        Self { frames: &[], buffer, position: 0, depth: 0 }
    }

    /// Fail unless the whole msgpack buffer was consumed.
    ///
    /// # Errors
    /// [`Error::TrailingBytes`].
    pub fn finish(&self) -> Result<()> {
        match self.buffer.len() - self.position {
            0 => Ok(()),
            left => Err(Error::TrailingBytes(left)),
        }
    }

    /// The tag of the tagged array struct that comes next, without consuming it.
    ///
    /// # Errors
    /// The next value is no array that starts with a string.
    pub fn peek_tag(&self) -> Result<&'f str> {
        let mut ahead = self.clone();
        if ahead.array_len()? == 0 {
            return Err(Error::Invalid("a tagged struct without a tag".into()));
        }
        ahead.str()
    }

    /// The type of the next value, without consuming it.
    ///
    /// # Errors
    /// The input ends here, or the next byte starts no value.
    pub fn peek_kind(&self) -> Result<Kind> {
        kind(self.peek()?).ok_or_else(|| Error::Invalid(format!("byte {} starts no msgpack value", self.position)))
    }

    /// Consume a `nil` if the next value is one.
    ///
    /// # Errors
    /// The input ends here.
    pub fn take_nil(&mut self) -> Result<bool> {
        let nil = self.peek()? == Marker::Null;
        self.position += usize::from(nil);
        Ok(nil)
    }

    /// Read a boolean.
    ///
    /// # Errors
    /// The next value is none.
    pub fn bool(&mut self) -> Result<bool> {
        let value = match self.peek()? {
            Marker::True => true,
            Marker::False => false,
            _ => return Err(self.mismatch("bool")),
        };
        self.position += 1;
        Ok(value)
    }

    /// Read an integer in any format.
    ///
    /// # Errors
    /// The next value is none.
    pub fn integer(&mut self) -> Result<Integer> {
        let marker = self.peek()?;
        let value = match marker {
            Marker::FixPos(value) => self.small(Integer::Unsigned(u64::from(value))),
            Marker::FixNeg(value) => self.small(Integer::Signed(i64::from(value))),
            Marker::U8 => Integer::Unsigned(u64::from(u8::from_be_bytes(self.after_marker()?))),
            Marker::U16 => Integer::Unsigned(u64::from(u16::from_be_bytes(self.after_marker()?))),
            Marker::U32 => Integer::Unsigned(u64::from(u32::from_be_bytes(self.after_marker()?))),
            Marker::U64 => Integer::Unsigned(u64::from_be_bytes(self.after_marker()?)),
            Marker::I8 => Integer::Signed(i64::from(i8::from_be_bytes(self.after_marker()?))),
            Marker::I16 => Integer::Signed(i64::from(i16::from_be_bytes(self.after_marker()?))),
            Marker::I32 => Integer::Signed(i64::from(i32::from_be_bytes(self.after_marker()?))),
            Marker::I64 => Integer::Signed(i64::from_be_bytes(self.after_marker()?)),
            _ => return Err(self.mismatch("int")),
        };
        Ok(value)
    }

    /// Read a float. Integers are accepted, as msgspec does for float fields.
    ///
    /// # Errors
    /// The next value is no number.
    pub fn float(&mut self) -> Result<f64> {
        match self.peek()? {
            Marker::F64 => Ok(f64::from_be_bytes(self.after_marker()?)),
            Marker::F32 => Ok(f64::from(f32::from_be_bytes(self.after_marker()?))),
            _ if self.peek_kind()? != Kind::Int => Err(self.mismatch("float")),
            _ => Ok(match self.integer()? {
                Integer::Signed(value) => value as f64,
                Integer::Unsigned(value) => value as f64,
            }),
        }
    }

    /// Read a string, borrowed from the msgpack buffer.
    ///
    /// # Errors
    /// The next value is none, or not valid UTF-8.
    pub fn str(&mut self) -> Result<&'f str> {
        let length = match self.peek()? {
            Marker::FixStr(length) => self.small(usize::from(length)),
            Marker::Str8 => usize::from(u8::from_be_bytes(self.after_marker()?)),
            Marker::Str16 => usize::from(u16::from_be_bytes(self.after_marker()?)),
            Marker::Str32 => wide(self.after_marker()?),
            _ => return Err(self.mismatch("str")),
        };
        let offset = self.position;
        std::str::from_utf8(self.take(length)?).map_err(|_| Error::Utf8 { offset })
    }

    /// Read a binary value, sharing the msgpack buffer.
    ///
    /// # Errors
    /// The next value is none.
    pub fn bin(&mut self) -> Result<Bytes> {
        let length = match self.peek()? {
            Marker::Bin8 => usize::from(u8::from_be_bytes(self.after_marker()?)),
            Marker::Bin16 => usize::from(u16::from_be_bytes(self.after_marker()?)),
            Marker::Bin32 => wide(self.after_marker()?),
            _ => return Err(self.mismatch("bin")),
        };
        self.shared(length)
    }

    /// Read an array header and return its length, which the rest of the buffer can hold.
    ///
    /// # Errors
    /// The next value is none, or announces more elements than bytes are left.
    pub fn array_len(&mut self) -> Result<usize> {
        let length = match self.peek()? {
            Marker::FixArray(length) => self.small(usize::from(length)),
            Marker::Array16 => usize::from(u16::from_be_bytes(self.after_marker()?)),
            Marker::Array32 => wide(self.after_marker()?),
            _ => return Err(self.mismatch("array")),
        };
        self.holds(length)
    }

    /// Read a map header and return its number of entries, which the rest of the buffer can hold.
    ///
    /// # Errors
    /// The next value is none, or announces more entries than bytes are left.
    pub fn map_len(&mut self) -> Result<usize> {
        let length = match self.peek()? {
            Marker::FixMap(length) => self.small(usize::from(length)),
            Marker::Map16 => usize::from(u16::from_be_bytes(self.after_marker()?)),
            Marker::Map32 => wide(self.after_marker()?),
            _ => return Err(self.mismatch("map")),
        };
        self.holds(length.saturating_mul(2))?;
        Ok(length)
    }

    /// Read an extension value, sharing the msgpack buffer.
    ///
    /// # Errors
    /// The next value is none.
    pub fn ext(&mut self) -> Result<(i8, Bytes)> {
        let (code, length) = self.ext_header()?;
        Ok((code, self.shared(length)?))
    }

    /// Skip one value of any type.
    ///
    /// # Errors
    /// It is not valid msgpack, or nested deeper than [`MAX_DEPTH`].
    pub fn skip(&mut self) -> Result<()> {
        match self.peek_kind()? {
            Kind::Nil | Kind::Bool => self.position += 1,
            Kind::Int => drop(self.integer()?),
            Kind::Float => drop(self.float()?),
            Kind::Str => drop(self.str()?),
            Kind::Bin => drop(self.bin()?),
            Kind::Ext => {
                let (_, length) = self.ext_header()?;
                self.take(length)?;
            }
            Kind::Array => {
                let length = self.array_len()?;
                self.nested(|inner| (0..length).try_for_each(|_| inner.skip()))?;
            }
            Kind::Map => {
                let length = self.map_len()?;
                self.nested(|inner| (0..length * 2).try_for_each(|_| inner.skip()))?;
            }
        }
        Ok(())
    }

    /// Read an array of token ids: the same as one [`integer`](Self::integer) at a time, several times as fast.
    ///
    /// # Errors
    /// The next value is no array of 32-bit integers.
    pub fn token_ids(&mut self, ids: &mut Vec<i32>) -> Result<()> {
        let length = self.array_len()?;
        ids.reserve(length);
        for _ in 0..length {
            ids.push(self.token_id()?);
        }
        Ok(())
    }

    #[inline]
    fn token_id(&mut self) -> Result<i32> {
        let id = match *self.buffer.get(self.position..).unwrap_or_default() {
            [byte @ 0..=0x7f, ..] => {
                self.position += 1;
                i32::from(byte)
            }
            [0xcc, byte, ..] => {
                self.position += 2;
                i32::from(byte)
            }
            [0xcd, high, low, ..] => {
                self.position += 3;
                i32::from(u16::from_be_bytes([high, low]))
            }
            [0xce, a @ 0..=0x7f, b, c, d, ..] => {
                self.position += 5;
                i32::from_be_bytes([a, b, c, d])
            }
            _ => self.integer()?.narrow("i32")?,
        };
        Ok(id)
    }

    /// Run `read` one level deeper.
    ///
    /// # Errors
    /// Those of `read`, or [`Error::Invalid`] past [`MAX_DEPTH`].
    pub fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth >= MAX_DEPTH {
            return Err(Error::Invalid(format!("values are nested deeper than {MAX_DEPTH} levels")));
        }
        self.depth += 1;
        let value = read(self);
        self.depth -= 1;
        value
    }

    /// The frame with this number; frame 0 is the msgpack buffer itself.
    pub(crate) fn frame(&self, number: usize) -> Option<&'f Bytes> {
        self.frames.get(number)
    }

    fn ext_header(&mut self) -> Result<(i8, usize)> {
        let length = match self.peek()? {
            Marker::FixExt1 => self.small(1),
            Marker::FixExt2 => self.small(2),
            Marker::FixExt4 => self.small(4),
            Marker::FixExt8 => self.small(8),
            Marker::FixExt16 => self.small(16),
            Marker::Ext8 => usize::from(u8::from_be_bytes(self.after_marker()?)),
            Marker::Ext16 => usize::from(u16::from_be_bytes(self.after_marker()?)),
            Marker::Ext32 => wide(self.after_marker()?),
            _ => return Err(self.mismatch("ext")),
        };
        let code = self.take(1)?.first().copied().unwrap_or_default() as i8;
        Ok((code, length))
    }

    #[inline]
    fn peek(&self) -> Result<Marker> {
        match self.buffer.get(self.position) {
            Some(&byte) => Ok(Marker::from_u8(byte)),
            None => Err(Error::Truncated { offset: self.position, needed: 1 }),
        }
    }

    /// Consume a marker that holds its own value.
    fn small<T>(&mut self, value: T) -> T {
        self.position += 1;
        value
    }

    /// Consume a marker and the `N` bytes after it.
    #[inline]
    fn after_marker<const N: usize>(&mut self) -> Result<[u8; N]> {
        let start = self.position + 1;
        match self.buffer.get(start..start + N).map(<[u8; N]>::try_from) {
            Some(Ok(bytes)) => {
                self.position = start + N;
                Ok(bytes)
            }
            _ => Err(Error::Truncated { offset: self.buffer.len(), needed: start + N - self.buffer.len() }),
        }
    }

    fn take(&mut self, length: usize) -> Result<&'f [u8]> {
        let rest = self.buffer.get(self.position..).unwrap_or_default();
        match rest.get(..length) {
            Some(bytes) => {
                self.position += length;
                Ok(bytes)
            }
            None => Err(Error::Truncated { offset: self.buffer.len(), needed: length - rest.len() }),
        }
    }

    fn shared(&mut self, length: usize) -> Result<Bytes> {
        let bytes = self.take(length)?;
        Ok(match self.frames.first() {
            Some(frame) => frame.slice_ref(bytes),
            None => Bytes::copy_from_slice(bytes),
        })
    }

    /// Every element takes at least one byte: a longer array is refused before anything is allocated for it.
    fn holds(&self, length: usize) -> Result<usize> {
        let left = self.buffer.len() - self.position;
        if length > left {
            return Err(Error::Truncated { offset: self.buffer.len(), needed: length - left });
        }
        Ok(length)
    }

    fn mismatch(&self, expected: &'static str) -> Error {
        match self.peek_kind() {
            Ok(kind) => Error::Type { expected, found: kind.name(), offset: self.position },
            Err(error) => error,
        }
    }
}

fn wide(bytes: [u8; 4]) -> usize {
    u32::from_be_bytes(bytes) as usize
}

fn kind(marker: Marker) -> Option<Kind> {
    Some(match marker {
        Marker::Null => Kind::Nil,
        Marker::True | Marker::False => Kind::Bool,
        Marker::FixPos(_) | Marker::FixNeg(_) => Kind::Int,
        Marker::U8 | Marker::U16 | Marker::U32 | Marker::U64 => Kind::Int,
        Marker::I8 | Marker::I16 | Marker::I32 | Marker::I64 => Kind::Int,
        Marker::F32 | Marker::F64 => Kind::Float,
        Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32 => Kind::Str,
        Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => Kind::Bin,
        Marker::FixArray(_) | Marker::Array16 | Marker::Array32 => Kind::Array,
        Marker::FixMap(_) | Marker::Map16 | Marker::Map32 => Kind::Map,
        Marker::FixExt1 | Marker::FixExt2 | Marker::FixExt4 | Marker::FixExt8 | Marker::FixExt16 => Kind::Ext,
        Marker::Ext8 | Marker::Ext16 | Marker::Ext32 => Kind::Ext,
        Marker::Reserved => return None,
    })
}
