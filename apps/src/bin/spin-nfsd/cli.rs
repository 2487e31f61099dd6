//! The command line, and the options that a configuration file may set.
//!
//! A file's keys are the options without their dashes. `config_file` turns them into words that are
//! parsed here, so that both accept and reject the same.

use crate::export_spec::{self, Written};
use clap::{Args, Parser, Subcommand};
use spinrpc::rpcbind::Daemon;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Default port of MOUNT for clients that do not ask rpcbind (`mountport` of nfs(5)).
const MOUNT_PORT: u16 = 20048;
/// Port of NFS over TCP, which Linux clients establish contexts of Kerberos at, whatever port NFS has.
const NFS_PORT: u16 = 2049;

/// Serve directories and in-memory trees over NFS version 3, on RDMA and shared memory.
#[derive(Clone, Debug, Parser)]
#[command(name = "spin-nfsd", version, args_conflicts_with_subcommands = true)]
#[command(disable_help_subcommand = true, after_help = include_str!("help.txt").trim_ascii_end())]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) options: Options,
    /// Read the same options from a TOML file; the command line takes precedence
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Validate the configuration, print the exports, their clients and the keys of Kerberos, and exit without listening
    #[arg(long)]
    pub(crate) check: bool,
}

/// Commands for a server that runs.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Command {
    /// Make the server of this state directory read its configuration file again and replace its
    /// exports, as SIGHUP does; print every error if they stay as they were
    Reload(AtServer),
    /// List the clients that are connected to the server of this state directory: address, connections, since when, calls, and
    /// the last call
    Clients(Query),
    /// End the connections of a client to the server of this state directory. The client may connect again, unless no export
    /// lists it any more
    Disconnect(Disconnect),
    /// Show the slowest calls of the last minutes that the server of this state directory has timed: client, procedure, and where
    /// each spent its time; it times all calls for a minute from now on
    Slow(Query),
}

/// Options of commands that print a document.
#[derive(Args, Clone, Debug)]
pub(crate) struct Query {
    #[command(flatten)]
    pub(crate) server: AtServer,
    /// Print one JSON document, schema spin-nfsd-COMMAND/1
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `disconnect`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Disconnect {
    /// Address of the client as listed by `clients`: an IP address, or local:UID
    #[arg(value_name = "ADDRESS", value_parser = client_address)]
    pub(crate) address: String,
    #[command(flatten)]
    pub(crate) query: Query,
}

/// The server that a command is for.
#[derive(Args, Clone, Debug)]
pub(crate) struct AtServer {
    /// Configuration file of the server, which may name its state directory
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// State directory of the server [default: as for serving]
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
}

/// Options for the command line and the file.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub(crate) struct Options {
    /// Directory to serve; may be repeated
    #[arg(long, value_name = "DIR[:OPTIONS]", value_parser = export_spec::directory)]
    pub(crate) export: Vec<Written>,
    /// Directory of CephFS to serve, through libcephfs; needs a build with feature cephfs
    #[arg(long, value_name = "PATH[:OPTIONS]", value_parser = export_spec::cephfs)]
    pub(crate) cephfs: Vec<Written>,
    /// In-memory tree to serve at /NAME, initially empty and lost when the process exits
    #[arg(long, value_name = "NAME[:OPTIONS]", value_parser = export_spec::memory)]
    pub(crate) memory: Vec<Written>,
    /// Address to listen at: rdma://HOST:PORT (devices), iwarp://HOST:PORT (TCP) or shm:NAME; may be
    /// repeated with the same kind
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Vec<String>,
    /// Address of MOUNT over TCP: a port, IP:PORT, or no [default: 20048; no with shm: only]
    #[arg(long, value_name = "WHERE")]
    pub(crate) mount: Option<MountAt>,
    /// Register with rpcbind: auto, no, local, unix:/path or IP:PORT [default: auto]
    #[arg(long, value_name = "DAEMON")]
    pub(crate) register: Option<Register>,
    /// Keytab of the server, for exports with sec=krb5: the path of a file [default: KRB5_KTNAME, or
    /// /etc/krb5.keytab]
    #[arg(long, value_name = "FILE")]
    pub(crate) keytab: Option<PathBuf>,
    /// Principal of the server: a service, nfs/HOST or nfs/HOST@REALM [default: nfs, with any host name]
    #[arg(long, value_name = "NAME")]
    pub(crate) principal: Option<String>,
    /// Realm whose users are the users of this host [default: that of the principal, or of its keys]
    #[arg(long, value_name = "REALM")]
    pub(crate) realm: Option<String>,
    /// File of lines PRINCIPAL UID GID[,GID...], for principals that are not users of this host; read
    /// once at the start
    #[arg(long, value_name = "FILE")]
    pub(crate) gss_map: Option<PathBuf>,
    /// Address where clients establish contexts of Kerberos over TCP: a port, IP:PORT, or no; Linux
    /// clients use port 2049 only [default: 2049; no with shm: only]
    #[arg(long, value_name = "WHERE")]
    pub(crate) gss_port: Option<MountAt>,
    /// Profile of the engine: a name, or the path of a TOML file [default: base]
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) profile: Option<String>,
    /// Override a key of the profile, such as rpc.version=2; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// CPUs to poll on, 2,3 or 4-7, one core each [default: the profile's]
    #[arg(long, value_name = "LIST")]
    pub(crate) cores: Option<String>,
    /// Threads for operations that may wait for a disk, and the same number for each directory
    /// [default: 4]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) threads: Option<u16>,
    /// Directory of the key that seals handles [default: /var/lib/spin-nfsd, or below the home of a
    /// user other than root]
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
    /// Print statistics at this interval, in seconds
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true,
        default_missing_value = "1", value_parser = seconds)]
    pub(crate) stats: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MountAt {
    Nowhere,
    Address(SocketAddr),
}

