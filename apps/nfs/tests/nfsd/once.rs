//! Calls that must not be executed twice, by a client that lost its connection and retransmits them
//! (RFC 1813 section 4.6: the duplicate request cache).

use crate::*;
use nfs3_types::nfs3::stable_how::FILE_SYNC;
use spinrpc::{Groups, Resend};

/// A host of a back end behind the gate.
fn behind(gate: &Arc<Gate>, options: &ServerOptions) -> Host {
    let back_end = back_end::gated(gate);
    let exports = vec![host::export(MAIN, &back_end, host::open())];
    Host::with(exports, vec![back_end], options)
}

/// The same with an open gate, a session and a file.
fn opened() -> (Host, Arc<Gate>, Session, nfs_fh3) {
    let gate = Gate::open();
    let host = behind(&gate, &host::options());
    let (session, file) = host.session_and_file();
    (host, gate, session, file)
}

fn one_thread() -> ServerOptions {
    ServerOptions { threads: 1, ..host::options() }
}

/// The connection is lost and made again while a call is behind the gate; its status afterwards.
fn lose_connection(session: &Session, gate: &Gate, reply: &Status) -> nfsstat3 {
    session.client.reconnect();
    session.run_until("the connection to be lost", || !session.client.is_up());
    session.run_until("another connection", || session.client.is_up());
    gate.let_in();
    outcome(session, reply)
}

fn outcome(session: &Session, reply: &Status) -> nfsstat3 {
    session.run_until("a reply", || reply.borrow().is_some());
    reply.take().unwrap().unwrap()
}

/// The only thread is in a call behind the gate, and another call waits for it.
fn one_call_waits(host: &Host, gate: &Gate, [first, second]: [&Session; 2]) -> [Status; 2] {
    let begun = start_mkdir(host, first, "begun");
    first.run_until("the thread to be busy", || gate.waiting() == 1);
    let waits = start_mkdir(host, second, "waits");
    second.run_until("the call to wait", || mkdirs(host) == 2);
    [begun, waits]
}

/// MKDIR is in progress when the connection is lost. Executed again, it would answer NFS3ERR_EXIST.
#[test]
fn send_mkdir_again_on_another_connection_expect_the_reply_of_the_first() {
    let gate = Gate::closed();
    let host = behind(&gate, &host::options());
    let options = ConnectOptions::new().reconnect(Reconnect::default());
    let session = Session::connect_with(host.address(), &options);
    let arguments = MKDIR3args { where_: at(&host.root(), "once"), attributes: mode(0o755) };
    let spec = CallSpec::new().resend(Resend::AtMostOnce).reply_bytes_max(512);
    let operation = NFS_PROGRAM::NFSPROC3_MKDIR as u32;
    let reply = session.start(operation, spec, |to| arguments.encode(to), only_status);
    session.run_until("the call to be in progress", || gate.waiting() == 1);
    assert_eq!(lose_connection(&session, &gate, &reply), nfsstat3::NFS3_OK);
    assert_eq!(host.server.stats().procedures[operation as usize].calls, 1);
    assert!(session.lookup(&host.root(), "once").is_ok());
}

/// WRITE is in progress when the connection is lost. A second one could end before the first, which
/// could then undo a later write of the client. The data come in a Read chunk, too.
#[test]
fn send_write_again_while_it_is_in_flight_expect_it_started_once() {
    let gate = Gate::open();
    let host = behind(&gate, &host::options());
    let options = ConnectOptions::new().reconnect(Reconnect::default());
    let session = Session::connect_with(host.address(), &options);
    let file = session.create(&host.root(), "file");
    let operation = NFS_PROGRAM::NFSPROC3_WRITE as u32;
    for (begun, length) in [(1, 100), (2, 64 << 10)] {
        gate.shut();
        let mut data = session.client.bulk(length).unwrap();
        data.bytes_mut().fill(7);
        let head =
            WriteHead { file: file.clone(), offset: 0, count: length as u32, stable: FILE_SYNC };
        let encode = |to: &mut Encoder<'_>| {
            head.encode(to);
            to.bulk();
        };
        let spec = CallSpec::new().resend(Resend::AtMostOnce).argument(data);
        let reply = session.start(operation, spec, encode, only_status);
        let calls = || host.server.stats().procedures[operation as usize].calls;
        session.run_until("the call to be in progress", || calls() == begun);
        let outcome = lose_connection(&session, &gate, &reply);
        assert_eq!(outcome, nfsstat3::NFS3_OK, "{length} bytes");
        assert_eq!(calls(), begun, "{length} bytes");
    }
}

