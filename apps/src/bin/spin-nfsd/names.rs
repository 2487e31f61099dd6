//! Addresses of clients that exports list by DNS name or netgroup.
//!
//! Lookups may take long, so they run on threads of their own, a bounded number, and their answers are waited for up to a
//! bound; a late one counts in the next round. Each answer counts for a while after its name could be looked up last. The
//! answer that a name does not exist counts at once. A name without an answer has no access, and the log says so. Netgroups
//! are those of getent(1): their hosts are looked up by name, each for itself, so that no DNS answer about an address can make
//! its owner a member.

use spinrpc::spawn_helper;
use spinrpc::sync::lock;
use spinrpc::sys::journal::event;
use spinrpc_nfs::server::exports::{Client, NamedHosts};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::net::{IpAddr, ToSocketAddrs};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

pub(crate) const REFRESH: Duration = Duration::from_secs(60);
const ANSWER_TTL: Duration = Duration::from_secs(300);
/// Maximum wait for the answers to all names.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum number of lookups at a time, including those that no caller waits for any more.
const LOOKUPS_MAX: usize = 16;
/// Maximum number of addresses of one name, and of hosts of one netgroup.
const ADDRESSES_MAX: usize = 1024;
const GETENT_SECONDS: &str = "8";
const GETENT_ABSENT: i32 = 2;
const NETGROUP_BYTES_MAX: u64 = 64 << 10;

/// Result of a lookup; empty if the name does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Addresses(BTreeSet<IpAddr>),
    Hosts(BTreeSet<String>),
}

type Answer = Result<Found, String>;
type Lookup = fn(&Client) -> Answer;
pub(crate) type Answers = BTreeMap<String, Answer>;

/// Looks up clients that are names. Blocks for [`PATIENCE`] at most, and as long for a round that has begun before.
pub(crate) fn ask(names: Vec<Client>) -> Answers {
    // A name that is being looked up for another round would have no answer here.
    static ROUND: Mutex<()> = Mutex::new(());
    let _alone = lock(&ROUND);
    ask_all(names, answer, PATIENCE)
}

pub(crate) fn is_name(client: &Client) -> bool {
    matches!(client, Client::Name(_) | Client::Netgroup(_))
}

#[derive(Debug, Default)]
pub(crate) struct Names {
    known: BTreeMap<String, Known>,
}

#[derive(Debug)]
struct Known {
    found: Found,
    until: Instant,
    failed: Option<String>,
}

impl Found {
    fn is_empty(&self) -> bool {
        match self {
            Self::Addresses(all) => all.is_empty(),
            Self::Hosts(all) => all.is_empty(),
        }
    }
}

impl Default for Found {
    fn default() -> Self {
        Self::Addresses(BTreeSet::new())
    }
}

impl Names {
    pub(crate) fn take(&mut self, answers: Answers, now: Instant) -> bool {
        let mut has_changed = self.known.keys().any(|name| !answers.contains_key(name));
        self.known.retain(|name, _| answers.contains_key(name));
        for (name, answer) in answers {
            let before = self.known.remove(&name);
            let old = before.as_ref().map(|known| known.found.clone()).unwrap_or_default();
            let known = known(&name, before, answer, now);
            has_changed |= old != known.found && !(old.is_empty() && known.found.is_empty());
            self.known.insert(name, known);
        }
        has_changed
    }

    /// The names among the clients, and the hosts of their netgroups as last known: to be looked up.
    pub(crate) fn wanted(&self, clients: &[Client]) -> Vec<Client> {
        let names = clients.iter().filter(|client| is_name(client));
        names.flat_map(|name| [name.clone()].into_iter().chain(self.members(name))).collect()
    }

    fn members(&self, client: &Client) -> impl Iterator<Item = Client> {
        let hosts = match self.known.get(&client.to_string()) {
            Some(Known { found: Found::Hosts(hosts), .. }) => Some(hosts),
            _ => None,
        };
        hosts.into_iter().flatten().cloned().map(Client::Name)
    }

