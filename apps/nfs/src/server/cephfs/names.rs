use super::attributes::{Stat, device};
use super::node::Node;
use super::session::Session;
use crate::protocol::{Createhow3, Ftype3, Nfsstat3, Sattr3, WccData};
use crate::server::caller::Caller;
use crate::server::file_system::{
    Change, DirectoryEntry, FileKey, Found, ListFrom, Listed, NewFile, Outcome, Place, Renaming,
    Take,
};
use crate::server::nodes::Held;
use crate::server::rights::{ModeBits, Right, demand_device, of_new};
use crate::server::unix::{RIGHTS, attributes_of_new, check_owner, marks, special_kind};
use crate::sys::ceph::{self, CephStatx, Entry, Inode, text};
use std::ffi::{CStr, CString};

/// Depth up to which the root is searched above a directory.
const DEPTH_MAX: usize = 1024;
/// Where clients of Ceph find snapshots by default: a file of that name would be hidden from them.
const SNAPSHOTS: &CStr = c".snap";

type Made = (Inode, Stat);

impl Session {
    pub(super) fn access(&self, caller: &Caller, file: &FileKey, wanted: u32) -> Outcome<u32> {
        let node = self.node(file)?;
        Ok(self.live(&node.inode)?.access(caller, wanted))
    }

    pub(super) fn read_link(&self, link: &FileKey) -> Outcome<Vec<u8>> {
        let node = self.node(link)?;
        self.live(&node.inode)?;
        match node.kind {
            Ftype3::Nf3lnk => self.ok(node.inode.read_link()),
            _ => Err(Nfsstat3::Nfs3errInval),
        }
    }

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

    /// False for a directory that a client of Ceph has moved out of the exported tree.
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

    fn find_any(&self, directory: &Node, name: &[u8]) -> Outcome<Option<Made>> {
        match self.find(directory, name) {
            Ok(found) => Ok(Some(found)),
            Err(Nfsstat3::Nfs3errNoent) => Ok(None),
            Err(status) => Err(status),
        }
    }

    fn new_name(&self, name: &[u8]) -> Outcome<CString> {
        let name = self.ok(text(name))?;
        match name.as_c_str() == SNAPSHOTS {
            true => Err(Nfsstat3::Nfs3errAcces),
            false => Ok(name),
        }
    }

    /// Creates a file; the file and its name are on stable storage when this returns.
    pub(super) fn make(&self, by: Change<'_>, at: Place<'_>, new: NewFile<'_>) -> Outcome<Found> {
        let Change { caller, wcc } = by;
        let directory = self.directory(at.directory)?;
        let name = self.new_name(at.name)?;
        self.changing(&directory, wcc, |here| {
            here.demand(caller, Right::Execute)?;
            let place = NewName { session: self, caller, at, node: &directory, here, name: &name };
            let (inode, stat) = place.make(new)?;
            self.settle(&inode)?;
            self.settle(&directory.inode)?;
            Ok(self.found(&stat, inode))
        })
    }

