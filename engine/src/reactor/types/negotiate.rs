//! Negotiation between both ends of a connection, and its results: the eight octets of private data that go both ways
//! while connecting (RFC 8797), and the call and reply of the Connection Configuration Protocol (RFC 5666 section 6).
//!
//! Every limit is the minimum of the peer's statement and the local configuration. This module neither blocks nor
//! allocates; the core uses it when a connection opens, the api after the Connection Configuration Protocol was
//! spoken.

use crate::config::Config;
use crate::reactor::types::peer_id::{Instance, PeerId};
use spinrpc_proto::alignment::Alignment;
#[cfg(any(test, fuzzing))]
use spinrpc_proto::config_proto::{BODY_BYTES, ConfigReply, ConfigRequest};
use spinrpc_proto::version::{InlineThresholds, TransportVersion, Verdict, Versions};

const MAGIC: u32 = 0xf6ab_0e18;
const VERSION: u8 = 1;
const FLAG_REMOTE_INVALIDATE: u8 = 1;
/// Sizes that a silent peer is assumed to support (RFC 8797 section 3).
const DEFAULT_BYTES: usize = 1024;
/// Length of the message.
const MESSAGE_BYTES: usize = 8;
/// Length of all private data that this engine sends: at most the 56 octets that rdma_cm takes.
const PRIVATE_DATA_BYTES: usize = MESSAGE_BYTES + Instance::BYTES;

/// Private data of one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(in crate::reactor::types) send_bytes: usize,
    pub(in crate::reactor::types) recv_bytes: usize,
    pub(in crate::reactor::types) remote_invalidate: bool,
    /// Identifies the end on later connections; follows the eight octets.
    pub(in crate::reactor::types) instance: Instance,
}

impl Offer {
    /// Returns the offer of this engine's configuration.
    pub(crate) fn of(config: &Config, remote_invalidate: bool, instance: Instance) -> Self {
        Self {
            send_bytes: config.inline_send_bytes(),
            recv_bytes: config.inline_recv_bytes(),
            remote_invalidate,
            instance,
        }
    }

    /// Encodes the eight octets: magic, version, flags, sizes coded as KiB less one (section 4); and the instance,
    /// which other readers of this format version ignore.
    pub(crate) fn encode(&self) -> [u8; PRIVATE_DATA_BYTES] {
        let code = |bytes: usize| (bytes / 1024).clamp(1, 256).wrapping_sub(1) as u8;
        let [a, b, c, d] = MAGIC.to_be_bytes();
        let flags = if self.remote_invalidate { FLAG_REMOTE_INVALIDATE } else { 0 };
        let message = [a, b, c, d, VERSION, flags, code(self.send_bytes), code(self.recv_bytes)];
        let mut data = [0; PRIVATE_DATA_BYTES];
        data[..MESSAGE_BYTES].copy_from_slice(&message);
        data[MESSAGE_BYTES..].copy_from_slice(&self.instance.encode());
        data
    }

    /// Finds the message anywhere in the private data: the lower layer may have put bytes in front
    /// (section 5.2). `None` if there is nothing that can be understood.
    pub(crate) fn decode(private_data: &[u8]) -> Option<Self> {
        let at = private_data
            .windows(MESSAGE_BYTES)
            .position(|window| window[..4] == MAGIC.to_be_bytes() && window[4] == VERSION)?;
        let (message, behind) = private_data[at..].split_first_chunk::<MESSAGE_BYTES>()?;
        let [_, _, _, _, _, flags, send, recv] = *message;
        Some(Self {
            send_bytes: (usize::from(send) + 1) * 1024,
            recv_bytes: (usize::from(recv) + 1) * 1024,
            remote_invalidate: flags & FLAG_REMOTE_INVALIDATE != 0,
            instance: Instance::decode(behind),
        })
    }
}

/// Terms of one connection before the Connection Configuration Protocol is spoken on it. Kept as long as the
/// connection, because each request of that protocol is combined with these terms, and replaces the previous request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(in crate::reactor::types) ours: Offer,
    /// `None`: the peer's private data says nothing.
    pub(in crate::reactor::types) theirs: Option<Offer>,
    /// RDMA Reads the driver may have outstanding (ORD).
    pub(in crate::reactor::types) reads_max: u16,
    /// RDMA Reads the peer may have active here (IRD).
    pub(in crate::reactor::types) peer_reads_max: u16,
    /// Padding of inline data by this side, if any.
    pub(in crate::reactor::types) alignment: Alignment,
    /// Identity of the peer from the driver.
    pub(in crate::reactor::types) peer_identity: u64,
    /// Sizes that this side sends and receives in version two.
    pub(in crate::reactor::types) two_bytes: (usize, usize),
    /// The version, if no other is spoken.
    pub(in crate::reactor::types) version: Option<TransportVersion>,
}

