use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use spinrpc::GssService;
use spinrpc::fabric::Address;
use spinrpc_nfs::client::{ContextPort, MountBy, Options, Security, Target, User};
use spinrpc_nfs::protocol::{FileHandle, HANDLE_BYTES_MAX};
use spinrpc_nfs::server::exports;
use spinrpc_tuning::ProfileArgs;
use std::num::NonZero;
use std::path::PathBuf;
use std::time::Duration;

/// A client for NFS version 3 over RDMA, and over shared memory on this host.
///
/// TARGET is rdma://HOST:PORT/EXPORT/PATH (default port 20049; IPv6 addresses in brackets), the same
/// with iwarp:// over a TCP socket instead of a device, or any:// for a device if there is one; or
/// shm:NAME//EXPORT/PATH with two slashes before the path. The server determines where the export
/// ends.
#[derive(Parser)]
#[command(name = "spin-nfs", version, arg_required_else_help = false)]
#[command(after_long_help = include_str!("help.txt").trim_ascii_end())]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten)]
    pub(crate) session: Session,
    #[command(flatten)]
    pub(crate) place: Place,
    /// Count calls by procedure and bytes by path; print them to standard error at the end
    #[arg(long, global = true)]
    pub(crate) stats: bool,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Call the NULL procedure once.
    Null {
        /// The server; a path is ignored
        #[arg(value_name = "TARGET", value_parser = Target::parse)]
        target: Target,
    },
    /// Repeatedly call NULL and report latency.
    Ping {
        /// The server; a path is ignored
        #[arg(value_name = "TARGET", value_parser = Target::parse)]
        target: Target,
        #[command(flatten)]
        ping: PingOptions,
    },
    /// Print a file's type, mode, owner, size, times and handle.
    Getattr {
        /// The file or directory
        #[arg(value_name = "TARGET", value_parser = Target::parse)]
        target: Target,
        /// Print one line of JSON
        #[arg(long)]
        json: bool,
    },
    /// List a directory, in the server's order.
    Ls {
        /// The directory
        #[arg(value_name = "TARGET", value_parser = Target::parse)]
        target: Target,
        /// Include the entries "." and ".."
        #[arg(long, short)]
        all: bool,
        /// Print one line of JSON per entry
        #[arg(long)]
        json: bool,
    },
    /// Write a file to standard output, up to its size at the start.
    Cat {
        /// The file
        #[arg(value_name = "TARGET", value_parser = Target::parse)]
        target: Target,
    },
    /// Copy a local file to the server, replacing an existing file. The data are on stable storage
    /// when the command exits.
    Put {
        /// Destination
        #[arg(value_name = "TARGET", value_parser = Target::parse)]
        target: Target,
        /// Local file, read to its end; - is standard input. A pipe is copied to TMPDIR first
        file: PathBuf,
    },
    /// Repeatedly call one procedure at a given depth (--depth, 1 by default), and report rate and
    /// latency. A server on the same host should poll on another CPU: see taskset(1).
    Bench {
        /// Operation of every call
        operation: Operation,
        /// The file: any for getattr, one of at least --size bytes for read; write creates it if it
        /// does not exist
        #[arg(value_name = "TARGET", value_parser = Target::parse)]
        target: Target,
        #[command(flatten)]
        bench: BenchOptions,
    },
}

impl Command {
    pub(crate) fn target(&self) -> &Target {
        match self {
            Self::Null { target }
            | Self::Ping { target, .. }
            | Self::Getattr { target, .. }
            | Self::Ls { target, .. }
            | Self::Cat { target }
            | Self::Put { target, .. }
            | Self::Bench { target, .. } => target,
        }
    }
}

/// Options of pings and their output.
#[derive(Args)]
pub(crate) struct PingOptions {
    /// Number of calls [default: until Ctrl-C]
    #[arg(long, short, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Maximum duration in seconds, whatever the number of calls
    #[arg(long, short = 'w', value_name = "SECONDS", value_parser = seconds)]
    pub(crate) duration: Option<Duration>,
    /// Seconds between calls; 0: each reply starts the next call
    #[arg(long, short, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub(crate) interval: Duration,
    /// Print only the summary
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// Print only the summary, as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Operation of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Operation {
    /// Get the file's attributes
    Getattr,
    /// Read; the server places the data
    Read,
    /// Write; the server fetches the data
    Write,
}

/// Operation, duration and output of a benchmark.
#[derive(Args)]
pub(crate) struct BenchOptions {
    /// Bytes of each READ or WRITE, at most 1M
    #[arg(long, value_name = "BYTES", default_value = "4K", value_parser = block_bytes)]
    pub(crate) size: u32,
    /// Read or write blocks in order up to this offset, then start again at 0
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = size)]
    pub(crate) span: u64,
    /// Measured seconds
    #[arg(long, short = 'w', value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    pub(crate) duration: Duration,
    /// Seconds before that, not measured
    #[arg(long, value_name = "SECONDS", default_value = "0.5", value_parser = seconds)]
    pub(crate) warmup: Duration,
    /// End early, after this many measured calls
    #[arg(long, short, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) calls: Option<u64>,
    /// Data that must be on stable storage before the reply to a WRITE; after unstable ones, an
    /// unmeasured COMMIT follows
    #[arg(long, value_enum, default_value = "unstable")]
    pub(crate) stable: Stable,
    /// Overwrite an existing, non-empty file
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// Print one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Short names of stable_how (RFC 1813 section 3.3.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Stable {
    /// Nothing
    Unstable,
    /// The data, and the metadata needed to read them
    Data,
    /// The data and all attributes
    File,
}

