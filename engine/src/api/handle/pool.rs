//! Memory of calls, and orders, shared by the threads that call and their core. Both are bounded, and lock-free.

use super::call::{HandleCall, give_back};
use super::client::{Connection, State};
use crate::api::client_state::ConnectTo;
use crate::config::Config;
use crate::reactor::Backpressure;
use crate::reactor::in_flight::mailbox::{Inbox, Mail};
use crate::reactor::types::calls::Deadline;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use crate::sync::box_queue::{BoxQueue, Item};
use crate::sync::free_boxes::FreeBoxes;
use crate::sys::journal::event;
use crossbeam::atomic::AtomicCell;
use crossbeam::queue::ArrayQueue;
use spinrpc_proto::rpc::AuthFlavor;
use std::sync::{Arc, OnceLock};
use std::thread::{self, ThreadId};
use std::time::Instant;

/// A request of another thread other than a call.
pub(in crate::api) enum Order {
    /// Connect the client of the handle with this number.
    Connect(u32, Box<(ConnectTo, Arc<Connection>)>),
    /// Call with this credential from now on.
    Credential { client: u32, flavor: AuthFlavor, body: Box<[u8]> },
    /// Close the connection of a handle.
    Close { client: u32, when: When },
}

/// Calls to start, other wishes, and numbers of calls to give up if their callers have gone.
pub(super) type Ordered = Item<HandleCall, Order>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::api) enum When {
    /// Its calls in flight end.
    AtOnce,
    /// The last handle is gone: close when its calls have ended.
    Forgotten,
}

/// See the module. There is one for each core, empty until the first handle is made.
pub(in crate::api) struct Pool {
    inbox: Arc<Inbox>,
    pub(super) config: Config,
    /// Longest arguments that are not data items, in bytes.
    pub(super) longest_bytes: usize,
    queues: OnceLock<Queues>,
    /// Credentials among the orders.
    pub(super) credentials: Counted,
    /// Queued cancels: at most two for each entry, as it may be used again before its last cancel is read.
    pub(super) cancels: Counted,
    is_closed: AtomicBool,
    /// The core has been told that there will be orders.
    is_announced: AtomicBool,
    core: OnceLock<ThreadId>,
    /// The thread that refuses orders after the end of the core.
    refuser: AtomicCell<Option<ThreadId>>,
}

/// Orders of one kind that the core has not come to yet, and how many there may be.
pub(super) struct Counted {
    count: AtomicUsize,
    most: usize,
}

impl Counted {
    const fn new(most: usize) -> Self {
        Self { count: AtomicUsize::new(0), most }
    }

    /// Returns false if there are too many for one more.
    fn add(&self) -> bool {
        // Acquire pairs with the Release of `remove`: a thread that finds room sees that the core has read
        // the word of the earlier order, so that the queue has room, too.
        if self.count.fetch_add(1, Ordering::Acquire) < self.most {
            return true;
        }
        // Relaxed: it was not in the queue.
        self.count.fetch_sub(1, Ordering::Relaxed);
        false
    }

    /// The core has come to one of them.
    pub(super) fn remove(&self) {
        self.count.fetch_sub(1, Ordering::Release);
    }
}

struct Queues {
    /// The last one used is used first, so that as few as possible grow.
    calls: FreeBoxes<HandleCall>,
    orders: BoxQueue<HandleCall, Order>,
    handles: ArrayQueue<u32>,
}

impl Pool {
    /// A pool for a core with this configuration, for arguments of at most `longest_bytes` bytes.
    pub(in crate::api) fn new(inbox: Arc<Inbox>, config: Config, longest_bytes: usize) -> Self {
        let (queues, core) = (OnceLock::new(), OnceLock::new());
        let [is_closed, is_announced] = [(); 2].map(|()| AtomicBool::new(false));
        let credentials = Counted::new(2 * config.conns_max());
        let cancels = Counted::new(2 * config.handle_calls());
        Self {
            inbox,
            config,
            longest_bytes,
            queues,
            credentials,
            cancels,
            is_closed,
            is_announced,
            core,
            refuser: AtomicCell::new(None),
        }
    }

    fn open(self: &Arc<Self>) -> &Queues {
        self.queues.get_or_init(|| {
            let (calls_max, handles_max) = (self.calls_max(), self.config.conns_max());
            let call = |number| Box::new(HandleCall::new(number, Arc::clone(self)));
            let calls = FreeBoxes::new((0..calls_max as u32).map(call));
            let handles = ArrayQueue::new(handles_max);
            for number in 0..handles_max as u32 {
                let _ = handles.push(number);
            }
            // Each call is in it once, to be started. Handles are connected, closed and forgotten
            // once each. All other orders are counted.
            let counted = self.cancels.most + self.credentials.most;
            let orders = BoxQueue::new(calls_max + 3 * handles_max + counted);
            Queues { calls, orders, handles }
        })
    }

