//! A trial of memory windows: a queue pair that is connected to itself binds one and invalidates it.
//!
//! Of a device that reports windows, neither the kernel nor the driver in rdma-core says whether
//! the latter can post these requests.

use super::config::VerbsConfig;
use super::device::{LINK_LAYER_ETHERNET, port_attributes};
use super::exposure::next_key;
use super::objects::{
    CompletionChannel, CompletionQueue, LOCAL_WRITE, MemoryRegion, MemoryWindow, Owned,
    ProtectionDomain, WINDOW_BIND, blank_completions, checked,
};
use super::post::{Binding, Operation, SendChain};
use crate::mem::Region;
use crate::sys::mmap::{Mapping, PageRequest};
use rdma_sys::*;
use std::ffi::c_int;
use std::io;
use std::mem::zeroed;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

const BYTES: usize = 4096;
/// Longest wait for the two completions. A device that works takes microseconds.
const PATIENCE: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tried {
    Works,
    Not(&'static str),
}

/// System calls, about a millisecond. Cannot be tried without an active port, and over iWARP, whose queue pairs need
/// a TCP connection. An error names the step that failed.
///
/// # Safety
/// The context is open.
pub(super) unsafe fn windows(context: NonNull<ibv_context>) -> Result<Tried, String> {
    // SAFETY: the caller vouches for the context, which has a device.
    let transport = unsafe { (*context.as_ref().device).transport_type };
    if transport == ibv_transport_type::IBV_TRANSPORT_IWARP {
        return Ok(Tried::Not("over iWARP a queue pair cannot be connected to itself"));
    }
    // SAFETY: as above.
    let Some(port) = (unsafe { active_port(context) }) else {
        return Ok(Tried::Not("no port is active"));
    };
    // SAFETY: as above.
    let trial = unsafe { Trial::new(context)? };
    // SAFETY: as above.
    if unsafe { trial.pair.connect(context, &port) }.is_err() {
        return Ok(Tried::Not("a queue pair could not be connected to itself"));
    }
    trial.run().map(|()| Tried::Works)
}

/// The order of the fields is that of the end.
struct Trial {
    pair: Pair,
    window: MemoryWindow,
    region: MemoryRegion,
    queue: CompletionQueue,
    _memory: Region,
}

impl Trial {
    /// # Safety
    /// The context is open.
    unsafe fn new(context: NonNull<ibv_context>) -> Result<Self, String> {
        let raw = context.as_ptr();
        let failed = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
        // SAFETY: the caller vouches for the context, here and below.
        let domain = unsafe { ProtectionDomain::new(raw, false) }.map_err(|e| e.to_string())?;
        let domain = Arc::new(domain);
        // SAFETY: the region holds the domain, and goes after the window.
        let window = unsafe { MemoryWindow::new(&domain) };
        let window = window.map_err(failed("allocate a memory window"))?;
        let memory = Mapping::anonymous(BYTES, PageRequest::default()).map(Region::from_mapping);
        let memory = memory.map_err(failed("map memory"))?;
        let (first, access) = (memory.hold().as_ptr(), LOCAL_WRITE | WINDOW_BIND);
        // SAFETY: the memory goes after its registration, and no peer has a key.
        let region = unsafe { MemoryRegion::register(&domain, first, BYTES, access) };
        let region = region.map_err(failed("register memory"))?;
        // SAFETY: as above.
        let channel = unsafe { CompletionChannel::new(raw) }.map_err(|e| e.to_string())?;
        // SAFETY: as above; the channel is of the same device.
        let queue = unsafe { CompletionQueue::new(raw, 4, &Arc::new(channel), 0) };
        let queue = queue.map_err(|e| e.to_string())?;
        // SAFETY: as above; the queue pair is the first of the fields.
        let pair = unsafe { Pair::new(&domain, &queue) }.map_err(failed("make a queue pair"))?;
        Ok(Self { pair, window, region, queue, _memory: memory })
    }

    fn run(self) -> Result<(), String> {
        let key = next_key(self.window.key());
        let binding = Binding {
            window: self.window.as_ptr(),
            region: self.region.as_ptr(),
            key,
            first: self.region.first_address() as u64,
            bytes: BYTES as u64,
            is_writable: false,
        };
        for (operation, what) in [
            (Operation::Bind(binding), "bind a memory window"),
            (Operation::Invalidate { key }, "invalidate the key of a memory window"),
        ] {
            let pair = self.pair.0.raw();
            // SAFETY: the queue pair is alive.
            let chain = unsafe { SendChain::new(pair, 1) };
            let mut chain = chain.ok_or_else(|| "the driver posts nothing".to_owned())?;
            chain.set(0, 0, true, &operation);
            // SAFETY: as above, and the memory stays until the queue pair is destroyed.
            let posted = unsafe { chain.post(pair, 0, 1) };
            posted.map_err(|refused| format!("{what}: {}", refused.error))?;
            self.window.set_key(key);
            self.await_completion().map_err(|reason| format!("{what}: {reason}"))?;
        }
        Ok(())
    }

    fn await_completion(&self) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        let mut completions = blank_completions::<1>();
        while Instant::now() < deadline {
            let found = self.queue.poll(&mut completions[..]);
            match found.map_err(|_| "the completion queue is broken")?.first() {
                Some(one) if one.status == ibv_wc_status::IBV_WC_SUCCESS => return Ok(()),
                Some(one) => return Err(format!("completion status {}", one.status)),
                None => std::thread::yield_now(),
            }
        }
        Err("no completion".into())
    }
}

