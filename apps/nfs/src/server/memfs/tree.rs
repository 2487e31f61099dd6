//! The files of an in-memory file system, and operations on their names. Called by `mod`, under its
//! lock.

use super::MemoryOptions;
use super::content::Content;
use super::node::{COOKIE_OF_PARENT, Entries, Kind, Node, Number, entry_bytes};
use crate::protocol::{
    Createhow3, Fattr3, Fsstat3resok, Nfsstat3, PostOpAttr, PreOpAttr, Sattr3, WccData,
};
use crate::server::caller::{Caller, CallerGroups};
use crate::server::file_system::{
    Abilities, Change, DirectoryEntry, FileKey, Found, ListFrom, Listed, NewFile, Outcome, Place,
    Renaming, Setting, Take,
};
use crate::server::rights::{ModeBits, Right, SET_GID, demand_device, of_new};
use crate::server::unix::{attributes_of_new, marks};
use std::collections::HashMap;

const ROOT: Number = 1;

const NAME_BYTES_MAX: u32 = 255;
const LINKS_MAX: u32 = 32_000;
/// RENAME looks at all directories above one that gets a directory from elsewhere, under the lock.
const DEPTH_MAX: usize = 1024;

pub(super) const ABILITIES: Abilities =
    Abilities { name_bytes_max: NAME_BYTES_MAX, links_max: LINKS_MAX };

#[derive(Clone, Copy)]
struct At<'a> {
    directory: Number,
    name: &'a [u8],
}

#[derive(Debug)]
pub(super) struct Tree {
    nodes: HashMap<Number, Node>,
    next: Number,
    bytes: u64,
    options: MemoryOptions,
    /// Part of every key: another process has other files.
    instance: [u8; 8],
}

impl Tree {
    pub(super) fn new(options: MemoryOptions, instance: u64) -> Self {
        let owner = Caller { uid: options.uid, gid: options.gid, groups: CallerGroups::default() };
        let root = Node::new(Kind::Directory(Entries::new(ROOT)), options.mode, &owner);
        let (nodes, instance) = (HashMap::from([(ROOT, root)]), instance.to_ne_bytes());
        Self { nodes, next: ROOT + 1, bytes: 0, options, instance }
    }

    pub(super) fn root(&self) -> FileKey {
        self.key(ROOT)
    }

    fn key(&self, number: Number) -> FileKey {
        let mut bytes = [0_u8; 16];
        bytes[..8].copy_from_slice(&self.instance);
        bytes[8..].copy_from_slice(&number.to_be_bytes());
        FileKey::of(&bytes)
    }

    fn number(&self, key: &FileKey) -> Outcome<Number> {
        let number =
            key.as_bytes().strip_prefix(&self.instance).and_then(|rest| rest.try_into().ok());
        number.map(u64::from_be_bytes).ok_or(Nfsstat3::Nfs3errStale)
    }

    fn found(&self, number: Number) -> Outcome<Found> {
        let attributes = self.node(number)?.attributes(self.options.fsid, number);
        Ok(Found { key: self.key(number), attributes })
    }

    fn node(&self, number: Number) -> Outcome<&Node> {
        self.nodes.get(&number).ok_or(Nfsstat3::Nfs3errStale)
    }

    fn node_mut(&mut self, number: Number) -> Outcome<&mut Node> {
        self.nodes.get_mut(&number).ok_or(Nfsstat3::Nfs3errStale)
    }

    pub(super) fn attributes(&self, file: &FileKey) -> Outcome<Fattr3> {
        Ok(self.found(self.number(file)?)?.attributes)
    }

    fn pre_op(&self, number: Number) -> PreOpAttr {
        self.node(number).ok().map(Node::wcc)
    }

    fn post_op(&self, number: Number) -> PostOpAttr {
        self.found(number).ok().map(|found| found.attributes)
    }

    fn changing<T>(
        &mut self,
        file: &FileKey,
        wcc: &mut WccData,
        change: impl FnOnce(&mut Self, Number) -> Outcome<T>,
    ) -> Outcome<T> {
        let number = self.number(file)?;
        wcc.before = self.pre_op(number);
        let outcome = change(self, number);
        wcc.after = self.post_op(number);
        outcome
    }

