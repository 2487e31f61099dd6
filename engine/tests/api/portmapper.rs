//! RFC 5666 section 10, its second and third way: a portmapper on the fabric itself, and ports
//! that are known without asking.

use crate::common::prelude::*;
use spinrpc::rpcbind::wire::{self, Entry, Mapping, VERSION_2, VERSION_3, VERSION_4};
use spinrpc::rpcbind::{
    Endpoint, How, NFS_ADDRESS, Netid, RpcbindError, find_service, serve_portmapper,
};

struct Server {
    engine: Started,
    address: String,
    portmapper: String,
}

impl Server {
    fn start() -> Self {
        let engine = Engine::new(valid(small())).unwrap();
        let (address, portmapper) = (unique_address(), unique_address());
        engine.serve(PROGRAM, VERSION, |_core| |call: Call<'_>| call.reply(|_| {})).unwrap();
        engine.listen(&address).unwrap();
        serve_portmapper(&engine, &portmapper).unwrap();
        Self { engine: Started::new(engine), address, portmapper }
    }

    fn ask(&self, version: Version) -> blocking::Client {
        let client = blocking::Client::connect_with(
            valid(small()),
            &self.portmapper,
            wire::PROGRAM,
            version,
        );
        client.unwrap()
    }

    fn find(&self, program: Program) -> Result<Endpoint, RpcbindError> {
        find_service(program, VERSION, Netid::Shm, How::Portmapper(&self.portmapper))
    }

    fn entry(&self) -> Entry {
        Entry {
            program: PROGRAM,
            version: VERSION,
            netid: Netid::Shm.name().into(),
            address: self.address.clone(),
            owner: String::new(),
        }
    }
}

/// Another version of a served program is an answer too: its server says which it has.
#[test]
fn an_engine_says_where_its_programs_are() {
    let server = Server::start();
    let found = server.find(PROGRAM).unwrap();
    assert_eq!(found, Endpoint::Shm(server.address.clone()));
    let address = found.to_string();
    let client = blocking::Client::connect_with(valid(small()), &address, PROGRAM, VERSION);
    assert!(client.unwrap().is_up());
    let how = How::Portmapper(&server.portmapper);
    let other = find_service(PROGRAM, Version(VERSION.0 + 1), Netid::Shm, how).unwrap();
    assert_eq!(other.to_string(), server.address);
    let error = server.find(Program(PROGRAM.0 + 1)).unwrap_err();
    assert!(matches!(error, RpcbindError::NotRegistered { .. }), "{error}");
    let error = find_service(PROGRAM, VERSION, Netid::Shm, How::Portmapper("shm:no-listener"));
    let text = error.unwrap_err().to_string();
    assert!(text.contains("portmapper at shm:no-listener"), "{text}");
}

/// The list of DUMP in versions 3 and 4: program, version, netid, address.
fn entries(
    results: &mut Decoder<'_>,
) -> Result<Vec<(Program, Version, String, String)>, DecodeError> {
    let mut list = Vec::new();
    while results.bool()? {
        let (program, version) = (Program(results.u32()?), Version(results.u32()?));
        let (netid, address) = (results.string(64)?.to_owned(), results.string(64)?.to_owned());
        results.string(64)?;
        list.push((program, version, netid, address));
    }
    Ok(list)
}

#[test]
fn receive_dump_expect_every_program_at_every_address() {
    let server = Server::start();
    let mut expected = Vec::new();
    for address in [&server.address, &server.portmapper] {
        let served = [VERSION_2, VERSION_3, VERSION_4].map(|version| (wire::PROGRAM, version));
        for (program, version) in [(PROGRAM, VERSION)].into_iter().chain(served) {
            expected.push((program, version, "spinrpc-shm".to_owned(), address.clone()));
        }
    }
    for version in [VERSION_3, VERSION_4] {
        let list = server.ask(version).call(wire::DUMP, |_| {}, entries).unwrap();
        assert_eq!(list, expected);
    }
}

#[test]
fn receive_version_2_expect_no_port_where_there_are_none() {
    let server = Server::start();
    let mut client = server.ask(VERSION_2);
    let mapping = Mapping { program: PROGRAM, version: VERSION, protocol: 6, port: 0 };
    let port =
        client.call(wire::GETADDR, |args| mapping.write(args.xdr()), |results| results.u32());
    assert_eq!(port.unwrap(), 0);
    let is_empty = client.call(wire::DUMP, |_| {}, |results| results.bool().map(|more| !more));
    assert!(is_empty.unwrap());
}

/// RFC 1833 section 2.2.1: the network that is asked about is that of the question; section 3: a port of TCP.
#[test]
fn receive_a_question_over_ip_expect_the_address_that_leads_there() {
    let iwarp = || valid(small_with(|raw| raw.fabric.driver = Driver::Iwarp));
    let port = 12_090 + std::process::id() % 200 * 100;
    let any = [format!("[::]:{port}")];
    let each = [format!("127.0.0.1:{}", port + 1), format!("[::1]:{}", port + 2)];
    for (places, ports, four, six) in [
        (&any[..], [port, port], format!("0.0.0.0:{port}"), &any[0]),
        (&each, [port + 1, port + 2], each[0].clone(), &each[1]),
    ] {
        let engine = Engine::new(iwarp()).unwrap();
        engine.serve(PROGRAM, VERSION, |_core| |call: Call<'_>| call.reply(|_| {})).unwrap();
        if let Err(error) = serve_portmapper(&engine, &format!("iwarp://{}", places[0])) {
            return not_tested(&format!("a portmapper over IPv6: {error}"));
        }
        for place in &places[1..] {
            engine.listen(&format!("iwarp://{place}")).unwrap();
        }
        let _started = Started::new(engine);
        let asked =
            [format!("iwarp://127.0.0.1:{}", ports[0]), format!("iwarp://[::1]:{}", ports[1])];
        let found = [(Netid::Rdma, &asked[0]), (Netid::Rdma6, &asked[1])]
            .map(|(netid, at)| find_service(PROGRAM, VERSION, netid, How::Portmapper(at)).unwrap());
        let expected = [&four, six].map(|place| Endpoint::Ip(place.parse().unwrap()));
        assert_eq!(found, expected);
        for (protocol, expected) in [(6, ports[0]), (17, 0), (0, 0)] {
            let mut client =
                blocking::Client::connect_with(iwarp(), &asked[0], wire::PROGRAM, VERSION_2)
                    .unwrap();
            let mapping = Mapping { program: PROGRAM, version: VERSION, protocol, port: 0 };
            let found = client.call(
                wire::GETADDR,
                |args| mapping.write(args.xdr()),
                |results| results.u32(),
            );
            assert_eq!(found.unwrap(), expected, "protocol {protocol}");
        }
    }
}

#[test]
fn receive_null_and_unknown_procedures_expect_rfc_5531() {
    let server = Server::start();
    for version in [VERSION_2, VERSION_3, VERSION_4] {
        let mut client = server.ask(version);
        client.call(wire::NULL, |_| {}, |_| Ok(())).unwrap();
        let error = client.call(Procedure(5), |_| {}, |_| Ok(())).unwrap_err();
        assert!(matches!(error, CallError::Accepted(AcceptStatus::ProcUnavail)), "{error}");
        let error = client.call(wire::GETADDR, |args| args.u32(1), |_| Ok(())).unwrap_err();
        assert!(matches!(error, CallError::Accepted(AcceptStatus::GarbageArgs)), "{error}");
    }
}

#[test]
fn what_is_served_later_is_known_and_nothing_after_the_end() {
    let server = Server::start();
    let directory = server.engine.directory();
    let later = unique_address();
    server.engine.listen(&later).unwrap();
    let expected = [server.address.clone(), server.portmapper.clone(), later];
    assert_eq!(directory.addresses(), expected);
    assert!(directory.services().contains(&(wire::PROGRAM, VERSION_4)));
    server.engine.shutdown();
    assert_eq!(directory.addresses(), Vec::<String>::new());
}

#[test]
fn receive_set_or_unset_expect_false_and_no_change() {
    let server = Server::start();
    let mut entry = server.entry();
    entry.program = Program(PROGRAM.0 + 1);
    for version in [VERSION_3, VERSION_4] {
        let mut client = server.ask(version);
        for procedure in [wire::SET, wire::UNSET] {
            let taken =
                client.call(procedure, |args| entry.write(args.xdr()), |results| results.bool());
            assert!(!taken.unwrap());
        }
    }
    let mapping = Mapping { program: entry.program, version: VERSION, protocol: 6, port: 2049 };
    let mut client = server.ask(VERSION_2);
    for procedure in [wire::SET, wire::UNSET] {
        let taken =
            client.call(procedure, |args| mapping.write(args.xdr()), |results| results.bool());
        assert!(!taken.unwrap());
    }
    assert!(server.find(entry.program).is_err());
    assert!(server.find(PROGRAM).is_ok());
}

/// NFS over RDMA is at 20049 by convention, which shared memory has a name for.
#[test]
fn a_well_known_port_is_found_without_asking() {
    let (nfs, version) = (Program(100_003), Version(3));
    let known = |program, netid| find_service(program, version, netid, How::WellKnown);
    assert_eq!(known(nfs, Netid::Rdma).unwrap().to_string(), "any://0.0.0.0:20049");
    assert_eq!(known(nfs, Netid::Rdma6).unwrap().to_string(), "any://[::]:20049");
    assert_eq!(known(wire::PROGRAM, Netid::Rdma).unwrap().to_string(), "any://0.0.0.0:111");
    assert_eq!(known(nfs, Netid::Shm).unwrap().to_string(), NFS_ADDRESS);
    let error = known(PROGRAM, Netid::Shm).unwrap_err();
    assert!(matches!(error, RpcbindError::NotWellKnown { .. }), "{error}");
}
