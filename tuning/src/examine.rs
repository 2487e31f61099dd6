//! The commands that look at a host: `record`.

use crate::Outcome;
use spinrpc_tuning::host::{HostFacts, Tree};
use std::fs;
use std::path::PathBuf;

/// What `spintune record` takes.
#[derive(clap::Args)]
pub(crate) struct RecordArguments {
    /// File to write; - is standard output
    file: PathBuf,
}

pub(crate) fn record(arguments: &RecordArguments) -> Outcome {
    let record = HostFacts::record(Tree::host()).to_string();
    if arguments.file.as_os_str() == "-" {
        return Outcome::good(record);
    }
    match fs::write(&arguments.file, record) {
        Ok(()) => Outcome::good(String::new()),
        Err(error) => {
            let problem = format!("{}: {error}", arguments.file.display());
            Outcome::invalid(String::new(), vec![problem])
        }
    }
}
