//! Names: LOOKUP, CREATE, MKDIR, SYMLINK, MKNOD, LINK, REMOVE, RMDIR, RENAME, READDIR.

use super::attributes::{RIGHTS, Stat, device};
use super::node::Node;
use super::rights::{Right, demand_device};
use super::session::Session;
use super::set::{FILE_BYTES_MAX, check_owner};
use crate::protocol::{
    Createhow3, Ftype3, Nfsstat3, Nfstime3, Sattr3, SetAtime, SetMtime, WccData,
};
use crate::server::caller::Caller;
use crate::server::file_system::{
    DirectoryEntry, FileKey, Found, ListFrom, Listed, NewFile, Outcome, Place, SpecialFile,
};
use crate::server::nodes::Held;
use crate::sys::ceph::{self, CephStatx, Entry, Inode, text};
use rustix::fs::FileType;
use std::ffi::{CStr, CString};

/// Depth up to which the root is searched above a directory.
const DEPTH_MAX: usize = 1024;
/// Where clients of Ceph find snapshots by default: a file of that name would be hidden from them.
const SNAPSHOTS: &CStr = c".snap";

/// A file that was found or made, and its attributes.
type Made = (Inode, Stat);

impl Session {
    pub(super) fn lookup(&self, caller: &Caller, at: Place<'_>) -> Outcome<Found> {
        let directory = self.directory(at.directory)?;
        let here = self.live(&directory.inode)?;
        here.demand(caller, Right::Execute)?;
        if at.name == b"." || at.name == b".." && directory.key() == self.root.key() {
            return Ok(Found { key: *directory.key(), attributes: here.attributes });
        }
        let (inode, stat) = self.find(&directory, at.name)?;
        Ok(self.found(&stat, inode))
    }

    fn find(&self, directory: &Node, name: &[u8]) -> Outcome<Made> {
        let name = self.ok(text(name))?;
        let (inode, raw) = self.ok(directory.inode.lookup(&name))?;
        let stat = self.stat_of(&raw);
        stat.demand_present()?;
        if name.as_c_str() == c".." && !self.is_below_root(&inode, &stat)? {
            return Err(Nfsstat3::Nfs3errStale);
        }
        Ok((inode, stat))
    }

    /// Returns whether the chain of parents leads to the root. It does not for a directory that a client of
    /// Ceph has moved out of the exported tree.
    fn is_below_root(&self, directory: &Inode, stat: &Stat) -> Outcome<bool> {
        let (mut above, mut here) = (None, stat.key());
        for _ in 0..DEPTH_MAX {
            if here == *self.root.key() {
                return Ok(true);
            }
            let (inode, raw) = self.ok(above.as_ref().unwrap_or(directory).lookup(c".."))?;
            let next = self.stat_of(&raw).key();
            // The parent of the root of Ceph, and of what libcephfs cannot find the parent of.
            if next == here {
                return Ok(false);
            }
            (above, here) = (Some(inode), next);
        }
        Ok(false)
    }

    /// The file of a name, if there is one.
    fn find_any(&self, directory: &Node, name: &[u8]) -> Outcome<Option<Made>> {
        match self.find(directory, name) {
            Ok(found) => Ok(Some(found)),
            Err(Nfsstat3::Nfs3errNoent) => Ok(None),
            Err(status) => Err(status),
        }
    }

    /// A name for a file that is made or moved.
    fn new_name(&self, name: &[u8]) -> Outcome<CString> {
        let name = self.ok(text(name))?;
        match name.as_c_str() == SNAPSHOTS {
            true => Err(Nfsstat3::Nfs3errAcces),
            false => Ok(name),
        }
    }

    /// Creates a file; the file and its name are on stable storage when this returns.
    pub(super) fn make(
        &self,
        caller: &Caller,
        at: Place<'_>,
        new: NewFile<'_>,
        wcc: &mut WccData,
    ) -> Outcome<Found> {
        let directory = self.directory(at.directory)?;
        let name = self.new_name(at.name)?;
        self.changing(&directory, wcc, |here| {
            here.demand(caller, Right::Execute)?;
            let parent = Parent { node: &directory, here, name: &name };
            let (inode, stat) = match new {
                NewFile::Regular(how) => self.create(caller, &parent, at, how)?,
                NewFile::Directory(attributes) => {
                    self.make_new(caller, &parent, attributes, 0o777, |mode, owner| {
                        directory.inode.make_directory(&name, mode, owner)
                    })?
                }
                NewFile::Link { text: target, attributes } => {
                    let target = self.ok(text(target))?;
                    self.make_new(caller, &parent, attributes, 0o777, |_, owner| {
                        directory.inode.make_link(&name, &target, owner)
                    })?
                }
                NewFile::Special(file) => self.make_special(caller, &parent, file)?,
            };
            self.settle(&inode)?;
            self.settle(&directory.inode)?;
            Ok(self.found(&stat, inode))
        })
    }

