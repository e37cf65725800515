//! The metadata of a GGUF file: names, numbers and the tokenizer's lists. Tensors are not read.
//!
//! A model file comes from outside: every length it announces is checked against a bound before memory is taken.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

/// Most metadata entries in a file.
const MAX_ENTRIES: u64 = 1 << 16;
/// Longest string, in bytes. Chat templates are the longest ones in practice, some ten kilobytes.
const MAX_STRING: u64 = 16 << 20;
/// Most elements in a list: about eight times the largest vocabulary known.
const MAX_LIST: u64 = 2 << 20;
/// Bytes of strings that are kept in all.
const MAX_KEPT: u64 = 256 << 20;

/// Why a file is not read.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The file cannot be read, or ends early.
    #[error("cannot read it: {0}")]
    Io(#[from] io::Error),
    /// It is not what it should be.
    #[error("not a GGUF file of version 2 or 3: {0}")]
    Malformed(String),
}

/// A metadata value, narrowed to what the gateway reads.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Any integer or boolean.
    Int(i64),
    /// Any float.
    Float(f64),
    /// A string.
    Text(String),
    /// A list of strings.
    Texts(Vec<String>),
    /// A list of integers or booleans.
    Ints(Vec<i64>),
    /// A list of floats.
    Floats(Vec<f64>),
}

/// The metadata entries of a file.
#[derive(Debug, Default)]
pub struct Gguf {
    values: HashMap<String, Value>,
}

impl Gguf {
    /// Read the metadata of `path`.
    ///
    /// # Errors
    /// A file that cannot be read, is no GGUF, or announces more than the bounds allow.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        Self::read(BufReader::with_capacity(1 << 16, File::open(path)?))
    }

    /// Read the metadata from a reader at the file's start.
    ///
    /// # Errors
    /// See [`Gguf::open`].
    pub fn read<R: Read + Seek>(source: R) -> Result<Self, GgufError> {
        let mut reader = Reader { source, kept: 0 };
        if &reader.bytes::<4>()? != b"GGUF" {
            return Err(malformed("the magic bytes are missing"));
        }
        let version = reader.u32()?;
        if !(2..=3).contains(&version) {
            return Err(malformed(format!("version {version}")));
        }
        let _tensors = reader.u64()?;
        let entries = reader.u64()?;
        if entries > MAX_ENTRIES {
            return Err(malformed(format!("{entries} metadata entries")));
        }
        let mut values = HashMap::new();
        for _ in 0..entries {
            let key = reader.text()?;
            let kind = reader.u32()?;
            if let Some(value) = reader.value(kind)? {
                values.insert(key, value);
            }
        }
        Ok(Self { values })
    }

    /// A string entry.
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.values.get(key) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// An integer entry; booleans are 0 and 1.
    pub fn int(&self, key: &str) -> Option<i64> {
        match self.values.get(key) {
            Some(Value::Int(int)) => Some(*int),
            _ => None,
        }
    }

    /// A list of strings.
    pub fn texts(&self, key: &str) -> Option<&[String]> {
        match self.values.get(key) {
            Some(Value::Texts(texts)) => Some(texts),
            _ => None,
        }
    }

    /// A list of integers.
    pub fn ints(&self, key: &str) -> Option<&[i64]> {
        match self.values.get(key) {
            Some(Value::Ints(ints)) => Some(ints),
            _ => None,
        }
    }

    /// A list of floats.
    pub fn floats(&self, key: &str) -> Option<&[f64]> {
        match self.values.get(key) {
            Some(Value::Floats(floats)) => Some(floats),
            _ => None,
        }
    }
}

fn malformed(reason: impl Into<String>) -> GgufError {
    GgufError::Malformed(reason.into())
}

struct Reader<R> {
    source: R,
    kept: u64,
}

