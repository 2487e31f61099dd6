//! Statistics of a core: counters that the core alone writes, published as single-writer
//! cells that any thread may read without disturbing it.

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::cache_lines::assert_alone;

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Counters of a core since its start. Each number is consistent by itself; the copy as a whole may not be.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct StatsSnapshot { $($(#[doc = $doc])+ pub $name: u64,)+ }

        /// The published cells of one core. On lines of their own: the cells of another core may be next to them.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub(crate) struct StatsCells { $($name: AtomicU64,)+ }

        impl StatsCells {
            /// Publishes what the core counted. Only the core's own thread calls it, so ordinary
            /// stores suffice; readers pair with nothing, each number stands for itself.
            pub(crate) fn publish(&self, from: &StatsSnapshot) {
                $(self.$name.store(from.$name, Ordering::Relaxed);)+
            }

            /// Reads every cell, from any thread.
            pub(crate) fn snapshot(&self) -> StatsSnapshot {
                StatsSnapshot { $($name: self.$name.load(Ordering::Relaxed),)+ }
            }
        }

        impl StatsSnapshot {
            /// The name of every counter, and its description: sentences in Markdown, as in its documentation.
            pub const DESCRIPTIONS: &[(&str, &str)] = &[$((stringify!($name), concat!($($doc),+)),)+];

            /// Every counter with its name, for tables and JSON.
            pub fn entries(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name),)+].into_iter()
            }

            /// The difference between `earlier` and this snapshot.
            #[must_use]
            pub fn since(&self, earlier: &Self) -> Self {
                Self { $($name: self.$name.wrapping_sub(earlier.$name),)+ }
            }
        }
    };
}

counters! {
    /// Turns of the core.
    polls,
    /// Turns that found nothing to do.
    empty_polls,
    /// Clock ticks spent in turns that did something.
    busy_ticks,
    /// Times the core slept.
    parks,
    /// Calls sent.
    calls_sent,
    /// Replies received that matched a call.
    replies_received,
    /// Calls received and handed to a service.
    calls_received,
    /// Replies sent, error replies included.
    replies_sent,
    /// Calls refused to the application because the peer's credits were used up.
    credit_stalls,
    /// Calls refused to the application, or put off, because the send queue was full.
    queue_full,
    /// Calls refused to the application, or put off, because buffers were lent out.
    no_buffer,
    /// Bytes of messages sent, headers included.
    bytes_inline,
    /// Bytes fetched by RDMA Read.
    bytes_read,
    /// Bytes placed by RDMA Write.
    bytes_written,
    /// Data items copied into or out of a message or a long stream instead of being placed, and long messages copied to or
    /// from memory that the peer reaches.
    copies,
    /// Calls that passed their deadline.
    timeouts,
    /// Calls neither executed nor answered, because the engine was shutting down gracefully.
    calls_left,
    /// Deferred calls that services answered as too late (`Deferred::too_late`).
    calls_late,
    /// Calls answered with SYSTEM_ERR because the handler dropped them.
    calls_dropped,
    /// Panics of handlers of the application that were caught (`rpc.on_panic`).
    handler_panics,
    /// Calls answered with an error because they went beyond the grant.
    calls_refused,
    /// RDMA_ERROR messages sent.
    errors_sent,
    /// Messages dropped without an answer.
    messages_dropped,
    /// Replies and mail for calls or connections that were gone.
    stale,
    /// Replies sent with a Read list, for the client to fetch.
    replies_exported,
    /// Of them, those kept back until an earlier one was fetched.
    replies_kept_back,
    /// RDMA_DONE messages sent.
    dones_sent,
    /// RDMA_DONE messages received that ended an export.
    dones_received,
    /// Exports taken back because RDMA_DONE did not come in time.
    exports_expired,
    /// Connections opened.
    connections_opened,
    /// Of those that this side made, the ones that turned out to speak version two.
    connections_version_two,
    /// Connections that went down.
    connections_closed,
    /// Of those that went down, the ones whose peers did not let a request complete for too long (`rpc.stall_timeout_ms`).
    connections_stalled,
    /// Connections made in the place of lost ones.
    reconnects,
    /// Calls sent again on another connection than their first.
    calls_resent,
    /// Calls that were answered with a reply kept from before, and not executed again.
    replies_replayed,
    /// Calls not executed because all places for replies that their clients may have held calls in progress.
    reply_cache_full,
}

assert_alone!(StatsCells);

impl StatsCells {
    /// Connections that are open, as of the last publication.
    pub(crate) fn connections(&self) -> u64 {
        let closed = self.connections_closed.load(Ordering::Relaxed);
        // The core may publish between the two loads.
        self.connections_opened.load(Ordering::Relaxed).saturating_sub(closed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publish_then_snapshot_expect_the_same_numbers() {
        let counted = StatsSnapshot { polls: 7, bytes_read: 1 << 40, ..StatsSnapshot::default() };
        let cells = StatsCells::default();
        cells.publish(&counted);
        assert_eq!(cells.snapshot(), counted);
        assert!(counted.entries().any(|entry| entry == ("bytes_read", 1 << 40)));
        assert_eq!(counted.since(&counted), StatsSnapshot::default());
    }
}
