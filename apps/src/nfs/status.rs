//! What servers answer instead of results, in the words of RFC 1813, and what a user can do.

use crate::nfs::mount3::Mountstat3;
use nfs3_types::nfs3::nfsstat3;

/// What an error of NFS means (RFC 1813 section 2.6), and what to do about it.
pub fn meaning(status: nfsstat3) -> (&'static str, &'static str) {
    use nfsstat3::*;
    match status {
        NFS3_OK => ("as asked", "nothing is to be done"),
        NFS3ERR_PERM => ("not owner", "call as the owner or as root (--uid)"),
        NFS3ERR_NOENT => ("no such file or directory", "check the path"),
        NFS3ERR_IO => ("a hard error of the server's disk", SERVER_LOG),
        NFS3ERR_NXIO => ("no such device", SERVER_LOG),
        NFS3ERR_ACCES => ("permission denied", "call as a user who may (--uid, --gid)"),
        NFS3ERR_EXIST => ("the file exists", "choose another name"),
        NFS3ERR_XDEV => ("a hard link across devices", "copy instead"),
        NFS3ERR_NODEV => ("no such device", SERVER_LOG),
        NFS3ERR_NOTDIR => ("not a directory", "check the path"),
        NFS3ERR_ISDIR => ("is a directory", "name a file"),
        NFS3ERR_INVAL => ("an argument that the server does not take", "check the path"),
        NFS3ERR_FBIG => ("the file is too large for the server", "write less"),
        NFS3ERR_NOSPC => ("no space left on the server's device", "delete something there"),
        NFS3ERR_ROFS => ("a read-only file system", "have it exported for writing"),
        NFS3ERR_MLINK => ("too many hard links", "remove some"),
        NFS3ERR_NAMETOOLONG => ("the name is too long", "choose a shorter one"),
        NFS3ERR_NOTEMPTY => ("the directory is not empty", "remove what is in it"),
        NFS3ERR_DQUOT => ("the quota on the server is used up", "delete something there"),
        NFS3ERR_STALE => (
            "the handle is stale: its file is gone, or no longer exported",
            "try again from the path, which asks for a new handle",
        ),
        NFS3ERR_REMOTE => ("too many levels of remote in the path", "ask the other server"),
        NFS3ERR_BADHANDLE => ("not a handle of this server", "check --handle, or mount anew"),
        NFS3ERR_NOT_SYNC => ("the file was changed meanwhile", "try again"),
        NFS3ERR_BAD_COOKIE => ("the directory was changed meanwhile", "try again"),
        NFS3ERR_NOTSUPP => ("the server does not have this operation", "use another server"),
        NFS3ERR_TOOSMALL => ("the buffer is too small for one entry", SERVER_LOG),
        NFS3ERR_SERVERFAULT => ("an error of the server that has no other name", SERVER_LOG),
        NFS3ERR_BADTYPE => ("a type of file that the server does not have", "use another"),
        NFS3ERR_JUKEBOX => (
            "the server began, but cannot end it in good time (a file on tape, for example)",
            "try again later, or wait longer (--timeout)",
        ),
    }
}

/// The same for MOUNT (RFC 1813 section 5.1.6).
pub fn mount_meaning(status: Mountstat3) -> (&'static str, &'static str) {
    use Mountstat3::*;
    match status {
        Mnt3Ok => ("as asked", "nothing is to be done"),
        Mnt3errPerm => ("not owner", "have the server export it to this host"),
        Mnt3errNoent => ("no such directory", "check the path, or name the export (--export)"),
        Mnt3errIo => ("a hard error of the server's disk", SERVER_LOG),
        Mnt3errAcces => (
            "permission denied",
            "have the server export it to this host, and call from a port below 1024 (as root) \
             unless it is exported as insecure",
        ),
        Mnt3errNotdir => ("not a directory", "check the path, or name the export (--export)"),
        Mnt3errInval => ("an argument that the server does not take", "check the path"),
        Mnt3errNametoolong => ("the path is too long", "mount a directory above (--export)"),
        Mnt3errNotsupp => ("the server does not have this operation", "give --handle"),
        Mnt3errServerfault => ("an error of the server that has no other name", SERVER_LOG),
    }
}

const SERVER_LOG: &str = "look into the server's log";
