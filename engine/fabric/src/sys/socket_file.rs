//! Files of listening Unix sockets: they have their mode from the beginning, replace only the file
//! of a dead server, and go with their server, unless another one has taken the place.
//!
//! May be called by everyone. Nothing here waits for a peer.

use super::peer_socket::PeerListener;
use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, sockopt};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// File of a socket of this process. Dropping it removes the file, if it is still that one: drop it
/// before the socket, which keeps the file's number from being given to another file.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    /// Binds `socket`, which must not listen yet, to a file with mode 0600, and listens. A socket file whose
    /// server is dead is replaced.
    ///
    /// # Errors
    /// `AddrInUse` for anything else that is there, and for a server that takes the place in the
    /// same moment; or the kernel's error.
    pub fn listen(socket: OwnedFd, path: &Path, backlog: i32) -> io::Result<(PeerListener, Self)> {
        let file = Self::bind(&socket, path)?;
        let listener = PeerListener::listen(socket, backlog)?;
        // Until it listens, another server takes it for dead.
        file.check()?;
        Ok((listener, file))
    }

    fn check(&self) -> io::Result<()> {
        match identity_of(&self.path) {
            Ok(there) if there == self.identity => Ok(()),
            _ => Err(Errno::ADDRINUSE.into()),
        }
    }

    fn bind(socket: &OwnedFd, path: &Path) -> io::Result<Self> {
        let name = SocketAddrUnix::new(path)?;
        // The file gets the mode that the socket has when it is bound: no moment with another one, and
        // no path that could lead to another file meanwhile.
        fchmod(socket, Mode::RUSR | Mode::WUSR)?;
        match net::bind(socket, &name) {
            Err(Errno::ADDRINUSE) if is_stale(socket, path, &name)? => {
                fs::remove_file(path)?;
                net::bind(socket, &name)?;
            }
            other => other?,
        }
        Ok(Self { path: path.to_owned(), identity: identity_of(path)? })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.check().is_ok() {
            // Somebody may remove it in this moment.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity_of(path: &Path) -> io::Result<(u64, u64)> {
    let file = fs::symlink_metadata(path)?;
    Ok((file.dev(), file.ino()))
}

/// Such a socket refuses connections. Other files are never stale, and a server with a full queue is alive.
fn is_stale(socket: &OwnedFd, path: &Path, name: &SocketAddrUnix) -> io::Result<bool> {
    let before = identity_of(path)?;
    let is_socket = fs::symlink_metadata(path)?.file_type().is_socket();
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let kind = sockopt::socket_type(socket)?;
    let asking = net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
    let is_dead = is_socket && net::connect(&asking, name) == Err(Errno::CONNREFUSED);
    Ok(is_dead && identity_of(path)? == before)
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use rustix::net::SocketType;

    /// A folder that goes with the test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let folder = format!("spinrpc-socket-file-{name}-{}", std::process::id());
            let folder = std::env::temp_dir().join(folder);
            // One that a killed run left behind, if any.
            let _ = fs::remove_dir_all(&folder);
            fs::create_dir(&folder).unwrap();
            Self(folder)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn socket(kind: SocketType) -> OwnedFd {
        net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap()
    }

    /// A change of the mode after the file is there would be a separate event.
    #[test]
    fn a_file_has_its_mode_from_the_moment_it_is_there() {
        use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init};
        let folder = Folder::new("mode");
        let events = init(CreateFlags::NONBLOCK).unwrap();
        add_watch(&events, &folder.0, WatchFlags::CREATE | WatchFlags::ATTRIB).unwrap();
        let path = folder.0.join("socket");
        let _file = SocketFile::bind(&socket(SocketType::STREAM), &path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(&events, &mut buffer);
        assert_eq!(reader.next().unwrap().events(), ReadFlags::CREATE);
        assert!(reader.next().is_err(), "the mode was changed later");
    }

    #[test]
    fn a_file_goes_with_its_server_and_a_dead_one_makes_room() {
        let folder = Folder::new("dead");
        let path = folder.0.join("socket");
        let (first, second) = (socket(SocketType::SEQPACKET), socket(SocketType::SEQPACKET));
        let file = SocketFile::bind(&first, &path).unwrap();
        net::listen(&first, 1).unwrap();
        let refused = |socket: &OwnedFd| SocketFile::bind(socket, &path).unwrap_err().kind();
        assert_eq!(refused(&second), io::ErrorKind::AddrInUse);
        assert_eq!(refused(&socket(SocketType::STREAM)), io::ErrorKind::AddrInUse);
        // As one that is killed: its file stays.
        let aside = folder.0.join("aside");
        fs::rename(&path, &aside).unwrap();
        drop((file, first));
        fs::rename(&aside, &path).unwrap();
        drop(SocketFile::bind(&second, &path).unwrap());
        assert!(!path.exists());
        fs::write(&path, "no socket").unwrap();
        assert_eq!(refused(&socket(SocketType::STREAM)), io::ErrorKind::AddrInUse);
    }

    /// Its owner never accepts: a server that waited for that would never start.
    #[test]
    fn a_server_whose_queue_is_full_keeps_its_file() {
        let folder = Folder::new("full");
        let path = folder.0.join("socket");
        let full = socket(SocketType::STREAM);
        let _file = SocketFile::bind(&full, &path).unwrap();
        net::listen(&full, 0).unwrap();
        let _first = std::os::unix::net::UnixStream::connect(&path).unwrap();
        let refused = SocketFile::bind(&socket(SocketType::STREAM), &path).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
    }

    /// Two that start at once: the second takes the first, which does not listen yet, for dead.
    #[test]
    fn a_server_whose_file_was_replaced_before_it_listened_does_not_start() {
        let folder = Folder::new("both");
        let path = folder.0.join("socket");
        let (first, second) = (socket(SocketType::STREAM), socket(SocketType::STREAM));
        let early = SocketFile::bind(&first, &path).unwrap();
        let (_listener, _file) = SocketFile::listen(second, &path, 1).unwrap();
        assert_eq!(early.check().unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(early);
        assert!(path.exists(), "it is the second server's");
    }

    #[test]
    fn a_server_that_ends_leaves_the_file_of_the_one_in_its_place() {
        let folder = Folder::new("next");
        let path = folder.0.join("socket");
        let (first, second) = (socket(SocketType::STREAM), socket(SocketType::STREAM));
        let old = SocketFile::bind(&first, &path).unwrap();
        fs::remove_file(&path).unwrap();
        let new = SocketFile::bind(&second, &path).unwrap();
        drop(old);
        assert!(path.exists(), "it is the new server's");
        drop(new);
        assert!(!path.exists());
    }
}
