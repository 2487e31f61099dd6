//! A version that was offered to a peer, and the call that offers it (version two section 5).

use crate::reactor::words::negotiate::Negotiated;
use spinrpc_proto::limits::INLINE_THRESHOLD_MIN_BYTES;
use spinrpc_proto::version::Verdict;

/// The RPC message of the call that offers a version.
pub(crate) struct Offered(Vec<u8>);

impl Offered {
    pub(in crate::reactor) fn new() -> Box<Self> {
        Box::new(Self(Vec::with_capacity(INLINE_THRESHOLD_MIN_BYTES as usize)))
    }

    pub(in crate::reactor) fn stream(&self) -> &[u8] {
        &self.0
    }

    /// Replaces the previous call, which has ended.
    pub(in crate::reactor) fn keep(&mut self, stream: &[u8]) {
        self.0.clear();
        self.0.extend_from_slice(stream);
    }
}

/// Outcome of an offer.
pub(crate) struct Settled {
    pub(crate) negotiated: Negotiated,
    pub(crate) verdict: Verdict,
}
