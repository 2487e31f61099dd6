//! The devices that connections use: their capabilities, their reports, and their release.
//!
//! librdmacm opens a device with the first id that is bound to it, and keeps it open. If a device's
//! driver cannot take it away from processes, the kernel cannot remove the device while it is open.
//! The kernel reports a removal only to processes that have an id. Therefore each device in use has
//! a separate id here, its anchor, that outlives the connections.

use super::super::cm::{self, CmId, EventChannel};
use super::super::core::Context;
use super::super::device::DeviceCaps;
use super::super::objects::{CompletionChannel, CompletionQueue};
use super::machine::{Failure, Step};
use super::routes;
use crate::sync::next_number;
use crate::sys::journal::event;
use rustix::event::epoll;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Entries of a completion queue of siw that takes more than 576 KiB of its mappings.
const SIW_KEEPER_ENTRIES: u32 = 1 << 15;

/// By their contexts. A device that was removed is forgotten with its last connection.
pub(super) struct Devices {
    table: HashMap<Context, Device>,
    channel: Arc<EventChannel>,
    epoll: Arc<OwnedFd>,
    /// A device went that was only listened on.
    is_listener_removed: bool,
}

/// The order of the fields is that of the end: the context goes with the anchor.
struct Device {
    caps: DeviceCaps,
    connections: usize,
    is_removed: bool,
    /// See [`siw_keeper`]; with the anchor, as it has to outlive all connections.
    _keeper: Option<CompletionQueue>,
    number: u64,
    /// `None` if it could not be had: then the device is let go with its last connection.
    anchor: Option<CmId>,
}

impl Devices {
    pub(super) fn new(channel: Arc<EventChannel>, epoll: Arc<OwnedFd>) -> Self {
        Self { table: HashMap::new(), channel, epoll, is_listener_removed: false }
    }

    /// Asks the device what it can do unless it is `known`.
    pub(super) fn attach(
        &mut self,
        id: &CmId,
        context: Context,
        known: Option<DeviceCaps>,
    ) -> Result<(Context, DeviceCaps), Failure> {
        let device = match self.table.remove(&context) {
            Some(device) => device,
            None => self.open(context, id, known)?,
        };
        let device = self.table.entry(context).or_insert(device);
        if device.is_removed {
            return Err(Failure::of(Step::DeviceRemoved, 0));
        }
        device.connections += 1;
        Ok((context, device.caps))
    }

    fn open(
        &self,
        context: Context,
        id: &CmId,
        known: Option<DeviceCaps>,
    ) -> Result<Device, Failure> {
        // SAFETY: the context is open as long as the id lives.
        let asked = || unsafe { DeviceCaps::of(context.0) };
        let caps = known.map_or_else(asked, Ok)?;
        let number = next_number();
        let anchor = id.local().and_then(|own| self.anchor(number, own));
        // SAFETY: as above.
        unsafe { self.watch(context) };
        // SAFETY: as above, and by the anchor afterwards.
        let keeper = anchor.as_ref().and_then(|_| unsafe { siw_keeper(context, &caps) });
        let (connections, is_removed) = (0, false);
        Ok(Device { caps, connections, is_removed, _keeper: keeper, number, anchor })
    }

    fn anchor(&self, number: u64, own: SocketAddr) -> Option<CmId> {
        let id = CmId::new(&self.channel, number).ok()?;
        id.bind(any_port(own)).ok()?;
        id.context().is_some().then_some(id)
    }

    /// # Safety
    /// The context is open.
    unsafe fn watch(&self, context: Context) {
        // SAFETY: the caller vouches for the context, whose descriptor is open as long as it is.
        let fd = unsafe { BorrowedFd::borrow_raw(context.0.as_ref().async_fd) };
        let data = epoll::EventData::new_u64(context.0.as_ptr().addr() as u64);
        let watched = rustix::io::ioctl_fionbio(fd, true)
            .and_then(|()| epoll::add(self.epoll.as_fd(), fd, data, epoll::EventFlags::IN));
        if let Err(error) = watched.map_err(io::Error::from) {
            event!(WARN, %error, "cannot watch for asynchronous events of a device");
        }
    }

