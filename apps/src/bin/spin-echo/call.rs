//! The client: a single call, and its reply.
//!
//! Programs that make many calls use `Core::connect` and a `ReplyHandler` instead.

use crate::{ECHO, PROGRAM, TEXT_BYTES_MAX, VERSION};
use spinrpc::{Config, blocking};
use spinrpc_apps::command_line::say;
use spinrpc_tuning::printable::printable_lines;
use std::error::Error;

pub(crate) fn run(config: Config, address: &str, text: &str) -> Result<(), Box<dyn Error>> {
    let mut client = blocking::Client::connect_with(config, address, PROGRAM, VERSION)?;
    let echoed = client.call(
        ECHO,
        |args| args.string(text),
        |results| results.string(TEXT_BYTES_MAX).map(str::to_owned),
    )?;
    // The reply may contain terminal control characters.
    say(printable_lines(&echoed))?;
    Ok(())
}
