//! Kerberos for NFS: the keytab, TCP port 2049, and the instructions of the processor. Without a keytab and a realm
//! the last two are notes.

use crate::doctor::{CheckInput, Finding, Verdict};
use crate::host::{KEYTAB, Keytab, Permissions};
use crate::printable::shell_word;

pub(super) fn keytab(input: &CheckInput<'_>) -> Finding {
    let facts = &input.facts.kerberos;
    let path = facts.keytab_path();
    let wrong = |says: String| Finding::warn(says).remedy(CHECK_NAME);
    match &facts.keytab {
        Keytab::File(found) => of_file(input, &path, *found),
        Keytab::Missing if facts.named_keytab.is_none() => {
            Finding::ok("none is seen, which only Kerberos needs")
        }
        Keytab::Missing => wrong(format!("there is no file {path}")),
        Keytab::Other => wrong(format!("{path}: not a file")),
        Keytab::NoFile(error) => wrong(error.to_string()),
        Keytab::NotText => Finding::unknown("the path is not UTF-8, and was not looked up"),
        Keytab::NotRecorded => Finding::unknown(format!(
            "the record does not have {path}: spintune record --keytab adds a keytab other than /{KEYTAB}"
        )),
    }
}

fn of_file(input: &CheckInput<'_>, path: &str, found: Permissions) -> Finding {
    let user = input.facts.process.user;
    let finding = if found.mode & OTHERS != 0 {
        let says = "every user has permissions on it, and who reads it can pretend to be this host";
        Finding::fail(says).command(format!("chmod o= {}", shell_word(path))).remedy(
            "Give services of other users keytabs of their own, take these permissions away, and change the keys; \
             spin-nfsd rejects such a keytab",
        )
    } else if found.owner != ROOT && user != Some(found.owner) {
        let says = format!("it belongs to user {}, who can change the keys", found.owner);
        Finding::info(says)
            .remedy("This is right if the server runs as that user; else give it to root")
    } else if found.mode & CHANGED_BY_GROUP != 0 {
        let says = "its group can change the keys";
        Finding::warn(says)
            .command(format!("chmod g-w {}", shell_word(path)))
            .remedy("Let the group read it at most")
    } else if !found.is_readable {
        let says = "this user cannot read it: a server of this user needs a keytab of its own";
        Finding::info(says)
            .remedy("Run doctor as the user of the server, or give the server another keytab (spin-nfsd --keytab)")
    } else {
        Finding::ok("users outside its group cannot read it")
    };
    finding.seen(path, found)
}

pub(super) fn port(input: &CheckInput<'_>) -> Finding {
    let facts = &input.facts.kerberos;
    let listeners = known!(&facts.listeners, "its sockets");
    if listeners.is_empty() {
        return Finding::ok("free");
    }
    let users = super::some_of(listeners.iter().map(|one| format!("user {}", one.user)), 4);
    let holders = input.tried.map(|tried| &tried.nfs_port_holders[..]).unwrap_or_default();
    let is_spin_nfsd = !holders.is_empty() && holders.iter().all(|name| name == SPIN_NFSD);
    if is_spin_nfsd {
        return Finding::ok("a program named spin-nfsd has it").seen(SOCKETS, users);
    }
    let threads = facts.nfsd_threads.filter(|threads| *threads > 0);
    let (verdict, says) = match (holders, threads) {
        ([_, ..], _) => (severity(input), format!("{} has it", super::some_of(holders, 4))),
        ([], Some(_)) => {
            (Verdict::Info, "taken, most likely by the NFS server of the kernel, which runs".into())
        }
        ([], None) => {
            (Verdict::Info, format!("taken, by a socket of {users}; its program is not visible"))
        }
    };
    Finding::new(verdict, says)
        .seen(SOCKETS, users)
        .seen_if("/proc/net/rpc/nfsd", threads.map(|threads| format!("{threads} threads")))
        .command("ss -ltnp sport = :2049")
        .remedy(
            "Linux clients establish the contexts of spin-nfsd at this port only: if it is to serve exports under Kerberos, see \
             as root who has the port. Without such exports, spin-nfsd does not need it",
        )
}

pub(super) fn instructions(input: &CheckInput<'_>) -> Finding {
    let facts = &input.facts.kerberos;
    let (Some(aes), Some(sha)) = (facts.aes, facts.sha) else {
        return Finding::unknown("the processor does not report its instructions");
    };
    let missing = match (aes, sha) {
        (true, true) => return Finding::ok("the processor has both").seen(PROCESSOR, "aes, sha"),
        (false, true) => "AES",
        (true, false) => "SHA",
        (false, false) => "AES and SHA",
    };
    let says = format!(
        "without instructions for {missing}: messages under Kerberos take several times the CPU"
    );
    let finding =
        Finding::new(severity(input), says).seen(PROCESSOR, format!("aes {aes}, sha {sha}"));
    match input.facts.clock.is_guest {
        Some(true) => finding.remedy(
            "Have the hypervisor pass the processor of its host (with QEMU: -cpu host), if that has them",
        ),
        _ => finding.remedy("Use sec=krb5, which protects headers only, where that is enough"),
    }
}

/// A warning on a host that is set up for Kerberos.
fn severity(input: &CheckInput<'_>) -> Verdict {
    let facts = &input.facts.kerberos;
    match matches!(facts.keytab, Keytab::File(_)) && facts.realm.is_some() {
        true => Verdict::Warn,
        false => Verdict::Info,
    }
}

const CHECK_NAME: &str = "Check --keytab, or KRB5_KTNAME, which spin-nfsd uses, too; spin-nfsd does not start without its keytab";
const ROOT: u32 = 0;
/// As in spin-nfsd.
const OTHERS: u32 = 0o007;
const CHANGED_BY_GROUP: u32 = 0o020;
const SOCKETS: &str = "/proc/net/tcp";
const PROCESSOR: &str = "/proc/cpuinfo";
const SPIN_NFSD: &str = "spin-nfsd";
