//! `spin-nfsd slow`: the slowest calls of the server in the last minutes, which its engine keeps.

use crate::cli::Query;
use crate::clients::{ask, say};
use crate::failure::Failure;
use crate::reload::Outcome;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{geteuid, getpid};
use spinrpc::control::{NAME_PREFIX, SLOW_SCHEMA};
use spinrpc_nfs::nfs3;
use spinrpc_nfs::protocol::ProcedureId;
use spinrpc_tuning::printable;
use spinrpc_tuning::slow_calls::{EngineCalls, SlowCalls, document, lines};
use std::io::{self, BufRead, BufReader, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

const REQUEST: &str = "slow";
const SCHEMA: &str = "spin-nfsd-slow/1";
/// Engines of a process that have a control socket: the number of each is in its name.
const ENGINES_MAX: u32 = 256;
/// Longer than an engine takes for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) fn show(options: &Query) -> Result<(), Vec<Failure>> {
    let answer = ask(&options.server, REQUEST)?;
    let pid = answer["pid"].as_u64().and_then(|pid| pid.try_into().ok()).unwrap_or(0);
    let wrong = |error| vec![Failure::failed("the answer", error)];
    let mut calls: SlowCalls = serde_json::from_value(answer).map_err(wrong)?;
    if calls.schema != SLOW_SCHEMA {
        let what = format!("schema {:?}, expected {SLOW_SCHEMA}", calls.schema);
        return Err(vec![Failure::failed("the answer", what)]);
    }
    calls.bound();
    let engine = EngineCalls { pid, program: "spin-nfsd".to_owned(), calls };
    let document = document(SCHEMA, &[engine], name);
    match options.json {
        true => say(&printable::json(&document.to_string())),
        false => lines(&document).iter().try_for_each(|line| say(line)),
    }
}

/// Name in RFC 1813 of a procedure of NFS.
fn name([program, version, procedure]: [u32; 3]) -> Option<String> {
    let is_nfs = (program, version) == (nfs3::PROGRAM.0, nfs3::VERSION.0);
    let operation = ProcedureId::new(procedure).filter(|_| is_nfs)?;
    Some(nfs3::name(operation).to_owned())
}

/// The answer of this process to a request for slow calls. `None` if it is another one.
pub(crate) fn answer(request: &str) -> Option<Outcome> {
    let failed = |error: io::Error| vec![format!("the control socket of the engine: {error}")];
    (request == REQUEST).then(|| ask_engine().map(|line| vec![line]).map_err(failed))
}

/// Asks the engine of this process by its control socket.
fn ask_engine() -> io::Result<String> {
    let (user, pid) = (geteuid().as_raw(), getpid());
    let connect = |number| {
        let name = format!("{NAME_PREFIX}{user}/{}/{number}", pid.as_raw_pid());
        let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name).ok()?).ok()?;
        // Any process may take such a name.
        socket_peercred(&stream).is_ok_and(|peer| peer.pid == pid).then_some(stream)
    };
    let none = || io::Error::other("there is none: see stats.export");
    let mut stream = (0..ENGINES_MAX).find_map(connect).ok_or_else(none)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    writeln!(stream, "{REQUEST}")?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(line.trim_end().to_owned())
}
