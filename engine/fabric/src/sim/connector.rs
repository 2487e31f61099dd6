//! A node's control plane: connects and accepts at once, on the caller's thread.

use super::super::{
    Acceptor, AnyFabric, ConnectRequest, Connector, Endpoint, FabricError, ListenRequest, Peer,
    Wake,
};
use super::config::Device;
use super::driver::SimFabric;
use super::endpoint::Side;
use super::exposure::Exposures;
use super::state::State;
use super::trace::{SideId, What};
use super::world::Shared;
use crate::connector_common::{Attempt, Guarded, PrivateData};
use crate::mem::{BulkPool, KeyGenerator, PoolError, Region};
use crate::sync::atomic::{AtomicBool, Ordering, fence};
use crate::sync::lock;
use crate::sys::mmap::{Mapping, PageRequest};
use crate::sys::random::Random;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex};

/// Makes and accepts connections for the cores of one node; clones are the same node.
#[derive(Clone, Debug)]
pub struct SimConnector {
    world: Arc<Shared>,
    device: Arc<Device>,
    wakers: Arc<Mutex<Vec<Arc<Waker>>>>,
}

/// Says that a core should take a turn.
#[derive(Debug, Default)]
pub struct Waker(AtomicBool);

impl Waker {
    pub(super) fn set(&self) {
        // Release pairs with the Acquire of `take`: the work to do is seen.
        self.0.store(true, Ordering::Release);
    }

    pub(super) fn take(&self) -> bool {
        self.0.swap(false, Ordering::Acquire)
    }

    /// The core has something to do: then it is worth a turn.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl Wake for Waker {
    fn wake(&self) -> bool {
        self.set();
        fence(Ordering::SeqCst);
        false
    }
}

pub(super) struct Listener {
    device: Arc<Device>,
    private_data: PrivateData,
    /// Called with the world unlocked, as it may come back to it.
    accept: Arc<Mutex<Guarded>>,
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").finish_non_exhaustive()
    }
}

impl SimConnector {
    pub(super) fn new(world: Arc<Shared>, device: Device) -> Self {
        Self { world, device: Arc::new(device), wakers: Arc::default() }
    }

    /// The waker of core number `core` of this node.
    pub fn waker(&self, core: usize) -> Arc<Waker> {
        let mut wakers = lock(&self.wakers);
        while wakers.len() <= core {
            wakers.push(Arc::default());
        }
        Arc::clone(&wakers[core])
    }

    fn pair(
        &self,
        listening: &Arc<Device>,
        ours: PrivateData,
        theirs: PrivateData,
    ) -> Result<(Endpoint, Endpoint), FabricError> {
        let mut state = self.world.state();
        let id = SideId(state.sides.len());
        let near = new_side(&mut state, &self.device)?;
        let far = new_side(&mut state, listening)?;
        state.sides.push(near);
        state.sides.push(far);
        state.see(id, What::Connected);
        let endpoint = |side: SideId, peer: &Device, private_data: PrivateData| Endpoint {
            peer_private_data: private_data.into(),
            peer: Peer::Simulated(side.peer()),
            peer_identity: peer.identity,
            reads_max: u16::MAX,
            link: Box::new(SimLink { world: Arc::clone(&self.world), side, adopted: false }),
        };
        let far = endpoint(id.peer(), &self.device, ours);
        Ok((endpoint(id, listening, theirs), far))
    }
}

fn new_side(state: &mut State, device: &Arc<Device>) -> Result<Side, FabricError> {
    let attempt = Attempt { op: "make a connection".into() };
    let failed = |error: io::Error| attempt.failed(error, None);
    let of_pool = |error: PoolError| attempt.failed(error, None);
    let bytes = BulkPool::region_bytes(&device.arena).map_err(of_pool)?;
    let mapping = Mapping::anonymous(bytes, PageRequest::default()).map_err(failed)?;
    let pool = BulkPool::new(Region::from_mapping(mapping), &device.arena).map_err(of_pool)?;
    let keys = KeyGenerator::with_seed(device.keys_max, state.rng.any()).map_err(failed)?;
    // Offsets are opaque numbers of 64 bits (RFC 5666 section 3.4): let them be large.
    let base = state.rng.any() >> 1;
    let exposures = Exposures::new(keys, device.keys_max, pool.region_id(), base);
    Ok(Side::new(Arc::clone(device), pool, exposures))
}

