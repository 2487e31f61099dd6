//! Claims of CPUs among the engines of a host, so that two processes that let their engines choose do not
//! poll on the same one.
//!
//! A claim is an abstract Unix socket, `spinrpc-cpu-N`, that is bound and never used: the kernel
//! gives it to one process at a time, of any user, and takes it back when that ends in whatever
//! way. It is only advice: another user who takes the names makes engines choose other CPUs, or the
//! ones that they would have chosen without claims, and processes of another network namespace do
//! not see the claims of this one. Nothing is ever received by these sockets.

use std::io;
use std::net::Shutdown;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// A CPU that an engine of this process polls on, as far as other engines ask.
#[derive(Debug)]
pub struct CpuClaim(#[expect(dead_code, reason = "bound for as long as it lives")] UnixDatagram);

impl CpuClaim {
    /// Claims `cpu`. `None` if an engine has it, or the system has no such sockets.
    pub fn new(cpu: usize) -> Option<Self> {
        Self::bind(cpu).ok().map(Self)
    }

    fn bind(cpu: usize) -> io::Result<UnixDatagram> {
        let address = SocketAddr::from_abstract_name(format!("spinrpc-cpu-{cpu}"))?;
        let socket = UnixDatagram::bind_addr(&address)?;
        socket.shutdown(Shutdown::Both)?;
        Ok(socket)
    }
}

/// Chooses `count` CPUs of `candidates`, best first: those that are free and, if there are not enough, the
/// best ones though others poll there. Returns them with the claims of those that were free.
pub fn choose(candidates: &[usize], count: usize) -> (Vec<usize>, Vec<CpuClaim>) {
    let (mut cpus, mut claims) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for &cpu in candidates {
        if cpus.len() == count {
            break;
        }
        if let Some(claim) = CpuClaim::new(cpu) {
            cpus.push(cpu);
            claims.push(claim);
        }
    }
    for &cpu in candidates {
        if cpus.len() < count && !cpus.contains(&cpu) {
            cpus.push(cpu);
        }
    }
    (cpus, claims)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No host has CPUs of these numbers.
    #[test]
    fn a_cpu_that_is_claimed_is_chosen_only_when_there_is_no_other() {
        let candidates = [70_001, 70_002];
        let (first, first_claims) = choose(&candidates, 1);
        let (second, _second_claims) = choose(&candidates, 1);
        let (third, third_claims) = choose(&candidates, 1);
        assert_eq!((first, second, third), (vec![70_001], vec![70_002], vec![70_001]));
        assert!(third_claims.is_empty());
        drop(first_claims);
        let (both, both_claims) = choose(&candidates, 2);
        assert_eq!((both, both_claims.len()), (vec![70_001, 70_002], 1));
    }
}
