//! A portmapper on the fabric itself (RFC 5666 section 10, the second way): an engine that answers
//! program 100000 for its own programs, and the client that asks it.
//!
//! An ordinary service and an ordinary client of the public API.

use super::TIMEOUT;
use super::address::{Endpoint, Netid};
use super::errors::RpcbindError;
use super::wire::{
    self, DUMP, Entry, GETADDR, Mapping, NULL, PROGRAM, SET, UNSET, VERSION_2, VERSION_3, VERSION_4,
};
use crate::api::{
    Call, ConnectError, ConnectionEvent, ConnectionId, Directory, Engine, EngineError, Service,
    blocking, driver_of,
};
use crate::config::{Config, Driver, IdlePolicy, RawConfig, Want};
use crate::fabric::{Address, Peer};
use spinrpc_proto::ids::{Program, Version};
use spinrpc_proto::rpc::AcceptStatus;
use spinrpc_proto::xdr::DecodeError;
use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::thread;

/// IPPROTO_TCP, the protocol of iWARP, as GETPORT asks for it.
const PROTOCOL_TCP: u32 = 6;

/// Lets `engine` answer for its own programs: versions 2 to 4 of program 100000, at `address` (by
/// convention [`PORTMAPPER_ADDRESS`](super::PORTMAPPER_ADDRESS)) and wherever else it listens. Call
/// it before the engine's cores start. Blocks until the address is taken.
///
/// It knows every program given to [`Engine::serve`] and every address given to [`Engine::listen`],
/// also later ones, but for addresses with a host's name; callers can change nothing: SET and UNSET
/// answer FALSE. One engine of each user can have the conventional address; others choose another
/// address. A caller of DUMP says how much it takes; a longer list is an error, as any reply is.
///
/// # Errors
/// [`EngineError::Fabric`] if the address is wrong or taken.
pub fn serve_portmapper(engine: &Engine, address: &str) -> Result<(), EngineError> {
    for version in [VERSION_2, VERSION_3, VERSION_4] {
        let directory = engine.directory();
        engine.serve(PROGRAM, version, move |_core| Portmapper::new(directory.clone()))?;
    }
    engine.listen(address)
}

/// One version of it, on one core. Calls are rare: it allocates for each.
struct Portmapper {
    directory: Directory,
    /// Of the connections that are up, those over IP.
    networks: HashMap<ConnectionId, Netid>,
}

impl Service for Portmapper {
    fn call(&mut self, call: Call<'_>) {
        match call.procedure() {
            NULL => call.reply(|_results| {}),
            SET | UNSET | GETADDR => self.answer(call),
            DUMP => self.list(call),
            _ => call.reject(AcceptStatus::ProcUnavail),
        }
    }

    fn on_event(&mut self, event: &ConnectionEvent) {
        match event {
            ConnectionEvent::Up { connection, peer: Peer::Socket(peer), .. } => {
                let is_old = peer.ip().to_canonical().is_ipv4();
                let netid = if is_old { Netid::Rdma } else { Netid::Rdma6 };
                self.networks.insert(*connection, netid);
            }
            ConnectionEvent::Down { connection, .. } => _ = self.networks.remove(connection),
            _ => {}
        }
    }
}

impl Portmapper {
    fn new(directory: Directory) -> Self {
        Self { directory, networks: HashMap::new() }
    }

    /// Endpoints that have an IP address or need none: looking up a name would hold up the core.
    fn endpoints(&self) -> Vec<Endpoint> {
        let addresses = self.directory.addresses();
        let endpoint = |address: &String| Endpoint::literal(&Address::parse(address).ok()?);
        addresses.iter().filter_map(endpoint).collect()
    }

    /// The procedures with arguments.
    fn answer(&self, mut call: Call<'_>) {
        match asked(&mut call) {
            Ok(asked) if call.procedure() == GETADDR => self.find(call, asked),
            // Only the engine itself tells which programs it serves.
            Ok(_) => call.reply(|results| results.bool(false)),
            Err(_) => call.reject(AcceptStatus::GarbageArgs),
        }
    }

    /// GETADDR, and GETPORT of version 2. The network is that which the question came by, whatever
    /// the call says (RFC 1833 section 2.2.1); RFC 1833 does not know shared memory, where a caller
    /// may ask for any. A program of another version counts, as its PROG_MISMATCH tells the
    /// caller more than silence would.
    fn find(&self, call: Call<'_>, (program, named): (Program, Option<Netid>)) {
        let is_served = self.directory.services().iter().any(|(served, _)| *served == program);
        let endpoints = if is_served { self.endpoints() } else { Vec::new() };
        let came_by = self.networks.get(&call.connection()).copied();
        let netid = named.map(|named| came_by.unwrap_or(named));
        let at = |netid| endpoints.into_iter().find_map(|endpoint| reached(endpoint, netid));
        let found = netid.and_then(at);
        if call.version() == VERSION_2 {
            let port = found.as_ref().and_then(Endpoint::port).unwrap_or(0);
            return call.reply(|results| results.u32(port.into()));
        }
        let address = found.as_ref().map(Endpoint::universal).unwrap_or_default();
        call.reply(|results| results.string(&address));
    }