impl MountAt {
    pub(crate) const USUAL: Self = Self::every(MOUNT_PORT);
    pub(crate) const NFS: Self = Self::every(NFS_PORT);

    /// All addresses, IPv4 included.
    const fn every(port: u16) -> Self {
        Self::Address(SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port))
    }
}

impl FromStr for MountAt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "no" {
            return Ok(Self::Nowhere);
        }
        let port = text.parse().ok().filter(|_| !text.starts_with('+')).map(Self::every);
        let address = || text.parse().ok().map(Self::Address);
        let wrong = || "expected a port, IP:PORT (port 0: any free port), or no".to_owned();
        port.or_else(address).ok_or_else(wrong)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Register {
    /// The daemon of this host, if it is running and there is something to register.
    #[default]
    Auto,
    No,
    Daemon(Daemon),
}

impl FromStr for Register {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "no" => Ok(Self::No),
            daemon => daemon
                .parse()
                .map(Self::Daemon)
                .map_err(|_| "expected auto, no, local, unix:/path or IP:PORT".to_owned()),
        }
    }
}

fn client_address(text: &str) -> Result<String, String> {
    let host = text.parse::<IpAddr>().map(|address| address.to_canonical().to_string());
    let local =
        || text.strip_prefix("local:")?.parse::<u32>().ok().map(|uid| format!("local:{uid}"));
    host.ok().or_else(local).ok_or_else(|| "expected an IP address, or local:UID".to_owned())
}

fn seconds(text: &str) -> Result<Duration, String> {
    const LONGEST: f64 = 86_400.0;
    let number = text.parse::<f64>().ok().filter(|seconds| (0.1..=LONGEST).contains(seconds));
    number.map(Duration::from_secs_f64).ok_or_else(|| "0.1 to 86400 seconds".to_owned())
}

impl Options {
    /// Those of the file yield to these; exports and keys of the profile are added.
    pub(crate) fn over(self, mut file: Self) -> Self {
        macro_rules! replace {
            ($($name:ident),+) => {
                $(file.$name = self.$name.or(file.$name);)+
            };
        }
        file.export.extend(self.export);
        file.cephfs.extend(self.cephfs);
        file.memory.extend(self.memory);
        file.set.extend(self.set);
        if !self.listen.is_empty() {
            file.listen = self.listen;
        }
        replace!(mount, register, keytab, principal, realm, gss_map, gss_port, profile, cores);
        replace!(threads, state, stats);
        file
    }