    fn make_special(
        &self,
        caller: &Caller,
        parent: &Parent<'_>,
        file: &SpecialFile,
    ) -> Outcome<Made> {
        let kind = special_kind(file.kind)?.as_raw_mode();
        demand_device(caller, file.kind)?;
        let device = device(&file.device);
        self.make_new(caller, parent, &file.attributes, 0o666, |mode, owner| {
            parent.node.inode.make_special(parent.name, kind | mode, device, owner)
        })
    }

    /// Creates a file, and sets its initial attributes other than mode and size. Only root sets the
    /// owner: other callers own the file already, as on Linux.
    fn make_new(
        &self,
        caller: &Caller,
        parent: &Parent<'_>,
        new: &Sattr3,
        mode: u32,
        make: impl FnOnce(u32, (u32, u32)) -> ceph::Result<(Inode, CephStatx)>,
    ) -> Outcome<Made> {
        check_owner(new)?;
        if self.find_any(parent.node, parent.name.to_bytes())?.is_some() {
            return Err(Nfsstat3::Nfs3errExist);
        }
        parent.here.demand_entry(caller)?;
        let mode = parent.here.mode_of_new(caller, new.mode.unwrap_or(mode) & RIGHTS);
        let (inode, raw) = self.ok(make(mode, (caller.uid, caller.gid)))?;
        let is_root = caller.uid == 0;
        let (uid, gid) = if is_root { (new.uid, new.gid) } else { (None, None) };
        let rest = Sattr3 { mode: None, uid, gid, ..*new };
        let stat = self.stat_of(&raw);
        let has_rest = uid.is_some()
            || gid.is_some()
            || rest.size.is_some()
            || rest.atime != SetAtime::DontChange
            || rest.mtime != SetMtime::DontChange;
        if !has_rest {
            return Ok((inode, stat));
        }
        self.set(&inode, caller, &stat, &rest)?;
        let stat = self.live(&inode)?;
        Ok((inode, stat))
    }

    fn create(
        &self,
        caller: &Caller,
        parent: &Parent<'_>,
        at: Place<'_>,
        how: &Createhow3,
    ) -> Outcome<Made> {
        let marked;
        let new = match how {
            Createhow3::Unchecked(new) | Createhow3::Guarded(new) => new,
            Createhow3::Exclusive(verifier) => {
                marked = marked_by(*verifier);
                &marked
            }
        };
        if new.size.is_some_and(|bytes| bytes >= FILE_BYTES_MAX) {
            return Err(Nfsstat3::Nfs3errFbig);
        }
        let made = self.make_new(caller, parent, new, 0o666, |mode, owner| {
            parent.node.inode.create(parent.name, mode, owner)
        });
        match (made, how) {
            (Err(Nfsstat3::Nfs3errExist), Createhow3::Unchecked(_)) => {
                self.take_existing(caller, parent, at, new)
            }
            (Err(Nfsstat3::Nfs3errExist), Createhow3::Exclusive(_)) => {
                let (inode, stat) = self.find_regular(parent, at)?;
                let of = &stat.attributes;
                let is_marked =
                    (of.atime.seconds, of.mtime.seconds) == seconds(new) && of.size == 0;
                if is_marked { Ok((inode, stat)) } else { Err(Nfsstat3::Nfs3errExist) }
            }
            (made, _) => made,
        }
    }

