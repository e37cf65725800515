//! Decode errors.

/// Result alias for decoding.
pub type Result<T> = std::result::Result<T, Error>;

/// A message that does not match the schema, or is not valid msgpack.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The input ended inside a value.
    #[error("the input ends at byte {offset}, {needed} more bytes are needed")]
    Truncated {
        /// Where the value's missing part starts.
        offset: usize,
        /// How many bytes it still needs.
        needed: usize,
    },
    /// A value of a different msgpack type than the schema allows.
    #[error("expected {expected}, found {found} at byte {offset}")]
    Type {
        /// What the schema allows.
        expected: &'static str,
        /// What stands there.
        found: &'static str,
        /// Where it stands.
        offset: usize,
    },
    /// An integer outside the range of the schema's type.
    #[error("{value} is out of range for {target}")]
    IntRange {
        /// The integer.
        value: i128,
        /// The schema's type.
        target: &'static str,
    },
    /// A string that is not valid UTF-8.
    #[error("the string at byte {offset} is not valid UTF-8")]
    Utf8 {
        /// Where the string's bytes start.
        offset: usize,
    },
    /// A tagged struct whose tag names a different message type.
    #[error("expected a message tagged {expected}, found {found:?}")]
    Tag {
        /// The tag that the schema asks for.
        expected: &'static str,
        /// The tag that stands there.
        found: String,
    },
    /// A struct without a value for a field that has no default.
    #[error("the required field {0} is missing")]
    MissingField(&'static str),
    /// Bytes left in the primary frame after the top-level value.
    #[error("{0} bytes are left after the message")]
    TrailingBytes(usize),
    /// A value the schema rejects for a reason other than its type.
    #[error("{0}")]
    Invalid(String),
    /// An error inside a named field, kept with the field name for context.
    #[error("in field {field}: {source}")]
    Field {
        /// The field.
        field: &'static str,
        /// What is wrong inside it.
        source: Box<Error>,
    },
}

impl Error {
    /// Attach the name of the field being decoded.
    #[must_use]
    pub fn in_field(self, field: &'static str) -> Self {
        Error::Field { field, source: Box::new(self) }
    }
}
