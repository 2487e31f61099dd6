//! Per-message tokens of Kerberos (RFC 4121 section 4.2): MIC tokens for a message, Wrap tokens
//! around it, both in place.
//!
//! A Wrap token lies in one buffer; the plain text has its place behind the header and confounder:
//!
//! ```text
//! header 16 | confounder 16 | plain text | copy of the header 16 | checksum
//!           |<------------- encrypted ------------------------->|
//! ```
//!
//! Tokens are of version two (CFX) only; older ones are refused.

use core::fmt;
use core::ops::Range;
use subtle::ConstantTimeEq;

use crate::cipher::BLOCK_BYTES;
use crate::enctype::{Enctype, Purpose, SessionKey};
use crate::mac::{HEADER_BYTES, MacKey, TAG_MAX_BYTES, WrongChecksum};
use crate::message::{SealKeys, UnsealKeys};

/// Bytes before the plain text in a Wrap token.
pub const WRAP_HEAD_BYTES: usize = HEADER_BYTES + BLOCK_BYTES;

/// Most bytes that a Wrap token adds to the plain text.
pub const WRAP_OVERHEAD_MAX_BYTES: usize = WRAP_HEAD_BYTES + HEADER_BYTES + TAG_MAX_BYTES;

/// Length of the longest MIC token.
pub const MIC_MAX_BYTES: usize = HEADER_BYTES + TAG_MAX_BYTES;

const MIC_ID: [u8; 2] = [0x04, 0x04];
const WRAP_ID: [u8; 2] = [0x05, 0x04];

/// RFC 4121 section 4.2.2. "The receiver MUST ignore unknown flags."
const SENT_BY_ACCEPTOR: u8 = 1;
const SEALED: u8 = 2;
const ACCEPTOR_SUBKEY: u8 = 4;

/// RFC 4121 section 2: usage numbers, of the acceptor and of the initiator.
const SEAL_USAGE: [u32; 2] = [22, 24];
const SIGN_USAGE: [u32; 2] = [23, 25];

/// The end of a context that sends a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The end that asked for the context: the requester.
    Initiator,
    /// The end that was asked: the responder.
    Acceptor,
}

impl Role {
    /// The end at the other side.
    #[must_use]
    pub const fn peer(self) -> Self {
        match self {
            Self::Initiator => Self::Acceptor,
            Self::Acceptor => Self::Initiator,
        }
    }

    const fn usage(self, [acceptor, initiator]: [u32; 2]) -> u32 {
        match self {
            Self::Acceptor => acceptor,
            Self::Initiator => initiator,
        }
    }

    /// Flags of every token that this end sends, sealing aside.
    const fn flags(self, acceptor_subkey: bool) -> u8 {
        let role = match self {
            Self::Acceptor => SENT_BY_ACCEPTOR,
            Self::Initiator => 0,
        };
        if acceptor_subkey { role | ACCEPTOR_SUBKEY } else { role }
    }
}

/// Flaw of a received token. A caller tells the peer nothing but that it does not check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Shorter or longer than a token of this kind.
    #[error("token has a wrong length")]
    Length,
    /// Not a token of this kind and version.
    #[error("not a token of RFC 4121 of this kind")]
    Kind,
    /// Sent by this end itself.
    #[error("token was sent by this end")]
    Direction,
    /// Signed only, where sealing is asked for; or sealed, where that has no meaning.
    #[error("token is sealed where it must not be, or not where it must")]
    Protection,
    /// Made with another key than the context has: with or without the acceptor's subkey.
    #[error("token is made with another key of the context")]
    Subkey,
    /// The bytes between flags and sequence number are not those of RFC 4121.
    #[error("filler of the token is not 0xff")]
    Filler,
    /// The checksum is another one: forged, altered, or made with another key.
    #[error("token does not check")]
    Checksum,
}

impl From<WrongChecksum> for TokenError {
    fn from(_: WrongChecksum) -> Self {
        Self::Checksum
    }
}

/// Keys of one direction for tokens that this end sends.
pub struct SendKeys {
    enctype: Enctype,
    flags: u8,
    sign: MacKey,
    seal: SealKeys,
}

