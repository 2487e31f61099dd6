//! Owners of librdmacm's objects: the event channel, and the ids of connections and listeners.
//!
//! Only the control thread calls it. An event is copied and acknowledged at once, so an id can be
//! destroyed at any time after: destroying waits for unacknowledged events, and would wait forever.

use super::config::VerbsConfig;
use super::device::{LINK_LAYER_ETHERNET, port_attributes};
use super::objects::{Owned, checked};
use super::reads::Reads;
use crate::connector_common::PRIVATE_DATA_BYTES;
use crate::sys::journal::event;
use rdma_sys::rdma_cm_event_type::{RDMA_CM_EVENT_CONNECT_REQUEST, Type as RawKind};
use rdma_sys::*;
use rustix::net::SocketAddrAny;
use std::ffi::{CStr, c_int, c_void};
use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{NonNull, null_mut, without_provenance_mut};
use std::sync::Arc;
use std::time::Duration;

/// Options of an id; the binding has no names for them.
const OPTION_LEVEL_ID: c_int = 0;
pub(super) const OPTION_TYPE_OF_SERVICE: c_int = 0;
pub(super) const OPTION_ACK_TIMEOUT: c_int = 3;
/// Requests that the kernel keeps for a listener: as many as may arrive in the milliseconds that creating a queue pair
/// takes.
const BACKLOG: c_int = 128;

#[derive(Debug)]
pub(super) struct EventChannel {
    raw: NonNull<rdma_event_channel>,
}

// SAFETY: a file descriptor in a box.
unsafe impl Send for EventChannel {}
// SAFETY: as above.
unsafe impl Sync for EventChannel {}

impl EventChannel {
    /// On a host without RDMA devices the error is `ENODEV` or `ENOENT`.
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: no arguments.
        let raw = NonNull::new(unsafe { rdma_create_event_channel() });
        let channel = Self { raw: raw.ok_or_else(io::Error::last_os_error)? };
        rustix::io::ioctl_fionbio(&channel, true)?;
        Ok(channel)
    }

    pub(super) fn next(self: &Arc<Self>) -> Option<CmEvent> {
        let mut event = null_mut();
        // SAFETY: the channel is alive, and the result has a place.
        if unsafe { rdma_get_cm_event(self.raw.as_ptr(), &mut event) } != 0 {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::WouldBlock {
                event!(WARN, %error, "an event of the connection manager is lost");
            }
            return None;
        }
        // SAFETY: the library just filled it in; it is given back below, and not used after.
        let copy = unsafe { CmEvent::copy(&*event, self) };
        // SAFETY: acknowledged once.
        unsafe { rdma_ack_cm_event(event) };
        Some(copy)
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the channel lives.
        unsafe { BorrowedFd::borrow_raw(self.raw.as_ref().fd) }
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: each id holds a reference, so there are none left.
        unsafe { rdma_destroy_event_channel(self.raw.as_ptr()) }
    }
}

#[derive(Debug)]
pub(super) struct CmEvent {
    /// One of [`rdma_cm_event_type`], or a value that a newer kernel has added.
    pub(super) kind: RawKind,
    /// The number given to the id; with a connection request that of the listener.
    pub(super) number: u64,
    /// Zero, a negative error number, or the reason of a refusal.
    pub(super) status: c_int,
    pub(super) request: Option<CmId>,
    /// Most RDMA Reads that the peer will have outstanding, and that it takes.
    pub(super) peer_reads: Reads,
    /// Private data of the peer, perhaps with bytes in front (iWARP) and zeroes behind
    /// (InfiniBand).
    pub(super) private_data: Box<[u8]>,
}

impl CmEvent {
    /// # Safety
    /// An event that was just taken from the channel.
    unsafe fn copy(event: &rdma_cm_event, channel: &Arc<EventChannel>) -> Self {
        let is_request = event.event == RDMA_CM_EVENT_CONNECT_REQUEST;
        // SAFETY: of a TCP-like port space the parameters are those of a connection; zeroes where
        // the event has none.
        let conn = unsafe { event.param.conn };
        let bytes = usize::from(conn.private_data_len);
        let data = NonNull::new(conn.private_data.cast_mut()).filter(|_| bytes > 0);
        // SAFETY: the library vouches for as many bytes behind the pointer.
        let private_data = data.map_or(&[][..], |data| unsafe {
            std::slice::from_raw_parts(data.as_ptr().cast::<u8>(), bytes)
        });
        let id = NonNull::new(event.id);
        // The id is ours from here on.
        let request = is_request.then(|| CmId::own(event.id, channel).ok()).flatten();
        Self {
            kind: event.event,
            // SAFETY: the id is alive until it is destroyed, which takes its events off the channel.
            number: id.map_or(0, |id| unsafe { (*id.as_ptr()).context }.addr() as u64),
            status: event.status,
            request,
            peer_reads: Reads { out: conn.responder_resources, at: conn.initiator_depth },
            private_data: private_data.into(),
        }
    }
}