/// No memory is left for deferred replies: calls that change something, and data on a path that may
/// block, must be retried.
#[test]
fn calls_that_cannot_be_put_off_expect_jukebox_and_nothing_done() {
    let (host, gate, session, file) = opened();
    let taken = gate.take_memory();
    assert_eq!(status(session.try_mkdir(&host.root(), "later")), nfsstat3::NFS3ERR_JUKEBOX);
    assert_eq!(session.write(&file, 0, b"later"), nfsstat3::NFS3ERR_JUKEBOX);
    assert_eq!(status(session.commit(&file, 0, 0)), nfsstat3::NFS3ERR_JUKEBOX);
    assert_eq!(host.server.stats().jukebox, 3);
    drop(taken);
    assert_eq!(session.getattr(&file).unwrap().size, 0);
    assert_eq!(session.write(&file, 0, b"now"), nfsstat3::NFS3_OK);
    session.mkdir(&host.root(), "later");
}

/// The verifier "must be unique between instances of the NFS version 3 protocol server, where
/// uncommitted data may be lost" (section 3.3.7): a loss without a restart is one more instance.
#[test]
fn a_back_end_that_lost_data_expect_another_verifier() {
    let (_host, gate, session, file) = opened();
    let write = || session.write_as(&file, 0, b"data", stable_how::UNSTABLE).unwrap().verf;
    let before = write();
    assert_eq!(session.commit(&file, 0, 0).unwrap().verf, before);
    gate.losses.fetch_add(1, Ordering::Relaxed);
    assert_ne!(session.commit(&file, 0, 0).unwrap().verf, before);
    assert_ne!(write(), before);
}

/// A loss while a WRITE is in progress may include its data: the following COMMIT must have another
/// verifier than the WRITE. A loss while a COMMIT is in progress may include earlier writes.
#[test]
fn data_lost_in_flight_expect_write_with_the_verifier_before_and_commit_with_the_one_after() {
    let (_host, gate, session, file) = opened();
    let write = || session.write_as(&file, 0, b"data", stable_how::UNSTABLE).unwrap().verf;
    let before = write();
    gate.losses_in_flight.store(1, Ordering::Relaxed);
    assert_eq!(write(), before);
    assert_ne!(session.commit(&file, 0, 0).unwrap().verf, before);
    let before = write();
    gate.losses_in_flight.store(1, Ordering::Relaxed);
    assert_ne!(session.commit(&file, 0, 0).unwrap().verf, before);
}

/// The engine missed its shutdown deadline: a client retries the waiting call elsewhere, and its
/// effect there must not be undone here.
#[test]
fn a_call_that_waits_for_a_thread_when_the_server_stops_expect_it_not_done() {
    let gate = Gate::closed();
    let back_end = back_end::gated(&gate);
    let file_system = Arc::clone(&back_end.file_system);
    let exports = vec![host::export(MAIN, &back_end, host::open())];
    let host = Host::with(exports, vec![back_end], &one_thread());
    let (first, second) = (host.session(), host.session());
    let [begun, waits] = one_call_waits(&host, &gate, [&first, &second]);
    host.server.stop();
    gate.let_in();
    first.run_until("what has begun", || begun.borrow().is_some());
    assert!(waits.borrow().is_none());
    drop(host);
    let made = |name: &str| {
        let me = Caller { uid: 0, gid: 0, groups: Groups::default().into() };
        let place = Place { directory: &file_system.root(), name: name.as_bytes() };
        file_system.lookup(&me, place).is_ok()
    };
    assert_eq!((made("begun"), made("waits")), (true, false));
}

