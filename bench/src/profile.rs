//! From a profile's name to a running engine's configuration.

use crate::cores::CoreList;
use crate::env::ProfileId;
use crate::failure::Failure;
use crate::load::{Workload, refusal_of_size};
use crate::profile_args::ProfileArgs;
use spinrpc::config::{Driver, Host};
use spinrpc::{CaptureSink, Config, Engine};
use spinrpc_tuning::{Loader, load_for_program};

#[derive(Clone)]
pub(crate) struct Profile {
    pub(crate) config: Config,
    pub(crate) id: ProfileId,
    /// The profile with its cores, for examining the host.
    pub(crate) placed: spinrpc_tuning::Profile,
}

impl Profile {
    /// The same profile with room for as many calls in reverse as forward.
    pub(crate) fn with_reverse_calls(self) -> Result<Self, Failure> {
        let mut raw = self.config.raw().clone();
        raw.rpc.reverse_calls = raw.rpc.credits;
        let config = raw.validate().map_err(|error| Failure::Usage(error.to_string()))?;
        Ok(Self { config, ..self })
    }
}

/// `args.set` (`KEY=VALUE`) overrides everything but the driver, which is that of the address.
pub(crate) fn load(
    args: &ProfileArgs,
    cores: Option<&CoreList>,
    driver: Driver,
) -> Result<Profile, Failure> {
    let host = Host::current();
    let ProfileArgs { name, set } = args;
    let with_all = |own| load_for_program(name, set, own, driver).map_err(Failure::Usage);
    let plain = with_all(Loader::new(&host))?;
    let own = cores.map(|cores| format!("cores.list={}", cores.show()));
    // All connections of a measurement are between two processes, so one peer may use all of a
    // core's memory.
    let whole_core = format!("limits.peer_mib={}", plain.config().raw().limits.core_mib);
    let placed =
        with_all(own.into_iter().fold(Loader::new(&host), Loader::set).unless_set(whole_core))?;
    let name = [&[plain.name().to_owned()], set.as_slice()].concat().join(" ");
    let id = ProfileId { name, hash: format!("{:016x}", plain.hash()) };
    Ok(Profile { config: placed.config().clone(), id, placed })
}

/// An engine with this configuration, not yet running; captures if there is a sink.
pub(crate) fn engine(config: &Config, capture: Option<CaptureSink>) -> Result<Engine, Failure> {
    let config = config.clone();
    let engine = match capture {
        None => Engine::new(config),
        Some(sink) => Engine::with_capture(config, sink),
    };
    engine.map_err(|error| Failure::Measurement(format!("starting the engine: {error}")))
}

pub(crate) fn check_fits(config: &Config, workload: &Workload) -> Result<(), Failure> {
    let refusal = workload.shares().iter().find_map(|share| refusal_of_size(share, config));
    refusal.map_or(Ok(()), |refusal| Err(Failure::Usage(refusal)))
}