/// Keys of one direction for tokens that this end receives.
pub struct ReceiveKeys {
    enctype: Enctype,
    flags: u8,
    sign: MacKey,
    unseal: UnsealKeys,
}

impl SendKeys {
    /// Keys for what `role`, which is this end, sends. `acceptor_subkey`: the key is one that the
    /// acceptor chose.
    pub fn new(key: &SessionKey, role: Role, acceptor_subkey: bool) -> Self {
        let enctype = key.enctype();
        Self {
            enctype,
            flags: role.flags(acceptor_subkey),
            sign: MacKey::derive(key, role.usage(SIGN_USAGE), Purpose::Checksum),
            seal: SealKeys::new(key, role.usage(SEAL_USAGE)),
        }
    }

    /// The encryption type.
    pub const fn enctype(&self) -> Enctype {
        self.enctype
    }

    /// Length of a MIC token.
    pub const fn mic_bytes(&self) -> usize {
        HEADER_BYTES + self.enctype.checksum_bytes()
    }

    /// Length in bytes of a Wrap token around plain text of this length.
    pub const fn wrap_bytes(&self, plain_bytes: usize) -> usize {
        WRAP_HEAD_BYTES + plain_bytes + HEADER_BYTES + self.enctype.checksum_bytes()
    }

    /// The MIC token of a message. `counter` is that of the tokens of this context.
    pub fn mic(&self, message: &[u8], counter: u64) -> Mic {
        let header = mic_header(self.flags, counter);
        let mut mic = Mic { bytes: [0; MIC_MAX_BYTES], length: self.mic_bytes() };
        mic.bytes[..HEADER_BYTES].copy_from_slice(&header);
        if let Some(tag) = self.sign.tag(message, &header) {
            tag.put(&mut mic.bytes[HEADER_BYTES..]);
        }
        mic
    }

    /// Seals the plain text in `token`, which is as long as [`Self::wrap_bytes`] says. `confounder` has to be
    /// unpredictable.
    ///
    /// # Errors
    /// [`TokenError::Length`].
    pub fn wrap(
        &self,
        token: &mut [u8],
        counter: u64,
        confounder: [u8; BLOCK_BYTES],
    ) -> Result<(), TokenError> {
        let layout = Layout::of(token, self.enctype)?;
        let header = wrap_header(self.flags | SEALED, 0, 0, counter);
        token[..HEADER_BYTES].copy_from_slice(&header);
        token[HEADER_BYTES..WRAP_HEAD_BYTES].copy_from_slice(&confounder);
        token[layout.copy].copy_from_slice(&header);
        let (sealed, checksum) = token.split_at_mut(layout.checksum.start);
        self.seal.seal(&mut sealed[HEADER_BYTES..], checksum);
        Ok(())
    }
}

impl ReceiveKeys {
    /// Keys for what the peer of `role`, which is this end, sends. `acceptor_subkey`: the key is one
    /// that the acceptor chose.
    pub fn new(key: &SessionKey, role: Role, acceptor_subkey: bool) -> Self {
        let (enctype, peer) = (key.enctype(), role.peer());
        Self {
            enctype,
            flags: peer.flags(acceptor_subkey),
            sign: MacKey::derive(key, peer.usage(SIGN_USAGE), Purpose::Checksum),
            unseal: UnsealKeys::new(key, peer.usage(SEAL_USAGE)),
        }
    }

    /// The encryption type.
    pub const fn enctype(&self) -> Enctype {
        self.enctype
    }

    /// Checks the MIC token of a message; returns its counter.
    ///
    /// # Errors
    /// [`TokenError`].
    pub fn verify(&self, message: &[u8], token: &[u8]) -> Result<u64, TokenError> {
        let (header, checksum) = self.parse_mic(token)?;
        let tag = self.sign.tag(message, header).ok_or(TokenError::Checksum)?;
        if tag.matches(checksum) { Ok(counter(header)) } else { Err(TokenError::Checksum) }
    }

