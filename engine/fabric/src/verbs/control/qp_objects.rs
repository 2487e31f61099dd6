//! Device objects of a connection, created in order and freed in the opposite one.

use super::super::super::FabricError;
use super::super::cm::{CmId, QueuePair};
use super::super::config::{SINKS, VerbsConfig};
use super::super::core::{Context, CqDepth, QueueLease};
use super::super::device::DeviceCaps;
use super::super::link::{LinkLimits, Side};
use super::super::memory::{LinkMemory, Plan};
use super::super::objects::{ProtectionDomain, WindowTable};
use super::super::queue_pair::MARKS;
use super::super::resource_limits;
use super::Mailbox;
use super::connection::Connection;
use super::machine::Failure;
use super::routes::RouteLease;
use crate::sync::lock;
use rdma_sys::{ibv_qp_cap, ibv_qp_init_attr, ibv_qp_type};
use std::io;
use std::ptr::null_mut;
use std::sync::{Arc, Weak};

const SEND_SGE: u32 = 1;
/// Longest message that is copied into a work request: small calls and replies, in work requests of four cache lines.
/// Less is tried in turn where a device does not copy as much.
const INLINE_BYTES: [u32; 5] = [220, 128, 80, 64, 0];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueSizes {
    send: u32,
    recv: u32,
    completions: u32,
    cq_depth: CqDepth,
}

impl QueueSizes {
    /// Room for completions that a driver adds.
    const SPARE_COMPLETIONS: u32 = 2;

    pub(super) fn of(config: &VerbsConfig, caps: &DeviceCaps, side: Side) -> Result<Self, String> {
        let recv = u32::from(config.recv_queue_depth);
        let plan = Plan::of(config, caps, side);
        // Each key is bound, and invalidated, by a separate work request.
        let binds = u32::try_from(plan.windows() * 2).unwrap_or(u32::MAX);
        let send = u32::from(config.send_queue_depth).saturating_add(binds);
        let send = send.saturating_add(MARKS);
        let completions = send.saturating_add(recv).saturating_add(Self::SPARE_COMPLETIONS);
        let sizes = [
            ("work requests of a queue", send.max(recv), caps.work_requests_max, LESS_IN_FLIGHT),
            ("entries of a completion queue", completions, caps.cq_entries_max, LESS_IN_FLIGHT),
            ("pieces of memory of an RDMA Read", SEND_SGE, caps.read_sge_max, "use another device"),
        ];
        let memory = memory_objects(config, caps, plan);
        if let Some(error) = sizes.into_iter().chain(memory).find_map(lacking) {
            return Err(error);
        }
        let (first, most) = (config.cq_depth.min(caps.cq_entries_max), caps.cq_entries_max);
        let cq_depth = CqDepth { first: first.max(completions), most };
        Ok(Self { send, recv, completions, cq_depth })
    }
}

type Need = (&'static str, u32, u32, &'static str);

const LESS_IN_FLIGHT: &str = "lower rpc.credits";

fn lacking((what, needed, has, remedy): Need) -> Option<String> {
    (needed > has)
        .then(|| format!("a connection takes {needed} {what}, and the device has {has}: {remedy}"))
}

/// Memory windows and regions of one connection. Other connections of the device need as many.
fn memory_objects(config: &VerbsConfig, caps: &DeviceCaps, plan: Plan) -> [Need; 2] {
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let blocks = config.arena.iter().map(|class| class.count).sum::<usize>();
    let regions = match () {
        () if plan.is_by_block() => blocks * 2,
        () if plan.has_only_sinks() => SINKS,
        () => 0,
    };
    [
        ("memory windows", number(plan.windows()), caps.windows_max, LESS_IN_FLIGHT),
        // And those of the core, of its own arena, and of messages.
        ("memory regions", number(regions + 3), caps.regions_max, "lower mem.conn_arena_mib"),
    ]
}

/// The order of the fields is that of the end.
#[derive(Debug)]
pub(super) struct Parts {
    /// The way of the queue pair's events, which goes before that: its address may be used again.
    route: Option<RouteLease>,
    pub(super) qp: QueuePair,
    /// `None` when the link has it.
    pub(super) memory: Option<LinkMemory>,
    /// Those of the memory, wherever that is.
    pub(super) windows: Weak<WindowTable>,
    pub(super) lease: QueueLease,
    _domain: Arc<ProtectionDomain>,
    pub(super) limits: LinkLimits,
}

impl Parts {
    /// After an error the queue pair is there still, and so is all that it uses.
    pub(super) fn destroy(&mut self) -> io::Result<()> {
        self.route = None;
        self.qp.destroy()
    }