/// Its client and its user were checked against exports that are not in force any more: a retry is checked again.
#[test]
fn a_call_that_waits_for_a_thread_when_the_exports_change_expect_jukebox() {
    let gate = Gate::closed();
    let back_end = back_end::gated(&gate);
    let exports = vec![host::export(MAIN, &back_end, host::open())];
    let strict = ExportOptions { squash: Squash::All, read_only: true, ..host::open() };
    let changed = Exports::new(vec![host::export(MAIN, &back_end, strict)]).unwrap();
    let host = Host::with(exports, vec![back_end], &one_thread());
    let (first, second) = (host.session(), host.session());
    let [begun, waits] = one_call_waits(&host, &gate, [&first, &second]);
    host.server.replace_exports(changed).unwrap();
    gate.let_in();
    assert_eq!(outcome(&first, &begun), nfsstat3::NFS3_OK);
    assert_eq!(outcome(&second, &waits), nfsstat3::NFS3ERR_JUKEBOX);
    assert_eq!(status(second.try_mkdir(&host.root(), "again")), nfsstat3::NFS3ERR_ROFS);
}

/// With the attributes from after it, the client would take the name for missing as long as the directory stays the same.
#[test]
fn a_name_made_behind_a_lookup_in_vain_expect_the_directory_as_it_was_before() {
    let (host, gate, session, _) = opened();
    let before = session.getattr(&host.root()).unwrap();
    gate.is_overtaken.store(true, Ordering::Relaxed);
    let missed = session.lookup(&host.root(), "name");
    let Err((nfsstat3::NFS3ERR_NOENT, directory)) = missed else { panic!("{missed:?}") };
    let directory = some(directory);
    assert_eq!((directory.nlink, directory.mtime), (before.nlink, before.mtime));
    assert!(session.lookup(&host.root(), "name").is_ok());
}

type Status = std::rc::Rc<std::cell::RefCell<Option<Result<nfsstat3, spinrpc::CallError>>>>;

pub(crate) fn start_mkdir(host: &Host, session: &Session, name: &str) -> Status {
    let arguments = MKDIR3args { where_: at(&host.root(), name), attributes: mode(0o755) };
    let spec = CallSpec::new().reply_bytes_max(512);
    let operation = NFS_PROGRAM::NFSPROC3_MKDIR as u32;
    session.start(operation, spec, |to| arguments.encode(to), only_status)
}

/// Number of calls received.
fn mkdirs(host: &Host) -> u64 {
    host.server.stats().procedures[NFS_PROGRAM::NFSPROC3_MKDIR as usize].calls
}

/// "An error occurred on the server which does not map to any of the legal NFS version 3 protocol
/// error values" (section 2.6): the only thread continues with the next call.
#[test]
fn a_back_end_that_panics_expect_serverfault_for_that_call_alone() {
    let gate = Gate::open();
    let host = behind(&gate, &one_thread());
    let session = host.session();
    for name in ["first", "second"] {
        gate.is_trap.store(true, Ordering::Relaxed);
        let outcome = session.try_mkdir(&host.root(), name);
        assert_eq!(status(outcome), nfsstat3::NFS3ERR_SERVERFAULT);
    }
    session.mkdir(&host.root(), "third");
    assert_eq!(host.server.stats().procedures[NFS_PROGRAM::NFSPROC3_MKDIR as usize].errors, 2);
}

/// The pool and its queue have a limit; further calls are to be retried later.
#[test]
fn more_calls_than_the_queue_takes_expect_jukebox() {
    let gate = Gate::closed();
    let host = behind(&gate, &ServerOptions { queue_max: 1, ..one_thread() });
    let sessions = [(); 3].map(|()| host.session());
    let [first, second] = one_call_waits(&host, &gate, [&sessions[0], &sessions[1]]);
    let third = start_mkdir(&host, &sessions[2], "c");
    assert_eq!(outcome(&sessions[2], &third), nfsstat3::NFS3ERR_JUKEBOX);
    assert_eq!(host.server.stats().jukebox, 1);
    gate.let_in();
    assert_eq!(outcome(&sessions[0], &first), nfsstat3::NFS3_OK);
    assert_eq!(outcome(&sessions[1], &second), nfsstat3::NFS3_OK);
}
