//! Statuses of failed calls in the words of RFC 1813, with advice for users.

use crate::mount3::Mountstat3;
use crate::protocol::Nfsstat3;

/// Meaning of an NFS status (RFC 1813 section 2.6), and advice.
pub fn meaning(status: Nfsstat3) -> (&'static str, &'static str) {
    use Nfsstat3::*;
    match status {
        Nfs3Ok => ("success", "nothing to do"),
        Nfs3errPerm => ("not owner", "call as the owner or as root (--uid)"),
        Nfs3errNoent => ("no such file or directory", "check the path"),
        Nfs3errIo => ("I/O error of the server's disk", SERVER_LOG),
        Nfs3errNxio => ("no such device", SERVER_LOG),
        Nfs3errAcces => ("permission denied", "call as a user with permission (--uid, --gid)"),
        Nfs3errExist => ("the file exists", "choose another name"),
        Nfs3errXdev => ("hard link across devices", "copy instead"),
        Nfs3errNodev => ("no such device", SERVER_LOG),
        Nfs3errNotdir => ("not a directory", "check the path"),
        Nfs3errIsdir => ("is a directory", "name a file"),
        Nfs3errInval => ("an argument that the server does not accept", "check the path"),
        Nfs3errFbig => ("the file is too large for the server", "write less"),
        Nfs3errNospc => ("no space left on the server's device", "delete something there"),
        Nfs3errRofs => ("a read-only file system", "export it for writing"),
        Nfs3errMlink => ("too many hard links", "remove some"),
        Nfs3errNametoolong => ("the name is too long", "choose a shorter one"),
        Nfs3errNotempty => ("the directory is not empty", "remove what is in it"),
        Nfs3errDquot => ("quota exceeded on the server", "delete something there"),
        Nfs3errStale => (
            "stale handle: the file was deleted, or is no longer exported",
            "try again with the path, which gets a new handle",
        ),
        Nfs3errRemote => ("too many levels of remote in the path", "ask the other server"),
        Nfs3errBadhandle => ("not a handle of this server", "check --handle, or mount again"),
        Nfs3errNotSync => ("the file has changed meanwhile", "try again"),
        Nfs3errBadCookie => ("the directory has changed meanwhile", "try again"),
        Nfs3errNotsupp => ("the server does not support this operation", "use another server"),
        Nfs3errToosmall => ("the buffer is too small for one entry", SERVER_LOG),
        Nfs3errServerfault => ("unspecified error of the server", SERVER_LOG),
        Nfs3errBadtype => ("a file type that the server does not support", "use another"),
        Nfs3errJukebox => (
            "the server has started, but needs more time (for a file on tape, for example)",
            "try again later, or wait longer (--timeout)",
        ),
    }
}

/// Meaning of a MOUNT status (RFC 1813 section 5.1.6), and advice.
pub fn mount_meaning(status: Mountstat3) -> (&'static str, &'static str) {
    use Mountstat3::*;
    match status {
        Mnt3Ok => ("success", "nothing to do"),
        Mnt3errPerm => ("not owner", "export it to this host on the server"),
        Mnt3errNoent => ("no such directory", "check the path, or name the export (--export)"),
        Mnt3errIo => ("I/O error of the server's disk", SERVER_LOG),
        Mnt3errAcces => (
            "permission denied",
            "export it to this host on the server, and call from a port below 1024 (as root) \
             unless it is exported as insecure",
        ),
        Mnt3errNotdir => ("not a directory", "check the path, or name the export (--export)"),
        Mnt3errInval => ("an argument that the server does not accept", "check the path"),
        Mnt3errNametoolong => ("the path is too long", "mount a parent directory (--export)"),
        Mnt3errNotsupp => ("the server does not support this operation", "use --handle"),
        Mnt3errServerfault => ("unspecified error of the server", SERVER_LOG),
    }
}

const SERVER_LOG: &str = "check the server's log";