    /// UNCHECKED with an existing file: only changes its size, and only if that is given.
    fn take_existing(
        &self,
        caller: &Caller,
        parent: &Parent<'_>,
        at: Place<'_>,
        new: &Sattr3,
    ) -> Outcome<Made> {
        let (inode, stat) = self.find_regular(parent, at)?;
        if new.size.is_none() {
            return Ok((inode, stat));
        }
        let size = Sattr3 { size: new.size, ..Sattr3::default() };
        stat.demand_change(caller, &size)?;
        self.set(&inode, caller, &stat, &size)?;
        let stat = self.live(&inode)?;
        Ok((inode, stat))
    }

    fn find_regular(&self, parent: &Parent<'_>, at: Place<'_>) -> Outcome<Made> {
        let (inode, stat) = self.find(parent.node, at.name)?;
        match stat.attributes.r#type {
            Ftype3::Nf3reg => Ok((inode, stat)),
            _ => Err(Nfsstat3::Nfs3errExist),
        }
    }

    pub(super) fn link(
        &self,
        caller: &Caller,
        file: &FileKey,
        at: Place<'_>,
        wcc: &mut WccData,
    ) -> Outcome<()> {
        let node = self.node(file)?;
        if node.kind == Ftype3::Nf3dir {
            return Err(Nfsstat3::Nfs3errInval);
        }
        self.live(&node.inode)?;
        let directory = self.directory(at.directory)?;
        let name = self.new_name(at.name)?;
        self.changing(&directory, wcc, |here| {
            here.demand(caller, Right::Execute)?;
            if self.find_any(&directory, at.name)?.is_some() {
                return Err(Nfsstat3::Nfs3errExist);
            }
            here.demand_entry(caller)?;
            self.ok(node.inode.link(&directory.inode, &name))?;
            self.settle(&node.inode)?;
            self.settle(&directory.inode)
        })
    }

    pub(super) fn remove(
        &self,
        caller: &Caller,
        at: Place<'_>,
        is_directory: bool,
        wcc: &mut WccData,
    ) -> Outcome<()> {
        let directory = self.directory(at.directory)?;
        let name = self.ok(text(at.name))?;
        self.changing(&directory, wcc, |here| {
            here.demand(caller, Right::Execute)?;
            let (inode, stat) = self.find(&directory, at.name)?;
            here.demand_removal(caller, &stat)?;
            match (is_directory, stat.is_directory()) {
                (true, true) => self.ok(directory.inode.remove_directory(&name))?,
                (true, false) => return Err(Nfsstat3::Nfs3errNotdir),
                (false, true) => return Err(Nfsstat3::Nfs3errIsdir),
                (false, false) => self.ok(directory.inode.unlink(&name))?,
            }
            drop(inode);
            self.forget_if_gone(&stat);
            self.settle(&directory.inode)
        })
    }

    /// Releases a file whose last name was removed, so that its data are freed.
    fn forget_if_gone(&self, stat: &Stat) {
        if stat.is_directory() || stat.attributes.nlink <= 1 {
            self.forget(&stat.key());
        }
    }

    pub(super) fn rename(
        &self,
        caller: &Caller,
        from: Place<'_>,
        to: Place<'_>,
        wccs: &mut (WccData, WccData),
    ) -> Outcome<()> {
        let (source, target) = (self.directory(from.directory)?, self.directory(to.directory)?);
        if source.key() == target.key() {
            // A name goes, and a name comes.
            let renamed = self.changing_by(2, &source, &mut wccs.0, |here| {
                self.move_name(caller, (&source, here, from), (&source, here, to))
            });
            wccs.1 = WccData { before: wccs.0.before, after: wccs.0.after };
            return renamed;
        }
        let (of_source, of_target) = (&mut wccs.0, &mut wccs.1);
        self.changing(&source, of_source, |here| {
            self.changing(&target, of_target, |there| {
                self.move_name(caller, (&source, here, from), (&target, there, to))
            })
        })
    }

    fn move_name(
        &self,
        caller: &Caller,
        (source, here, from): (&Node, &Stat, Place<'_>),
        (target, there, to): (&Node, &Stat, Place<'_>),
    ) -> Outcome<()> {
        let (name, new_name) = (self.ok(text(from.name))?, self.new_name(to.name)?);
        here.demand(caller, Right::Execute)?;
        let (_moved, moved) = self.find(source, from.name)?;
        here.demand_removal(caller, &moved)?;
        there.demand(caller, Right::Execute)?;
        let victim = self.find_any(target, to.name)?.map(|(_, stat)| stat);
        match &victim {
            Some(victim) if victim.vino == moved.vino => return Ok(()),
            Some(victim) => there.demand_removal(caller, victim)?,
            None => there.demand_entry(caller)?,
        }
        // It gets another parent.
        if moved.is_directory() && source.key() != target.key() {
            moved.demand(caller, Right::Write)?;
        }
        if victim.as_ref().is_some_and(|victim| victim.is_directory() != moved.is_directory()) {
            // RFC 1813 section 3.3.14.
            return Err(Nfsstat3::Nfs3errExist);
        }
        self.ok(source.inode.rename(&name, &target.inode, &new_name))?;
        victim.iter().for_each(|victim| self.forget_if_gone(victim));
        self.settle(&target.inode)?;
        if source.key() == target.key() {
            return Ok(());
        }
        // The reply to the rename has the other directory only, and libcephfs would go on to answer the old
        // attributes of this one (seen with 16.2).
        let _ = source.inode.refresh();
        self.settle(&source.inode)
    }

    /// Cookies are positions by the hash of names, which stay valid while names come and go, and on
    /// all gateways.
    pub(super) fn list(
        &self,
        caller: &Caller,
        directory: &FileKey,
        from: &ListFrom,
        take: &mut dyn FnMut(&DirectoryEntry<'_>) -> bool,
    ) -> Outcome<Listed> {
        let node = self.directory(directory)?;
        let here = self.live(&node.inode)?;
        here.demand(caller, Right::Read)?;
        let verifier = verifier(&here);
        if from.cookie != 0 && from.verifier != verifier {
            return Err(Nfsstat3::Nfs3errBadCookie);
        }
        let with_files = from.with_files && here.demand(caller, Right::Execute).is_ok();
        let listed = node.inode.list(from.cookie, with_files, &mut |entry| {
            let is_above_root = node.key() == self.root.key() && entry.name == c"..";
            let fileid = if is_above_root { here.vino.ino } else { entry.fileid };
            let found = self.listed(caller, &node, &here, entry);
            let (name, cookie) = (entry.name.to_bytes(), entry.cookie);
            take(&DirectoryEntry { fileid, name, cookie, found: found.as_ref() })
        });
        Ok(Listed { verifier, is_end: self.ok(listed)? })
    }

    /// The file of an entry, if it was requested and still exists.
    fn listed(
        &self,
        caller: &Caller,
        node: &Node,
        here: &Stat,
        entry: &Entry<'_>,
    ) -> Option<Found> {
        let raw = entry.stat.as_ref()?;
        if entry.name == c"." {
            return Some(Found { key: here.key(), attributes: here.attributes });
        }
        if entry.name == c".." {
            return self.lookup(caller, Place { directory: node.key(), name: b".." }).ok();
        }
        let stat = self.stat_of(raw);
        Some(Found { key: stat.key(), attributes: stat.attributes })
    }
}

/// The place of a new file.
struct Parent<'a> {
    node: &'a Node,
    here: &'a Stat,
    name: &'a CStr,
}

/// A file that stores the verifier in its times, where a retry finds it even after a restart and on
/// another gateway, until the client sets them. Only its owner may use it until then. The highest bit of
/// each half is lost, as on a disk (`directory`).
fn marked_by(verifier: [u8; 8]) -> Sattr3 {
    let [a, b, c, d, e, f, g, h] = verifier;
    let half = |bytes| Nfstime3 { seconds: u32::from_be_bytes(bytes) & 0x7fff_ffff, nseconds: 0 };
    Sattr3 {
        mode: Some(0o600),
        atime: SetAtime::SetToClientTime(half([a, b, c, d])),
        mtime: SetMtime::SetToClientTime(half([e, f, g, h])),
        ..Sattr3::default()
    }
}

fn seconds(marked: &Sattr3) -> (u32, u32) {
    match (marked.atime, marked.mtime) {
        (SetAtime::SetToClientTime(atime), SetMtime::SetToClientTime(mtime)) => {
            (atime.seconds, mtime.seconds)
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

/// Verifier of the cookies of a directory: that of another one does not match.
fn verifier(directory: &Stat) -> [u8; 8] {
    let (seconds, nanoseconds) = directory.born;
    (directory.vino.ino ^ seconds.rotate_left(32) ^ nanoseconds).to_be_bytes()
}
