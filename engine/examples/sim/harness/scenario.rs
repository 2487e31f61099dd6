//! Scenario of a seed: nodes, their configurations, their actions, and faults.

use super::fleet::Fleet;
use super::groups;
use super::wide::Wide;
use spinrpc::Config;
use spinrpc::config::{
    BulkView, ConfigError, ConfigRole, CoreList, Host, OnPanic, Protection, RawConfig, Want,
};
use spinrpc::fabric::sim::{Device, EarlyCompletion, Network, Rng};
use spinrpc::mem::BulkClass;
use spinrpc::{Reconnect, Resend};
use spinrpc_proto::dialect::Profile;
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct Scenario {
    pub(crate) network: Network,
    /// Profile that all nodes follow; `None` if they differ.
    pub(crate) profile: Option<Profile>,
    pub(crate) servers: Vec<Node>,
    pub(crate) clients: Vec<Node>,
    pub(crate) links: Vec<LinkPlan>,
    pub(crate) hostile_clients: usize,
    pub(crate) hostile_servers: usize,
    /// Calls in reverse that every node takes, and makes, on a connection; 0: none.
    pub(crate) reverse_calls: usize,
    pub(crate) faults: Vec<(u64, Fault)>,
    pub(crate) fleet: Fleet,
    /// Decides what hostile peers do beyond the rest.
    pub(crate) wild: Option<u64>,
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) config: Config,
    /// As a server it keeps its replies.
    pub(crate) keeps_replies: bool,
    /// Addresses at which it listens as a server.
    pub(crate) addresses: usize,
    pub(crate) device: DevicePlan,
}

/// Properties of the device that differ from the configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DevicePlan {
    small_arena: bool,
    keys_max: usize,
    send_queue_depth: u16,
    reads_max: u16,
    remote_invalidate: bool,
    revoke_ns: u64,
    early: Option<EarlyCompletion>,
    cold_per_mille: u64,
}

/// A client, and what it is used for.
#[derive(Clone, Debug)]
pub(crate) struct LinkPlan {
    pub(crate) node: usize,
    pub(crate) core: usize,
    pub(crate) target: Target,
    /// At a time, and addresses of its server that it knows.
    pub(crate) connections: usize,
    pub(crate) addresses: usize,
    pub(crate) calls: usize,
    pub(crate) burst: u64,
    pub(crate) think_ns: (u64, u64),
    /// Clients made after the first has lost its connection for good.
    pub(crate) reconnects: usize,
    /// Some if the client reconnects by itself.
    pub(crate) comeback: Option<Reconnect>,
    /// The server may be too small for what the client offers: ERR_CHUNK is right, then.
    pub(crate) is_cramped: bool,
    pub(crate) mix: Mix,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Server(usize),
    Hostile(usize),
}

/// Mix of calls; parts of a thousand.
#[derive(Clone, Debug)]
pub(crate) struct Mix {
    pub(crate) bulk: u64,
    pub(crate) item_bytes_max: u64,
    pub(crate) deferred: u64,
    pub(crate) deferred_ns_max: u64,
    pub(crate) failed: u64,
    /// With a deadline that may well pass.
    pub(crate) hurried: u64,
    pub(crate) hurry_ns_max: u64,
    pub(crate) cancelled: u64,
    /// With less room for the reply than it needs.
    pub(crate) cramped: u64,
    /// Sent again after a lost connection, in one way or the other.
    pub(crate) resent: u64,
    /// With no room at all for it, where the reply may be left to be fetched.
    pub(crate) fetched: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// The peer of a connection dies; the number picks which.
    Kill(u64),
    /// A client gives its connection up for another one.
    Leave(u64),
    /// A core is not scheduled for so long.
    Stall(u64, u64),
    /// An application closes a connection.
    Close(u64),
    /// A server shuts down gracefully for so long, and is away for so long; then comes the next one.
    Restart { which: u64, grace_ns: u64, away_ns: u64 },
    /// From now on no connection can be made to an address of a server, or some can.
    Reach { which: u64, is_reachable: bool },
}

