//! An engine uses the driver it was configured for, and reports an error when it is asked for
//! another.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends here")]

mod common;

use common::{PROGRAM, VERSION, small, valid};
use spinrpc::{ConnectError, Engine, blocking};

#[test]
fn an_engine_on_shared_memory_refuses_addresses_of_rdma_devices() {
    let engine = Engine::new(valid(small())).unwrap();
    let refused = engine.listen("rdma://127.0.0.1:20049").unwrap_err().to_string();
    assert!(refused.contains("RDMA devices") && refused.contains("fabric.driver"), "{refused}");

    let config = valid(small());
    let asked = blocking::Client::connect_with(config, "rdma://127.0.0.1:20049", PROGRAM, VERSION);
    let Err(ConnectError::Fabric(refused)) = asked else { panic!("{asked:?}") };
    let refused = refused.to_string();
    assert!(refused.contains("RDMA devices") && refused.contains("fabric.driver"), "{refused}");
}
