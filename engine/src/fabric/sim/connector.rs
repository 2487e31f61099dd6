//! A node's control plane: connects and accepts at once, on the caller's thread.

use super::super::{
    Acceptor, ConnectRequest, Connector, Endpoint, FabricError, ListenRequest, Peer, Wake,
};
use super::config::Device;
use super::driver::SimFabric;
use super::exposure::Exposures;
use super::observed::{SideId, What};
use super::side::Side;
use super::state::State;
use super::world::Shared;
use crate::mem::{BulkPool, KeyGenerator, Region};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::lock;
use crate::sys::mmap::{Mapping, PageRequest};
use crate::sys::random::Random;
use std::fmt;
use std::sync::{Arc, Mutex};

/// Bytes of private data that come with a connection, as in the other drivers.
const PRIVATE_DATA_BYTES: usize = 56;

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
        false
    }
}

/// The listener at an address.
pub(super) struct Listener {
    device: Arc<Device>,
    private_data: [u8; PRIVATE_DATA_BYTES],
    /// Called with the world unlocked, as it may come back to it.
    accept: Arc<Mutex<Box<dyn Acceptor<SimEndpoint>>>>,
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

    /// The endpoints of a new connection: this node's, and the listener's.
    fn pair(
        &self,
        listening: &Arc<Device>,
        ours: [u8; PRIVATE_DATA_BYTES],
        theirs: [u8; PRIVATE_DATA_BYTES],
    ) -> Result<(SimEndpoint, SimEndpoint), FabricError> {
        let mut state = self.world.state();
        let id = SideId(state.sides.len());
        let near = new_side(&mut state, &self.device)?;
        let far = new_side(&mut state, listening)?;
        state.sides.push(near);
        state.sides.push(far);
        state.see(id, What::Connected);
        let endpoint = |side: SideId, private_data| SimEndpoint {
            world: Arc::clone(&self.world),
            side,
            private_data,
            adopted: false,
        };
        Ok((endpoint(id, theirs), endpoint(id.peer(), ours)))
    }
}

fn new_side(state: &mut State, device: &Arc<Device>) -> Result<Side, FabricError> {
    let failed = |reason: String| failed("make a connection", reason);
    let bytes = BulkPool::region_bytes(&device.arena).map_err(|error| failed(error.to_string()))?;
    let mapping = Mapping::anonymous(bytes, PageRequest::default())
        .map_err(|error| failed(error.to_string()))?;
    let pool = BulkPool::new(Region::from_mapping(mapping), &device.arena)
        .map_err(|error| failed(error.to_string()))?;
    let keys = KeyGenerator::with_seed(device.keys_max, state.rng.any())
        .map_err(|error| failed(error.to_string()))?;
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

    fn connect(&self, request: &ConnectRequest<'_>) -> Result<SimEndpoint, FabricError> {
        let ConnectRequest { address, private_data, .. } = *request;
        let op = || format!("connect {address}");
        let ours = padded(private_data).ok_or_else(|| failed(op(), PRIVATE_DATA_TOO_LONG))?;
        let found = {
            let mut state = self.world.state();
            let per_mille = state.network.connect_fails;
            if state.rng.chance(per_mille) {
                return Err(failed(op(), "no answer"));
            }
            let listener = state.listeners.get(address);
            listener.map(|it| (Arc::clone(&it.device), it.private_data, Arc::clone(&it.accept)))
        };
        let Some((device, theirs, accept)) = found else {
            return Err(failed(op(), "no server listens there"));
        };
        let mut accept = lock(&accept);
        let Some(core) = accept.pick_core(&[]) else { return Err(failed(op(), "refused")) };
        let (near, far) = self.pair(&device, ours, theirs)?;
        accept.accepted(core, far);
        Ok(near)
    }

    fn listen(
        &self,
        request: &ListenRequest<'_>,
        accept: Box<dyn Acceptor<SimEndpoint>>,
    ) -> Result<Box<dyn Send>, FabricError> {
        let ListenRequest { address, private_data, .. } = *request;
        let op = || format!("listen {address}");
        let private_data =
            padded(private_data).ok_or_else(|| failed(op(), PRIVATE_DATA_TOO_LONG))?;
        let mut state = self.world.state();
        if state.listeners.contains_key(address) {
            return Err(failed(op(), "another server listens there already"));
        }
        let device = Arc::clone(&self.device);
        let listener = Listener { device, private_data, accept: Arc::new(Mutex::new(accept)) };
        state.listeners.insert(address.to_owned(), listener);
        Ok(Box::new(Listening { world: Arc::clone(&self.world), address: address.to_owned() }))
    }
}

/// Keeps a listener; dropping it ends it.
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

/// A connection made by a [`SimConnector`] and not adopted yet; dropping it closes it.
#[derive(Debug)]
pub struct SimEndpoint {
    pub(super) world: Arc<Shared>,
    pub(super) side: SideId,
    pub(super) adopted: bool,
    private_data: [u8; PRIVATE_DATA_BYTES],
}

impl SimEndpoint {
    /// This end's identity in the world's record.
    pub fn side(&self) -> SideId {
        self.side
    }
}

impl Endpoint for SimEndpoint {
    fn peer_private_data(&self) -> &[u8] {
        &self.private_data
    }

    fn peer(&self) -> Peer {
        Peer::Simulated(self.side.peer())
    }
}

impl Drop for SimEndpoint {
    fn drop(&mut self) {
        if !self.adopted {
            let mut state = self.world.state();
            state.close(self.side);
            state.side(self.side).over = true;
        }
    }
}

const PRIVATE_DATA_TOO_LONG: &str = "private data beyond 56 bytes";

fn padded(private_data: &[u8]) -> Option<[u8; PRIVATE_DATA_BYTES]> {
    let mut padded = [0; PRIVATE_DATA_BYTES];
    padded.get_mut(..private_data.len())?.copy_from_slice(private_data);
    Some(padded)
}

pub(super) fn failed(op: impl Into<String>, reason: impl Into<String>) -> FabricError {
    FabricError { op: op.into(), reason: reason.into(), source: None }
}
