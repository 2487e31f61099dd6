//! The realm of the server, from its keytab (MIT's format, version 2). Keys are skipped.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Maximum length of a keytab, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
const VERSION: [u8; 2] = [5, 2];

/// Keytab without a realm.
#[derive(Debug, thiserror::Error)]
pub enum KeytabError {
    /// It cannot be read.
    #[error("{0}")]
    File(#[from] io::Error),
    /// It has no key of the service, or another format.
    #[error(
        "no key of the service {0} can be found in it; add one (ktadd {0}/HOST), or name the realm"
    )]
    NoKey(String),
}

/// Realm of the first key of `service` in a keytab: `nfs`, or a principal.
///
/// # Errors
/// [`KeytabError`].
pub fn realm_of(path: &Path, service: &str) -> Result<String, KeytabError> {
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    let name = service.split(['/', '@']).next().unwrap_or_default();
    let realm = find(&bytes, name);
    bytes.fill(0);
    realm.ok_or_else(|| KeytabError::NoKey(name.to_owned()))
}

fn find(bytes: &[u8], service: &str) -> Option<String> {
    let mut rest = bytes.strip_prefix(&VERSION)?;
    loop {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let length = i32::from_be_bytes(*length);
        // A negative length is that of a hole.
        let (entry, next) = after.split_at_checked(length.unsigned_abs() as usize)?;
        if length > 0
            && let Some((realm, first)) = names(entry)
            && first == service.as_bytes()
        {
            return String::from_utf8(realm.to_vec()).ok();
        }
        rest = next;
    }
}

/// Realm and first component of an entry.
fn names(entry: &[u8]) -> Option<(&[u8], &[u8])> {
    let (_count, rest) = entry.split_first_chunk::<2>()?;
    let (realm, rest) = counted(rest)?;
    let (first, _) = counted(rest)?;
    Some((realm, first))
}

fn counted(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<2>()?;
    rest.split_at_checked(u16::from_be_bytes(*length).into())
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

    #[test]
    fn the_realm_is_that_of_the_first_key_of_the_service() {
        let hole = [&(-5_i32).to_be_bytes()[..], &[0; 5]].concat();
        let file = [
            VERSION.to_vec(),
            entry("A.TEST", &["host", "a"]),
            hole,
            entry("B.TEST", &["nfs", "b"]),
            entry("C.TEST", &["nfs", "c"]),
        ]
        .concat();
        assert_eq!(find(&file, "nfs").as_deref(), Some("B.TEST"));
        assert_eq!(find(&file, "host").as_deref(), Some("A.TEST"));
        assert_eq!(find(&file, "ftp"), None);
        assert_eq!(find(&file[1..], "nfs"), None);
        assert_eq!(find(&file[..file.len() - 60], "nfs"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_searched(bytes: Vec<u8>) {
            let _ = find(&[&VERSION[..], &bytes].concat(), "nfs");
        }
    }
}
