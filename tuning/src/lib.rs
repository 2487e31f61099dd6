//! Host profiles: TOML files that configure an engine for a host.
//!
#![doc = include_str!("guide.md")]
#![forbid(unsafe_code)]
#![warn(clippy::print_stdout, clippy::print_stderr)]

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
mod loader;
pub mod manual;
pub mod printable;
mod profile;
mod program;
#[doc(hidden)]
#[allow(missing_docs, reason = "for the programs of this workspace")]
pub mod rdma;
mod reference;
mod shipped;
#[doc(hidden)]
#[allow(missing_docs, reason = "for the programs of this workspace")]
pub mod slow_calls;
mod suggest;
pub mod thread_pair;
mod without_effect;

pub use error::{Location, Problem, ProfileError};
pub use loader::{Loader, load};
pub use profile::{Profile, Setting, Source};
pub use program::{
    DEFAULT_PROFILE, ProfileArgs, load_for_program, raise_descriptor_limit, usage_error,
};
pub use reference::{markdown, reference};
pub use shipped::{Shipped, shipped};
pub use suggest::{did_you_mean, unknown_key};

pub use spinrpc::config::Config;
