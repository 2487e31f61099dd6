//! CREATE, MKDIR, SYMLINK, MKNOD, LINK.

use super::attributes::{kind, mode, stat};
use super::files::{find, find_again, path_of};
use super::node::Node;
use super::set::{FILE_BYTES_MAX, check_owner, set};
use super::tree::Tree;
use crate::protocol::{
    Createhow3, Ftype3, Nfsstat3, Nfstime3, Sattr3, SetAtime, SetMtime, WccData,
};
use crate::server::caller::Caller;
use crate::server::errors::OrStatus;
use crate::server::file_system::{FileKey, Found, NewFile, Outcome, Place, SpecialFile};
use rustix::fd::OwnedFd;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, Statx, ftruncate, linkat, makedev, mkdirat, mknodat,
    openat, symlinkat,
};
use rustix::io;

impl Tree {
    /// Creates a file; the file and its name are on stable storage when this returns.
    pub(super) fn make(
        &self,
        caller: &Caller,
        at: Place<'_>,
        new: NewFile<'_>,
        wcc: &mut WccData,
    ) -> Outcome<Found> {
        let directory = self.directory(at.directory)?;
        self.changing(&directory, wcc, |_| {
            let made = match new {
                NewFile::Regular(how) => self.create(caller, &directory, at, how),
                NewFile::Directory(attributes) => {
                    let rights = mode(attributes.mode.unwrap_or(0o777));
                    let make = || mkdirat(&directory.path, at.name, rights);
                    let kind = FileType::Directory;
                    self.make_unopened(caller, (&directory, at, kind), attributes, make)
                }
                NewFile::Link { text, attributes } => {
                    let make = || symlinkat(text, &directory.path, at.name);
                    let kind = FileType::Symlink;
                    self.make_unopened(caller, (&directory, at, kind), attributes, make)
                }
                NewFile::Special(file) => self.make_special(caller, &directory, at, file),
            };
            let found = self.found(at, made?, true)?;
            self.settle_named(&*self.node(&found.key)?, &directory)?;
            Ok(found)
        })
    }

    fn create(
        &self,
        caller: &Caller,
        directory: &Node,
        at: Place<'_>,
        how: &Createhow3,
    ) -> Outcome<OwnedFd> {
        match how {
            Createhow3::Unchecked(new) => match self.create_new(caller, directory, at, new) {
                Err(Nfsstat3::Nfs3errExist) => self.take_existing(caller, directory, at, new),
                made => made,
            },
            Createhow3::Guarded(new) => self.create_new(caller, directory, at, new),
            Createhow3::Exclusive(verifier) => {
                let marked = marked_by(*verifier);
                match self.create_new(caller, directory, at, &marked) {
                    Err(Nfsstat3::Nfs3errExist) => self.find_marked(directory, at, &marked),
                    made => made,
                }
            }
        }
    }

    fn make_special(
        &self,
        caller: &Caller,
        directory: &Node,
        at: Place<'_>,
        file: &SpecialFile,
    ) -> Outcome<OwnedFd> {
        let kind = special_kind(file.kind)?;
        let rights = mode(file.attributes.mode.unwrap_or(0o666));
        let device = makedev(file.device.specdata1, file.device.specdata2);
        let make = || mknodat(&directory.path, at.name, kind, rights, device);
        self.make_unopened(caller, (directory, at, kind), &file.attributes, make)
    }

    pub(super) fn link(
        &self,
        caller: &Caller,
        file: &FileKey,
        at: Place<'_>,
        wcc: &mut WccData,
    ) -> Outcome<()> {
        let node = self.node(file)?;
        if node.kind == FileType::Directory {
            return Err(Nfsstat3::Nfs3errInval);
        }
        super::tree::live(&node.path)?;
        let directory = self.directory(at.directory)?;
        self.changing(&directory, wcc, |_| {
            let path = path_of(&node.path);
            self.acting(caller, || {
                linkat(CWD, path, &directory.path, at.name, AtFlags::SYMLINK_FOLLOW)
            })?;
            self.settle_named(&node, &directory)
        })
    }

