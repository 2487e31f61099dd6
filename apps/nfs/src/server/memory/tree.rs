//! The files of an in-memory file system, and operations on their names. Called by `mod`, under its
//! lock.

use super::MemoryOptions;
use super::content::Content;
use super::node::{
    COOKIE_OF_PARENT, Entries, Kind, Node, Number, Right, SET_GID, STICKY, entry_bytes,
};
use crate::protocol::{
    ACCESS3_DELETE, ACCESS3_EXECUTE, ACCESS3_EXTEND, ACCESS3_LOOKUP, ACCESS3_MODIFY, ACCESS3_READ,
    Createhow3, Fattr3, Nfsstat3, Nfstime3, PostOpAttr, PreOpAttr, Sattr3,
};
use crate::server::caller::{Caller, CallerGroups};
use crate::server::file_system::{Abilities, Outcome, Space};
use std::collections::HashMap;

/// Number of the exported directory.
pub(super) const ROOT: Number = 1;

const NAME_BYTES_MAX: u32 = 255;
const LINKS_MAX: u32 = 32_000;

/// Limits of the file system.
pub(super) const ABILITIES: Abilities = Abilities {
    file_bytes_max: i64::MAX as u64,
    name_bytes_max: NAME_BYTES_MAX,
    links_max: LINKS_MAX,
    time_step: Nfstime3 { seconds: 0, nseconds: 1 },
};

/// A name in a directory.
#[derive(Clone, Copy)]
pub(super) struct At<'a> {
    pub(super) directory: Number,
    pub(super) name: &'a [u8],
}

/// See the module.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: HashMap<Number, Node>,
    next: Number,
    /// Total size of everything stored.
    bytes: u64,
    options: MemoryOptions,
}

impl Tree {
    pub(super) fn new(options: MemoryOptions) -> Self {
        let owner = Caller { uid: options.uid, gid: options.gid, groups: CallerGroups::default() };
        let root = Node::new(Kind::Directory(Entries::new(ROOT)), options.mode, &owner);
        Self { nodes: HashMap::from([(ROOT, root)]), next: ROOT + 1, bytes: 0, options }
    }

    pub(super) fn node(&self, number: Number) -> Outcome<&Node> {
        self.nodes.get(&number).ok_or(Nfsstat3::Nfs3errStale)
    }

    pub(super) fn node_mut(&mut self, number: Number) -> Outcome<&mut Node> {
        self.nodes.get_mut(&number).ok_or(Nfsstat3::Nfs3errStale)
    }

    pub(super) fn attributes(&self, number: Number) -> Outcome<Fattr3> {
        Ok(self.node(number)?.attributes(self.options.fsid, number))
    }

    pub(super) fn pre_op(&self, number: Number) -> PreOpAttr {
        self.node(number).ok().map(Node::wcc)
    }

    pub(super) fn post_op(&self, number: Number) -> PostOpAttr {
        self.attributes(number).ok()
    }

    pub(super) fn set_attributes(
        &mut self,
        caller: &Caller,
        number: Number,
        new: &Sattr3,
        guard: Option<Nfstime3>,
    ) -> Outcome<()> {
        let node = self.node_mut(number)?;
        if guard.is_some_and(|ctime| ctime != node.ctime) {
            return Err(Nfsstat3::Nfs3errNotSync);
        }
        node.check_change(caller, new)?;
        let before = if node.is_directory() { 0 } else { node.stored_bytes() };
        node.change(caller, new);
        let after = if node.is_directory() { 0 } else { node.stored_bytes() };
        self.bytes -= before.saturating_sub(after);
        Ok(())
    }