fn offer(reads: Reads, config: &VerbsConfig, private_data: &[u8]) -> rdma_conn_param {
    rdma_conn_param {
        private_data: private_data.as_ptr().cast(),
        private_data_len: private_data.len().min(PRIVATE_DATA_BYTES) as u8,
        responder_resources: reads.at,
        initiator_depth: reads.out,
        flow_control: 0,
        retry_count: config.retry_count,
        rnr_retry_count: config.rnr_retry_count,
        srq: 0,
        qp_num: 0,
    }
}

/// An id, its events acknowledged. Functions that change its fields take it whole, or create and end its queue pair, which has
/// one owner and goes before it.
#[derive(Debug)]
pub(super) struct CmId {
    raw: Owned<rdma_cm_id>,
    _channel: Arc<EventChannel>,
}

impl CmId {
    pub(super) fn new(channel: &Arc<EventChannel>, number: u64) -> io::Result<Self> {
        let mut raw = null_mut();
        let context = without_provenance_mut(number as usize);
        let space = rdma_port_space::RDMA_PS_TCP;
        // SAFETY: the channel outlives the id, which holds a reference; the result has a place.
        checked(unsafe { rdma_create_id(channel.raw.as_ptr(), &mut raw, context, space) })?;
        Self::own(raw, channel)
    }

    fn own(raw: *mut rdma_cm_id, channel: &Arc<EventChannel>) -> io::Result<Self> {
        let raw = Owned::new(raw, "id of the connection manager", rdma_destroy_id)?;
        Ok(Self { raw, _channel: Arc::clone(channel) })
    }

    pub(super) fn set_number(&mut self, number: u64) {
        // SAFETY: the id is alive, and the library does not look at the field.
        unsafe { (*self.raw.as_ptr()).context = without_provenance_mut(number as usize) };
    }

    fn as_ptr(&self) -> *mut rdma_cm_id {
        self.raw.as_ptr()
    }

    /// Takes an address, and with it the device that has it; none for a wildcard.
    pub(super) fn bind(&self, address: SocketAddr) -> io::Result<()> {
        let mut raw = SocketAddrAny::from(address);
        // SAFETY: the id is alive, the address is complete.
        checked(unsafe { rdma_bind_addr(self.as_ptr(), raw.as_mut_ptr().cast()) })
    }

    pub(super) fn listen(&self) -> io::Result<()> {
        // SAFETY: the id is alive.
        checked(unsafe { rdma_listen(self.as_ptr(), BACKLOG) })
    }

    pub(super) fn resolve_address(&self, peer: SocketAddr, timeout: Duration) -> io::Result<()> {
        let (mut raw, timeout) = (SocketAddrAny::from(peer), milliseconds(timeout));
        let (id, own) = (self.as_ptr(), null_mut());
        // SAFETY: the id is alive, the address is complete; null leaves the own one to the system.
        checked(unsafe { rdma_resolve_addr(id, own, raw.as_mut_ptr().cast(), timeout) })
    }

    pub(super) fn resolve_route(&self, timeout: Duration) -> io::Result<()> {
        // SAFETY: the id is alive.
        checked(unsafe { rdma_resolve_route(self.as_ptr(), milliseconds(timeout)) })
    }

    /// Sets one of the options of one byte: the type of service, or traffic class, before the route is resolved; the local
    /// ACK timeout (InfiniBand and RoCE) before the queue pair is made.
    pub(super) fn set_option(&self, option: c_int, mut value: u8) -> io::Result<()> {
        let at = (&raw mut value).cast::<c_void>();
        // SAFETY: the id is alive, and the library looks at the length, which is that of the value.
        checked(unsafe { rdma_set_option(self.as_ptr(), OPTION_LEVEL_ID, option, at, 1) })
    }

    pub(super) fn context(&self) -> Option<NonNull<ibv_context>> {
        // SAFETY: the id is alive.
        NonNull::new(unsafe { (*self.as_ptr()).verbs })
    }

