//! The credential of NFS and MOUNT calls (AUTH_SYS, RFC 5531 appendix A).

use rustix::process::{getegid, geteuid, getgroups};
use spinrpc::{AuthSys, Groups};
use std::fs;

/// Maximum number of groups in a credential (RFC 5531 appendix A).
const GROUPS_MAX: usize = 16;
/// Maximum length of the machine name in a credential, in bytes (RFC 5531 appendix A).
const MACHINE_NAME_BYTES_MAX: usize = 255;

/// A user as AUTH_SYS represents one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    uid: u32,
    gid: u32,
    groups: Groups,
    machine_name: Vec<u8>,
}

impl User {
    /// The user of this process. Only the first 16 groups are sent, which is the limit of AUTH_SYS.
    pub fn current() -> Self {
        let mut groups: Vec<u32> =
            getgroups().unwrap_or_default().into_iter().map(|group| group.as_raw()).collect();
        groups.truncate(GROUPS_MAX);
        let mut machine_name = fs::read("/proc/sys/kernel/hostname").unwrap_or_default();
        machine_name.truncate(machine_name.trim_ascii_end().len().min(MACHINE_NAME_BYTES_MAX));
        Self {
            uid: geteuid().as_raw(),
            gid: getegid().as_raw(),
            groups: Groups::new(&groups).unwrap_or_default(),
            machine_name,
        }
    }

    /// Replaces the given ids. Another user has none of this one's groups.
    #[must_use]
    pub fn with_ids(mut self, uid: Option<u32>, gid: Option<u32>) -> Self {
        if uid.is_some() || gid.is_some() {
            self.groups = Groups::default();
        }
        self.uid = uid.unwrap_or(self.uid);
        self.gid = gid.unwrap_or(self.gid);
        self
    }

    /// The credential.
    pub fn credential(&self) -> AuthSys<'_> {
        let Self { uid, gid, groups, machine_name } = self;
        AuthSys { stamp: 0, machine_name, uid: *uid, gid: *gid, groups: *groups }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_user_has_none_of_the_groups_of_this_one() {
        let me = User { groups: Groups::new(&[4, 5]).unwrap(), ..User::current() };
        assert_eq!(me.clone().with_ids(None, None), me);
        let other = me.with_ids(Some(7), None);
        assert_eq!((other.uid, other.groups.as_slice()), (7, &[][..]));
    }
}
