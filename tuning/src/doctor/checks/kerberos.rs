//! Kerberos for NFS: the keytab, TCP port 2049, and the instructions of the processor. Without a keytab and a realm they are notes.

use crate::doctor::{CheckInput, Finding, Verdict};
use crate::host::KEYTAB;

pub(super) fn keytab(input: &CheckInput<'_>) -> Finding {
    let Some(found) = input.facts.kerberos.keytab else {
        return Finding::ok("there is none, which only Kerberos needs");
    };
    let user = input.facts.process.user;
    let finding = if found.mode & OTHERS != 0 {
        let says = "every user can read or change it, and pretend to be this host";
        Finding::new(Verdict::Fail, says).command("chmod o= /etc/krb5.keytab").remedy(
            "Take these permissions away, and change the keys; spin-nfsd rejects such a keytab",
        )
    } else if found.owner != ROOT && user != Some(found.owner) {
        let says = format!("it belongs to user {}, who can change the keys", found.owner);
        Finding::new(Verdict::Warn, says)
            .command("chown root /etc/krb5.keytab")
            .remedy("Give it to root, or to the user of the server")
    } else if found.mode & CHANGED_BY_GROUP != 0 {
        let says = "its group can change the keys";
        Finding::new(Verdict::Warn, says)
            .command("chmod g-w /etc/krb5.keytab")
            .remedy("Let the group read it at most")
    } else if !found.is_readable {
        let says = "this user cannot read it: a server of this user needs a keytab of its own";
        Finding::new(Verdict::Info, says)
            .remedy("Run doctor as the user of the server, or give the server another keytab (spin-nfsd --keytab)")
    } else {
        Finding::ok("only those who need it can read it")
    };
    finding.seen(format!("/{KEYTAB}"), found)
}

pub(super) fn port(input: &CheckInput<'_>) -> Finding {
    let facts = &input.facts.kerberos;
    let Some(listeners) = &facts.listeners else {
        return Finding::unknown("the host does not report its sockets");
    };
    if listeners.is_empty() {
        return Finding::ok("free");
    }
    let users: Vec<String> =
        listeners.iter().map(|listener| format!("user {}", listener.user)).collect();
    let holders = input.tried.map(|tried| &tried.nfs_port_holders[..]).unwrap_or_default();
    if holders.iter().any(|name| name == SPIN_NFSD) {
        return Finding::ok("spin-nfsd has it").seen(SOCKETS, super::some_of(&users, 4));
    }
    let kernel = facts.nfsd_threads.filter(|threads| *threads > 0);
    let (says, what) = match (holders, kernel) {
        ([first, ..], _) => (format!("{first} has it"), "Stop that program"),
        ([], Some(_)) => {
            let says = "taken, most likely by the NFS server of the kernel, which runs";
            (says.to_owned(), "Stop that server if spin-nfsd replaces it")
        }
        ([], None) => {
            let says = format!("taken, by a socket of {}", super::some_of(&users, 4));
            (says, "Look who has it, as root, and stop that program")
        }
    };
    let finding = Finding::new(severity(input), says).seen(SOCKETS, super::some_of(&users, 4));
    let finding = finding.remedy(format!(
        "{what}: Linux clients establish the contexts of spin-nfsd at this port only. Without exports \
         under Kerberos, nothing needs it"
    ));
    match kernel {
        Some(threads) => finding
            .seen("/proc/net/rpc/nfsd", format!("{threads} threads"))
            .command("systemctl stop nfs-server"),
        None => finding.command("ss -ltnp sport = :2049"),
    }
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
    match facts.keytab.is_some() && facts.realm.is_some() {
        true => Verdict::Warn,
        false => Verdict::Info,
    }
}

const ROOT: u32 = 0;
/// As in spin-nfsd.
const OTHERS: u32 = 0o007;
const CHANGED_BY_GROUP: u32 = 0o020;
const SOCKETS: &str = "/proc/net/tcp";
const PROCESSOR: &str = "/proc/cpuinfo";
const SPIN_NFSD: &str = "spin-nfsd";
