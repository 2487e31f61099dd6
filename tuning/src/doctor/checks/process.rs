//! Permissions of this process, which containers and seccomp filters can restrict silently.

use crate::doctor::{CheckInput, Finding, Permission, Verdict};
use crate::text::shell_word;
use spinrpc::config::Driver;

pub(super) fn memfd(input: &CheckInput<'_>) -> Finding {
    let may = input.tried.map(|tried| &tried.memfd);
    tried(input, may, "memfd_create", "anonymous memory can be created and sealed")
}

pub(super) fn pidfd(input: &CheckInput<'_>) -> Finding {
    let may = input.tried.map(|tried| &tried.pidfd);
    tried(input, may, "pidfd_open", "the death of a peer is detected")
}

pub(super) fn descriptors(input: &CheckInput<'_>) -> Finding {
    let may = input.tried.map(|tried| &tried.descriptors);
    tried(input, may, "sendmsg with SCM_RIGHTS", "descriptors can be passed between processes")
}

fn tried(input: &CheckInput<'_>, may: Option<&Permission>, what: &str, good: &str) -> Finding {
    let error = match may {
        None => return super::not_tried(),
        Some(Permission::Granted) => return Finding::ok(good).seen(what, "works"),
        Some(Permission::Refused(error)) => error,
    };
    let verdict = match input.config().driver() {
        Driver::Shm => Verdict::Fail,
        Driver::Verbs => Verdict::Warn,
    };
    Finding::new(verdict, format!("{what} is rejected: {error}")).seen(what, error).remedy(
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
    let finding = Finding::new(
        Verdict::Info,
        format!("without a listener: {}", super::some_of(&tried.stale_sockets, 3)),
    );
    let finding = finding
        .seen("/proc/net/unix", "not among the host's sockets")
        .remedy("A server that starts there replaces them; or remove them");
    tried
        .stale_sockets
        .iter()
        .take(4)
        .fold(finding, |finding, path| finding.command(format!("rm {}", shell_word(path))))
}
