//! Users of this host whom principals of Kerberos act as.
//!
//! A principal is mapped once, when its context is established, on a thread that may block: name services can take long.
//! The result is put in front of the name of the context's peer ([`Mapped`]), so that every call of the context has it
//! ([`Principal::parse`]), without a lock and without a search.

use super::clients::decimal;
use crate::server::caller::CallerGroups;
use spinrpc::{GROUPS_MAX, Groups};
use std::fmt;

/// User of a principal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Principal {
    /// A user of this host.
    User {
        /// The user.
        uid: u32,
        /// Primary group.
        gid: u32,
        /// Further groups.
        groups: CallerGroups,
    },
    /// A host or service of the server's realm, such as `host/client`.
    Machine,
    /// No user of this host.
    Unknown,
}

/// Separates the user from the name of the principal: the engine takes what is before a tab for a note, so that the calls
/// of a principal stay the same if it is mapped to another user.
const AFTER_USER: char = '\t';
const LONG_LIST: char = '#';
const MACHINE: &str = "machine";
const UNKNOWN: &str = "unknown";

/// A principal with the user it is mapped to, as the name of a context's peer.
#[derive(Clone, Copy, Debug)]
pub struct Mapped<'a>(pub Principal, pub &'a str);

impl fmt::Display for Mapped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(user, name) = self;
        match user {
            Principal::User { uid, gid, groups } => {
                write!(f, "{uid},{gid}")?;
                match groups.number() {
                    Some(number) => write!(f, ",{LONG_LIST}{number}")?,
                    None => groups.as_slice().iter().try_for_each(|id| write!(f, ",{id}"))?,
                }
            }
            Principal::Machine => f.write_str(MACHINE)?,
            Principal::Unknown => f.write_str(UNKNOWN)?,
        }
        write!(f, "{AFTER_USER}{name}")
    }
}

impl Principal {
    /// User in the name of a context's peer; [`Principal::Unknown`] if there is none.
    pub fn parse(peer: &str) -> Self {
        match peer.split_once(AFTER_USER) {
            Some((MACHINE, _)) => Self::Machine,
            Some((user, _)) => parse_user(user).unwrap_or(Self::Unknown),
            None => Self::Unknown,
        }
    }
}

fn parse_user(text: &str) -> Option<Principal> {
    if let Some((user, list)) = text.split_once(LONG_LIST) {
        let (uid, gid) = user.strip_suffix(',')?.split_once(',')?;
        let groups = CallerGroups::kept(decimal(list)? as usize)?;
        return Some(Principal::User { uid: decimal(uid)?, gid: decimal(gid)?, groups });
    }
    let mut numbers = text.split(',').map(decimal);
    let (uid, gid) = (numbers.next()??, numbers.next()??);
    let (mut groups, mut count) = ([0; GROUPS_MAX], 0);
    for number in numbers {
        *groups.get_mut(count)? = number?;
        count += 1;
    }
    let groups = Groups::new(groups.get(..count)?)?.into();
    Some(Principal::User { uid, gid, groups })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn hosts_and_strangers_survive_their_text() {
        for user in [Principal::Machine, Principal::Unknown] {
            let text = Mapped(user, "host/a@R").to_string();
            assert_eq!(Principal::parse(&text), user);
            assert!(text.ends_with("\thost/a@R"));
        }
    }

    #[test]
    fn receive_a_peer_without_a_user_expect_nobody() {
        let many = format!("{}\ta@R", ["1"; GROUPS_MAX + 3].join(","));
        for text in [
            "",
            "a@R",
            "\ta@R",
            "1\ta@R",
            "1,2",
            "1,2 a@R",
            "1,2,x\ta@R",
            "-1,2\ta@R",
            "1,,2\ta@R",
            "1,2,#\ta@R",
            "1,2,#4294967295\ta@R",
            "1,2#0\ta@R",
            "1,2,3,#0\ta@R",
            &many,
        ] {
            assert_eq!(Principal::parse(text), Principal::Unknown, "{text}");
        }
        // The library escapes tabs in names, and a name cannot claim to be another's text in any case.
        let text = Mapped(Principal::Unknown, "0,0\troot@R").to_string();
        assert_eq!(Principal::parse(&text), Principal::Unknown);
    }

    proptest! {
        #[test]
        fn a_user_survives_its_text(uid: u32, gid: u32, ids in prop::collection::vec(0..9_u32, 0..=3 * GROUPS_MAX), name: String) {
            let user = Principal::User { uid, gid, groups: CallerGroups::of_user(&ids) };
            prop_assert_eq!(Principal::parse(&Mapped(user, &name).to_string()), user);
        }

        #[test]
        fn any_text_is_parsed(text: String) {
            let _ = Principal::parse(&text);
        }
    }
}