    /// The rights requested by ACCESS that the caller has; bits that are meaningless for this file
    /// type are not set.
    pub(super) fn access(&self, caller: &Caller, number: Number, wanted: u32) -> Outcome<u32> {
        let node = self.node(number)?;
        let (of_read, of_write, of_execute) = match node.is_directory() {
            true => {
                (ACCESS3_READ, ACCESS3_MODIFY | ACCESS3_EXTEND | ACCESS3_DELETE, ACCESS3_LOOKUP)
            }
            false => (ACCESS3_READ, ACCESS3_MODIFY | ACCESS3_EXTEND, ACCESS3_EXECUTE),
        };
        let given = |right, bits| if node.grants(caller, right) { bits } else { 0 };
        let all = given(Right::Read, of_read)
            | given(Right::Write, of_write)
            | given(Right::Execute, of_execute);
        Ok(all & wanted)
    }

    pub(super) fn lookup(&self, caller: &Caller, at: At<'_>) -> Outcome<Number> {
        let directory = self.node(at.directory)?;
        let entries = directory.entries()?;
        directory.demand(caller, Right::Execute)?;
        match at.name {
            b"." => Ok(at.directory),
            b".." => Ok(entries.parent),
            name => entries.find(name).ok_or(Nfsstat3::Nfs3errNoent),
        }
    }

    /// CREATE of a regular file.
    pub(super) fn create(
        &mut self,
        caller: &Caller,
        at: At<'_>,
        how: &Createhow3,
    ) -> Outcome<Number> {
        match self.lookup(caller, at) {
            Ok(number) => self.take_existing(caller, number, how),
            Err(Nfsstat3::Nfs3errNoent) => {
                let (new, verifier) = match how {
                    Createhow3::Unchecked(new) | Createhow3::Guarded(new) => (*new, None),
                    Createhow3::Exclusive(verifier) => (Sattr3::default(), Some(*verifier)),
                };
                let content = Content::default();
                self.make(caller, at, Kind::File { content, verifier }, 0o600, &new)
            }
            Err(status) => Err(status),
        }
    }

    /// Only applies the size to an existing file (like the Linux kernel).
    fn take_existing(
        &mut self,
        caller: &Caller,
        number: Number,
        how: &Createhow3,
    ) -> Outcome<Number> {
        let Kind::File { verifier: made_by, .. } = &self.node(number)?.kind else {
            return Err(Nfsstat3::Nfs3errExist);
        };
        match how {
            Createhow3::Unchecked(Sattr3 { size: size @ Some(_), .. }) => {
                let new = Sattr3 { size: *size, ..Sattr3::default() };
                self.set_attributes(caller, number, &new, None).map(|()| number)
            }
            Createhow3::Unchecked(_) => Ok(number),
            Createhow3::Exclusive(verifier) if *made_by == Some(*verifier) => Ok(number),
            _ => Err(Nfsstat3::Nfs3errExist),
        }
    }

    /// Creates a file of any type.
    pub(super) fn make(
        &mut self,
        caller: &Caller,
        at: At<'_>,
        kind: Kind,
        mode: u32,
        new: &Sattr3,
    ) -> Outcome<Number> {
        let directory = self.node(at.directory)?;
        check_new(directory, caller, at.name)?;
        let mut node = Node::new(kind, mode, caller);
        if directory.mode & SET_GID != 0 {
            node.gid = directory.gid;
        }
        let inherited = directory.mode & SET_GID;
        node.check_change(caller, new)?;
        node.change(caller, new);
        if node.is_directory() {
            node.mode |= inherited;
        }
        if self.nodes.len() as u64 >= self.options.files_max {
            return Err(Nfsstat3::Nfs3errNospc);
        }
        self.take_room(node.stored_bytes() + entry_bytes(at.name))?;
        self.insert(at, node)
    }

    fn insert(&mut self, at: At<'_>, node: Node) -> Outcome<Number> {
        let (number, is_directory) = (self.next, node.is_directory());
        let directory = self.node_mut(at.directory)?;
        directory.entries_mut()?.insert(at.name, number);
        directory.links += u32::from(is_directory);
        directory.touch();
        self.nodes.insert(number, node);
        self.next += 1;
        Ok(number)
    }

    fn check_room(&self, bytes: u64) -> Outcome<()> {
        match self.options.bytes_max.saturating_sub(self.bytes) < bytes {
            true => Err(Nfsstat3::Nfs3errNospc),
            false => Ok(()),
        }
    }