impl Scenario {
    /// # Errors
    /// A configuration that the engine does not take: a mistake of this file.
    pub(crate) fn of(seed: u64) -> Result<Self, ConfigError> {
        let mut rng = Rng::new(seed);
        let network = network(&mut rng);
        let is_calm = rng.chance(300);
        let rules = Rules::draw(&mut rng);
        let profile = rng.chance(900).then_some(rules.profile);
        let nodes = |rng: &mut Rng| -> Result<Vec<Node>, ConfigError> {
            (0..rng.within((1, 2))).map(|_| Node::draw(rng, &rules, profile.is_some())).collect()
        };
        let (mut servers, mut clients) = (nodes(&mut rng)?, nodes(&mut rng)?);
        let hostile = |rng: &mut Rng| if is_calm { 0 } else { rng.pick(&[0, 0, 1, 2]) };
        let (hostile_clients, hostile_servers) = (hostile(&mut rng), hostile(&mut rng));
        let targets: Vec<Target> = (0..servers.len())
            .chain(0..servers.len())
            .map(Target::Server)
            .chain((0..hostile_servers).map(Target::Hostile))
            .collect();
        let links = rng.within((1, 4));
        let mut links: Vec<LinkPlan> =
            (0..links).map(|_| LinkPlan::draw(&mut rng, &clients, &servers, &targets)).collect();
        if profile.is_none() {
            links.iter_mut().for_each(|link| link.is_cramped = true);
        }
        slow_keys(seed, servers.iter_mut().chain(&mut clients));
        early_completions(seed, servers.iter_mut().chain(&mut clients));
        cold_connections(seed, servers.iter_mut().chain(&mut clients));
        // Ends that go by different rules do not agree on which way a message goes.
        let reverse_calls = profile.map_or(0, |_| reverse_calls(seed));
        for node in servers.iter_mut().chain(&mut clients) {
            node.take_reverse_calls(reverse_calls)?;
        }
        let fleet = Fleet::of(seed, &mut servers, &mut clients)?;
        let outages = groups::form(seed, is_calm, (&mut servers, &mut clients), &mut links)?;
        let has_comeback = links.iter().any(|link| link.comeback.is_some());
        let mut faults = if is_calm { Vec::new() } else { faults(&mut rng, has_comeback) };
        let wide = Wide::of(seed, is_calm, &mut servers, &mut clients)?;
        faults.extend(wide.faults.into_iter().chain(outages));
        Ok(Self {
            network,
            profile,
            servers,
            clients,
            links,
            hostile_clients,
            hostile_servers,
            reverse_calls,
            faults,
            fleet,
            wild: wide.wild,
        })
    }
}

fn network(rng: &mut Rng) -> Network {
    let slowest = rng.pick(&[0, 500, 2_000, 20_000, 200_000]);
    Network {
        seed: rng.any(),
        poll_ns: rng.pick(&[20, 100, 1000]),
        delay_ns: (slowest / rng.pick(&[1, 4, 100]), slowest),
        page_ns: rng.pick(&[0, 100, 1000]),
        completion_ns: (0, rng.pick(&[0, 0, 300, 5_000, 50_000])),
        rnr_timeout_ns: rng.pick(&[10_000, 1_000_000]),
        close_loses: rng.chance(500),
        connect_fails: rng.pick(&[0, 0, 100]),
        observe: true,
    }
}

fn faults(rng: &mut Rng, has_comeback: bool) -> Vec<(u64, Fault)> {
    let count = if has_comeback { rng.pick(&[2, 6, 20]) } else { rng.pick(&[0, 0, 1, 2, 4]) };
    let end_ns = rng.pick(&[50_000, 1_000_000]);
    let draw = |_| {
        let which = rng.any();
        let fault = match rng.below(8) {
            0..=2 => Fault::Kill(which),
            3 => Fault::Close(which),
            4 => Fault::Leave(which),
            _ => Fault::Stall(which, rng.below(end_ns)),
        };
        (rng.below(end_ns), fault)
    };
    (0..count).map(draw).collect()
}

/// The document whose rules apply, and the options in use.
struct Rules {
    profile: Profile,
    align_bytes: u64,
    threshold_bytes: u64,
    ccp: &'static [ConfigRole],
}

