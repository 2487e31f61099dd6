//! Which driver an address is for.

use crate::config::Driver;
use crate::fabric::{Address, AddressError};

/// The driver that connects to `address`, for programs that are given an address and must choose
/// `fabric.driver` by it: shared memory for `shm:NAME`, RDMA devices for `rdma://HOST:PORT`.
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
/// [`AddressError`] when it is no address of any driver.
pub fn driver_of(address: &str) -> Result<Driver, AddressError> {
    Ok(match Address::parse(address)? {
        Address::Shm(_) => Driver::Shm,
        Address::Rdma(_) => Driver::Verbs,
    })
}
