//! Addresses: what is bound, what engines are told to dial, and what must not be touched.

use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv6Addr, ToSocketAddrs};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::TransportError;

/// An address that is ready to be bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bindable {
    /// What to give to the socket.
    pub(crate) address: String,
    /// Whether the socket needs IPv6 switched on.
    pub(crate) ipv6: bool,
}

/// Who can reach a bound address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exposure {
    /// This host or a private network.
    Private,
    /// Possibly anybody: the wire has no authentication.
    Public,
}

fn refused(address: &str, reason: impl Into<String>) -> TransportError {
    TransportError::Address { address: address.to_owned(), reason: reason.into() }
}

/// The host and the port of a `tcp://` address, the host without brackets.
fn host_and_port(address: &str) -> Option<(&str, &str)> {
    let (host, port) = address.strip_prefix("tcp://")?.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    Some((host, port))
}

fn joined(host: IpAddr, port: &str) -> String {
    match host {
        IpAddr::V4(host) => format!("tcp://{host}:{port}"),
        IpAddr::V6(host) => format!("tcp://[{host}]:{port}"),
    }
}

/// Check a configured address and bring it into the form that the socket library binds. Host names are resolved here,
/// as the library takes none to bind; stale ipc files are removed (behaviours.md Z2).
pub(crate) fn prepare(address: &str) -> Result<Bindable, TransportError> {
    if address.contains('\0') {
        return Err(refused(address, "it has a NUL in it"));
    }
    if address == "ipc://*" {
        return Ok(Bindable { address: format!("ipc://{}", unused_path().display()), ipv6: false });
    }
    if let Some(path) = address.strip_prefix("ipc://") {
        clear_stale(address, path)?;
        return Ok(Bindable { address: address.to_owned(), ipv6: false });
    }
    let Some((host, port)) = host_and_port(address) else {
        return Err(refused(address, "expected tcp://host:port or ipc://path"));
    };
    if port != "*" && port.parse::<u16>().is_err() {
        return Err(refused(address, "the port is not a number up to 65535"));
    }
    if host == "*" {
        return Ok(Bindable { address: format!("tcp://*:{port}"), ipv6: false });
    }
    // A name that does not resolve may be a network interface's, which the library knows.
    let Some(ip) = resolve(host) else {
        return Ok(Bindable { address: format!("tcp://{host}:{port}"), ipv6: false });
    };
    Ok(Bindable { address: joined(ip, port), ipv6: ip.is_ipv6() })
}

/// A path for a socket that nothing else has. The library's own choice may be relative to the working directory, which
/// engines do not share.
fn unused_path() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos());
    let name = format!("ts-client-{}-{}-{now:x}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    std::env::temp_dir().join(name)
}

/// The address of a host, IPv4 first: engines in Python do not switch IPv6 on.
fn resolve(host: &str) -> Option<IpAddr> {
    if let Ok(ip) = host.parse() {
        return Some(ip);
    }
    let found: Vec<IpAddr> = (host, 0).to_socket_addrs().ok()?.map(|address| address.ip()).collect();
    found.iter().find(|ip| ip.is_ipv4()).or_else(|| found.first()).copied()
}

/// Remove the socket file that a former process left behind. The socket library itself would remove whatever is at the
/// path: a regular file, or the socket of a live process.
fn clear_stale(address: &str, path: &str) -> Result<(), TransportError> {
    // An abstract name is no file.
    if path.starts_with('@') {
        return Ok(());
    }
    if path.is_empty() || path.len() > 107 {
        return Err(refused(address, "the path of an ipc address has 1 to 107 bytes"));
    }
    let kind = match fs::symlink_metadata(Path::new(path)) {
        Ok(metadata) => metadata.file_type(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(refused(address, error.to_string())),
    };
    if !kind.is_socket() {
        return Err(refused(address, "there is something at this path that is not a socket; it was left alone"));
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(refused(address, "another process listens on it")),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(|error| refused(address, format!("a stale socket stays: {error}")))
        }
        Err(error) => Err(refused(address, format!("there is a socket that cannot be tried: {error}"))),
    }
}

/// What engines are told to dial, given what was bound.
pub(crate) fn advertised(bound: &str, advertise: Option<&str>) -> Result<String, TransportError> {
    let Some((host, port)) = host_and_port(bound) else { return Ok(bound.to_owned()) };
    if let Some(host) = advertise {
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        return Ok(match bare.parse::<Ipv6Addr>() {
            Ok(ip) => joined(IpAddr::V6(ip), port),
            Err(_) => format!("tcp://{bare}:{port}"),
        });
    }
    match host.parse::<IpAddr>() {
        Ok(ip) if ip.is_unspecified() => Err(refused(
            bound,
            "a wildcard cannot be advertised to engines: bind a host that they can reach, or set an advertise address",
        )),
        _ => Ok(bound.to_owned()),
    }
}

/// Whether strangers may reach what was bound.
pub(crate) fn exposure(bound: &str) -> Exposure {
    let Some((host, _)) = host_and_port(bound) else { return Exposure::Private };
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V4(ip)) if ip.is_loopback() || ip.is_private() || ip.is_link_local() => Exposure::Private,
        Ok(IpAddr::V6(ip)) if ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local() => {
            Exposure::Private
        }
        Ok(_) => Exposure::Public,
        Err(_) => Exposure::Private,
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn names_become_addresses() {
        assert_eq!(prepare("tcp://localhost:0").unwrap().address, "tcp://127.0.0.1:0");
        assert_eq!(prepare("tcp://[::1]:7000").unwrap(), Bindable { address: "tcp://[::1]:7000".into(), ipv6: true });
        assert_eq!(prepare("tcp://*:7000").unwrap().address, "tcp://*:7000");
        for bad in ["", "tcp://", "tcp://host", "tcp://h:70000", "http://h:1", "ipc://", "tcp://a\0b:1"] {
            assert!(prepare(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_wildcard_is_not_advertised() {
        for wildcard in ["tcp://0.0.0.0:7000", "tcp://[::]:7000"] {
            let error = advertised(wildcard, None).unwrap_err().to_string();
            assert!(error.contains("advertise"), "{error}");
            assert_eq!(advertised(wildcard, Some("10.0.0.7")).unwrap(), "tcp://10.0.0.7:7000");
        }
        assert_eq!(advertised("tcp://0.0.0.0:1", Some("fd00::7")).unwrap(), "tcp://[fd00::7]:1");
        assert_eq!(advertised("tcp://0.0.0.0:1", Some("[fd00::7]")).unwrap(), "tcp://[fd00::7]:1");
        assert_eq!(advertised("tcp://10.0.0.7:1", None).unwrap(), "tcp://10.0.0.7:1");
        assert_eq!(advertised("ipc:///run/x", Some("10.0.0.7")).unwrap(), "ipc:///run/x");
    }

    #[test]
    fn public_addresses_are_told_from_private_ones() {
        for private in ["tcp://127.0.0.1:1", "tcp://[::1]:1", "tcp://192.168.3.4:1", "tcp://[fd00::1]:1", "ipc:///x"] {
            assert_eq!(exposure(private), Exposure::Private, "{private}");
        }
        for public in ["tcp://0.0.0.0:1", "tcp://[::]:1", "tcp://8.8.8.8:1", "tcp://[2001:db8::1]:1"] {
            assert_eq!(exposure(public), Exposure::Public, "{public}");
        }
    }
}