impl Rules {
    fn draw(rng: &mut Rng) -> Self {
        use ConfigRole::{Ask, Both, Off, Serve};
        let (today, before) = (Profile::Rfc8166, Profile::Rfc5666);
        Self {
            profile: rng.pick(&[today, today, before, before, Profile::Draft03, Profile::Draft00]),
            align_bytes: rng.pick(&[0, 512, 512, 1024, 2048]),
            threshold_bytes: rng.pick(&[512, 512, 1000]),
            ccp: rng.pick(&[&[Off][..], &[Both], &[Off, Ask, Serve, Both]]),
        }
    }

    /// Applies the rules to a node; a node that does not conform has different ones.
    fn apply(&self, raw: &mut RawConfig, rng: &mut Rng, conforms: bool) {
        let own = Self::draw(rng);
        let rules = if conforms { self } else { &own };
        raw.rpc.protocol = rules.profile;
        // Padding may differ even so: then data are found where they are, and copied.
        let padding = if rng.chance(800) { rules } else { &own };
        let inline = raw.rpc.inline_send_bytes.min(raw.rpc.inline_recv_bytes);
        raw.rpc.msgp_align_bytes = padding.align_bytes.min(inline / 2);
        raw.fixed.msgp_threshold_bytes = padding.threshold_bytes;
        raw.rpc.ccp = rng.pick(self.ccp);
        raw.rpc.ccp_auth = Some(rng.pick(&[Protection::Sys, Protection::Sys, Protection::None]));
        raw.rpc.max_rdma_reads = rng.pick(&[16, 16, 3, 1, 0]);
    }
}

/// One seed in five has calls in both directions (RFC 8167): none of those that once failed.
fn reverse_calls(seed: u64) -> usize {
    match seed % 5 {
        1 => Rng::new(seed ^ 0x7265_7665).pick(&[1, 2, 4, 8]),
        _ => 0,
    }
}

impl Node {
    fn take_reverse_calls(&mut self, calls: usize) -> Result<(), ConfigError> {
        if calls > 0 {
            let mut raw = self.config.raw().clone();
            raw.rpc.reverse_calls = calls as u64;
            self.config = raw.validate_for(&host())?;
        }
        Ok(())
    }

    fn draw(rng: &mut Rng, rules: &Rules, conforms: bool) -> Result<Self, ConfigError> {
        let config = config(rng, rules, conforms)?;
        let keeps_replies = config.reply_cache_mib() > 0;
        Ok(Self { config, keeps_replies, addresses: 1, device: DevicePlan::draw(rng) })
    }

    /// It may offer more than this server takes, or has memory for.
    fn outgrows(&self, server: &Self) -> bool {
        let (ours, theirs) = (self.config.peer_limits(), server.config.peer_limits());
        let fits = ours.read_chunks_max <= theirs.read_chunks_max
            && ours.segments_max <= theirs.segments_max
            && ours.payload_bytes_max <= theirs.payload_bytes_max;
        !fits || server.config.arena_bytes() < 4 << 20
    }
}

