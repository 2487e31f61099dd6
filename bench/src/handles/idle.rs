//! Measurement with sleeping cores: client and server have a CPU each, and the caller is not
//! pinned.

use super::{
    Count, HandleValue, NULL, PROGRAM, VERSION, engine, failed, handle_latency_ns, latency_ns,
    serve, start,
};
use crate::child::own_address;
use crate::cores::CorePair;
use crate::failure::Failure;
use spinrpc::config::IdlePolicy;
use spinrpc::{CallSpec, Client, ConnectOptions, Core, spawn_helper};
use std::sync::mpsc::channel;
use std::time::Duration;

/// The latency; the caller measures its floor.
pub(super) fn measure(pair: CorePair) -> Result<HandleValue, Failure> {
    let (server, address) = (engine(pair.server, IdlePolicy::Sleep)?, own_address()?);
    serve(&server, &address)?;
    let running = server.start().map_err(failed("starting the server"))?;
    let client = engine(pair.client, IdlePolicy::Sleep)?;
    let mut core = client.core(0).map_err(failed("starting a core"))?;
    let ended = Count::default();
    let own = core
        .connect_wait(&address, PROGRAM, VERSION, |_| ended.clone(), CONNECT_TIME)
        .map_err(failed("connecting"))?;
    let own_ns = own_latency_ns(&mut core, &own, &ended);
    let handle = client
        .connect(0, &address, PROGRAM, VERSION, &ConnectOptions::new())
        .map_err(failed("connecting"))?;
    core.run_until(|| handle.is_up());
    let (done, is_done) = channel();
    let waker = handle.clone();
    let thread = spawn_helper("caller", move || {
        let _ = done.send(handle_latency_ns(&handle, CALLS));
        // Makes the core run one more turn.
        let _ = waker.start(NULL, CallSpec::new(), |_| {});
    })
    .map_err(|error| Failure::system("starting a thread", error))?;
    let mut measured = None;
    core.run_until(|| {
        measured = is_done.try_recv().ok();
        measured.is_some()
    });
    drop(thread.join());
    server.shutdown();
    running.join().map_err(failed("stopping the server"))?;
    let handle_ns =
        measured.map_or(Ok(f64::NAN), |measured| measured.map_err(failed("calling")))?;
    Ok(HandleValue { own: own_ns, handle: handle_ns, floor: f64::NAN })
}

fn own_latency_ns(core: &mut Core, client: &Client, Count(ended): &Count) -> f64 {
    latency_ns(CALLS, || {
        let due = ended.get() + 1;
        if start(client) {
            core.run_until(|| ended.get() == due);
        }
    })
}

const CALLS: u32 = 500;
const CONNECT_TIME: Duration = Duration::from_secs(10);
