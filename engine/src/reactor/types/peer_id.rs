//! Identification of a peer over several connections: an instance number that our own ends put behind the eight
//! octets of RFC 8797, whose section 6 foresees more octets. A peer that does not know them ignores them.
//!
//! A client that will reconnect has a number of its own, so that two clients of one process, whose XIDs are
//! independent, are not taken for one. A server that keeps replies has one, so that a client notices when it was
//! replaced by another process, which knows nothing of earlier calls. Used by the handshake, the reply cache and the
//! resending of calls.

/// Opens our octets, so that a later format of others is not mistaken for them: "spin".
const TAG: [u8; 4] = *b"spin";
/// The same for a client that may come from several addresses.
const ROAMING_TAG: [u8; 4] = *b"spir";

/// Statement of an end about its identification on later connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Instance {
    /// No statement: the end is another implementation.
    Unknown,
    /// A client that does not come back, or a server that keeps no replies.
    Passing,
    /// It can be known by this number, which is not zero, as long as it comes from the same host.
    Lasting(u64),
    /// A client that comes from several addresses, and can be known by this number alone. Others cannot guess it: a
    /// peer that knows it could ask for the client's replies.
    Roaming(u64),
}

impl Instance {
    /// Bytes on the wire.
    pub(crate) const BYTES: usize = TAG.len() + 8;

    pub(crate) fn encode(self) -> [u8; Self::BYTES] {
        let mut octets = [0; Self::BYTES];
        let (tag, number) = match self {
            Self::Unknown => return octets,
            Self::Passing => (TAG, 0),
            Self::Lasting(number) => (TAG, number),
            Self::Roaming(number) => (ROAMING_TAG, number),
        };
        octets[..TAG.len()].copy_from_slice(&tag);
        octets[TAG.len()..].copy_from_slice(&number.to_be_bytes());
        octets
    }

    /// Reads what stands behind the eight octets.
    pub(crate) fn decode(behind: &[u8]) -> Self {
        let Some((tag, rest)) = behind.split_first_chunk() else { return Self::Unknown };
        let number = rest.first_chunk().map(|number| u64::from_be_bytes(*number));
        match (*tag, number) {
            (TAG, Some(0)) => Self::Passing,
            (TAG, Some(number)) => Self::Lasting(number),
            (ROAMING_TAG, Some(number)) if number > 0 => Self::Roaming(number),
            _ => Self::Unknown,
        }
    }
}

/// A peer, whatever connection it comes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PeerId {
    /// Identity of the peer from the driver: [`crate::fabric::Endpoint::peer_identity`].
    pub(crate) identity: u64,
    /// Instance that the peer states.
    pub(crate) instance: Instance,
}

impl PeerId {
    /// A peer with the driver's `identity`, which does not count for one that comes from several addresses.
    pub(crate) fn new(identity: u64, instance: Instance) -> Self {
        let is_roaming = matches!(instance, Instance::Roaming(_));
        Self { identity: if is_roaming { 0 } else { identity }, instance }
    }

    /// Returns true for a client of ours that may come back.
    pub(crate) fn is_own_client(self) -> bool {
        matches!(self.instance, Instance::Lasting(_) | Instance::Roaming(_))
    }

    /// Returns true if the peer may reconnect and would be recognised.
    pub(crate) fn may_return(self) -> bool {
        match self.instance {
            Instance::Unknown => self.identity != 0,
            Instance::Passing => false,
            Instance::Lasting(_) | Instance::Roaming(_) => true,
        }
    }

    /// Returns true if a call that was sent to `self` may be sent to `other` because the server remembers its reply.
    /// For a server that states nothing, the application has stated that it does.
    pub(crate) fn remembers_for(self, other: Self) -> bool {
        match self.instance {
            Instance::Unknown => self == other,
            Instance::Passing => false,
            Instance::Lasting(_) | Instance::Roaming(_) => self.instance == other.instance,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_come_back_as_they_were() {
        let numbered = [Instance::Lasting(u64::MAX - 1), Instance::Roaming(7)];
        for instance in [Instance::Unknown, Instance::Passing].into_iter().chain(numbered) {
            assert_eq!(Instance::decode(&instance.encode()), instance);
        }
    }

    #[test]
    fn the_host_counts_for_a_client_unless_it_roams() {
        let [one, other] = [1, 2].map(|host| PeerId::new(host, Instance::Lasting(5)));
        assert_ne!(one, other);
        let [one, other] = [1, 2].map(|host| PeerId::new(host, Instance::Roaming(5)));
        assert_eq!(one, other);
        assert_ne!(one, PeerId::new(1, Instance::Roaming(6)));
        assert_ne!(one, PeerId::new(0, Instance::Lasting(5)));
    }

    #[test]
    fn receive_other_octets_or_too_few_expect_an_unknown_instance() {
        let octets = Instance::Lasting(5).encode();
        let mut other = octets;
        other[0] ^= 1;
        for behind in [&[][..], &octets[..11], &other[..]] {
            assert_eq!(Instance::decode(behind), Instance::Unknown);
        }
    }

    #[test]
    fn a_server_remembers_if_it_says_so_and_is_the_same_one() {
        let server = |instance| PeerId { identity: 1, instance };
        let known = server(Instance::Lasting(3));
        assert!(known.remembers_for(known));
        assert!(!known.remembers_for(server(Instance::Lasting(4))));
        assert!(!server(Instance::Passing).remembers_for(server(Instance::Passing)));
        assert!(server(Instance::Unknown).remembers_for(server(Instance::Unknown)));
    }
}
