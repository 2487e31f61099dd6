//! From principals to users of this host.
//!
//! A map file comes first: lines of `PRINCIPAL UID GID[,GID...]`. A principal of the server's realm with one component is the
//! user of that name by the host's name services, with its groups. `nfs/HOST`, `host/HOST`, `root/HOST` and `NAME$` are
//! machines. All others are anonymous: users of other realms may have the same names.

use super::host::{Cached, Host, LookupError};
use crate::server::errors::Problem;
use crate::server::exports::{CallerGroups, Mapped, Principal, USER_GROUPS_MAX};
use rustix::process::geteuid;
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

const FILE_BYTES_MAX: u64 = 1 << 20;
const WRITABLE: u32 = 0o022;
const NO_ID: u32 = u32::MAX;
/// Services whose keys machines have.
const SERVICES: [&str; 3] = ["nfs", "host", "root"];

/// Users of principals.
#[derive(Debug)]
pub struct Users {
    realm: Option<String>,
    named: HashMap<String, Principal>,
    host: Cached,
}

impl Users {
    /// Users of the host for principals of `realm`; none without a realm.
    pub fn of_realm(realm: Option<String>) -> Self {
        Self { realm, named: HashMap::new(), host: Cached::new(Host::default()) }
    }

    /// Number of principals of the map.
    pub fn mapped(&self) -> usize {
        self.named.len()
    }

    /// Adds the principals of a map file, which only root and this user can change.
    ///
    /// # Errors
    /// [`Problem`]: it cannot be read, others could make themselves any user in it, or a line is wrong.
    pub fn read_map(&mut self, path: &Path) -> Result<(), Problem> {
        let (mut text, file) = (String::new(), File::open(path)?);
        let (found, user) = (file.metadata()?, geteuid().as_raw());
        let (owner, mode) = (found.uid(), found.mode() & 0o7777);
        if mode & WRITABLE != 0 || ![0, user].contains(&owner) {
            return Err(Problem(format!(
                "others than root and user {user} can change it (owner {owner}, mode {mode:04o}); use chown and chmod go-w"
            )));
        }
        file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(Problem(format!("longer than {FILE_BYTES_MAX} bytes")));
        }
        self.add_map(&text)
    }

    /// Empty lines, and those that begin with `#`, are skipped.
    fn add_map(&mut self, text: &str) -> Result<(), Problem> {
        for (line, text) in (1..).zip(text.lines()) {
            let text = text.trim();
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let Some((principal, user)) = parse_line(text) else {
                return Err(Problem(format!(
                    "line {line}: {text:?} is not PRINCIPAL UID GID[,GID...], with at most {USER_GROUPS_MAX} further \
                     groups"
                )));
            };
            if self.named.insert(principal.to_owned(), user).is_some() {
                return Err(Problem(format!(
                    "line {line}: {principal} is named by an earlier line"
                )));
            }
        }
        Ok(())
    }

    /// The user of a principal. May block, as name services do.
    ///
    /// # Errors
    /// [`LookupError`]: the name services failed. The principal may be a user, so it must not become anonymous.
    pub fn of(&self, principal: &str) -> Result<Principal, LookupError> {
        if let Some(user) = self.named.get(principal) {
            return Ok(*user);
        }
        match principal.rsplit_once('@') {
            Some((name, realm)) if Some(realm) == self.realm.as_deref() => self.of_realm_name(name),
            _ => Ok(Principal::Unknown),
        }
    }

    /// A name of the server's realm. Only plain characters are looked at: the library escapes others, an `@` in a
    /// realm too, and name services may take them for something else.
    fn of_realm_name(&self, name: &str) -> Result<Principal, LookupError> {
        match (name.split_once('/'), name.strip_suffix('$')) {
            (Some((service, host)), _) if SERVICES.contains(&service) && is_plain(host) => {
                Ok(Principal::Machine)
            }
            (None, Some(host)) if is_plain(host) => Ok(Principal::Machine),
            (None, None) if is_plain(name) => self.host.user(name, Instant::now()),
            _ => Ok(Principal::Unknown),
        }
    }

    pub(super) fn label(&self, principal: &str) -> Result<String, LookupError> {
        Ok(Mapped(self.of(principal)?, principal).to_string())
    }
}

fn is_plain(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    !name.is_empty() && !name.starts_with('-') && name.bytes().all(plain)
}

