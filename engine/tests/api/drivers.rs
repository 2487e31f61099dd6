//! An engine uses the driver it was configured for, and reports an error when it is asked for
//! another.

use crate::common::{PROGRAM, Started, VERSION, serve, small, small_with, valid};
use spinrpc::config::Driver;
use spinrpc::{ConnectError, Engine, Procedure, blocking, driver_of};

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

/// The loopback address leads to no device.
#[test]
fn any_transport_is_a_socket_where_no_device_leads_there() {
    let engine = Engine::new(valid(small_with(|raw| raw.fabric.driver = Driver::Iwarp))).unwrap();
    serve(&engine);
    let place = format!("127.0.0.1:{}", 12_099 + std::process::id() % 200 * 100);
    engine.listen(&format!("iwarp://{place}")).unwrap();
    let _started = Started::new(engine);
    let any = format!("any://{place}");
    assert_eq!(driver_of(&any), Ok(Driver::Iwarp));
    let mut client = blocking::Client::connect(&any, PROGRAM, VERSION).unwrap();
    client.call(Procedure(0), |_| {}, |_| Ok(())).unwrap();
}
