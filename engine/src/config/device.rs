//! Selection of the RDMA device for connections.

use std::fmt;

/// Key `verbs.device`: a device by its name, or whichever an address leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceName {
    /// The device that leads to an address.
    Auto,
    /// This one, as in `/sys/class/infiniband`; addresses that lead to another are refused.
    Named(String),
}

impl DeviceName {
    /// The name, unless the device is whichever an address leads to.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Auto => None,
            Self::Named(name) => Some(name),
        }
    }

    /// Reads a name from `text`. Returns `false`, and changes nothing, if it cannot be the name of
    /// a device.
    pub(super) fn read(&mut self, text: &str) -> bool {
        let is_name = (1..=NAME_BYTES_MAX).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/');
        match text {
            "auto" => *self = Self::Auto,
            _ if is_name => *self = Self::Named(text.to_owned()),
            _ => return false,
        }
        true
    }
}

/// Writes the form used in a profile.
impl fmt::Display for DeviceName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name().unwrap_or("auto"))
    }
}

/// IB_DEVICE_NAME_MAX of the kernel is 64, with the zero that ends it.
const NAME_BYTES_MAX: usize = 63;
