//! Effects of the keys of CPUs and memory on the host, as the kernel reports them.

use super::common::prelude::*;
use std::fs;
use std::os::unix::fs::FileExt;

fn engine(change: impl FnOnce(&mut RawConfig)) -> Engine {
    Engine::new(valid(small_with(change))).unwrap()
}

/// The value of a field of a file in `/proc` of this thread.
fn proc_field(file: &str, name: &str) -> String {
    let text = fs::read_to_string(file).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_start_matches(':').trim().to_owned()
}

#[test]
fn a_core_runs_on_the_cpu_of_the_list() {
    for cpu in Host::current().allowed {
        let engine = engine(|raw| raw.cores.list = CoreList::Cpus(vec![cpu]));
        let pinned_to = std::thread::spawn(move || {
            let _core = engine.core(0).unwrap();
            proc_field("/proc/thread-self/status", "Cpus_allowed_list")
        });
        assert_eq!(pinned_to.join().unwrap(), cpu.to_string());
    }
}

#[test]
fn with_any_a_core_runs_wherever_its_thread_may() {
    let engine = engine(|raw| raw.cores.list = CoreList::Any);
    let status = || proc_field("/proc/thread-self/status", "Cpus_allowed_list");
    let (before, during) = std::thread::spawn(move || {
        let before = status();
        let _core = engine.core(0).unwrap();
        (before, status())
    })
    .join()
    .unwrap();
    assert_eq!(during, before);
}

#[test]
fn auto_takes_as_many_cores_as_the_most() {
    let host = Host { allowed: (0..8).collect(), ..Host::default() };
    for most in [1, 3, 7] {
        let raw = small_with(|raw| raw.cores.max = most);
        assert_eq!(raw.validate_for(&host).unwrap().cores() as u64, most);
    }
}

/// A core's memory, found by a block of it.
struct Arena {
    block: Bulk,
    core: Core,
    _engine: Engine,
}

impl Arena {
    fn of(change: impl FnOnce(&mut RawConfig)) -> Result<Self, EngineError> {
        let engine = engine(change);
        let core = engine.core(0)?;
        let block = core.bulk(1 << 20).unwrap();
        Ok(Self { block, core, _engine: engine })
    }

    /// The kernel's report on the mapping that the block is in.
    fn smaps(&self) -> String {
        let address = self.block.bytes().as_ptr() as usize;
        let text = fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = text.lines().skip_while(|line| !holds(line, address));
        let first = lines.next().unwrap().to_owned();
        let rest = lines.take_while(|line| range(line).is_none());
        rest.fold(first, |all, line| all + "\n" + line)
    }

