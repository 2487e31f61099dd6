//! Reads a capture by the words of the specifications, and checks on the way whatever every block
//! and every frame must keep to.

use std::collections::BTreeMap;

/// The file.
#[derive(Default)]
pub(super) struct Capture {
    /// Options of the section.
    pub(super) section: Options,
    /// Options of each interface.
    pub(super) interfaces: Vec<Options>,
    pub(super) packets: Vec<Packet>,
    /// Interface, packets there were, packets missing.
    pub(super) statistics: Vec<(u32, u64, u64)>,
}

/// Values by code.
pub(super) type Options = BTreeMap<u16, Vec<u8>>;

/// One Enhanced Packet Block.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) interface: u32,
    pub(super) time_ns: u64,
    pub(super) outbound: bool,
    /// Packets missing before it.
    pub(super) dropped: u64,
    pub(super) frame: Frame,
}

/// A frame of RoCE version 2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) from: [u8; 4],
    pub(super) to: [u8; 4],
    pub(super) opcode: u8,
    pub(super) queue_pair: u32,
    pub(super) sequence: u32,
    /// Virtual address, key, length.
    pub(super) reth: Option<(u64, u32, u32)>,
    /// The key that is invalidated.
    pub(super) ieth: Option<u32>,
    pub(super) payload: Vec<u8>,
}

impl Capture {
    pub(super) fn read(bytes: &[u8]) -> Self {
        let mut capture = Self::default();
        let mut rest = bytes;
        while !rest.is_empty() {
            let (kind, length) = (le32(rest, 0), le32(rest, 4) as usize);
            assert_eq!(length % 4, 0, "a block is a multiple of four bytes");
            assert_eq!(le32(rest, length - 4) as usize, length, "the length stands at both ends");
            let first = rest.len() == bytes.len();
            assert_eq!(first, kind == 0x0a0d_0d0a, "one section, and it comes first");
            capture.block(kind, &rest[8..length - 4]);
            rest = &rest[length..];
        }
        capture
    }

    fn block(&mut self, kind: u32, body: &[u8]) {
        match kind {
            0x0a0d_0d0a => {
                assert_eq!(le32(body, 0), 0x1a2b_3c4d, "byte order magic");
                assert_eq!((le16(body, 4), le16(body, 6)), (1, 0), "version");
                assert_eq!(body[8..16], [0xff; 8], "section length is not told");
                self.section = options(&body[16..]);
            }
            1 => {
                assert_eq!((le16(body, 0), le16(body, 2)), (1, 0), "Ethernet, reserved");
                assert_eq!(le32(body, 4), 0, "no snap length");
                self.interfaces.push(options(&body[8..]));
            }
            5 => {
                let found = options(&body[12..]);
                self.statistics.push((le32(body, 0), le64(&found[&4], 0), le64(&found[&5], 0)));
            }
            6 => self.packets.push(packet(body)),
            _ => panic!("a block of type {kind:#x}"),
        }
        let known = self.packets.last().is_none_or(|p| p.interface < self.interfaces.len() as u32);
        assert!(known, "an interface is described before its packets");
    }
}

fn packet(body: &[u8]) -> Packet {
    let (captured, original) = (le32(body, 12) as usize, le32(body, 16) as usize);
    assert_eq!(captured, original, "no frame is cut");
    let padded = captured.next_multiple_of(4);
    assert!(body[20 + captured..20 + padded].iter().all(|byte| *byte == 0), "padding of zeroes");
    let options = options(&body[20 + padded..]);
    let direction = le32(&options[&2], 0) & 3;
    assert!(matches!(direction, 1 | 2), "inbound or outbound");
    Packet {
        interface: le32(body, 0),
        time_ns: u64::from(le32(body, 4)) << 32 | u64::from(le32(body, 8)),
        outbound: direction == 2,
        dropped: options.get(&4).map_or(0, |value| le64(value, 0)),
        frame: frame(&body[20..20 + captured]),
    }
}

fn options(mut bytes: &[u8]) -> Options {
    let mut found = Options::new();
    loop {
        let (code, length) = (le16(bytes, 0), usize::from(le16(bytes, 2)));
        if code == 0 {
            assert_eq!((length, bytes.len()), (0, 4), "the last option ends the block");
            return found;
        }
        found.insert(code, bytes[4..4 + length].to_vec());
        bytes = &bytes[4 + length.next_multiple_of(4)..];
    }
}

/// Ethernet, IPv4, UDP, base transport header, the headers of its opcode, payload, ICRC.
fn frame(bytes: &[u8]) -> Frame {
    let (ethernet, ip) = bytes.split_at(14);
    assert_eq!(ethernet[12..], [8, 0], "IPv4");
    assert_eq!((ip[0], ip[9]), (0x45, 17), "IPv4 without options, UDP");
    assert_eq!(usize::from(be16(ip, 2)), ip.len(), "length of the IP packet");
    let sum: u32 = (0..20).step_by(2).map(|at| u32::from(be16(ip, at))).sum();
    assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "checksum of the IP header");
    let udp = &ip[20..];
    assert_eq!((be16(udp, 2), usize::from(be16(udp, 4))), (4791, udp.len()), "RoCE, UDP's length");
    let (packet, icrc) = udp[8..].split_at(udp.len() - 12);
    assert_eq!(icrc, icrc_of(&ip[..ip.len() - 4]), "ICRC");
    let opcode = packet[0];
    let mut rest = &packet[12..packet.len() - usize::from(packet[1] >> 4 & 3)];
    let mut take = |wanted: bool, length: usize| {
        let (head, behind) = rest.split_at(if wanted { length } else { 0 });
        rest = behind;
        (!head.is_empty()).then_some(head)
    };
    take(opcode == 0x64, 8);
    let reth = take([0x06, 0x0a, 0x0c].contains(&opcode), 16);
    take([0x0d, 0x0f, 0x10].contains(&opcode), 4);
    let ieth = take([0x16, 0x17].contains(&opcode), 4);
    Frame {
        from: ip[12..16].try_into().unwrap(),
        to: ip[16..20].try_into().unwrap(),
        opcode,
        queue_pair: be32(packet, 4) & 0xff_ffff,
        sequence: be32(packet, 8) & 0xff_ffff,
        reth: reth.map(|h| {
            (u64::from(be32(h, 0)) << 32 | u64::from(be32(h, 4)), be32(h, 8), be32(h, 12))
        }),
        ieth: ieth.map(|h| be32(h, 0)),
        payload: rest.to_vec(),
    }
}

/// Bit by bit, over the packet with ones where routers may write.
pub(super) fn icrc_of(ip: &[u8]) -> [u8; 4] {
    let mut masked = [&[0xff; 8], ip].concat();
    for at in [1, 8, 10, 11, 20 + 6, 20 + 7, 20 + 8 + 4] {
        masked[8 + at] = 0xff;
    }
    let mut crc = !0_u32;
    for byte in masked {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
        }
    }
    (!crc).to_le_bytes()
}

fn le16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap())
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(bytes[at..at + 2].try_into().unwrap())
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}
