//! Input of a peer that connects: packets and addresses of the shared-memory fabric, and the
//! private data of RFC 8797. The parsers have no public name, so the body is in the engine.

pub use spinrpc::fuzz::handshake as run;