/// Options of the session.
#[derive(Args)]
pub(crate) struct Session {
    #[command(flatten)]
    profile: ProfileArgs,
    /// Connections for the calls, at most 16 [default: one for each address]. Each call goes by the one with the fewest in
    /// flight; calls of a lost one go over to another
    #[arg(long, value_name = "N", global = true, value_parser = clap::value_parser!(u16).range(1..=16))]
    nconnect: Option<u16>,
    /// Further address of the server, such as that of a second rail: rdma://10.8.1.1. Can be given several times
    #[arg(long, value_name = "ADDRESS", global = true, value_parser = Address::parse)]
    also: Vec<Address>,
    /// Calls in flight [default: 8 for cat and put, 1 for bench]
    #[arg(long, value_name = "CALLS", global = true,
        value_parser = clap::value_parser!(u16).range(1..=64))]
    depth: Option<u16>,
    /// Maximum bytes of one READ or WRITE, for cat and put; the server may have a lower limit
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20, global = true,
        value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    block: u32,
    /// Seconds to wait for each reply, for a server that asks for more time, and for a connection, which may take 5 seconds in any
    /// case
    #[arg(long, value_name = "SECONDS", default_value = "30", global = true,
        value_parser = timeout)]
    timeout: Duration,
    /// Credential of the calls: the user by number, or none
    #[arg(long, value_enum, default_value = "sys", global = true)]
    auth: Auth,
    /// Prove the user by Kerberos: krb5 protects headers, krb5i arguments and results against changes,
    /// krb5p encrypts them. The ticket is that of kinit (KRB5CCNAME), or comes by a keytab
    #[arg(long, global = true, value_parser = PossibleValuesParser::new(SEC).map(|name| service(&name)))]
    sec: Option<GssService>,
    /// Host in the principal of the server, nfs/HOST [default: that of TARGET; with shm: this one]
    #[arg(long, value_name = "HOST", global = true, requires = "sec")]
    gss_host: Option<String>,
    /// TCP port of the server's host for contexts that the server denies over RDMA, or no [default: 2049; with
    /// shm: no]. Calls go over RDMA in any case
    #[arg(long, value_name = "PORT|no", global = true, requires = "sec", value_parser = gss_port)]
    gss_port: Option<ContextPort>,
    /// Keytab with the user's key, instead of a ticket
    #[arg(long, value_name = "FILE", global = true, requires = "sec")]
    keytab: Option<PathBuf>,
    /// Principal of the user [default: that of the ticket, or the first of the keytab]
    #[arg(long, value_name = "NAME", global = true, requires = "sec")]
    principal: Option<String>,
    /// User id of the calls, instead of the current user's
    #[arg(long, value_name = "NUMBER", global = true)]
    uid: Option<u32>,
    /// Group id of the calls
    #[arg(long, value_name = "NUMBER", global = true)]
    gid: Option<u32>,
}

/// READs or WRITEs in flight, for cat and put.
const DEPTH: u16 = 8;

#[derive(Clone, Copy, ValueEnum)]
enum Auth {
    Sys,
    None,
}

const SEC: [&str; 3] = ["krb5", "krb5i", "krb5p"];

/// Protection by Kerberos, by one of the names in [`SEC`], which are those of exports(5).
fn service(name: &str) -> GssService {
    match name {
        "krb5i" => GssService::Integrity,
        "krb5p" => GssService::Privacy,
        _ => GssService::None,
    }
}

impl Session {
    pub(crate) fn options(&self, command: &Command) -> Options {
        let user = match self.auth {
            Auth::Sys => Some(User::current().with_ids(self.uid, self.gid)),
            Auth::None => None,
        };
        let (depth, block_bytes) = match command {
            Command::Cat { .. } | Command::Put { .. } => {
                (self.depth.unwrap_or(DEPTH).into(), self.block)
            }
            Command::Bench { bench, .. } => (self.bench_depth(), bench.size),
            _ => (0, self.block),
        };
        let profile = self.profile.clone();
        let (timeout, security) = (self.timeout, self.security());
        let (connections, also) = (self.nconnect, self.also.clone());
        Options { profile, timeout, user, security, connections, also, depth, block_bytes }
    }

    fn security(&self) -> Option<Security> {
        let service = self.sec?;
        let (host, keytab) = (self.gss_host.clone(), self.keytab.clone());
        let (principal, port) = (self.principal.clone(), self.gss_port.unwrap_or_default());
        Some(Security { service, host, keytab, principal, port })
    }