    /// Creates a file of a type that cannot be created open, and finds it.
    fn make_unopened(
        &self,
        caller: &Caller,
        (directory, at, expected): (&Node, Place<'_>, FileType),
        new: &Sattr3,
        make: impl FnOnce() -> io::Result<()>,
    ) -> Outcome<OwnedFd> {
        check_owner(new)?;
        self.acting(caller, make)?;
        let made = find(&directory.path, at.name).or_status()?;
        // Another process may have replaced the file, which root must not give away: a new file has
        // this type and no other name.
        let present = stat(&made).or_status()?;
        let has_one_name = expected == FileType::Directory || present.stx_nlink == 1;
        if kind(&present) != expected || !has_one_name {
            return Err(Nfsstat3::Nfs3errStale);
        }
        self.begin(caller, &made, expected, new)?;
        Ok(made)
    }

    /// Sets a new file's initial attributes other than the mode. Only root sets the owner: other
    /// callers own the file already, as on Linux.
    fn begin(&self, caller: &Caller, made: &OwnedFd, kind: FileType, new: &Sattr3) -> Outcome<()> {
        let is_root = self.identity.is_root(caller);
        let owner = if is_root { (new.uid, new.gid) } else { Default::default() };
        // The kernel may have cleared mode bits, which root sets again after changing the owner.
        let mode = if owner.0.is_some() || owner.1.is_some() { new.mode } else { None };
        let rest = Sattr3 { mode, uid: owner.0, gid: owner.1, size: None, ..*new };
        self.acting(caller, || set(made, kind, &rest))
    }

    fn create_new(
        &self,
        caller: &Caller,
        directory: &Node,
        at: Place<'_>,
        new: &Sattr3,
    ) -> Outcome<OwnedFd> {
        check_owner(new)?;
        let bytes = new.size.unwrap_or(0);
        if bytes >= FILE_BYTES_MAX {
            return Err(Nfsstat3::Nfs3errFbig);
        }
        let rights = mode(new.mode.unwrap_or(0o666));
        // O_EXCL also keeps the kernel from following a symbolic link of this name.
        let how = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let made = self.acting(caller, || {
            let made = openat(&directory.path, at.name, how, rights)?;
            if bytes > 0 {
                ftruncate(&made, bytes)?;
            }
            Ok(made)
        })?;
        self.begin(caller, &made, FileType::RegularFile, new)?;
        find_again(&made).or_status()
    }

    /// UNCHECKED with an existing file: only changes its size, and only if that is given.
    fn take_existing(
        &self,
        caller: &Caller,
        directory: &Node,
        at: Place<'_>,
        new: &Sattr3,
    ) -> Outcome<OwnedFd> {
        let (file, present) = self.find_regular(directory, at)?;
        if new.size.is_some() {
            let key = self.keys.of(&file, &present)?;
            let size = Sattr3 { size: new.size, ..Sattr3::default() };
            self.set_attributes(caller, &key, &size, None, &mut WccData::default())?;
        }
        Ok(file)
    }

    /// EXCLUSIVE with an existing file: succeeds if an earlier call with this verifier created it,
    /// and it is still marked and empty.
    fn find_marked(&self, directory: &Node, at: Place<'_>, marked: &Sattr3) -> Outcome<OwnedFd> {
        let (file, present) = self.find_regular(directory, at)?;
        let is_marked = (present.stx_atime.tv_sec, present.stx_mtime.tv_sec) == times(marked)
            && present.stx_size == 0;
        is_marked.then_some(file).ok_or(Nfsstat3::Nfs3errExist)
    }

    /// The existing file of a name. NFS3ERR_ACCES if another file system is mounted there, which is
    /// not exported.
    fn find_regular(&self, directory: &Node, at: Place<'_>) -> Outcome<(OwnedFd, Statx)> {
        let file = find(&directory.path, at.name).or_status()?;
        let present = stat(&file).or_status()?;
        match kind(&present) {
            _ if present.stx_mnt_id != self.mount_id => Err(Nfsstat3::Nfs3errAcces),
            FileType::RegularFile => Ok((file, present)),
            _ => Err(Nfsstat3::Nfs3errExist),
        }
    }
}

/// A file that stores the verifier in its times, where a retry finds it even after a restart, until
/// the client sets them. Only its owner may use it until then. The highest bit of each half is
/// lost, because not all file systems support times beyond 2038.
fn marked_by(verifier: [u8; 8]) -> Sattr3 {
    let [a, b, c, d, e, f, g, h] = verifier;
    let half = |bytes| Nfstime3 { seconds: u32::from_be_bytes(bytes) & 0x7fff_ffff, nseconds: 0 };
    Sattr3 {
        mode: Some(Mode::RUSR.union(Mode::WUSR).as_raw_mode()),
        atime: SetAtime::SetToClientTime(half([a, b, c, d])),
        mtime: SetMtime::SetToClientTime(half([e, f, g, h])),
        ..Sattr3::default()
    }
}

fn times(marked: &Sattr3) -> (i64, i64) {
    match (marked.atime, marked.mtime) {
        (SetAtime::SetToClientTime(atime), SetMtime::SetToClientTime(mtime)) => {
            (i64::from(atime.seconds), i64::from(mtime.seconds))
        }
        _ => (0, 0),
    }
}

fn special_kind(kind: Ftype3) -> Outcome<FileType> {
    match kind {
        Ftype3::Nf3chr => Ok(FileType::CharacterDevice),
        Ftype3::Nf3blk => Ok(FileType::BlockDevice),
        Ftype3::Nf3sock => Ok(FileType::Socket),
        Ftype3::Nf3fifo => Ok(FileType::Fifo),
        _ => Err(Nfsstat3::Nfs3errBadtype),
    }
}
