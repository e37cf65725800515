//! Sizes in bytes as a number, or as text: "512KiB", "32MiB", "1GiB".

use serde::{Deserialize, Deserializer, Serializer};

/// Write the shortest exact form.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<S: Serializer>(value: &usize, serializer: S) -> Result<S::Ok, S::Error> {
    for (unit, name) in [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")] {
        if *value > 0 && value.is_multiple_of(unit) {
            return serializer.serialize_str(&format!("{}{name}", value / unit));
        }
    }
    serializer.serialize_u64(*value as u64)
}

/// Read a size.
///
/// # Errors
/// Text that is no size.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Number(u64),
        Text(String),
    }
    match Written::deserialize(deserializer)? {
        Written::Number(n) => usize::try_from(n).map_err(serde::de::Error::custom),
        Written::Text(text) => parse(&text).map_err(serde::de::Error::custom),
    }
}

/// Read a size.
///
/// # Errors
/// A sentence that says what is allowed.
pub fn parse(text: &str) -> Result<usize, String> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: usize = match text.get(digits.len()..) {
        Some("" | "B") => 1,
        Some("KiB" | "K" | "k") => 1 << 10,
        Some("MiB" | "M") => 1 << 20,
        Some("GiB" | "G") => 1 << 30,
        _ => 0,
    };
    match digits.trim().parse::<usize>().ok().and_then(|n| n.checked_mul(unit)) {
        Some(bytes) if unit > 0 => Ok(bytes),
        _ => Err(format!("'{text}' is no size: write a number of bytes, or 512KiB, 32MiB, 1GiB")),
    }
}
