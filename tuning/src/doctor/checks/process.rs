//! Permissions of this process, which containers and seccomp filters can restrict silently.

use crate::doctor::{CheckInput, Finding, Verdict};
use crate::printable::shell_word;
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

pub(super) fn sockets(input: &CheckInput<'_>) -> Finding {
    let Some(tried) = input.tried else { return super::not_tried() };
    if tried.stale_sockets.is_empty() {
        let listening = match &tried.listeners[..] {
            [] => "no listeners".to_owned(),
            names => format!("listening: {}", super::some_of(names, 4)),
        };
        return Finding::ok(format!("none; {listening}"));
    }
    Finding::info(format!("without a listener: {}", super::some_of(&tried.stale_sockets, 3)))
        .seen("/proc/net/unix", "not among the host's sockets")
        .remedy("A server that starts there replaces them; or remove them")
        .commands(tried.stale_sockets.iter().take(4).map(|path| format!("rm {}", shell_word(path))))
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
