//! The start of a connection: Request and Reply frames (RFC 5044 section 7.1), with the data of RFC 6581, and the
//! terms that both ends draw from them.

use super::Parsed;

/// Bytes of the longest frame.
pub const FRAME_BYTES_MAX: usize = HEADER_BYTES + FIELD_BYTES_MAX;

/// Private data of the application that one frame can carry, in either revision.
pub const PRIVATE_DATA_BYTES_MAX: usize = FIELD_BYTES_MAX - ENHANCED_BYTES;

const KEY_BYTES: usize = 16;
const HEADER_BYTES: usize = KEY_BYTES + 4;
/// Limit of the private data, with those of RFC 6581 (RFC 5044 section 7.1.1).
const FIELD_BYTES_MAX: usize = 512;
const ENHANCED_BYTES: usize = 4;

const MARKERS: u8 = 0x80;
const CRC: u8 = 0x40;
const REJECT: u8 = 0x20;
const ENHANCED: u8 = 0x10;

/// The two flags above a number of Reads: A and B with IRD, C and D with ORD (RFC 6581).
const HIGH: u16 = 0x8000;
const LOW: u16 = 0x4000;
const READS_MASK: u16 = 0x3fff;

/// Direction of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    Request,
    Reply,
}

impl FrameKind {
    const fn key(self) -> &'static [u8; KEY_BYTES] {
        match self {
            Self::Request => b"MPA ID Req Frame",
            Self::Reply => b"MPA ID Rep Frame",
        }
    }
}

/// First FPDU of the connecting side, which lets the other one send (Ready To Receive).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rtr {
    /// A Send of no bytes, which is not a message.
    Send,
    /// A Write of no bytes. Its key is not looked at; 1 is safe, as some adapters treat 0 in a special way.
    Write,
    /// A Read of no bytes, which counts against ORD.
    Read,
}

/// Kinds of [`Rtr`], flags B, C and D: offered in a Request, chosen in a Reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RtrKinds {
    pub send: bool,
    pub write: bool,
    pub read: bool,
}

impl RtrKinds {
    /// The kind that costs least. A Write needs neither a receive nor a Read: Linux's siw prefers it as well.
    const fn preferred(self) -> Option<Rtr> {
        match self {
            Self { write: true, .. } => Some(Rtr::Write),
            Self { read: true, .. } => Some(Rtr::Read),
            Self { send: true, .. } => Some(Rtr::Send),
            _ => None,
        }
    }

    const fn only(kind: Rtr) -> Self {
        let (send, write) = (matches!(kind, Rtr::Send), matches!(kind, Rtr::Write));
        Self { send, write, read: matches!(kind, Rtr::Read) }
    }
}

/// Data of RFC 6581, in front of the private data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Enhanced {
    /// RDMA Reads that the sender of the frame serves at a time; 0x3fff says nothing.
    pub ird: u16,
    /// RDMA Reads that it wants to have outstanding; 0x3fff says nothing.
    pub ord: u16,
    /// Flag A: either side may send first, so that an [`Rtr`] is needed.
    pub peer_to_peer: bool,
    /// Means nothing without flag A.
    pub rtr: RtrKinds,
}

impl Enhanced {
    fn to_bytes(self) -> [u8; ENHANCED_BYTES] {
        let flags = |high, low| (u16::from(high) * HIGH) | (u16::from(low) * LOW);
        let rtr = if self.peer_to_peer { self.rtr } else { RtrKinds::default() };
        let ird = flags(self.peer_to_peer, rtr.send) | self.ird.min(READS_MASK);
        let ord = flags(rtr.write, rtr.read) | self.ord.min(READS_MASK);
        let ([a, b], [c, d]) = (ird.to_be_bytes(), ord.to_be_bytes());
        [a, b, c, d]
    }

    const fn from_bytes([a, b, c, d]: [u8; ENHANCED_BYTES]) -> Self {
        let (ird, ord) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        let peer_to_peer = ird & HIGH != 0;
        let rtr = RtrKinds {
            send: peer_to_peer && ird & LOW != 0,
            write: peer_to_peer && ord & HIGH != 0,
            read: peer_to_peer && ord & LOW != 0,
        };
        Self { ird: ird & READS_MASK, ord: ord & READS_MASK, peer_to_peer, rtr }
    }
}

/// Reason why bytes are not a frame. The driver closes the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the texts say it")]
pub enum FrameError {
    #[error("not an MPA frame")]
    Key,
    #[error("MPA revision {0}, known are 1 and 2")]
    Revision(u8),
    #[error("MPA frame with {0} bytes of private data, the maximum is 512")]
    PrivateData(u16),
    #[error("MPA frame without the IRD and ORD that it announces")]
    Enhanced,
}

