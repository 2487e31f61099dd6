//! Addresses: `shm:NAME`, which leaves nothing behind, and `shm:/absolute/path`, a socket file.

use crate::address::AddressError;
use rustix::net::SocketAddrUnix;
use std::path::{Path, PathBuf};

const NAME_BYTES_MAX: usize = 64;
const PATH_BYTES_MAX: usize = 107;
const FORMS: &str = "shm:NAME (1 to 64 letters, digits, '.', '-', '_') and shm:/absolute/path (up \
                     to 107 bytes)";

/// Checks that the fabric understands `address`, for programs that want to say so before they
/// begin. Does not look whether anybody listens there, and does not block.
///
/// # Errors
/// [`AddressError`] when it is none.
pub fn check_address(address: &str) -> Result<(), AddressError> {
    Address::parse(address).map(drop)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Address {
    /// A name in the abstract namespace, which the kernel forgets with its socket.
    Name(String),
    Path(PathBuf),
}

impl Address {
    pub(super) fn parse(address: &str) -> Result<Self, AddressError> {
        let wrong = |reason| AddressError {
            address: address.into(),
            kind: "shm address",
            reason,
            forms: FORMS,
        };
        let rest = address.strip_prefix("shm:").ok_or_else(|| wrong(not_shm(address)))?;
        if rest.starts_with('/') {
            let fits = rest.len() <= PATH_BYTES_MAX && !rest.contains('\0');
            return fits
                .then(|| Self::Path(rest.into()))
                .ok_or_else(|| wrong("the path is too long"));
        }
        if rest.is_empty() || rest.len() > NAME_BYTES_MAX {
            return Err(wrong("the name is empty or too long"));
        }
        if !rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte)) {
            return Err(wrong("the name has a character that is not allowed"));
        }
        Ok(Self::Name(rest.into()))
    }

    /// Names are apart for each user.
    pub(super) fn socket_address(&self) -> rustix::io::Result<SocketAddrUnix> {
        match self {
            Self::Name(name) => {
                let uid = rustix::process::geteuid().as_raw();
                SocketAddrUnix::new_abstract_name(format!("spinrpc/{uid}/{name}").as_bytes())
            }
            Self::Path(path) => SocketAddrUnix::new(path),
        }
    }

    /// Socket addresses of other users' listeners of that name, as the kernel lists them. Whose they are
    /// only the kernel knows: anybody may take a name with another user's number in it.
    pub(super) fn namesakes(&self) -> Vec<SocketAddrUnix> {
        let Self::Name(name) = self else { return Vec::new() };
        let table = std::fs::read("/proc/net/unix").unwrap_or_default();
        let own = rustix::process::geteuid().as_raw();
        let mut users = users_of(name, &String::from_utf8_lossy(&table));
        users.retain(|user| *user != own);
        users.sort_unstable();
        users.dedup();
        let address = |user| {
            SocketAddrUnix::new_abstract_name(format!("spinrpc/{user}/{name}").as_bytes()).ok()
        };
        users.into_iter().filter_map(address).take(NAMESAKES_MAX).collect()
    }

    pub(super) fn path(&self) -> Option<&Path> {
        match self {
            Self::Name(_) => None,
            Self::Path(path) => Some(path),
        }
    }
}

/// Most listeners of other users that are asked whose they are: anybody may have thousands.
const NAMESAKES_MAX: usize = 32;

fn users_of(name: &str, table: &str) -> Vec<u32> {
    let owner = |line: &str| {
        let listed = line.split_whitespace().nth(7)?.strip_prefix("@spinrpc/")?;
        let (uid, other) = listed.split_once('/')?;
        uid.parse().ok().filter(|user: &u32| other == name && user.to_string() == uid)
    };
    table.lines().filter_map(owner).collect()
}

fn not_shm(address: &str) -> &'static str {
    match address.split_once("://") {
        Some(("rdma", _)) => {
            "it is for RDMA devices, and this engine's driver is shm (fabric.driver)"
        }
        Some(("iwarp", _)) => {
            "it is for TCP sockets, and this engine's driver is shm (fabric.driver)"
        }
        _ => "it must start with shm:",
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn names_and_absolute_paths_are_addresses() {
        assert_eq!(Address::parse("shm:echo-1.a_B"), Ok(Address::Name("echo-1.a_B".into())));
        assert_eq!(Address::parse("shm:/run/x"), Ok(Address::Path("/run/x".into())));
    }

    #[test]
    fn users_of_a_name_are_found_in_the_kernels_table() {
        let table = "Num RefCount Protocol Flags Type St Inode Path\n\
                     00: 00000002 00000000 00010000 0005 01 77 @spinrpc/1000/kv\n\
                     00: 00000002 00000000 00010000 0005 01 77 @spinrpc/0999/kv\n\
                     00: 00000002 00000000 00010000 0005 01 77 @spinrpc/+999/kv\n\
                     00: 00000002 00000000 00010000 0005 01 78 @spinrpc/0/kv2\n\
                     00: 00000003 00000000 00000000 0001 03 79\n";
        assert_eq!(users_of("kv", table), [1000]);
        assert_eq!(users_of("kv2", table), [0]);
        assert!(users_of("k", table).is_empty());
    }

    #[test]
    fn anything_else_is_refused_in_one_line_with_what_is_allowed() {
        let long_name = format!("shm:{}", "x".repeat(65));
        let long_path = format!("shm:/{}", "x".repeat(107));
        for address in
            ["", "echo", "tcp:1", "shm:", "shm:a b", "shm:./x", "shm:a/b", &long_name, &long_path]
        {
            let error = Address::parse(address).unwrap_err().to_string();
            assert!(
                error.contains("allowed are shm:NAME") && error.lines().count() == 1,
                "{error}"
            );
        }
    }
}
