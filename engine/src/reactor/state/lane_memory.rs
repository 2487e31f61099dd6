//! Where a core encodes its messages, and what its lane knows of the call that is being served.

use crate::fabric::ConnId;
use crate::reactor::words::message_memory::MessageMemory;
use spinrpc_proto::alignment::Alignment;
use std::cell::{Cell, RefCell};

/// Memory in which a core encodes its messages, and the call that is being served.
pub(in crate::reactor) struct Lane {
    /// The driver sends messages by value, nothing in them is ever padded, and calls do not say how much time
    /// they have.
    pub(in crate::reactor) takes_calls: bool,
    /// The driver sends messages by value.
    pub(in crate::reactor) takes_shorts: bool,
    /// Nothing in replies is ever padded, so that they need not be drafted.
    pub(in crate::reactor) takes_replies: bool,
    /// Padding in messages of connections that have it.
    pub(in crate::reactor) alignment: Alignment,
    /// Calls are written here.
    pub(in crate::reactor) call: RefCell<MessageMemory>,
    /// Replies are written here.
    pub(in crate::reactor) reply: RefCell<MessageMemory>,
    /// The connection whose call is being served.
    pub(in crate::reactor) serving: Cell<Option<ConnId>>,
    /// It is to be closed when that call is answered.
    pub(in crate::reactor) closing: Cell<Option<ConnId>>,
}

impl Lane {
    /// `longest_bytes`: of a stream. The memory for it is not touched before it is used.
    pub(in crate::reactor) fn new(
        has_shorts: bool,
        names_times: bool,
        alignment: Alignment,
        longest_bytes: usize,
    ) -> Self {
        let pads = alignment != Alignment::NONE;
        let memory = || RefCell::new(MessageMemory::with_capacity(longest_bytes));
        Self {
            takes_calls: has_shorts && !pads && !names_times,
            takes_shorts: has_shorts,
            takes_replies: !pads,
            alignment,
            call: memory(),
            reply: memory(),
            serving: Cell::new(None),
            closing: Cell::new(None),
        }
    }
}
