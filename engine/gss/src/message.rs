//! Encrypted messages of Kerberos in place: encryption and checksum of RFC 3961 section 5.3 (with
//! RFC 3962) and of RFC 8009 section 5. A confounder is a part of the text here.

use aes::cipher::{
    KeyInit, KeySizeUser,
    consts::{U16, U32},
};

use crate::cipher::{Aes, BLOCK_BYTES, DecryptKey, EncryptKey, tail_bytes};
use crate::enctype::{Purpose, SessionKey};
use crate::mac::{MacKey, MacState, WrongChecksum};

/// Bytes that are hashed and encrypted before the next ones are looked at: they stay in the
/// first-level cache between both.
const BATCH_BYTES: usize = 4096;

pub(crate) struct MessageKeys<C> {
    cipher: C,
    mac: MacKey,
    signs_ciphertext: bool,
}

pub(crate) type SealKeys = MessageKeys<EncryptKey>;
pub(crate) type UnsealKeys = MessageKeys<DecryptKey>;

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
}

impl SealKeys {
    pub(crate) fn seal(&self, text: &mut [u8], checksum: &mut [u8]) {
        let (mut mac, mut chain) = (self.begin_mac(), [0; BLOCK_BYTES]);
        for_each_batch(text, |batch, is_tail| {
            if !self.signs_ciphertext {
                mac.update(batch);
            }
            if is_tail {
                self.cipher.encrypt_tail(&mut chain, batch);
            } else {
                self.cipher.encrypt_blocks(&mut chain, batch);
            }
            if self.signs_ciphertext {
                mac.update(batch);
            }
        });
        self.mac.put(mac, checksum);
    }
}

impl UnsealKeys {
    /// On failure the text must not be used.
    pub(crate) fn unseal(&self, text: &mut [u8], checksum: &[u8]) -> Result<(), WrongChecksum> {
        let (mut mac, mut chain) = (self.begin_mac(), [0; BLOCK_BYTES]);
        for_each_batch(text, |batch, is_tail| {
            if self.signs_ciphertext {
                mac.update(batch);
            }
            if is_tail {
                self.cipher.decrypt_tail(&mut chain, batch);
            } else {
                self.cipher.decrypt_blocks(&mut chain, batch);
            }
            if !self.signs_ciphertext {
                mac.update(batch);
            }
        });
        self.mac.check(mac, checksum)
    }
}

impl<C> MessageKeys<C> {
    fn begin_mac(&self) -> MacState {
        let mut mac = self.mac.begin();
        if self.signs_ciphertext {
            // RFC 8009 section 5: the checksum covers the initial state of the cipher, zeros.
            mac.update(&[0; BLOCK_BYTES]);
        }
        mac
    }
}

fn for_each_batch(text: &mut [u8], mut process: impl FnMut(&mut [u8], bool)) {
    let (blocks, tail) = text.split_at_mut(text.len() - tail_bytes(text.len()));
    blocks.chunks_mut(BATCH_BYTES).for_each(|batch| process(batch, false));
    process(tail, true);
}