impl Terms {
    pub(crate) fn new(
        ours: &Offer,
        (peer_private_data, peer_identity): (&[u8], u64),
        reads_max: u16,
        config: &Config,
    ) -> Self {
        Self {
            ours: *ours,
            theirs: Offer::decode(peer_private_data),
            peer_identity,
            two_bytes: (config.send_room_bytes(), config.recv_buffer_bytes()),
            version: only(config.versions()),
            reads_max,
            peer_reads_max: config.rdma_reads_max(),
            alignment: config.msgp_alignment(),
        }
    }

    /// Result of the private data alone: thresholds are the minimum of the size that one side sends and the size that
    /// the other receives; remote invalidation needs both flags (RFC 8797 section 4).
    pub(crate) fn agreed(&self) -> Negotiated {
        let (send, recv) = match &self.theirs {
            Some(theirs) => (theirs.recv_bytes, theirs.send_bytes),
            None => (DEFAULT_BYTES, DEFAULT_BYTES),
        };
        Negotiated {
            sends: self.thresholds(self.ours.send_bytes.min(send), self.two_bytes.0, true),
            recvs: self.thresholds(self.ours.recv_bytes.min(recv), self.two_bytes.1, false),
            version: self.version,
            remote_invalidate: self.ours.remote_invalidate
                && self.theirs.is_some_and(|theirs| theirs.remote_invalidate),
            reads_max: self.reads_max,
            takes_read_chunks: self.peer_reads_max > 0,
            msgp_align_bytes: None,
            is_configured: false,
            alignment: Alignment::NONE,
            unpadded_bytes_max: [0; 2],
            peer: PeerId::new(
                self.peer_identity,
                self.theirs.map_or(Instance::Unknown, |theirs| theirs.instance),
            ),
        }
        .padded(self.alignment)
    }

    /// Version one uses `one_bytes`. In version two our buffers and the sizes stated while connecting apply, but
    /// never less than what "senders MUST assume" (version two section 2.3).
    pub(in crate::reactor::types) fn thresholds(
        &self,
        one_bytes: usize,
        two_bytes: usize,
        sent: bool,
    ) -> InlineThresholds {
        let agreed = self.theirs.map(|theirs| match sent {
            true => theirs.recv_bytes as u32,
            false => theirs.send_bytes as u32,
        });
        InlineThresholds::new(one_bytes as u32, two_bytes as u32, agreed)
    }
}

/// The only version spoken; `None` if there are several.
fn only(versions: Versions) -> Option<TransportVersion> {
    (versions.low() == versions.high()).then_some(versions.low())
}

/// Limits and features that both ends agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    pub(in crate::reactor::types) sends: InlineThresholds,
    pub(in crate::reactor::types) recvs: InlineThresholds,
    version: Option<TransportVersion>,
    remote_invalidate: bool,
    pub(in crate::reactor::types) reads_max: u16,
    pub(in crate::reactor::types) takes_read_chunks: bool,
    pub(in crate::reactor::types) msgp_align_bytes: Option<u32>,
    pub(in crate::reactor::types) is_configured: bool,
    /// In version one; there is no padding in version two.
    alignment: Alignment,
    /// By version.
    unpadded_bytes_max: [usize; 2],
    peer: PeerId,
}

/// Outcome of an offer of a version.
pub(crate) struct Settled {
    pub(crate) negotiated: Negotiated,
    pub(crate) verdict: Verdict,
}

impl Negotiated {
    pub(crate) const PRIVATE_DATA_BYTES: usize = PRIVATE_DATA_BYTES;

    /// Private data that this engine sends while connecting; `instance` is the instance of the client, or of the
    /// listening engine.
    pub(crate) fn private_data(
        config: &Config,
        remote_invalidate: bool,
        instance: Instance,
    ) -> [u8; PRIVATE_DATA_BYTES] {
        Offer::of(config, remote_invalidate, instance).encode()
    }

    /// The same for an end that serves reverse calls: it does not recognise the peer on later connections. The peer's
    /// XIDs on one connection are unrelated to those on another, and it sends no call again.
    pub(crate) fn in_reverse(mut self) -> Self {
        self.peer.instance = Instance::Passing;
        self
    }

    /// Identification of the peer on other connections.
    pub(crate) fn peer(&self) -> PeerId {
        self.peer
    }

    /// Pads inline data like this.
    pub(in crate::reactor) fn padded(mut self, alignment: Alignment) -> Self {
        self.alignment = alignment;
        for version in [TransportVersion::One, TransportVersion::Two] {
            let threshold_bytes = self.alignment(version).threshold_bytes() as usize;
            let unpadded_bytes = version.chunkless_header_bytes().saturating_add(threshold_bytes);
            self.unpadded_bytes_max[place(version)] =
                self.inline_bytes_max_in(version).min(unpadded_bytes);
        }
        self
    }

