//! From principals to users of this host.
//!
//! A map file comes first: lines of `PRINCIPAL UID GID[,GID...]`. A principal of the server's realm with one component is the
//! user of that name by the host's name services, with all groups. `nfs/HOST`, `host/HOST`, `root/HOST` and `NAME$` are
//! machines. All others are nobody: users of other realms may have the same names.

use crate::nfs::server::exports::{Mapped, Principal};
use nix::unistd::{Gid, User, getgrouplist};
use spinrpc::{GROUPS_MAX, Groups};
use std::collections::HashMap;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Maximum length of a map file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The number that is not a user or group.
const NO_ID: u32 = u32::MAX;
/// Services whose keys machines have.
const SERVICES: [&str; 3] = ["nfs", "host", "root"];

/// Users of principals.
#[derive(Debug, Default)]
pub struct Users {
    realm: Option<String>,
    named: HashMap<String, Principal>,
}

/// Unusable map file.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// It cannot be read.
    #[error("{0}")]
    File(#[from] io::Error),
    /// It is too long.
    #[error("longer than {FILE_BYTES_MAX} bytes")]
    TooLong,
    /// A line has another form.
    #[error(
        "line {line}: {text:?} is not PRINCIPAL UID GID[,GID...], with at most {GROUPS_MAX} further groups"
    )]
    Line {
        /// Its number, from 1.
        line: usize,
        /// The line.
        text: String,
    },
    /// A principal has two lines.
    #[error("line {line}: {principal} has a line before")]
    Twice {
        /// The number of the second one.
        line: usize,
        /// The principal.
        principal: String,
    },
}

impl Users {
    /// Users of the host for principals of `realm`; none without a realm.
    #[must_use]
    pub fn of_realm(realm: Option<String>) -> Self {
        Self { realm, named: HashMap::new() }
    }

    /// Adds the principals of a map file.
    ///
    /// # Errors
    /// [`MapError`]: it cannot be read, or a line is wrong.
    pub fn read_map(&mut self, path: &Path) -> Result<(), MapError> {
        let mut text = String::new();
        File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(MapError::TooLong);
        }
        self.add_map(&text)
    }

    /// Empty lines, and those that begin with `#`, are skipped.
    fn add_map(&mut self, text: &str) -> Result<(), MapError> {
        for (line, text) in (1..).zip(text.lines()) {
            let text = text.trim();
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let (name, user) =
                parse_line(text).ok_or_else(|| MapError::Line { line, text: text.to_owned() })?;
            let principal = name.to_owned();
            if self.named.insert(principal.clone(), user).is_some() {
                return Err(MapError::Twice { line, principal });
            }
        }
        Ok(())
    }

    /// The user of a principal. May block, as name services do.
    #[must_use]
    pub fn of(&self, principal: &str) -> Principal {
        if let Some(user) = self.named.get(principal) {
            return *user;
        }
        match principal.rsplit_once('@') {
            Some((name, realm)) if Some(realm) == self.realm.as_deref() => of_realm(name),
            _ => Principal::Unknown,
        }
    }

    /// The principal with its user, as the name of a peer.
    pub(super) fn label(&self, principal: &str) -> String {
        Mapped(self.of(principal), principal).to_string()
    }
}

/// A name of the server's realm. Only plain characters are looked at: the library escapes others, an `@` in a realm
/// too, and name services may take them for something else.
fn of_realm(name: &str) -> Principal {
    let is_plain = |name: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        !name.is_empty() && !name.starts_with('-') && name.bytes().all(plain)
    };
    match (name.split_once('/'), name.strip_suffix('$')) {
        (Some((service, host)), _) if SERVICES.contains(&service) && is_plain(host) => {
            Principal::Machine
        }
        (None, Some(host)) if is_plain(host) => Principal::Machine,
        (None, None) if is_plain(name) => of_host(name).unwrap_or(Principal::Unknown),
        _ => Principal::Unknown,
    }
}

