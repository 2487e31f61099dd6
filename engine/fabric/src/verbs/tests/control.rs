//! The control half alone: connections are made, refused and ended, and nothing is left of them.

use super::{RXE_HOST, SIW_HOST, address, config, connector};
use crate::verbs::control::Event;
use crate::verbs::link::Link;
use crate::verbs::{Registration, VerbsConfig, VerbsConnector, VerbsFabric, devices};
use crate::{
    Acceptor, Access, Completions, ConnectRequest, Connector, DownCause, Endpoint, ExposeError,
    Fabric, FabricError, ListenRequest,
};
use rdma_sys::{ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_init_attr, ibv_query_qp};
use std::collections::HashSet;
use std::io::Write;
use std::mem::zeroed;
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);

/// Answers each request at once, as a core does that has posted its receives, or refuses all.
struct Answering {
    core: Option<usize>,
    endpoints: Sender<Endpoint>,
}

impl Acceptor for Answering {
    fn pick_core(&mut self, _full: &[usize]) -> Option<usize> {
        self.core
    }

    fn accepted(&mut self, _core: usize, endpoint: Endpoint) {
        link(&endpoint).tell(Event::ReceivesPosted);
        // A test that has ended does not want it.
        let _ = self.endpoints.send(endpoint);
    }
}

fn answering(core: Option<usize>) -> (Box<Answering>, Receiver<Endpoint>) {
    let (endpoints, receiver) = channel();
    (Box::new(Answering { core, endpoints }), receiver)
}

/// A connector that listens, and connections to itself.
struct Loop {
    connector: VerbsConnector,
    address: String,
    endpoints: Receiver<Endpoint>,
    listener: Box<dyn Send>,
}

impl Loop {
    fn at(host: &str) -> Self {
        Self::with(host, config())
    }

    fn with(host: &str, config: VerbsConfig) -> Self {
        let connector = connector(config);
        let address = address(host);
        let (acceptor, endpoints) = answering(Some(1));
        let listener = connector
            .listen(
                &ListenRequest {
                    private_data: b"from the listener",
                    ..ListenRequest::new(&address)
                },
                acceptor,
            )
            .unwrap();
        Self { connector, address, endpoints, listener }
    }

    fn connect(&self) -> (Endpoint, Endpoint) {
        let near = self.connector.connect(&ConnectRequest {
            private_data: b"from the connector",
            ..ConnectRequest::new(&self.address, PATIENCE)
        });
        (near.unwrap(), self.endpoints.recv_timeout(PATIENCE).unwrap())
    }
}

fn link(end: &Endpoint) -> &Link {
    end.link.downcast_ref().unwrap()
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "waited in vain for {what}");
        thread::yield_now();
    }
}

fn error_of(result: Result<Endpoint, FabricError>) -> String {
    let error = result.err().unwrap().to_string();
    assert_eq!(error.lines().count(), 1, "{error}");
    error
}