    /// The same while version two is offered: every call is then checked before it is sent, because the first one may
    /// have to be sent again.
    pub(in crate::reactor) fn offering(mut self) -> Self {
        let two = TransportVersion::Two;
        self.unpadded_bytes_max[place(two)] = two.chunkless_header_bytes();
        self.version = None;
        self
    }

    /// The same once that version is known to be spoken.
    pub(in crate::reactor) fn settled(self, version: TransportVersion) -> Self {
        Self { version: Some(version), ..self }.padded(self.alignment)
    }

    /// Padding of inline data by this side: as configured, or to the alignment that the peer recommends (RFC 5666
    /// section 6.2). Not in version two, which has no RDMA_MSGP.
    pub(crate) fn alignment(&self, version: TransportVersion) -> Alignment {
        match version {
            TransportVersion::One => self.alignment,
            TransportVersion::Two => Alignment::NONE,
        }
    }

    /// Longest message this side may send without inspecting its contents: no data in it can reach the threshold of
    /// padding.
    #[inline]
    pub(crate) fn unpadded_bytes_max(&self, version: TransportVersion) -> usize {
        self.unpadded_bytes_max[place(version)]
    }

    /// Thresholds for sending, by version.
    pub(crate) fn thresholds(&self) -> &InlineThresholds {
        &self.sends
    }

    /// As [`Negotiated::send_bytes_max`], in that version.
    pub(crate) fn inline_bytes_max_in(&self, version: TransportVersion) -> usize {
        self.sends.of(version) as usize
    }

    /// Longest stream of an inline reply in that version whose header has no chunks.
    pub(crate) fn reply_bytes_max(&self, version: TransportVersion) -> usize {
        (self.recvs.of(version) as usize).saturating_sub(version.chunkless_header_bytes())
    }

    /// Sizes that this side may send and receive in version one.
    pub(in crate::reactor::types) fn one_bytes(&self) -> (usize, usize) {
        let one = TransportVersion::One;
        (self.sends.of(one) as usize, self.recvs.of(one) as usize)
    }

    /// The version of RPC-over-RDMA in which this side calls. `None` as long as it is not known: at
    /// the side that accepted, if both are spoken, because it answers each call in its own version.
    pub fn version(&self) -> Option<TransportVersion> {
        self.version
    }

    /// Longest message this side may send inline, transport header included, in bytes. The sizes of the Connection
    /// Configuration Protocol, which does not define what it counts, are read in the same way. While the version is
    /// not known, this is the size of version one.
    pub fn send_bytes_max(&self) -> usize {
        self.inline_bytes_max_in(self.version.unwrap_or(TransportVersion::One))
    }

    /// Longest message the peer may send inline, in bytes; of the version as
    /// [`Negotiated::send_bytes_max`].
    pub fn recv_bytes_max(&self) -> usize {
        self.recvs.of(self.version.unwrap_or(TransportVersion::One)) as usize
    }

    /// Send With Invalidate may be used.
    pub fn remote_invalidate(&self) -> bool {
        self.remote_invalidate
    }

    /// RDMA Reads this side may have outstanding on the connection: those of the driver and, once
    /// the peer has said how many may be active at it, no more than that (RFC 5666 section 6.2).
    pub fn reads_max(&self) -> u16 {
        self.reads_max
    }

    /// Returns true if data may be offered as a Read chunk, in calls or in replies. Not if either end states that
    /// zero RDMA Reads may be active: "the peer MUST NOT issue requests that require RDMA Read to satisfy, as no
    /// transfer will be possible" (RFC 5666 section 6.2). The text is ambiguous about which end's reads the count
    /// limits, so zero at either end rules out Read chunks.
    pub fn takes_read_chunks(&self) -> bool {
        self.takes_read_chunks
    }

    /// Alignment in bytes that the server recommends for the data of RDMA_MSGP (RFC 5666 sections
    /// 3.9 and 6.2): a power of two from 4 to 4096. `None` until a client has heard a usable one.
    pub fn msgp_align_bytes(&self) -> Option<u32> {
        self.msgp_align_bytes
    }

    /// Returns true if the Connection Configuration Protocol contributed to it (RFC 5666 section 6).
    pub fn is_configured(&self) -> bool {
        self.is_configured
    }
}

/// The place of a version in an array.
#[inline]
const fn place(version: TransportVersion) -> usize {
    version as usize - 1
}

