//! Headers of DDP segments (RFC 5041 section 4).

use super::{Fault, Readable};

pub(super) const TAGGED_BYTES: usize = 14;
pub(super) const UNTAGGED_BYTES: usize = 18;

const TAGGED: u8 = 0x80;
const LAST: u8 = 0x40;
const VERSION_MASK: u8 = 0x03;
const VERSION: u8 = 1;

/// Header of one segment. Reserved bits are sent as zero and not checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// No later segment belongs to the message.
    pub(super) last: bool,
    /// The control byte of RDMAP.
    pub(super) ulp: u8,
    pub(super) target: Target,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// Registered memory of the receiver.
    Tagged { stag: u32, offset: u64 },
    /// A buffer of one of the receiver's queues.
    Untagged(Untagged),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Untagged {
    /// The rest of what DDP reserves for RDMAP: the STag to invalidate.
    pub(super) ulp_word: u32,
    pub(super) queue: u32,
    pub(super) msn: u32,
    /// Message offset of the payload.
    pub(super) offset: u32,
}

impl Untagged {
    /// The segment is the next one of its queue.
    pub(super) const fn check(&self, queue: u32, msn: u32, offset: u32) -> Result<(), Fault> {
        match *self {
            Self { queue: other, .. } if other != queue => Err(Fault::QueueNumber),
            Self { msn: other, .. } if other != msn => Err(Fault::MsnRange),
            Self { offset: other, .. } if other != offset => Err(Fault::MessageOffset),
            _ => Ok(()),
        }
    }
}

impl Header {
    pub(super) const fn bytes(&self) -> usize {
        match self.target {
            Target::Tagged { .. } => TAGGED_BYTES,
            Target::Untagged(_) => UNTAGGED_BYTES,
        }
    }

    /// The header of the segment that is all of `segment`.
    pub(super) fn parse(segment: Readable<'_>) -> Result<Self, Fault> {
        let [control, ulp] = segment.array(0).ok_or(Fault::UlpduLength)?;
        let is_tagged = control & TAGGED != 0;
        if control & VERSION_MASK != VERSION {
            return Err(if is_tagged { Fault::TaggedVersion } else { Fault::UntaggedVersion });
        }
        let word = |at| segment.array(at).map(u32::from_be_bytes).ok_or(Fault::UlpduLength);
        let target = if is_tagged {
            let offset = u64::from_be_bytes(segment.array(6).ok_or(Fault::UlpduLength)?);
            Target::Tagged { stag: word(2)?, offset }
        } else {
            let (ulp_word, queue, msn, offset) = (word(2)?, word(6)?, word(10)?, word(14)?);
            Target::Untagged(Untagged { ulp_word, queue, msn, offset })
        };
        Ok(Self { last: control & LAST != 0, ulp, target })
    }

    /// Writes the header to the start of `into`, which has room for [`UNTAGGED_BYTES`].
    pub(super) fn emit(&self, into: &mut [u8]) {
        let last = if self.last { LAST } else { 0 };
        into[1] = self.ulp;
        match self.target {
            Target::Tagged { stag, offset } => {
                into[0] = TAGGED | last | VERSION;
                into[2..6].copy_from_slice(&stag.to_be_bytes());
                into[6..14].copy_from_slice(&offset.to_be_bytes());
            }
            Target::Untagged(Untagged { ulp_word, queue, msn, offset }) => {
                into[0] = last | VERSION;
                for (at, word) in [(2, ulp_word), (6, queue), (10, msn), (14, offset)] {
                    into[at..at + 4].copy_from_slice(&word.to_be_bytes());
                }
            }
        }
    }
}
