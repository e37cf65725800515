use bytes::Bytes;
use rmp::Marker;

use super::{Integer, Kind, MAX_DEPTH, numbers};
use crate::error::{Error, Result};

/// Reads one message from its frames. Frame 0 is the msgpack buffer.
///
/// Every method leaves the position behind the value it returned; after an
/// error the position means nothing.
#[derive(Debug, Clone)]
pub struct Decoder<'f> {
    buffer: &'f [u8],
    position: usize,
    /// All frames, frame 0 too; empty when only a slice is at hand, in which
    /// case binary values are copied out of it.
    frames: &'f [Bytes],
}

// === impl Decoder ===

impl<'f> Decoder<'f> {
    /// A decoder over a message's frames. Without any frame the message is
    /// empty, and reading from it fails.
    pub fn new(frames: &'f [Bytes]) -> Self {
        Self { buffer: frames.first().map_or(&[], |frame| frame.as_ref()), position: 0, frames }
    }

    /// A decoder over a message that is one msgpack buffer.
    pub fn over(buffer: &'f [u8]) -> Self {
        Self { buffer, position: 0, frames: &[] }
    }

    /// The same, but the next value is the one at `position`.
    #[inline]
    pub(crate) fn over_from(buffer: &'f [u8], position: usize) -> Self {
        Self { buffer, position, frames: &[] }
    }

    /// Check that the whole msgpack buffer was consumed.
    ///
    /// # Errors
    ///
    /// [`Error::TrailingBytes`] otherwise.
    pub fn finish(&self) -> Result<()> {
        match self.remaining() {
            0 => Ok(()),
            left => Err(Error::TrailingBytes(left)),
        }
    }

    /// Bytes consumed so far.
    pub fn position(&self) -> usize {
        self.position
    }

