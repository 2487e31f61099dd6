//! The command line, and the options that a configuration file may set.
//!
//! A file's keys are the options without their dashes. `config_file` turns them into words that are
//! parsed here, so that both accept and reject the same.

use crate::export_spec::ExportSpec;
use clap::{Args, Parser};
use spinrpc::rpcbind::Daemon;
use spinrpc_apps::command_line;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Default port of MOUNT for clients that do not ask rpcbind (`mountport` of nfs(5)).
const MOUNT_PORT: u16 = 20048;
/// Port of NFS over TCP, which Linux clients establish contexts of Kerberos at, whatever port NFS has.
const NFS_PORT: u16 = 2049;

/// Serve directories and in-memory trees over NFS version 3, on RDMA and shared memory.
#[derive(Debug, Parser)]
#[command(name = "spin-nfsd", version, after_help = AFTER_HELP)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) options: Options,
    /// Read the same options from a TOML file; the command line takes precedence
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Validate the configuration, print the exports, their clients and the keys of Kerberos, and exit without listening
    #[arg(long)]
    pub(crate) check: bool,
}

/// Options for the command line and the file.
#[derive(Args, Debug, Default)]
pub(crate) struct Options {
    /// Directory to serve; may be repeated
    #[arg(long, value_name = "DIR[:OPTIONS]", value_parser = ExportSpec::directory)]
    pub(crate) export: Vec<ExportSpec>,
    /// In-memory tree to serve at /NAME, initially empty and lost when the process exits
    #[arg(long, value_name = "NAME[:OPTIONS]", value_parser = ExportSpec::memory)]
    pub(crate) memory: Vec<ExportSpec>,
    /// Address to listen at: rdma://HOST:PORT or shm:NAME; may be repeated with the same kind
    #[arg(long, value_name = "ADDRESS", value_parser = command_line::address)]
    pub(crate) listen: Vec<String>,
    /// Address of MOUNT over TCP: a port, IP:PORT, or no [default: 20048; no with shm: only]
    #[arg(long, value_name = "WHERE")]
    pub(crate) mount: Option<MountAt>,
    /// Register with rpcbind: auto, no, local, unix:/path or IP:PORT [default: auto]
    #[arg(long, value_name = "DAEMON")]
    pub(crate) register: Option<Register>,
    /// Keytab of the server, for exports with sec=krb5 [default: KRB5_KTNAME, or
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
    /// Unix socket that sends statistics as JSON to each connection of this user
    #[arg(long, value_name = "PATH")]
    pub(crate) stats_socket: Option<PathBuf>,
}

const AFTER_HELP: &str = "\
Options of an export, separated by commas:
  client=CLIENT        admitted client, may be repeated; others are rejected:
                       192.0.2.7, 192.0.2.0/24, 2001:db8::/32, local (over shm:, the server's user),
                       local:UID, any
  ro, rw               reject or allow changes [rw]
  squash=root|all|none users mapped to the anonymous user [root]
  anon=UID:GID         the anonymous user [65534:65534]
  sec=FLAVOR[:FLAVOR]  accepted flavors, preferred one first [sys]:
                       sys, krb5, krb5i (integrity), krb5p (privacy), none
  machine=nobody|root  user of hosts and services that Kerberos proves [nobody]; root trusts
                       every machine account of the realm, which users of Active Directory can
                       create
  path=/PATH           path that clients mount [the directory's own path]
  id=NUMBER            number in its handles [derived from the path]
  bytes=SIZE, files=N  limits of --memory: 512M, 4G [1G, 1000000]

Examples:
  spin-nfsd --export /srv/data:client=192.0.2.0/24 --listen rdma://0.0.0.0:20049
  mount -t nfs -o rdma,port=20049,vers=3,nolock,mountport=20048 192.0.2.1:/srv/data /mnt
  spin-nfsd --memory scratch:client=local --listen shm:nfs --stats
  spin-nfs put shm:nfs//scratch/file FILE
  spin-nfsd --export /srv/data:client=any,sec=krb5p:krb5i --listen rdma://0.0.0.0:20049
  spin-nfsd --config /etc/spin-nfsd.toml --check

Exit codes:
  0  graceful shutdown by SIGTERM, SIGINT or SIGHUP
  1  failure, or calls in progress were abandoned at shutdown
  2  usage error, or invalid file or profile";

/// Address of a program over TCP.
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

/// The rpcbind daemon to register with.
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

fn seconds(text: &str) -> Result<Duration, String> {
    const LONGEST: f64 = 86_400.0;
    let number = text.parse::<f64>().ok().filter(|seconds| (0.1..=LONGEST).contains(seconds));
    number.map(Duration::from_secs_f64).ok_or_else(|| "0.1 to 86400 seconds".to_owned())
}

impl Options {
    /// Combines these with those of a file, which they override. Exports and keys of the profile
    /// are added.
    pub(crate) fn over(self, mut file: Self) -> Self {
        file.export.extend(self.export);
        file.memory.extend(self.memory);
        file.set.extend(self.set);
        Self {
            export: file.export,
            memory: file.memory,
            listen: if self.listen.is_empty() { file.listen } else { self.listen },
            mount: self.mount.or(file.mount),
            register: self.register.or(file.register),
            keytab: self.keytab.or(file.keytab),
            principal: self.principal.or(file.principal),
            realm: self.realm.or(file.realm),
            gss_map: self.gss_map.or(file.gss_map),
            gss_port: self.gss_port.or(file.gss_port),
            profile: self.profile.or(file.profile),
            set: file.set,
            cores: self.cores.or(file.cores),
            threads: self.threads.or(file.threads),
            state: self.state.or(file.state),
            stats: self.stats.or(file.stats),
            stats_socket: self.stats_socket.or(file.stats_socket),
        }
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
