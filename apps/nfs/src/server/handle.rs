//! File handles: export and file, sealed so that a client can only return handles that it got.

use super::file_system::{FileKey, KEY_BYTES_MAX, Outcome};
use crate::protocol::{FileHandle, HANDLE_BYTES_MAX, Nfsstat3};
use siphasher::sip128::{Hasher128, SipHasher24};
use std::fmt;
use std::hash::Hasher;

/// Identifies the layout of the following bytes.
const LAYOUT: u8 = 1;
/// Layout and export.
const HEAD_BYTES: usize = 5;
/// Authentication code, after the key: two halves.
const CODE_BYTES: usize = 16;

// RFC 1813 section 2.4: a handle has at most NFS3_FHSIZE bytes.
const _: () = assert!(HEAD_BYTES + KEY_BYTES_MAX + CODE_BYTES <= HANDLE_BYTES_MAX);

/// Makes handles and verifies its own: layout (1 byte), export (4), the file's key, and an authentication code (16). Half of
/// the code is a SipHash of these with a secret, the other half also covers the root of the export: another directory may be
/// exported under the same number later, and a key may find files outside of its root. Without the secret, a client can only
/// use handles that were given out, whatever bytes it tries.
#[derive(Clone)]
pub struct Seal(SipHasher24);

/// A handle that was made with the secret, for the export and the root that it was made for.
#[derive(Clone, Copy)]
pub struct Opened {
    export: u32,
    file: FileKey,
    /// After the handle's bytes without the code.
    hasher: SipHasher24,
    /// Half of the code that covers the root.
    code: u64,
}

impl Seal {
    /// Creates a seal with this secret: handles outlive the process if it is kept.
    pub fn new(secret: &[u8; 16]) -> Self {
        Self(SipHasher24::new_with_key(secret))
    }

    /// The handle of a file of the export with this number and root.
    pub fn handle(&self, export: u32, root: &FileKey, file: &FileKey) -> FileHandle {
        let mut handle = FileHandle::empty();
        handle.push(&[LAYOUT]);
        handle.push(&export.to_be_bytes());
        handle.push(file.as_bytes());
        let hasher = self.after(handle.as_bytes());
        handle.push(&code(&hasher).to_be_bytes());
        handle.push(&code_of_root(hasher, root).to_be_bytes());
        handle
    }

    /// Checks a handle, except for its root: see [`Opened::below`].
    ///
    /// # Errors
    /// NFS3ERR_BADHANDLE for one that was not made with this secret.
    pub fn open(&self, handle: &[u8]) -> Outcome<Opened> {
        self.opened(handle).ok_or(Nfsstat3::Nfs3errBadhandle)
    }

    fn opened(&self, handle: &[u8]) -> Option<Opened> {
        let (sealed, codes) = handle.split_last_chunk::<CODE_BYTES>()?;
        let (head, key) = sealed.split_first_chunk::<HEAD_BYTES>()?;
        let [layout, export @ ..] = *head;
        let codes = u128::from_be_bytes(*codes);
        let hasher = self.after(sealed);
        // Compared as numbers, in constant time.
        let is_ours = (codes >> 64) as u64 == code(&hasher);
        let opened =
            |file| Opened { export: u32::from_be_bytes(export), file, hasher, code: codes as u64 };
        (layout == LAYOUT && is_ours).then(|| FileKey::new(key).map(opened)).flatten()
    }

    fn after(&self, bytes: &[u8]) -> SipHasher24 {
        let mut hasher = self.0;
        hasher.write(bytes);
        hasher
    }
}

impl Opened {
    /// Number of its export.
    pub fn export(&self) -> u32 {
        self.export
    }

    /// Its file, if the export still has the root that the handle was made for.
    ///
    /// # Errors
    /// NFS3ERR_STALE if it has another one, or if half of the code is wrong.
    pub fn below(&self, root: &FileKey) -> Outcome<FileKey> {
        let is_same = self.code == code_of_root(self.hasher, root);
        is_same.then_some(self.file).ok_or(Nfsstat3::Nfs3errStale)
    }
}

