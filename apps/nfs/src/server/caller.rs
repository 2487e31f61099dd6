//! Identity of a caller. Of groups beyond the first one, AUTH_SYS has at most 16 on the wire, and users of a name service as many as the
//! system allows.
//!
//! Long lists are kept once per process, in a table that only grows, so that a caller refers to its list without memory of
//! its own: calls copy callers, and cores neither allocate nor lock.

use spinrpc::sys::journal::event;
use spinrpc::{GROUPS_MAX, Groups};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Maximum number of further groups of a user.
pub const USER_GROUPS_MAX: usize = 1024;
/// Maximum number of different long lists: with [`USER_GROUPS_MAX`], 4 MiB.
const LISTS_MAX: usize = 1024;
const NO_ID: u32 = u32::MAX;

static LISTS: [OnceLock<Box<[u32]>>; LISTS_MAX] = [const { OnceLock::new() }; LISTS_MAX];
static IS_FULL_SAID: AtomicBool = AtomicBool::new(false);

/// Identity for an operation, after applying the options of the export to the credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Further groups.
    pub groups: CallerGroups,
}

/// Groups besides the first one.
#[derive(Clone, Copy, Debug)]
pub enum CallerGroups {
    /// A list as in AUTH_SYS.
    Short(Groups),
    /// A list that is kept for the life of the process: ascending, each number once.
    Long(&'static [u32]),
}

impl CallerGroups {
    /// Groups of a user. At most [`USER_GROUPS_MAX`] count, those with the lowest numbers, and at most 16 if the table is
    /// full.
    pub fn of_user(ids: &[u32]) -> Self {
        let mut ids: Vec<u32> = ids.iter().copied().filter(|id| *id != NO_ID).collect();
        ids.sort_unstable();
        ids.dedup();
        ids.truncate(USER_GROUPS_MAX);
        let few = Groups::new(ids.get(..GROUPS_MAX).unwrap_or(&ids)).unwrap_or_default();
        if ids.len() <= GROUPS_MAX {
            return Self::Short(few);
        }
        if let Some((_, list)) = keep(&ids) {
            return Self::Long(list);
        }
        if is_first(&IS_FULL_SAID) {
            event!(
                WARN,
                "{LISTS_MAX} different lists of more than {GROUPS_MAX} groups are in use: of further users only \
                 {GROUPS_MAX} groups count until spin-nfsd is restarted"
            );
        }
        Self::Short(few)
    }

    /// Their numbers.
    pub fn as_slice(&self) -> &[u32] {
        match self {
            Self::Short(groups) => groups.as_slice(),
            Self::Long(list) => list,
        }
    }

    pub(super) fn number(&self) -> Option<usize> {
        match self {
            Self::Short(_) => None,
            Self::Long(list) => keep(list).map(|(number, _)| number),
        }
    }

    pub(super) fn kept(number: usize) -> Option<Self> {
        Some(Self::Long(LISTS.get(number)?.get()?))
    }

    /// With another number in the place of those that callers lose. Long lists lose them, and get none instead.
    pub(super) fn mapped(self, loses: impl Fn(u32) -> bool, to: u32) -> Self {
        match self {
            Self::Short(groups) => Self::Short(replaced(groups, loses, to)),
            // Only the lowest number, root's, can be one.
            Self::Long([first, rest @ ..]) if loses(*first) => Self::Long(rest),
            Self::Long(list) => Self::Long(list),
        }
    }
}

impl Default for CallerGroups {
    fn default() -> Self {
        Self::Short(Groups::default())
    }
}

impl From<Groups> for CallerGroups {
    fn from(groups: Groups) -> Self {
        Self::Short(groups)
    }
}

impl PartialEq for CallerGroups {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for CallerGroups {}

fn replaced(groups: Groups, loses: impl Fn(u32) -> bool, to: u32) -> Groups {
    let mut ids = [0; GROUPS_MAX];
    let count = groups.as_slice().len();
    for (id, from) in ids.iter_mut().zip(groups.as_slice()) {
        *id = if loses(*from) { to } else { *from };
    }
    Groups::new(ids.get(..count).unwrap_or_default()).unwrap_or_default()
}

pub(super) fn is_first(said: &AtomicBool) -> bool {
    !said.swap(true, Ordering::Relaxed)
}

/// Finds the list in the table, or adds it. `None` if the table is full of others. Not for cores: it searches and allocates.
fn keep(ids: &[u32]) -> Option<(usize, &'static [u32])> {
    keep_in(&LISTS, ids)
}

fn keep_in<'l>(lists: &'l [OnceLock<Box<[u32]>>], ids: &[u32]) -> Option<(usize, &'l [u32])> {
    lists.iter().enumerate().find_map(|(number, place)| {
        let kept = place.get_or_init(|| ids.into());
        (**kept == *ids).then_some((number, &**kept))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_groups_than_auth_sys_has_all_count_and_equal_lists_are_kept_once() {
        let ids: Vec<u32> = (100..100 + USER_GROUPS_MAX as u32).rev().collect();
        let groups = CallerGroups::of_user(&ids);
        assert!(groups.as_slice().iter().copied().eq(100..100 + USER_GROUPS_MAX as u32));
        let again = CallerGroups::of_user(&[&ids[..], &[100, NO_ID]].concat());
        assert_eq!(groups.number(), again.number());
        assert_eq!(CallerGroups::kept(groups.number().unwrap()), Some(groups));
        assert_eq!(CallerGroups::kept(LISTS_MAX), None);
    }

    #[test]
    fn a_full_table_finds_what_it_has_and_takes_no_more() {
        let lists = [const { OnceLock::new() }; 2];
        for (number, ids) in [[1, 2], [3, 4]].iter().enumerate() {
            assert_eq!(keep_in(&lists, ids), Some((number, &ids[..])));
        }
        assert_eq!(keep_in(&lists, &[5, 6]), None);
        assert_eq!(keep_in(&lists, &[3, 4]), Some((1, &[3, 4][..])));
    }

    #[test]
    fn it_is_said_once_that_the_table_is_full() {
        let said = AtomicBool::new(false);
        assert_eq!([is_first(&said), is_first(&said), is_first(&said)], [true, false, false]);
    }

    #[test]
    fn the_groups_with_the_lowest_numbers_count_whatever_their_order() {
        let most = USER_GROUPS_MAX as u32;
        let ids: Vec<u32> = (0..most + 7).rev().collect();
        assert!(CallerGroups::of_user(&ids).as_slice().iter().copied().eq(0..most));
    }

    #[test]
    fn few_groups_need_no_table() {
        for count in [0, 1, GROUPS_MAX as u32] {
            let groups = CallerGroups::of_user(&(0..count).collect::<Vec<_>>());
            assert!(groups.as_slice().iter().copied().eq(0..count));
            assert_eq!(groups.number(), None);
        }
    }

    #[test]
    fn the_group_of_root_is_lost() {
        let is_root = |id| id == 0;
        let few = CallerGroups::of_user(&[0, 7]).mapped(is_root, 9);
        assert_eq!(few.as_slice(), [9, 7]);
        let many = CallerGroups::of_user(&(0..40).collect::<Vec<_>>()).mapped(is_root, 99);
        assert!(many.as_slice().iter().copied().eq(1..40));
    }
}
