//! Limit of locked memory, which registering memory with a device counts against.

use crate::program::raise_to_hard;
use rustix::process::{Resource, Rlimit, setrlimit};
use spinrpc::Config;
use spinrpc::config::Registration;

/// RLIMIT_MEMLOCK of this process, and the memory of an engine that counts against it.
#[derive(Clone, Copy, Debug)]
pub struct Memlock;

impl Memlock {
    /// Raises this process's limit to the hard limit, or removes it if the process has the
    /// privilege. Leaves the limit unchanged if that is refused.
    pub fn raise() {
        let unlimited = Rlimit { current: None, maximum: None };
        if setrlimit(Resource::Memlock, unlimited).is_err() {
            raise_to_hard(Resource::Memlock);
        }
    }

    /// Upper bound of the memory that a connection of an engine with this configuration registers,
    /// in bytes. The system counts the core's memory once for each connection, although connections
    /// share it. With registration `buffer`, and with `auto` on a device without memory windows, a
    /// connection's own memory counts three times: for local use, for reads and for writes.
    pub fn connection_bytes(config: &Config) -> u64 {
        let own = match config.verbs().registration {
            Registration::Auto | Registration::Buffer => config.conn_arena_bytes() as u64,
            Registration::Window | Registration::Pool => 0,
        };
        config.arena_bytes() as u64 + 3 * own + Self::message_bytes(config)
    }

    pub(crate) fn message_bytes(config: &Config) -> u64 {
        let receives = config.recv_budget().total() * config.recv_buffer_bytes() as u64;
        let sends = config.requester_send_budget().total();
        let sends = sends.max(config.responder_send_budget().total());
        receives + sends * config.send_buffer_bytes() as u64
    }

    pub const REMEDY: &str = "raise it with \"ulimit -l unlimited\" in the shell, a line \"USER - \
                              memlock unlimited\" in /etc/security/limits.conf, \
                              LimitMEMLOCK=infinity in a systemd unit, or \"docker run --ulimit \
                              memlock=-1\"; or reduce mem.arena_mib and mem.conn_arena_mib";
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::getrlimit;
    use spinrpc::RawConfig;

    #[test]
    fn a_connection_registers_the_memory_of_its_core_again() {
        let mut raw = RawConfig::default();
        raw.verbs.registration = Registration::Window;
        let windows = Memlock::connection_bytes(&raw.clone().validate().unwrap());
        assert_eq!(windows >> 20, 64, "and half a MiB for messages");
        raw.verbs.registration = Registration::Buffer;
        let blocks = Memlock::connection_bytes(&raw.validate().unwrap());
        assert_eq!(blocks - windows, 3 * (16 << 20));
    }

    #[test]
    fn raising_never_lowers_the_limit() {
        let limit = || getrlimit(Resource::Memlock).current.unwrap_or(u64::MAX);
        let before = limit();
        Memlock::raise();
        assert!(limit() >= before);
    }
}