    /// Header and checksum of a MIC token, whose header has been checked.
    fn parse_mic<'t>(
        &self,
        token: &'t [u8],
    ) -> Result<(&'t [u8; HEADER_BYTES], &'t [u8]), TokenError> {
        let (header, checksum) = token.split_first_chunk().ok_or(TokenError::Length)?;
        self.check_header(header, MIC_ID, 0)?;
        if header[3..8] != [0xff; 5] {
            return Err(TokenError::Filler);
        }
        if checksum.len() != self.enctype.checksum_bytes() {
            return Err(TokenError::Length);
        }
        Ok((header, checksum))
    }

    /// Unwraps a Wrap token in place; returns the place of the plain text in it. What the peer rotated is rotated back,
    /// whatever the count is. That moves the whole token; libraries in use send a count of zero.
    ///
    /// # Errors
    /// [`TokenError`]. The buffer then holds nothing that may be used.
    pub fn unwrap(&self, token: &mut [u8]) -> Result<Range<usize>, TokenError> {
        let (header, sealed) = token.split_first_chunk_mut().ok_or(TokenError::Length)?;
        self.check_header(header, WRAP_ID, SEALED)?;
        if header[3] != 0xff {
            return Err(TokenError::Filler);
        }
        let [_, _, _, _, extra_high, extra_low, rotation_high, rotation_low, ..] = *header;
        let extra = usize::from(u16::from_be_bytes([extra_high, extra_low]));
        let rotation = usize::from(u16::from_be_bytes([rotation_high, rotation_low]));
        if sealed.is_empty() {
            return Err(TokenError::Length);
        }
        let rotation = rotation % sealed.len();
        if rotation != 0 {
            sealed.rotate_left(rotation);
        }
        let layout = Layout::of(token, self.enctype)?;
        // RFC 4121 section 4.2.4: EC bytes of filler stand between plain text and header.
        let plain_end = layout.plain.end.checked_sub(extra).ok_or(TokenError::Length)?;
        if plain_end < layout.plain.start {
            return Err(TokenError::Length);
        }
        let (header, sealed) = token.split_at_mut(HEADER_BYTES);
        let (text, checksum) = sealed.split_at_mut(layout.checksum.start - HEADER_BYTES);
        self.unseal.unseal(text, checksum)?;
        // RFC 4121 section 4.2.4: the encrypted header has a rotation of zero.
        header[6..8].fill(0);
        let copy = text.last_chunk::<HEADER_BYTES>().ok_or(TokenError::Length)?;
        if !bool::from(copy.as_slice().ct_eq(header)) {
            return Err(TokenError::Checksum);
        }
        Ok(layout.plain.start..plain_end)
    }

    fn check_header(
        &self,
        header: &[u8; HEADER_BYTES],
        id: [u8; 2],
        sealed: u8,
    ) -> Result<(), TokenError> {
        let differs = header[2] ^ (self.flags | sealed);
        if header[..2] != id {
            Err(TokenError::Kind)
        } else if differs & SENT_BY_ACCEPTOR != 0 {
            Err(TokenError::Direction)
        } else if differs & SEALED != 0 {
            Err(TokenError::Protection)
        } else if differs & ACCEPTOR_SUBKEY != 0 {
            Err(TokenError::Subkey)
        } else {
            Ok(())
        }
    }
}

shown!(SendKeys: enctype);
shown!(ReceiveKeys: enctype);

/// A MIC token.
#[derive(Clone)]
pub struct Mic {
    bytes: [u8; MIC_MAX_BYTES],
    length: usize,
}

impl Mic {
    /// Its bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl fmt::Debug for Mic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mic of {} bytes", self.length)
    }
}

/// Places in a Wrap token that is not rotated.
struct Layout {
    plain: Range<usize>,
    /// The encrypted copy of the header.
    copy: Range<usize>,
    checksum: Range<usize>,
}

impl Layout {
    fn of(token: &[u8], enctype: Enctype) -> Result<Self, TokenError> {
        let checksum_bytes = enctype.checksum_bytes();
        let checksum_at = token.len().checked_sub(checksum_bytes).ok_or(TokenError::Length)?;
        let copy_at = checksum_at.checked_sub(HEADER_BYTES).ok_or(TokenError::Length)?;
        if copy_at < WRAP_HEAD_BYTES {
            return Err(TokenError::Length);
        }
        Ok(Self {
            plain: WRAP_HEAD_BYTES..copy_at,
            copy: copy_at..checksum_at,
            checksum: checksum_at..token.len(),
        })
    }
}

