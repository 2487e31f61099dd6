//! The CPUs that are polled on: permission to use them, and competing load.

use crate::doctor::input::{agree, are, cores, cpus};
use crate::doctor::{CheckInput, Finding, Verdict};
use crate::host::{both, minus};
use spinrpc::config::{CoreList, IdlePolicy};
use spinrpc::sys::affinity::CpuSet;

pub(super) fn allowed(input: &CheckInput<'_>) -> Finding {
    let allowed = known!(&input.facts.cpus.allowed, "which CPUs this process may use");
    let wanted = input.cores();
    let missing = minus(&wanted, allowed);
    if missing.is_empty() {
        return fewer_than_asked(input).seen(STATUS, allowed);
    }
    let says = format!(
        "this process is not allowed to run on {}, only on {}",
        cores(&missing),
        cpus(allowed)
    );
    Finding::fail(says)
        .seen(STATUS, allowed)
        .seen_if("cpuset of its control group", input.facts.cgroup.cpus.as_ref())
        .remedy(format!(
            "Set cores.list to CPUs among {allowed}, or allow more CPUs: docker run \
             --cpuset-cpus={wanted}, AllowedCPUs={wanted} in a systemd unit, or taskset"
        ))
        .command(format!("taskset -c {wanted} COMMAND"))
}

/// `cores.max` is an upper limit; a small host has fewer cores.
fn fewer_than_asked(input: &CheckInput<'_>) -> Finding {
    let raw = input.config().raw();
    let (asked, has) = (raw.cores.max, input.config().cores());
    if raw.cores.list == CoreList::Auto && (has as u64) < asked {
        let says = format!("{has} of the {asked} cores that cores.max requests fit");
        return Finding::info(says);
    }
    Finding::ok(format!("{} allowed", cores(&input.cores())))
}

pub(super) fn quota(input: &CheckInput<'_>) -> Finding {
    let cgroup = &input.facts.cgroup;
    let Some(quota) = &cgroup.quota else {
        return Finding::ok("no CPU quota");
    };
    let polled = input.config().cores();
    let verdict = match input.mode() {
        IdlePolicy::Busy if quota.cpus() <= polled as f64 => Verdict::Fail,
        IdlePolicy::Busy | IdlePolicy::Adaptive => Verdict::Warn,
        IdlePolicy::Sleep => Verdict::Info,
    };
    let says = format!(
        "a quota of {:.1} CPUs stops this process for the rest of each {} ms period once it is \
         used up, and {polled} CPUs poll",
        quota.cpus(),
        quota.period_us.div_ceil(1000)
    );
    Finding::new(verdict, says)
        .seen(&quota.file, format!("{} of {} µs", quota.quota_us, quota.period_us))
        .seen_if("cpu.stat nr_throttled", cgroup.throttled)
        .remedy(
            "Remove the quota and assign CPUs instead: docker run --cpuset-cpus without --cpus, \
             CPUQuota= with AllowedCPUs= in a systemd unit, the static policy of Kubernetes' CPU \
             manager; or use poll.mode=sleep",
        )
}

pub(super) fn spare(input: &CheckInput<'_>) -> Finding {
    let online = known!(&input.facts.cpus.online, "which CPUs are online");
    if !input.config().pins_cores() {
        return spare_by_count(input);
    }
    let rest = input.rest();
    if !rest.is_empty() {
        let says = format!("{} left for other work", cpus(&rest));
        return Finding::ok(says).seen(ONLINE, online);
    }
    let verdict = match input.mode() {
        IdlePolicy::Busy => Verdict::Fail,
        IdlePolicy::Adaptive | IdlePolicy::Sleep => Verdict::Info,
    };
    let says = "every CPU is polled on: cores, the kernel and other programs share them";
    Finding::new(verdict, says).seen(ONLINE, online).remedy(FEWER)
}

