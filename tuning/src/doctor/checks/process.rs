//! Permissions of this process, which containers and seccomp filters can restrict silently.

use crate::doctor::{CheckInput, Finding, Verdict};
use spinrpc::config::Driver;

/// A system call that connections over shared memory need, and what it is good for.
pub(super) fn call(input: &CheckInput<'_>, name: &str, good: &str) -> Finding {
    let Some(tried) = input.tried else { return super::not_tried() };
    let Some(error) = tried.refused.get(name) else { return Finding::ok(good).seen(name, "works") };
    let verdict = match input.config().driver() {
        Driver::Shm => Verdict::Fail,
        Driver::Verbs | Driver::Iwarp => Verdict::Warn,
    };
    Finding::new(verdict, format!("{name} is rejected: {error}")).seen(name, error).remedy(
        "A seccomp filter or an old kernel rejects it, but connections over shared memory need it. \
         Docker's default filter allows it; try docker run --security-opt seccomp=unconfined",
    )
}

/// Build type of the programs, taken from this one.
pub(super) fn build(input: &CheckInput<'_>) -> Finding {
    let Some(tried) = input.tried else { return super::not_tried() };
    let verbs = if cfg!(feature = "verbs") { "with verbs" } else { "without verbs" };
    let about = format!("for {}, {verbs}, allocator {}", std::env::consts::ARCH, tried.allocator);
    if !cfg!(debug_assertions) {
        return Finding::ok(format!("release build {about}"));
    }
    Finding::warn(format!("debug build {about}: many times slower"))
        .remedy("Measure with release builds only")
        .command("cargo build --release")
}
