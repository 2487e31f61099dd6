//! Addresses of clients that exports list by DNS name, looked up at the start and at a reload.
//!
//! Lookups may take long, so they run on threads of their own, a bounded number, and their answers are waited for up to a
//! bound. A name whose lookup fails keeps the addresses that it had before: without a reload it would have them, too. The
//! answer that a name does not exist counts.

use spinrpc::spawn_helper;
use spinrpc::sync::lock;
use spinrpc::sys::journal::event;
use spinrpc_nfs::server::exports::{Client, NamedHosts};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Maximum wait for the answers to all names.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum number of lookups at a time.
const LOOKUPS_MAX: usize = 16;
/// Maximum number of addresses of one name.
const ADDRESSES_MAX: usize = 1024;

type Addresses = BTreeSet<IpAddr>;
/// Empty if the name does not exist.
type Answer = Result<Addresses, String>;
type Answers = BTreeMap<String, Answer>;

#[derive(Debug, Default)]
pub(crate) struct Names(BTreeMap<String, Known>);

#[derive(Debug)]
struct Known {
    addresses: Addresses,
    failed: Option<String>,
}

impl Names {
    /// The names among these clients, looked up now. Blocks for [`PATIENCE`] at most.
    pub(crate) fn look_up<'a>(&self, clients: impl Iterator<Item = &'a Client>) -> Self {
        let names = clients.filter_map(name_of).cloned().collect();
        let names = self.renewed(ask(names, addresses, PATIENCE));
        names.failures().iter().for_each(|failure| event!(WARN, "{failure}"));
        names
    }

    fn renewed(&self, answers: Answers) -> Self {
        let known = |(name, answer): (String, Answer)| {
            let known = match answer {
                Ok(addresses) => {
                    let failed = addresses.is_empty().then(|| "it has no address".to_owned());
                    Known { addresses, failed }
                }
                Err(why) => Known { addresses: self.addresses(&name), failed: Some(why) },
            };
            (name, known)
        };
        Self(answers.into_iter().map(known).collect())
    }

    fn addresses(&self, name: &str) -> Addresses {
        self.0.get(name).map(|known| known.addresses.clone()).unwrap_or_default()
    }

    pub(crate) fn hosts(&self, clients: &[Client]) -> NamedHosts {
        let names = clients.iter().filter_map(name_of);
        NamedHosts::new(names.flat_map(|name| self.addresses(name)))
    }

    pub(crate) fn failures(&self) -> Vec<String> {
        let failed = |(name, known): (&String, &Known)| {
            let rights = match known.addresses.is_empty() {
                true => "it has no access",
                false => "its last answer counts",
            };
            Some(format!("client {name}: {}; {rights}", known.failed.as_ref()?))
        };
        self.0.iter().filter_map(failed).collect()
    }

    pub(crate) fn show(&self, client: &Client) -> String {
        let Some(name) = name_of(client) else { return client.to_string() };
        match self.0.get(name) {
            Some(Known { addresses, .. }) if !addresses.is_empty() => {
                let first: Vec<String> = addresses.iter().take(4).map(IpAddr::to_string).collect();
                let more = if addresses.len() > first.len() { ", ..." } else { "" };
                format!("{name} ({}{more})", first.join(", "))
            }
            known => {
                let why = known.and_then(|known| known.failed.as_deref());
                format!("{name} (NO ACCESS: {})", why.unwrap_or("not looked up"))
            }
        }
    }
}

fn name_of(client: &Client) -> Option<&String> {
    match client {
        Client::Name(name) => Some(name),
        _ => None,
    }
}

/// Threads that are late end with the lookup at which they are.
fn ask(names: BTreeSet<String>, lookup: fn(&str) -> Answer, at_most: Duration) -> Answers {
    let end = Instant::now() + at_most;
    let waiting = Arc::new(Mutex::new(names.clone()));
    let (answer, answers) = channel();
    for _ in 0..names.len().min(LOOKUPS_MAX) {
        let (waiting, answer) = (Arc::clone(&waiting), answer.clone());
        let next = move || lock(&waiting).pop_first();
        let look_up = move || {
            while let Some(name) = next() {
                let found = lookup(&name);
                if answer.send((name, found)).is_err() {
                    break;
                }
            }
        };
        // Without a thread, those before take its names; without any, names have no answer.
        let _ = spawn_helper("names", look_up);
    }
    drop(answer);
    let none = || Err(format!("no answer within {} s", at_most.as_secs()));
    let mut all: Answers = names.into_iter().map(|name| (name, none())).collect();
    let left = || end.saturating_duration_since(Instant::now());
    while let Ok((name, answer)) = answers.recv_timeout(left()) {
        all.insert(name, answer);
    }
    all
}

