//! Errors: those of the system as statuses of RFC 1813 section 2.6, and those that users of a server read.

use super::file_system::Outcome;
use crate::protocol::Nfsstat3;
use rustix::io::Errno;
use std::io;

/// Wrong settings of a server, in words: the problem, and the remedy or the allowed values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Problem(pub(super) String);

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}

/// Reason why a back end cannot be opened, and the remedy.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}; {remedy}")]
pub struct OpenError {
    what: String,
    source: io::Error,
    remedy: &'static str,
}

impl OpenError {
    pub(super) fn of<E: Into<io::Error>>(
        what: impl Into<String>,
        remedy: &'static str,
    ) -> impl FnOnce(E) -> Self {
        let what = what.into();
        move |source| Self { what, source: source.into(), remedy }
    }

    pub(super) fn of_threads(source: io::Error) -> Self {
        Self::of("cannot start threads", "raise their limit (TasksMax, ulimit -u)")(source)
    }
}

pub(super) fn status(error: Errno) -> Nfsstat3 {
    use Nfsstat3::*;
    match error {
        Errno::PERM => Nfs3errPerm,
        Errno::NOENT => Nfs3errNoent,
        Errno::NXIO => Nfs3errNxio,
        Errno::ACCESS | Errno::BUSY => Nfs3errAcces, // busy: a directory that something is mounted on
        Errno::EXIST => Nfs3errExist,
        Errno::XDEV => Nfs3errXdev,
        Errno::NODEV => Nfs3errNodev,
        Errno::NOTDIR => Nfs3errNotdir,
        Errno::ISDIR => Nfs3errIsdir,
        Errno::INVAL | Errno::LOOP | Errno::ILSEQ => Nfs3errInval,
        Errno::FBIG | Errno::OVERFLOW => Nfs3errFbig,
        Errno::NOSPC => Nfs3errNospc,
        Errno::ROFS => Nfs3errRofs,
        Errno::MLINK => Nfs3errMlink,
        Errno::NAMETOOLONG => Nfs3errNametoolong,
        Errno::NOTEMPTY => Nfs3errNotempty,
        Errno::DQUOT => Nfs3errDquot,
        Errno::STALE => Nfs3errStale,
        Errno::OPNOTSUPP | Errno::NOSYS => Nfs3errNotsupp,
        // May be available again later: memory, descriptors, a lease that is being broken.
        Errno::AGAIN | Errno::NOMEM | Errno::NFILE | Errno::MFILE | Errno::INTR => Nfs3errJukebox,
        _ => Nfs3errIo,
    }
}

pub(super) fn io_status(error: &io::Error) -> Nfsstat3 {
    Errno::from_io_error(error).map_or(Nfsstat3::Nfs3errIo, status)
}

pub(super) trait OrStatus<T> {
    fn or_status(self) -> Outcome<T>;
}

impl<T> OrStatus<T> for rustix::io::Result<T> {
    fn or_status(self) -> Outcome<T> {
        self.map_err(status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_system_are_those_of_the_rfc() {
        use Nfsstat3::*;
        let table = [
            (Errno::XDEV, Nfs3errXdev),
            (Errno::MLINK, Nfs3errMlink),
            (Errno::DQUOT, Nfs3errDquot),
            (Errno::NOSPC, Nfs3errNospc),
            (Errno::ROFS, Nfs3errRofs),
            (Errno::NAMETOOLONG, Nfs3errNametoolong),
            (Errno::NOTEMPTY, Nfs3errNotempty),
            (Errno::STALE, Nfs3errStale),
            (Errno::LOOP, Nfs3errInval),
            (Errno::MFILE, Nfs3errJukebox),
            (Errno::PROTO, Nfs3errIo),
        ];
        for (error, expected) in table {
            assert_eq!(status(error), expected, "{error}");
            assert_eq!(io_status(&error.into()), expected, "{error}");
        }
    }

    #[test]
    fn an_error_without_a_number_is_an_error_of_io() {
        assert_eq!(io_status(&io::ErrorKind::WriteZero.into()), Nfsstat3::Nfs3errIo);
    }
}
