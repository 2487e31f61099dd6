//! Calls that say how much time they have (the extension of version two for deadlines), read from the
//! wire: when that is over, and that then, and only then, they are refused.

use super::words::word;
use spinrpc_proto::deadlines::LATE;
use spinrpc_proto::rdma::v1::HeaderView;
use std::collections::HashMap;

/// A call whose time is counted.
#[derive(Clone, Copy, Debug)]
struct Named {
    /// End of its time.
    until_ns: u64,
    is_refused: bool,
}

/// The calls of one direction that its server has taken and that name their time, by XID.
#[derive(Default)]
pub(crate) struct Times(HashMap<u32, Named>);

/// True if a message tells that a call came too late.
pub(crate) fn is_late(view: &HeaderView<'_>) -> bool {
    view.optional().is_some_and(|body| body.option == LATE)
}

impl Times {
    /// The server takes a call: from now on its time runs.
    pub(crate) fn take(&mut self, at_ns: u64, message: &[u8], view: Option<&HeaderView<'_>>) {
        let xid = word(message, 0);
        match view.and_then(HeaderView::remaining_us) {
            Some(us) => {
                let until_ns = at_ns.saturating_add(us.saturating_mul(1000));
                self.0.insert(xid, Named { until_ns, is_refused: false });
            }
            None => drop(self.0.remove(&xid)),
        }
    }

    /// The server says that a call came too late.
    pub(crate) fn refuse(&mut self, at_ns: u64, xid: u32) -> Option<String> {
        let Some(named) = self.0.get_mut(&xid) else {
            return Some(format!("refused XID {xid:#x} as late, which has named no time"));
        };
        named.is_refused = true;
        let left_ns = named.until_ns.saturating_sub(at_ns);
        (left_ns > 0).then(|| format!("refused XID {xid:#x} as late with {left_ns} ns left"))
    }

    /// A service of the server got a call at this time.
    pub(crate) fn execute(&self, at_ns: u64, xid: u32) -> Option<String> {
        let named = self.0.get(&xid)?;
        if named.is_refused {
            return Some(format!("executed XID {xid:#x}, which it had refused as late"));
        }
        let late_ns = at_ns.saturating_sub(named.until_ns);
        (late_ns > 0).then(|| format!("executed XID {xid:#x} when it was late by {late_ns} ns"))
    }
}
