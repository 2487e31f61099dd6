//! Encrypted messages of Kerberos in place: encryption and checksum of RFC 3961 section 5.3 (with
//! RFC 3962) and of RFC 8009 section 5, in steps. A confounder is a part of the text here.

use core::fmt;

use aes::cipher::{
    KeyInit, KeySizeUser,
    consts::{U16, U32},
};

use crate::cipher::{Aes, BLOCK_BYTES, Chain, DecryptKey, EncryptKey, tail_bytes};
use crate::enctype::{Purpose, SessionKey};
use crate::mac::{MacKey, MacState, WrongChecksum};

/// Bytes that are hashed and encrypted before the next ones are looked at: they stay in the
/// first-level cache between both.
const BATCH_BYTES: usize = 4096;

/// Keys that messages are encrypted or decrypted with.
pub(crate) struct MessageKeys<C> {
    cipher: C,
    mac: MacKey,
    signs_ciphertext: bool,
}

pub(crate) type SealKeys = MessageKeys<EncryptKey>;
pub(crate) type OpenKeys = MessageKeys<DecryptKey>;

impl<Short, Long> MessageKeys<Aes<Short, Long>>
where
    Short: KeyInit + KeySizeUser<KeySize = U16>,
    Long: KeyInit + KeySizeUser<KeySize = U32>,
{
    pub(crate) fn new(key: &SessionKey, usage: u32) -> Self {
        let encryption = key.derive(usage, Purpose::Encryption);
        Self {
            cipher: Aes::new(key.enctype(), encryption.bytes()),
            mac: MacKey::derive(key, usage, Purpose::Integrity),
            signs_ciphertext: key.enctype().signs_ciphertext(),
        }
    }

    pub(crate) fn begin(&self) -> Work {
        Work::new(&self.mac, self.signs_ciphertext)
    }
}

pub(crate) struct Work {
    /// Bytes of it that are done.
    done: usize,
    chain: Chain,
    /// Taken at the end.
    mac: Option<MacState>,
}

impl Work {
    fn new(key: &MacKey, signs_ciphertext: bool) -> Self {
        let mut mac = key.begin();
        if signs_ciphertext {
            // RFC 8009 section 5: the checksum covers the initial state of the cipher, zeros.
            mac.update(&[0; BLOCK_BYTES]);
        }
        Self { done: 0, chain: [0; BLOCK_BYTES], mac: Some(mac) }
    }

    /// Encrypts about `step_bytes` more of the text; `true` at its end, when `checksum` is filled.
    pub(crate) fn seal(
        &mut self,
        keys: &SealKeys,
        text: &mut [u8],
        checksum: &mut [u8],
        step_bytes: usize,
    ) -> bool {
        let is_done = self.advance(text, step_bytes, |mac, chain, batch, is_tail| {
            if !keys.signs_ciphertext {
                mac.update(batch);
            }
            if is_tail {
                keys.cipher.encrypt_tail(chain, batch);
            } else {
                keys.cipher.encrypt_blocks(chain, batch);
            }
            if keys.signs_ciphertext {
                mac.update(batch);
            }
        });
        if let Some(mac) = self.mac.take_if(|_| is_done) {
            keys.mac.put(mac, checksum);
        }
        is_done
    }

    /// Decrypts about `step_bytes` more of the text; `true` at its end, when `checksum` has been
    /// compared. Until then the text must not be used.
    pub(crate) fn open(
        &mut self,
        keys: &OpenKeys,
        text: &mut [u8],
        checksum: &[u8],
        step_bytes: usize,
    ) -> Result<bool, WrongChecksum> {
        let is_done = self.advance(text, step_bytes, |mac, chain, batch, is_tail| {
            if keys.signs_ciphertext {
                mac.update(batch);
            }
            if is_tail {
                keys.cipher.decrypt_tail(chain, batch);
            } else {
                keys.cipher.decrypt_blocks(chain, batch);
            }
            if !keys.signs_ciphertext {
                mac.update(batch);
            }
        });
        if is_done {
            // A step after the last one has no state, and must not pass.
            let mac = self.mac.take().ok_or(WrongChecksum)?;
            keys.mac.check(mac, checksum)?;
        }
        Ok(is_done)
    }

    /// Has `process` handle about `step_bytes` more, in batches of whole blocks and then the tail;
    /// `true` at the end.
    fn advance(
        &mut self,
        text: &mut [u8],
        step_bytes: usize,
        mut process: impl FnMut(&mut MacState, &mut Chain, &mut [u8], bool),
    ) -> bool {
        let Some(mac) = &mut self.mac else { return true };
        let tail_at = text.len() - tail_bytes(text.len());
        let end = self.done.saturating_add(step_bytes.max(1)).min(text.len());
        while self.done < end {
            let rest = &mut text[self.done..];
            let is_tail = self.done >= tail_at;
            let length = if is_tail { rest.len() } else { BATCH_BYTES.min(tail_at - self.done) };
            process(mac, &mut self.chain, &mut rest[..length], is_tail);
            self.done += length;
        }
        self.done >= text.len()
    }
}

/// Shows no state, which is as good as a key.
impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").field("done", &self.done).finish_non_exhaustive()
    }
}