impl<R: Read + Seek> Reader<R> {
    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], GgufError> {
        let mut bytes = [0; N];
        self.source.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.bytes()?))
    }

    fn u64(&mut self) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.bytes()?))
    }

    fn text(&mut self) -> Result<String, GgufError> {
        let length = self.u64()?;
        self.kept = self.kept.saturating_add(length);
        if length > MAX_STRING || self.kept > MAX_KEPT {
            return Err(malformed(format!("a string of {length} bytes")));
        }
        // `take` grows the buffer as bytes arrive: a length that the file does not hold costs nothing.
        let mut bytes = Vec::new();
        let read = self.source.by_ref().take(length).read_to_end(&mut bytes)?;
        if read as u64 != length {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        // Vocabularies of old converters hold broken bytes in tokens nobody uses.
        Ok(String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
    }

    /// One value, `None` for a kind that is skipped (lists of lists).
    fn value(&mut self, kind: u32) -> Result<Option<Value>, GgufError> {
        Ok(Some(match kind {
            6 | 12 => Value::Float(self.float(kind)?),
            8 => Value::Text(self.text()?),
            9 => return self.list(),
            _ => Value::Int(self.int(kind)?),
        }))
    }

    fn list(&mut self) -> Result<Option<Value>, GgufError> {
        let kind = self.u32()?;
        let length = self.u64()?;
        if length > MAX_LIST {
            return Err(malformed(format!("a list of {length} elements")));
        }
        Ok(Some(match kind {
            6 | 12 => Value::Floats((0..length).map(|_| self.float(kind)).collect::<Result<_, _>>()?),
            8 => Value::Texts((0..length).map(|_| self.text()).collect::<Result<_, _>>()?),
            9 => {
                for _ in 0..length {
                    self.skip_flat_list()?;
                }
                return Ok(None);
            }
            _ => Value::Ints((0..length).map(|_| self.int(kind)).collect::<Result<_, _>>()?),
        }))
    }

    /// A list inside a list holds plain values; deeper nesting is refused.
    fn skip_flat_list(&mut self) -> Result<(), GgufError> {
        let kind = self.u32()?;
        let length = self.u64()?;
        let width = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            10..=12 => 8,
            _ => return Err(malformed("a list nested too deeply")),
        };
        if length > MAX_LIST {
            return Err(malformed(format!("a list of {length} elements")));
        }
        self.source.seek(SeekFrom::Current((length * width) as i64))?;
        Ok(())
    }

    fn int(&mut self, kind: u32) -> Result<i64, GgufError> {
        Ok(match kind {
            0 | 7 => i64::from(self.bytes::<1>()?[0]),
            1 => i64::from(i8::from_le_bytes(self.bytes()?)),
            2 => i64::from(u16::from_le_bytes(self.bytes()?)),
            3 => i64::from(i16::from_le_bytes(self.bytes()?)),
            4 => i64::from(self.u32()?),
            5 => i64::from(i32::from_le_bytes(self.bytes()?)),
            10 => i64::try_from(self.u64()?).unwrap_or(i64::MAX),
            11 => i64::from_le_bytes(self.bytes()?),
            _ => return Err(malformed(format!("a value of kind {kind}"))),
        })
    }

    fn float(&mut self, kind: u32) -> Result<f64, GgufError> {
        Ok(match kind {
            6 => f64::from(f32::from_le_bytes(self.bytes()?)),
            _ => f64::from_le_bytes(self.bytes()?),
        })
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::io::Cursor;

    use super::*;

    fn head(entries: u64) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(3u32.to_le_bytes());
        file.extend(0u64.to_le_bytes());
        file.extend(entries.to_le_bytes());
        file
    }

    fn push_text(file: &mut Vec<u8>, text: &str) {
        file.extend((text.len() as u64).to_le_bytes());
        file.extend(text.as_bytes());
    }

    #[test]
    fn reads_what_was_written() {
        let mut file = head(3);
        push_text(&mut file, "name");
        file.extend(8u32.to_le_bytes());
        push_text(&mut file, "smol");
        push_text(&mut file, "n");
        file.extend(4u32.to_le_bytes());
        file.extend(7u32.to_le_bytes());
        push_text(&mut file, "tokens");
        file.extend(9u32.to_le_bytes());
        file.extend(8u32.to_le_bytes());
        file.extend(2u64.to_le_bytes());
        push_text(&mut file, "a");
        push_text(&mut file, "b");
        let gguf = Gguf::read(Cursor::new(file)).unwrap();
        assert_eq!(gguf.text("name"), Some("smol"));
        assert_eq!(gguf.int("n"), Some(7));
        assert_eq!(gguf.texts("tokens").unwrap(), ["a", "b"]);
    }

    #[test]
    fn announced_lengths_cost_nothing() {
        let mut huge_string = head(1);
        huge_string.extend((1u64 << 40).to_le_bytes());
        let mut long_list = head(1);
        push_text(&mut long_list, "tokens");
        long_list.extend(9u32.to_le_bytes());
        long_list.extend(8u32.to_le_bytes());
        long_list.extend(u64::MAX.to_le_bytes());
        let mut cut_string = head(1);
        cut_string.extend((8u64 << 20).to_le_bytes());
        for file in [huge_string, long_list, cut_string, head(u64::MAX), b"GGUF".to_vec(), b"nonsense".to_vec()] {
            assert!(Gguf::read(Cursor::new(file)).is_err());
        }
    }
}