/// A user of this host.
fn of_host(name: &str) -> Option<Principal> {
    let user = User::from_name(name).inspect_err(|error| {
        tracing::warn!(name, %error, "cannot look up a user, who is anonymous therefore");
    });
    let user = user.ok()?.filter(|user| user.name == name)?;
    let (uid, gid) = (user.uid.as_raw(), user.gid.as_raw());
    let all = getgrouplist(&CString::new(name).ok()?, user.gid).unwrap_or_default();
    let mut further: Vec<u32> = all.into_iter().map(Gid::as_raw).filter(|id| *id != gid).collect();
    if further.len() > GROUPS_MAX {
        tracing::warn!(name, groups = further.len(), "only the first {GROUPS_MAX} groups count");
        further.truncate(GROUPS_MAX);
    }
    Some(Principal::User { uid, gid, groups: Groups::new(&further)? })
}

fn parse_line(text: &str) -> Option<(&str, Principal)> {
    let mut words = text.split_whitespace();
    let (name, uid, all) = (words.next()?, words.next()?, words.next()?);
    let ids: Vec<u32> = all.split(',').map(id).collect::<Option<_>>()?;
    let (&gid, further) = ids.split_first()?;
    let user = Principal::User { uid: id(uid)?, gid, groups: Groups::new(further)? };
    (words.next().is_none() && name.contains('@')).then_some((name, user))
}

fn id(text: &str) -> Option<u32> {
    let is_number = text.bytes().all(|digit| digit.is_ascii_digit());
    text.parse().ok().filter(|id| is_number && *id != NO_ID)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users() -> Users {
        Users::of_realm(Some("SPIN.TEST".to_owned()))
    }

    fn mapped(text: &str) -> Users {
        let mut users = users();
        users.add_map(text).unwrap();
        users
    }

    #[test]
    fn users_of_the_realm_are_those_of_the_host() {
        let Principal::User { uid, gid, .. } = users().of("root@SPIN.TEST") else { panic!() };
        assert_eq!((uid, gid), (0, 0));
        for stranger in [
            "root@OTHER.TEST",
            "root",
            "no-such-user-here@SPIN.TEST",
            "@SPIN.TEST",
            "root@OTHER@SPIN.TEST",
            "root\\@x@SPIN.TEST",
            "0@SPIN.TEST",
            "-root@SPIN.TEST",
        ] {
            assert_eq!(users().of(stranger), Principal::Unknown, "{stranger}");
        }
        assert_eq!(Users::of_realm(None).of("root@SPIN.TEST"), Principal::Unknown);
    }

    #[test]
    fn hosts_of_the_realm_are_machines_and_those_of_others_are_nobody() {
        for name in ["nfs/server", "host/client", "root/client", "CLIENT$"] {
            assert_eq!(users().of(&format!("{name}@SPIN.TEST")), Principal::Machine, "{name}");
            assert_eq!(users().of(&format!("{name}@OTHER.TEST")), Principal::Unknown, "{name}");
        }
        for name in ["alice/admin", "host/", "/a", "$", "host/a/b", "host/a@OTHER\\", "A@OTHER\\$"]
        {
            assert_eq!(users().of(&format!("{name}@SPIN.TEST")), Principal::Unknown, "{name}");
        }
    }

    #[test]
    fn the_map_comes_first() {
        let users = mapped("# who\n\nalice@OTHER.TEST 7 8,9,10\n host/a@SPIN.TEST 1 2 \n");
        let groups = Groups::new(&[9, 10]).unwrap();
        let alice = Principal::User { uid: 7, gid: 8, groups };
        assert_eq!(users.of("alice@OTHER.TEST"), alice);
        let host = Principal::User { uid: 1, gid: 2, groups: Groups::default() };
        assert_eq!(users.of("host/a@SPIN.TEST"), host);
        assert_eq!(users.label("alice@OTHER.TEST"), "7,8,9,10\talice@OTHER.TEST");
        assert_eq!(users.of("alice@SPIN.TEST"), Principal::Unknown);
    }

    #[test]
    fn a_wrong_line_is_refused_with_its_number() {
        let many = format!("a@R 1 {}", ["1"; GROUPS_MAX + 2].join(","));
        for line in
            ["a@R", "a@R 1", "a@R 1 x", "a 1 1", "a@R 1 1 1", "a@R -1 1", "a@R 4294967295 1", &many]
        {
            let error = users().add_map(&format!("b@R 1 1\n{line}")).unwrap_err().to_string();
            assert!(error.starts_with("line 2: "), "{error}");
        }
        let error = users().add_map("b@R 1 1\nb@R 2 2").unwrap_err().to_string();
        assert!(error.contains("line 2: b@R has a line before"), "{error}");
    }
}
