use super::attributes::{attributes, stat};
use super::files::{find, may};
use super::node::Node;
use super::tree::{Tree, live};
use crate::protocol::{Fattr3, Nfsstat3};
use crate::server::caller::Caller;
use crate::server::errors::{OrStatus, status};
use crate::server::file_system::{FileKey, Found, Outcome, Place};
use crate::server::rights::{Right, rights_behind};
use rustix::fd::OwnedFd;
use rustix::fs::{Access, FileType, Statx, readlinkat};
use rustix::io::Errno;

const DEPTH_MAX: usize = 1024;

impl Tree {
    pub(super) fn attributes(&self, file: &FileKey) -> Outcome<Fattr3> {
        self.attributes_of(&*self.node(file)?)
    }

    /// Attributes of a file that is held open; answered from memory.
    pub(super) fn attributes_of(&self, node: &Node) -> Outcome<Fattr3> {
        Ok(attributes(&live(&node.path)?, self.fsid))
    }

    pub(super) fn access(&self, caller: &Caller, file: &FileKey, wanted: u32) -> Outcome<u32> {
        let node = self.node(file)?;
        live(&node.path)?;
        let rows = rights_behind(node.kind == FileType::Directory).into_iter();
        let mut asked = rows.filter(|(_, bits)| wanted & bits != 0);
        let granted =
            |granted: u32, (rights, bits): (&[Right], u32)| match may(&node.path, mask(rights)) {
                Ok(()) => Ok(granted | wanted & bits),
                Err(Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::TXTBSY) => Ok(granted),
                Err(error) => Err(status(error)),
            };
        self.identity.acting(caller, || asked.try_fold(0, granted))
    }

    pub(super) fn lookup(&self, caller: &Caller, at: Place<'_>) -> Outcome<Found> {
        let directory = self.directory(at.directory)?;
        live(&directory.path)?;
        let path = match at.name {
            b".." => self.parent(caller, &directory)?,
            name => self.acting(caller, || find(&directory.path, name))?,
        };
        self.found(at, path, true)
    }

    pub(super) fn read_link(&self, link: &FileKey) -> Outcome<Vec<u8>> {
        let node = self.node(link)?;
        live(&node.path)?;
        if node.kind != FileType::Symlink {
            return Err(Nfsstat3::Nfs3errInval);
        }
        let text = readlinkat(&node.path, c"", Vec::new()).or_status()?;
        Ok(text.into_bytes())
    }

    /// NFS3ERR_STALE if the directory was moved out of the tree. The parent of the root is the root.
    fn parent(&self, caller: &Caller, directory: &Node) -> Outcome<OwnedFd> {
        if directory.key == self.root.key {
            return self.acting(caller, || find(&directory.path, b"."));
        }
        let parent = self.acting(caller, || find(&directory.path, b".."))?;
        match self.is_below_root(&parent)? {
            true => Ok(parent),
            false => Err(Nfsstat3::Nfs3errStale),
        }
    }

    /// Follows the parents with the rights of the thread's identity.
    pub(super) fn is_below_root(&self, directory: &OwnedFd) -> Outcome<bool> {
        let root = self.root.stat().or_status()?;
        let mut here = stat(directory).or_status()?;
        let mut above = find(directory, b".").or_status()?;
        for _ in 0..DEPTH_MAX {
            if place(&here) == place(&root) {
                return Ok(true);
            }
            above = find(&above, b"..").or_status()?;
            let next = stat(&above).or_status()?;
            if place(&next) == place(&here) {
                return Ok(false);
            }
            here = next;
        }
        Ok(false)
    }
}

/// Identity of a directory, also across several subvolumes in one mount.
fn place(stat: &Statx) -> (u64, u32, u32, u64) {
    (stat.stx_mnt_id, stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino)
}

fn mask(rights: &[Right]) -> Access {
    rights.iter().fold(Access::empty(), |mask, right| match right {
        Right::Read => mask | Access::READ_OK,
        Right::Write => mask | Access::WRITE_OK,
        Right::Execute => mask | Access::EXEC_OK,
    })
}