    pub(crate) fn hosts(&self, clients: &[Client]) -> NamedHosts {
        NamedHosts::new(self.wanted(clients).iter().flat_map(|name| self.addresses(name)))
    }

    fn addresses(&self, client: &Client) -> impl Iterator<Item = IpAddr> {
        let addresses = match self.known.get(&client.to_string()) {
            Some(Known { found: Found::Addresses(addresses), .. }) => Some(addresses),
            _ => None,
        };
        addresses.into_iter().flatten().copied()
    }

    pub(crate) fn failures(&self) -> Vec<String> {
        let failed = |(name, known): (&String, &Known)| {
            let why = known.failed.as_ref()?;
            Some(format!("client {name}: {why}; {}", rights(&known.found)))
        };
        self.known.iter().filter_map(failed).collect()
    }

    pub(crate) fn show(&self, client: &Client) -> String {
        if !is_name(client) {
            return client.to_string();
        }
        let names = self.wanted(std::slice::from_ref(client));
        let all: BTreeSet<IpAddr> = names.iter().flat_map(|name| self.addresses(name)).collect();
        if !all.is_empty() {
            let first: Vec<String> = all.iter().take(4).map(ToString::to_string).collect();
            let more = if all.len() > first.len() { ", ..." } else { "" };
            return format!("{client} ({}{more})", first.join(", "));
        }
        let why = match self.known.get(&client.to_string()) {
            Some(Known { failed: Some(why), .. }) => why,
            Some(_) => "it has no address",
            None => "not looked up",
        };
        format!("{client} (NO ACCESS: {why})")
    }
}

fn rights(found: &Found) -> &'static str {
    if found.is_empty() { "it has no access" } else { "its last answer counts" }
}

fn known(name: &str, before: Option<Known>, answer: Answer, now: Instant) -> Known {
    let why = match answer {
        Ok(found) => {
            let is_news = before.is_none_or(|known| !known.found.is_empty());
            if found.is_empty() && is_news {
                event!(WARN, "client {name}: it has no address; {}", rights(&found));
            }
            return Known { found, until: now + ANSWER_TTL, failed: None };
        }
        Err(why) => why,
    };
    let (found, until, said) = match before {
        Some(known) if now < known.until => (known.found, known.until, known.failed),
        Some(known) => {
            let had_access = !known.found.is_empty();
            (Found::default(), known.until, known.failed.filter(|_| !had_access))
        }
        None => (Found::default(), now, None),
    };
    if said.as_ref() != Some(&why) {
        event!(WARN, "client {name}: {why}; {}", rights(&found));
    }
    Known { found, until, failed: Some(why) }
}

/// Lookups of the process, and a signal for each that ends.
static LOOKUPS: (Mutex<Lookups>, Condvar) = (Mutex::new(Lookups::none()), Condvar::new());

#[derive(Debug)]
struct Lookups {
    threads: usize,
    waiting: Vec<Client>,
    /// Names whose lookup has not ended: none is looked up twice at a time.
    running: BTreeSet<String>,
    arrived: Vec<(String, Answer)>,
}

impl Lookups {
    const fn none() -> Self {
        Self { threads: 0, waiting: Vec::new(), running: BTreeSet::new(), arrived: Vec::new() }
    }

    fn add(&mut self, name: Client, lookup: Lookup) {
        self.waiting.push(name);
        if self.threads < LOOKUPS_MAX && spawn_helper("names", move || look_up(lookup)).is_ok() {
            self.threads += 1;
        }
    }
}

fn look_up(lookup: Lookup) {
    let (lookups, changed) = &LOOKUPS;
    let mut all = lock(lookups);
    while let Some(client) = all.waiting.pop() {
        let name = client.to_string();
        if !all.running.insert(name.clone()) {
            continue;
        }
        drop(all);
        let answer = lookup(&client);
        all = lock(lookups);
        all.running.remove(&name);
        all.arrived.push((name, answer));
        changed.notify_all();
    }
    all.threads -= 1;
}