/// Each test, over each device of the guest; then those of one device.
macro_rules! over_devices {
    ([$($name:ident,)+] siw [$($of_siw:ident,)+] rxe [$($of_rxe:ident,)+]) => {
        mod device_siw {
            $(#[test] fn $name() { super::$name(super::SIW_HOST); })+
            $(#[test] fn $of_siw() { super::$of_siw(super::SIW_HOST); })+
        }
        mod device_rxe {
            $(#[test] fn $name() { super::$name(super::RXE_HOST); })+
            $(#[test] fn $of_rxe() { super::$of_rxe(super::RXE_HOST); })+
        }
    };
}

over_devices!([
    private_data_and_names_go_both_ways,
    a_closed_connection_is_over_at_both_ends,
    an_endpoint_that_is_dropped_is_an_end_for_the_peer,
    a_refusal_says_so,
    nobody_listening_says_so,
    an_address_in_use_says_so_and_is_free_again_later,
    a_request_that_no_core_answers_ends_in_time,
    many_connections_are_made_at_once,
    reads_are_agreed_on,
    memory_whose_keys_outlive_calls_is_exposed,
    a_host_that_is_not_there_is_said_to_be,
    a_device_of_another_name_is_refused,
    nothing_is_left_of_a_connection,
    a_removed_device_ends_its_connections_and_can_come_back,
] siw [
    silent_sockets_hold_up_nobody,
] rxe [
    timers_and_retries_are_as_configured,
    connections_with_windows_share_a_protection_domain,
    windows_are_added_as_more_are_used,
]);

/// Connect. Expect private data and the other side's address at both ends.
fn private_data_and_names_go_both_ways(host: &str) {
    let looped = Loop::at(host);
    let (near, far) = looped.connect();
    assert!(near.peer_private_data.starts_with(b"from the listener"));
    assert!(far.peer_private_data.starts_with(b"from the connector"));
    assert_eq!(format!("rdma://{}", near.peer), looped.address);
    assert!(far.peer.to_string().starts_with(&format!("{host}:")), "{}", far.peer);
    assert_eq!(near.peer_identity, far.peer_identity);
    until("the acceptance", || link(&far).state.is_established());
}

/// End a connection. Expect Local here and Remote there, then queue pairs destroyed when asked for.
fn a_closed_connection_is_over_at_both_ends(host: &str) {
    let looped = Loop::at(host);
    let (near, far) = looped.connect();
    until("the acceptance", || link(&far).state.is_established());
    link(&near).tell(Event::DisconnectWanted);
    until("the end", || link(&near).state.over().is_some() && link(&far).state.over().is_some());
    assert_eq!(link(&near).state.over(), Some(&DownCause::Local));
    assert_eq!(link(&far).state.over(), Some(&DownCause::Remote));
    for end in [&near, &far] {
        assert!(!link(end).state.is_destroyed());
        link(end).tell(Event::DestroyWanted);
        until("the destruction", || link(end).state.is_destroyed());
    }
}

/// Drop one end. Expect Remote at the other one.
fn an_endpoint_that_is_dropped_is_an_end_for_the_peer(host: &str) {
    let looped = Loop::at(host);
    let (near, far) = looped.connect();
    drop(far);
    until("the end", || link(&near).state.over().is_some());
    assert_eq!(link(&near).state.over(), Some(&DownCause::Remote));
    let (near, far) = looped.connect();
    until("the acceptance", || link(&far).state.is_established());
    drop(near);
    until("the end", || link(&far).state.over().is_some());
    assert_eq!(link(&far).state.over(), Some(&DownCause::Remote));
}

/// Connect with keys that live as long as the connection. Expect memory without references to it.
fn memory_whose_keys_outlive_calls_is_exposed(host: &str) {
    let connector = connector(VerbsConfig { registration: Registration::Buffer, ..config() });
    let address = address(host);
    let (acceptor, endpoints) = answering(Some(1));
    let _listener = connector.listen(&ListenRequest::new(&address), acceptor).unwrap();
    let near = connector.connect(&ConnectRequest::new(&address, PATIENCE)).unwrap();
    let far = endpoints.recv_timeout(PATIENCE).unwrap();
    for end in [&near, &far] {
        assert!(link(end).memory.own_pool().unwrap().is_exposed());
    }
}

/// Be refused by a listener that accepts no connections. Expect its words.
fn a_refusal_says_so(host: &str) {
    let connector = connector(config());
    let address = address(host);
    let (acceptor, _endpoints) = answering(None);
    let _listener = connector.listen(&ListenRequest::new(&address), acceptor).unwrap();
    let error = error_of(connector.connect(&ConnectRequest::new(&address, PATIENCE)));
    assert!(error.contains("the peer refused: no room for more connections"), "{error}");
}

/// Connect to an address without a listener, never used or no longer used. Expect an error that
/// says so.
fn nobody_listening_says_so(host: &str) {
    let Loop { connector, address, endpoints: _, listener } = Loop::at(host);
    drop(listener);
    for address in [address, super::address(host)] {
        let error = error_of(connector.connect(&ConnectRequest::new(&address, PATIENCE)));
        assert!(
            error.starts_with(&format!("connect {address}: no server listens there")),
            "{error}"
        );
    }
}

/// Listen twice. Expect an error as long as the first listener lives, from the same connector and
/// another one.
fn an_address_in_use_says_so_and_is_free_again_later(host: &str) {
    let Loop { connector: first, address, endpoints: _, listener } = Loop::at(host);
    let second = connector(config());
    for connector in [&first, &second] {
        let error = connector
            .listen(&ListenRequest::new(&address), answering(None).0)
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains("another server listens there already"), "{error}");
    }
    drop(listener);
    let again = second.listen(&ListenRequest::new(&address), answering(None).0);
    assert!(again.is_ok(), "{}", again.err().unwrap());
}

/// Ask for a connection that the other side's core never takes. Expect an error at the deadline,
/// and the link of the other side over.
fn a_request_that_no_core_answers_ends_in_time(host: &str) {
    struct Silent(Sender<Endpoint>);
    impl Acceptor for Silent {
        fn pick_core(&mut self, _full: &[usize]) -> Option<usize> {
            Some(1)
        }

        fn accepted(&mut self, _core: usize, endpoint: Endpoint) {
            let _ = self.0.send(endpoint);
        }
    }
    let connector = connector(config());
    let address = address(host);
    let (sender, endpoints) = channel();
    let _listener =
        connector.listen(&ListenRequest::new(&address), Box::new(Silent(sender))).unwrap();
    let start = Instant::now();
    let error =
        error_of(connector.connect(&ConnectRequest::new(&address, Duration::from_millis(300))));
    assert!(error.contains("did not answer in time"), "{error}");
    assert!(start.elapsed() < PATIENCE / 2, "{:?}", start.elapsed());
    let silent = endpoints.recv_timeout(PATIENCE).unwrap();
    until("the end", || link(&silent).state.over().is_some());
}

/// Make 50 connections from several threads. Expect all of them.
fn many_connections_are_made_at_once(host: &str) {
    let looped = Loop::at(host);
    let connect =
        || looped.connector.connect(&ConnectRequest::new(&looped.address, PATIENCE)).unwrap();
    let connect_some = || (0..10).map(|_| connect()).collect::<Vec<_>>();
    let near: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..5).map(|_| scope.spawn(connect_some)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let far: Vec<_> = (0..50).map(|_| looped.endpoints.recv_timeout(PATIENCE).unwrap()).collect();
    for end in near.iter().chain(&far) {
        until("the acceptance", || link(end).state.is_established());
    }
}

/// Allow other numbers of RDMA Reads at each side. Expect the lesser one in each direction.
fn reads_are_agreed_on(host: &str) {
    let server = connector(VerbsConfig { reads_out_max: 9, reads_in_max: 3, ..config() });
    let client = connector(VerbsConfig { reads_out_max: 5, reads_in_max: 7, ..config() });
    let address = address(host);
    let (acceptor, endpoints) = answering(Some(0));
    let _listener = server.listen(&ListenRequest::new(&address), acceptor).unwrap();
    let near = client.connect(&ConnectRequest::new(&address, PATIENCE)).unwrap();
    let far = endpoints.recv_timeout(PATIENCE).unwrap();
    // In an answer, siw takes more than the configured number, up to the device's maximum.
    let from_near = if host == SIW_HOST { 5 } else { 3 };
    assert_eq!((near.reads_max, far.reads_max), (from_near, 7));
}

/// Set every timer and count to a different value. Expect them in both queue pairs. Not over iWARP,
/// which leaves all this to TCP.
fn timers_and_retries_are_as_configured(host: &str) {
    let configured = VerbsConfig {
        retry_count: 5,
        rnr_retry_count: 4,
        min_rnr_timer: 19,
        ack_timeout: Some(17),
        ..config()
    };
    let connector = connector(configured);
    let address = address(host);
    let (acceptor, endpoints) = answering(Some(0));
    let _listener = connector.listen(&ListenRequest::new(&address), acceptor).unwrap();
    let near = connector.connect(&ConnectRequest::new(&address, PATIENCE)).unwrap();
    let far = endpoints.recv_timeout(PATIENCE).unwrap();
    until("the acceptance", || link(&far).state.is_established());
    for end in [&near, &far] {
        let said = attributes(end);
        let timers = (said.min_rnr_timer, said.timeout);
        assert_eq!((timers, said.retry_cnt, said.rnr_retry), ((19, 17), 5, 4));
    }
}

fn attributes(end: &Endpoint) -> ibv_qp_attr {
    let all = ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER.0
        | ibv_qp_attr_mask::IBV_QP_TIMEOUT.0
        | ibv_qp_attr_mask::IBV_QP_RETRY_CNT.0
        | ibv_qp_attr_mask::IBV_QP_RNR_RETRY.0;
    // SAFETY: structures of integers and pointers, for which zero is a value.
    let (mut said, mut made) = unsafe { (zeroed::<ibv_qp_attr>(), zeroed::<ibv_qp_init_attr>()) };
    // SAFETY: the queue pair is alive as long as its link, and the results have places.
    let error = unsafe { ibv_query_qp(link(end).qp.as_ptr(), &mut said, all as i32, &mut made) };
    assert_eq!(error, 0);
    said
}

/// Connect to a host that does not exist, on the device's network and elsewhere. Expect errors in
/// time that name it.
fn a_host_that_is_not_there_is_said_to_be(host: &str) {
    let connector = connector(config());
    // All of the loopback interface's network is this host.
    let neighbour = (host == RXE_HOST).then_some("10.9.0.77");
    for absent in neighbour.into_iter().chain(["192.0.2.1"]) {
        let start = Instant::now();
        let address = format!("rdma://{absent}:7");
        let error =
            error_of(connector.connect(&ConnectRequest::new(&address, Duration::from_secs(1))));
        assert!(error.contains(&format!("connect {address}: ")) && error.contains("no"), "{error}");
        assert!(start.elapsed() < PATIENCE / 2, "{:?} {error}", start.elapsed());
    }
}

/// Open sockets to an iWARP listener and say nothing, or nonsense. Expect that others are served. Only
/// over siw: rxe has no sockets.
fn silent_sockets_hold_up_nobody(host: &str) {
    let looped = Loop::at(host);
    let place = looped.address.strip_prefix("rdma://").unwrap();
    let mut sockets: Vec<_> = (0..20).map(|_| TcpStream::connect(place).unwrap()).collect();
    for socket in &mut sockets[..10] {
        socket.write_all(&[0xa5; 100]).unwrap();
    }
    // The kernel waits 10 s for a silent one.
    let start = Instant::now();
    looped.connect();
    assert!(start.elapsed() < Duration::from_secs(6), "{:?}", start.elapsed());
}

/// Name another device in the configuration than the one that leads to the peer. Expect an error
/// with both names.
fn a_device_of_another_name_is_refused(host: &str) {
    let looped = Loop::at(host);
    let all = devices().unwrap();
    let (own, other) = match host {
        SIW_HOST => ("siw0", "rxe0"),
        RXE_HOST => ("rxe0", "siw0"),
        _ => panic!("a host of the guest"),
    };
    assert!(all.iter().any(|device| device.name == own), "{all:?}");
    let named = |name: &str| {
        let device = Some(name.to_owned());
        connector(VerbsConfig { device, ..config() })
    };
    let error = error_of(named(other).connect(&ConnectRequest::new(&looped.address, PATIENCE)));
    assert!(error.contains(own) && error.contains(other), "{error}");
    assert!(named(own).connect(&ConnectRequest::new(&looped.address, PATIENCE)).is_ok());
}

/// Make and end connections in a separate process. Expect that the kernel keeps nothing of them
/// while the process goes on.
fn nothing_is_left_of_a_connection(host: &str) {
    in_own_process(host, "nothing_is_left_of_a_connection", leave_nothing);
}

/// Remove a device that has connections and a listener. Expect that they are told, that the device
/// goes when they have given up their links, and that the listener accepts when it is back.
fn a_removed_device_ends_its_connections_and_can_come_back(host: &str) {
    in_own_process(host, "a_removed_device_ends_its_connections_and_can_come_back", remove_device);
}

/// Runs `test` in a process that has this test alone.
fn in_own_process(host: &str, name: &str, test: fn(&str)) {
    const CHILD: &str = "SPINRPC_TEST_CHILD";
    if std::env::var(CHILD).is_ok() {
        return test(host);
    }
    let module = if host == SIW_HOST { "device_siw" } else { "device_rxe" };
    let name = format!("verbs::tests::control::{module}::{name}");
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &name, "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
}

/// Have memory exposed by windows, and by keys of blocks. Expect further connections of a core to use the protection domain of
/// the first one, and to have one each.
fn connections_with_windows_share_a_protection_domain(host: &str) {
    in_own_process(host, "connections_with_windows_share_a_protection_domain", share_domains);
}

/// Expose as much at a time as a connection may, which has few windows at first. Expect the windows to come while the core
/// takes its turns, and a later connection of the core to have as few as the first one had.
fn windows_are_added_as_more_are_used(host: &str) {
    let (keys_first, keys_max) = (4, 30);
    let registration = Registration::Window;
    let looped = Loop::with(host, VerbsConfig { registration, keys_first, keys_max, ..config() });
    let (near, _far) = looped.connect();
    let windows = Arc::downgrade(&link(&near).memory.windows);
    let mut fabric = looped.connector.fabric(0).unwrap();
    let qp = fabric.adopt(near).unwrap();
    // Each of another block: leases of one must ascend.
    let expose = |fabric: &mut VerbsFabric| {
        let lease = fabric.bulk(qp, 64).unwrap().lease(0..64);
        fabric.expose(qp, lease, Access::RemoteRead, None)
    };
    let mut out = Completions::with_limit(8);
    let mut alive = Vec::new();
    until("all windows", || {
        alive.extend(expose(&mut fabric));
        fabric.flush();
        fabric.poll(&mut out);
        out.drain().for_each(drop);
        alive.len() == keys_max
    });
    let keys: HashSet<u32> = alive.iter().map(|slice| slice.handle).collect();
    let count = windows.upgrade().map(|windows| windows.count());
    assert_eq!((keys.len(), count), (keys_max, Some(keys_max)));
    assert_eq!(expose(&mut fabric), Err(ExposeError::NoKey));
    let (next, _far) = looped.connect();
    assert_eq!(link(&next).memory.windows.count(), keys_first);
}

fn share_domains(host: &str) {
    let made = |registration| {
        let looped = Loop::with(host, VerbsConfig { registration, ..config() });
        let _first = looped.connect();
        let threads = own_threads();
        let before = kept("pd", &threads);
        let _more: Vec<_> = (0..4).map(|_| looped.connect()).collect();
        kept("pd", &threads) - before
    };
    assert_eq!([Registration::Window, Registration::Buffer].map(made), [0, 8]);
}

fn leave_nothing(host: &str) {
    let looped = Loop::at(host);
    let made = looped.connect();
    let threads = own_threads();
    let kept = |kind| kept(kind, &threads);
    assert!(kept("qp") >= 2 && kept("cq") >= 2 && kept("pd") >= 2, "they are counted");
    drop(made);
    let (near, far) = looped.connect();
    link(&near).tell(Event::DisconnectWanted);
    link(&far).tell(Event::DestroyWanted);
    drop((near, far));
    let nobody = address(host);
    error_of(looped.connector.connect(&ConnectRequest::new(&nobody, PATIENCE)));
    let Loop { connector, listener, .. } = looped;
    // For the device itself: the library's protection domain, and a queue in the way of a bug.
    until("the kernel to forget", || {
        ["qp", "mr"].map(kept) == [0; 2] && kept("pd") <= 1 && kept("cq") <= 1
    });
    drop(listener);
    drop(connector);
    until("the kernel to forget", || ["qp", "cq", "mr", "pd", "cm_id"].map(kept) == [0; 5]);
}

/// The threads of this process, by which the kernel names the makers of its objects.
fn own_threads() -> HashSet<String> {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    threads.map(|one| one.unwrap().file_name().into_string().unwrap()).collect()
}

/// Objects of this kind that the kernel keeps for these threads.
fn kept(kind: &str, threads: &HashSet<String>) -> usize {
    let output = Command::new("rdma").args(["resource", "show", kind]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let maker = |line: &str| Some(line.split_once(" pid ")?.1.split(' ').next()?.to_owned());
    text.lines().filter_map(maker).filter(|thread| threads.contains(thread)).count()
}

fn remove_device(host: &str) {
    let (kind, network) = if host == SIW_HOST { ("siw", 81) } else { ("rxe", 82) };
    let host = format!("10.{network}.0.1");
    run(&format!("ip link add d{network} type dummy"));
    run(&format!("ip addr add {host}/24 dev d{network}"));
    run(&format!("ip link set d{network} address 02:00:00:00:00:{network} up"));
    run(&format!("rdma link add {kind}{network} type {kind} netdev d{network}"));
    let looped = Loop::at(&host);
    let ends: Vec<_> =
        (0..3).map(|_| looped.connect()).flat_map(|(near, far)| [near, far]).collect();
    let delete = format!("link delete {kind}{network}");
    let mut deletion = Command::new("rdma").args(delete.split(' ')).spawn().unwrap();
    for end in &ends {
        until("the end", || link(end).state.over().is_some());
        let cause = link(end).state.over().unwrap();
        // The one that is told first may be seen by its peer as closing.
        assert!(matches!(cause, DownCause::DeviceRemoved | DownCause::Remote), "{cause:?}");
    }
    drop(ends);
    until("the device to go", || deletion.try_wait().unwrap().is_some());
    error_of(
        looped.connector.connect(&ConnectRequest::new(&looped.address, Duration::from_millis(500))),
    );
    run(&format!("rdma link add {kind}{network} type {kind} netdev d{network}"));
    until("the listener", || {
        let timeout = Duration::from_millis(500);
        looped.connector.connect(&ConnectRequest::new(&looped.address, timeout)).is_ok()
    });
}

fn run(command: &str) {
    let mut words = command.split(' ');
    let status = Command::new(words.next().unwrap()).args(words).status().unwrap();
    assert!(status.success(), "{command}");
}
