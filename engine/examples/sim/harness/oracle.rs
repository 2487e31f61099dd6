//! Reads the wire and says what must not be there (RFC 5666 sections 3.3 and 3.4, RFC 8166 section
//! 3.3): more calls than credits, more credits than receives, answers to nothing, chunks that are
//! not exposed.

use super::words::{ERROR, word};
use spinrpc::fabric::Access;
use spinrpc::fabric::sim::{Observed, SideId, What};
use spinrpc_proto::limits::Limits;
use spinrpc_proto::rdma::v1::HeaderView;

/// What both ends of every connection have said.
#[derive(Default)]
pub(crate) struct Oracle {
    lanes: Vec<Lane>,
    keys: Vec<Vec<(u32, Access)>>,
    hostile: Vec<SideId>,
    pub(crate) calls: u64,
    pub(crate) replies: u64,
}

/// One connection, by what went over it.
#[derive(Default)]
struct Lane {
    requested: u32,
    granted: u32,
    /// XIDs of calls whose reply the client has not taken.
    in_flight: Vec<u32>,
    /// XIDs of calls that the server has taken and not answered.
    served: Vec<u32>,
}

impl Oracle {
    /// The owner of this end need not keep the rules.
    pub(crate) fn distrust(&mut self, side: SideId) {
        self.hostile.push(side);
    }

    pub(crate) fn is_honest(&self, side: SideId) -> bool {
        !self.hostile.contains(&side)
    }

    /// What is wrong with what was seen, if anything is.
    pub(crate) fn see(&mut self, seen: &Observed) -> Option<String> {
        let side = seen.side;
        match &seen.what {
            What::Sent { message, receives, .. } if self.is_honest(side) => {
                self.on_sent(side, message, *receives)
            }
            What::Received { message } if self.is_honest(side) => self.on_received(side, message),
            What::Exposed { handle, access, .. } => {
                self.keys(side).push((*handle, *access));
                None
            }
            What::Revoked { handle } => {
                self.keys(side).retain(|(of, _)| of != handle);
                None
            }
            What::Down { .. } => {
                self.keys(side).clear();
                None
            }
            _ => None,
        }
        .map(|problem| format!("at {} ns, {side}: {problem}", seen.at_ns))
    }

    fn keys(&mut self, side: SideId) -> &mut Vec<(u32, Access)> {
        if self.keys.len() <= side.0 {
            self.keys.resize_with(side.0 + 1, Vec::new);
        }
        &mut self.keys[side.0]
    }

    fn lane(&mut self, side: SideId) -> &mut Lane {
        let number = side.0 / 2;
        if self.lanes.len() <= number {
            self.lanes.resize_with(number + 1, || Lane { granted: 1, ..Lane::default() });
        }
        &mut self.lanes[number]
    }

    fn on_sent(&mut self, side: SideId, message: &[u8], receives: usize) -> Option<String> {
        if side.is_connector() {
            self.calls += 1;
            let unexposed = self.unexposed(side, message);
            // Which of a hostile server's messages count as replies is not for this side to say.
            let checked = self.is_honest(side.peer());
            return self.lane(side).call(message).filter(|_| checked).or(unexposed);
        }
        self.replies += 1;
        let checked = self.is_honest(side.peer());
        let lane = self.lane(side);
        let problem = lane.answer(message, receives);
        problem.filter(|_| checked)
    }

    fn on_received(&mut self, side: SideId, message: &[u8]) -> Option<String> {
        let checked = self.is_honest(side.peer());
        let lane = self.lane(side);
        if !side.is_connector() {
            lane.served.push(word(message, 0));
            return None;
        }
        lane.reply(message).filter(|_| checked)
    }

    /// A chunk of a call names memory that the peer may not reach.
    fn unexposed(&mut self, side: SideId, message: &[u8]) -> Option<String> {
        let limits = Limits { payload_bytes_max: u32::MAX, ..Limits::DEFAULT };
        let Ok(view) = HeaderView::new_checked(message, &limits) else {
            return Some("sent a header that cannot be read".into());
        };
        let reads = view.reads().map(|read| (read.target.handle, Access::RemoteRead));
        let writes = view.writes().chain(view.reply_chunk()).flat_map(|chunk| chunk.segments());
        let writes = writes.map(|segment| (segment.handle, Access::RemoteWrite));
        let alive = self.keys(side);
        let dead = reads.chain(writes).find(|key| !alive.contains(key));
        dead.map(|(handle, _)| format!("sent a chunk under key {handle:#x}, which is not alive"))
    }
}

impl Lane {
    /// An honest client sends a call.
    fn call(&mut self, message: &[u8]) -> Option<String> {
        let (xid, requested) = (word(message, 0), word(message, 2));
        let (in_flight, granted) = (self.in_flight.len(), self.granted as usize);
        self.requested = requested;
        let known = self.in_flight.contains(&xid);
        self.in_flight.push(xid);
        if known {
            return Some(format!("XID {xid:#x} is used while it is in flight"));
        }
        (in_flight >= granted)
            .then(|| format!("sent a call with {in_flight} in flight of {granted} granted"))
    }

    /// A client takes a message of the server.
    fn reply(&mut self, message: &[u8]) -> Option<String> {
        let xid = word(message, 0);
        let Some(at) = self.in_flight.iter().position(|of| *of == xid) else {
            return Some(format!("got an answer to XID {xid:#x}, which is not in flight"));
        };
        self.in_flight.remove(at);
        if word(message, 3) != ERROR {
            self.granted = word(message, 2).clamp(1, self.requested.max(1));
        }
        None
    }

    /// An honest server answers.
    fn answer(&mut self, message: &[u8], receives: usize) -> Option<String> {
        let (xid, granted) = (word(message, 0), word(message, 2) as usize);
        let Some(at) = self.served.iter().position(|of| *of == xid) else {
            return Some(format!("answered XID {xid:#x}, which nobody called, or twice"));
        };
        self.served.remove(at);
        let held = self.served.len();
        (granted > receives + held).then(|| {
            format!("granted {granted} with {receives} receives posted and {held} calls in hand")
        })
    }
}