/// A Request or Reply frame. Reserved bits are not checked; siw uses one for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    pub kind: FrameKind,
    /// 1, or 2 for RFC 6581.
    pub revision: u8,
    /// Flag M: its sender wants markers, which this end does not support.
    pub markers: bool,
    /// Flag C: its sender wants CRCs. In a Reply: CRCs are used.
    pub crc: bool,
    /// Flag R: a Reply that refuses the connection.
    pub reject: bool,
    /// Flag S, of revision 2 only: the data of RFC 6581.
    pub enhanced: Option<Enhanced>,
    /// Private data of the application, at most [`PRIVATE_DATA_BYTES_MAX`] to be sent.
    pub private_data: &'a [u8],
}

impl<'a> Frame<'a> {
    /// The frame that `bytes` begin with, and its length. An error is found as soon as the bytes show it.
    pub fn parse(kind: FrameKind, bytes: &'a [u8]) -> Result<Parsed<(Self, usize)>, FrameError> {
        let key = kind.key();
        if bytes.iter().zip(key).any(|(byte, expected)| byte != expected) {
            return Err(FrameError::Key);
        }
        let Some(&[flags, revision, high, low]) = bytes.get(KEY_BYTES..HEADER_BYTES) else {
            return Ok(Parsed::Need(HEADER_BYTES));
        };
        if !(1..=2).contains(&revision) {
            return Err(FrameError::Revision(revision));
        }
        let field_bytes = u16::from_be_bytes([high, low]);
        let end = HEADER_BYTES + usize::from(field_bytes);
        if end > FRAME_BYTES_MAX {
            return Err(FrameError::PrivateData(field_bytes));
        }
        let Some(field) = bytes.get(HEADER_BYTES..end) else {
            return Ok(Parsed::Need(end));
        };
        let reject = kind == FrameKind::Reply && flags & REJECT != 0;
        let (enhanced, private_data) = match field.split_first_chunk() {
            _ if revision < 2 || flags & ENHANCED == 0 => (None, field),
            Some((data, rest)) => (Some(Enhanced::from_bytes(*data)), rest),
            // siw leaves the data out of its refusals, with the flag set.
            None if reject => (None, field),
            None => return Err(FrameError::Enhanced),
        };
        let (markers, crc) = (flags & MARKERS != 0, flags & CRC != 0);
        let frame = Self { kind, revision, markers, crc, reject, enhanced, private_data };
        Ok(Parsed::Done((frame, end)))
    }

    /// Writes the frame to the start of `into` and returns its length; `None` if it has more than
    /// [`PRIVATE_DATA_BYTES_MAX`].
    pub fn emit(&self, into: &mut [u8; FRAME_BYTES_MAX]) -> Option<usize> {
        if self.private_data.len() > PRIVATE_DATA_BYTES_MAX {
            return None;
        }
        let enhanced = self.enhanced.map(Enhanced::to_bytes);
        let data = enhanced.as_ref().map_or(&[][..], |data| data);
        let field_bytes = data.len() + self.private_data.len();
        into[..KEY_BYTES].copy_from_slice(self.kind.key());
        into[KEY_BYTES] = (u8::from(self.markers) * MARKERS) | (u8::from(self.crc) * CRC);
        into[KEY_BYTES] |= u8::from(self.reject) * REJECT;
        into[KEY_BYTES] |= u8::from(enhanced.is_some()) * ENHANCED;
        into[KEY_BYTES + 1] = self.revision;
        into[KEY_BYTES + 2..HEADER_BYTES].copy_from_slice(&(field_bytes as u16).to_be_bytes());
        let (field, end) = (HEADER_BYTES + data.len(), HEADER_BYTES + field_bytes);
        into[HEADER_BYTES..field].copy_from_slice(data);
        into[field..end].copy_from_slice(self.private_data);
        Some(end)
    }
}

/// Wishes of this end for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local {
    /// Revision of the Request: 2, or 1 for a peer that refused 2. Either is answered.
    pub revision: u8,
    /// CRCs are wanted. They are used if either end wants them.
    pub crc: bool,
    /// RDMA Reads of the peer that this end serves at a time.
    pub ird: u16,
    /// RDMA Reads that it wants to have outstanding.
    pub ord: u16,
    /// As the connecting side, announce an [`Rtr`]. Needed where the other side may send the first message.
    pub peer_to_peer: bool,
}

/// Terms of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// CRCs are sent and checked.
    pub crc: bool,
    /// RDMA Reads of the peer that this end must serve at a time.
    pub ird: u16,
    /// RDMA Reads that this end may have outstanding.
    pub ord: u16,
    /// The FPDU that the connecting side sends at once. `None`: its first message lets the other side send.
    pub rtr: Option<Rtr>,
}

