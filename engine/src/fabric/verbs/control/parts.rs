//! Device objects of a connection, created in order and freed in the opposite one.

use super::super::super::FabricError;
use super::super::cm::{CmId, QueuePair};
use super::super::config::{Registration, VerbsConfig};
use super::super::core::{Context, CoreShared, CqDepth, QueueLease};
use super::super::device::DeviceCaps;
use super::super::link::{LinkLimits, Side};
use super::super::memory::LinkMemory;
use super::super::objects::ProtectionDomain;
use super::super::queue_pair::MARKS;
use super::machine::Failure;
use super::mailbox::Mailbox;
use super::routes::RouteLease;
use crate::sync::lock;
use rdma_sys::{ibv_qp_cap, ibv_qp_init_attr, ibv_qp_type};
use std::io;
use std::ptr::null_mut;
use std::sync::{Arc, Weak};

/// Pieces of memory that a receive takes: head and tail.
const RECV_SGE: u32 = 2;
/// Pieces of memory that requests of the send queue take.
const SEND_SGE: u32 = 1;
/// Tried in turn where a device does not copy as much into a work request as is wanted.
const INLINE_BYTES: [u32; 4] = [128, 80, 64, 0];

/// Sizes of a connection's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueSizes {
    send: u32,
    recv: u32,
    /// Entries to reserve of a completion queue.
    completions: u32,
    /// Entries of completion queues that are made.
    cq_depth: CqDepth,
}

impl QueueSizes {
    /// Room for completions that a driver adds.
    const SPARE_COMPLETIONS: u32 = 2;

    /// Sizes that `config` asks for, if the device can provide them.
    pub(super) fn of(config: &VerbsConfig, caps: &DeviceCaps, side: Side) -> Result<Self, String> {
        let recv = u32::from(config.recv_queue_depth);
        let binds = match caps.registration(config.registration) {
            // Each key is bound, and invalidated, by a separate work request.
            Registration::Window if config.exposes(side) => {
                u32::try_from(config.keys_max * 2).unwrap_or(u32::MAX)
            }
            _ => 0,
        };
        let send = u32::from(config.send_queue_depth).saturating_add(binds);
        let send = send.saturating_add(MARKS);
        let most = send.max(recv);
        if most > caps.work_requests_max {
            return Err(format!(
                "the device's queues take {} work requests, not {most}: lower rpc.credits or \
                 verbs.keys",
                caps.work_requests_max
            ));
        }
        let completions = send + recv + Self::SPARE_COMPLETIONS;
        if completions > caps.cq_entries_max {
            return Err(format!(
                "the device's completion queues take {} entries, not {completions}: lower \
                 rpc.credits or verbs.keys",
                caps.cq_entries_max
            ));
        }
        let (first, most) = (config.cq_depth.min(caps.cq_entries_max), caps.cq_entries_max);
        let cq_depth = CqDepth { first: first.max(completions), most };
        Ok(Self { send, recv, completions, cq_depth })
    }
}

/// The order of the fields is that of the end.
#[derive(Debug)]
pub(super) struct Parts {
    /// Objects that the device works on; `None` when they are destroyed.
    pub(super) live: Option<Live>,
    /// `None` when the link has it.
    pub(super) memory: Option<LinkMemory>,
    pub(super) lease: QueueLease,
    pub(super) domain: Arc<ProtectionDomain>,
    pub(super) limits: LinkLimits,
    pub(super) caps: DeviceCaps,
}

impl Parts {
    /// Destroys the queue pair; after an error it is there still, and so is all that it uses.
    pub(super) fn destroy(&mut self) -> io::Result<()> {
        if let Some(live) = &mut self.live {
            live.route = None;
            live.qp.destroy()?;
        }
        self.live = None;
        Ok(())
    }
}

/// A queue pair, and the way of its events, which goes first: its address may be used again.
#[derive(Debug)]
pub(super) struct Live {
    route: Option<RouteLease>,
    pub(super) qp: QueuePair,
}

/// Inputs shared by all connections of a thread.
pub(super) struct Maker<'a> {
    pub(super) config: &'a VerbsConfig,
    pub(super) mailbox: Weak<Mailbox>,
}

