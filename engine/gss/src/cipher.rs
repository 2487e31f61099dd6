//! AES in CBC mode with ciphertext stealing, as RFC 3962 section 5 has it (CBC-CS3): the last two
//! blocks change places, also where the last is whole.
//!
//! Whole blocks before the last two are processed in batches of any size; what links them is the
//! chain block. The loop of CBC runs inside the cipher's backend, because a call for each block
//! costs 40 % more.

use aes::cipher::{
    Array, Block, BlockCipherDecrypt, BlockCipherEncBackend, BlockCipherEncClosure,
    BlockCipherEncrypt, BlockSizeUser, KeyInit, KeySizeUser,
    consts::{U16, U32},
};
use aes::{Aes128Dec, Aes128Enc, Aes256Dec, Aes256Enc};
use zeroize::ZeroizeOnDrop;

use crate::enctype::{Enctype, KEY_MAX_BYTES};

pub(crate) const BLOCK_BYTES: usize = 16;

/// Blocks decrypted at once: as many as keep the widest AES instructions busy, and 1 KiB of stack.
const BATCH_BLOCKS: usize = 64;
const SHORT_BLOCKS: usize = 2;

type AesBlock = Array<u8, U16>;

/// The block that the next one is combined with.
pub(crate) type Chain = [u8; BLOCK_BYTES];

pub(crate) enum Aes<Short, Long> {
    Aes128(Short),
    Aes256(Long),
}

pub(crate) type EncryptKey = Aes<Aes128Enc, Aes256Enc>;
pub(crate) type DecryptKey = Aes<Aes128Dec, Aes256Dec>;

impl<Short, Long> Aes<Short, Long>
where
    Short: KeyInit + KeySizeUser<KeySize = U16>,
    Long: KeyInit + KeySizeUser<KeySize = U32>,
{
    /// The key in the first 16 or in all 32 bytes.
    pub(crate) fn new(enctype: Enctype, bytes: &[u8; KEY_MAX_BYTES]) -> Self {
        let first = bytes.as_chunks::<BLOCK_BYTES>().0[0];
        match enctype {
            Enctype::Aes128Sha1 | Enctype::Aes128Sha256 => Self::Aes128(Short::new(&first.into())),
            Enctype::Aes256Sha1 | Enctype::Aes256Sha384 => {
                Self::Aes256(Long::new(&(*bytes).into()))
            }
        }
    }
}

impl EncryptKey {
    pub(crate) fn encrypt_block(&self, block: &mut Chain) {
        match self {
            Self::Aes128(key) => key.encrypt_block(block.into()),
            Self::Aes256(key) => key.encrypt_block(block.into()),
        }
    }

    /// Encrypts whole blocks that have at least one more block behind them.
    pub(crate) fn encrypt_blocks(&self, chain: &mut Chain, bytes: &mut [u8]) {
        let (blocks, rest) = AesBlock::slice_as_chunks_mut(bytes);
        debug_assert!(rest.is_empty(), "not whole blocks");
        let chained = CbcEncrypt { chain, blocks };
        match self {
            Self::Aes128(key) => key.encrypt_with_backend(chained),
            Self::Aes256(key) => key.encrypt_with_backend(chained),
        }
    }

    /// Encrypts the last bytes, as many as [`tail_bytes`] says: a whole block and a block or a part
    /// of one, which trade places.
    pub(crate) fn encrypt_tail(&self, chain: &mut Chain, tail: &mut [u8]) {
        let Some((first, last)) = tail.split_first_chunk_mut::<BLOCK_BYTES>() else { return };
        self.encrypt_blocks(chain, first);
        if last.is_empty() {
            return;
        }
        let mut whole = [0; BLOCK_BYTES];
        whole.iter_mut().zip(&*last).for_each(|(byte, last)| *byte = *last);
        last.iter_mut().zip(&*first).for_each(|(byte, first)| *byte = *first);
        self.encrypt_blocks(chain, &mut whole);
        *first = whole;
    }
}

