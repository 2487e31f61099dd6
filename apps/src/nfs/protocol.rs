//! Types and stubs of `nfs_prot.x`, NFS version 3 (RFC 1813), generated when this package is built. Their codec
//! borrows from the message. The arguments of READ, WRITE and COMMIT are on it; those of others,
//! and all results, have their codec in `nfs3` and `xdr`. Called by client and server.

include!(concat!(env!("OUT_DIR"), "/nfs_prot.rs"));
