//! Path of the bytes of an operation (RFC 8166 section 3.5), for a note in the report.

use super::workload::{Operation, Share};
use crate::units::show_size;

/// The longest messages that go inline, transport header included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InlineBytes {
    pub(crate) call: usize,
    pub(crate) reply: usize,
}

/// Paths of all shares: `echo 64 B to 2 KiB: call and reply inline`.
pub(crate) fn describe(shares: &[Share], inline: InlineBytes) -> Vec<String> {
    let mut sorted: Vec<Share> = shares.to_vec();
    sorted.sort_by_key(|share| (share.op as u32, share.call_bytes, share.reply_bytes));
    sorted.dedup_by_key(|share| share.name());
    let same =
        |one: &Share, next: &Share| one.op == next.op && way(one, inline) == way(next, inline);
    let line = |group: &[Share]| {
        let [first, .., last] = group else {
            return group.first().map(|share| format!("{}: {}", share.name(), way(share, inline)));
        };
        Some(format!("{} to {}: {}", first.name(), show_size(last.call_bytes), way(first, inline)))
    };
    sorted.chunk_by(same).filter_map(line).collect()
}

fn way(share: &Share, inline: InlineBytes) -> &'static str {
    let (call_bytes, reply_bytes) = share.message_bytes();
    let is_long = |bytes, most| bytes > most;
    match share.op {
        Operation::Null => "call and reply inline",
        // Offered with every call: the client cannot know the length of the reply.
        Operation::Read => "call inline, data in a Write chunk",
        Operation::Write if is_long(call_bytes, inline.call) => {
            "data in a Read chunk, reply inline"
        }
        Operation::Write => "call with its data inline, reply inline",
        Operation::Echo => {
            match (is_long(call_bytes, inline.call), is_long(reply_bytes, inline.reply)) {
                (false, false) => "call and reply inline",
                (true, false) => "long call (Position-Zero Read chunk), reply inline",
                (false, true) => "call inline, reply in a Reply chunk",
                (true, true) => "long call (Position-Zero Read chunk), reply in a Reply chunk",
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_beyond_the_threshold_take_chunks() {
        let inline = InlineBytes { call: 4096, reply: 1024 };
        for (op, call_bytes, reply_bytes, way) in [
            (Operation::Null, 0, 0, "call and reply inline"),
            (Operation::Echo, 64, 64, "call and reply inline"),
            (Operation::Echo, 64, 1024, "call inline, reply in a Reply chunk"),
            (Operation::Echo, 4096, 8, "long call (Position-Zero Read chunk), reply inline"),
            (Operation::Read, 8, 8, "data in a Write chunk"),
            (Operation::Write, 4000, 0, "data inline"),
            (Operation::Write, 4096, 0, "data in a Read chunk"),
        ] {
            let share = Share { op, weight: 1, call_bytes, reply_bytes };
            let said = describe(&[share], inline).concat();
            assert!(said.contains(way), "{said}");
        }
    }

    #[test]
    fn sizes_that_take_the_same_way_share_a_line() {
        let echo =
            |bytes| Share { op: Operation::Echo, weight: 1, call_bytes: bytes, reply_bytes: bytes };
        let shares = [64, 8192, 1024, 64, 65536].map(echo);
        let said = describe(&shares, InlineBytes { call: 4096, reply: 4096 });
        let long = "long call (Position-Zero Read chunk), reply in a Reply chunk";
        assert_eq!(said[0], "echo 64 B to 1 KiB: call and reply inline");
        assert_eq!(said[1..], [format!("echo 8 KiB to 64 KiB: {long}")]);
    }
}