    pub(super) fn calls_max(&self) -> usize {
        self.config.handle_calls()
    }

    /// The calling thread becomes that of the core.
    pub(in crate::api) fn attach(&self) {
        self.core.get_or_init(|| thread::current().id());
    }

    /// True on the thread of the core, as long as that runs.
    pub(super) fn is_core_here(&self) -> bool {
        let is_here = self.core.get() == Some(&thread::current().id());
        is_here && !self.is_closed.load(Ordering::Relaxed)
    }

    /// The end of a call that begins now, if no core runs yet that would end it. `None` also if it is too far away.
    pub(super) fn end_without_core(&self, deadline: Deadline) -> Option<Instant> {
        if self.has_core() {
            return None;
        }
        Instant::now().checked_add(deadline.or(self.config.timeout())?)
    }

    /// True once a thread has become that of the core.
    pub(super) fn has_core(&self) -> bool {
        self.core.get().is_some()
    }

    /// True on the thread that ends calls after the end of the core: a function with an answer runs there.
    pub(super) fn is_refused_here(&self) -> bool {
        // Only this thread itself sets it to its own number.
        self.refuser.load() == Some(thread::current().id())
    }

    /// Takes a number for a handle; `None` if there are as many as can be.
    pub(in crate::api) fn take_handle(self: &Arc<Self>) -> Option<u32> {
        self.open().handles.pop()
    }

    pub(in crate::api) fn give_handle(&self, number: u32) {
        if let Some(queues) = self.queues.get() {
            let _ = queues.handles.push(number);
        }
    }

    pub(super) fn claim(&self) -> Result<Box<HandleCall>, Backpressure> {
        let call = self.queues.get().and_then(|queues| queues.calls.take());
        // Relaxed: the list is closed behind it.
        call.ok_or_else(|| match self.is_closed.load(Ordering::Relaxed) {
            true => Backpressure::Down,
            false => Backpressure::TooManyCalls,
        })
    }

    /// Gives back the memory of a call, which is dropped if the pool is closed.
    pub(super) fn give_back(&self, call: Box<HandleCall>) {
        let number = call.number;
        drop(self.queues.get().map(|queues| queues.calls.give(number, call)));
    }

    /// Orders the core to start a call. Returns true if the core was parked.
    pub(super) fn order_call(&self, call: Box<HandleCall>) -> bool {
        self.push(Item::Main(call))
    }

    /// Orders the core to give up the call with this number, if its caller has gone. An order does
    /// not fit only if as many threads at once cancel calls that have already ended: its call ends
    /// with its answer, or at its deadline.
    pub(super) fn order_cancel(&self, number: u32) {
        if self.cancels.add() {
            self.push(Item::Number(number));
        }
    }

    pub(super) fn order(&self, order: Order) {
        self.push(Item::Other(Box::new(order)));
    }

    /// The queue has room for all orders of its calls and handles: an order that does not fit is a
    /// defect in this crate, and is refused with an error.
    fn push(&self, item: Ordered) -> bool {
        let Some(queues) = self.queues.get() else { return false };
        match queues.orders.push(item) {
            Ok(()) => {}
            Err(Item::Main(call)) => call.finish(Err(Backpressure::TooManyCalls.into())),
            Err(other) => {
                event!(ERROR, "the orders of handles do not fit into their queue: one is lost");
                refuse(other);
            }
        }
        let was_parked = self.inbox.wake();
        self.go_on_closing();
        was_parked
    }

    /// Wakes the core, if it is parked.
    pub(in crate::api) fn wake(&self) {
        self.inbox.wake();
    }

    /// The same as [`Pool::order`] for a credential.
    ///
    /// # Errors
    /// [`Backpressure::TooManyCalls`] if the core has not come to too many others yet.
    pub(super) fn order_credential(&self, order: Order) -> Result<(), Backpressure> {
        if !self.credentials.add() {
            return Err(Backpressure::TooManyCalls);
        }
        self.order(order);
        Ok(())
    }

    /// The same for the first order of a handle, to a core that may not look for any yet.
    pub(in crate::api) fn order_first(&self, order: Order) {
        self.order(order);
        // Relaxed: the letter is ordered by the mailbox, and a second one does no harm.
        if self.is_announced.load(Ordering::Relaxed) {
            return;
        }
        // A full mailbox is being read: the letter finds room soon.
        while self.inbox.post(Mail::Orders).is_err() {
            thread::yield_now();
        }
        self.is_announced.store(true, Ordering::Relaxed);
    }

