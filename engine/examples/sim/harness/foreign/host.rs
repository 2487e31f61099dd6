//! One host: it speaks to the fabric itself, and keeps the rules.

use super::super::program::{PROGRAM, VERSION, WORK};
use super::super::words::{MSG, bytes_of, word};
use super::HostPlan;
use super::Xids;
use super::record::{REFUSED, Record};
use spinrpc::fabric::sim::{Device, Rng, SideId, SimConnector, SimFabric, Waker, World};
use spinrpc::fabric::{
    CompletionKind, Completions, ConnectRequest, Connector, Fabric, QpId, SendWr, Wake,
};
use spinrpc::mem::{Buf, BufPool, BulkClass, Region};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Words of a reply in front of the stamp: RPC-over-RDMA header, and that of an accepted call (RFC 5531 section 9).
const STAMP_AT: usize = 13;
/// Status of an accepted call, in front of that.
const SYSTEM_ERR: u32 = 5;
/// Longest time for which a call is deferred.
const DEFERRED_NS_MAX: u64 = 30_000;

pub(super) struct Host {
    number: usize,
    plan: HostPlan,
    rng: Rng,
    connector: SimConnector,
    waker: Arc<Waker>,
    fabric: SimFabric,
    batch: Completions,
    sends: BufPool,
    receives: BufPool,
    inline_bytes: usize,
    lanes: Vec<Lane>,
    /// Calls that are not answered, ...
    open: usize,
    /// ... those that were not sent yet, ...
    fresh: usize,
    /// ... those to be sent again, by index, ...
    again: VecDeque<usize>,
    /// ... and all that were made.
    calls: Vec<Call>,
}

/// One connection after the other.
struct Lane {
    up: Option<(QpId, SideId)>,
    xids: Xids,
    granted: usize,
    /// Indexes of calls.
    in_flight: Vec<usize>,
}

/// A call, the same each time.
struct Call {
    xid: u32,
    token: u32,
    after_ns: u32,
    answer: Option<u32>,
    is_open: bool,
}

impl Host {
    pub(super) fn new(
        world: &World,
        number: usize,
        plan: HostPlan,
        inline_bytes: usize,
        mut rng: Rng,
    ) -> Option<Self> {
        let connector = world.connector(Device {
            trusted: true,
            identity: 1 + number as u64,
            arena: vec![BulkClass { block_bytes: 4096, count: 1 }],
            ..Device::default()
        });
        let buffers = plan.connections * plan.window;
        let lanes = (0..plan.connections).map(|lane| Lane {
            up: None,
            xids: if lane == 0 { plan.xids } else { plan.xids.elsewhere(&mut rng) },
            granted: 1,
            in_flight: Vec::new(),
        });
        Some(Self {
            number,
            lanes: lanes.collect(),
            fabric: connector.fabric(0).ok()?,
            waker: connector.waker(0),
            connector,
            batch: Completions::with_limit(32),
            sends: pool(128, 2 * buffers + 8)?,
            // Those of a lost connection come back later.
            receives: pool(inline_bytes, 2 * buffers + 8)?,
            inline_bytes,
            open: plan.calls,
            fresh: plan.calls,
            again: VecDeque::new(),
            calls: Vec::new(),
            plan,
            rng,
        })
    }

    pub(super) fn is_done(&self) -> bool {
        self.open == 0
    }

    /// Calls that are not answered.
    pub(super) fn open(&self) -> usize {
        self.open
    }

    /// Its end of a connection that is up.
    pub(super) fn side(&self, lane: usize) -> Option<SideId> {
        self.lanes[lane].up.map(|(_, side)| side)
    }

    pub(super) fn has_work(&self) -> bool {
        self.waker.is_set()
    }

    pub(super) fn wake(&mut self) {
        self.waker.wake();
    }

    /// Makes the next connection of a lane, if it has none; false if it has none then.
    pub(super) fn connect(&mut self, lane: usize, address: &str) -> bool {
        self.lanes[lane].up.is_some() || self.connect_again(lane, address).is_some()
    }

    fn connect_again(&mut self, lane: usize, address: &str) -> Option<()> {
        let units = (self.inline_bytes / 1024 - 1) as u8;
        let said = [0xf6, 0xab, 0x0e, 0x18, 1, 1, units, units];
        let request = ConnectRequest::new(address, Duration::ZERO);
        let endpoint =
            self.connector.connect(&ConnectRequest { private_data: &said, ..request }).ok()?;
        let side = endpoint.side()?;
        let qp = self.fabric.adopt(endpoint).ok()?;
        for _ in 0..self.plan.window {
            let posted = self.receives.take().map(|buf| self.fabric.post_recv(qp, buf).is_ok());
            if posted != Some(true) {
                self.fabric.close(qp);
                return None;
            }
        }
        (self.lanes[lane].up, self.lanes[lane].granted) = (Some((qp, side)), 1);
        self.wake();
        Some(())
    }

    pub(super) fn cut(&mut self, lane: usize) {
        if let Some((qp, _)) = self.lanes[lane].up {
            self.fabric.close(qp);
        }
    }

    /// All calls are to be sent again, as if no reply had arrived; the last ones first.
    pub(super) fn forget_all(&mut self) {
        self.again = (0..self.calls.len()).rev().collect();
        self.calls.iter_mut().for_each(|call| call.is_open = true);
        self.open = self.calls.len();
    }

