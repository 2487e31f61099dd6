//! The messages of rpcbind (RFC 1833): arguments, results and replies.
//!
//! Pure functions over the XDR cursors and RPC headers of `spinrpc_proto`; nothing panics, whatever
//! the bytes. Called by the rpcbind client and the portmapper.

use crate::api::CallError;
use spinrpc_proto::ids::{Procedure, Program, Version, Xid};
use spinrpc_proto::rpc::{AcceptStatus, ReplyBody};
use spinrpc_proto::xdr::{DecodeError, Reader, Writer};

/// The headers of RPC messages, for a server on a separate stream: the headers in front of the
/// arguments and results of a procedure (RFC 5531 section 9).
pub use spinrpc_proto::rpc::{CallError as CallHeaderError, CallHeader, ReplyHeader};

/// rpcbind, and the portmapper it grew from.
pub const PROGRAM: Program = Program(100_000);

/// The port mapper (RFC 1833 section 3): it knows TCP and UDP ports only.
pub const VERSION_2: Version = Version(2);
/// rpcbind with netids and universal addresses.
pub const VERSION_3: Version = Version(3);
/// rpcbind with a few procedures more, which are not used here.
pub const VERSION_4: Version = Version(4);

/// Does nothing.
pub const NULL: Procedure = Procedure(0);
/// Registers: [`Entry`] or [`Mapping`] in, a boolean out.
pub const SET: Procedure = Procedure(1);
/// Takes back: as [`SET`].
pub const UNSET: Procedure = Procedure(2);
/// Finds: [`Entry`] in, a universal address out; in version 2 [`Mapping`] in, a port out.
pub const GETADDR: Procedure = Procedure(3);
/// Lists everything.
pub const DUMP: Procedure = Procedure(4);

const PROTOCOL_TCP: u32 = 6;
const PROTOCOL_UDP: u32 = 17;

/// A registration of versions 3 and 4 (`rpcb`, RFC 1833 section 2.1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The program.
    pub program: Program,
    /// Its version.
    pub version: Version,
    /// The kind of network: a [`Netid`](super::Netid)'s name, or `tcp`, `udp6` and so on.
    pub netid: String,
    /// The universal address.
    pub address: String,
    /// Owner of the registration, who may take it back. The daemon fills it in: on Linux the number
    /// of the user it learned from the Unix socket, `superuser`, or `unknown` for a client that
    /// came by TCP.
    pub owner: String,
}

impl Entry {
    /// Writes it.
    pub fn write(&self, writer: &mut Writer<'_>) {
        writer.u32(self.program.0);
        writer.u32(self.version.0);
        writer.string(&self.netid);
        writer.string(&self.address);
        writer.string(&self.owner);
    }

    /// Reads one. Bytes that are not UTF-8 become replacement characters: one strange registration
    /// must not hide the others of a list.
    ///
    /// # Errors
    /// The error in the bytes.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            program: Program(reader.u32()?),
            version: Version(reader.u32()?),
            netid: parse_text(reader)?,
            address: parse_text(reader)?,
            owner: parse_text(reader)?,
        })
    }
}

/// A registration of version 2 (`mapping`, RFC 1833 section 3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// The program.
    pub program: Program,
    /// Its version.
    pub version: Version,
    /// 6 for TCP, 17 for UDP; RDMA does not have a number.
    pub protocol: u32,
    /// The port, in 32 bits.
    pub port: u32,
}

impl Mapping {
    /// `entry` as version 2 can express it; `None` unless its netid is `tcp` or `udp`. An entry
    /// without an address has port 0.
    #[must_use]
    pub fn of(entry: &Entry) -> Option<Self> {
        let protocol = match entry.netid.as_str() {
            "tcp" => PROTOCOL_TCP,
            "udp" => PROTOCOL_UDP,
            _ => return None,
        };
        let port = match super::Endpoint::parse(super::Netid::Tcp, &entry.address) {
            // Addresses of `udp` are written alike.
            Ok(endpoint) => endpoint.port()?.into(),
            Err(_) if entry.address.is_empty() => 0,
            Err(_) => return None,
        };
        Some(Self { program: entry.program, version: entry.version, protocol, port })
    }