    /// The bytes from `start`, a former [`Decoder::position`], to here.
    #[inline]
    pub(crate) fn since(&self, start: usize) -> &'f [u8] {
        self.buffer.get(start..self.position).unwrap_or_default()
    }

    /// The tag of the tagged array struct that comes next, without consuming it.
    pub fn peek_tag(&self) -> Result<&'f str> {
        let mut ahead = self.clone();
        if ahead.array_len()? == 0 {
            return Err(Error::MissingField("tag"));
        }
        ahead.str()
    }

    /// The type of the next value, without consuming it.
    pub fn peek_kind(&self) -> Result<Kind> {
        let marker = self.peek_byte()?;
        Kind::of(Marker::from_u8(marker)).ok_or_else(|| self.unexpected("a value"))
    }

    /// Consume a `nil` if the next value is one; say whether it was.
    #[inline]
    pub fn take_nil(&mut self) -> Result<bool> {
        let is_nil = self.peek_byte()? == 0xc0;
        self.position += usize::from(is_nil);
        Ok(is_nil)
    }

    /// Read a boolean.
    #[inline]
    pub fn bool(&mut self) -> Result<bool> {
        let value = match self.peek_byte()? {
            0xc2 => false,
            0xc3 => true,
            _ => return Err(self.unexpected("bool")),
        };
        self.position += 1;
        Ok(value)
    }

    /// Read an integer of any format.
    pub fn integer(&mut self) -> Result<Integer> {
        use Integer::{Signed, Unsigned};
        Ok(match self.marker()? {
            Marker::FixPos(value) => Unsigned(u64::from(value)),
            Marker::FixNeg(value) => Signed(i64::from(value)),
            Marker::U8 => Unsigned(u64::from(self.u8()?)),
            Marker::U16 => Unsigned(u64::from(self.u16()?)),
            Marker::U32 => Unsigned(u64::from(self.u32()?)),
            Marker::U64 => Unsigned(u64::from_be_bytes(self.chunk()?)),
            Marker::I8 => Signed(i64::from(i8::from_be_bytes(self.chunk()?))),
            Marker::I16 => Signed(i64::from(i16::from_be_bytes(self.chunk()?))),
            Marker::I32 => Signed(i64::from(i32::from_be_bytes(self.chunk()?))),
            Marker::I64 => Signed(i64::from_be_bytes(self.chunk()?)),
            _ => return Err(self.unexpected_before("int")),
        })
    }

    /// Read an integer that fits the schema's usual type.
    #[inline]
    pub(crate) fn i64(&mut self) -> Result<i64> {
        match *self.rest() {
            [small @ 0..=0x7f, ..] => {
                self.position += 1;
                Ok(i64::from(small))
            }
            [0xcd, high, low, ..] => {
                self.position += 3;
                Ok(i64::from(u16::from_be_bytes([high, low])))
            }
            _ => self.any_i64(),
        }
    }

    fn any_i64(&mut self) -> Result<i64> {
        match self.integer()? {
            Integer::Signed(value) => Ok(value),
            Integer::Unsigned(value) => {
                i64::try_from(value).map_err(|_| Error::IntRange { value: i128::from(value), target: "i64" })
            }
        }
    }

    /// Read a token id.
    pub(crate) fn i32(&mut self) -> Result<i32> {
        let value = self.i64()?;
        i32::try_from(value).map_err(|_| Error::IntRange { value: i128::from(value), target: "i32" })
    }

    /// Read a float of either width. Integers are taken too, as msgspec does.
    #[inline]
    pub fn float(&mut self) -> Result<f64> {
        if self.peek_byte()? == 0xcb {
            self.position += 1;
            return Ok(f64::from_be_bytes(self.chunk()?));
        }
        self.other_float()
    }

    fn other_float(&mut self) -> Result<f64> {
        if self.peek_byte()? == 0xca {
            self.position += 1;
            return Ok(f64::from(f32::from_be_bytes(self.chunk()?)));
        }
        match self.integer() {
            Ok(Integer::Signed(value)) => Ok(value as f64),
            Ok(Integer::Unsigned(value)) => Ok(value as f64),
            Err(Error::Type { found, offset, .. }) => Err(Error::Type { expected: "float", found, offset }),
            Err(error) => Err(error),
        }
    }

    /// Read a string, borrowed from the msgpack buffer.
    #[inline]
    pub fn str(&mut self) -> Result<&'f str> {
        let start = self.position;
        match std::str::from_utf8(self.str_bytes()?) {
            Ok(text) => Ok(text),
            Err(_) => Err(Error::Utf8 { offset: start }),
        }
    }

    /// Read a string that was checked before, as bytes.
    #[inline]
    pub(crate) fn str_bytes(&mut self) -> Result<&'f [u8]> {
        let len = match *self.rest() {
            [fixstr @ 0xa0..=0xbf, ..] => {
                self.position += 1;
                usize::from(fixstr & 0x1f)
            }
            [0xd9, len, ..] => {
                self.position += 2;
                usize::from(len)
            }
            _ => self.long_str_len()?,
        };
        self.take(len)
    }

    /// Whether the empty string comes next, which is then consumed.
    #[inline]
    pub(crate) fn take_empty_str(&mut self) -> bool {
        let is_empty = matches!(self.peek_byte(), Ok(0xa0));
        self.position += usize::from(is_empty);
        is_empty
    }

    fn long_str_len(&mut self) -> Result<usize> {
        match self.marker()? {
            Marker::Str8 => self.u8().map(usize::from),
            Marker::Str16 => self.u16().map(usize::from),
            Marker::Str32 => self.length32(),
            _ => Err(self.unexpected_before("str")),
        }
    }

    /// Read a binary value. It shares the msgpack buffer.
    pub fn bin(&mut self) -> Result<Bytes> {
        let len = match self.marker()? {
            Marker::Bin8 => usize::from(self.u8()?),
            Marker::Bin16 => usize::from(self.u16()?),
            Marker::Bin32 => self.length32()?,
            _ => return Err(self.unexpected_before("bin")),
        };
        self.share(len)
    }

    /// Read an array header and return the number of elements, which is never
    /// more than the remaining bytes can hold.
    #[inline]
    pub fn array_len(&mut self) -> Result<usize> {
        let len = match self.peek_byte()? {
            fixarray @ 0x90..=0x9f => {
                self.position += 1;
                usize::from(fixarray & 0x0f)
            }
            _ => self.long_array_len()?,
        };
        self.announced(len, len)
    }

    fn long_array_len(&mut self) -> Result<usize> {
        match self.marker()? {
            Marker::Array16 => self.u16().map(usize::from),
            Marker::Array32 => self.length32(),
            _ => Err(self.unexpected_before("array")),
        }
    }

    /// Read a map header and return the number of entries, which is never more
    /// than the remaining bytes can hold.
    pub fn map_len(&mut self) -> Result<usize> {
        let len = match self.marker()? {
            Marker::FixMap(len) => usize::from(len),
            Marker::Map16 => usize::from(self.u16()?),
            Marker::Map32 => self.length32()?,
            _ => return Err(self.unexpected_before("map")),
        };
        self.announced(len, len.saturating_mul(2))
    }

    /// Read an extension value: its code and its data, which shares the
    /// msgpack buffer.
    pub fn ext(&mut self) -> Result<(i8, Bytes)> {
        let len = match self.marker()? {
            Marker::FixExt1 => 1,
            Marker::FixExt2 => 2,
            Marker::FixExt4 => 4,
            Marker::FixExt8 => 8,
            Marker::FixExt16 => 16,
            Marker::Ext8 => usize::from(self.u8()?),
            Marker::Ext16 => usize::from(self.u16()?),
            Marker::Ext32 => self.length32()?,
            _ => return Err(self.unexpected_before("ext")),
        };
        let code = i8::from_be_bytes(self.chunk()?);
        Ok((code, self.share(len)?))
    }

    /// Read an array of token ids and append them to `ids`. On an error `ids`
    /// may hold those that came before it.
    pub fn token_ids(&mut self, ids: &mut Vec<i32>) -> Result<()> {
        let len = self.array_len()?;
        // `array_len` promises a byte per element, so this is at most four
        // times what is left of the message.
        ids.reserve(len);
        numbers::read_ints(self, len, |id| ids.push(id))
    }

    /// Skip one value of any type. It is checked as an untyped value is:
    /// lengths, strings and depth (at most [`MAX_DEPTH`]).
    pub fn skip(&mut self) -> Result<()> {
        // Elements still to come in each container that is open.
        let mut open = [0usize; MAX_DEPTH];
        let mut depth = 0;
        loop {
            let elements = self.skip_one()?;
            if let Some(elements) = elements {
                let slot = open.get_mut(depth).ok_or_else(too_deep)?;
                *slot = elements;
                depth += 1;
            }
            loop {
                let Some(left) = depth.checked_sub(1).and_then(|top| open.get_mut(top)) else {
                    return Ok(());
                };
                if *left > 0 {
                    *left -= 1;
                    break;
                }
                depth -= 1;
            }
        }
    }

    /// Skip a scalar, or the header of a container: then its element count.
    fn skip_one(&mut self) -> Result<Option<usize>> {
        use Marker as M;
        let skipped = match Marker::from_u8(self.peek_byte()?) {
            M::Null | M::True | M::False | M::FixPos(_) | M::FixNeg(_) => 1,
            M::U8 | M::I8 => 2,
            M::U16 | M::I16 | M::FixExt1 => 3,
            M::FixExt2 => 4,
            M::U32 | M::I32 | M::F32 => 5,
            M::FixExt4 => 6,
            M::U64 | M::I64 | M::F64 => 9,
            M::FixExt8 => 10,
            M::FixExt16 => 18,
            M::FixStr(_) | M::Str8 | M::Str16 | M::Str32 => {
                self.str()?;
                0
            }
            M::Bin8 => 2 + usize::from(self.ahead::<1>()?[0]),
            M::Bin16 => 3 + usize::from(u16::from_be_bytes(self.ahead()?)),
            M::Bin32 => wide(u32::from_be_bytes(self.ahead()?)).saturating_add(5),
            M::Ext8 => 3 + usize::from(self.ahead::<1>()?[0]),
            M::Ext16 => 4 + usize::from(u16::from_be_bytes(self.ahead()?)),
            M::Ext32 => wide(u32::from_be_bytes(self.ahead()?)).saturating_add(6),
            M::FixArray(_) | M::Array16 | M::Array32 => return self.array_len().map(Some),
            M::FixMap(_) | M::Map16 | M::Map32 => return self.map_len().map(|len| Some(2 * len)),
            M::Reserved => return Err(self.unexpected("a value")),
        };
        self.take(skipped).map(|_| None)
    }

    /// The out-of-band frame a tensor refers to by `index`.
    pub(crate) fn frame(&self, index: u64) -> Result<Bytes> {
        // Frame 0 is the message itself and no tensor.
        usize::try_from(index)
            .ok()
            .filter(|index| *index > 0)
            .and_then(|index| self.frames.get(index))
            .cloned()
            .ok_or_else(|| {
                let aux = self.frames.len().saturating_sub(1);
                Error::Invalid(format!("tensor frame {index} of a message with {aux} out-of-band frames"))
            })
    }

    /// What was not consumed yet.
    #[inline]
    pub(crate) fn rest(&self) -> &'f [u8] {
        self.buffer.get(self.position..).unwrap_or_default()
    }

    /// Consume `len` bytes of [`Decoder::rest`] that the caller has read.
    #[inline]
    pub(crate) fn advance(&mut self, len: usize) {
        self.position += len;
    }

    fn remaining(&self) -> usize {
        self.buffer.len().saturating_sub(self.position)
    }

    #[inline]
    fn peek_byte(&self) -> Result<u8> {
        match self.buffer.get(self.position) {
            Some(byte) => Ok(*byte),
            None => Err(self.truncated(1)),
        }
    }

    #[inline]
    fn marker(&mut self) -> Result<Marker> {
        let byte = self.peek_byte()?;
        self.position += 1;
        Ok(Marker::from_u8(byte))
    }

    /// The bytes that follow the marker, without consuming anything.
    fn ahead<const N: usize>(&self) -> Result<[u8; N]> {
        let mut ahead = self.clone();
        ahead.position += 1;
        ahead.chunk()
    }

    #[inline]
    fn u8(&mut self) -> Result<u8> {
        self.chunk().map(u8::from_be_bytes)
    }

    #[inline]
    fn u16(&mut self) -> Result<u16> {
        self.chunk().map(u16::from_be_bytes)
    }

    #[inline]
    fn u32(&mut self) -> Result<u32> {
        self.chunk().map(u32::from_be_bytes)
    }

    fn length32(&mut self) -> Result<usize> {
        self.u32().map(wide)
    }

    #[inline]
    fn chunk<const N: usize>(&mut self) -> Result<[u8; N]> {
        match self.rest().first_chunk::<N>() {
            Some(chunk) => {
                self.position += N;
                Ok(*chunk)
            }
            None => Err(self.truncated(N)),
        }
    }

    #[inline]
    fn take(&mut self, len: usize) -> Result<&'f [u8]> {
        match self.rest().get(..len) {
            Some(taken) => {
                self.position += len;
                Ok(taken)
            }
            None => Err(self.truncated(len)),
        }
    }

    /// The next `len` bytes, sharing frame 0 where there is one.
    fn share(&mut self, len: usize) -> Result<Bytes> {
        let start = self.position;
        let taken = self.take(len)?;
        Ok(match self.frames.first() {
            Some(frame) => frame.slice(start..start + len),
            None => Bytes::copy_from_slice(taken),
        })
    }

    /// An element takes at least one byte: a length that promises more than is
    /// left is refused before anything is allocated for it.
    #[inline]
    fn announced(&self, len: usize, least_bytes: usize) -> Result<usize> {
        if least_bytes > self.remaining() {
            return Err(self.truncated(least_bytes));
        }
        Ok(len)
    }

    #[cold]
    fn truncated(&self, wanted: usize) -> Error {
        Error::Truncated { offset: self.buffer.len(), needed: wanted.saturating_sub(self.remaining()) }
    }

    /// The error for the next value, which is not `expected`.
    #[cold]
    fn unexpected(&self, expected: &'static str) -> Error {
        let Ok(byte) = self.peek_byte() else {
            return self.truncated(1);
        };
        Error::Type {
            expected,
            found: Kind::of(Marker::from_u8(byte)).map_or("the reserved byte 0xc1", Kind::name),
            offset: self.position,
        }
    }

    /// The same for a value whose marker was consumed already.
    #[cold]
    fn unexpected_before(&mut self, expected: &'static str) -> Error {
        self.position = self.position.saturating_sub(1);
        self.unexpected(expected)
    }
}

/// The error for nesting beyond [`MAX_DEPTH`].
#[cold]
pub(crate) fn too_deep() -> Error {
    Error::Invalid(format!("arrays and maps nested more than {MAX_DEPTH} levels deep"))
}

fn wide(len: u32) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}
