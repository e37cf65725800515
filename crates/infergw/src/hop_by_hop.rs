//! Headers that belong to one connection and go neither way through the gateway (S9).

use http::header::CONNECTION;
use http::{HeaderMap, HeaderName};

/// Whether a header belongs to one connection (RFC 9110, 7.6.1).
fn is_hop_by_hop(name: &str) -> bool {
    matches!(
        name,
        "connection"
            | "keep-alive"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "proxy-connection"
            | "te"
            | "trailer"
            | "transfer-encoding"
            | "upgrade"
    )
}

/// Remove hop-by-hop headers, those that `Connection` names, and those that `unwanted` says.
///
/// The names that are there are looked at once: asking the map for every name that may not be there costs a hash each.
pub fn strip_hop_by_hop(headers: &mut HeaderMap, unwanted: impl Fn(&str) -> bool) {
    let mut doomed: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    doomed.extend(headers.keys().filter(|name| is_hop_by_hop(name.as_str()) || unwanted(name.as_str())).cloned());
    for name in doomed {
        headers.remove(name);
    }
}