    /// The same in the words of versions 3 and 4; a protocol without a netid is its number.
    #[must_use]
    pub fn to_entry(self) -> Entry {
        let netid = match self.protocol {
            PROTOCOL_TCP => "tcp".to_owned(),
            PROTOCOL_UDP => "udp".to_owned(),
            other => other.to_string(),
        };
        let [_, _, high, low] = self.port.to_be_bytes();
        Entry {
            program: self.program,
            version: self.version,
            netid,
            address: format!("0.0.0.0.{high}.{low}"),
            owner: String::new(),
        }
    }

    /// Writes it.
    pub fn write(&self, writer: &mut Writer<'_>) {
        for word in [self.program.0, self.version.0, self.protocol, self.port] {
            writer.u32(word);
        }
    }

    /// Reads one.
    ///
    /// # Errors
    /// The error in the bytes.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            program: Program(reader.u32()?),
            version: Version(reader.u32()?),
            protocol: reader.u32()?,
            port: reader.u32()?,
        })
    }
}

/// Reads a `string<>`, which RFC 1833 gives no limit but that of the message.
///
/// # Errors
/// The error in the bytes.
pub fn parse_text(reader: &mut Reader<'_>) -> Result<String, DecodeError> {
    let bytes = reader.opaque(reader.remaining())?;
    Ok(String::from_utf8_lossy(bytes).into_owned())
}

/// Reads the results of [`DUMP`] in versions 3 and 4 (`rpcblist`).
///
/// # Errors
/// The error in the bytes.
pub fn parse_entries(reader: &mut Reader<'_>) -> Result<Vec<Entry>, DecodeError> {
    parse_list(reader, Entry::parse)
}

/// Reads the results of [`DUMP`] in version 2 (`pmaplist`).
///
/// # Errors
/// The error in the bytes.
pub fn parse_mappings(reader: &mut Reader<'_>) -> Result<Vec<Mapping>, DecodeError> {
    parse_list(reader, Mapping::parse)
}

