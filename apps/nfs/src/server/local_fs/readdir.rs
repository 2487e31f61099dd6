use super::files::{Entry, entries, find, open};
use super::node::Node;
use super::tree::{Tree, live};
use crate::protocol::Nfsstat3;
use crate::server::caller::Caller;
use crate::server::errors::OrStatus;
use crate::server::file_system::{DirectoryEntry, Found, ListFrom, Listed, Outcome, Place, Take};
use rustix::fd::OwnedFd;
use rustix::fs::{OFlags, SeekFrom, Statx, seek};

impl Tree {
    /// Cookies are the kernel's positions in the directory, which stay valid while names come and
    /// go. All of it runs as the caller: one who may list a directory but not search it gets names
    /// only.
    pub(super) fn list(&self, caller: &Caller, from: &ListFrom, take: Take<'_>) -> Outcome<Listed> {
        let node = self.directory(&from.directory)?;
        let present = live(&node.path)?;
        let (verifier, root) = (verifier(&present), present.stx_ino);
        if from.cookie != 0 && from.verifier != verifier {
            return Err(Nfsstat3::Nfs3errBadCookie);
        }
        self.identity.acting(caller, || {
            let listing = begin(&node, from.cookie)?;
            let is_end = entries(&listing, &mut |entry| {
                let found = from.with_files.then(|| self.listed(&node, entry)).flatten();
                let fileid = if self.is_above_root(&node, entry) { root } else { entry.fileid };
                let (name, cookie) = (entry.name.to_bytes(), entry.cookie);
                Ok(take(&DirectoryEntry { fileid, name, cookie, found: found.as_ref() }))
            })?;
            Ok(Listed { verifier, is_end })
        })
    }

    /// The file of an entry, if it exists in the tree, and the caller may search the directory.
    fn listed(&self, node: &Node, entry: &Entry<'_>) -> Option<Found> {
        let name = if self.is_above_root(node, entry) { c"." } else { entry.name };
        let path = find(&node.path, name.to_bytes()).ok()?;
        if name == c".." && !self.is_below_root(&path).ok()? {
            return None;
        }
        self.found(Place { directory: &node.key, name: name.to_bytes() }, path, false).ok()
    }

    /// The parent of the root is the root.
    fn is_above_root(&self, node: &Node, entry: &Entry<'_>) -> bool {
        node.key == self.root.key && entry.name == c".."
    }
}

/// Opens a directory with its own position, because several calls list it at a time.
fn begin(node: &Node, cookie: u64) -> Outcome<OwnedFd> {
    let listing = open(&node.path, OFlags::RDONLY | OFlags::DIRECTORY).or_status()?;
    if cookie != 0 {
        seek(&listing, SeekFrom::Start(cookie)).map_err(|_| Nfsstat3::Nfs3errBadCookie)?;
    }
    Ok(listing)
}

/// Verifier of the cookies of a directory: that of another one does not match.
fn verifier(directory: &Statx) -> [u8; 8] {
    let born = directory.stx_btime;
    let seconds = born.tv_sec.unsigned_abs().rotate_left(32);
    (directory.stx_ino ^ seconds ^ u64::from(born.tv_nsec)).to_be_bytes()
}