    fn kib(&self, field: &str) -> u64 {
        let smaps = self.smaps();
        let line = smaps.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    fn has_flag(&self, flag: &str) -> bool {
        let smaps = self.smaps();
        let flags = smaps.lines().find_map(|line| line.strip_prefix("VmFlags:")).unwrap();
        flags.split_whitespace().any(|one| one == flag)
    }
}

fn range(line: &str) -> Option<std::ops::Range<usize>> {
    let (from, to) = line.split(' ').next()?.split_once('-')?;
    let number = |digits| usize::from_str_radix(digits, 16).ok();
    Some(number(from)?..number(to)?)
}

fn holds(line: &str, address: usize) -> bool {
    range(line).is_some_and(|range| range.contains(&address))
}

#[test]
fn an_arena_holds_as_many_blocks_as_its_size_has_room_for() {
    let blocks = |mib| {
        let arena = Arena::of(|raw| raw.mem.arena_mib = mib).unwrap();
        let rest: Vec<_> = std::iter::from_fn(|| arena.core.bulk(1 << 20)).collect();
        1 + rest.len()
    };
    assert_eq!((blocks(8), blocks(32)), (6, 24));
}

#[test]
fn an_arena_of_huge_pages_is_had_or_refused_by_name() {
    let pages = |name| proc_field("/proc/meminfo", name).parse::<u64>().unwrap();
    // Those that others have mapped and not yet touched are free, too.
    let free = || pages("HugePages_Free").saturating_sub(pages("HugePages_Rsvd"));
    let before = free();
    match Arena::of(|raw| raw.mem.hugepages = Want::Require) {
        Ok(arena) => assert_eq!(arena.kib("KernelPageSize"), 2048),
        Err(error) => {
            let free = before.min(free());
            assert!(free < 8, "{error}, with {free} free");
            let said = error.to_string();
            for part in ["registered memory", "mem.hugepages = require: ", "sysctl vm.nr_hugepages"]
            {
                assert!(said.contains(part), "{said}");
            }
        }
    }
    let tried = Arena::of(|raw| raw.mem.hugepages = Want::Try).unwrap();
    assert!(tried.has_flag("hg") || tried.kib("KernelPageSize") == 2048, "{}", tried.smaps());
    let small = Arena::of(|raw| raw.mem.hugepages = Want::Off).unwrap();
    assert!(!small.has_flag("hg") && small.kib("KernelPageSize") < 2048, "{}", small.smaps());
}

/// Pages of the block that are in memory. The kernel may count neighbours of a mapping with it.
fn present_pages(block: &Bulk) -> usize {
    const ENTRY_BYTES: usize = 8;
    let page_bytes = rustix::param::page_size();
    let first = (block.bytes().as_ptr() as usize).div_ceil(page_bytes);
    let mut entries = vec![0; (block.len() / page_bytes - 1) * ENTRY_BYTES];
    let pagemap = fs::File::open("/proc/self/pagemap").unwrap();
    pagemap.read_exact_at(&mut entries, (first * ENTRY_BYTES) as u64).unwrap();
    entries.chunks(ENTRY_BYTES).filter(|entry| entry[7] & 0x80 != 0).count()
}

/// Locking that the host refuses leaves the pages in memory, too.
#[test]
fn an_arena_to_be_locked_is_in_memory_before_its_first_use() {
    let touched = Arena::of(|raw| raw.mem.lock = Want::Try).unwrap();
    assert!(present_pages(&touched.block) > 200);
    let untouched = Arena::of(|raw| raw.mem.lock = Want::Off).unwrap();
    assert_eq!(present_pages(&untouched.block), 0);
}

/// CAP_IPC_LOCK locks without limit.
fn may_lock(bytes: u64) -> bool {
    const IPC_LOCK: u32 = 14;
    let capabilities = proc_field("/proc/self/status", "CapEff");
    let capable = u64::from_str_radix(&capabilities, 16).unwrap() >> IPC_LOCK & 1 == 1;
    let limits = proc_field("/proc/self/limits", "Max locked memory");
    let soft = limits.split_whitespace().next().unwrap();
    capable || soft.parse().map_or(true, |limit: u64| limit >= bytes)
}

/// A sanitizer takes mlock(2) over, does nothing, and says that it did.
#[test]
#[cfg_attr(sanitized, ignore = "a sanitizer's mlock locks nothing")]
fn an_arena_is_locked_or_refused_by_name() {
    let unlocked = Arena::of(|raw| raw.mem.lock = Want::Off).unwrap();
    assert!(!unlocked.has_flag("lo"), "{}", unlocked.smaps());
    match Arena::of(|raw| raw.mem.lock = Want::Require) {
        Ok(arena) => assert!(arena.has_flag("lo"), "{}", arena.smaps()),
        Err(error) => {
            assert!(!may_lock(64 << 20), "{error}");
            assert!(error.to_string().contains("mem.lock = require"), "{error}");
        }
    }
    let tried = Arena::of(|raw| raw.mem.lock = Want::Try).unwrap();
    assert!(tried.has_flag("lo") || !may_lock(64 << 20), "{}", tried.smaps());
}

/// With one node there is nothing to choose, and the kernel is not asked.
#[test]
fn an_arena_is_on_the_node_of_its_core_where_there_are_several() {
    let nodes = fs::read_to_string("/sys/devices/system/node/online").unwrap_or_default();
    let policy_of = |is_near_cpu| {
        let arena = Arena::of(|raw| raw.fixed.is_near_cpu = is_near_cpu).unwrap();
        let address = arena.block.bytes().as_ptr() as usize;
        let from = range(arena.smaps().lines().next().unwrap()).unwrap().start;
        assert!(from <= address);
        let maps = fs::read_to_string("/proc/self/numa_maps").unwrap_or_default();
        let line = maps.lines().find(|line| line.starts_with(&format!("{from:x} ")));
        line.and_then(|line| line.split(' ').nth(1)).unwrap_or("default").to_owned()
    };
    assert_eq!(policy_of(false), "default");
    let local = policy_of(true);
    let several = nodes.contains(['-', ',']);
    assert_eq!(local.starts_with("prefer"), several, "{local} on nodes {nodes}");
}

/// The device returns the least limit that is held.
fn wake_limit_us() -> Option<i32> {
    let bytes = fs::File::open("/dev/cpu_dma_latency").and_then(|mut device| {
        let mut word = [0; 4];
        std::io::Read::read_exact(&mut device, &mut word).map(|()| word)
    });
    bytes.ok().map(i32::from_ne_bytes)
}

#[test]
fn a_limit_of_wake_ups_is_held_as_long_as_the_engine_or_refused_by_name() {
    let raw = small_with(|raw| raw.host.cpu_dma_latency_us = Some(17));
    let before_us = wake_limit_us();
    match Engine::new(valid(raw)) {
        Ok(engine) => {
            assert_eq!(engine.config().cpu_dma_latency(), Some(Duration::from_micros(17)));
            assert!(wake_limit_us().unwrap() <= 17);
            drop(engine);
            assert_eq!(wake_limit_us(), before_us);
        }
        Err(error) => {
            let error = error.to_string();
            assert!(
                error.starts_with("host.cpu_dma_latency_us: /dev/cpu_dma_latency: "),
                "{error}"
            );
        }
    }
    assert!(Engine::new(valid(small())).is_ok(), "off asks for nothing");
}
