//! The three ways to find a service (RFC 5666 section 10) on this host: the answers of the rpcbind
//! daemon by each socket and version, registrations under each netid, the portmapper of an engine,
//! and a well-known address. Fails at the first deviation.
//!
//! `cargo run -p spinrpc --example rpcbind` needs a running daemon and the program `rpcinfo`.
//! Registers only its own programs, and takes the two well-known names on shared memory.

use spinrpc::rpcbind::wire::{Entry, VERSION_2, VERSION_3, VERSION_4};
use spinrpc::rpcbind::{
    Client, Daemon, Endpoint, How, NFS_ADDRESS, Netid, PORTMAPPER_ADDRESS, PORTMAPPER_PORT,
    Registration, RpcbindError, TIMEOUT, find_service, serve_portmapper, wire,
};
use spinrpc::{Call, Config, Engine, Program, Version, blocking};
use std::error::Error;
use std::net::Ipv4Addr;
use std::process::Command;

const PROGRAM: Program = Program(0x2000_0666);
const VERSION: Version = Version(1);
const NFS: (Program, Version) = (Program(100_003), Version(3));

type Outcome = Result<(), Box<dyn Error>>;

fn main() -> Outcome {
    let tcp = Daemon::Tcp((Ipv4Addr::LOCALHOST, PORTMAPPER_PORT).into());
    for daemon in [Daemon::Local, tcp] {
        for newest in [VERSION_4, VERSION_3, VERSION_2] {
            ask(&daemon, newest)?;
        }
        register(&daemon)?;
        change(&daemon)?;
    }
    fabric()
}

fn expect(is_so: bool, what: &str) -> Outcome {
    if is_so { Ok(()) } else { Err(what.into()) }
}

/// The daemon serves itself, in versions 2 to 4.
fn ask(daemon: &Daemon, newest: Version) -> Outcome {
    let mut client = Client::connect_with(daemon, TIMEOUT, newest)?;
    client.null()?;
    let list = client.dump()?;
    let itself = list.iter().filter(|entry| entry.program == wire::PROGRAM).count();
    println!(
        "{daemon}, version {}: {} registered, {itself} of rpcbind",
        client.version(),
        list.len()
    );
    expect(client.version() == newest, "the daemon speaks the version asked for")?;
    expect(itself > 0, "the daemon lists itself")?;
    let address = client.address(wire::PROGRAM, VERSION_2)?;
    println!("{daemon}, version {newest}: rpcbind is at {address:?}");
    // Over the Unix socket version 2 cannot be found, because it has no port.
    let is_tcp = matches!(daemon, Daemon::Tcp(_)) || newest == VERSION_2;
    expect(!is_tcp || address.is_some_and(|at| at.ends_with(".0.111")), "port 111 is found")
}

/// `rdma`, `rdma6` and `spinrpc-shm`: registered, found with versions 3 and 4, taken back.
fn register(daemon: &Daemon) -> Outcome {
    let endpoints = [
        Endpoint::Ip("192.0.2.1:20049".parse()?),
        Endpoint::Ip("[2001:db8::1]:20049".parse()?),
        Endpoint::Shm("shm:example".into()),
    ];
    let registered = |endpoint| Registration::new(daemon, PROGRAM, VERSION, endpoint);
    let registrations: Result<Vec<_>, _> = endpoints.iter().map(registered).collect();
    let info = Command::new("rpcinfo").output()?;
    let ours = PROGRAM.to_string();
    for line in String::from_utf8_lossy(&info.stdout).lines().filter(|line| line.contains(&ours)) {
        println!("rpcinfo: {line}");
    }
    for endpoint in &endpoints {
        found(daemon, endpoint)?;
    }
    registrations?.into_iter().try_for_each(Registration::end)?;
    let gone = find_service(PROGRAM, VERSION, Netid::Rdma, How::Rpcbind(daemon));
    expect(matches!(gone, Err(RpcbindError::NotRegistered { .. })), "nothing is left registered")
}

fn found(daemon: &Daemon, endpoint: &Endpoint) -> Outcome {
    let netid = endpoint.netid();
    for newest in [VERSION_4, VERSION_3] {
        let mut client = Client::connect_with(daemon, TIMEOUT, newest)?;
        expect(client.find(PROGRAM, VERSION, netid)? == *endpoint, "what was registered is found")?;
    }
    let mut oldest = Client::connect_with(daemon, TIMEOUT, VERSION_2)?;
    let refused = oldest.find(PROGRAM, VERSION, netid);
    expect(matches!(refused, Err(RpcbindError::TooOld { .. })), "version 2 knows no netid")
}

/// Checks the daemon's answers to SET and UNSET, which `Registration` relies on.
fn change(daemon: &Daemon) -> Outcome {
    for newest in [VERSION_4, VERSION_3] {
        let mut client = Client::connect_with(daemon, TIMEOUT, newest)?;
        let entry = |address: &str| {
            let (netid, address) = (Netid::Rdma.name().to_owned(), address.to_owned());
            Entry { program: PROGRAM, version: VERSION, netid, address, owner: String::new() }
        };
        let (first, other) = (entry("192.0.2.1.78.81"), entry("192.0.2.2.78.81"));
        expect(client.set(&first)?, "a new registration is taken")?;
        expect(client.set(&first)?, "the same one again is taken")?;
        expect(!client.set(&other)?, "another address in its place is not")?;
        let owner = client.entry(PROGRAM, VERSION, Netid::Rdma)?.map(|entry| entry.owner);
        println!(
            "{daemon}, version {newest}: a registration of this process is owned by {owner:?}"
        );
        expect(client.unset(&other)?, "the address does not matter when it is taken back")?;
        expect(client.entry(PROGRAM, VERSION, Netid::Rdma)?.is_none(), "it is taken back")?;
    }
    let mut oldest = Client::connect_with(daemon, TIMEOUT, VERSION_2)?;
    let (netid, address) = ("tcp".to_owned(), "0.0.0.0.8.1".to_owned());
    let tcp = Entry { program: PROGRAM, version: VERSION, netid, address, owner: String::new() };
    expect(oldest.set(&tcp)?, "version 2 registers a TCP port")?;
    expect(oldest.address(PROGRAM, VERSION)? == Some("0.0.0.0.8.1".into()), "and finds it")?;
    expect(oldest.unset(&tcp)?, "and takes it back")
}

/// The portmapper of an engine, and NFS where everybody looks for it.
fn fabric() -> Outcome {
    let engine = Engine::new(Config::default())?;
    engine.serve(NFS.0, NFS.1, |_core| |call: Call<'_>| call.reply(|_results| {}))?;
    engine.listen(NFS_ADDRESS)?;
    serve_portmapper(&engine, PORTMAPPER_ADDRESS)?;
    let running = engine.start()?;
    for how in [How::Portmapper(PORTMAPPER_ADDRESS), How::WellKnown] {
        let found = find_service(NFS.0, NFS.1, Netid::Shm, how)?.to_string();
        println!("{how:?}: NFS is at {found}");
        expect(found == NFS_ADDRESS, "NFS is at its well-known address")?;
        blocking::Client::connect(&found, NFS.0, NFS.1)?;
    }
    engine.shutdown();
    Ok(running.join()?)
}
