//! `spintune init`: writes a profile for a host.

use crate::{Answer, Outcome, at_root};
use spinrpc::config::Driver;
use spinrpc_tuning::host::{HostFacts, Tree};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub(crate) struct InitArguments {
    /// File to create, which must not exist yet [default: standard output]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Transport between the programs
    #[arg(long, value_enum, default_value_t = Fabric::Shm)]
    fabric: Fabric,
    /// Use the host whose files lie below this directory, or a file of spintune record
    #[arg(long, value_name = "DIR|FILE", default_value = "/")]
    root: PathBuf,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Fabric {
    /// Shared memory of this host
    Shm,
    /// RDMA devices
    Verbs,
    /// TCP sockets
    Iwarp,
}

pub(crate) fn init(arguments: &InitArguments) -> Answer {
    let tree = at_root(&arguments.root, Tree::open(&arguments.root))?;
    let driver = match arguments.fabric {
        Fabric::Shm => Driver::Shm,
        Fabric::Verbs => Driver::Verbs,
        Fabric::Iwarp => Driver::Iwarp,
    };
    let text = spinrpc_tuning::propose(&HostFacts::read(&tree), driver);
    let Some(path) = &arguments.output else { return Ok(Outcome::good(text)) };
    match write_new(path, &text) {
        Ok(()) => Ok(Outcome::good(String::new())),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let path = path.display();
            let problem =
                format!("{path} already exists and is not overwritten; name another file");
            Err(Outcome::failed(problem))
        }
        Err(error) => Err(Outcome::failed(format!("{}: {error}", path.display()))),
    }
}

/// Never overwrites: an existing file may have been edited.
fn write_new(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(text.as_bytes())
}
