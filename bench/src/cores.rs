//! Selection of the cores of a measurement, by the rules of the engine, and pinning.

use crate::failure::Failure;
use crate::units::joined;
use spinrpc::config::{self, Config, Host};
use spinrpc::sys::affinity::pin_current_thread;
use std::str::FromStr;

/// Cores by number, in the order given: `0,2` or `4-7`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CoreList(Vec<usize>);

impl CoreList {
    /// The CPUs of the cores of an engine: all that this process may use, if they are not pinned.
    pub(crate) fn of(config: &Config) -> Self {
        match config.pins_cores() {
            true => Self(config.cpus().to_vec()),
            false => Self(Host::current().allowed),
        }
    }

    /// The numbers: at least one, no duplicates.
    pub(crate) fn as_slice(&self) -> &[usize] {
        &self.0
    }

    pub(crate) fn show(&self) -> String {
        joined(&self.0, ",")
    }
}

impl From<usize> for CoreList {
    fn from(core: usize) -> Self {
        Self(vec![core])
    }
}

impl From<CorePair> for CoreList {
    fn from(pair: CorePair) -> Self {
        Self(<[usize; 2]>::from(pair).to_vec())
    }
}

/// The client's first.
impl From<CorePair> for [usize; 2] {
    fn from(CorePair { client, server }: CorePair) -> Self {
        [client, server]
    }
}

impl FromStr for CoreList {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse() {
            Ok(config::CoreList::Cpus(cores)) => Ok(Self(cores)),
            _ => Err(EXPECTED),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) struct CorePair {
    pub(crate) client: usize,
    pub(crate) server: usize,
}

impl CorePair {
    /// By default the best core for the server, the next best for the client.
    pub(crate) fn choose(wanted: Option<&CoreList>) -> Result<Self, Failure> {
        let host = Host::current();
        let Some(wanted) = wanted else { return Self::automatic(&host) };
        let &[client, server] = wanted.as_slice() else {
            return Err(Failure::Usage(PAIR_WANTED.to_owned()));
        };
        check_allowed(wanted.as_slice(), &host)?;
        Ok(Self { client, server })
    }

    fn automatic(host: &Host) -> Result<Self, Failure> {
        match host.preference()[..] {
            [server, client, ..] => Ok(Self { client, server }),
            _ => Err(Failure::Measurement(TWO_NEEDED.to_owned())),
        }
    }
}

fn check_allowed(wanted: &[usize], host: &Host) -> Result<(), Failure> {
    match wanted.iter().find(|core| !host.allowed.contains(core)) {
        None => Ok(()),
        Some(core) => Err(Failure::Usage(format!(
            "this process is not allowed to run on core {core}, only on {}",
            config::CoreList::Cpus(host.allowed.clone())
        ))),
    }
}

pub(crate) fn pin(core: usize) -> Result<(), Failure> {
    pin_current_thread(core)
        .map_err(|error| Failure::system(format!("pinning a thread to core {core}"), error))
}

const EXPECTED: &str =
    "not a list of cores; expected numbers, each once, with commas and ranges: 1 or 0,2 or 4-7";
const PAIR_WANTED: &str = "--cores needs two cores: CLIENT,SERVER, such as 0,1";
const TWO_NEEDED: &str = "this process may use only one core; client and server need one each";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges_keep_their_order_and_nonsense_is_refused() {
        let parse = |text: &str| text.parse::<CoreList>().map(|list| list.0);
        assert_eq!(parse("1,0"), Ok(vec![1, 0]));
        assert_eq!(parse("4-6,2"), Ok(vec![4, 5, 6, 2]));
        for text in ["", "a", "1,", "3-1", "1,1", "0-8192", "-1"] {
            assert_eq!(parse(text), Err(EXPECTED), "{text:?}");
        }
        let one = Some(CoreList::from(0));
        assert!(matches!(CorePair::choose(one.as_ref()), Err(Failure::Usage(_))));
    }

    #[test]
    fn a_core_outside_the_mask_is_named_with_those_inside() {
        let host = Host { allowed: vec![0, 1, 2], ..Host::default() };
        let message = check_allowed(&[1, 7], &host).unwrap_err().to_string();
        assert_eq!(message, "this process is not allowed to run on core 7, only on 0-2");
    }

    /// Two hardware threads will do where there is nothing else.
    #[test]
    fn the_server_gets_the_best_core_and_the_client_the_next() {
        let of = |allowed: &[usize], smt_siblings| {
            CorePair::automatic(&Host {
                allowed: allowed.into(),
                isolated: Vec::new(),
                smt_siblings,
            })
        };
        assert_eq!(of(&[0, 1], Vec::new()).unwrap(), CorePair { client: 0, server: 1 });
        let threads = of(&[2, 3], vec![vec![2, 3]]).unwrap();
        assert_ne!(threads.client, threads.server);
        assert!(matches!(of(&[5], Vec::new()), Err(Failure::Measurement(_))));
    }
}