    /// True if there are orders; the core asks.
    #[inline]
    pub(super) fn has_orders(&self) -> bool {
        self.queues.get().is_some_and(|queues| !queues.orders.is_empty())
    }

    /// Hands up to `most` orders to `each`, in order; the core calls it.
    #[inline]
    pub(super) fn take_orders(&self, most: usize, each: impl FnMut(Ordered)) -> usize {
        self.queues.get().map_or(0, |queues| queues.orders.pop(most, each))
    }

    /// The core ends, or will never begin: all orders, earlier and later ones, are refused; `earlier` refuses those that the
    /// core has already taken.
    pub(in crate::api) fn close(&self, earlier: impl FnOnce()) {
        self.is_closed.store(true, Ordering::Relaxed);
        let is_refuser = self.begin_refusing();
        earlier();
        if is_refuser {
            self.refuser.store(None);
        }
        fence(Ordering::SeqCst);
        self.go_on_closing();
    }

    /// Refuses all orders and frees memory, if the core has ended. Each caller puts a fence before it, which is the one of
    /// [`Inbox::wake`] for what it pushes: either a thread that closes finds the order, or this one finds the pool closed.
    fn go_on_closing(&self) {
        if !self.is_closed.load(Ordering::Relaxed) {
            return;
        }
        self.refuse_all();
        // Calls hold their pool: without this neither would ever go.
        if let Some(queues) = self.queues.get() {
            queues.calls.close();
        }
    }

    /// One thread at a time, and not from inside: each call that is refused gives its memory back, which leads here
    /// again. So answers come in the order of the calls, and the stack does not grow with their number.
    fn refuse_all(&self) {
        while self.begin_refusing() {
            while self.take_orders(1, refuse) > 0 {}
            self.refuser.store(None);
            // With the one in `go_on_closing` of a thread that has just pushed: either it finds that no thread refuses,
            // or this finds its order.
            fence(Ordering::SeqCst);
            if !self.has_orders() {
                return;
            }
        }
    }

    /// Returns false if a thread, or this one further down its stack, does it already.
    fn begin_refusing(&self) -> bool {
        self.refuser.compare_exchange(None, Some(thread::current().id())).is_ok()
    }
}

/// Refuses an order to a core that has ended.
pub(super) fn refuse(order: Ordered) {
    match order {
        Item::Main(call) => call.lose(false),
        Item::Other(order) => match *order {
            Order::Connect(_, order) => order.1.change(State::Down),
            Order::Credential { .. } | Order::Close { .. } => {}
        },
        Item::Number(_) => {}
    }
}

/// A call that is being written: it goes back if it is not sent.
pub(super) struct CallGuard(Option<Box<HandleCall>>);

impl CallGuard {
    pub(super) fn new(pool: &Pool) -> Result<Self, Backpressure> {
        pool.claim().map(|call| Self(Some(call)))
    }

    pub(super) fn write<E>(
        &mut self,
        write: impl FnOnce(&mut HandleCall) -> Result<(), E>,
    ) -> Result<(), E> {
        self.0.as_mut().map_or(Ok(()), |call| write(call))
    }

    /// Sends it. Returns true if the core was parked.
    pub(super) fn order(mut self, pool: &Pool) -> bool {
        self.0.take().is_some_and(|call| pool.order_call(call))
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        if let Some(call) = self.0.take() {
            give_back(call);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RawConfig;

    #[test]
    fn wishes_to_cancel_come_too_late_expect_room_for_all_else() {
        let mut raw = RawConfig::default();
        (raw.fixed.handle_calls, raw.limits.conns) = (4, 2);
        let config = raw.validate().unwrap();
        let pool = Arc::new(Pool::new(Arc::new(Inbox::new(4)), config, 100));
        let close = |client| {
            for when in [When::AtOnce, When::Forgotten, When::Forgotten] {
                pool.order(Order::Close { client, when });
            }
        };
        for _ in 0..3 {
            let handles = [0, 1].map(|_| pool.take_handle().unwrap());
            (0..1000).for_each(|_| pool.order_cancel(0));
            handles.into_iter().for_each(close);
            let calls: Vec<_> = std::iter::from_fn(|| pool.claim().ok()).collect();
            for call in calls {
                pool.order_call(call);
            }
            let [mut calls, mut others, mut numbers] = [0; 3];
            while pool.take_orders(1, |order| match order {
                Item::Main(call) => {
                    calls += 1;
                    give_back(call);
                }
                Item::Other(_) => others += 1,
                Item::Number(_) => {
                    numbers += 1;
                    pool.cancels.remove();
                }
            }) > 0
            {}
            assert_eq!((calls, others, numbers), (4, 6, 8));
            handles.into_iter().for_each(|number| pool.give_handle(number));
        }
        pool.close(|| {});
    }
}
