//! Where a server is, and what on it is meant: `rdma://HOST:PORT/EXPORT/PATH` and
//! `shm:NAME//EXPORT/PATH`.
//!
//! Pure. Called by the command line.

use spinrpc::fabric::shm::check_address;
use spinrpc::rpcbind::NFS_RDMA_PORT;
use std::fmt;

/// A server, and a path on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Where the server listens.
    pub server: ServerAddress,
    /// From the first slash on; empty if there was none. Where the export ends and the path in it
    /// begins only the server knows.
    pub path: String,
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAddress {
    /// A host that RDMA reaches.
    Rdma {
        /// Name or IP address, without brackets.
        host: String,
        /// The port; 20049 unless another one was given (RFC 5666 section 12).
        port: u16,
    },
    /// Another process of this host, as the engine writes it.
    Shm(String),
}

/// Text that names no server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{text}\" names no NFS server: {reason}; write rdma://HOST[:PORT]/EXPORT/PATH (IPv6 in \
     brackets), or shm:NAME//EXPORT/PATH with two slashes before the path"
)]
pub struct TargetError {
    text: String,
    reason: &'static str,
}

impl Target {
    /// Reads a server with or without a path.
    ///
    /// # Errors
    /// [`TargetError`] says what is wrong, and what is allowed.
    pub fn parse(text: &str) -> Result<Self, TargetError> {
        let wrong = |reason| TargetError { text: text.to_owned(), reason };
        if let Some(rest) = text.strip_prefix("rdma://") {
            let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            let server = authority_of(authority).map_err(wrong)?;
            return Ok(Self { server, path: path.to_owned() });
        }
        if !text.starts_with("shm:") {
            return Err(wrong("it begins neither with rdma:// nor with shm:"));
        }
        // A name may be a path itself, so that one slash does not end it.
        let (address, path) = text.split_at(text.find("//").unwrap_or(text.len()));
        check_address(address).map_err(|error| wrong(error.reason))?;
        let path = path.get(1..).unwrap_or_default().to_owned();
        Ok(Self { server: ServerAddress::Shm(address.to_owned()), path })
    }
}

impl ServerAddress {
    /// The host, of those that are one.
    pub fn host(&self) -> Option<&str> {
        match self {
            Self::Rdma { host, .. } => Some(host),
            Self::Shm(_) => None,
        }
    }
}

/// As the engine takes it.
impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rdma { host, port } if host.contains(':') => write!(f, "rdma://[{host}]:{port}"),
            Self::Rdma { host, port } => write!(f, "rdma://{host}:{port}"),
            Self::Shm(address) => f.write_str(address),
        }
    }
}

fn authority_of(text: &str) -> Result<ServerAddress, &'static str> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']').ok_or("the bracket is not closed")?,
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let port = match port.strip_prefix(':') {
        Some(digits) => port_of(digits).ok_or("the port is not a number from 1 to 65535")?,
        None if port.is_empty() => NFS_RDMA_PORT,
        None => return Err("something other than a port follows the bracket"),
    };
    if host.is_empty() {
        return Err("the host is missing");
    }
    Ok(ServerAddress::Rdma { host: host.to_owned(), port })
}

/// A decimal port; the standard library's parser alone would take a sign.
fn port_of(digits: &str) -> Option<u16> {
    let is_number = digits.bytes().all(|digit| digit.is_ascii_digit());
    digits.parse().ok().filter(|port| is_number && *port > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> (String, String) {
        let target = Target::parse(text).unwrap();
        (target.server.to_string(), target.path)
    }

    #[test]
    fn a_host_has_the_port_of_nfs_unless_another_is_given() {
        for (text, server, path) in [
            ("rdma://10.8.0.1", "rdma://10.8.0.1:20049", ""),
            ("rdma://10.8.0.1/", "rdma://10.8.0.1:20049", "/"),
            ("rdma://nfs.example:2049/a/b", "rdma://nfs.example:2049", "/a/b"),
            ("rdma://[2001:db8::1]/a", "rdma://[2001:db8::1]:20049", "/a"),
            ("rdma://[::1]:1//a", "rdma://[::1]:1", "//a"),
        ] {
            assert_eq!(parsed(text), (server.to_owned(), path.to_owned()), "{text}");
        }
    }

    #[test]
    fn two_slashes_end_a_name_of_shared_memory() {
        for (text, server, path) in [
            ("shm:nfs", "shm:nfs", ""),
            ("shm:nfs//export/dir", "shm:nfs", "/export/dir"),
            ("shm:nfs//", "shm:nfs", "/"),
            ("shm:/run/nfs.sock//export", "shm:/run/nfs.sock", "/export"),
        ] {
            assert_eq!(parsed(text), (server.to_owned(), path.to_owned()), "{text}");
        }
    }

    #[test]
    fn what_names_no_server_is_refused_with_what_is_allowed() {
        for text in [
            "",
            "10.8.0.1",
            "tcp:1",
            "rdma:",
            "rdma://",
            "rdma:///export",
            "rdma://host:/x",
            "rdma://host:0",
            "rdma://host:+1",
            "rdma://host:65536",
            "rdma://[::1",
            "rdma://[::1]x",
            "rdma://[]",
            "shm:",
            "shm:a b",
            "shm:name/export",
        ] {
            let error = Target::parse(text).unwrap_err().to_string();
            assert!(error.contains("rdma://HOST"), "{text}: {error}");
        }
    }
}