/// First half of the hash: [`code_of_root`] never shows that of any bytes.
fn code(hasher: &SipHasher24) -> u64 {
    hasher.finish128().h1
}

/// The length follows the root, so that key and root cannot trade bytes.
fn code_of_root(mut hasher: SipHasher24, root: &FileKey) -> u64 {
    let root = root.as_bytes();
    hasher.write(root);
    hasher.write(&[root.len() as u8]);
    hasher.finish128().h2
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { export, file, .. } = self;
        f.debug_struct("Opened").field("export", export).field("file", file).finish_non_exhaustive()
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

    const ROOT: &[u8] = b"root";

    fn status(opened: Outcome<impl fmt::Debug>) -> Nfsstat3 {
        opened.unwrap_err()
    }

    #[test]
    fn a_handle_says_its_export_and_file_again_after_a_restart() {
        for length in 0..=KEY_BYTES_MAX {
            let (file, root) = (key(&vec![7; length]), key(&vec![8; KEY_BYTES_MAX - length]));
            let handle = Seal::new(&[1; 16]).handle(3, &root, &file);
            assert!(handle.as_bytes().len() <= HANDLE_BYTES_MAX);
            let opened = Seal::new(&[1; 16]).open(handle.as_bytes()).unwrap();
            assert_eq!((opened.export(), opened.below(&root)), (3, Ok(file)));
        }
    }

    /// NFS3ERR_BADHANDLE: "Illegal NFS file handle. The file handle failed internal consistency
    /// checks" (RFC 1813 section 2.6).
    #[test]
    fn a_handle_with_any_bit_changed_or_byte_missing_is_rejected() {
        let (seal, root) = (Seal::new(&[1; 16]), key(ROOT));
        let handle = seal.handle(3, &root, &key(b"some file")).as_bytes().to_vec();
        let of_root = (handle.len() - CODE_BYTES / 2) * 8;
        for bit in 0..handle.len() * 8 {
            let mut forged = handle.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            let opened = seal.open(&forged).and_then(|opened| opened.below(&root));
            let expected =
                if bit < of_root { Nfsstat3::Nfs3errBadhandle } else { Nfsstat3::Nfs3errStale };
            assert_eq!(opened, Err(expected), "bit {bit}");
        }
        for length in 0..handle.len() {
            assert_eq!(status(seal.open(&handle[..length])), Nfsstat3::Nfs3errBadhandle);
        }
        let longer = [&handle[..], &[0]].concat();
        assert_eq!(status(seal.open(&longer)), Nfsstat3::Nfs3errBadhandle);
    }

    #[test]
    fn a_handle_of_another_secret_expect_badhandle() {
        let handle = Seal::new(&[1; 16]).handle(3, &key(ROOT), &key(b"file"));
        let opened = Seal::new(&[2; 16]).open(handle.as_bytes());
        assert_eq!(status(opened), Nfsstat3::Nfs3errBadhandle);
    }

    #[test]
    fn a_handle_of_another_root_expect_stale() {
        let seal = Seal::new(&[1; 16]);
        let handle = seal.handle(3, &key(ROOT), &key(b"file"));
        let opened = seal.open(handle.as_bytes()).unwrap();
        for other in [&b"Root"[..], b"", b"roo", b"roots"] {
            assert_eq!(opened.below(&key(other)), Err(Nfsstat3::Nfs3errStale));
        }
    }

    /// Bytes of the file's key count as such, and not as those of the root.
    #[test]
    fn the_code_of_a_handle_is_not_that_of_another_division_of_its_bytes() {
        let seal = Seal::new(&[1; 16]);
        let all = seal.handle(3, &key(b"cd"), &key(b"ab")).as_bytes().to_vec();
        let longer = seal.handle(3, &key(b"d"), &key(b"abc")).as_bytes().to_vec();
        let half = CODE_BYTES / 2;
        assert_ne!(all[all.len() - half..], longer[longer.len() - half..]);
        let whole = seal.handle(3, &key(b""), &key(b"abcd\x02")).as_bytes().to_vec();
        assert_ne!(all[all.len() - half..], whole[whole.len() - CODE_BYTES..][..half]);
    }
}
