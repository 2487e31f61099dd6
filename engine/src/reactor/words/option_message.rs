//! A message of an extension of version two, as an application sends and receives it. Used by the options of a core
//! and by the api.

use crate::mem::Buf;
use crate::reactor::words::calls::Backpressure;
use spinrpc_proto::ids::Xid;
use spinrpc_proto::limits::OPTION_INFO_MAX_BYTES;
use spinrpc_proto::options::Carries;
use spinrpc_proto::rdma::MessageType;
use spinrpc_proto::rdma::v1::HeaderView;
use spinrpc_proto::rdma::v2::optional_header_bytes;

/// Offset of the message type in every header.
const TYPE_AT: usize = 12;

/// A message of an extension of version two: an RDMA2_OPTIONAL (draft-cel-nfsv4-rpcrdma-version-two-01
/// section 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionMessage<'a> {
    /// The operation (`rdma_opttype`).
    pub option: u32,
    /// Information for the operation (`rdma_optinfo`), at most 512 bytes.
    pub info: &'a [u8],
    /// Bytes behind the header. For an option that carries a whole RPC message
    /// ([`Carries::Message`](crate::options::Carries)) the first word is its XID: the engine replaces it with the XID
    /// of the transport header when it sends the message.
    pub payload: &'a [u8],
}

impl<'a> OptionMessage<'a> {
    /// Reads a message whose header was checked when it arrived.
    pub(in crate::reactor) fn of(view: &HeaderView<'a>) -> Option<Self> {
        let body = view.optional()?;
        Some(Self { option: body.option, info: body.info, payload: view.payload() })
    }

    fn bytes(&self) -> usize {
        optional_header_bytes(self.info.len()) + self.payload.len()
    }

    pub(in crate::reactor) fn check(&self, room_bytes: usize) -> Result<(), Backpressure> {
        let needed_bytes = self.bytes();
        let fits = needed_bytes <= room_bytes && self.info.len() <= OPTION_INFO_MAX_BYTES;
        fits.then_some(()).ok_or(Backpressure::TooLarge { needed_bytes })
    }

    /// Puts the payload behind the header.
    pub(in crate::reactor) fn put_payload(
        &self,
        xid: Xid,
        carries: Option<Carries>,
        message: &mut Buf,
    ) {
        let at = optional_header_bytes(self.info.len());
        let place = &mut message.whole_mut()[at..at + self.payload.len()];
        place.copy_from_slice(self.payload);
        if carries == Some(Carries::Message)
            && let Some(word) = place.first_chunk_mut()
        {
            *word = xid.0.to_be_bytes();
        }
        message.set_range(0..self.bytes());
    }
}

/// Returns true if the type of a message is RDMA2_OPTIONAL.
pub(in crate::reactor) fn is_optional(message: &[u8]) -> bool {
    const OPTIONAL: [u8; 4] = MessageType::Optional.to_wire().to_be_bytes();
    message.get(TYPE_AT..TYPE_AT + 4) == Some(&OPTIONAL)
}

/// The XID of a message, which is the first word of every header.
pub(in crate::reactor) fn xid_of(message: &[u8]) -> Xid {
    Xid(message.first_chunk().map_or(0, |word| u32::from_be_bytes(*word)))
}
