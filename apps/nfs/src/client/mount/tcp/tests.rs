//! The caller against a service in a thread of the test.

use super::*;
use crate::mount3::{self, MNT, Mounted};
use crate::protocol::FileHandle;
use spinrpc::{Groups, Program, Version};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread::{self, JoinHandle};

/// Maps the bytes of one call to those of its answer.
type Answer = fn(call: &[u8]) -> Vec<u8>;

/// A service that answers one call; returns the call.
fn service(answer: Answer) -> (u16, JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let thread = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let call = record::read(&mut stream).unwrap();
        stream.write_all(&answer(&call)).unwrap();
        // Until the caller hangs up.
        drop(stream.read(&mut [0]));
        call
    });
    (port, thread)
}

fn options(timeout: Duration) -> Options {
    let user = User::current().with_ids(Some(4711), Some(12));
    Options { timeout, user: Some(user), ..Options::default() }
}

/// A call of MNT that receives `answer`.
fn mount(answer: Answer, timeout: Duration) -> (Result<Mounted, Error>, Vec<u8>) {
    let (port, service) = service(answer);
    let mut caller = TcpCaller::connect("127.0.0.1", Some(port), &options(timeout)).unwrap();
    let called = caller.call("MNT", MNT, |to| to.opaque(b"/export"), mount3::outcome);
    drop(caller);
    (called.map(Result::unwrap), service.join().unwrap())
}

const PATIENCE: Duration = Duration::from_secs(30);

/// An accepted reply to `call`, with `results`.
fn reply(call: &[u8], results: impl Fn(&mut Encoder<'_>)) -> Vec<u8> {
    let message = bytes_of(|to| {
        to.fixed(&call[..4]);
        // REPLY, MSG_ACCEPTED, AUTH_NONE with an empty body, SUCCESS.
        [1, 0, 0, 0, 0].into_iter().for_each(|word| to.u32(word));
        results(to);
    });
    record::mark(&message).unwrap()
}

fn mounted() -> Mounted {
    Mounted { handle: FileHandle::new(b"a handle").unwrap(), flavors: vec![1] }
}

fn good_reply(call: &[u8]) -> Vec<u8> {
    reply(call, |to| {
        to.u32(0);
        mounted().encode(to);
    })
}

#[test]
fn a_call_is_one_of_the_program_by_the_user_it_was_told() {
    let (answer, call) = mount(good_reply, PATIENCE);
    assert_eq!(answer.unwrap(), mounted());
    let mut words = Decoder::plain(&call[4..]);
    let mut word = || words.u32().unwrap();
    assert_eq!([word(), word()], [0, 2], "a call of RPC version 2");
    assert_eq!((Program(word()), Version(word()), Procedure(word())), (PROGRAM, VERSION, MNT));
    assert_eq!(word(), AuthFlavor::Sys.to_wire());
    let body = words.opaque(CREDENTIAL_BYTES_MAX).unwrap();
    let user = spinrpc::AuthSys::parse(body).unwrap();
    assert_eq!((user.uid, user.gid, user.groups), (4711, 12, Groups::default()));
    assert_eq!((words.u32(), words.opaque(0)), (Ok(0), Ok(&[][..])), "no verifier");
    assert_eq!(words.opaque(100), Ok(&b"/export"[..]));
    assert_eq!(words.finish(), Ok(()));
}

#[test]
fn receive_a_reply_to_another_call_expect_refusal() {
    let other = |call: &[u8]| {
        let mut call = call.to_vec();
        call[0] ^= 1;
        good_reply(&call)
    };
    let error = mount(other, PATIENCE).0.unwrap_err();
    assert_eq!(error.exit_code(), 6, "{error}");
}

#[test]
fn receive_a_handle_of_4_gib_expect_refusal() {
    let endless = |call: &[u8]| {
        reply(call, |to| {
            to.u32(0);
            to.u32(u32::MAX);
        })
    };
    let error = mount(endless, PATIENCE).0.unwrap_err();
    assert_eq!(error.exit_code(), 6, "{error}");
}

#[test]
fn receive_a_record_of_2_gib_expect_the_service_given_up() {
    let error = mount(|_| vec![0xff; 4], PATIENCE).0.unwrap_err();
    assert_eq!(error.exit_code(), 3, "{error}");
    assert!(error.to_string().contains("was lost"), "{error}");
}

#[test]
fn receive_that_the_program_is_not_there_expect_its_words() {
    let unavailable = |call: &[u8]| {
        let message = bytes_of(|to| {
            to.fixed(&call[..4]);
            // REPLY, MSG_ACCEPTED, AUTH_NONE with an empty body, PROG_UNAVAIL.
            [1, 0, 0, 0, 1].into_iter().for_each(|word| to.u32(word));
        });
        record::mark(&message).unwrap()
    };
    let error = mount(unavailable, PATIENCE).0.unwrap_err();
    assert!(error.exit_code() == 4 && error.to_string().contains("ProgUnavail"), "{error}");
}

#[test]
fn receive_no_reply_expect_the_deadline() {
    // Longer than a pause of this thread, before it has connected and called.
    let error = mount(|_| Vec::new(), Duration::from_secs(5)).0.unwrap_err();
    assert!(error.exit_code() == 3 && error.to_string().contains("timed out"), "{error}");
}

#[test]
fn nobody_at_the_port_expect_what_to_do() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let connected = TcpCaller::connect("127.0.0.1", Some(port), &options(PATIENCE));
    let error = connected.err().unwrap();
    assert!(
        error.exit_code() == 3 && error.to_string().contains("handle of the directory"),
        "{error}"
    );
}

#[test]
fn the_port_is_in_the_last_two_octets() {
    assert_eq!(port_of("0.0.0.0.78.81"), Some(20049));
    assert_eq!(port_of("::.0.111"), Some(111));
    for text in ["", "1", "0.0.0.0.0.0", "0.0.0.0.256.1", "a.b"] {
        assert_eq!(port_of(text), None, "{text}");
    }
}