    pub(crate) fn bench_depth(&self) -> usize {
        self.depth.unwrap_or(1).into()
    }
}

/// Interpretation of the path.
#[derive(Args)]
pub(crate) struct Place {
    /// Export to use without asking the server; the path of TARGET is then relative to it
    #[arg(long, value_name = "PATH", global = true)]
    pub(crate) export: Option<String>,
    /// Handle, in hexadecimal, of the directory that the path of TARGET is relative to; does not
    /// use MOUNT
    #[arg(long, value_name = "HEX", global = true, value_parser = handle,
        conflicts_with_all = ["export", "mount_port", "mount_on_fabric"])]
    pub(crate) handle: Option<FileHandle>,
    /// TCP port of the MOUNT service, instead of asking rpcbind
    #[arg(long, value_name = "PORT", global = true,
        value_parser = clap::value_parser!(u16).range(1..))]
    mount_port: Option<u16>,
    /// Ask the NFS server itself for MOUNT, over RDMA; always so for shm: servers
    #[arg(long, global = true, conflicts_with = "mount_port")]
    mount_on_fabric: bool,
}

impl Place {
    pub(crate) fn mount_by(&self) -> MountBy {
        match self.mount_port {
            Some(port) => MountBy::Port(port),
            None if self.mount_on_fabric => MountBy::Fabric,
            None => MountBy::Auto,
        }
    }
}

fn handle(text: &str) -> Result<FileHandle, String> {
    let most = 2 * HANDLE_BYTES_MAX;
    let wrong = || format!("an even number of hexadecimal digits, 2 to {most}");
    let is_hex = text.bytes().all(|digit| digit.is_ascii_hexdigit());
    if !is_hex || !text.len().is_multiple_of(2) || !(2..=most).contains(&text.len()) {
        return Err(wrong());
    }
    let octet = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| wrong());
    let bytes = (0..text.len()).step_by(2).map(octet).collect::<Result<Vec<u8>, _>>()?;
    FileHandle::new(&bytes).map_err(|_| wrong())
}

fn size(text: &str) -> Result<u64, String> {
    exports::size(text).ok_or_else(|| {
        "expected bytes, or a number with K, M, G or T (powers of 1024): 4096, 4K, 1M".to_owned()
    })
}

fn block_bytes(text: &str) -> Result<u32, String> {
    const ALLOWED: std::ops::RangeInclusive<u64> = 1..=1 << 20;
    let bytes = Some(size(text)?).filter(|bytes| ALLOWED.contains(bytes));
    let bytes = bytes.and_then(|bytes| u32::try_from(bytes).ok());
    bytes.ok_or_else(|| "1 byte to 1M".to_owned())
}

fn gss_port(text: &str) -> Result<ContextPort, String> {
    match (text, text.parse::<NonZero<u16>>()) {
        ("no", _) => Ok(ContextPort::Off),
        (_, Ok(port)) => Ok(ContextPort::At(port.get())),
        _ => Err("expected 1 to 65535, or no".to_owned()),
    }
}

/// Parses a time: in seconds, unless it has a unit.
fn seconds(text: &str) -> Result<Duration, String> {
    const LONGEST: f64 = 1e9;
    let (number, unit) = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(number), _) => (number, 1e-3),
        (None, Some(number)) => (number, 1.0),
        (None, None) => (text, 1.0),
    };
    let time = number.parse::<f64>().ok().map(|number| number * unit);
    time.filter(|time| (0.0..=LONGEST).contains(time))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "seconds, for example 0.2, 5s or 200ms".to_owned())
}

fn timeout(text: &str) -> Result<Duration, String> {
    const ALLOWED: std::ops::RangeInclusive<Duration> =
        Duration::from_millis(1)..=Duration::from_secs(86_400);
    let time = seconds(text)?;
    ALLOWED.contains(&time).then_some(time).ok_or_else(|| "0.001 to 86400 seconds".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_handle_is_an_even_number_of_digits() {
        assert_eq!(handle("01fF"), Ok(FileHandle::new(&[1, 255]).unwrap()));
        for wrong in ["", "1", "0g", "+1", &"00".repeat(65)] {
            assert!(handle(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn blocks_have_a_byte_to_a_mebibyte() {
        assert_eq!([block_bytes("4k"), block_bytes("1M")], [Ok(4096), Ok(1 << 20)]);
        for wrong in ["0", "1025K", "4KK", ""] {
            assert!(block_bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn ports_of_contexts_are_numbers_or_no() {
        assert_eq!(gss_port("no"), Ok(ContextPort::Off));
        assert_eq!(gss_port("2050"), Ok(ContextPort::At(2050)));
        for wrong in ["", "0", "65536", "-1", "No", "127.0.0.1:2049"] {
            assert!(gss_port(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_are_seconds() {
        for text in ["0.25", "0.25s", "250ms"] {
            assert_eq!(seconds(text), Ok(Duration::from_millis(250)), "{text}");
        }
        for wrong in ["", "s", "-1", "nan", "inf", "1h", "1 s"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
        assert!(timeout("0").is_err());
    }
}
