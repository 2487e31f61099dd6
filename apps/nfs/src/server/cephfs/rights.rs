//! Permissions of files of Ceph, by mode bits. libcephfs is called without a list of groups (see `sys::ceph`), so that it
//! cannot check them.

use super::attributes::Stat;
use crate::server::caller::Caller;
use crate::server::rights::{ModeBits, Ownership, ROOT, SET_GID, is_member};

impl ModeBits for Stat {
    fn ownership(&self) -> Ownership {
        let of = &self.attributes;
        Ownership { mode: of.mode, uid: of.uid, gid: of.gid, is_directory: self.is_directory() }
    }
}

impl Stat {
    /// The mode of a new file in this directory. A program does not run for the directory's group because a
    /// caller outside of the group made it (CVE-2018-13405). Ceph gives new directories the bit by itself.
    pub(super) fn mode_of_new(&self, caller: &Caller, mode: u32) -> u32 {
        let of = &self.attributes;
        let gives_group = of.mode & SET_GID != 0;
        let may = caller.uid == ROOT || !gives_group || is_member(caller, of.gid);
        if may { mode } else { mode & !SET_GID }
    }
}