    /// Hears what there is, and calls; returns the lanes that have lost their connections.
    pub(super) fn turn(&mut self, record: &mut Record) -> Vec<usize> {
        let mut lost = Vec::new();
        self.fabric.poll(&mut self.batch);
        let mut batch = std::mem::replace(&mut self.batch, Completions::with_limit(0));
        for completion in batch.drain() {
            match completion.kind {
                CompletionKind::Received { message, .. } => {
                    self.hear(completion.qp, message, record);
                }
                CompletionKind::Down { .. } => lost.extend(self.lose(completion.qp)),
                _ => {}
            }
        }
        self.batch = batch;
        (0..self.lanes.len()).for_each(|lane| self.call_on(lane, record));
        self.fabric.flush();
        lost
    }

    fn lane_of(&self, qp: QpId) -> Option<usize> {
        self.lanes.iter().position(|lane| lane.up.is_some_and(|(own, _)| own == qp))
    }

    /// The calls of a lost connection are to be sent again, and some whose replies have just come.
    fn lose(&mut self, qp: QpId) -> Option<usize> {
        let lane = self.lane_of(qp)?;
        self.lanes[lane].up = None;
        self.again.extend(std::mem::take(&mut self.lanes[lane].in_flight));
        let recent = self.rng.below(200) as usize;
        for index in self.calls.len().saturating_sub(recent)..self.calls.len() {
            if !self.calls[index].is_open && self.rng.chance(self.plan.forgets) {
                self.calls[index].is_open = true;
                self.open += 1;
                self.again.push_back(index);
            }
        }
        Some(lane)
    }

    fn hear(&mut self, qp: QpId, message: Buf, record: &mut Record) {
        let Some(lane) = self.lane_of(qp) else { return };
        let bytes = message.bytes().to_vec();
        drop(message);
        let posted = self.receives.take().map(|buf| self.fabric.post_recv(qp, buf).is_ok());
        if posted.is_none() {
            record.fail("a host has no receive".into());
        }
        let of = &mut self.lanes[lane];
        let (xid, calls) = (word(&bytes, 0), &mut self.calls);
        let Some(at) = of.in_flight.iter().position(|index| calls[*index].xid == xid) else {
            return record.fail(format!("host {} got an answer to XID {xid:#x}", self.number));
        };
        let index = of.in_flight.swap_remove(at);
        of.granted = word(&bytes, 2).max(1) as usize;
        let call = &mut calls[index];
        let (stamp, length) = match (word(&bytes, 3), word(&bytes, STAMP_AT - 1)) {
            (MSG, 0) => (word(&bytes, STAMP_AT), word(&bytes, STAMP_AT + 1) as usize),
            (MSG, SYSTEM_ERR) => (REFUSED, 0),
            _ => return record.fail(format!("call {} was refused: {bytes:x?}", call.token)),
        };
        record.hear(call.token, stamp, length, call.answer);
        (call.answer, call.is_open) = (Some(stamp), false);
        self.open -= 1;
    }

    /// As many calls as the connection takes: those to be sent again first.
    fn call_on(&mut self, lane: usize, record: &mut Record) {
        let Some((qp, _)) = self.lanes[lane].up else { return };
        let most = self.lanes[lane].granted.min(self.plan.window);
        while self.lanes[lane].in_flight.len() < most {
            let Some(buf) = self.sends.take() else { return };
            let Some(index) = self.next(lane, record) else { return };
            self.lanes[lane].in_flight.push(index);
            self.send(qp, buf, index);
        }
    }

    /// The call to send next. One whose XID is in use on the connection waits.
    fn next(&mut self, lane: usize, record: &mut Record) -> Option<usize> {
        if let Some(index) = self.again.front().copied() {
            let xid = self.calls[index].xid;
            let is_free = |of: &usize| self.calls[*of].xid != xid;
            if !self.lanes[lane].in_flight.iter().all(is_free) {
                return None;
            }
            self.again.pop_front();
            record.sent_again += 1;
            return Some(index);
        }
        self.fresh = self.fresh.checked_sub(1)?;
        let counter = if self.plan.counts_apart { lane } else { 0 };
        let xid = self.lanes[counter].xids.take();
        let result_bytes = self.rng.below(record.result_bytes_max + 1) as u32;
        let is_deferred = self.rng.chance(self.plan.deferred);
        let after_ns = if is_deferred { 1 + self.rng.below(DEFERRED_NS_MAX) as u32 } else { 0 };
        let token = record.open(self.number, result_bytes);
        self.calls.push(Call { xid, token, after_ns, answer: None, is_open: true });
        Some(self.calls.len() - 1)
    }

    fn send(&mut self, qp: QpId, mut message: Buf, index: usize) {
        let Call { xid, token, after_ns, .. } = self.calls[index];
        let credits = self.plan.window as u32;
        let header = [xid, 1, credits, MSG, 0, 0, 0];
        let call = [xid, 0, 2, PROGRAM.0, VERSION.0, WORK.0, 0, 0, 0, 0, token, after_ns];
        let bytes = bytes_of(&[&header[..], &call].concat());
        message.set_range(0..bytes.len());
        message.bytes_mut().copy_from_slice(&bytes);
        // A connection that is down tells so.
        drop(self.fabric.post(qp, SendWr::Send { message, invalidate: None }));
    }
}

fn pool(bytes: usize, count: usize) -> Option<BufPool> {
    let region = BufPool::region_bytes(bytes, count).ok()? + 64;
    BufPool::new(Region::from_boxed(vec![0; region].into()), bytes, count).ok()
}