    fn take_room(&mut self, bytes: u64) -> Outcome<()> {
        self.check_room(bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Checks that the caller may remove this name; returns the number of its file.
    fn check_removal(&self, caller: &Caller, at: At<'_>) -> Outcome<Number> {
        let number = self.lookup(caller, at)?;
        let (directory, node) = (self.node(at.directory)?, self.node(number)?);
        directory.demand(caller, Right::Write)?;
        let owns = [0, directory.uid, node.uid].contains(&caller.uid);
        if directory.mode & STICKY != 0 && !owns {
            return Err(Nfsstat3::Nfs3errPerm);
        }
        Ok(number)
    }

    pub(super) fn remove(&mut self, caller: &Caller, at: At<'_>) -> Outcome<()> {
        let number = self.check_removal(caller, at)?;
        if self.node(number)?.is_directory() {
            return Err(Nfsstat3::Nfs3errIsdir);
        }
        self.take_name(at)
    }

    pub(super) fn remove_directory(&mut self, caller: &Caller, at: At<'_>) -> Outcome<()> {
        let number = self.check_removal(caller, at)?;
        if !self.node(number)?.entries()?.is_empty() {
            return Err(Nfsstat3::Nfs3errNotempty);
        }
        self.take_name(at)
    }

    /// Removes a name, and its file if it was the last one.
    fn take_name(&mut self, at: At<'_>) -> Outcome<()> {
        let directory = self.node_mut(at.directory)?;
        let entries = directory.entries_mut()?;
        let number = entries.find(at.name).ok_or(Nfsstat3::Nfs3errNoent)?;
        entries.remove(at.name);
        directory.touch();
        self.bytes -= entry_bytes(at.name);
        let node = self.node_mut(number)?;
        node.links -= 1;
        node.mark();
        if node.is_directory() {
            self.node_mut(at.directory)?.links -= 1;
            self.nodes.remove(&number);
        } else if node.links == 0 {
            self.bytes -= node.stored_bytes();
            self.nodes.remove(&number);
        }
        Ok(())
    }

    pub(super) fn rename(&mut self, caller: &Caller, from: At<'_>, to: At<'_>) -> Outcome<()> {
        let moved = self.check_removal(caller, from)?;
        let replaced = match self.lookup(caller, to) {
            Err(Nfsstat3::Nfs3errNoent) => {
                check_new(self.node(to.directory)?, caller, to.name)?;
                self.check_room(entry_bytes(to.name).saturating_sub(entry_bytes(from.name)))?;
                None
            }
            Ok(replaced) if replaced == moved => return Ok(()),
            _ => Some(self.check_removal(caller, to)?),
        };
        self.check_move(caller, moved, from.directory, to.directory)?;
        if let Some(replaced) = replaced {
            self.check_replacement(moved, replaced)?;
            self.take_name(to)?;
        }
        self.move_name(moved, from, to)
    }

    /// A directory must not be moved below itself, and needs write permission to get another
    /// parent.
    fn check_move(&self, caller: &Caller, moved: Number, from: Number, to: Number) -> Outcome<()> {
        let node = self.node(moved)?;
        if !node.is_directory() || from == to {
            return Ok(());
        }
        let mut above = to;
        while above != ROOT {
            if above == moved {
                return Err(Nfsstat3::Nfs3errInval);
            }
            above = self.node(above)?.entries()?.parent;
        }
        node.demand(caller, Right::Write)
    }

    fn check_replacement(&self, moved: Number, replaced: Number) -> Outcome<()> {
        let (moved, replaced) = (self.node(moved)?, self.node(replaced)?);
        match (moved.is_directory(), replaced.entries()) {
            (false, Ok(_)) => Err(Nfsstat3::Nfs3errIsdir),
            (true, Err(not_a_directory)) => Err(not_a_directory),
            (true, Ok(entries)) if !entries.is_empty() => Err(Nfsstat3::Nfs3errNotempty),
            _ => Ok(()),
        }
    }

    fn move_name(&mut self, moved: Number, from: At<'_>, to: At<'_>) -> Outcome<()> {
        let node = self.node_mut(moved)?;
        node.mark();
        let links = u32::from(node.is_directory());
        if let Ok(entries) = node.entries_mut() {
            entries.parent = to.directory;
        }
        let source = self.node_mut(from.directory)?;
        source.entries_mut()?.remove(from.name);
        source.links -= links;
        source.touch();
        let target = self.node_mut(to.directory)?;
        target.entries_mut()?.insert(to.name, moved);
        target.links += links;
        target.touch();
        self.bytes = self.bytes - entry_bytes(from.name) + entry_bytes(to.name);
        Ok(())
    }

    pub(super) fn link(&mut self, caller: &Caller, file: Number, at: At<'_>) -> Outcome<()> {
        let node = self.node(file)?;
        if node.is_directory() {
            return Err(Nfsstat3::Nfs3errInval);
        }
        check_new(self.node(at.directory)?, caller, at.name)?;
        if node.links >= LINKS_MAX {
            return Err(Nfsstat3::Nfs3errMlink);
        }
        self.take_room(entry_bytes(at.name))?;
        let directory = self.node_mut(at.directory)?;
        directory.entries_mut()?.insert(at.name, file);
        directory.touch();
        let node = self.node_mut(file)?;
        node.links += 1;
        node.mark();
        Ok(())
    }

    /// The entries of a directory after a cookie: cookie, name and number of each.
    pub(super) fn list(
        &self,
        caller: &Caller,
        number: Number,
        cookie: u64,
    ) -> Outcome<impl Iterator<Item = (u64, &[u8], Number)>> {
        let directory = self.node(number)?;
        let entries = directory.entries()?;
        directory.demand(caller, Right::Read)?;
        if !entries.knows(cookie) {
            return Err(Nfsstat3::Nfs3errBadCookie);
        }
        let first = [(1, &b"."[..], number), (COOKIE_OF_PARENT, &b".."[..], entries.parent)];
        let first = first.into_iter().filter(move |(of, ..)| *of > cookie);
        Ok(first.chain(entries.behind(cookie.max(COOKIE_OF_PARENT))))
    }

    pub(super) fn read(
        &self,
        caller: &Caller,
        number: Number,
        offset: u64,
        into: &mut [u8],
    ) -> Outcome<(usize, bool)> {
        let node = self.node(number)?;
        let content = node.content()?;
        node.demand_data(caller, Right::Read)?;
        let count = content.read(offset, into);
        Ok((count, offset + count as u64 >= content.size()))
    }

    pub(super) fn write(
        &mut self,
        caller: &Caller,
        number: Number,
        offset: u64,
        data: &[u8],
    ) -> Outcome<()> {
        let node = self.node(number)?;
        let growth = node.content()?.growth_bytes(offset, data.len());
        node.demand_data(caller, Right::Write)?;
        self.take_room(growth)?;
        let node = self.node_mut(number)?;
        node.content_mut()?.write(offset, data);
        if !data.is_empty() {
            node.drop_privileges(caller);
            node.touch();
        }
        Ok(())
    }

    pub(super) fn space(&self) -> Space {
        let MemoryOptions { bytes_max, files_max, .. } = self.options;
        let bytes_free = bytes_max.saturating_sub(self.bytes);
        let files_free = files_max.saturating_sub(self.nodes.len() as u64);
        Space {
            bytes: bytes_max,
            bytes_free,
            bytes_available: bytes_free,
            files: files_max,
            files_free,
            files_available: files_free,
        }
    }
}

/// Checks that the caller may create a name in a directory.
fn check_new(directory: &Node, caller: &Caller, name: &[u8]) -> Outcome<()> {
    let entries = directory.entries()?;
    directory.demand(caller, Right::Execute)?;
    if entries.find(name).is_some() {
        return Err(Nfsstat3::Nfs3errExist);
    }
    directory.demand(caller, Right::Write)
}