fn mic_header(flags: u8, counter: u64) -> [u8; HEADER_BYTES] {
    let mut header = [0xff; HEADER_BYTES];
    header[..2].copy_from_slice(&MIC_ID);
    header[2] = flags;
    header[8..].copy_from_slice(&counter.to_be_bytes());
    header
}

fn wrap_header(flags: u8, extra: u16, rotation: u16, counter: u64) -> [u8; HEADER_BYTES] {
    let mut header = mic_header(flags, counter);
    header[..2].copy_from_slice(&WRAP_ID);
    header[4..6].copy_from_slice(&extra.to_be_bytes());
    header[6..8].copy_from_slice(&rotation.to_be_bytes());
    header
}

fn counter(header: &[u8; HEADER_BYTES]) -> u64 {
    header.last_chunk().map_or(0, |counter| u64::from_be_bytes(*counter))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A token with filler between the plain text and the copy of the header, as DCE has it.
    fn padded_token(keys: &SendKeys, plain: &[u8], claimed: u16, filler: usize) -> Vec<u8> {
        let header = wrap_header(keys.flags | SEALED, claimed, 0, 5);
        let text = [&[1; BLOCK_BYTES], plain, &vec![0xaa; filler], &header].concat();
        let mut token = [&header[..], &text, &vec![0; keys.enctype.checksum_bytes()]].concat();
        let (sealed, checksum) = token[HEADER_BYTES..].split_at_mut(text.len());
        keys.seal.seal(sealed, checksum);
        token
    }

    /// RFC 4121 section 4.2.2: "The receiver MUST ignore unknown flags."
    #[test]
    fn unknown_flags_of_the_sender_are_ignored() {
        let key = SessionKey::new(Enctype::Aes128Sha256, &[3; 16]).unwrap();
        let mut send = SendKeys::new(&key, Role::Acceptor, false);
        let receive = ReceiveKeys::new(&key, Role::Initiator, false);
        send.flags |= 0xf8;
        assert_eq!(receive.verify(b"text", send.mic(b"text", 1).as_slice()), Ok(1));
        let mut token = padded_token(&send, b"text", 0, 0);
        let place = receive.unwrap(&mut token).unwrap();
        assert_eq!(&token[place], b"text");
    }

    #[test]
    fn extra_bytes_are_taken_off() {
        for enctype in Enctype::ALL {
            let key = SessionKey::new(enctype, &vec![3; enctype.key_bytes()]).unwrap();
            let send = SendKeys::new(&key, Role::Initiator, true);
            let receive = ReceiveKeys::new(&key, Role::Acceptor, true);
            for filler in 0..40 {
                let mut token = padded_token(&send, b"plain text", filler as u16, filler);
                let place = receive.unwrap(&mut token).unwrap();
                assert_eq!(&token[place], b"plain text");
            }
            let mut token = padded_token(&send, b"plain text", 11, 0);
            assert_eq!(receive.unwrap(&mut token), Err(TokenError::Length));
            let mut token = padded_token(&send, b"", u16::MAX, 0);
            assert_eq!(receive.unwrap(&mut token), Err(TokenError::Length));
        }
    }

    /// The checksum is good, the header inside is another one.
    #[test]
    fn a_header_that_differs_from_its_copy_is_refused() {
        let key = SessionKey::new(Enctype::Aes256Sha1, &[3; 32]).unwrap();
        let send = SendKeys::new(&key, Role::Initiator, true);
        let receive = ReceiveKeys::new(&key, Role::Acceptor, true);
        for (at, flip) in [(2, 8), (5, 1), (8, 1), (15, 1)] {
            let mut token = padded_token(&send, b"plain text", 1, 1);
            token[at] ^= flip;
            assert_eq!(receive.unwrap(&mut token), Err(TokenError::Checksum), "byte {at}");
        }
    }
}