    pub(super) fn look(&self, address: u64) {
        let mut all = self.table.keys();
        if let Some(context) = all.find(|one| one.0.as_ptr().addr() as u64 == address) {
            // SAFETY: the anchor or a connection is there, so it is open.
            unsafe { routes::pass_on(*context) };
        }
    }

    /// A connection of the device goes: its id is there still.
    pub(super) fn detach(&mut self, context: Context) {
        if let Some(device) = self.table.get_mut(&context) {
            device.connections -= 1;
            if device.anchor.is_none() {
                self.let_go(context);
            }
        }
    }

    pub(super) fn note_removal(&mut self, context: Context) {
        if let Some(device) = self.table.get_mut(&context) {
            device.is_removed = true;
        }
    }

    /// The device of a listener goes, whose id is gone already.
    pub(super) fn note_listener_removal(&mut self) {
        self.is_listener_removed = true;
    }

    /// False if the number is that of no anchor.
    pub(super) fn on_anchor_event(&mut self, number: u64, is_removal: bool) -> bool {
        let mut all = self.table.values_mut();
        let device = all.find(|device| device.number == number);
        let is_anchor = device.is_some();
        if let Some(device) = device.filter(|_| is_removal) {
            device.is_removed = true;
        }
        is_anchor
    }

    /// Those that were removed and have no connection any more. Their ids are gone.
    pub(super) fn forget_removed(&mut self) {
        let unused = |device: &Device| device.is_removed && device.connections == 0;
        let removed = self.table.iter().filter(|(_, device)| unused(device));
        let removed: Vec<Context> = removed.map(|(context, _)| *context).collect();
        for context in &removed {
            self.let_go(*context);
        }
        if std::mem::take(&mut self.is_listener_removed) || !removed.is_empty() {
            cm::forget_removed_devices();
        }
    }

    fn let_go(&mut self, context: Context) {
        let unused = self.table.get(&context).is_some_and(|device| device.connections == 0);
        if unused {
            // SAFETY: the anchor, or the id of the connection that goes, is there, so it is open.
            let fd = unsafe { BorrowedFd::borrow_raw(context.0.as_ref().async_fd) };
            // It may not have been watched.
            let _ = epoll::delete(self.epoll.as_fd(), fd);
            self.table.remove(&context);
        }
    }
}

/// A link-local address keeps its scope: it is of one interface.
fn any_port(mut own: SocketAddr) -> SocketAddr {
    own.set_port(0);
    own
}

/// Keeps queues away from a place where they could not be made: libsiw (rdma-core up to 64 at least)
/// takes a queue whose mapping begins at 576 KiB (`SIW_INVAL_UOBJ_KEY`) for one that the kernel did
/// not make, and all that come after it would begin there, too. A queue that lies across it helps:
/// it is made before all others of the context, and goes after them. Other devices do without.
///
/// # Safety
/// The context is open, and stays so as long as the queue lives.
unsafe fn siw_keeper(context: Context, caps: &DeviceCaps) -> Option<CompletionQueue> {
    if !caps.adapter.has_unusable_place {
        return None;
    }
    let raw = context.0.as_ptr();
    // SAFETY: the caller vouches for the context.
    let channel = Arc::new(unsafe { CompletionChannel::new(raw) }.ok()?);
    // SAFETY: as above, and the channel is of the same device.
    unsafe { CompletionQueue::new(raw, SIW_KEEPER_ENTRIES, &channel, 0) }.ok()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_link_local_address_stays_that_of_its_interface() {
        let own: SocketAddr = "[fe80::1%3]:20049".parse().unwrap();
        assert_eq!(any_port(own), "[fe80::1%3]:0".parse().unwrap());
        assert_eq!(any_port("10.9.0.1:7".parse().unwrap()), "10.9.0.1:0".parse().unwrap());
    }
}
