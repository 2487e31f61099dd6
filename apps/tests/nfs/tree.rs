//! A small in-memory file system for the test server.

use nfs3_types::nfs3::*;
use nfs3_types::xdr_codec::Opaque;
use std::collections::BTreeMap;
use std::ops::Range;

pub(crate) const ROOT: u64 = 1;
/// Prefix of handles, which distinguishes them from others.
const MARK: &[u8; 4] = b"tree";

pub(crate) enum Content {
    File(Vec<u8>),
    Directory(BTreeMap<Vec<u8>, u64>),
    Link(Vec<u8>),
}

pub(crate) struct Node {
    pub(crate) content: Content,
    pub(crate) mode: u32,
}

/// Files by number, with their unstable data.
pub(crate) struct Tree {
    pub(crate) nodes: BTreeMap<u64, Node>,
    pub(crate) verifier: u64,
    uncommitted: Vec<(u64, Range<usize>)>,
}

impl Tree {
    pub(crate) fn new() -> Self {
        let root = Node { content: Content::Directory(BTreeMap::new()), mode: 0o755 };
        Self { nodes: BTreeMap::from([(ROOT, root)]), verifier: 7, uncommitted: Vec::new() }
    }

    /// Stores something at a path of existing directories; returns its number.
    pub(crate) fn put(&mut self, path: &str, content: Content) -> u64 {
        let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
        let directory = directory.split('/').filter(|name| !name.is_empty());
        let parent = directory.fold(ROOT, |at, name| self.child(at, name.as_bytes()).unwrap());
        self.add(parent, name.as_bytes(), content, 0o644).unwrap()
    }

    pub(crate) fn add(
        &mut self,
        parent: u64,
        name: &[u8],
        content: Content,
        mode: u32,
    ) -> Result<u64, nfsstat3> {
        let number = self.nodes.len() as u64 + 1;
        self.entries_mut(parent)?.insert(name.to_vec(), number);
        self.nodes.insert(number, Node { content, mode });
        Ok(number)
    }

    pub(crate) fn child(&self, parent: u64, name: &[u8]) -> Result<u64, nfsstat3> {
        self.entries(parent)?.get(name).copied().ok_or(nfsstat3::NFS3ERR_NOENT)
    }

    pub(crate) fn entries(&self, number: u64) -> Result<&BTreeMap<Vec<u8>, u64>, nfsstat3> {
        match &self.node(number)?.content {
            Content::Directory(entries) => Ok(entries),
            _ => Err(nfsstat3::NFS3ERR_NOTDIR),
        }
    }

    fn entries_mut(&mut self, number: u64) -> Result<&mut BTreeMap<Vec<u8>, u64>, nfsstat3> {
        match self.nodes.get_mut(&number).map(|node| &mut node.content) {
            Some(Content::Directory(entries)) => Ok(entries),
            _ => Err(nfsstat3::NFS3ERR_NOTDIR),
        }
    }

    pub(crate) fn node(&self, number: u64) -> Result<&Node, nfsstat3> {
        self.nodes.get(&number).ok_or(nfsstat3::NFS3ERR_STALE)
    }

    pub(crate) fn file(&mut self, number: u64) -> Result<&mut Vec<u8>, nfsstat3> {
        match self.nodes.get_mut(&number).map(|node| &mut node.content) {
            Some(Content::File(bytes)) => Ok(bytes),
            Some(Content::Directory(_)) => Err(nfsstat3::NFS3ERR_ISDIR),
            _ => Err(nfsstat3::NFS3ERR_INVAL),
        }
    }

    /// The bytes of the file at a path below the root.
    pub(crate) fn content(&mut self, name: &str) -> Vec<u8> {
        let number = self.child(ROOT, name.as_bytes()).unwrap();
        self.file(number).unwrap().clone()
    }

    /// Writes unstable data.
    pub(crate) fn write(
        &mut self,
        number: u64,
        offset: usize,
        data: &[u8],
    ) -> Result<writeverf3, nfsstat3> {
        let file = self.file(number)?;
        let end = offset + data.len();
        file.resize(file.len().max(end), 0);
        file[offset..end].copy_from_slice(data);
        self.uncommitted.push((number, offset..end));
        Ok(self.verifier())
    }

    pub(crate) fn verifier(&self) -> writeverf3 {
        writeverf3(self.verifier.to_be_bytes())
    }

    pub(crate) fn commit(&mut self) -> writeverf3 {
        self.uncommitted.clear();
        self.verifier()
    }

    /// Loses unstable data, like a server that restarts.
    pub(crate) fn crash(&mut self) {
        self.verifier += 1;
        for (number, range) in std::mem::take(&mut self.uncommitted) {
            self.file(number).unwrap()[range].fill(0);
        }
    }

    pub(crate) fn attributes(&self, number: u64) -> Result<fattr3, nfsstat3> {
        let node = self.node(number)?;
        let (type_, size) = match &node.content {
            Content::File(bytes) => (ftype3::NF3REG, bytes.len()),
            Content::Directory(entries) => (ftype3::NF3DIR, entries.len()),
            Content::Link(target) => (ftype3::NF3LNK, target.len()),
        };
        let time = nfstime3 { seconds: 86_400, nseconds: 5 };
        Ok(fattr3 {
            type_,
            mode: node.mode,
            nlink: 1,
            uid: 1000,
            gid: 100,
            size: size as u64,
            used: size as u64,
            rdev: specdata3::default(),
            fsid: 0xf5,
            fileid: number,
            atime: time,
            mtime: time,
            ctime: time,
        })
    }

    pub(crate) fn post_op(&self, number: u64) -> post_op_attr {
        self.attributes(number).map_or(Nfs3Option::None, Nfs3Option::Some)
    }

    pub(crate) fn wcc(&self, number: u64) -> wcc_data {
        wcc_data { before: Nfs3Option::None, after: self.post_op(number) }
    }
}

pub(crate) fn handle(number: u64) -> nfs_fh3 {
    nfs_fh3 { data: Opaque::owned([&MARK[..], &number.to_be_bytes()].concat()) }
}

pub(crate) fn number(handle: &nfs_fh3) -> Result<u64, nfsstat3> {
    let number = handle.data.strip_prefix(MARK).and_then(|rest| rest.try_into().ok());
    number.map(u64::from_be_bytes).ok_or(nfsstat3::NFS3ERR_BADHANDLE)
}
