//! Durations as text: "250ms", "30s", "30m", or "off" for zero.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer};

/// Write the shortest exact form.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&show(*value))
}

/// Read a duration.
///
/// # Errors
/// Text that is no duration.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = std::borrow::Cow::<'_, str>::deserialize(deserializer)?;
    parse(&text).map_err(serde::de::Error::custom)
}

/// A duration as people write it.
pub fn show(value: Duration) -> String {
    let millis = value.as_millis();
    match millis {
        0 => "off".into(),
        m if m % 60_000 == 0 => format!("{}m", m / 60_000),
        m if m % 1000 == 0 => format!("{}s", m / 1000),
        m => format!("{m}ms"),
    }
}

/// Read a duration.
///
/// # Errors
/// A sentence that says what is allowed.
pub fn parse(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    if text == "off" || text == "0" {
        return Ok(Duration::ZERO);
    }
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text.get(digits.len()..) {
        Some("ms") => 1,
        Some("s") => 1000,
        Some("m") => 60_000,
        Some("h") => 3_600_000,
        _ => 0,
    };
    match digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit)) {
        Some(millis) if unit > 0 => Ok(Duration::from_millis(millis)),
        _ => Err(format!("'{text}' is no duration: write 250ms, 30s, 5m, 1h or off")),
    }
}
