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

#[test]
fn what_is_no_address_is_refused_with_the_forms_of_one() {
    let asked = blocking::Client::connect("127.0.0.1:20049", PROGRAM, VERSION);
    let Err(ConnectError::Fabric(refused)) = asked else { panic!("{asked:?}") };
    let refused = refused.to_string();
    assert!(refused.contains("shm:NAME") && refused.contains("rdma://HOST:PORT"), "{refused}");
}

#[cfg(not(feature = "verbs"))]
#[test]
fn without_the_feature_rdma_devices_are_refused_with_what_to_build() {
    let asked = blocking::Client::connect("rdma://127.0.0.1", PROGRAM, VERSION);
    let Err(ConnectError::Fabric(refused)) = asked else { panic!("{asked:?}") };
    let refused = refused.to_string();
    assert!(refused.contains("--features verbs"), "{refused}");
}

#[cfg(feature = "verbs")]
#[test]
fn without_a_device_an_address_of_rdma_devices_is_refused_with_what_makes_one() {
    if spinrpc::fabric::verbs::devices().is_ok_and(|devices| !devices.is_empty()) {
        return eprintln!("this host has an RDMA device: nothing was tested");
    }
    let asked = blocking::Client::connect("rdma://127.0.0.1", PROGRAM, VERSION);
    let Err(ConnectError::Fabric(refused)) = asked else { panic!("{asked:?}") };
    let refused = refused.to_string();
    assert!(refused.contains("no RDMA device") && refused.contains("rdma link add"), "{refused}");
}