/// An XDR list: before each item 1, at the end 0. Every item takes bytes, so that it ends with them.
fn parse_list<T>(
    reader: &mut Reader<'_>,
    item: impl Fn(&mut Reader<'_>) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    let mut list = Vec::new();
    while reader.bool()? {
        list.push(item(reader)?);
    }
    Ok(list)
}

/// Writes such a list.
pub(super) fn write_list<T>(
    writer: &mut Writer<'_>,
    items: &[T],
    write: impl Fn(&T, &mut Writer<'_>),
) {
    for item in items {
        writer.bool(true);
        write(item, writer);
    }
    writer.bool(false);
}

/// Reason why bytes are not an answer to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AnswerError {
    /// They are not a reply, or not results, as RFC 5531 and RFC 1833 define them.
    #[error("its answer cannot be decoded: {0}")]
    Decode(#[from] DecodeError),
    /// A reply to another call.
    #[error("it answered call {got}, not {expected}")]
    OtherCall {
        /// The call that was made.
        expected: Xid,
        /// The call that was answered.
        got: Xid,
    },
}

/// Reads the reply to call `xid`: its results, or the error that the server answered.
///
/// # Errors
/// [`AnswerError`] if it is none.
pub fn parse_answer(message: &[u8], xid: Xid) -> Result<Result<&[u8], CallError>, AnswerError> {
    let (header, results_at) = ReplyHeader::parse(message)?;
    if header.xid != xid {
        return Err(AnswerError::OtherCall { expected: xid, got: header.xid });
    }
    Ok(match header.body {
        ReplyBody::Accepted { status: AcceptStatus::Success, .. } => {
            Ok(message.get(results_at..).unwrap_or_default())
        }
        ReplyBody::Accepted { status, .. } => Err(CallError::Accepted(status)),
        ReplyBody::Denied(status) => Err(CallError::Rejected(status)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(write: impl Fn(&mut Writer<'_>)) -> Vec<u8> {
        let mut counter = Writer::new(&mut []);
        write(&mut counter);
        let mut bytes = vec![0; counter.len()];
        write(&mut Writer::new(&mut bytes));
        bytes
    }

    fn entry() -> impl Strategy<Value = Entry> {
        any::<(u32, u32, String, String, String)>().prop_map(
            |(program, version, netid, address, owner)| Entry {
                program: Program(program),
                version: Version(version),
                netid,
                address,
                owner,
            },
        )
    }

    #[test]
    fn an_entry_is_two_words_and_three_strings() {
        let entry = Entry {
            program: Program(100_003),
            version: Version(4),
            netid: "rdma6".into(),
            address: "::.78.81".into(),
            owner: "0".into(),
        };
        let expected =
            b"\0\x01\x86\xa3\0\0\0\x04\0\0\0\x05rdma6\0\0\0\0\0\0\x08::.78.81\0\0\0\x010\0\0\0";
        assert_eq!(written(|writer| entry.write(writer)), expected);
    }

    #[test]
    fn version_2_knows_tcp_and_udp_only() {
        let mut entry =
            Entry { netid: "tcp".into(), address: "0.0.0.0.8.1".into(), ..Entry::default() };
        assert_eq!(Mapping::of(&entry).map(|m| (m.protocol, m.port)), Some((6, 2049)));
        assert_eq!(Mapping::of(&entry).map(Mapping::to_entry), Some(entry.clone()));
        for netid in ["rdma", "rdma6", "spinrpc-shm", "tcp6", ""] {
            entry.netid = netid.into();
            assert_eq!(Mapping::of(&entry), None, "{netid}");
        }
    }

    #[test]
    fn receive_a_name_that_is_not_utf_8_expect_the_rest_of_the_list() {
        let bytes = b"\0\0\0\x01\0\0\0\x01\0\0\0\x01\0\0\0\x01\xff\0\0\0\0\0\0\0\0\0\0\0\
                      \0\0\0\x01\0\0\0\x02\0\0\0\x01\0\0\0\x01n\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
        let list = parse_entries(&mut Reader::new(bytes)).unwrap();
        assert_eq!(
            (list.len(), list[0].netid.as_str(), list[1].netid.as_str()),
            (2, "\u{fffd}", "n")
        );
    }

    #[test]
    fn receive_a_string_longer_than_the_message_expect_an_error() {
        let bytes = b"\0\0\0\x01\0\0\0\x01\0\0\0\x01\xff\xff\xff\xffrdma";
        let error = parse_entries(&mut Reader::new(bytes)).unwrap_err();
        assert!(matches!(error, DecodeError::TooLong { .. }), "{error}");
    }

    #[test]
    fn receive_a_reply_to_another_call_expect_refusal() {
        let header = ReplyHeader::success(Xid(7));
        let mut bytes = vec![0; header.buffer_len()];
        header.emit(&mut bytes);
        assert_eq!(parse_answer(&bytes, Xid(7)), Ok(Ok(&[][..])));
        let error = AnswerError::OtherCall { expected: Xid(8), got: Xid(7) };
        assert_eq!(parse_answer(&bytes, Xid(8)), Err(error));
    }

    proptest! {
        #[test]
        fn a_list_survives(entries in proptest::collection::vec(entry(), 0..8)) {
            let bytes = written(|writer| write_list(writer, &entries, Entry::write));
            let mut reader = Reader::new(&bytes);
            prop_assert_eq!(parse_entries(&mut reader), Ok(entries));
            prop_assert_eq!(reader.finish(), Ok(()));
        }

        #[test]
        fn any_bytes_are_results_or_refused(bytes: Vec<u8>, xid: u32) {
            let _ = parse_entries(&mut Reader::new(&bytes));
            let _ = parse_mappings(&mut Reader::new(&bytes));
            let _ = parse_answer(&bytes, Xid(xid));
        }
    }
}