    pub(super) fn link(&self, by: Change<'_>, file: &FileKey, at: Place<'_>) -> Outcome<()> {
        let Change { caller, wcc } = by;
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

    pub(super) fn unlink(&self, by: Change<'_>, at: Place<'_>, is_directory: bool) -> Outcome<()> {
        let Change { caller, wcc } = by;
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

    pub(super) fn rename(&self, by: Renaming<'_>, from: Place<'_>, to: Place<'_>) -> Outcome<()> {
        let Change { caller, wcc: wccs } = by;
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

    /// Cookies are positions by the hash of names: valid while names come and go, and on all gateways.
    pub(super) fn list(&self, caller: &Caller, from: &ListFrom, take: Take<'_>) -> Outcome<Listed> {
        let node = self.directory(&from.directory)?;
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

struct NewName<'a> {
    session: &'a Session,
    caller: &'a Caller,
    at: Place<'a>,
    node: &'a Node,
    here: &'a Stat,
    name: &'a CStr,
}

impl NewName<'_> {
    fn make(&self, new: NewFile<'_>) -> Outcome<Made> {
        let (directory, name) = (&self.node.inode, self.name);
        match new {
            NewFile::Regular(how) => self.create(how),
            NewFile::Directory(attributes) => self.make_new(attributes, 0o700, |mode, owner| {
                directory.make_directory(name, mode, owner)
            }),
            NewFile::Link { text: target, attributes } => {
                let target = self.session.ok(text(target))?;
                let make = |_, owner| directory.make_link(name, &target, owner);
                self.make_new(attributes, 0o777, make)
            }
            NewFile::Special(file) => {
                let kind = special_kind(file.kind)?.as_raw_mode();
                demand_device(self.caller, file.kind)?;
                let device = device(&file.device);
                self.make_new(&file.attributes, 0o600, |mode, owner| {
                    directory.make_special(name, kind | mode, device, owner)
                })
            }
        }
    }

    fn make_new(
        &self,
        new: &Sattr3,
        mode: u32,
        make: impl FnOnce(u32, (u32, u32)) -> ceph::Result<(Inode, CephStatx)>,
    ) -> Outcome<Made> {
        let Self { session, caller, here, .. } = *self;
        check_owner(new)?;
        if self.present()?.is_some() {
            return Err(Nfsstat3::Nfs3errExist);
        }
        here.demand_entry(caller)?;
        let mode = here.mode_of_new(caller, new.mode.unwrap_or(mode) & RIGHTS);
        let (inode, raw) = session.ok(make(mode, (caller.uid, caller.gid)))?;
        let rest = Sattr3 { mode: None, ..of_new(caller, new) };
        let stat = session.stat_of(&raw);
        if rest == Sattr3::default() {
            return Ok((inode, stat));
        }
        session.set(&inode, caller, &stat, &rest).inspect_err(|_| self.unmake(&stat))?;
        let stat = session.live(&inode)?;
        Ok((inode, stat))
    }

    fn present(&self) -> Outcome<Option<Made>> {
        self.session.find_any(self.node, self.name.to_bytes())
    }

    /// Removes a new file that could not be completed, unless another one has its name by now.
    fn unmake(&self, made: &Stat) {
        let is_it = |(_, stat): (Inode, Stat)| stat.vino == made.vino;
        if !self.present().is_ok_and(|there| there.is_some_and(is_it)) {
            return;
        }
        let _ = match made.is_directory() {
            true => self.node.inode.remove_directory(self.name),
            false => self.node.inode.unlink(self.name),
        };
    }

    fn create(&self, how: &Createhow3) -> Outcome<Made> {
        let new = &attributes_of_new(how);
        let make = |mode, owner| self.node.inode.create(self.name, mode, owner);
        match (self.make_new(new, 0o600, make), how) {
            (Err(Nfsstat3::Nfs3errExist), Createhow3::Unchecked(_)) => self.take_existing(new),
            (Err(Nfsstat3::Nfs3errExist), Createhow3::Exclusive(_)) => {
                let (inode, stat) = self.find_regular()?;
                let of = &stat.attributes;
                let is_marked = (of.atime.seconds, of.mtime.seconds) == marks(new) && of.size == 0;
                if is_marked { Ok((inode, stat)) } else { Err(Nfsstat3::Nfs3errExist) }
            }
            (made, _) => made,
        }
    }

    /// UNCHECKED with an existing file: only changes its size, and only if that is given.
    fn take_existing(&self, new: &Sattr3) -> Outcome<Made> {
        let (inode, stat) = self.find_regular()?;
        if new.size.is_none() {
            return Ok((inode, stat));
        }
        let size = Sattr3 { size: new.size, ..Sattr3::default() };
        stat.demand_change(self.caller, &size)?;
        self.session.set(&inode, self.caller, &stat, &size)?;
        let stat = self.session.live(&inode)?;
        Ok((inode, stat))
    }

    fn find_regular(&self) -> Outcome<Made> {
        let (inode, stat) = self.session.find(self.node, self.at.name)?;
        match stat.attributes.r#type {
            Ftype3::Nf3reg => Ok((inode, stat)),
            _ => Err(Nfsstat3::Nfs3errExist),
        }
    }
}

/// Verifier of the cookies of a directory: that of another one does not match.
fn verifier(directory: &Stat) -> [u8; 8] {
    let (seconds, nanoseconds) = directory.born;
    (directory.vino.ino ^ seconds.rotate_left(32) ^ nanoseconds).to_be_bytes()
}
