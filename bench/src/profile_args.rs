//! The arguments that choose the profile of an engine. `cli` has them, and what starts an engine takes them.

use clap::Args;

/// Profile of the engine, for commands that start one. The main job hands them on to its server.
#[derive(Args, Debug)]
pub(crate) struct ProfileArgs {
    /// Profile: a name, or the path of a TOML file
    #[arg(long = "profile", value_name = "PROFILE", default_value = PROFILE)]
    pub(crate) name: String,
    /// Override a key of the profile, such as rpc.version=2; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
}

const PROFILE: &str = "latency";