struct Pair(Owned<ibv_qp>);

impl Pair {
    /// # Safety
    /// The queue pair goes before the domain and the queue.
    unsafe fn new(domain: &ProtectionDomain, queue: &CompletionQueue) -> io::Result<Self> {
        // SAFETY: a structure of integers and pointers, for which zero means "not given".
        let mut wanted: ibv_qp_init_attr = unsafe { zeroed() };
        (wanted.send_cq, wanted.recv_cq) = (queue.as_ptr(), queue.as_ptr());
        (wanted.cap.max_send_wr, wanted.cap.max_recv_wr) = (2, 1);
        (wanted.cap.max_send_sge, wanted.cap.max_recv_sge) = (1, 1);
        wanted.qp_type = ibv_qp_type::IBV_QPT_RC;
        // SAFETY: the domain and the queue are alive, the attributes are complete.
        let raw = unsafe { ibv_create_qp(domain.as_ptr(), &mut wanted) };
        Owned::new(raw, "queue pair of a trial", ibv_destroy_qp).map(Self)
    }

    /// None of its requests leaves the device.
    ///
    /// # Safety
    /// The context is that of its device, and open.
    unsafe fn connect(
        &self,
        context: NonNull<ibv_context>,
        (number, port): &(u8, ibv_port_attr),
    ) -> io::Result<()> {
        use ibv_qp_attr_mask as mask;
        let defaults = VerbsConfig::default();
        // SAFETY: a structure of integers, for which zero is a value.
        let mut gid: ibv_gid = unsafe { zeroed() };
        // SAFETY: the caller vouches for the context; the result has a place. Without a GID it is zero.
        unsafe { ibv_query_gid(context.as_ptr(), *number, 0, &mut gid) };
        // SAFETY: a structure of integers, for which zero is a value.
        let mut wanted: ibv_qp_attr = unsafe { zeroed() };
        wanted.qp_state = ibv_qp_state::IBV_QPS_INIT;
        wanted.port_num = *number;
        let init = mask::IBV_QP_STATE
            | mask::IBV_QP_PKEY_INDEX
            | mask::IBV_QP_PORT
            | mask::IBV_QP_ACCESS_FLAGS;
        self.modify(&mut wanted, init)?;
        wanted.qp_state = ibv_qp_state::IBV_QPS_RTR;
        wanted.path_mtu = port.active_mtu;
        // SAFETY: it is alive.
        wanted.dest_qp_num = unsafe { self.0.raw().as_ref().qp_num };
        wanted.min_rnr_timer = defaults.min_rnr_timer;
        wanted.ah_attr.port_num = *number;
        wanted.ah_attr.dlid = port.lid;
        wanted.ah_attr.is_global = u8::from(port.link_layer == LINK_LAYER_ETHERNET);
        wanted.ah_attr.grh.dgid = gid;
        wanted.ah_attr.grh.hop_limit = 1;
        let rtr = mask::IBV_QP_STATE
            | mask::IBV_QP_AV
            | mask::IBV_QP_PATH_MTU
            | mask::IBV_QP_DEST_QPN
            | mask::IBV_QP_RQ_PSN
            | mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | mask::IBV_QP_MIN_RNR_TIMER;
        self.modify(&mut wanted, rtr)?;
        wanted.qp_state = ibv_qp_state::IBV_QPS_RTS;
        (wanted.timeout, wanted.retry_cnt, wanted.rnr_retry) = (14, defaults.retry_count, 7);
        let rts = mask::IBV_QP_STATE
            | mask::IBV_QP_TIMEOUT
            | mask::IBV_QP_RETRY_CNT
            | mask::IBV_QP_RNR_RETRY
            | mask::IBV_QP_SQ_PSN
            | mask::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut wanted, rts)
    }

    fn modify(&self, wanted: &mut ibv_qp_attr, mask: ibv_qp_attr_mask) -> io::Result<()> {
        // SAFETY: it is alive, and the attributes are complete for the mask.
        checked(unsafe { ibv_modify_qp(self.0.as_ptr(), wanted, mask.0 as c_int) })
    }
}

/// # Safety
/// The context is open.
unsafe fn active_port(context: NonNull<ibv_context>) -> Option<(u8, ibv_port_attr)> {
    let ask = |number| {
        // SAFETY: the caller vouches for the context.
        Some((number, unsafe { port_attributes(context, number) }?))
    };
    let mut all = (1..=u8::MAX).map_while(ask);
    all.find(|(_, port)| port.state == ibv_port_state::IBV_PORT_ACTIVE)
}
