use super::size;
use crate::doctor::{CheckInput, Finding, Verdict};
use crate::rdma::Memlock;
use spinrpc::config::{Config, Driver, Want};

/// Connection memory has no file system of its own: the host and the control group limit it.
pub(super) fn room(input: &CheckInput<'_>) -> Finding {
    let memory = &input.facts.memory;
    let group = &input.facts.cgroup;
    let available = known!(memory.available_bytes, "how much memory it has");
    let used = group.memory_bytes.unwrap_or_default();
    let group_room = group.memory_max.as_ref().map(|limit| limit.bytes.saturating_sub(used));
    let room = group_room.map_or(available, |room| room.min(available));
    let finding =
        judge_room(input.config(), room).seen("/proc/meminfo MemAvailable", size(available));
    match &group.memory_max {
        Some(limit) => {
            let value = format!("{}, of which {} are used", size(limit.bytes), size(used));
            finding.seen(&limit.file, value)
        }
        None => finding,
    }
}

fn judge_room(config: &Config, room: u64) -> Finding {
    let start = (config.arena_bytes() * config.cores()) as u64;
    let connection = connection_bytes(config);
    if start + connection > room {
        let says = format!(
            "cores need {} and a connection up to {}, but only {} are available",
            size(start),
            size(connection),
            size(room)
        );
        let remedy = "Reduce mem.arena_mib and mem.conn_arena_mib (profile dev-vm is small), or give \
                      the process more memory";
        return Finding::fail(says).remedy(remedy);
    }
    let connections = (room - start) / connection.max(1);
    let most = (config.conns_max() * config.cores()) as u64;
    let says = format!(
        "{} for cores, and room for {} connections of {} at most",
        size(start),
        connections.min(most),
        size(connection)
    );
    Finding::ok(says)
}

/// Upper bound for one connection on this side.
fn connection_bytes(config: &Config) -> u64 {
    match config.driver() {
        Driver::Shm => config.conn_arena_bytes() as u64 + Memlock::message_bytes(config),
        Driver::Iwarp => Memlock::message_bytes(config),
        Driver::Verbs => Memlock::connection_bytes(config) - config.arena_bytes() as u64,
    }
}

pub(super) fn lock(input: &CheckInput<'_>) -> Finding {
    let process = &input.facts.process;
    let limit = known!(process.memlock, "how much memory may be locked");
    let config = input.config();
    let (needed, what) = match config.driver() {
        Driver::Verbs => (Memlock::connection_bytes(config), "each connection registers up to"),
        Driver::Shm | Driver::Iwarp => {
            ((config.arena_bytes() * config.cores()) as u64, "cores lock")
        }
    };
    if config.driver() != Driver::Verbs && config.lock() == Want::Off {
        return Finding::ok("no memory is locked (mem.lock)");
    }
    // Programs that use verbs raise their soft limit to the hard limit.
    let bytes = if config.driver() == Driver::Verbs { limit.hard } else { limit.soft };
    let seen = bytes.map_or_else(|| "unlimited".to_owned(), size);
    if process.may_lock_all || bytes.is_none_or(|bytes| needed <= bytes) {
        let seen = if process.may_lock_all { "CAP_IPC_LOCK".to_owned() } else { seen };
        return Finding::ok(format!("{what} {}, which is allowed", size(needed)))
            .seen(LIMITS, seen);
    }
    let verdict = match (config.driver(), config.lock()) {
        (Driver::Verbs, _) | (_, Want::Require) => Verdict::Fail,
        (_, Want::Off | Want::Try) => Verdict::Info,
    };
    let says = format!("{what} {}, but only {seen} may be locked", size(needed));
    Finding::new(verdict, says).seen(LIMITS, &seen).remedy(format!(
        "Memory that cannot be locked may be swapped, and devices cannot use it: {}",
        Memlock::REMEDY
    ))
}

pub(super) fn huge_pages(input: &CheckInput<'_>) -> Finding {
    let config = input.config();
    let want = config.raw().mem.hugepages;
    if want == Want::Off {
        return Finding::ok("not used (mem.hugepages)");
    }
    let memory = &input.facts.memory;
    if memory.huge_pages.is_empty() {
        return Finding::unknown("the host does not report its huge pages");
    }
    let pages = (config.arena_bytes() as u64).div_ceil(HUGE_PAGE_BYTES);
    let needs = input.facts.cpus.cores_by_node(config).into_iter().map(|(node, cores)| {
        let pool = memory.pool(node, HUGE_PAGE_BYTES);
        (node, cores * pages, pool.map_or(0, |pool| pool.free), pool)
    });
    let lacking: Vec<_> = needs.filter(|(_, needed, free, _)| free < needed).collect();
    if lacking.is_empty() {
        return Finding::ok("enough are free for the arenas");
    }
    let verdict = match want {
        Want::Require => Verdict::Fail,
        Want::Try | Want::Off => input.interference(),
    };
    let lacks = lacking.iter().map(|(node, needed, free, _)| {
        format!("{free} of {needed} pages of 2 MiB are free on node {node}")
    });
    let says = format!("arenas use small pages: {}", lacks.collect::<Vec<_>>().join(", "));
    let finding = Finding::new(verdict, says).remedy("Reserve them soon after boot");
    let pools =
        lacking.iter().filter_map(|(_, needed, free, pool)| Some((needed - free, (*pool)?)));
    pools.fold(finding, |finding, (more, pool)| {
        let (file, total) = (pool.file(), pool.total.saturating_add(more));
        let seen = format!("{}, of which {} are free", pool.total, pool.free);
        finding.seen(&file, seen).command(format!("echo {total} > {file}"))
    })
}

/// Page size that the engine requests.
const HUGE_PAGE_BYTES: u64 = 2 << 20;
const LIMITS: &str = "/proc/self/limits Max locked memory";