fn config(rng: &mut Rng, rules: &Rules, conforms: bool) -> Result<Config, ConfigError> {
    let mut raw = RawConfig::default();
    // A handler's failed assertion fails the run.
    raw.rpc.on_panic = OnPanic::End;
    raw.cores.list = CoreList::Cpus((0..rng.pick(&[1, 1, 2])).collect());
    raw.poll.budget = rng.pick(&[1, 2, 8, 32]);
    raw.mem.arena_mib = rng.pick(&[1, 4]);
    raw.mem.hugepages = Want::Off;
    raw.mem.lock = Want::Off;
    raw.fixed.is_near_cpu = false;
    raw.mem.conn_arena_mib = 1;
    raw.mem.bulk = rng.pick(&[BulkView::Lent, BulkView::Copy]);
    raw.limits.conns = 16;
    raw.rpc.reply_cache_mib = rng.pick(&[0, 1, 1, 1]);
    // As often as when there were further keys: the seeds that once failed still mean what they meant.
    for _ in 0..2 {
        rng.any();
    }
    raw.fixed.exports = rng.pick(&[1, 4, 64]);
    // Longer than a conforming client needs: one that has waited for memory may then stop for a
    // while, and looks at the clock at heartbeats only.
    raw.fixed.done_timeout_ms = rng.pick(&[40, 60]);
    raw.fixed.memory_wait_ms = 10;
    // Bodies under RPCSEC_GSS are left to threads then, and finished in another turn.
    raw.fixed.gss_at_once_bytes = 1024;
    raw.rpc.credits = rng.pick(&[1, 2, 3, 4, 8, 16]);
    raw.rpc.inline_send_bytes = rng.pick(&[1024, 2048, 4096, 8192]);
    raw.rpc.inline_recv_bytes = rng.pick(&[1024, 2048, 4096, 8192]);
    raw.rpc.max_read_bytes = rng.pick(&[4096, 16 << 10, 64 << 10]);
    raw.rpc.max_write_bytes = rng.pick(&[4096, 16 << 10, 64 << 10]);
    raw.fixed.max_chunks = rng.pick(&[5, 8]);
    raw.rpc.max_segments = rng.pick(&[8, 16, 288]);
    let longest = raw.rpc.max_read_bytes.max(raw.rpc.max_write_bytes) + (64 << 10);
    // Besides whole segments, a list has one that is not for each of its items, and for a long message.
    let needed = longest.div_ceil((raw.rpc.max_segments - 5).min(16));
    raw.rpc.segment_bytes = needed.max(rng.pick(&[4096, 32 << 10, 1 << 20]));
    raw.rpc.timeout_ms = rng.pick(&[2, 20]);
    rules.apply(&mut raw, rng, conforms);
    raw.validate_for(&host())
}

pub(crate) fn host() -> Host {
    Host { allowed: vec![0, 1], ..Host::default() }
}

/// Gives some devices keys that take their time to die. Decided apart from the rest, so that the
/// seeds that once failed still mean what they meant.
fn slow_keys<'a>(seed: u64, nodes: impl Iterator<Item = &'a mut Node>) {
    let mut rng = Rng::new(seed ^ 0x6b65_7973);
    for node in nodes {
        node.device.revoke_ns = rng.pick(&[0, 0, 2_000, 50_000]);
    }
}

/// Gives some devices requests that complete before their memory is read. Decided apart, too.
fn early_completions<'a>(seed: u64, nodes: impl Iterator<Item = &'a mut Node>) {
    let mut rng = Rng::new(seed ^ 0x6561_726c_795f_7773);
    for node in nodes {
        let late_from_bytes = rng.pick(&[64, 512, 4096]);
        let early = EarlyCompletion {
            late_from_bytes,
            signal_every: rng.pick(&[2, 4, 16]),
            signal_from_bytes: late_from_bytes,
        };
        node.device.early = rng.chance(150).then_some(early);
    }
}

/// Gives devices connections whose short messages are not always taken by value. Decided apart, too.
fn cold_connections<'a>(seed: u64, nodes: impl Iterator<Item = &'a mut Node>) {
    let mut rng = Rng::new(seed ^ 0x636f_6c64);
    for node in nodes {
        node.device.cold_per_mille = rng.pick(&[0, 125, 125, 500]);
    }
}

impl DevicePlan {
    fn draw(rng: &mut Rng) -> Self {
        Self {
            small_arena: rng.chance(300),
            keys_max: rng.pick(&[4, 16, 512, 512]),
            send_queue_depth: rng.pick(&[100, u16::MAX]),
            reads_max: rng.pick(&[1, 2, 16]),
            remote_invalidate: rng.chance(700),
            revoke_ns: 0,
            early: None,
            cold_per_mille: 0,
        }
    }

