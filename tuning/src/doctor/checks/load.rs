use crate::doctor::input::cores;
use crate::doctor::{CheckInput, Finding, Tried};
use crate::host::{CpuTimes, RealtimeTask};

pub(super) fn average(input: &CheckInput<'_>) -> Finding {
    let cpus = input.facts.cpus.online.as_ref().map_or(0, |online| online.len());
    match input.facts.tasks.load_average {
        None => Finding::unknown("the host does not report its load"),
        Some(load) if cpus > 0 && load > cpus as f64 => {
            let says = format!("{load:.1} runnable tasks on {cpus} CPUs");
            Finding::warn(says)
                .seen("/proc/loadavg", load)
                .remedy("Find out which they are: measurements on a busy host mean little")
                .command("ps -eo pcpu,psr,comm --sort=-pcpu | head")
        }
        Some(load) => Finding::ok(format!("{load:.1} on {cpus} CPUs")).seen("/proc/loadavg", load),
    }
}

pub(super) fn on_cores(input: &CheckInput<'_>) -> Finding {
    let Some(tried) = input.tried else { return super::not_tried() };
    let polled = input.cores();
    let share = |cpu| Some((cpu, busy_percent(&added(tried, cpu)?)?));
    let shares: Vec<(usize, f64)> = polled.iter().filter_map(share).collect();
    let over = format!("over {} ms", tried.interval.as_millis());
    let busy = shares.iter().filter(|(_, percent)| *percent >= BUSY_PERCENT);
    let busy: Vec<String> =
        busy.map(|(cpu, percent)| format!("CPU {cpu} {percent:.0} %")).collect();
    if shares.is_empty() {
        return Finding::unknown("the host does not report CPU times");
    }
    if busy.is_empty() {
        return Finding::ok(format!("no other work ran there {over}"));
    }
    let says = format!("other work ran on poll cores {over}: {}", super::some_of(&busy, 4));
    Finding::new(input.interference(), says)
        .seen("/proc/stat", busy.join(", "))
        .remedy("Find out what it is, and keep it off these CPUs: cpus.isolated")
        .command("ps -eLo psr,pcpu,comm --sort=-pcpu | head -20")
}

pub(super) fn realtime(input: &CheckInput<'_>) -> Finding {
    let polled = input.cores();
    let tasks = input.facts.tasks.realtime.iter();
    let here: Vec<&RealtimeTask> = tasks.filter(|task| polled.contains(task.cpu)).collect();
    if here.is_empty() {
        return Finding::ok(format!("none was on {}", cores(&polled)));
    }
    let name = |task: &&RealtimeTask| {
        format!("{} (thread {}, priority {})", task.name, task.thread, task.priority)
    };
    let names: Vec<String> = here.iter().map(name).collect();
    let says =
        format!("takes precedence over poll cores on the same CPU: {}", super::some_of(&names, 3));
    let finding = Finding::new(input.interference(), says)
        .seen("/proc/*/task/*/stat", super::some_of(&names, 8))
        .remedy("Move them to other CPUs");
    let rest = input.facts.cpus.housekeeping(&polled);
    let movable = here.iter().take(8).filter(|_| !rest.is_empty());
    finding.commands(movable.map(|task| format!("taskset -pc {rest} {}", task.thread)))
}

pub(super) fn tuned(input: &CheckInput<'_>) -> Finding {
    let Some(profile) = &input.facts.tasks.tuned else {
        return Finding::ok("tuned is not running");
    };
    let says = "tuned is running, and sets governors, huge pages and kernel parameters whenever it \
                starts, stops or changes its profile";
    Finding::new(input.interference(), says)
        .seen("/etc/tuned/active_profile", profile)
        .remedy(
            "Stop it before spintune apply, or give it a profile with the values of spintune plan",
        )
        .command("systemctl disable --now tuned  # to undo: systemctl enable --now tuned")
}

fn added(tried: &Tried, cpu: usize) -> Option<CpuTimes> {
    Some(tried.after.get(&cpu)?.since(tried.before.get(&cpu)?))
}

fn busy_percent(times: &CpuTimes) -> Option<f64> {
    let busy = times.total.saturating_sub(times.idle).saturating_sub(times.steal);
    (times.total > 0).then(|| busy as f64 * 100.0 / times.total as f64)
}

/// Above the load of the timer tick and of this program itself.
const BUSY_PERCENT: f64 = 5.0;
