//! Asks engines of the test's own process by their control sockets.

use super::LIMIT;
use serde_json::Value;
use spinrpc::control::NAME_PREFIX;
use std::io::{BufRead, BufReader, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};

/// Engines that the tests of one file have at a time, and more.
const NUMBERS: u32 = 64;

pub(crate) fn name(number: u32) -> String {
    let user = effective_user();
    format!("{NAME_PREFIX}{user}/{}/{number}", std::process::id())
}

pub(crate) fn effective_user() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap();
    line.split_whitespace().nth(1).unwrap().to_owned()
}

pub(crate) fn connect(name: &str) -> Option<UnixStream> {
    let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name).unwrap()).ok()?;
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.set_write_timeout(Some(LIMIT)).unwrap();
    Some(stream)
}

#[track_caller]
pub(crate) fn ask(name: &str, request: &str) -> String {
    let mut stream = connect(name).expect("a control socket");
    stream.write_all(format!("{request}\n").as_bytes()).unwrap();
    line(&mut BufReader::new(stream))
}

#[track_caller]
pub(crate) fn line(from: &mut impl BufRead) -> String {
    let mut answer = String::new();
    from.read_line(&mut answer).unwrap();
    assert_eq!(answer.pop(), Some('\n'), "{answer:?}");
    answer
}

/// The control socket of the engine of this process that listens at `address`.
pub(crate) fn control_of(address: &str) -> Option<String> {
    let tells = |name: &String| {
        let Some(mut stream) = connect(name) else { return false };
        let asked = stream.write_all(b"snapshot\n");
        let mut answer = String::new();
        // Another test's engine may end meanwhile.
        asked.is_ok()
            && BufReader::new(stream).read_line(&mut answer).is_ok()
            && answer.contains(&format!("{address:?}"))
    };
    (0..NUMBERS).map(name).find(tells)
}

#[track_caller]
pub(crate) fn number(snapshot: &str, member: &str) -> u64 {
    let start = snapshot.find(&format!("\"{member}\":")).expect(member) + member.len() + 3;
    let digits: String = snapshot[start..].chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("{member} in {snapshot}"))
}

pub(crate) fn parse(answer: &str) -> Value {
    serde_json::from_str(answer).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

/// Procedures of an answer about latencies, with the number of calls of each. Fails unless that is the sum of its
/// buckets.
#[track_caller]
pub(crate) fn latency_counts(answer: &str) -> Vec<(String, u64)> {
    let answer = parse(answer);
    let procedures =
        answer["cores"].as_array().unwrap().iter().flat_map(|core| core["procedures"].as_array());
    let count = |one: &Value| {
        let sum: u64 = one["buckets"].as_array().unwrap().iter().filter_map(Value::as_u64).sum();
        assert_eq!(one["count"], sum, "{one}");
        (one["procedure"].to_string().trim_matches('"').to_owned(), sum)
    };
    procedures.flatten().map(count).collect()
}