    pub(super) fn setattr(
        &mut self,
        by: Change<'_>,
        file: &FileKey,
        to: Setting<'_>,
    ) -> Outcome<()> {
        let (Change { caller, wcc }, Setting { new, guard }) = (by, to);
        self.changing(file, wcc, |tree, number| {
            let node = tree.node(number)?;
            if guard.is_some_and(|ctime| ctime != node.ctime) {
                return Err(Nfsstat3::Nfs3errNotSync);
            }
            tree.set(caller, number, new)
        })
    }

    fn set(&mut self, caller: &Caller, number: Number, new: &Sattr3) -> Outcome<()> {
        let node = self.node_mut(number)?;
        node.check_change(caller, new)?;
        let before = if node.is_directory() { 0 } else { node.stored_bytes() };
        node.change(caller, new);
        let after = if node.is_directory() { 0 } else { node.stored_bytes() };
        self.bytes -= before.saturating_sub(after);
        Ok(())
    }

    /// Bits that are meaningless for this file type are not set.
    pub(super) fn access(&self, caller: &Caller, file: &FileKey, wanted: u32) -> Outcome<u32> {
        Ok(self.node(self.number(file)?)?.access(caller, wanted))
    }

    pub(super) fn lookup(&self, caller: &Caller, at: Place<'_>) -> Outcome<Found> {
        let directory = self.number(at.directory)?;
        self.found(self.find(caller, At { directory, name: at.name })?)
    }

    fn find(&self, caller: &Caller, at: At<'_>) -> Outcome<Number> {
        let directory = self.node(at.directory)?;
        let entries = directory.entries()?;
        directory.demand(caller, Right::Execute)?;
        match at.name {
            b"." => Ok(at.directory),
            b".." => Ok(entries.parent),
            name => entries.find(name).ok_or(Nfsstat3::Nfs3errNoent),
        }
    }

    pub(super) fn read_link(&self, link: &FileKey) -> Outcome<Vec<u8>> {
        match &self.node(self.number(link)?)?.kind {
            Kind::Link(text) => Ok(text.clone()),
            _ => Err(Nfsstat3::Nfs3errInval),
        }
    }

    pub(super) fn make(
        &mut self,
        by: Change<'_>,
        at: Place<'_>,
        new: NewFile<'_>,
    ) -> Outcome<Found> {
        let Change { caller, wcc } = by;
        self.changing(at.directory, wcc, |tree, directory| {
            let at = At { directory, name: at.name };
            let number = match new {
                NewFile::Regular(how) => tree.create(caller, at, how)?,
                NewFile::Directory(attributes) => {
                    let kind = Kind::Directory(Entries::new(directory));
                    tree.make_node(caller, at, kind, 0o700, attributes)?
                }
                NewFile::Link { text, attributes } => {
                    tree.make_node(caller, at, Kind::Link(text.to_vec()), 0o777, attributes)?
                }
                NewFile::Special(file) => {
                    demand_device(caller, file.kind)?;
                    let kind = Kind::Special(file.kind, file.device);
                    tree.make_node(caller, at, kind, 0o600, &file.attributes)?
                }
            };
            tree.found(number)
        })
    }