fn parse_line(text: &str) -> Option<(&str, Principal)> {
    let mut words = text.split_whitespace();
    let (name, uid, all) = (words.next()?, words.next()?, words.next()?);
    let ids: Vec<u32> = all.split(',').map(id).collect::<Option<_>>()?;
    let (&gid, further) = ids.split_first()?;
    let groups = (further.len() <= USER_GROUPS_MAX).then(|| CallerGroups::of_user(further))?;
    let user = Principal::User { uid: id(uid)?, gid, groups };
    (words.next().is_none() && name.contains('@')).then_some((name, user))
}

fn id(text: &str) -> Option<u32> {
    let is_number = text.bytes().all(|digit| digit.is_ascii_digit());
    text.parse().ok().filter(|id| is_number && *id != NO_ID)
}

#[cfg(test)]
mod tests {
    use super::super::host::tests::Scripted;
    use super::*;
    use std::sync::atomic::Ordering;

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
        let Principal::User { uid, gid, .. } = users().of("root@SPIN.TEST").unwrap() else {
            panic!()
        };
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
            assert_eq!(users().of(stranger).unwrap(), Principal::Unknown, "{stranger}");
        }
        assert_eq!(Users::of_realm(None).of("root@SPIN.TEST").unwrap(), Principal::Unknown);
    }

    #[test]
    fn hosts_of_the_realm_are_machines_and_those_of_others_are_nobody() {
        for name in ["nfs/server", "host/client", "root/client", "CLIENT$"] {
            assert_eq!(
                users().of(&format!("{name}@SPIN.TEST")).unwrap(),
                Principal::Machine,
                "{name}"
            );
            assert_eq!(
                users().of(&format!("{name}@OTHER.TEST")).unwrap(),
                Principal::Unknown,
                "{name}"
            );
        }
        for name in ["alice/admin", "host/", "/a", "$", "host/a/b", "host/a@OTHER\\", "A@OTHER\\$"]
        {
            assert_eq!(
                users().of(&format!("{name}@SPIN.TEST")).unwrap(),
                Principal::Unknown,
                "{name}"
            );
        }
    }

    #[test]
    fn a_failed_lookup_is_an_error_and_not_nobody() {
        let services = Scripted::default();
        let users = Users { host: Cached::new(services.clone()), ..users() };
        assert!(matches!(users.of("alice@SPIN.TEST"), Ok(Principal::User { uid: 7, .. })));
        assert_eq!(users.of("eve@SPIN.TEST"), Ok(Principal::Unknown));
        let error = users.of("bob@SPIN.TEST").unwrap_err();
        assert!(error.to_string().starts_with("cannot look up user bob: EIO"), "{error}");
        assert_eq!(users.label("bob@SPIN.TEST"), Err(error));
        // Neither other realms nor hosts are looked up.
        assert_eq!(users.of("bob@OTHER.TEST"), Ok(Principal::Unknown));
        assert_eq!(users.of("host/bob@SPIN.TEST"), Ok(Principal::Machine));
        assert_eq!(services.0.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn the_map_comes_first() {
        let users = mapped("# who\n\nalice@OTHER.TEST 7 8,9,10\n host/a@SPIN.TEST 1 2 \n");
        let groups = CallerGroups::of_user(&[9, 10]);
        let alice = Principal::User { uid: 7, gid: 8, groups };
        assert_eq!(users.of("alice@OTHER.TEST").unwrap(), alice);
        let host = Principal::User { uid: 1, gid: 2, groups: CallerGroups::default() };
        assert_eq!(users.of("host/a@SPIN.TEST").unwrap(), host);
        assert_eq!(users.label("alice@OTHER.TEST").unwrap(), "7,8,9,10\talice@OTHER.TEST");
        assert_eq!(users.of("alice@SPIN.TEST").unwrap(), Principal::Unknown);
    }

    #[test]
    fn a_wrong_line_is_refused_with_its_number() {
        let many = format!("a@R 1 {}", ["1"; USER_GROUPS_MAX + 2].join(","));
        for line in
            ["a@R", "a@R 1", "a@R 1 x", "a 1 1", "a@R 1 1 1", "a@R -1 1", "a@R 4294967295 1", &many]
        {
            let error = users().add_map(&format!("b@R 1 1\n{line}")).unwrap_err().to_string();
            assert!(error.starts_with("line 2: "), "{error}");
        }
        let error = users().add_map("b@R 1 1\nb@R 2 2").unwrap_err().to_string();
        assert!(error.contains("line 2: b@R is named by an earlier line"), "{error}");
    }
}
