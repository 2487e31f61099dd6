//! The document of the extension for deadlines, held to section 3.3 of version two, to the XDR that is
//! extracted from it, and to the code.

use spinrpc_proto::deadlines::{DEADLINE_CALL, LATE};
use spinrpc_proto::ids::Xid;
use spinrpc_proto::rdma::Segment;
use spinrpc_proto::rdma::v1::Lists;
use spinrpc_proto::rdma::v2::{Body, HeaderRepr};

use super::wire;

const DOCUMENT: &str = include_str!("../../xdr/deadlines.md");
const XDR: &str = include_str!("../../xdr/deadlines_v2.x");

/// As the script in the document does.
fn extracted() -> String {
    let marked = DOCUMENT.lines().filter_map(|line| line.strip_prefix("///"));
    marked.map(|line| format!("{}\n", line.strip_prefix(' ').unwrap_or(line))).collect()
}

#[test]
fn the_document_and_the_extracted_xdr_agree() {
    assert_eq!(extracted(), XDR);
    for (name, number) in [("DEADLINE_CALL", DEADLINE_CALL), ("LATE", LATE)] {
        let line = format!("const RDMA2_OPT_{name} = {number:#x};");
        assert!(XDR.lines().any(|other| other == line), "{line}");
    }
}

#[test]
fn the_document_has_what_section_3_3_asks_for() {
    let asked = ["Purpose", "Deadline call", "Late", "Errors", "Payload", "Interactions", "XDR"];
    let headings = DOCUMENT.lines().filter_map(|line| line.strip_prefix("## "));
    assert_eq!(headings.collect::<Vec<_>>(), asked);
    assert!(DOCUMENT.contains("#!/bin/sh"), "a script to extract it");
}

#[test]
fn a_deadline_call_stands_on_the_wire_as_its_xdr_says() {
    let segment = Segment { handle: 7, length: 100, offset: 1 << 32 | 2 };
    let lists = Lists { reads: &[], writes: &[&[segment]], reply: None };
    let body = Body::Deadline(1 << 32 | 5, lists);
    let header = HeaderRepr { xid: Xid(9), credits: 3, body };
    let mut bytes = vec![0; header.buffer_len()];
    assert_eq!(header.emit(&mut bytes), bytes.len());
    let write = [1, 1, 7, 100, 1, 2, 0];
    let words = [&[9, 2, 3, 5, 0, DEADLINE_CALL, 44, 1, 5, 0][..], &write, &[0]].concat();
    assert_eq!(bytes, wire(&words));
}