    fn create(&mut self, caller: &Caller, at: At<'_>, how: &Createhow3) -> Outcome<Number> {
        match self.find(caller, at) {
            Ok(number) => self.take_existing(caller, number, how),
            Err(Nfsstat3::Nfs3errNoent) => {
                let kind = Kind::File(Content::default());
                self.make_node(caller, at, kind, 0o600, &attributes_of_new(how))
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
        let node = self.node(number)?;
        let content = node.content().map_err(|_| Nfsstat3::Nfs3errExist)?;
        let is_marked = (node.atime.seconds, node.mtime.seconds) == marks(&attributes_of_new(how));
        match how {
            Createhow3::Unchecked(Sattr3 { size: size @ Some(_), .. }) => {
                let new = Sattr3 { size: *size, ..Sattr3::default() };
                self.set(caller, number, &new).map(|()| number)
            }
            Createhow3::Unchecked(_) => Ok(number),
            Createhow3::Exclusive(_) if is_marked && content.size() == 0 => Ok(number),
            _ => Err(Nfsstat3::Nfs3errExist),
        }
    }

    fn make_node(
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
        let (inherited, new) = (directory.mode & SET_GID, &of_new(caller, new));
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

    fn check_removal(&self, caller: &Caller, at: At<'_>) -> Outcome<Number> {
        let number = self.find(caller, at)?;
        let (directory, node) = (self.node(at.directory)?, self.node(number)?);
        directory.demand_removal(caller, node)?;
        Ok(number)
    }

    pub(super) fn unlink(
        &mut self,
        by: Change<'_>,
        at: Place<'_>,
        is_directory: bool,
    ) -> Outcome<()> {
        let Change { caller, wcc } = by;
        self.changing(at.directory, wcc, |tree, directory| {
            let at = At { directory, name: at.name };
            tree.check_type(is_directory, tree.check_removal(caller, at)?)?;
            tree.take_name(at)
        })
    }

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

    pub(super) fn rename(
        &mut self,
        by: Renaming<'_>,
        from: Place<'_>,
        to: Place<'_>,
    ) -> Outcome<()> {
        let Change { caller, wcc: (of_source, of_target) } = by;
        let to = At { directory: self.number(to.directory)?, name: to.name };
        self.changing(from.directory, of_source, |tree, directory| {
            of_target.before = tree.pre_op(to.directory);
            let outcome = tree.replace(caller, At { directory, name: from.name }, to);
            of_target.after = tree.post_op(to.directory);
            outcome
        })
    }

    fn replace(&mut self, caller: &Caller, from: At<'_>, to: At<'_>) -> Outcome<()> {
        let moved = self.check_removal(caller, from)?;
        let replaced = match self.find(caller, to) {
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
            // RFC 1813 section 3.3.14 has one error for both kinds.
            self.check_type(self.node(moved)?.is_directory(), replaced).map_err(
                |error| match error {
                    Nfsstat3::Nfs3errIsdir | Nfsstat3::Nfs3errNotdir => Nfsstat3::Nfs3errExist,
                    other => other,
                },
            )?;
            self.take_name(to)?;
        }
        self.move_name(moved, from, to)
    }

    /// A directory must not be moved below itself, and needs write permission to get another
    /// parent. NFS3ERR_NAMETOOLONG if the new one is too deep to tell ([`DEPTH_MAX`]).
    fn check_move(&self, caller: &Caller, moved: Number, from: Number, to: Number) -> Outcome<()> {
        let node = self.node(moved)?;
        if !node.is_directory() || from == to {
            return Ok(());
        }
        let mut above = to;
        for _ in 0..=DEPTH_MAX {
            match above {
                ROOT => return node.demand(caller, Right::Write),
                above if above == moved => return Err(Nfsstat3::Nfs3errInval),
                _ => above = self.node(above)?.entries()?.parent,
            }
        }
        Err(Nfsstat3::Nfs3errNametoolong)
    }

    /// A file that goes must be an empty directory where a directory was named, or moves to its name, and else none.
    fn check_type(&self, is_directory: bool, gone: Number) -> Outcome<()> {
        match (is_directory, self.node(gone)?.entries()) {
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

    pub(super) fn link(&mut self, by: Change<'_>, file: &FileKey, at: Place<'_>) -> Outcome<()> {
        let Change { caller, wcc } = by;
        let file = self.number(file)?;
        self.changing(at.directory, wcc, |tree, directory| {
            let node = tree.node(file)?;
            if node.is_directory() {
                return Err(Nfsstat3::Nfs3errInval);
            }
            check_new(tree.node(directory)?, caller, at.name)?;
            if node.links >= LINKS_MAX {
                return Err(Nfsstat3::Nfs3errMlink);
            }
            tree.take_room(entry_bytes(at.name))?;
            let directory = tree.node_mut(directory)?;
            directory.entries_mut()?.insert(at.name, file);
            directory.touch();
            let node = tree.node_mut(file)?;
            node.links += 1;
            node.mark();
            Ok(())
        })
    }

    pub(super) fn list(&self, caller: &Caller, from: &ListFrom, take: Take<'_>) -> Outcome<Listed> {
        let (number, verifier) = (self.number(&from.directory)?, self.instance);
        let directory = self.node(number)?;
        let entries = directory.entries()?;
        directory.demand(caller, Right::Read)?;
        let has_cookie = from.cookie == 0 || from.verifier == verifier;
        if !has_cookie || !entries.knows(from.cookie) {
            return Err(Nfsstat3::Nfs3errBadCookie);
        }
        let with_files = from.with_files && directory.grants(caller, Right::Execute);
        let first = [(1, &b"."[..], number), (COOKIE_OF_PARENT, &b".."[..], entries.parent)];
        let first = first.into_iter().filter(|(cookie, ..)| *cookie > from.cookie);
        let is_taken = |(cookie, name, fileid)| {
            let found = with_files.then(|| self.found(fileid).ok()).flatten();
            take(&DirectoryEntry { fileid, name, cookie, found: found.as_ref() })
        };
        let is_end = first.chain(entries.behind(from.cookie.max(COOKIE_OF_PARENT))).all(is_taken);
        Ok(Listed { verifier, is_end })
    }

    pub(super) fn read(
        &self,
        caller: &Caller,
        file: &FileKey,
        offset: u64,
        into: &mut [u8],
    ) -> Outcome<(usize, bool)> {
        let node = self.node(self.number(file)?)?;
        let content = node.content()?;
        node.demand_data(caller, Right::Read)?;
        let count = content.read(offset, into);
        Ok((count, offset + count as u64 >= content.size()))
    }

    pub(super) fn write(
        &mut self,
        caller: &Caller,
        file: &FileKey,
        offset: u64,
        data: &[u8],
        wcc: &mut WccData,
    ) -> Outcome<()> {
        self.changing(file, wcc, |tree, number| {
            let node = tree.node(number)?;
            let growth = node.content()?.growth_bytes(offset, data.len());
            node.demand_data(caller, Right::Write)?;
            tree.take_room(growth)?;
            let node = tree.node_mut(number)?;
            node.content_mut()?.write(offset, data);
            if !data.is_empty() {
                node.mode = node.mode_written(caller);
                node.touch();
            }
            Ok(())
        })
    }

    pub(super) fn commit(&mut self, file: &FileKey, wcc: &mut WccData) -> Outcome<()> {
        self.changing(file, wcc, |tree, number| tree.node(number)?.content().map(drop))
    }

    pub(super) fn space(&self) -> Outcome<Fsstat3resok> {
        let MemoryOptions { bytes_max, files_max, .. } = self.options;
        let bytes_free = bytes_max.saturating_sub(self.bytes);
        let files_free = files_max.saturating_sub(self.nodes.len() as u64);
        Ok(Fsstat3resok {
            tbytes: bytes_max,
            fbytes: bytes_free,
            abytes: bytes_free,
            tfiles: files_max,
            ffiles: files_free,
            afiles: files_free,
            ..Fsstat3resok::default()
        })
    }
}

fn check_new(directory: &Node, caller: &Caller, name: &[u8]) -> Outcome<()> {
    let entries = directory.entries()?;
    directory.demand(caller, Right::Execute)?;
    if entries.find(name).is_some() {
        return Err(Nfsstat3::Nfs3errExist);
    }
    directory.demand_entry(caller)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOTS: Caller = Caller { uid: 0, gid: 0, groups: CallerGroups::Long(&[]) };

    fn make_directory(tree: &mut Tree, directory: Number, name: &[u8]) -> Number {
        let kind = Kind::Directory(Entries::new(directory));
        tree.make_node(&ROOTS, At { directory, name }, kind, 0o755, &Sattr3::default()).unwrap()
    }

    #[test]
    fn a_directory_goes_no_deeper_than_a_rename_looks() {
        let mut tree = Tree::new(MemoryOptions::default(), 1);
        let mut directories = vec![ROOT];
        for _ in 0..=DEPTH_MAX {
            let below = make_directory(&mut tree, *directories.last().unwrap(), b"below");
            directories.push(below);
        }
        let moved = make_directory(&mut tree, ROOT, b"moved");
        let at = |directory| At { directory, name: b"moved" };
        let renamed = tree.replace(&ROOTS, at(ROOT), at(directories[DEPTH_MAX + 1]));
        assert_eq!(renamed, Err(Nfsstat3::Nfs3errNametoolong));
        assert_eq!(tree.find(&ROOTS, at(ROOT)), Ok(moved));
        tree.replace(&ROOTS, at(ROOT), at(directories[DEPTH_MAX])).unwrap();
        let below_itself = tree.replace(
            &ROOTS,
            At { directory: directories[1], name: b"below" },
            at(directories[DEPTH_MAX]),
        );
        assert_eq!(below_itself, Err(Nfsstat3::Nfs3errInval));
    }
}