    fn list(&self, call: Call<'_>) {
        let entries = self.entries();
        if call.version() > VERSION_2 {
            return call.reply(|results| wire::write_list(results.xdr(), &entries, Entry::write));
        }
        let mappings: Vec<_> = entries.iter().filter_map(mapping).collect();
        call.reply(|results| wire::write_list(results.xdr(), &mappings, Mapping::write));
    }

    /// Every program at every address: each listener of an engine serves all its programs.
    fn entries(&self) -> Vec<Entry> {
        let owner = rustix::process::geteuid().as_raw().to_string();
        let services = self.directory.services();
        let at = |endpoint: &Endpoint| {
            let (netid, address) = (endpoint.netid().name().to_owned(), endpoint.universal());
            let of = |&(program, version): &(Program, Version)| {
                let (netid, address, owner) = (netid.clone(), address.clone(), owner.clone());
                Entry { program, version, netid, address, owner }
            };
            services.iter().map(of).collect::<Vec<_>>()
        };
        self.endpoints().iter().flat_map(at).collect()
    }
}

/// The program a call asks about, and the network that it names: `None` for a protocol of version 2
/// that is not spoken. Of the rest only that it is there matters.
fn asked(call: &mut Call<'_>) -> Result<(Program, Option<Netid>), DecodeError> {
    let is_old = call.version() == VERSION_2;
    let mut args = call.args();
    let asked = match is_old {
        true => {
            let mapping = Mapping::parse(args.xdr())?;
            (mapping.program, (mapping.protocol == PROTOCOL_TCP).then_some(Netid::Rdma))
        }
        false => {
            let entry = Entry::parse(args.xdr())?;
            let named = [Netid::Rdma, Netid::Rdma6].into_iter().find(|n| n.name() == entry.netid);
            (entry.program, Some(named.unwrap_or(Netid::Shm)))
        }
    };
    args.finish().map(|()| asked)
}

/// The endpoint as it is reached over that network. A listener at `[::]` takes IPv4, too.
fn reached(endpoint: Endpoint, netid: Netid) -> Option<Endpoint> {
    match endpoint {
        Endpoint::Ip(address) if netid == Netid::Rdma && address.ip() == Ipv6Addr::UNSPECIFIED => {
            Some(Endpoint::Ip((Ipv4Addr::UNSPECIFIED, address.port()).into()))
        }
        _ => (endpoint.netid() == netid).then_some(endpoint),
    }
}

/// The entry as version 2 can express it: its port, if it has one.
fn mapping(entry: &Entry) -> Option<Mapping> {
    let endpoint = Endpoint::parse(Netid::Rdma, &entry.address);
    let port = endpoint.or_else(|_| Endpoint::parse(Netid::Rdma6, &entry.address)).ok()?.port()?;
    let (program, version, protocol) = (entry.program, entry.version, PROTOCOL_TCP);
    Some(Mapping { program, version, protocol, port: port.into() })
}

/// Asks the portmapper at `address`, with the highest version it speaks. Runs on a separate thread,
/// because a core pins its thread to a CPU.
pub(super) fn ask(
    address: &str,
    program: Program,
    version: Version,
    netid: Netid,
) -> Result<Endpoint, RpcbindError> {
    let failed =
        |problem: String| RpcbindError::Portmapper { address: address.to_owned(), problem };
    let wanted = Entry { program, version, netid: netid.name().to_owned(), ..Entry::default() };
    let asked = thread::scope(|scope| scope.spawn(|| ask_any_version(address, &wanted)).join());
    let found = asked.map_err(|_| failed("its thread panicked".to_owned()))?.map_err(failed)?;
    if found.is_empty() {
        return Err(RpcbindError::NotRegistered { program, version, netid });
    }
    Ok(Endpoint::parse(netid, &found)?)
}

/// The universal address; empty if there is none.
fn ask_any_version(address: &str, wanted: &Entry) -> Result<String, String> {
    let driver = driver_of(address).map_err(|error| error.to_string())?;
    let config = config(driver).map_err(|error| error.to_string())?;
    // Not version 2: it has no word for the network.
    for version in [VERSION_4, VERSION_3] {
        match blocking::Client::connect_with(config.clone(), address, PROGRAM, version) {
            Err(ConnectError::NotServed(AcceptStatus::ProgMismatch { .. })) => {}
            Err(error) => return Err(error.to_string()),
            Ok(mut client) => {
                let found = client.call(
                    GETADDR,
                    |args| wanted.write(args.xdr()),
                    |results| wire::parse_text(results.xdr()),
                );
                return found.map_err(|error| error.to_string());
            }
        }
    }
    Err("it speaks neither version 4 nor 3 of rpcbind".to_owned())
}

fn config(driver: Driver) -> Result<Config, crate::config::ConfigError> {
    let mut raw = RawConfig::default();
    raw.fabric.driver = driver;
    raw.poll.mode = IdlePolicy::Adaptive;
    raw.mem.lock = Want::Off;
    raw.mem.hugepages = Want::Off;
    raw.rpc.timeout_ms = TIMEOUT.as_millis() as u64;
    raw.validate()
}