/// The Reply to a Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// Send it and go on.
    Accept(Frame<'a>, Agreed),
    /// Send it and close: the peer wants markers.
    Refuse(Frame<'a>),
}

/// Reason why a Reply leads to no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the texts say it")]
pub enum ReplyError {
    #[error("the peer rejected the connection")]
    Rejected,
    #[error("the peer does not support MPA revision 2")]
    Revision,
    #[error("the peer requires MPA markers, which are not supported")]
    Markers,
    #[error("the peer requires more RDMA Reads at a time than this side serves")]
    InsufficientIrd,
    #[error("the peer accepts none of the offered RTR messages")]
    NoMatchingRtr,
    #[error("the peer does not say how many RDMA Reads it serves")]
    NoNumbers,
}

impl Local {
    /// The Request to send.
    pub fn request<'a>(&self, private_data: &'a [u8]) -> Frame<'a> {
        let &Self { ird, ord, peer_to_peer, .. } = self;
        let rtr = RtrKinds { send: false, write: true, read: ord > 0 };
        let enhanced = Enhanced { ird, ord, peer_to_peer, rtr };
        Frame {
            kind: FrameKind::Request,
            revision: self.revision.clamp(1, 2),
            markers: false,
            crc: self.crc,
            reject: false,
            enhanced: (self.revision >= 2).then_some(enhanced),
            private_data,
        }
    }

    /// The Reply to a Request of the peer.
    pub fn answer<'a>(&self, request: &Frame<'_>, private_data: &'a [u8]) -> Answer<'a> {
        if request.markers {
            return Answer::Refuse(self.refuse(request, &[]));
        }
        let crc = self.uses_crc(request);
        let enhanced = request.enhanced.map(|peer| {
            let (ird, ord) = (self.ird.min(peer.ord), self.ord.min(peer.ird));
            let offered = RtrKinds { read: peer.rtr.read && ird > 0, ..peer.rtr };
            // A Request that offers none gets a Write, as from siw.
            let rtr = peer.peer_to_peer.then(|| offered.preferred().unwrap_or(Rtr::Write));
            let rtr = rtr.map_or_else(RtrKinds::default, RtrKinds::only);
            Enhanced { ird, ord, peer_to_peer: peer.peer_to_peer, rtr }
        });
        let agreed = match enhanced {
            Some(own) => {
                let rtr = own.rtr.preferred();
                Agreed { crc, ird: tolerated(own.ird), ord: own.ord, rtr }
            }
            None => self.without_numbers(crc),
        };
        let reply = Frame { enhanced, private_data, reject: false, ..self.refuse(request, &[]) };
        Answer::Accept(reply, agreed)
    }

    /// A Reply that refuses the connection.
    pub fn refuse<'a>(&self, request: &Frame<'_>, private_data: &'a [u8]) -> Frame<'a> {
        let numbers = Enhanced { ird: self.ird, ord: self.ord, ..Enhanced::default() };
        Frame {
            kind: FrameKind::Reply,
            revision: request.revision,
            markers: false,
            crc: self.uses_crc(request),
            reject: true,
            enhanced: request.enhanced.map(|_| numbers),
            private_data,
        }
    }

    /// The terms that a Reply to [`Local::request`] makes. After [`ReplyError::Revision`], or when the peer closes without a
    /// Reply, the driver connects again with revision 1.
    pub fn conclude(&self, reply: &Frame<'_>) -> Result<Agreed, ReplyError> {
        let wants_two = self.revision >= 2;
        if wants_two && reply.revision < 2 {
            return Err(ReplyError::Revision);
        }
        if reply.reject {
            return Err(ReplyError::Rejected);
        }
        if reply.markers {
            return Err(ReplyError::Markers);
        }
        // siw uses CRCs by what the Reply says, so that a Reply must repeat the Request's flag; others may not.
        let crc = self.uses_crc(reply);
        if !wants_two {
            return Ok(self.without_numbers(crc));
        }
        let peer = reply.enhanced.ok_or(ReplyError::NoNumbers)?;
        let ird = tolerated(self.ird);
        if peer.ord > ird && peer.ord != READS_MASK {
            return Err(ReplyError::InsufficientIrd);
        }
        let ord = self.ord.min(peer.ird);
        let taken = RtrKinds { send: false, read: peer.rtr.read && ord > 0, ..peer.rtr };
        let rtr = taken.preferred().filter(|_| self.peer_to_peer);
        if self.peer_to_peer && rtr.is_none() {
            return Err(ReplyError::NoMatchingRtr);
        }
        Ok(Agreed { crc, ird: ird.min(tolerated(peer.ord)), ord, rtr })
    }

    /// CRCs are used if either frame asks for them (RFC 5044 section 7.1.1).
    const fn uses_crc(&self, peer: &Frame<'_>) -> bool {
        self.crc || peer.crc
    }

    /// The peer does not tell its IRD. Each adapter serves one Read.
    fn without_numbers(&self, crc: bool) -> Agreed {
        Agreed { crc, ird: self.ird, ord: self.ord.min(1), rtr: None }
    }
}

/// Reads to serve a peer that was told this IRD, or that has said this ORD: Linux's siw makes its queues of Reads as long as the
/// next power of two, and uses all of them.
const fn tolerated(ird: u16) -> u16 {
    let ird = if ird < READS_MASK { ird } else { READS_MASK };
    if ird == 0 { 0 } else { ird.next_power_of_two() }
}
