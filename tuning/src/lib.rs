//! Host profiles: TOML files that configure an engine for a host.
//!
//! The engine takes a checked [`Config`] and never opens a file; this crate finds, reads, merges
//! and explains the files. The data flows one way: a name -> documents (`include` chain)
//! -> layers over the defaults -> [`Profile`]. In addition, `host` reads the facts of a host,
//! `rdma` lists its devices, `doctor` judges whether it suits a profile, `fit` changes it to
//! fit one, [`thread_pair`] measures between two CPUs, [`keytab`] tells which keytab a server uses,
//! [`printable`] makes untrusted text safe to print, and [`manual`] writes man pages and completions
//! of programs.
//! The programs of this workspace and `spintune` call it; it may use the engine's public API and
//! the file system.
//!
//! ```
//! let host = spinrpc::config::Host::current();
//! let profile = spinrpc_tuning::load("latency", &host)?;
//! let credits = profile.config().credits();
//! # assert_eq!(credits, 64);
//! # Ok::<(), spinrpc_tuning::ProfileError>(())
//! ```
//!
//! A profile:
//! ```toml
//! schema = 1                    # the format; always 1
//! include = ["latency"]         # read first: a file in the same folder, or else a shipped profile
//! description = "my server"     # shown in listings
//!
//! [rpc]
//! credits = 128                 # other keys stay as included, or else at their defaults
//! ```

#![forbid(unsafe_code)]

#[doc(hidden)]
#[allow(missing_docs, reason = "for the programs of this workspace")]
pub mod doctor;
mod document;
mod error;
#[doc(hidden)]
#[allow(missing_docs, reason = "for the programs of this workspace")]
pub mod fit;
#[doc(hidden)]
#[allow(missing_docs, reason = "for the programs of this workspace")]
pub mod host;
pub mod keytab;
mod loader;
pub mod manual;
pub mod printable;
mod profile;
mod program;
mod propose;
#[doc(hidden)]
#[allow(missing_docs, reason = "for the programs of this workspace")]
pub mod rdma;
mod reference;
mod shipped;
mod suggest;
pub mod thread_pair;
mod without_effect;

pub use error::{Location, Problem, ProfileError};
pub use loader::{Loader, load};
pub use profile::{Profile, Setting, Source};
pub use program::{DEFAULT_PROFILE, ProfileArgs, load_for_program, usage_error};
pub use propose::propose;
pub use reference::{markdown, reference};
pub use shipped::{Shipped, shipped};
pub use suggest::{did_you_mean, unknown_key};

pub use spinrpc::config::Config;
