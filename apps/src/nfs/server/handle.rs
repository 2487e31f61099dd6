//! File handles: export and file, sealed so that a client can only return handles that it got.
//!
//! Called by `service` and `procedures` for each incoming and outgoing handle.

use super::file_system::{FileKey, KEY_BYTES_MAX, Outcome};
use crate::nfs::protocol::{FileHandle, HANDLE_BYTES_MAX, Nfsstat3};
use siphasher::sip128::{Hasher128, SipHasher24};
use std::fmt;
use std::hash::Hasher;

/// Identifies the layout of the following bytes.
const LAYOUT: u8 = 1;
/// Layout and export.
const HEAD_BYTES: usize = 5;
/// Authentication code, after the key.
const CODE_BYTES: usize = 16;

// RFC 1813 section 2.4: a handle has at most NFS3_FHSIZE bytes.
const _: () = assert!(HEAD_BYTES + KEY_BYTES_MAX + CODE_BYTES <= HANDLE_BYTES_MAX);

/// Makes handles and verifies its own: layout (1 byte), export (4), the file's key, and a SipHash
/// of these with a secret (16). Without the secret, a client can only use handles that were given
/// out, whatever bytes it tries.
#[derive(Clone)]
pub struct Seal(SipHasher24);

impl Seal {
    /// Creates a seal with this secret: handles outlive the process if it is kept.
    #[must_use]
    pub fn new(secret: &[u8; 16]) -> Self {
        Self(SipHasher24::new_with_key(secret))
    }

    /// The handle of a file.
    #[must_use]
    pub fn handle(&self, export: u32, file: &FileKey) -> FileHandle {
        let mut handle = FileHandle::empty();
        handle.push(&[LAYOUT]);
        handle.push(&export.to_be_bytes());
        handle.push(file.as_bytes());
        handle.push(&self.code(handle.as_bytes()));
        handle
    }

    /// Export and file of a handle.
    ///
    /// # Errors
    /// NFS3ERR_BADHANDLE for one that was not made with this secret.
    pub fn open(&self, handle: &[u8]) -> Outcome<(u32, FileKey)> {
        self.opened(handle).ok_or(Nfsstat3::Nfs3errBadhandle)
    }

    fn opened(&self, handle: &[u8]) -> Option<(u32, FileKey)> {
        let (sealed, code) = handle.split_last_chunk::<CODE_BYTES>()?;
        let (head, key) = sealed.split_first_chunk::<HEAD_BYTES>()?;
        let [layout, export @ ..] = *head;
        // Compared as numbers, in constant time.
        let is_ours = u128::from_be_bytes(*code) == u128::from_be_bytes(self.code(sealed));
        (layout == LAYOUT && is_ours)
            .then(|| FileKey::new(key).map(|key| (u32::from_be_bytes(export), key)))
            .flatten()
    }

    fn code(&self, bytes: &[u8]) -> [u8; CODE_BYTES] {
        let mut hasher = self.0;
        hasher.write(bytes);
        hasher.finish128().as_bytes()
    }
}

/// Does not show the secret.
impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seal")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(bytes: &[u8]) -> FileKey {
        FileKey::new(bytes).unwrap()
    }

    #[test]
    fn a_handle_says_its_export_and_file_again_after_a_restart() {
        for length in 0..=KEY_BYTES_MAX {
            let file = key(&vec![7; length]);
            let handle = Seal::new(&[1; 16]).handle(3, &file);
            assert!(handle.as_bytes().len() <= HANDLE_BYTES_MAX);
            assert_eq!(Seal::new(&[1; 16]).open(handle.as_bytes()), Ok((3, file)));
        }
    }

    /// NFS3ERR_BADHANDLE: "Illegal NFS file handle. The file handle failed internal consistency
    /// checks" (RFC 1813 section 2.6).
    #[test]
    fn a_handle_with_any_bit_changed_or_byte_missing_expect_badhandle() {
        let seal = Seal::new(&[1; 16]);
        let handle = seal.handle(3, &key(b"some file")).as_bytes().to_vec();
        for bit in 0..handle.len() * 8 {
            let mut forged = handle.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(seal.open(&forged), Err(Nfsstat3::Nfs3errBadhandle), "bit {bit}");
        }
        for length in 0..handle.len() {
            assert_eq!(seal.open(&handle[..length]), Err(Nfsstat3::Nfs3errBadhandle));
        }
        assert_eq!(seal.open(&[&handle[..], &[0]].concat()), Err(Nfsstat3::Nfs3errBadhandle));
    }

    #[test]
    fn a_handle_of_another_secret_expect_badhandle() {
        let handle = Seal::new(&[1; 16]).handle(3, &key(b"file"));
        let opened = Seal::new(&[2; 16]).open(handle.as_bytes());
        assert_eq!(opened, Err(Nfsstat3::Nfs3errBadhandle));
    }
}
