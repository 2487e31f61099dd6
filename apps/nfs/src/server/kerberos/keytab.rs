//! Keys of the server in its keytab (MIT's format, version 2): the names of their principals. The keys themselves are skipped.

use crate::server::errors::Problem;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const FILE_BYTES_MAX: u64 = 1 << 20;
const VERSION: [u8; 2] = [5, 2];
/// Permissions of users who are neither the owner nor in the group.
const OTHERS: u32 = 0o007;

/// Principals of a keytab.
#[derive(Debug)]
pub struct Keytab {
    names: Vec<KeyName>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct KeyName {
    realm: String,
    /// Its parts, such as `nfs` and a host.
    parts: Vec<String>,
}

impl Keytab {
    /// Reads the names of a keytab.
    ///
    /// # Errors
    /// [`Problem`]: it cannot be read, or others have permissions for it.
    pub fn read(path: &Path) -> Result<Self, Problem> {
        let file = File::open(path)?;
        let mode = file.metadata()?.mode() & 0o7777;
        if mode & OTHERS != 0 {
            return Err(Problem(format!(
                "every user can read or change it (mode {mode:04o}); use chmod o="
            )));
        }
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
        let names = names(&bytes);
        bytes.fill(0);
        Ok(Self { names })
    }

    /// Principals of the keys that a server with this name uses: `nfs`, `nfs@HOST`, `nfs/HOST` or `nfs/HOST@REALM`.
    pub fn principals(&self, service: &str) -> Vec<String> {
        let text = |name: &KeyName| format!("{}@{}", name.parts.join("/"), name.realm);
        self.of(service).into_iter().map(text).collect()
    }

    /// The realm of these keys.
    ///
    /// # Errors
    /// [`Problem`]: there are none, or they are in several, of any of which users of this host could be.
    pub fn realm(&self, service: &str) -> Result<String, Problem> {
        let realms: BTreeSet<&str> =
            self.of(service).into_iter().map(|name| name.realm.as_str()).collect();
        let realms: Vec<&str> = realms.into_iter().collect();
        match &realms[..] {
            [only] => Ok((*only).to_owned()),
            [] => Err(Problem(format!(
                "no key of {service} can be found in it; add one (ktadd nfs/HOST)"
            ))),
            several => Err(Problem(format!(
                "it has keys of {service} in several realms: {}; choose one with --realm",
                several.join(", ")
            ))),
        }
    }

    fn of(&self, service: &str) -> BTreeSet<&KeyName> {
        let realm = realm_in(service);
        let matches = |name: &&KeyName| {
            realm.is_none_or(|realm| realm == name.realm) && has_parts(&name.parts, service)
        };
        self.names.iter().filter(matches).collect()
    }
}

/// Realm in the name of a server: only a name with a slash is that of a principal, and can have one.
#[must_use]
pub fn realm_in(service: &str) -> Option<&str> {
    service.rsplit_once('@').filter(|(name, _)| name.contains('/')).map(|(_, realm)| realm)
}

/// Of `nfs@HOST` only the service is compared: the library may look for another name of the host.
fn has_parts(parts: &[String], service: &str) -> bool {
    let name = service.rsplit_once('@').map_or(service, |(name, _)| name);
    if name.contains('/') {
        name.split('/').eq(parts.iter().map(String::as_str))
    } else {
        parts.len() == 2 && parts.first().is_some_and(|part| part == name)
    }
}

/// Names of all keys up to the first entry that is malformed.
fn names(bytes: &[u8]) -> Vec<KeyName> {
    let mut rest = bytes.strip_prefix(&VERSION).unwrap_or_default();
    let mut names = Vec::new();
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let length = i32::from_be_bytes(*length);
        // A negative length is that of a hole.
        let Some((entry, next)) = after.split_at_checked(length.unsigned_abs() as usize) else {
            break;
        };
        if length > 0 {
            names.extend(name(entry));
        }
        rest = next;
    }
    names
}

fn name(entry: &[u8]) -> Option<KeyName> {
    let (count, rest) = entry.split_first_chunk::<2>()?;
    let (realm, mut rest) = counted(rest)?;
    let mut parts = Vec::new();
    for _ in 0..u16::from_be_bytes(*count) {
        let (part, next) = counted(rest)?;
        parts.push(part);
        rest = next;
    }
    Some(KeyName { realm, parts })
}

fn counted(bytes: &[u8]) -> Option<(String, &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<2>()?;
    let (text, rest) = rest.split_at_checked(u16::from_be_bytes(*length).into())?;
    Some((String::from_utf8(text.to_vec()).ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(realm: &str, parts: &[&str]) -> Vec<u8> {
        let counted = |text: &str| [&(text.len() as u16).to_be_bytes(), text.as_bytes()].concat();
        let mut entry = (parts.len() as u16).to_be_bytes().to_vec();
        entry.extend(counted(realm));
        parts.iter().for_each(|part| entry.extend(counted(part)));
        entry.extend([0; 24]);
        [&(entry.len() as u32).to_be_bytes()[..], &entry].concat()
    }

    fn keytab(entries: &[Vec<u8>]) -> Keytab {
        Keytab { names: names(&[&VERSION[..], &entries.concat()].concat()) }
    }

    #[test]
    fn the_realm_is_that_of_the_keys_that_the_server_uses() {
        let hole = [&(-5_i32).to_be_bytes()[..], &[0; 5]].concat();
        let keytab = keytab(&[
            entry("A.TEST", &["host", "a"]),
            hole,
            entry("B.TEST", &["nfs", "b"]),
            entry("B.TEST", &["nfs", "b"]),
            entry("C.TEST", &["nfs", "c"]),
            entry("D.TEST", &["nfs"]),
        ]);
        let realm = |service: &str| keytab.realm(service).map_err(|error| error.to_string());
        assert_eq!(realm("host").as_deref(), Ok("A.TEST"));
        for service in ["nfs/c", "nfs/c@C.TEST"] {
            assert_eq!(realm(service).as_deref(), Ok("C.TEST"), "{service}");
            assert_eq!(keytab.principals(service), ["nfs/c@C.TEST"]);
        }
        for service in ["nfs", "nfs@b"] {
            let error = realm(service).unwrap_err();
            assert!(error.contains("several realms: B.TEST, C.TEST; choose one with --realm"));
            assert_eq!(keytab.principals(service), ["nfs/b@B.TEST", "nfs/c@C.TEST"]);
        }
        for service in ["ftp", "nfs/a", "nfs/c@B.TEST", "nfs/b/c", "nf"] {
            assert!(realm(service).unwrap_err().contains(&format!("no key of {service} ")));
            assert!(keytab.principals(service).is_empty());
        }
    }

    #[test]
    fn a_name_with_a_slash_has_the_realm_after_its_last_at_sign() {
        assert_eq!(realm_in("nfs/a@B.TEST"), Some("B.TEST"));
        for service in ["nfs", "nfs/a", "nfs@a"] {
            assert_eq!(realm_in(service), None, "{service}");
        }
    }

    #[test]
    fn malformed_files_have_the_names_before_the_fault() {
        let good = [&VERSION[..], &entry("A.TEST", &["nfs", "a"])].concat();
        assert_eq!(names(&good).len(), 1);
        assert!(names(&good[1..]).is_empty() && names(&good[..good.len() - 1]).is_empty());
        assert_eq!(names(&[&good[..], &[0, 0, 1, 0, 7]].concat()).len(), 1);
    }

    proptest! {
        #[test]
        fn any_bytes_are_searched(bytes: Vec<u8>) {
            let _ = names(&[&VERSION[..], &bytes].concat());
        }
    }
}
