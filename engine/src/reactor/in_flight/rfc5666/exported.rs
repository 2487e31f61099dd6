//! Replies that the client fetches: their keys.

use spinrpc_proto::limits::ITEMS_MAX;

/// The keys of one exported reply.
#[derive(Default)]
pub(crate) struct ExportHold {
    handles: [u32; ITEMS_MAX + 1],
    count: u8,
}

impl ExportHold {
    pub(in crate::reactor) fn handles(&self) -> &[u32] {
        &self.handles[..usize::from(self.count)]
    }

    /// Number of keys under which the client can reach memory.
    pub(in crate::reactor) fn keys(&self) -> usize {
        usize::from(self.count)
    }

    pub(in crate::reactor) fn add(&mut self, handle: u32) {
        if let Some(place) = self.handles.get_mut(usize::from(self.count)) {
            *place = handle;
            self.count += 1;
        }
    }
}