/// Checks that sizes stay between the base level and the local configuration, whatever a peer states while connecting
/// and in the Connection Configuration Protocol. For fuzzing.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(said: &[u8]) {
    const MOST_BYTES: usize = 4096;
    let ours = Offer {
        send_bytes: MOST_BYTES,
        recv_bytes: MOST_BYTES,
        remote_invalidate: true,
        instance: Instance::Passing,
    };
    let theirs = Offer::decode(said);
    if let Some(offer) = theirs {
        assert_eq!(Offer::decode(&offer.encode()), theirs);
    }
    let (alignment, peer_identity) = (Alignment::NONE, 0);
    let terms = Terms {
        ours,
        theirs,
        reads_max: 16,
        peer_reads_max: 16,
        alignment,
        peer_identity,
        two_bytes: (MOST_BYTES, MOST_BYTES),
        version: None,
    };
    let last_words = &said[said.len().saturating_sub(BODY_BYTES)..];
    let request = ConfigRequest::parse(last_words).map(|request| terms.with_request(&request));
    let reply = ConfigReply::parse(last_words).map(|reply| terms.with_reply(&reply));
    for negotiated in [Ok(terms.agreed()), request, reply].into_iter().flatten() {
        assert!(negotiated.send_bytes_max() <= MOST_BYTES);
        assert!((DEFAULT_BYTES..=MOST_BYTES).contains(&negotiated.recv_bytes_max()));
        assert!(negotiated.reads_max() <= 16);
        assert!(negotiated.msgp_align_bytes().is_none_or(u32::is_power_of_two));
    }
}

#[cfg(test)]
pub(in crate::reactor::types) mod tests {
    use super::*;

    pub(in crate::reactor::types) const OURS: Offer = Offer {
        send_bytes: 4096,
        recv_bytes: 8192,
        remote_invalidate: true,
        instance: Instance::Lasting(7),
    };
    const NONE: Alignment = Alignment::NONE;

    pub(in crate::reactor::types) fn terms(theirs: Option<Offer>) -> Terms {
        Terms {
            ours: OURS,
            theirs,
            reads_max: 128,
            peer_reads_max: 16,
            alignment: NONE,
            peer_identity: 9,
            two_bytes: (4096, 8192),
            version: Some(TransportVersion::One),
        }
    }

    pub(in crate::reactor::types) fn sizes(negotiated: &Negotiated) -> (usize, usize) {
        (negotiated.send_bytes_max(), negotiated.recv_bytes_max())
    }

    #[test]
    fn the_message_is_eight_octets_with_sizes_in_kib_less_one() {
        assert_eq!(OURS.encode()[..8], [0xf6, 0xab, 0x0e, 0x18, 1, 1, 3, 7]);
        assert_eq!(Offer::decode(&OURS.encode()), Some(OURS));
    }

    #[test]
    fn receive_the_eight_octets_alone_expect_a_peer_of_unknown_instance() {
        let theirs = Offer::decode(&OURS.encode()[..8]);
        assert_eq!(theirs, Some(Offer { instance: Instance::Unknown, ..OURS }));
    }

    /// RFC 8797 section 4: "Senders MUST set these bits to zero, and receivers MUST ignore their value".
    #[test]
    fn reserved_flags_are_sent_as_zero_and_mean_nothing() {
        for remote_invalidate in [false, true] {
            let offer = Offer { remote_invalidate, ..OURS };
            let mut data = offer.encode();
            assert_eq!(data[5] & 0xfe, 0);
            data[5] |= 0xfe;
            assert_eq!(Offer::decode(&data), Some(offer));
        }
    }

    #[test]
    fn receive_it_behind_foreign_bytes_expect_it_found() {
        let mut area = [0u8; 56];
        area[5..5 + PRIVATE_DATA_BYTES].copy_from_slice(&OURS.encode());
        assert_eq!(Offer::decode(&area), Some(OURS));
    }

    #[test]
    fn receive_nothing_or_another_version_or_a_cut_message_expect_the_defaults() {
        let mut other = OURS.encode();
        other[4] = 2;
        for data in [&[][..], &other[..], &OURS.encode()[..7]] {
            let agreed = Terms::new(&OURS, (data, 0), 128, &Config::default()).agreed();
            assert_eq!(sizes(&agreed), (1024, 1024));
            assert!(!agreed.remote_invalidate());
        }
    }

    #[test]
    fn thresholds_are_minima_and_invalidation_needs_both() {
        let theirs =
            Offer { send_bytes: 65536, recv_bytes: 1024, remote_invalidate: false, ..OURS };
        let agreed = terms(Some(theirs)).agreed();
        assert_eq!(sizes(&agreed), (1024, 8192));
        assert!(!agreed.remote_invalidate());
        assert_eq!((agreed.reads_max(), agreed.takes_read_chunks()), (128, true));
        assert!(!agreed.is_configured());
    }
}
