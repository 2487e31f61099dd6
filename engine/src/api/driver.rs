//! Selects the driver for an address.

use crate::config::Driver;
use crate::fabric::{Address, AddressError};

/// The driver that connects to `address`, for programs that set `fabric.driver` according to an address they are
/// given: shared memory for `shm:NAME`, RDMA devices for `rdma://HOST:PORT`.
///
/// ```
/// use spinrpc::config::Driver;
/// use spinrpc::{Config, driver_of};
///
/// let address = "shm:echo";
/// let config = Config::default().with_driver(driver_of(address)?)?;
/// assert_eq!(config.driver(), Driver::Shm);
/// assert_eq!(driver_of("rdma://storage-7"), Ok(Driver::Verbs));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`AddressError`] if it is not an address of any driver.
pub fn driver_of(address: &str) -> Result<Driver, AddressError> {
    Ok(match Address::parse(address)? {
        Address::Shm(_) => Driver::Shm,
        Address::Rdma(_) => Driver::Verbs,
    })
}
