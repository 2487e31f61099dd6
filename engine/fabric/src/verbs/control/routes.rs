//! Asynchronous events of devices, and their recipients.
//!
//! librdmacm opens a device once per process, so all connectors of a process read one descriptor:
//! the thread that takes an event passes it on to the thread that has the connection.

use super::super::super::DownCause;
use super::super::core::Context;
use super::Mailbox;
use super::machine::Event;
use crate::sync::lock;
use rdma_sys::*;
use std::ffi::c_uint;
use std::mem::MaybeUninit;
use std::sync::{Mutex, Weak};

/// Raw numbers, as a newer kernel may have more than the binding's enum.
fn translated(kind: c_uint, is_iwarp: bool) -> Option<Event> {
    use ibv_event_type::*;
    const FATAL: c_uint = IBV_EVENT_QP_FATAL as c_uint;
    const QUEUE: c_uint = IBV_EVENT_CQ_ERR as c_uint;
    const REQUEST: c_uint = IBV_EVENT_QP_REQ_ERR as c_uint;
    const ACCESS: c_uint = IBV_EVENT_QP_ACCESS_ERR as c_uint;
    const MESSAGE: c_uint = IBV_EVENT_COMM_EST as c_uint;
    const DEVICE: c_uint = IBV_EVENT_DEVICE_FATAL as c_uint;
    let reached = DownCause::PeerMisbehaved("it reached for memory without the right to");
    match kind {
        // The end of a TCP stream, if a message was on its way: siw tells of that before its connection manager does.
        FATAL if is_iwarp => Some(Event::QueuePairFailed(DownCause::PeerDied)),
        FATAL | QUEUE => Some(Event::QueuePairFailed(DownCause::DeviceFailed)),
        REQUEST | ACCESS => Some(Event::QueuePairFailed(reached)),
        MESSAGE => Some(Event::FirstMessage),
        DEVICE => Some(Event::DeviceRemoved),
        _ => None,
    }
}

#[derive(Debug)]
struct Route {
    number: u64,
    context: Context,
    /// Addresses of its queue pair and of its completion queue.
    objects: [usize; 2],
    is_iwarp: bool,
    mailbox: Weak<Mailbox>,
}

impl Route {
    fn pass_on(&self, kind: c_uint, object: usize) {
        let event = translated(kind, self.is_iwarp)
            .filter(|event| *event == Event::DeviceRemoved || self.objects.contains(&object));
        if let Some((event, mailbox)) = event.zip(self.mailbox.upgrade()) {
            let number = self.number;
            mailbox.leave(move |thread| thread.on_device_event(number, event));
        }
    }
}

static ROUTES: Mutex<Vec<Route>> = Mutex::new(Vec::new());

/// Dropped before the queue pair is destroyed, as an address may be used again.
#[derive(Debug)]
pub(super) struct RouteLease {
    number: u64,
}

impl RouteLease {
    pub(super) fn take(
        number: u64,
        context: Context,
        objects: [usize; 2],
        is_iwarp: bool,
        mailbox: Weak<Mailbox>,
    ) -> Self {
        lock(&ROUTES).push(Route { number, context, objects, is_iwarp, mailbox });
        Self { number }
    }
}

impl Drop for RouteLease {
    fn drop(&mut self) {
        lock(&ROUTES).retain(|route| route.number != self.number);
    }
}

/// The device's descriptor must not block.
///
/// # Safety
/// The context is open.
pub(super) unsafe fn pass_on(context: Context) {
    // SAFETY: the caller vouches for the context.
    while let Some((kind, object)) = unsafe { next(context) } {
        for route in lock(&ROUTES).iter().filter(|route| route.context == context) {
            route.pass_on(kind, object);
        }
    }
}

/// # Safety
/// The context is open.
unsafe fn next(context: Context) -> Option<(c_uint, usize)> {
    let mut raw = MaybeUninit::<ibv_async_event>::zeroed();
    // SAFETY: the caller vouches for the context; the result has a place.
    if unsafe { ibv_get_async_event(context.0.as_ptr(), raw.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: the kind is read as a number, whatever it is; the union's words are initialised, and a pointer to any
    // object is the first of them.
    let event = unsafe {
        let at = raw.as_ptr();
        let kind = (&raw const (*at).event_type).cast::<c_uint>().read();
        (kind, (*at).element.qp.addr())
    };
    // SAFETY: the library filled it in; acknowledged once.
    unsafe { ibv_ack_async_event(raw.as_mut_ptr()) };
    Some(event)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_broken_stream_is_the_peers_death_over_iwarp_alone() {
        let fatal = ibv_event_type::IBV_EVENT_QP_FATAL as c_uint;
        let over = |is_iwarp| translated(fatal, is_iwarp);
        assert_eq!(over(true), Some(Event::QueuePairFailed(DownCause::PeerDied)));
        assert_eq!(over(false), Some(Event::QueuePairFailed(DownCause::DeviceFailed)));
        let queue = ibv_event_type::IBV_EVENT_CQ_ERR as c_uint;
        assert_eq!(translated(queue, true), Some(Event::QueuePairFailed(DownCause::DeviceFailed)));
    }
}
