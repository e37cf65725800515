//! Step 3: who is it, may it come in.

use std::sync::Arc;

use arc_swap::ArcSwap;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};

use crate::api::error::ApiError;
use crate::config::ApiKey;
use crate::types::Caller;

/// Where clients of Anthropic's API present their key.
pub const API_KEY: &str = "x-api-key";

/// The keys that callers may present.
#[derive(Debug)]
pub struct Keys {
    known: ArcSwap<Known>,
    open: Arc<str>,
}

/// Digests with their tenants, so that a comparison takes the same time whatever is presented.
type Known = Vec<([u8; 32], Arc<str>)>;

impl Keys {
    /// With no keys everybody is let in.
    pub fn new(keys: &[ApiKey]) -> Self {
        Self { known: ArcSwap::from_pointee(known(keys)), open: Arc::from("default") }
    }

    /// Other keys open from now on. Who is in stays in.
    pub fn replace(&self, keys: &[ApiKey]) {
        self.known.store(Arc::new(known(keys)));
    }

    /// Whether callers need a key.
    pub fn needs_key(&self) -> bool {
        !self.known.load().is_empty()
    }

    /// Who presents these headers. Two callers may share a flight only with equal scopes (C3, C4): with keys that is the
    /// tenant, without keys it is what goes on to the upstream of
    /// `Authorization` and `x-api-key`.
    ///
    /// # Errors
    /// 401 where a key is needed and none of ours is presented.
    pub fn enter(&self, headers: &HeaderMap) -> Result<Caller, ApiError> {
        let presented = headers.get(AUTHORIZATION).map(|value| value.as_bytes());
        let known = self.known.load();
        if known.is_empty() {
            let scope = credentials(headers);
            return Ok(Caller { tenant: Arc::clone(&self.open), scope, keyed: false });
        }
        let key = presented.and_then(bearer).or_else(|| headers.get(API_KEY).map(|value| value.as_bytes()));
        let presented = digest(key.ok_or_else(ApiError::unauthorized)?);
        let mut found = None;
        for (key, tenant) in known.iter() {
            // Digests of unknown keys tell nothing about ours, and all are looked at.
            let equal = key.iter().zip(&presented).fold(0, |different, (a, b)| different | (a ^ b)) == 0;
            if equal {
                found = Some(tenant);
            }
        }
        let tenant = Arc::clone(found.ok_or_else(ApiError::unauthorized)?);
        Ok(Caller { scope: digest(tenant.as_bytes()), tenant, keyed: true })
    }
}

/// Take the gateway's own key out of what goes upstream (X2). It is the caller who says whether there is one: the keys may have
/// changed since he came in.
pub fn hide_key(caller: &Caller, headers: &mut HeaderMap) {
    if caller.keyed {
        headers.remove(AUTHORIZATION);
        headers.remove(API_KEY);
    }
}

fn known(keys: &[ApiKey]) -> Known {
    keys.iter().map(|key| (digest(key.key.as_bytes()), Arc::from(key.tenant.as_str()))).collect()
}

/// What goes on to an upstream that may tell callers apart by it.
fn credentials(headers: &HeaderMap) -> [u8; 32] {
    let presented = [AUTHORIZATION.as_str(), API_KEY].map(|name| headers.get(name).map(|value| value.as_bytes()));
    match presented {
        [None, None] => [0; 32],
        [Some(value), None] => digest(value),
        [authorization, key] => digest(&[authorization.map_or([0; 32], digest), key.map_or([1; 32], digest)].concat()),
    }
}

fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, key) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii())
}

fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        headers
    }

    fn keys() -> Keys {
        let key = |key: &str, tenant: &str| ApiKey { key: key.into(), tenant: tenant.into() };
        Keys::new(&[key("one", "a"), key("two", "a"), key("three", "b")])
    }

    #[test]
    fn x1_a_key_is_needed_where_keys_are_set() {
        let keys = keys();
        for wrong in ["Bearer four", "Bearer one1", "Bearer on", "Basic one", "one", "Bearer ", ""] {
            let refused = keys.enter(&headers("authorization", wrong)).unwrap_err();
            assert_eq!(refused.status.as_u16(), 401, "{wrong}");
        }
        assert_eq!(keys.enter(&HeaderMap::new()).unwrap_err().status.as_u16(), 401);
        assert_eq!(&*keys.enter(&headers("authorization", "bearer three")).unwrap().tenant, "b");
        assert_eq!(&*keys.enter(&headers("x-api-key", "one")).unwrap().tenant, "a");
    }

    #[test]
    fn c3_scopes_are_tenants_or_else_credentials() {
        let keys = keys();
        let scope = |key: &str| keys.enter(&headers("authorization", key)).unwrap().scope;
        assert_eq!(scope("Bearer one"), scope("Bearer two"));
        assert_ne!(scope("Bearer one"), scope("Bearer three"));
        let open = Keys::new(&[]);
        let scope = |key: &str| open.enter(&headers("authorization", key)).unwrap().scope;
        assert_ne!(scope("Bearer x"), scope("Bearer y"));
        let scope = |key: &str| open.enter(&headers("x-api-key", key)).unwrap().scope;
        assert_ne!(scope("x"), scope("y"));
        assert_ne!(scope("x"), open.enter(&HeaderMap::new()).unwrap().scope);
    }

    #[test]
    fn x2_the_gateways_key_does_not_go_upstream() {
        let mut sent = headers("authorization", "Bearer one");
        let open = Keys::new(&[]);
        hide_key(&open.enter(&sent).unwrap(), &mut sent);
        assert_eq!(sent.len(), 1);
        let keys = keys();
        let caller = keys.enter(&sent).unwrap();
        keys.replace(&[]);
        hide_key(&caller, &mut sent);
        assert!(sent.is_empty(), "although no key is known any more");
    }
}
