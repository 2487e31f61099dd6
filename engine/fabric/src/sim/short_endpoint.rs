//! The short endpoint of a simulated connection, by which short messages go by value. Shared by its place in
//! the driver and by the code that takes and sends messages.

use super::super::{Head, QpId, Short, ShortEndpointOps};
use super::connector::Waker;
use super::driver::{Place, Queued};
use super::trace::SideId;
use super::world::Shared;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// See the module.
#[derive(Debug)]
pub struct SimShortEndpoint {
    pub(super) place: Rc<RefCell<Place>>,
    pub(super) qp: QpId,
    pub(super) side: SideId,
    pub(super) world: Arc<Shared>,
    pub(super) waker: Arc<Waker>,
    pub(super) send_queue_depth: u16,
}

impl SimShortEndpoint {
    fn is_there(&self) -> bool {
        let place = self.place.borrow();
        place.side == Some(self.side) && place.generation == self.qp.generation()
    }
}

impl ShortEndpointOps for SimShortEndpoint {
    /// Now and then the message is the last, as where the next one comes a moment later.
    #[inline(never)]
    fn take(&self, message: &mut Short) -> Option<bool> {
        if !self.is_there() {
            return None;
        }
        let mut state = self.world.state();
        self.place.borrow_mut().take_short(&mut state, self.side, message)?;
        Some(!state.rng.any().is_multiple_of(4))
    }

    /// Refuses every fourth message, as a ring without room does, so that both paths run.
    #[inline(never)]
    fn send<const HEAD: usize>(
        &self,
        head: impl Into<Head<HEAD>>,
        message: &Short,
        bytes: usize,
    ) -> bool {
        debug_assert_eq!(bytes, message.length());
        if self.room() == 0 {
            return false;
        }
        let mut place = self.place.borrow_mut();
        place.shorts = place.shorts.wrapping_add(1);
        if place.shorts.is_multiple_of(4) {
            return false;
        }
        let mut message = message.clone();
        message.set_head(&head.into());
        place.queued.push_back(Queued::Short(message.bytes().into()));
        self.waker.set();
        true
    }

    #[inline(never)]
    fn room(&self) -> usize {
        if !self.is_there() {
            return 0;
        }
        self.place.borrow().room(self.world.state().side(self.side), self.send_queue_depth)
    }
}
