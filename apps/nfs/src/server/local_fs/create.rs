use super::attributes::{kind, mode, stat};
use super::files::{find, find_again, path_of};
use super::node::Node;
use super::setattr::set;
use super::tree::Tree;
use crate::protocol::{Createhow3, Nfsstat3, Sattr3, WccData};
use crate::server::caller::Caller;
use crate::server::errors::OrStatus;
use crate::server::file_system::{
    Change, FileKey, Found, NewFile, Outcome, Place, Setting, SpecialFile,
};
use crate::server::unix::{attributes_of_new, check_owner, marks, special_kind};
use rustix::fd::OwnedFd;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, Statx, ftruncate, linkat, makedev, mkdirat, mknodat,
    openat, symlinkat, unlinkat,
};
use rustix::io;

impl Tree {
    /// Creates a file; the file and its name are on stable storage when this returns.
    pub(super) fn make(&self, by: Change<'_>, at: Place<'_>, new: NewFile<'_>) -> Outcome<Found> {
        let Change { caller, wcc } = by;
        let directory = self.directory(at.directory)?;
        let name = NewName { tree: self, caller, directory: &directory, at };
        self.changing(&directory, wcc, |_| {
            let made = name.make(new)?;
            let found = self.found(at, made.file, true)?;
            if made.is_unsettled {
                self.settle_named(&*self.node(&found.key)?, &directory)?;
            }
            Ok(found)
        })
    }

    pub(super) fn link(&self, by: Change<'_>, file: &FileKey, at: Place<'_>) -> Outcome<()> {
        let Change { caller, wcc } = by;
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
}

struct Made {
    file: OwnedFd,
    /// False for a file that existed, and for which nothing is left to be synced.
    is_unsettled: bool,
}

#[derive(Clone, Copy)]
pub(super) struct NewName<'a> {
    pub(super) tree: &'a Tree,
    pub(super) caller: &'a Caller,
    pub(super) directory: &'a Node,
    pub(super) at: Place<'a>,
}

