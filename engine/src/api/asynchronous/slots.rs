//! Places for handlers that have not finished, all made at the start: a call allocates nothing.

use super::ready::Ready;
use crate::api::service::ConnectionId;
use crate::reactor::Deferred;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// A bounded number of futures, each with the call that it answers.
pub(super) struct Slots<F> {
    slots: Box<[FutureSlot<F>]>,
    /// Numbers of the free ones; the one used last is used first.
    free: Vec<usize>,
}

struct FutureSlot<F> {
    future: Pin<Box<Option<F>>>,
    /// The same for all futures that come here.
    waker: Waker,
    unanswered: Option<UnansweredCall>,
}

pub(super) struct UnansweredCall {
    pub(super) deferred: Deferred,
    pub(super) connection: ConnectionId,
}

impl<F: Future> Slots<F> {
    pub(super) fn new(count: usize, ready: &Ready) -> Self {
        let slot = |number| FutureSlot {
            future: Box::pin(None),
            waker: ready.waker(number),
            unanswered: None,
        };
        Self { slots: (0..count).map(slot).collect(), free: (0..count).rev().collect() }
    }

    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Puts a future into a free slot; `None` if there is none.
    pub(super) fn put(&mut self, future: F) -> Option<Occupied<'_, F>> {
        let number = self.free.pop()?;
        let slot = self.slots.get_mut(number)?;
        slot.future.set(Some(future));
        Some(Occupied { slot, free: &mut self.free, number, is_kept: false })
    }

    /// The slot with this number, if a future is in it.
    pub(super) fn occupied(&mut self, number: usize) -> Option<Occupied<'_, F>> {
        let slot = self.slots.get_mut(number).filter(|slot| slot.future.is_some())?;
        Some(Occupied { slot, free: &mut self.free, number, is_kept: false })
    }

    /// Drops the futures whose calls came by this connection.
    pub(super) fn drop_of(&mut self, connection: ConnectionId) {
        for number in 0..self.slots.len() {
            let call = self.slots[number].unanswered.as_ref();
            if call.is_some_and(|call| call.connection == connection) {
                drop(self.occupied(number));
            }
        }
    }
}

/// A slot with a future. Dropped, it drops the future, and the slot is free again: so also when the future panics. Its
/// call, if that is not answered, is answered with SYSTEM_ERR.
pub(super) struct Occupied<'a, F> {
    slot: &'a mut FutureSlot<F>,
    free: &'a mut Vec<usize>,
    number: usize,
    is_kept: bool,
}

impl<F: Future> Occupied<'_, F> {
    pub(super) fn poll(&mut self) -> Poll<F::Output> {
        let FutureSlot { future, waker, .. } = &mut *self.slot;
        match future.as_mut().as_pin_mut() {
            Some(future) => future.poll(&mut Context::from_waker(waker)),
            None => Poll::Pending,
        }
    }

    /// The future has not finished, and goes on in a later turn.
    pub(super) fn keep(mut self) {
        self.is_kept = true;
    }

    /// As [`Occupied::keep`], with the call that it will answer.
    pub(super) fn keep_for(self, call: UnansweredCall) {
        self.slot.unanswered = Some(call);
        self.keep();
    }

    /// The future has finished: drops it. Returns its call.
    pub(super) fn finish(self) -> Option<UnansweredCall> {
        self.slot.unanswered.take()
    }
}

impl<F> Drop for Occupied<'_, F> {
    fn drop(&mut self) {
        if !self.is_kept {
            // First, because the next lines run code of the application, which may panic.
            self.free.push(self.number);
            let _call = self.slot.unanswered.take();
            self.slot.future.set(None);
        }
    }
}