    /// Changes the device that the configuration would have.
    pub(crate) fn apply(self, device: &mut Device) {
        device.keys_max = self.keys_max;
        device.send_queue_depth = device.send_queue_depth.min(self.send_queue_depth);
        device.reads_max = self.reads_max;
        device.remote_invalidate = self.remote_invalidate;
        device.revoke_ns = self.revoke_ns;
        device.early = self.early;
        device.cold_per_mille = self.cold_per_mille;
        if self.small_arena {
            device.arena = vec![
                BulkClass { block_bytes: 4 << 10, count: 4 },
                BulkClass { block_bytes: 32 << 10, count: 4 },
                BulkClass { block_bytes: 136 << 10, count: 2 },
            ];
        }
    }
}

impl LinkPlan {
    /// Calls of a server in reverse over one connection, as long as that is up.
    pub(crate) fn in_reverse(rng: &mut Rng) -> Self {
        let think = rng.pick(&[0, 1_000, 20_000]);
        Self {
            node: 0,
            core: 0,
            is_cramped: true,
            target: Target::Server(0),
            connections: 1,
            addresses: 1,
            calls: rng.within((1, 30)) as usize,
            burst: rng.pick(&[1, 4, 32]),
            think_ns: (0, think),
            reconnects: 0,
            comeback: None,
            mix: Mix::draw(rng),
        }
    }

    fn draw(rng: &mut Rng, clients: &[Node], servers: &[Node], targets: &[Target]) -> Self {
        let node = rng.below(clients.len() as u64) as usize;
        let target = rng.pick(targets);
        let think = rng.pick(&[0, 1_000, 20_000]);
        Self {
            node,
            core: rng.below(clients[node].config.cores() as u64) as usize,
            is_cramped: match target {
                Target::Server(server) => clients[node].outgrows(&servers[server]),
                Target::Hostile(_) => true,
            },
            target,
            connections: 1,
            addresses: 1,
            calls: rng.within((1, 40)) as usize,
            burst: rng.pick(&[1, 4, 32]),
            think_ns: (0, think),
            reconnects: rng.pick(&[0, 1, 3]),
            comeback: rng.chance(400).then(|| comeback(rng)),
            mix: Mix::draw(rng),
        }
    }
}

/// Reconnect policy of a client: at once or after a while, for a short time or a long one.
pub(crate) fn comeback(rng: &mut Rng) -> Reconnect {
    let first_delay = Duration::from_nanos(rng.pick(&[0, 1_000, 50_000, 1_000_000]));
    Reconnect::default()
        .first_delay(first_delay)
        .max_delay(first_delay * rng.pick(&[1, 4, 100]))
        .jitter_percent(rng.pick(&[0, 50, 100]))
        .give_up_after(Duration::from_micros(rng.pick(&[100, 5_000, 30_000])))
        .resends_max(rng.pick(&[0, 1, 3, 10]))
}

