//! Selects the driver for an address.

use crate::config::Driver;
use crate::fabric::{Address, AddressError, RdmaAddress, Transport};
use crate::sys::journal::event;

/// The driver that connects to `address`, for programs that set `fabric.driver` according to an address they are
/// given: shared memory for `shm:NAME`, RDMA devices for `rdma://HOST:PORT`, TCP sockets for `iwarp://HOST:PORT`. For
/// `any://HOST:PORT` it is RDMA devices if this program has the feature `verbs` and one of them leads to the host, else TCP
/// sockets; an event (`INFO`) tells why. That looks up a name, for as long as the resolver takes.
///
/// # Errors
/// [`AddressError`] if it is not an address of any driver.
pub fn driver_of(address: &str) -> Result<Driver, AddressError> {
    Ok(match Address::parse(address)? {
        Address::Shm(_) => Driver::Shm,
        Address::Rdma(address) => match address.transport() {
            Transport::Device => Driver::Verbs,
            Transport::Socket => Driver::Iwarp,
            Transport::Any => any_driver(&address),
        },
    })
}

fn any_driver(address: &RdmaAddress) -> Driver {
    match address.find_device() {
        Ok(()) => Driver::Verbs,
        Err(reason) => {
            event!(INFO, %address, %reason, "a TCP socket is used: no RDMA device leads there");
            Driver::Iwarp
        }
    }
}
