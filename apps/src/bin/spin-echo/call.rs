//! The client: one call, waiting for its reply.
//!
//! Programs that make many calls use `Core::connect` and a `ReplyHandler` instead.

use crate::{ECHO, PROGRAM, TEXT_BYTES_MAX, VERSION};
use spinrpc::blocking;
use std::error::Error;

/// Prints what the server makes of `text`.
pub(crate) fn run(address: &str, text: &str) -> Result<(), Box<dyn Error>> {
    let mut client = blocking::Client::connect(address, PROGRAM, VERSION)?;
    let echoed = client.call(
        ECHO,
        |args| args.string(text),
        |results| results.string(TEXT_BYTES_MAX).map(str::to_owned),
    )?;
    println!("{echoed}");
    Ok(())
}