    /// Names of the options that differ and do not take effect while a server runs: all but exports.
    pub(crate) fn fixed_differences(&self, other: &Self) -> Vec<String> {
        macro_rules! differing {
            ($($name:ident)+) => {
                [$((self.$name != other.$name).then_some(stringify!($name))),+]
            };
        }
        let differing = differing! {
            listen mount register keytab principal realm gss_map gss_port
            profile set cores threads state stats
        };
        differing.into_iter().flatten().map(|name| name.replace('_', "-")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    /// An option that is added must be said to need a restart, or be an export.
    #[test]
    fn every_option_but_exports_needs_a_restart() {
        let other = Options {
            export: vec![Err(vec![])],
            cephfs: vec![Err(vec![])],
            memory: vec![Err(vec![])],
            listen: vec!["shm:a".to_owned()],
            mount: Some(MountAt::Nowhere),
            register: Some(Register::No),
            keytab: Some("/k".into()),
            principal: Some("p".to_owned()),
            realm: Some("R".to_owned()),
            gss_map: Some("/m".into()),
            gss_port: Some(MountAt::Nowhere),
            profile: Some("base".to_owned()),
            set: vec!["a=b".to_owned()],
            cores: Some("1".to_owned()),
            threads: Some(1),
            state: Some("/s".into()),
            stats: Some(Duration::from_secs(1)),
        };
        let all = Options::default().fixed_differences(&other);
        let command = Cli::command();
        let names = command.get_arguments().filter_map(clap::Arg::get_long);
        let own = ["export", "cephfs", "memory", "config", "check", "help", "version"];
        let mut expected: Vec<&str> = names.filter(|name| !own.contains(name)).collect();
        expected.sort_unstable();
        let mut shown = all.clone();
        shown.sort_unstable();
        assert_eq!(shown, expected);
        assert!(other.fixed_differences(&other).is_empty());
    }

    #[test]
    fn a_reload_takes_no_other_options() {
        assert!(Cli::try_parse_from(["spin-nfsd", "reload", "--state=/s"]).is_ok());
        for wrong in [&["--listen=shm:a", "reload"][..], &["reload", "--listen=shm:a"]] {
            assert!(Cli::try_parse_from([&["spin-nfsd"], wrong].concat()).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_client_is_named_as_the_server_prints_it() {
        let parse = |text: &str| client_address(text).ok();
        for (text, expected) in [
            ("192.0.2.7", Some("192.0.2.7")),
            ("::ffff:192.0.2.7", Some("192.0.2.7")),
            ("2001:DB8:0::1", Some("2001:db8::1")),
            ("local:1000", Some("local:1000")),
            ("local:x", None),
            ("host", None),
            ("192.0.2.7 x", None),
            ("", None),
        ] {
            assert_eq!(parse(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn mount_is_at_a_port_an_address_or_nowhere() {
        let address = |text: &str| Ok(MountAt::Address(text.parse().unwrap()));
        assert_eq!("20048".parse(), address("[::]:20048"));
        assert_eq!("127.0.0.1:0".parse(), address("127.0.0.1:0"));
        assert_eq!("no".parse(), Ok(MountAt::Nowhere));
        for wrong in ["", "+1", "65536", "host:1", "127.0.0.1", "::1"] {
            assert!(wrong.parse::<MountAt>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn rpcbind_is_one_daemon_or_none() {
        assert_eq!("auto".parse(), Ok(Register::Auto));
        assert_eq!("no".parse(), Ok(Register::No));
        assert_eq!("local".parse(), Ok(Register::Daemon(Daemon::Local)));
        assert!("yes".parse::<Register>().unwrap_err().contains("unix:/path"));
    }
}
