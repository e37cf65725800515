//! Why a message was refused.

/// The result of decoding.
pub type Result<T> = std::result::Result<T, Error>;

/// A message that does not match the schema, or is not valid msgpack.
///
/// Offsets count bytes from the start of the msgpack buffer (frame 0 of the
/// message, the type frame not counted).
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The input ended inside a value, or a length was announced that the
    /// remaining bytes cannot hold.
    #[error("input truncated at offset {offset}: {needed} more bytes needed")]
    Truncated {
        /// Where the missing bytes should have started.
        offset: usize,
        /// How many bytes were needed there; a lower bound.
        needed: usize,
    },
    /// A value of a different msgpack type than the schema allows.
    #[error("expected {expected}, found {found} at offset {offset}")]
    Type {
        /// What the schema asks for.
        expected: &'static str,
        /// What the message holds.
        found: &'static str,
        /// Where the value starts.
        offset: usize,
    },
    /// An integer outside the range of the schema's type.
    #[error("integer {value} out of range for {target}")]
    IntRange {
        /// The integer on the wire.
        value: i128,
        /// The schema's type.
        target: &'static str,
    },
    /// A string that is not valid UTF-8.
    #[error("invalid UTF-8 string at offset {offset}")]
    Utf8 {
        /// Where the value starts.
        offset: usize,
    },
    /// A tagged struct whose tag names a different message type.
    #[error("wrong message tag: expected `{expected}`, found `{found}`")]
    Tag {
        /// The tag the schema asks for.
        expected: &'static str,
        /// The tag on the wire.
        found: String,
    },
    /// A struct without a value for a field that has no default.
    #[error("missing required field `{0}`")]
    MissingField(&'static str),
    /// Bytes left in the msgpack buffer after the top-level value.
    #[error("{0} trailing bytes after the message")]
    TrailingBytes(usize),
    /// A value the schema rejects for a reason other than its type.
    #[error("{0}")]
    Invalid(String),
    /// An error inside a named field.
    #[error("field `{field}`: {source}")]
    Field {
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        source: Box<Error>,
    },
}

impl Error {
    /// The same error, said to be inside the field `field`.
    pub fn in_field(self, field: &'static str) -> Self {
        Self::Field { field, source: Box::new(self) }
    }
}