    /// Over siw that waits for the TCP connection.
    pub(super) fn connect(
        &self,
        reads: Reads,
        config: &VerbsConfig,
        private_data: &[u8],
    ) -> io::Result<()> {
        let mut offer = offer(reads, config, private_data);
        // SAFETY: the id is alive; the memory that the parameters point to is copied.
        checked(unsafe { rdma_connect(self.as_ptr(), &mut offer) })
    }

    pub(super) fn accept(
        &self,
        reads: Reads,
        config: &VerbsConfig,
        private_data: &[u8],
    ) -> io::Result<()> {
        let mut offer = offer(reads, config, private_data);
        // SAFETY: as above.
        checked(unsafe { rdma_accept(self.as_ptr(), &mut offer) })
    }

    /// It is not an error if the peer has gone meanwhile.
    pub(super) fn reject(&self, reason: &[u8]) {
        let bytes = reason.len().min(PRIVATE_DATA_BYTES);
        // SAFETY: the id is alive, and there are as many bytes.
        unsafe { rdma_reject(self.as_ptr(), reason.as_ptr().cast(), bytes as u8) };
    }

    /// That it has ended already, or never began, is an error which means nothing.
    pub(super) fn disconnect(&self) {
        // SAFETY: the id is alive.
        unsafe { rdma_disconnect(self.as_ptr()) };
    }

    /// Tells the connection manager that a message has come: the peer knows that it is established.
    pub(super) fn tell_of_message(&self) {
        // SAFETY: the id is alive.
        unsafe { rdma_notify(self.as_ptr(), ibv_event_type::IBV_EVENT_COMM_EST) };
    }

    pub(super) fn peer(&self) -> Option<SocketAddr> {
        // SAFETY: the id is alive; the address is a plain value of any family.
        unsafe { socket_address(&(*self.as_ptr()).route.addr.dst_addr_union.dst_storage) }
    }

    /// The GID of the peer in the path to it: where answers go, whatever its request says of its address. Over RoCE it is
    /// an IP address.
    pub(super) fn path_to_peer(&self) -> Option<Ipv6Addr> {
        // SAFETY: the id is alive.
        let route = unsafe { &(*self.as_ptr()).route };
        let path = NonNull::new(route.path_rec).filter(|_| route.num_paths > 0)?;
        // SAFETY: the library has filled in as many as it says, and keeps them as long as the id; bytes of any value.
        Some(Ipv6Addr::from(unsafe { path.as_ref().dgid.raw }))
    }

    pub(super) fn is_ethernet(&self) -> bool {
        let Some(context) = self.context() else { return false };
        // SAFETY: the id is alive, and keeps the context open.
        let port = unsafe { port_attributes(context, (*self.as_ptr()).port_num) };
        port.is_none_or(|port| port.link_layer == LINK_LAYER_ETHERNET)
    }

    pub(super) fn local(&self) -> Option<SocketAddr> {
        // SAFETY: as for the peer's.
        unsafe { socket_address(&(*self.as_ptr()).route.addr.src_addr_union.src_storage) }
    }

    /// Makes a queue pair, which has to go before the id does: see [`QueuePair`].
    ///
    /// # Safety
    /// The domain and the queues in `wanted` are of the id's device, and outlive the queue pair; so
    /// does the id.
    pub(super) unsafe fn make_queue_pair(
        &self,
        domain: *mut ibv_pd,
        wanted: &mut ibv_qp_init_attr,
    ) -> io::Result<QueuePair> {
        // SAFETY: the caller vouches for the arguments.
        checked(unsafe { rdma_create_qp(self.as_ptr(), domain, wanted) })?;
        // SAFETY: the id is alive.
        let qp = NonNull::new(unsafe { (*self.as_ptr()).qp });
        let qp = qp.ok_or_else(|| io::Error::from(io::ErrorKind::Other))?;
        Ok(QueuePair { id: self.raw.raw(), qp, is_destroyed: false })
    }
}

#[derive(Debug)]
pub(super) struct QueuePair {
    id: NonNull<rdma_cm_id>,
    /// Dangling when it is destroyed.
    qp: NonNull<ibv_qp>,
    is_destroyed: bool,
}

// SAFETY: as for the id.
unsafe impl Send for QueuePair {}

impl QueuePair {
    pub(super) fn raw(&self) -> NonNull<ibv_qp> {
        self.qp
    }

    /// Flushes all posted requests, from any state. A failure means that the device has gone, and
    /// the posted requests with it.
    pub(super) fn break_off(&self) {
        // SAFETY: a structure of integers, for which zero is a value.
        let mut attributes: ibv_qp_attr = unsafe { std::mem::zeroed() };
        attributes.qp_state = ibv_qp_state::IBV_QPS_ERR;
        let _ = self.modify(&mut attributes, ibv_qp_attr_mask::IBV_QP_STATE);
    }

