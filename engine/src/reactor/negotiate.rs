//! RFC 8797: the eight octets of private data that both ends send while connecting, and what
//! follows from them.

use crate::config::Config;

const MAGIC: u32 = 0xf6ab_0e18;
const VERSION: u8 = 1;
const FLAG_REMOTE_INVALIDATE: u8 = 1;
/// What a peer that says nothing is taken to support (RFC 8797 section 3).
const DEFAULT_BYTES: usize = 1024;
/// Length of the message.
const PRIVATE_DATA_BYTES: usize = 8;

/// What one end says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    send_bytes: usize,
    recv_bytes: usize,
    remote_invalidate: bool,
}

impl Offer {
    /// What this engine's configuration says.
    pub(crate) fn of(config: &Config, remote_invalidate: bool) -> Self {
        Self {
            send_bytes: config.inline_send_bytes(),
            recv_bytes: config.inline_recv_bytes(),
            remote_invalidate,
        }
    }

    /// The eight octets: magic, version, flags, sizes coded as KiB less one (section 4).
    pub(crate) fn encode(&self) -> [u8; PRIVATE_DATA_BYTES] {
        let code = |bytes: usize| (bytes / 1024).clamp(1, 256).wrapping_sub(1) as u8;
        let [a, b, c, d] = MAGIC.to_be_bytes();
        let flags = if self.remote_invalidate { FLAG_REMOTE_INVALIDATE } else { 0 };
        [a, b, c, d, VERSION, flags, code(self.send_bytes), code(self.recv_bytes)]
    }

    /// Finds the message anywhere in the private data: the lower layer may have put bytes in front
    /// (section 5.2). Nothing that can be understood means the defaults.
    pub(crate) fn decode(private_data: &[u8]) -> Self {
        let found = private_data
            .windows(PRIVATE_DATA_BYTES)
            .find(|window| window[..4] == MAGIC.to_be_bytes() && window[4] == VERSION);
        let Some(&[_, _, _, _, _, flags, send, recv]) = found else { return Self::silent() };
        Self {
            send_bytes: (usize::from(send) + 1) * 1024,
            recv_bytes: (usize::from(recv) + 1) * 1024,
            remote_invalidate: flags & FLAG_REMOTE_INVALIDATE != 0,
        }
    }

    fn silent() -> Self {
        Self { send_bytes: DEFAULT_BYTES, recv_bytes: DEFAULT_BYTES, remote_invalidate: false }
    }
}

/// What both ends together allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    send_bytes_max: usize,
    recv_bytes_max: usize,
    remote_invalidate: bool,
}

impl Negotiated {
    pub(crate) const PRIVATE_DATA_BYTES: usize = PRIVATE_DATA_BYTES;

    /// What this engine sends while connecting.
    pub(crate) fn private_data(
        config: &Config,
        remote_invalidate: bool,
    ) -> [u8; PRIVATE_DATA_BYTES] {
        Offer::of(config, remote_invalidate).encode()
    }

    /// Thresholds are the minimum of what one side sends and the other receives; remote
    /// invalidation needs both flags (RFC 8797 section 4).
    pub(crate) fn between(ours: &Offer, theirs: &Offer) -> Self {
        Self {
            send_bytes_max: ours.send_bytes.min(theirs.recv_bytes),
            recv_bytes_max: theirs.send_bytes.min(ours.recv_bytes),
            remote_invalidate: ours.remote_invalidate && theirs.remote_invalidate,
        }
    }

    /// Longest message this side may send inline, transport header included, in bytes.
    pub fn send_bytes_max(&self) -> usize {
        self.send_bytes_max
    }

    /// Longest message the peer may send inline, in bytes.
    pub fn recv_bytes_max(&self) -> usize {
        self.recv_bytes_max
    }

    /// Send With Invalidate may be used.
    pub fn remote_invalidate(&self) -> bool {
        self.remote_invalidate
    }
}

/// Whatever a peer says, thresholds stay within what RFC 8797 can express. For fuzzing.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(private_data: &[u8]) {
    let offer = Offer::decode(private_data);
    for bytes in [offer.send_bytes, offer.recv_bytes] {
        assert!((1024..=262_144).contains(&bytes) && bytes.is_multiple_of(1024));
    }
    assert_eq!(Offer::decode(&offer.encode()), offer);
    assert_eq!(Negotiated::between(&offer, &Offer::silent()).send_bytes_max(), DEFAULT_BYTES);
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Offer = Offer { send_bytes: 4096, recv_bytes: 8192, remote_invalidate: true };

    #[test]
    fn the_message_is_eight_octets_with_sizes_in_kib_less_one() {
        assert_eq!(OURS.encode(), [0xf6, 0xab, 0x0e, 0x18, 1, 1, 3, 7]);
        assert_eq!(Offer::decode(&OURS.encode()), OURS);
    }

    #[test]
    fn receive_it_behind_foreign_bytes_expect_it_found() {
        let mut area = [0u8; 56];
        area[5..13].copy_from_slice(&OURS.encode());
        assert_eq!(Offer::decode(&area), OURS);
    }

    #[test]
    fn receive_nothing_or_another_version_or_a_cut_message_expect_the_defaults() {
        let mut other = OURS.encode();
        other[4] = 2;
        for data in [&[][..], &other[..], &OURS.encode()[..7]] {
            assert_eq!(Offer::decode(data), Offer::silent());
        }
    }

    #[test]
    fn thresholds_are_minima_and_invalidation_needs_both() {
        let theirs = Offer { send_bytes: 65536, recv_bytes: 1024, remote_invalidate: false };
        let agreed = Negotiated::between(&OURS, &theirs);
        assert_eq!(agreed.send_bytes_max(), 1024);
        assert_eq!(agreed.recv_bytes_max(), 8192);
        assert!(!agreed.remote_invalidate());
    }
}