impl Mix {
    fn draw(rng: &mut Rng) -> Self {
        Self {
            bulk: rng.pick(&[0, 300, 800, 1000]),
            item_bytes_max: rng.pick(&[64, 1500, 8 << 10, 40 << 10]),
            deferred: rng.pick(&[0, 200, 1000]),
            deferred_ns_max: rng.pick(&[1_000, 50_000, 500_000]),
            failed: rng.pick(&[0, 50]),
            hurried: rng.pick(&[0, 0, 200, 700]),
            hurry_ns_max: rng.pick(&[2_000, 30_000, 300_000]),
            cancelled: rng.pick(&[0, 0, 100]),
            cramped: rng.pick(&[0, 0, 50]),
            resent: rng.pick(&[500, 1000]),
            fetched: rng.pick(&[0, 200, 700]),
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct CallPlan {
    pub(crate) arguments: Vec<usize>,
    /// Bytes of the arguments that are never placed.
    pub(crate) argument_tail: usize,
    /// Lengths of the data items of the results ...
    pub(crate) results: Vec<usize>,
    /// ... the room offered for them, if any ...
    pub(crate) offers: Vec<usize>,
    /// ... and bytes that are never placed.
    pub(crate) result_tail: usize,
    /// Room announced for what is not placed.
    pub(crate) reply_bytes_max: usize,
    pub(crate) answer: Answer,
    /// The reply may be left to be fetched.
    pub(crate) is_fetched: bool,
    pub(crate) resend: Resend,
    pub(crate) deadline: Option<Duration>,
    pub(crate) cancel_ns: Option<u64>,
    /// The reply may not fit: ERR_CHUNK is right, then.
    pub(crate) is_cramped: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Answer {
    #[default]
    Now,
    /// Defers it, for so many nanoseconds.
    Later(u32),
    Drop,
    /// Defers it, and drops it then.
    DropLater(u32),
    Fail,
}

impl CallPlan {
    pub(crate) fn draw(rng: &mut Rng, link: &LinkPlan) -> Self {
        let mix = &link.mix;
        let has_bulk = rng.chance(mix.bulk);
        let items = |rng: &mut Rng| -> Vec<usize> {
            let count = if has_bulk { rng.pick(&[0, 1, 1, 2, 4]) } else { 0 };
            (0..count).map(|_| length(rng, mix.item_bytes_max)).collect()
        };
        let (arguments, results) = (items(rng), items(rng));
        let is_cramped = rng.chance(mix.cramped);
        let offer = |room: usize| if is_cramped { room / 2 } else { room }.max(1);
        let is_fetched = rng.chance(mix.fetched);
        let is_placed = rng.chance(if is_fetched { 300 } else { 700 });
        // An item without bytes leaves its room to the next one.
        let shifts = results.contains(&0);
        let longest = |rest: &[usize]| rest.iter().take(if shifts { 4 } else { 1 }).max().copied();
        let rooms = (0..results.len()).filter_map(|index| longest(&results[index..]));
        let offers: Vec<usize> = rooms.filter(|_| is_placed).map(offer).collect();
        let inline: usize = if offers.is_empty() { results.iter().sum() } else { 0 };
        let tail_max = rng.pick(&[16, 200, 1200, 6000]);
        let (argument_tail, result_tail) =
            (rng.below(tail_max) as usize, rng.below(tail_max) as usize);
        let needed = result_tail + inline + 64;
        let reply_bytes_max = match (is_fetched, is_cramped) {
            (true, _) => 0,
            (_, true) => needed / 2,
            _ => needed,
        };
        Self {
            arguments,
            argument_tail,
            results,
            offers,
            result_tail,
            reply_bytes_max,
            answer: Answer::draw(rng, mix),
            is_fetched,
            resend: match link.comeback.is_some() && rng.chance(mix.resent) {
                true => rng.pick(&[Resend::AtMostOnce, Resend::AtLeastOnce]),
                false => Resend::Never,
            },
            deadline: rng
                .chance(mix.hurried)
                .then(|| Duration::from_nanos(rng.below(mix.hurry_ns_max))),
            cancel_ns: rng.chance(mix.cancelled).then(|| rng.below(mix.hurry_ns_max)),
            is_cramped: is_cramped || is_fetched || link.is_cramped,
        }
    }
}

/// Lengths that are likely to matter: none, a byte, not a multiple of four, near the limits.
fn length(rng: &mut Rng, max: u64) -> usize {
    let any = rng.below(max) + 1;
    rng.pick(&[0, 1, 3, 4, 100, 1000, any, any, any, max]).min(max) as usize
}

impl Answer {
    fn draw(rng: &mut Rng, mix: &Mix) -> Self {
        let later = rng.below(mix.deferred_ns_max) as u32;
        match (rng.chance(mix.failed), rng.chance(mix.deferred)) {
            (true, true) => Self::DropLater(later),
            (true, false) => rng.pick(&[Self::Drop, Self::Fail]),
            (false, true) => Self::Later(later),
            (false, false) => Self::Now,
        }
    }

    pub(crate) fn encode(self) -> (u32, u32) {
        match self {
            Self::Now => (0, 0),
            Self::Later(ns) => (1, ns),
            Self::Drop => (2, 0),
            Self::DropLater(ns) => (3, ns),
            Self::Fail => (4, 0),
        }
    }

    pub(crate) fn decode(kind: u32, ns: u32) -> Self {
        match kind {
            0 => Self::Now,
            1 => Self::Later(ns),
            2 => Self::Drop,
            3 => Self::DropLater(ns),
            _ => Self::Fail,
        }
    }
}