impl Connector for SimConnector {
    type Fabric = SimFabric;

    fn remote_invalidate(&self) -> bool {
        self.device.remote_invalidate
    }

    fn random(&self) -> Result<Random, FabricError> {
        Ok(Random::seeded(self.world.state().engines.any()))
    }

    fn fabric(&self, core: usize) -> Result<SimFabric, FabricError> {
        Ok(SimFabric::new(Arc::clone(&self.world), Arc::clone(&self.device), self.waker(core)))
    }

    fn any_fabric(&self, core: usize) -> Result<AnyFabric, FabricError> {
        Ok(AnyFabric::Other(Box::new(self.fabric(core)?)))
    }

    fn connect(&self, request: &ConnectRequest<'_>) -> Result<Endpoint, FabricError> {
        let ConnectRequest { address, private_data, .. } = *request;
        let attempt = Attempt { op: format!("connect {address}") };
        let ours = attempt.padded(private_data)?;
        let found = {
            let mut state = self.world.state();
            let per_mille = state.network.connect_fails;
            if state.rng.chance(per_mille) {
                return Err(attempt.failed("no answer", None));
            }
            let listener = state.listeners.get(address);
            let listener = listener.filter(|_| !state.unreachable.contains(address));
            listener.map(|it| (Arc::clone(&it.device), it.private_data, Arc::clone(&it.accept)))
        };
        let Some((device, theirs, accept)) = found else {
            return Err(attempt.failed("no server listens there", None));
        };
        let mut accept = lock(&accept);
        let peer = Peer::Simulated(SideId(self.world.state().sides.len()));
        if !accept.admits(&peer) {
            return Err(attempt.failed("not a client of this service", None));
        }
        let core = accept.pick_core(&[]).ok_or_else(|| attempt.failed("refused", None))?;
        let (near, far) = self.pair(&device, ours, theirs)?;
        accept.accepted(core, far);
        Ok(near)
    }

    fn listen(
        &self,
        request: &ListenRequest<'_>,
        accept: Box<dyn Acceptor>,
    ) -> Result<Box<dyn Send>, FabricError> {
        let ListenRequest { address, private_data, .. } = *request;
        let attempt = Attempt { op: format!("listen {address}") };
        let private_data = attempt.padded(private_data)?;
        let mut state = self.world.state();
        if state.listeners.contains_key(address) {
            return Err(attempt.failed("another server listens there already", None));
        }
        let device = Arc::clone(&self.device);
        let accept = Arc::new(Mutex::new(Guarded::new(&attempt.op, accept)));
        let listener = Listener { device, private_data, accept };
        state.listeners.insert(address.to_owned(), listener);
        Ok(Box::new(Listening { world: Arc::clone(&self.world), address: address.to_owned() }))
    }
}

/// Dropping it ends the listener.
struct Listening {
    world: Arc<Shared>,
    address: String,
}

impl Drop for Listening {
    fn drop(&mut self) {
        // In a separate statement: dropping the listener's contents may call back into the world.
        let listener = self.world.state().listeners.remove(&self.address);
        drop(listener);
    }
}

/// No core has adopted it yet; dropping it closes the connection.
#[derive(Debug)]
pub(super) struct SimLink {
    pub(super) world: Arc<Shared>,
    pub(super) side: SideId,
    pub(super) adopted: bool,
}

impl Endpoint {
    /// The identity of this end in the world's record, if it is of a simulation.
    pub fn side(&self) -> Option<SideId> {
        self.link.downcast_ref().map(|link: &SimLink| link.side)
    }
}

impl Drop for SimLink {
    fn drop(&mut self) {
        if !self.adopted {
            let mut state = self.world.state();
            state.close(self.side);
            state.side(self.side).over = true;
        }
    }
}