impl DecryptKey {
    fn decrypt(&self, blocks: &mut [AesBlock]) {
        match self {
            Self::Aes128(key) => key.decrypt_blocks(blocks),
            Self::Aes256(key) => key.decrypt_blocks(blocks),
        }
    }

    /// Decrypts whole blocks that have at least one more block behind them.
    pub(crate) fn decrypt_blocks(&self, chain: &mut Chain, bytes: &mut [u8]) {
        let (blocks, rest) = AesBlock::slice_as_chunks_mut(bytes);
        debug_assert!(rest.is_empty(), "not whole blocks");
        // Short messages do not pay for a long batch.
        if blocks.len() <= SHORT_BLOCKS {
            self.decrypt_batches::<SHORT_BLOCKS>(chain, blocks);
        } else {
            self.decrypt_batches::<BATCH_BLOCKS>(chain, blocks);
        }
    }

    fn decrypt_batches<const BLOCKS: usize>(&self, chain: &mut Chain, blocks: &mut [AesBlock]) {
        let mut plain = [AesBlock::default(); BLOCKS];
        for batch in blocks.chunks_mut(BLOCKS) {
            let plain = &mut plain[..batch.len()];
            plain.copy_from_slice(batch);
            self.decrypt(plain);
            for (block, plain) in batch.iter_mut().zip(plain) {
                let next = block.0;
                xor(&mut plain.0, chain);
                *block = *plain;
                *chain = next;
            }
        }
    }

    pub(crate) fn decrypt_tail(&self, chain: &mut Chain, tail: &mut [u8]) {
        let Some((first, last)) = tail.split_first_chunk_mut::<BLOCK_BYTES>() else { return };
        if last.is_empty() {
            return self.decrypt_blocks(chain, first);
        }
        // The last ciphertext block was encrypted over the one before it and zeros: decrypted, it
        // has the stolen end of that block.
        let mut stolen = [AesBlock::from(*first)];
        self.decrypt(&mut stolen);
        for ((byte, last), first) in stolen[0].0.iter_mut().zip(last).zip(first.iter_mut()) {
            let cipher = *last;
            *last ^= *byte;
            (*byte, *first) = (cipher, 0);
        }
        *first = stolen[0].0;
        self.decrypt_blocks(chain, first);
    }
}

/// Bytes of the tail of a message: the last block, whole or not, and the one before it.
pub(crate) const fn tail_bytes(length: usize) -> usize {
    if length <= BLOCK_BYTES { length } else { BLOCK_BYTES + (length - 1) % BLOCK_BYTES + 1 }
}

struct CbcEncrypt<'a> {
    chain: &'a mut Chain,
    blocks: &'a mut [AesBlock],
}

impl BlockSizeUser for CbcEncrypt<'_> {
    type BlockSize = U16;
}

impl BlockCipherEncClosure for CbcEncrypt<'_> {
    #[inline(always)]
    fn call<B: BlockCipherEncBackend<BlockSize = U16>>(self, backend: &B) {
        let mut chain: Block<Self> = (*self.chain).into();
        for block in self.blocks {
            xor(&mut chain.0, &block.0);
            backend.encrypt_block((&mut chain).into());
            *block = chain;
        }
        *self.chain = chain.0;
    }
}

#[inline(always)]
fn xor(into: &mut Chain, other: &Chain) {
    *into = (u128::from_ne_bytes(*into) ^ u128::from_ne_bytes(*other)).to_ne_bytes();
}

/// The key schedules are cleared.
const fn _keys_are_zeroed<T: ZeroizeOnDrop>() {}
const _: () = {
    _keys_are_zeroed::<Aes128Enc>();
    _keys_are_zeroed::<Aes256Enc>();
    _keys_are_zeroed::<Aes128Dec>();
    _keys_are_zeroed::<Aes256Dec>();
};