impl NewName<'_> {
    fn make(&self, new: NewFile<'_>) -> Outcome<Made> {
        let (directory, name) = (&self.directory.path, self.at.name);
        let file = match new {
            NewFile::Regular(how) => return self.create(how),
            NewFile::Directory(attributes) => {
                let rights = mode(attributes.mode.unwrap_or(0o700));
                let make = || mkdirat(directory, name, rights);
                self.make_unopened(FileType::Directory, attributes, make)
            }
            NewFile::Link { text, attributes } => {
                let make = || symlinkat(text, directory, name);
                self.make_unopened(FileType::Symlink, attributes, make)
            }
            NewFile::Special(SpecialFile { kind, device, attributes }) => {
                let (kind, rights) = (special_kind(*kind)?, rights(attributes));
                let device = makedev(device.specdata1, device.specdata2);
                let make = || mknodat(directory, name, kind, rights, device);
                self.make_unopened(kind, attributes, make)
            }
        };
        Ok(Made { file: file?, is_unsettled: true })
    }

    fn create(&self, how: &Createhow3) -> Outcome<Made> {
        let new = &attributes_of_new(how);
        let file = match (self.create_new(new), how) {
            (Err(Nfsstat3::Nfs3errExist), Createhow3::Unchecked(_)) => {
                return Ok(Made { file: self.take_existing(new)?, is_unsettled: false });
            }
            // The earlier call may not have synced it.
            (Err(Nfsstat3::Nfs3errExist), Createhow3::Exclusive(_)) => self.find_marked(new),
            (made, _) => made,
        };
        Ok(Made { file: file?, is_unsettled: true })
    }

    fn acting<T>(&self, work: impl FnOnce() -> io::Result<T>) -> Outcome<T> {
        self.tree.acting(self.caller, work)
    }

    /// Creates a file of a type that cannot be created open, and finds it.
    fn make_unopened(
        &self,
        expected: FileType,
        new: &Sattr3,
        make: impl FnOnce() -> io::Result<()>,
    ) -> Outcome<OwnedFd> {
        check_owner(new)?;
        self.acting(make)?;
        let made = self.find()?;
        // Another process may have replaced the file, which root must not give away: a new file has
        // this type and no other name.
        let present = stat(&made).or_status()?;
        let has_one_name = expected == FileType::Directory || present.stx_nlink == 1;
        if kind(&present) != expected || !has_one_name {
            return Err(Nfsstat3::Nfs3errStale);
        }
        let rest = Sattr3 { size: None, ..self.rest(new) };
        self.complete(&made, expected, &rest).inspect_err(|_| self.unmake(expected, &made))?;
        Ok(made)
    }

    fn find(&self) -> Outcome<OwnedFd> {
        find(&self.directory.path, self.at.name).or_status()
    }

    /// Only root sets the owner: other callers own the file already, as on Linux.
    fn rest(&self, new: &Sattr3) -> Sattr3 {
        let is_root = self.tree.identity.is_root(self.caller);
        let (uid, gid) = if is_root { (new.uid, new.gid) } else { Default::default() };
        // The kernel may have cleared mode bits, which root sets again after changing the owner.
        let mode = if uid.is_some() || gid.is_some() { new.mode } else { None };
        Sattr3 { mode, uid, gid, size: new.size.filter(|bytes| *bytes > 0), ..*new }
    }

    /// Sets the initial attributes of a new file, which is open for writing if they have a size.
    fn complete(&self, made: &OwnedFd, kind: FileType, rest: &Sattr3) -> Outcome<()> {
        self.acting(|| {
            rest.size.map_or(Ok(()), |bytes| ftruncate(made, bytes))?;
            set(made, kind, rest)
        })
    }

    /// Removes a new file that could not be completed, unless another one has its name by now.
    fn unmake(&self, kind: FileType, made: &OwnedFd) {
        let inode = |file: &OwnedFd| stat(file).map(|stat| (stat.stx_mnt_id, stat.stx_ino)).ok();
        let is_there = self.find().is_ok_and(|there| inode(&there) == inode(made));
        let is_directory = kind == FileType::Directory;
        let how = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        if is_there {
            let _ = self.acting(|| unlinkat(&self.directory.path, self.at.name, how));
        }
    }

    fn create_new(&self, new: &Sattr3) -> Outcome<OwnedFd> {
        check_owner(new)?;
        let rest = self.rest(new);
        let made = match rest == Sattr3::default() {
            true => Err(Nfsstat3::Nfs3errNotsupp),
            false => self.create_unnamed(new, &rest),
        };
        match made {
            Err(Nfsstat3::Nfs3errNotsupp) => self.create_named(new, &rest),
            made => made,
        }
    }

    /// Creates a file that gets its name when it is complete: neither a failure nor the end of the server leaves a part of
    /// it. NFS3ERR_NOTSUPP if the file system has no files without names.
    fn create_unnamed(&self, new: &Sattr3, rest: &Sattr3) -> Outcome<OwnedFd> {
        let (directory, name) = (&self.directory.path, self.at.name);
        // A caller without the right to write the directory is to learn that the file exists.
        if self.acting(|| find(directory, name)).is_ok() {
            return Err(Nfsstat3::Nfs3errExist);
        }
        let how = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let made = self.acting(|| openat(directory, c".", how, rights(new)))?;
        self.complete(&made, FileType::RegularFile, rest)?;
        let unnamed = path_of(&made);
        self.acting(|| linkat(CWD, unnamed, directory, name, AtFlags::SYMLINK_FOLLOW))?;
        find_again(&made).or_status()
    }

    /// Creates a file, and sets the rest of its attributes. If the server ends in between, an incomplete file stays.
    pub(super) fn create_named(&self, new: &Sattr3, rest: &Sattr3) -> Outcome<OwnedFd> {
        // O_EXCL also keeps the kernel from following a symbolic link of this name.
        let how = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let open = || openat(&self.directory.path, self.at.name, how, rights(new));
        let (made, kind) = (self.acting(open)?, FileType::RegularFile);
        self.complete(&made, kind, rest).inspect_err(|_| self.unmake(kind, &made))?;
        find_again(&made).or_status()
    }

    /// UNCHECKED with an existing file: only changes its size, and only if that is given.
    fn take_existing(&self, new: &Sattr3) -> Outcome<OwnedFd> {
        let (file, present) = self.find_regular()?;
        if new.size.is_some() {
            let key = self.tree.keys.of(&file, &present)?;
            let (size, mut wcc) =
                (Sattr3 { size: new.size, ..Sattr3::default() }, WccData::default());
            let by = Change { caller: self.caller, wcc: &mut wcc };
            self.tree.setattr(by, &key, Setting { new: &size, guard: None })?;
        }
        Ok(file)
    }

    /// Succeeds if an earlier call with this verifier created the file, still marked and empty.
    fn find_marked(&self, marked: &Sattr3) -> Outcome<OwnedFd> {
        let (file, present) = self.find_regular()?;
        let (atime, mtime) = marks(marked);
        let is_marked = present.stx_atime.tv_sec == i64::from(atime)
            && present.stx_mtime.tv_sec == i64::from(mtime)
            && present.stx_size == 0;
        is_marked.then_some(file).ok_or(Nfsstat3::Nfs3errExist)
    }

    /// NFS3ERR_ACCES if another file system is mounted there, which is not exported.
    fn find_regular(&self) -> Outcome<(OwnedFd, Statx)> {
        let file = self.find()?;
        let present = stat(&file).or_status()?;
        match kind(&present) {
            _ if present.stx_mnt_id != self.tree.mount_id => Err(Nfsstat3::Nfs3errAcces),
            FileType::RegularFile => Ok((file, present)),
            _ => Err(Nfsstat3::Nfs3errExist),
        }
    }
}

fn rights(new: &Sattr3) -> Mode {
    mode(new.mode.unwrap_or(0o600))
}