impl Maker<'_> {
    /// Makes a connection's parts on its id's device (system calls, which may take milliseconds).
    ///
    /// # Safety
    /// The context is the id's and open; the id outlives the parts.
    pub(super) unsafe fn make(
        &self,
        number: u64,
        (id, side): (&CmId, Side),
        (context, caps): (Context, &DeviceCaps),
        core: &Arc<CoreShared>,
        reads_out: u8,
    ) -> Result<Parts, Failure> {
        let sizes = QueueSizes::of(self.config, caps, side);
        let sizes = sizes.map_err(|reason| Failure::Own { reason, errno: None })?;
        let raw = context.0.as_ptr();
        // SAFETY: the context is open as long as the id lives.
        let domain = unsafe { ProtectionDomain::new(raw, self.config.thread_domains)? };
        let domain = Arc::new(domain);
        // SAFETY: as above.
        let lease = unsafe { core.reserve(context, sizes.completions, sizes.cq_depth)? };
        let lent = lock(&core.lent).clone();
        let memory = LinkMemory::prepare(&domain, caps, (self.config, side), lent.as_ref())?;
        let inline_max = self.config.inline_bytes_max;
        // SAFETY: domain and queue are of the device, and freed after the queue pair.
        let (qp, made) = unsafe { make_queue_pair(id, &domain, &lease, sizes, inline_max)? };
        let limits = LinkLimits {
            send_depth: sizes.send,
            recv_depth: sizes.recv,
            inline_bytes: made.max_inline_data,
            send_sge: SEND_SGE,
            reads_out: reads_out.into(),
            signal_from_bytes: caps.signal_from_bytes,
            invalidated_flags: caps.invalidated_flags,
            is_iwarp: caps.is_iwarp,
        };
        let (queue, mailbox) = (lease.queue().as_ptr(), Weak::clone(&self.mailbox));
        let route = RouteLease::take(number, context, qp.raw(), queue, mailbox);
        let live = Some(Live { route: Some(route), qp });
        Ok(Parts { live, memory: Some(memory), lease, domain, limits, caps: *caps })
    }
}

/// # Safety
/// Domain and queue are of the id's device, and outlive the queue pair; so does the id.
unsafe fn make_queue_pair(
    id: &CmId,
    domain: &ProtectionDomain,
    lease: &QueueLease,
    sizes: QueueSizes,
    inline_bytes_max: u32,
) -> Result<(QueuePair, ibv_qp_cap), Failure> {
    let less = INLINE_BYTES.into_iter().filter(|bytes| *bytes < inline_bytes_max);
    let mut error = io::Error::from_raw_os_error(libc::EINVAL);
    for inline_bytes in [inline_bytes_max].into_iter().chain(less) {
        let queue = lease.queue().as_ptr();
        let mut wanted = ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: queue,
            recv_cq: queue,
            srq: null_mut(),
            cap: ibv_qp_cap {
                max_send_wr: sizes.send,
                max_recv_wr: sizes.recv,
                max_send_sge: SEND_SGE,
                max_recv_sge: RECV_SGE,
                max_inline_data: inline_bytes,
            },
            qp_type: ibv_qp_type::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: the caller vouches for domain, queue and id.
        match unsafe { id.make_queue_pair(domain.for_queue_pair(), &mut wanted) } {
            Ok(qp) => return Ok((qp, wanted.cap)),
            Err(one) => error = one,
        }
    }
    let reason = format!(
        "a queue pair for {} sends and {} receives cannot be made: {error}; if it is memory, see \
         ulimit -l",
        sizes.send, sizes.recv
    );
    Err(Failure::Own { reason, errno: error.raw_os_error() })
}

impl From<FabricError> for Failure {
    fn from(error: FabricError) -> Self {
        let errno = error.source.as_ref().and_then(io::Error::raw_os_error);
        Self::Own { reason: error.to_string(), errno }
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::super::device::tests::caps;
    use super::*;

    #[test]
    fn queues_are_the_sum_of_what_can_be_posted() {
        let caps = DeviceCaps { work_requests_max: 1000, cq_entries_max: 2000, ..caps() };
        let config = VerbsConfig {
            send_queue_depth: 100,
            recv_queue_depth: 50,
            keys_max: 10,
            cq_depth: 5000,
            ..VerbsConfig::default()
        };
        let plain = VerbsConfig { registration: Registration::Buffer, ..config.clone() };
        assert_eq!(
            QueueSizes::of(&plain, &caps, Side::Accepting),
            Ok(QueueSizes {
                send: 102,
                recv: 50,
                completions: 154,
                cq_depth: CqDepth { first: 2000, most: 2000 }
            })
        );
        let window = VerbsConfig { registration: Registration::Window, ..config };
        assert_eq!(QueueSizes::of(&window, &caps, Side::Accepting).unwrap().send, 122);
        let bare = VerbsConfig { accepted_exposes: false, ..window };
        assert_eq!(QueueSizes::of(&bare, &caps, Side::Accepting).unwrap().send, 102);
        assert_eq!(QueueSizes::of(&bare, &caps, Side::Connecting).unwrap().send, 122);
    }

    #[test]
    fn a_device_that_is_too_small_is_said_with_what_to_lower() {
        let config =
            VerbsConfig { send_queue_depth: 100, recv_queue_depth: 50, ..VerbsConfig::default() };
        let few = DeviceCaps { work_requests_max: 99, ..caps() };
        assert!(
            QueueSizes::of(&config, &few, Side::Accepting)
                .unwrap_err()
                .contains("lower rpc.credits or verbs.keys")
        );
        let few = DeviceCaps { work_requests_max: 1000, cq_entries_max: 100, ..caps() };
        assert!(
            QueueSizes::of(&config, &few, Side::Accepting)
                .unwrap_err()
                .contains("completion queues take 100")
        );
    }
}
