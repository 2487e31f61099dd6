//! The command line, and what of it a configuration file may say.
//!
//! A file's keys are the options without their dashes; `config_file` makes words of them that are
//! parsed here again, so that both take the same and refuse the same.

use crate::export_spec::ExportSpec;
use clap::{Args, Parser};
use spinrpc::rpcbind::Daemon;
use spinrpc_apps::command_line;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Where ordinary clients look for MOUNT where rpcbind is not asked (`mountport` of nfs(5)).
const MOUNT_PORT: u16 = 20048;

/// Serves directories and in-memory trees by NFS version 3 over RDMA, and over shared memory.
#[derive(Debug, Parser)]
#[command(name = "spin-nfsd", version, after_help = AFTER_HELP)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) options: Options,
    /// Takes the same options from a TOML file; those of the command line count more
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Makes all ready but the places to listen, says what would be served and to whom, and ends
    #[arg(long)]
    pub(crate) check: bool,
}

/// What can be said on the command line and in a file.
#[derive(Args, Debug, Default)]
pub(crate) struct Options {
    /// A directory to serve; for each another one
    #[arg(long, value_name = "DIR[:OPTIONS]", value_parser = ExportSpec::directory)]
    pub(crate) export: Vec<ExportSpec>,
    /// A tree in memory to serve at /NAME, empty at first and gone with the process
    #[arg(long, value_name = "NAME[:OPTIONS]", value_parser = ExportSpec::memory)]
    pub(crate) memory: Vec<ExportSpec>,
    /// Where to listen: rdma://HOST:PORT or shm:NAME; again for others of that kind
    #[arg(long, value_name = "ADDRESS", value_parser = command_line::address)]
    pub(crate) listen: Vec<String>,
    /// Where MOUNT is served by TCP: a port, IP:PORT, or no [default: 20048; no for shm: alone]
    #[arg(long, value_name = "WHERE")]
    pub(crate) mount: Option<MountAt>,
    /// Registers with rpcbind: auto, no, local, unix:/path or IP:PORT [default: auto]
    #[arg(long, value_name = "DAEMON")]
    pub(crate) register: Option<Register>,
    /// Profile of the engine: a name, or the path of a TOML file [default: base]
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) profile: Option<String>,
    /// A key of the profile with another value, such as rpc.version=2; may be given several times
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// CPUs to poll on, 2,3 or 4-7, one core each [default: the profile's]
    #[arg(long, value_name = "LIST")]
    pub(crate) cores: Option<String>,
    /// Threads for what may wait for a disk, and as many for each directory [default: 4]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) threads: Option<u16>,
    /// Directory of the key that seals handles [default: /var/lib/spin-nfsd, or below the home of
    /// another user than root]
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
    /// Prints what is done, every so many seconds
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true,
        default_missing_value = "1", value_parser = seconds)]
    pub(crate) stats: Option<Duration>,
    /// A Unix socket on which whoever connects, as this user, gets the same as JSON
    #[arg(long, value_name = "PATH")]
    pub(crate) stats_socket: Option<PathBuf>,
}

const AFTER_HELP: &str = "\
Options of an export, with commas between them:
  client=WHO           who may come in, again for each; nobody who was not named:
                       192.0.2.7, 192.0.2.0/24, 2001:db8::/32, local (by shm:, as who runs this),
                       local:UID, any
  ro, rw               whether files may be changed [rw]
  squash=root|all|none who acts as nobody [root]
  anon=UID:GID         who nobody is [65534:65534]
  sec=sys|none         credentials taken, again for each [sys]
  path=/PATH           what clients mount [the directory's own path]
  id=NUMBER            what marks its handles [reckoned from the path]
  bytes=SIZE, files=N  most of --memory: 512M, 4G [1G, 1000000]

Examples:
  spin-nfsd --export /srv/data:client=192.0.2.0/24 --listen rdma://0.0.0.0:20049
  mount -t nfs -o rdma,port=20049,vers=3,nolock,mountport=20048 192.0.2.1:/srv/data /mnt
  spin-nfsd --memory scratch:client=local --listen shm:nfs --stats
  spin-nfs put shm:nfs//scratch/file FILE
  spin-nfsd --config /etc/spin-nfsd.toml --check

Exit codes:
  0  ended by SIGTERM, SIGINT or SIGHUP, in good order
  1  it failed, or calls that ran at its end were given up
  2  the command line, the file or the profile is wrong";

/// Where MOUNT is served by TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MountAt {
    Nowhere,
    Address(SocketAddr),
}

impl MountAt {
    pub(crate) const USUAL: Self = Self::every(MOUNT_PORT);

    /// At every address, of IPv4 too.
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
        let wrong = || "allowed are a port, IP:PORT (port 0: any that is free) and no".to_owned();
        port.or_else(address).ok_or_else(wrong)
    }
}

/// Whom to tell where the programs listen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Register {
    /// The daemon of this host, if it is there and there is anything for it to know.
    #[default]
    Auto,
    Nobody,
    Daemon(Daemon),
}

impl FromStr for Register {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "no" => Ok(Self::Nobody),
            daemon => daemon
                .parse()
                .map(Self::Daemon)
                .map_err(|_| "allowed are auto, no, local, unix:/path and IP:PORT".to_owned()),
        }
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    const LONGEST: f64 = 86_400.0;
    let number = text.parse::<f64>().ok().filter(|seconds| (0.1..=LONGEST).contains(seconds));
    number.map(Duration::from_secs_f64).ok_or_else(|| "0.1 to 86400 seconds".to_owned())
}

impl Options {
    /// These over those of a file. Exports and keys of the profile add up.
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
        assert_eq!("no".parse(), Ok(Register::Nobody));
        assert_eq!("local".parse(), Ok(Register::Daemon(Daemon::Local)));
        assert!("yes".parse::<Register>().unwrap_err().contains("unix:/path"));
    }
}