    /// How long a peer waits after "receiver not ready" (InfiniBand and RoCE). The queue pair is ready to send.
    pub(super) fn set_min_rnr_timer(&self, code: u8) -> io::Result<()> {
        // SAFETY: as above.
        let mut attributes: ibv_qp_attr = unsafe { std::mem::zeroed() };
        attributes.min_rnr_timer = code;
        self.modify(&mut attributes, ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER)
    }

    /// Stops the device's accesses to its buffers. Not left to the library's `rdma_destroy_qp`,
    /// which does not say whether that worked. After an error the queue pair is there still; that
    /// the device has gone, and with it the queue pair, is none.
    pub(super) fn destroy(&mut self) -> io::Result<()> {
        if self.is_destroyed {
            return Ok(());
        }
        // SAFETY: the queue pair is alive, and its context is as long as the id.
        let (context, destroyed) =
            unsafe { ((*self.qp.as_ptr()).context, checked(ibv_destroy_qp(self.qp.as_ptr()))) };
        // SAFETY: as above.
        if destroyed.is_err() && unsafe { is_there(context) } {
            return destroyed;
        }
        self.is_destroyed = true;
        // SAFETY: the creator of this value keeps the id alive until now.
        unsafe { (*self.id.as_ptr()).qp = null_mut() };
        Ok(())
    }

    fn modify(&self, attributes: &mut ibv_qp_attr, mask: ibv_qp_attr_mask) -> io::Result<()> {
        if self.is_destroyed {
            return Err(io::Error::from(io::ErrorKind::NotFound));
        }
        // SAFETY: the queue pair is alive.
        checked(unsafe { ibv_modify_qp(self.qp.as_ptr(), attributes, mask.0 as c_int) })
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if let Err(error) = self.destroy() {
            event!(ERROR, %error, "could not destroy a queue pair");
        }
    }
}

/// The kernel does not answer for a device that is gone.
///
/// # Safety
/// The context is open.
unsafe fn is_there(context: *mut ibv_context) -> bool {
    // SAFETY: a structure of integers, for which zero is a value.
    let mut said: ibv_device_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the caller vouches for the context, and the result has a place.
    unsafe { ibv_query_device(context, &mut said) == 0 }
}

/// Makes the library close the contexts of devices that are gone. It would do so only when it next
/// looks for a device that it does not know, and until then the kernel cannot remove them.
pub(super) fn forget_removed_devices() {
    let mut count = 0;
    // SAFETY: the result has a place; the list is given back at once.
    unsafe {
        let devices = rdma_get_devices(&mut count);
        if !devices.is_null() {
            rdma_free_devices(devices);
        }
    }
}

/// # Safety
/// The context is open.
pub(super) unsafe fn device_name(context: NonNull<ibv_context>) -> String {
    // SAFETY: a context has a device, and that a name which ends with a zero byte.
    let name = unsafe { CStr::from_ptr(ibv_get_device_name(context.as_ref().device)) };
    name.to_string_lossy().into_owned()
}

fn milliseconds(timeout: Duration) -> c_int {
    c_int::try_from(timeout.as_millis()).unwrap_or(c_int::MAX).max(1)
}

/// # Safety
/// The storage holds an address of its family, or zeroes.
unsafe fn socket_address(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let at = std::ptr::from_ref(storage).cast();
    // SAFETY: the caller vouches for the address, and all of the storage is initialised.
    let address = unsafe { SocketAddrAny::read(at, size_of_val(storage) as u32) };
    SocketAddr::try_from(address).ok()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_way_through_the_c_library() {
        for address in ["10.8.0.1:20049", "[fe80::1:2%3]:65535", "0.0.0.0:0"] {
            let address: SocketAddr = address.parse().unwrap();
            // SAFETY: all bytes are zero, which is a value of it.
            let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
            let raw = SocketAddrAny::from(address);
            // SAFETY: the storage is larger than any address, of which as many bytes are initialised.
            unsafe {
                let from = raw.as_ptr().cast::<u8>();
                (&raw mut storage).cast::<u8>().copy_from(from, raw.addr_len() as usize);
            }
            // SAFETY: it holds an address.
            assert_eq!(unsafe { socket_address(&storage) }, Some(address));
        }
    }

    #[test]
    fn storage_without_an_address_has_none() {
        // SAFETY: all bytes are zero, which is a value of it.
        let storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        // SAFETY: zeroes.
        assert_eq!(unsafe { socket_address(&storage) }, None);
    }
}