fn ask_all(names: Vec<Client>, lookup: Lookup, at_most: Duration) -> Answers {
    let (end, (lookups, changed)) = (Instant::now() + at_most, &LOOKUPS);
    let (mut asked, mut answers, mut new) = (BTreeSet::new(), Answers::new(), names);
    let mut all = lock(lookups);
    // Those that came after their round count if there are none in this one.
    let mut late: Answers = all.arrived.drain(..).collect();
    loop {
        let names = new.drain(..).filter(|name| asked.insert(name.to_string()));
        names.for_each(|name| all.add(name, lookup));
        for (name, answer) in all.arrived.drain(..).filter(|(name, _)| asked.contains(name)) {
            if let Ok(Found::Hosts(hosts)) = &answer {
                new.extend(hosts.iter().cloned().map(Client::Name));
            }
            answers.insert(name, answer);
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || new.is_empty() && answers.len() == asked.len() {
            break;
        }
        if new.is_empty() {
            all = changed.wait_timeout(all, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
    // Threads that are late take no further names.
    all.waiting.clear();
    for name in asked {
        let none = || Err(format!("no answer within {} s", at_most.as_secs()));
        let answer = answers.remove(&name).or_else(|| late.remove(&name)).unwrap_or_else(none);
        answers.insert(name, answer);
    }
    answers
}

fn answer(client: &Client) -> Answer {
    match client {
        Client::Name(name) => addresses(name),
        Client::Netgroup(name) => netgroup(name),
        _ => Err("not a name".to_owned()),
    }
}

fn addresses(name: &str) -> Answer {
    let found = match (name, 0).to_socket_addrs() {
        Ok(found) => found,
        Err(error) if is_absent(&error.to_string()) => return Ok(Found::default()),
        Err(error) => return Err(format!("its name: {error}")),
    };
    let all = found.map(|address| address.ip().to_canonical()).take(ADDRESSES_MAX).collect();
    Ok(Found::Addresses(all))
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

fn netgroup(name: &str) -> Answer {
    match output(&mut limited(GETENT_SECONDS, &["getent", "netgroup", name]))? {
        (status, text) if status.success() => members(&text).map(Found::Hosts),
        (status, _) if status.code() == Some(GETENT_ABSENT) => Ok(Found::Hosts(BTreeSet::new())),
        // timeout(1) kills itself, too, or tells the signal by its exit status.
        (status, _) if status.signal() == Some(9) || status.code() == Some(128 + 9) => {
            Err(format!("getent: no answer in {GETENT_SECONDS} s"))
        }
        (status, _) => Err(format!("getent: {status}")),
    }
}

fn limited(seconds: &str, words: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", seconds]).args(words);
    command.stdin(Stdio::null()).stderr(Stdio::null()).stdout(Stdio::piped());
    command
}

/// Status and output of a program, which gets a closed pipe beyond [`NETGROUP_BYTES_MAX`].
fn output(command: &mut Command) -> Result<(ExitStatus, String), String> {
    let failed = |error: io::Error| format!("getent: {error}");
    let mut child = command.spawn().map_err(failed)?;
    let mut text = String::new();
    let out = child.stdout.take();
    let read = out.map(|out| out.take(NETGROUP_BYTES_MAX + 1).read_to_string(&mut text));
    let status = child.wait().map_err(failed)?;
    read.transpose().map_err(failed)?;
    match text.len() as u64 > NETGROUP_BYTES_MAX {
        true => Err(format!("longer than {NETGROUP_BYTES_MAX} bytes")),
        false => Ok((status, text)),
    }
}

/// Hosts in the output of getent: `NAME  (HOST,USER,DOMAIN) ...`. `-` matches none. An empty host would be everyone, which is
/// what `client=any` is for.
fn members(text: &str) -> Result<BTreeSet<String>, String> {
    let triples = text.split('(').skip(1).filter_map(|rest| rest.split_once(')'));
    let hosts = triples.map(|(triple, _)| triple.split(',').next().unwrap_or_default().trim());
    let all: BTreeSet<String> =
        hosts.filter(|host| *host != "-").map(str::to_owned).take(ADDRESSES_MAX + 1).collect();
    if all.contains("") {
        return Err("it contains every host; use client=any if that is meant".to_owned());
    }
    if all.len() > ADDRESSES_MAX {
        return Err(format!("more than {ADDRESSES_MAX} hosts"));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(text: &str) -> Client {
        text.parse().unwrap()
    }

    fn answers(all: &[(&str, Result<&str, &str>)]) -> Answers {
        let answer = |answer: &Result<&str, &str>| match answer {
            Ok("") => Ok(Found::default()),
            Ok(address) => Ok(Found::Addresses(BTreeSet::from([address.parse().unwrap()]))),
            Err(why) => Err((*why).to_owned()),
        };
        all.iter().map(|(name, it)| ((*name).to_owned(), answer(it))).collect()
    }

    #[test]
    fn a_failed_lookup_gives_no_access_once_the_last_answer_is_old() {
        let (mut names, now, clients) = (Names::default(), Instant::now(), [client("a")]);
        let is_there = |names: &Names| names.hosts(&clients) != NamedHosts::default();
        assert!(!names.take(answers(&[("a", Err("down"))]), now));
        assert!(!is_there(&names));
        assert_eq!(names.show(&clients[0]), "a (NO ACCESS: down)");
        assert!(names.take(answers(&[("a", Ok("192.0.2.7"))]), now));
        assert_eq!(names.show(&clients[0]), "a (192.0.2.7)");
        let nearly = now + ANSWER_TTL - Duration::from_nanos(1);
        assert!(!names.take(answers(&[("a", Err("down"))]), nearly));
        assert!(is_there(&names));
        assert!(names.take(answers(&[("a", Err("down"))]), now + ANSWER_TTL));
        assert!(!is_there(&names));
        // What no export lists any more is forgotten.
        assert!(names.take(answers(&[("a", Ok("192.0.2.7"))]), now));
        assert!(names.take(BTreeMap::new(), now));
        assert!(names.known.is_empty());
    }

    #[test]
    fn an_export_gets_the_addresses_of_its_own_names_only() {
        let (mut names, now) = (Names::default(), Instant::now());
        let mut all =
            answers(&[("a", Ok("192.0.2.7")), ("h", Ok("192.0.2.8")), ("i", Err("down"))]);
        let hosts = ["h", "i"].map(str::to_owned);
        all.insert("@g".to_owned(), Ok(Found::Hosts(BTreeSet::from(hosts))));
        names.take(all, now);
        let of = |text: &str| names.hosts(&[client(text)]);
        assert_eq!(of("a"), NamedHosts::new(["192.0.2.7".parse().unwrap()]));
        assert_eq!(of("@g"), NamedHosts::new(["192.0.2.8".parse().unwrap()]));
        for other in ["g", "any", "192.0.2.7"] {
            assert_eq!(of(other), NamedHosts::default(), "{other}");
        }
    }

    fn found() -> Answer {
        Ok(Found::Addresses(BTreeSet::from(["192.0.2.7".parse().unwrap()])))
    }

    /// A host that is never found keeps neither its netgroup nor others from being found.
    #[test]
    fn names_are_looked_up_at_a_time_and_a_late_one_is_said() {
        static NEVER: Mutex<usize> = Mutex::new(0);
        let lookup: Lookup = |client| match client {
            Client::Name(name) if name == "never" => {
                *lock(&NEVER) += 1;
                loop {
                    std::thread::park();
                }
            }
            Client::Netgroup(_) => {
                Ok(Found::Hosts(["h", "never", "a"].map(str::to_owned).into_iter().collect()))
            }
            _ => found(),
        };
        for _ in 0..2 {
            let names = ["a", "b", "@c"].map(client).to_vec();
            // Longer than a pause of a thread that answers.
            let all = ask_all(names, lookup, Duration::from_secs(5));
            assert_eq!(all.len(), 5);
            assert_eq!(all["never"], Err("no answer within 5 s".to_owned()));
            assert!(["a", "b", "@c", "h"].iter().all(|name| all[*name].is_ok()), "{all:?}");
            assert_eq!(*lock(&NEVER), 1, "one lookup of a name at a time");
        }
    }

    #[test]
    fn a_host_of_a_netgroup_that_fails_for_a_moment_keeps_its_access() {
        let (mut names, now, clients) = (Names::default(), Instant::now(), [client("@g")]);
        let round = |host| {
            let mut all = answers(&[("h", host)]);
            all.insert("@g".to_owned(), Ok(Found::Hosts(BTreeSet::from(["h".to_owned()]))));
            all
        };
        assert!(names.take(round(Ok("192.0.2.7")), now));
        assert_eq!(names.wanted(&clients), [client("@g"), client("h")]);
        assert!(!names.take(round(Err("down")), now));
        assert_eq!(names.show(&clients[0]), "@g (192.0.2.7)");
        assert_eq!(names.failures(), ["client h: down; its last answer counts"]);
        // The netgroup cannot be looked up: its last hosts count.
        assert!(!names.take(answers(&[("@g", Err("down")), ("h", Ok("192.0.2.7"))]), now));
        assert_eq!(names.show(&clients[0]), "@g (192.0.2.7)");
    }

    #[test]
    fn a_name_that_does_not_exist_any_more_loses_its_access_at_once() {
        let (mut names, now, clients) = (Names::default(), Instant::now(), [client("a")]);
        assert!(names.take(answers(&[("a", Ok("192.0.2.7"))]), now));
        assert!(names.take(answers(&[("a", Ok(""))]), now));
        assert_eq!(names.hosts(&clients), NamedHosts::default());
        assert_eq!(names.show(&clients[0]), "a (NO ACCESS: it has no address)");
        assert!(names.failures().is_empty());
        assert!(is_absent("failed to lookup address information: Name or service not known"));
        assert!(!is_absent(
            "failed to lookup address information: Temporary failure in name resolution"
        ));
    }

    #[test]
    fn a_program_that_does_not_end_is_killed() {
        let (status, text) = output(&mut limited("0.01", &["sleep", "600"])).unwrap();
        assert!(!status.success() && text.is_empty(), "{status}");
    }

    #[test]
    fn names_of_this_host_are_found_and_others_are_not() {
        let Ok(Found::Addresses(local)) = answer(&client("localhost")) else {
            panic!("localhost has no address")
        };
        assert!(local.iter().all(IpAddr::is_loopback) && !local.is_empty(), "{local:?}");
        let absent = answer(&client("no-such-host.invalid"));
        assert!(absent.is_err() || absent == Ok(Found::default()), "{absent:?}");
        assert_eq!(answer(&client("@no-such-netgroup")), Ok(Found::Hosts(BTreeSet::new())));
    }

    #[test]
    fn hosts_of_a_netgroup_are_those_of_its_triples() {
        let text = "trusted               (a.example,-,) (b, ,dom) (-,alice,)\n";
        let all = members(text).unwrap();
        assert_eq!(all.into_iter().collect::<Vec<_>>(), ["a.example", "b"]);
        assert!(members("g ( ,alice,)").unwrap_err().contains("client=any"));
        assert!(members("g").unwrap().is_empty());
        let many: String = (0..=ADDRESSES_MAX).map(|number| format!("(h{number},,)")).collect();
        assert!(members(&many).unwrap_err().contains("more than"));
    }
}
