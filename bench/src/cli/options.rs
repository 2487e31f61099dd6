//! Values that options of several commands share.

use crate::units::parse_size;
use spinrpc::fabric::check_address;

pub(super) fn parse_address(text: &str) -> Result<String, String> {
    check_address(text).map(|()| text.to_owned()).map_err(|error| error.to_string())
}

pub(super) fn parse_payload(text: &str) -> Result<usize, String> {
    let bytes = parse_size(text).map_err(|error| error.to_string())?;
    if bytes > PAYLOAD_BYTES_MAX {
        return Err("at most 64MiB".to_owned());
    }
    Ok(bytes)
}

const PAYLOAD_BYTES_MAX: usize = 64 << 20;