const FEWER: &str =
    "Poll on fewer CPUs (cores.max, cores.list), or let idle cores yield: poll.mode=adaptive";

/// For cores that are not pinned.
fn spare_by_count(input: &CheckInput<'_>) -> Finding {
    let (polled, cores) = (input.cores(), input.config().cores());
    if cores < polled.len() {
        return Finding::ok(format!("{cores} cores, which are not pinned, on {}", cpus(&polled)));
    }
    let says = format!("as many cores as CPUs ({cores}): the kernel and other programs share them");
    Finding::new(input.interference(), says).seen(STATUS, &polled).remedy(FEWER)
}

pub(super) fn isolated(input: &CheckInput<'_>) -> Finding {
    let isolated = known!(&input.facts.cpus.isolated, "which CPUs are isolated");
    let open = input.open_cores();
    let source = "/sys/devices/system/cpu/isolated";
    if open.is_empty() {
        let says = format!("{} isolated", are(&input.cores()));
        return Finding::ok(says).seen(source, isolated);
    }
    let says = format!("{} not isolated: any task may run there", are(&open));
    let finding = Finding::new(input.interference(), says).seen(source, or_none(isolated));
    advise_boot(input, finding)
}

pub(super) fn tick(input: &CheckInput<'_>) -> Finding {
    let source = "/sys/devices/system/cpu/nohz_full";
    let Some(tickless) = &input.facts.cpus.nohz_full else {
        let says = "the timer tick interrupts poll cores hundreds of times a second: this kernel \
                    is built without full dynamic ticks";
        return Finding::info(says).seen(source, "not there");
    };
    let ticking = minus(&input.cores(), tickless);
    if ticking.is_empty() {
        return Finding::ok(format!("no timer tick on {}", cores(&input.cores())))
            .seen(source, tickless);
    }
    let says = format!("the timer tick interrupts {} hundreds of times a second", cores(&ticking));
    let finding = Finding::new(input.interference(), says).seen(source, or_none(tickless));
    let isolated = input.facts.cpus.isolated.clone().unwrap_or_default();
    match minus(&input.cores(), &isolated).is_empty() {
        true => advise_boot(input, finding),
        false => finding.remedy("The parameters for cpus.isolated remove it, too"),
    }
}

fn advise_boot(input: &CheckInput<'_>, finding: Finding) -> Finding {
    finding.remedy(match input.facts.cpus.isolation(&input.cores()) {
        Some(parameters) => format!("Add these kernel parameters and reboot: {parameters}"),
        None => "No poll core of this host can be isolated: CPU 0 is not, and one CPU must be left"
            .to_owned(),
    })
}

pub(super) fn zero(input: &CheckInput<'_>) -> Finding {
    if !input.cores().contains(0) {
        return Finding::ok("CPU 0, which runs housekeeping work of the kernel, is not polled on");
    }
    let says = "CPU 0 is polled on, and no parameter frees it from housekeeping work of the kernel";
    let finding = Finding::new(input.interference(), says);
    instead(input, finding, |better| !better.contains(0))
}

fn instead(
    input: &CheckInput<'_>,
    finding: Finding,
    is_better: impl FnOnce(&CpuSet) -> bool,
) -> Finding {
    let better = input.better_cores();
    match !better.is_empty() && is_better(&better) {
        true => finding.remedy(format!("Poll on other CPUs: cores.list=\"{better}\"")),
        false => finding,
    }
}

pub(super) fn kind(input: &CheckInput<'_>) -> Finding {
    let Some(fast) = &input.facts.cpus.fast else {
        return Finding::ok("all CPUs are of one kind, as far as the host reports");
    };
    let slow = minus(&input.cores(), fast);
    if slow.is_empty() {
        return Finding::ok(format!("{} of the fastest kind", are(&input.cores())))
            .seen(KINDS, fast);
    }
    let says = format!("{} of a slower kind than {}", are(&slow), cpus(fast));
    let finding = Finding::warn(says).seen(KINDS, fast);
    instead(input, finding, |better| minus(better, fast).is_empty())
}

