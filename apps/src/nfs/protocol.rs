//! Types and stubs of `nfs_prot.x`, NFS version 3 (RFC 1813), generated when this package is built. Their codec
//! borrows from the message. Arguments of the frequent calls are on it: GETATTR, READ, WRITE and COMMIT; the others,
//! and all results, have their codec in `nfs3` and `xdr`. Called by client and server.

include!(concat!(env!("OUT_DIR"), "/nfs_prot.rs"));