    /// System calls, which may take milliseconds.
    ///
    /// # Safety
    /// The context is that of the connection's id and open; the id outlives the parts.
    pub(super) unsafe fn make(
        connection: &Connection,
        (context, ref caps): (Context, DeviceCaps),
        config: &VerbsConfig,
        mailbox: Weak<Mailbox>,
    ) -> Result<Self, Failure> {
        let Connection { number, id, side, core, reads, .. } = connection;
        let sizes = QueueSizes::of(config, caps, *side);
        let sizes = sizes.map_err(|reason| Failure::Own { reason, errno: None })?;
        let raw = context.0.as_ptr();
        // SAFETY: the context is open as long as the id lives.
        let make = || unsafe { ProtectionDomain::new(raw, caps.adapter.allows_thread_domain) };
        let plan = Plan::of(config, caps, *side);
        let domain = match plan.shares_domain() {
            true => core.share_domain(context, make)?,
            false => Arc::new(make()?),
        };
        // SAFETY: as above.
        let lease = unsafe { core.reserve(context, sizes.completions, sizes.cq_depth)? };
        let lent = lock(&core.lent).clone();
        let memory = LinkMemory::prepare(&domain, plan, (config, caps), lent.as_ref())?;
        // SAFETY: domain and queue are of the device, and freed after the queue pair.
        let made = unsafe { make_queue_pair(id, &domain, &lease, sizes, caps) };
        let (qp, made) = made?;
        let limits = LinkLimits {
            send_depth: sizes.send,
            recv_depth: sizes.recv,
            inline_bytes: made.max_inline_data.min(caps.inline_bytes_max),
            reads_out: reads.out.into(),
            signal_from_bytes: caps.adapter.signal_from_bytes,
            invalidated_flags: caps.invalidated_flags(),
            is_iwarp: caps.is_iwarp,
        };
        let objects = [qp.raw().as_ptr().addr(), lease.queue.as_ptr().addr()];
        let route = Some(RouteLease::take(*number, context, objects, caps.is_iwarp, mailbox));
        let (windows, memory) = (Arc::downgrade(&memory.windows), Some(memory));
        Ok(Self { route, qp, memory, windows, lease, _domain: domain, limits })
    }
}

/// # Safety
/// Domain and queue are of the id's device, and outlive the queue pair; so does the id.
unsafe fn make_queue_pair(
    id: &CmId,
    domain: &ProtectionDomain,
    lease: &QueueLease,
    sizes: QueueSizes,
    caps: &DeviceCaps,
) -> Result<(QueuePair, ibv_qp_cap), Failure> {
    let mut error = io::Error::from_raw_os_error(libc::EINVAL);
    for inline_bytes in INLINE_BYTES.into_iter().filter(|bytes| *bytes <= caps.inline_bytes_max) {
        let queue = lease.queue.as_ptr();
        let mut wanted = ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: queue,
            recv_cq: queue,
            srq: null_mut(),
            cap: ibv_qp_cap {
                max_send_wr: sizes.send,
                max_recv_wr: sizes.recv,
                max_send_sge: SEND_SGE,
                max_recv_sge: 1,
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
        "a queue pair for {} sends and {} receives cannot be made: {}",
        sizes.send,
        sizes.recv,
        resource_limits::explain(&error)
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
mod tests {
    use super::super::super::config::Registration;
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

    /// Have a device fall short in each capability. Expect an error with both numbers and what to lower.
    #[test]
    fn a_device_that_is_too_small_is_said_with_both_numbers_and_what_to_lower() {
        let large = DeviceCaps { work_requests_max: 1000, ..caps() };
        let config =
            VerbsConfig { send_queue_depth: 100, recv_queue_depth: 50, ..VerbsConfig::default() };
        let buffers = VerbsConfig { registration: Registration::Buffer, ..config.clone() };
        assert!(QueueSizes::of(&config, &large, Side::Connecting).is_ok());
        let error = |config: &VerbsConfig, few: DeviceCaps| {
            QueueSizes::of(config, &few, Side::Connecting).unwrap_err()
        };
        for (config, few, parts) in [
            (
                &config,
                DeviceCaps { work_requests_max: 99, ..large },
                ["614 work requests", "has 99", "lower rpc.credits"],
            ),
            (
                &config,
                DeviceCaps { cq_entries_max: 100, ..large },
                ["666 entries of a completion queue", "has 100", "lower rpc.credits"],
            ),
            (
                &config,
                DeviceCaps { read_sge_max: 0, ..large },
                ["1 pieces of memory of an RDMA Read", "has 0", "another device"],
            ),
            (
                &config,
                DeviceCaps { windows_max: 255, ..large },
                ["256 memory windows", "has 255", "lower rpc.credits"],
            ),
            (
                &buffers,
                DeviceCaps { regions_max: 362, ..large },
                ["363 memory regions", "has 362", "lower mem.conn_arena_mib"],
            ),
        ] {
            let said = error(config, few);
            assert!(parts.iter().all(|part| said.contains(part)), "{said}");
        }
    }

    #[test]
    fn a_device_with_one_piece_for_each_read_is_enough() {
        let erdma = DeviceCaps { read_sge_max: 1, work_requests_max: 1024, ..caps() };
        let erdma = DeviceCaps { cq_entries_max: 4096, ..erdma };
        assert!(QueueSizes::of(&VerbsConfig::default(), &erdma, Side::Connecting).is_ok());
    }
}
