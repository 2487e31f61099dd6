//! A client that uses the simulated fabric directly, and sends as many calls as the test wants.

use super::{PROGRAM, Sim};
use spinrpc::fabric::sim::{Device, SideId, SimFabric, World};
use spinrpc::fabric::{
    CompletionKind, Completions, ConnectRequest, Connector, Fabric, QpId, SendWr,
};
use spinrpc::mem::{BufPool, Region};
use spinrpc::{Procedure, Version};
use std::time::Duration;

/// RFC 8797: 4096 bytes each way, remote invalidation.
const PRIVATE_DATA: [u8; 8] = [0xf6, 0xab, 0x0e, 0x18, 1, 1, 3, 3];
const BUFFER_BYTES: usize = 4096;
const BUFFERS: usize = 64;

/// See the module.
pub(crate) struct Cheat {
    fabric: SimFabric,
    qp: QpId,
    pub(crate) side: SideId,
    sends: BufPool,
    batch: Completions,
    next_xid: u32,
    /// The grant of the last reply.
    pub(crate) granted: u32,
    /// Accept statuses of replies (RFC 5531 section 9).
    pub(crate) statuses: Vec<u32>,
    pub(crate) is_up: bool,
}

impl Cheat {
    pub(crate) fn connect(world: &World, address: &str) -> Self {
        let depth = BUFFERS as u16;
        let depths =
            Device { recv_queue_depth: depth, send_queue_depth: depth, ..Device::default() };
        let connector = world.connector(depths);
        let mut fabric = connector.fabric(0).unwrap();
        let request = ConnectRequest::new(address, Duration::ZERO).private_data(&PRIVATE_DATA);
        let endpoint = connector.connect(&request).unwrap();
        let side = endpoint.side();
        let qp = fabric.adopt(endpoint).unwrap();
        let receives = pool();
        while let Some(receive) = receives.take() {
            fabric.post_recv(qp, receive).unwrap();
        }
        let (sends, batch) = (pool(), Completions::with_limit(BUFFERS));
        let (granted, statuses) = (1, Vec::new());
        Self { fabric, qp, side, sends, batch, next_xid: 1, granted, statuses, is_up: true }
    }

    /// Sends calls without arguments, whatever it is granted.
    pub(crate) fn send(&mut self, procedure: Procedure, calls: u32) {
        for _ in 0..calls {
            let (xid, mut message) = (self.next_xid, self.sends.take().unwrap());
            self.next_xid += 1;
            let rpc = [xid, 0, 2, PROGRAM.0, Version(1).0, procedure.0, 0, 0, 0, 0];
            let words = [&[xid, 1, 32, 0, 0, 0, 0][..], &rpc].concat();
            message.set_range(0..4 * words.len());
            for (place, word) in message.bytes_mut().chunks_exact_mut(4).zip(words) {
                place.copy_from_slice(&word.to_be_bytes());
            }
            let send = SendWr::Send { message, invalidate: None };
            assert!(self.fabric.post(self.qp, send).is_ok(), "room for a call");
        }
        self.fabric.flush();
    }

    pub(crate) fn turn(&mut self) {
        self.fabric.poll(&mut self.batch);
        for completion in self.batch.drain() {
            match completion.kind {
                CompletionKind::Received { message, .. } => {
                    let words = message.bytes().chunks_exact(4);
                    let words = words.map(|word| u32::from_be_bytes(word.try_into().unwrap()));
                    let words: Vec<_> = words.collect();
                    self.granted = words[2];
                    self.statuses.extend(words.last());
                    drop(self.fabric.post_recv(self.qp, message));
                }
                CompletionKind::Down { .. } => self.is_up = false,
                _ => {}
            }
        }
        self.fabric.flush();
    }

    /// Calls, and waits for all replies; returns their statuses.
    pub(crate) fn call(&mut self, sim: &mut Sim, procedure: Procedure, calls: u32) -> Vec<u32> {
        self.send(procedure, calls);
        self.hear(sim, calls as usize)
    }

    /// Waits for this number of replies; returns their statuses.
    pub(crate) fn hear(&mut self, sim: &mut Sim, replies: usize) -> Vec<u32> {
        for _ in 0..1_000 {
            if self.statuses.len() >= replies {
                break;
            }
            sim.turn();
            self.turn();
        }
        assert_eq!(self.statuses.len(), replies, "replies");
        std::mem::take(&mut self.statuses)
    }
}

fn pool() -> BufPool {
    let bytes = BufPool::region_bytes(BUFFER_BYTES, BUFFERS).unwrap() + 64;
    BufPool::new(Region::from_boxed(vec![0; bytes].into()), BUFFER_BYTES, BUFFERS).unwrap()
}
