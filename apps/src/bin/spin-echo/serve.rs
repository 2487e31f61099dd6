//! The server: a service, and an engine that polls for its calls.

use crate::rpcbind::{register, shut_down_on_signals};
use crate::{ECHO, NULL, PROGRAM, TEXT_BYTES_MAX, VERSION};
use spinrpc::rpcbind::Daemon;
use spinrpc::{AcceptStatus, Call, Config, DecodeError, Engine, Service};
use spinrpc_apps::command_line::say;
use std::error::Error;

/// Echoes until the process is killed. Nothing is left behind, even after SIGKILL, except the
/// registration with rpcbind, which SIGINT and SIGTERM remove.
pub(crate) fn run(
    config: Config,
    address: &str,
    rpcbind: Option<&Daemon>,
) -> Result<(), Box<dyn Error>> {
    let engine = Engine::new(config)?;
    engine.serve(PROGRAM, VERSION, |_core| Echo)?;
    engine.listen(address)?;
    let Some(daemon) = rpcbind else {
        let running = engine.start()?;
        // The cores are running: calls are answered from now on.
        say(format_args!("listening on {address}"))?;
        return Ok(running.join()?);
    };
    shut_down_on_signals(engine.clone())?;
    let running = engine.start()?;
    let registration = register(daemon, address)?;
    say(format_args!("listening on {address}"))?;
    running.join()?;
    registration.end().map_err(|error| format!("cannot unregister from rpcbind: {error}"))?;
    Ok(())
}

/// Created for each core, and only used on that core's thread.
struct Echo;

impl Service for Echo {
    fn call(&mut self, mut call: Call<'_>) {
        match call.procedure() {
            NULL => call.reply(|_results| {}),
            ECHO => match text(&mut call) {
                Ok(text) => call.reply(|results| results.string(text)),
                Err(_) => call.reject(AcceptStatus::GarbageArgs),
            },
            _ => call.reject(AcceptStatus::ProcUnavail),
        }
    }
}

/// The argument stays in the receive buffer; nothing is copied until the reply is written.
fn text<'a>(call: &mut Call<'a>) -> Result<&'a str, DecodeError> {
    let mut args = call.args();
    let text = args.string(TEXT_BYTES_MAX)?;
    args.finish()?;
    Ok(text)
}
