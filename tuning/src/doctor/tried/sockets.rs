//! Sockets of the shared-memory fabric: listeners, and files left by dead servers.

use crate::host::Tree;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;

/// Names with a listener, and socket files without one. Abstract addresses leave no files; a file
/// counts as ours if its name contains "spin" and it lies directly in a usual folder.
pub(super) fn look(tree: &Tree) -> (Vec<String>, Vec<String>) {
    let bound = tree.peek("proc/net/unix").unwrap_or_default();
    let names: BTreeSet<&str> =
        bound.lines().filter_map(|line| line.split_whitespace().nth(7)).collect();
    let listeners = names.iter().filter_map(|name| address(name)).collect();
    let is_bound = |path: &PathBuf| path.to_str().is_some_and(|path| names.contains(path));
    let files = folders().into_iter().flat_map(sockets_in);
    let stale = files.filter(|path| !is_bound(path) && refuses(path));
    // A path that is not UTF-8 would appear as another path in the remedy.
    (listeners, stale.filter_map(|path| path.to_str().map(str::to_owned)).collect())
}

/// `@spinrpc/0/echo` is `shm:echo`.
fn address(name: &str) -> Option<String> {
    let (_user, name) = name.strip_prefix("@spinrpc/")?.split_once('/')?;
    Some(format!("shm:{name}"))
}

fn folders() -> Vec<PathBuf> {
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let usual = ["/run", "/tmp"].map(PathBuf::from);
    own.filter(|folder| folder.is_absolute()).into_iter().chain(usual).collect()
}

fn sockets_in(folder: PathBuf) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().take(FILES_MAX);
    let ours = entries.filter_map(Result::ok).filter(|entry| {
        let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
        is_socket && entry.file_name().to_string_lossy().contains("spin")
    });
    ours.map(|entry| entry.path()).collect()
}

/// A socket of another network namespace is not in the list of this one, but still answers.
fn refuses(path: &PathBuf) -> bool {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let (Ok(socket), Ok(address)) = (socket, SocketAddrUnix::new(path)) else { return false };
    net::connect(&socket, &address) == Err(Errno::CONNREFUSED)
}

/// A larger folder is not searched.
const FILES_MAX: usize = 1 << 14;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn names_of_the_abstract_namespace_are_addresses() {
        assert_eq!(address("@spinrpc/1000/kv.1").as_deref(), Some("shm:kv.1"));
        assert_eq!(address("@/tmp/.X11-unix/X0"), None);
        assert_eq!(address("/run/spin.sock"), None);
    }

    #[test]
    fn a_socket_that_nobody_listens_at_refuses() {
        let folder = std::env::temp_dir().join(format!("spin-doctor-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        let path = folder.join("spin-socket");
        let listener = UnixListener::bind(&path).unwrap();
        assert_eq!(sockets_in(folder.clone()), std::slice::from_ref(&path));
        assert!(!refuses(&path), "a listener of another type");
        drop(listener);
        // A socket of another type would report the wrong type instead of a refused connection;
        // ours are SEQPACKET.
        let was_refused = refuses(&path);
        fs::remove_dir_all(&folder).unwrap();
        assert!(was_refused);
    }
}
