//! Large directories, and many clients.

use crate::clients::{clients, metrics, series};
use crate::server::{PATIENCE, Place, Server, answer, handle, in_time};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use spinrpc::config::Host;
use spinrpc::{
    AuthSys, CallError, CallSpec, Client, ConnectOptions, Core, Engine, Groups, Reply,
    ReplyHandler, Token,
};
use spinrpc_nfs::nfs3::{self, procedure};
use spinrpc_nfs::protocol::ProcedureId;
use spinrpc_tuning::Loader;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::rc::Rc;
use std::time::Instant;

/// Resident memory of the server, in KiB.
fn resident(server: &Server) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.unwrap()
}

/// Each file has a handle that is found out for its entry, and 4096 files are held open.
#[test]
fn a_directory_of_100_000_files_is_listed_whole_in_little_memory() {
    const FILES: usize = 100_000;
    /// A third of a KiB for each file would be as much.
    const GROWTH_KIB_MAX: u64 = 32 << 10;
    let place = Place::new("scale-directory");
    let directory = place.data().join("full");
    fs::create_dir(&directory).unwrap();
    for number in 0..FILES {
        File::create(directory.join(format!("{number:06}"))).unwrap();
    }
    fs::create_dir(place.data().join("small")).unwrap();
    // With huge pages the memory of the heap would depend on how many the kernel has at the moment.
    let mut command = place.command(&[&place.export("")]);
    let server = Server::start(command.env("MIMALLOC_ALLOW_THP", "0"));
    answer(&["ls", &place.target("/small")]);
    let before = resident(&server);
    for _ in 0..2 {
        let listed = String::from_utf8(answer(&["ls", &place.target("/full")])).unwrap();
        let names: BTreeSet<usize> =
            listed.lines().filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect();
        assert_eq!(listed.lines().count(), FILES);
        assert!(names.into_iter().eq(0..FILES));
    }
    let metrics = metrics(&server);
    let pages = series(&metrics, "nfs_procedure", "READDIRPLUS")["count"].as_u64();
    assert!(pages > Some(2 * 100), "{pages:?} calls");
    let growth = resident(&server).saturating_sub(before);
    assert!(growth < GROWTH_KIB_MAX, "{growth} KiB");
}

/// Counts the answers with NFS3_OK.
#[derive(Clone, Default)]
pub(crate) struct Count(Rc<Cell<usize>>);

impl ReplyHandler for Count {
    fn on_reply(&mut self, _: Token, reply: Result<Reply<'_>, CallError>) {
        if reply.unwrap().results().u32() == Ok(0) {
            self.0.set(self.0.get() + 1);
        }
    }
}

/// As little memory for a connection as there can be.
pub(crate) const SMALL: [&str; 8] = [
    "mem.conn_arena_mib=1",
    "shm.ring_slots=64",
    "rpc.max_read_bytes=131072",
    "rpc.max_write_bytes=131072",
    "rpc.credits=4",
    "rpc.inline_send_bytes=1024",
    "rpc.inline_recv_bytes=1024",
    "mem.lock=off",
];

pub(crate) fn engine() -> Engine {
    engine_with(&[&["mem.arena_mib=64"], &SMALL[..]].concat())
}

/// An engine with one core and these values of keys.
pub(crate) fn engine_with(values: &[&str]) -> Engine {
    let host = Host::current();
    let loader = Loader::new(&host).set("cores.max=1");
    let loader = values.iter().fold(loader, |loader, value| loader.set(*value));
    Engine::new(loader.load("base").unwrap().config().clone()).unwrap()
}

pub(crate) fn act_as_me(client: &Client) {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let groups = Groups::default();
    let me = AuthSys { stamp: 0, machine_name: b"test", uid, gid, groups };
    client.set_auth_sys(Some(&me)).unwrap();
}

/// The bytes of a handle in hexadecimal.
pub(crate) fn bytes(hexadecimal: &str) -> Vec<u8> {
    let digits = hexadecimal.as_bytes().chunks(2);
    let each = digits.map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap());
    each.collect()
}

#[track_caller]
fn run_until(core: &mut Core, done: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    core.run_until(|| done() || Instant::now() > end);
    assert!(done());
}

pub(crate) fn connect(core: &mut Core, address: &str, count: &Count) -> Client {
    let options = ConnectOptions::new();
    let handler = count.clone();
    let connected = core.connect_with(address, nfs3::PROGRAM, nfs3::VERSION, &options, |_| handler);
    let client = connected.unwrap();
    run_until(core, || client.is_up());
    act_as_me(&client);
    client
}

#[test]
fn a_thousand_connections_are_all_served() {
    const CONNECTIONS: usize = 1000;
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let place = Place::new("scale-connections");
    let sets = SMALL.map(|value| format!("--set={value}"));
    let export = place.export("");
    let options = [&export[..], "--set=mem.arena_mib=64"];
    let options: Vec<&str> = options.into_iter().chain(sets.iter().map(String::as_str)).collect();
    let server = place.serve(&options);
    let root = bytes(&handle(&place.target("")));
    let open = || {
        let counts = clients(&place).into_iter().filter_map(|one| one["connections"].as_u64());
        counts.sum::<u64>()
    };
    in_time(|| (open() == 0).then_some(()));
    let engine = engine();
    let mut core = engine.core(0).unwrap();
    let count = Count::default();
    let clients: Vec<Client> =
        (0..CONNECTIONS).map(|_| connect(&mut core, &place.address(), &count)).collect();
    in_time(|| (open() == CONNECTIONS as u64).then_some(()));
    for round in 1..=3 {
        for client in &clients {
            let attributes = procedure(ProcedureId::Nfsproc3Getattr);
            let encode = |to: &mut spinrpc::Encoder<'_>| to.opaque(&root);
            client.call(attributes, Token(1), &mut CallSpec::new(), encode).unwrap();
        }
        run_until(&mut core, || count.0.get() == round * CONNECTIONS);
    }
    drop((clients, core, engine));
    in_time(|| (open() == 0).then_some(()));
    // It serves others as before.
    answer(&["ls", &place.target("")]);
    assert_eq!(server.end_by(rustix::process::Signal::TERM).0, Some(0));
}