fn addresses(name: &str) -> Answer {
    match (name, 0).to_socket_addrs() {
        Ok(found) => {
            Ok(found.map(|address| address.ip().to_canonical()).take(ADDRESSES_MAX).collect())
        }
        Err(error) if is_absent(&error.to_string()) => Ok(Addresses::new()),
        Err(error) => Err(format!("its name: {error}")),
    }
}

/// The standard library only passes on the text of gai_strerror(3): that of glibc, and of musl.
fn is_absent(error: &str) -> bool {
    [
        "Name or service not known",
        "No address associated with hostname",
        "Name does not resolve",
        "Name has no usable address",
    ]
    .iter()
    .any(|text| error.ends_with(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(text: &str) -> Client {
        text.parse().unwrap()
    }

    fn answers(all: &[(&str, Result<&str, &str>)]) -> Answers {
        let answer = |answer: &Result<&str, &str>| match answer {
            Ok("") => Ok(Addresses::new()),
            Ok(address) => Ok(Addresses::from([address.parse().unwrap()])),
            Err(why) => Err((*why).to_owned()),
        };
        all.iter().map(|(name, it)| ((*name).to_owned(), answer(it))).collect()
    }

    #[test]
    fn a_failed_lookup_gives_no_access_unless_the_name_had_it_before() {
        let (none, clients) = (Names::default(), [client("a")]);
        let down = || answers(&[("a", Err("down"))]);
        let names = none.renewed(down());
        assert_eq!(names.hosts(&clients), NamedHosts::default());
        assert_eq!(names.show(&clients[0]), "a (NO ACCESS: down)");
        assert_eq!(names.failures(), ["client a: down; it has no access"]);
        let names = names.renewed(answers(&[("a", Ok("192.0.2.7"))]));
        assert_eq!(names.show(&clients[0]), "a (192.0.2.7)");
        assert!(names.failures().is_empty());
        let names = names.renewed(down());
        assert_eq!(names.hosts(&clients), NamedHosts::new(["192.0.2.7".parse().unwrap()]));
        assert_eq!(names.failures(), ["client a: down; its last answer counts"]);
        // A name that no export lists any more is forgotten.
        let names = names.renewed(Answers::new()).renewed(down());
        assert_eq!(names.hosts(&clients), NamedHosts::default());
    }

    #[test]
    fn an_export_gets_the_addresses_of_its_own_names_only() {
        let all = [("a", Ok("192.0.2.7")), ("h", Ok("192.0.2.8")), ("i", Err("down"))];
        let names = Names::default().renewed(answers(&all));
        let of = |text: &str| names.hosts(&[client(text)]);
        assert_eq!(of("a"), NamedHosts::new(["192.0.2.7".parse().unwrap()]));
        for other in ["i", "g", "any", "192.0.2.7"] {
            assert_eq!(of(other), NamedHosts::default(), "{other}");
        }
    }

    /// More names than threads, and one that is never found.
    #[test]
    fn names_are_looked_up_at_a_time_and_a_late_one_is_said() {
        let lookup = |name: &str| match name {
            "never" => loop {
                std::thread::park();
            },
            _ => Ok(Addresses::from(["192.0.2.7".parse().unwrap()])),
        };
        let names = (0..40).map(|number| format!("h{number}")).chain(["never".to_owned()]);
        // Longer than a pause of a thread that answers.
        let mut all = ask(names.collect(), lookup, Duration::from_secs(5));
        assert_eq!(all.remove("never"), Some(Err("no answer within 5 s".to_owned())));
        assert!(all.len() == 40 && all.values().all(Result::is_ok), "{all:?}");
    }

    #[test]
    fn a_name_that_does_not_exist_any_more_loses_its_access() {
        let clients = [client("a")];
        let names = Names::default().renewed(answers(&[("a", Ok("192.0.2.7"))]));
        let names = names.renewed(answers(&[("a", Ok(""))]));
        assert_eq!(names.hosts(&clients), NamedHosts::default());
        assert_eq!(names.show(&clients[0]), "a (NO ACCESS: it has no address)");
        assert!(is_absent("failed to lookup address information: Name or service not known"));
        assert!(!is_absent(
            "failed to lookup address information: Temporary failure in name resolution"
        ));
    }

    #[test]
    fn names_of_this_host_are_found_and_others_are_not() {
        let local = addresses("localhost").unwrap();
        assert!(local.iter().all(IpAddr::is_loopback) && !local.is_empty(), "{local:?}");
        let absent = addresses("no-such-host.invalid");
        assert!(absent.is_err() || absent == Ok(Addresses::new()), "{absent:?}");
    }
}