pub(super) fn cache(input: &CheckInput<'_>) -> Finding {
    let caches = &input.facts.cpus.l3;
    let polled = input.cores();
    let own: Vec<&CpuSet> = caches.iter().filter(|one| !both(one, &polled).is_empty()).collect();
    match own[..] {
        [] => Finding::unknown("the host does not report which CPUs share an L3 cache"),
        [_] if caches.len() == 1 => Finding::ok("all CPUs share one L3 cache").seen(L3, own[0]),
        [own] => {
            let (are, of) = (are(&polled), cpus(own));
            let says =
                format!("{are} in the L3 cache of {of}: peers over shared memory are close there");
            Finding::ok(says).seen(L3, own)
        }
        _ if input.goes_by_rdma() => {
            Finding::ok(format!("{} in several L3 caches, and share no memory", are(&polled)))
        }
        _ => {
            let says = format!(
                "{} in {} L3 caches: a cache line takes several times as long between two",
                are(&polled),
                own.len()
            );
            let finding = Finding::info(says).seen(L3, super::some_of(&own, 8));
            let is_one = |better: &CpuSet| caches.iter().any(|one| minus(better, one).is_empty());
            instead(input, finding, is_one)
        }
    }
}

pub(super) fn smt(input: &CheckInput<'_>) -> Finding {
    let polled = input.cores();
    let host = &input.facts.cpus;
    let others = |cpu| host.siblings.get(&cpu).map(|threads| minus(threads, &set(cpu)));
    let shared: Vec<(usize, CpuSet)> =
        polled.iter().filter_map(|cpu| Some((cpu, others(cpu)?))).collect();
    let all: CpuSet = shared.iter().flat_map(|(_, threads)| threads.iter()).collect();
    let together = both(&all, &polled);
    if !together.is_empty() {
        let says = format!("{} share physical cores with each other", cores(&together));
        return Finding::warn(says)
            .seen(SIBLINGS, pairs(&shared))
            .remedy("Use cores.list=auto, or list one CPU per physical core");
    }
    let isolated = host.isolated.clone().unwrap_or_default();
    let open = minus(&all, &isolated);
    if open.is_empty() {
        return Finding::ok("no poll core shares its physical core");
    }
    let says = format!("{} physical cores with poll cores", agree(cpus, &open, "shares", "share"));
    let finding = Finding::new(input.interference(), says).seen(SIBLINGS, pairs(&shared));
    if open.contains(0) {
        return finding.remedy("Poll on a physical core without CPU 0: cores.list");
    }
    let finding = finding.remedy("Isolate them, too, or take them offline temporarily");
    finding.commands(open.iter().take(4).map(|cpu| {
        let file = format!("/sys/devices/system/cpu/cpu{cpu}/online");
        format!("echo 0 > {file}  # to undo: echo 1 > {file}")
    }))
}

fn pairs(shared: &[(usize, CpuSet)]) -> String {
    let pair = |(cpu, threads): &(usize, CpuSet)| format!("CPU {cpu} with {threads}");
    super::some_of(shared.iter().map(pair), 8)
}

fn set(cpu: usize) -> CpuSet {
    CpuSet::from_iter([cpu])
}

fn or_none(set: &CpuSet) -> String {
    if set.is_empty() { "none".to_owned() } else { set.to_string() }
}

const STATUS: &str = "/proc/self/status Cpus_allowed_list";
const ONLINE: &str = "/sys/devices/system/cpu/online";
const KINDS: &str = "/sys/devices/cpu_core/cpus, /sys/devices/system/cpu/cpu*/cpu_capacity";
const L3: &str = "/sys/devices/system/cpu/cpu*/cache/index3/shared_cpu_list";
const SIBLINGS: &str = "/sys/devices/system/cpu/cpu*/topology/thread_siblings_list";
