//! Hosts to examine: the records, unchanged or with some lines changed.

use spinrpc_tuning::doctor::{
    CheckInput, Finding, Jitter, Report, Tried, Verdict, examine, profile_for,
};
use spinrpc_tuning::host::{CpuTimes, HostFacts, Tree};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// A host, a profile for it, and its test results.
pub(crate) struct Case {
    record: String,
    profile: &'static str,
    overrides: Vec<String>,
    tried: Option<Tried>,
}

pub(crate) const VM: &str = "vm-2";
pub(crate) const GUEST: &str = "guest-rxe-siw";
pub(crate) const LAPTOP: &str = "laptop-8-smt";
pub(crate) const CONTAINER: &str = "container-quota";
pub(crate) const WRONG: &str = "server-2s-mlx5-wrong";
pub(crate) const CHIPLETS: &str = "chiplets-2-l3";
pub(crate) const HYBRID: &str = "hybrid-6p-8e";
pub(crate) const RIGHT: &str = "server-2s-mlx5-right";

pub(crate) fn record_path(name: &str) -> String {
    let hosts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hosts");
    hosts.join(name).with_extension("txt").to_str().unwrap().to_owned()
}

impl Case {
    pub(crate) fn of(host: &str, profile: &'static str) -> Self {
        let record = fs::read_to_string(record_path(host)).unwrap();
        Self { record, profile, overrides: Vec::new(), tried: None }
    }

    pub(crate) fn set(mut self, assignment: &str) -> Self {
        self.overrides.push(assignment.to_owned());
        self
    }

    /// Sets the content of a file.
    pub(crate) fn with(self, path: &str, value: &str) -> Self {
        let mut case = self.without(path);
        case.record.push_str(&format!("{path} = {value}\n"));
        case
    }

    /// Sets the target of a link.
    pub(crate) fn link(self, path: &str, target: &str) -> Self {
        let mut case = self.without(path);
        case.record.push_str(&format!("{path} -> {target}\n"));
        case
    }

    /// Removes a file and everything below it.
    pub(crate) fn without(mut self, path: &str) -> Self {
        let stays = |line: &&str| {
            !line
                .strip_prefix(path)
                .is_some_and(|rest| rest.starts_with([' ', '/']) || rest.is_empty())
        };
        self.record = self.record.lines().filter(stays).map(|line| format!("{line}\n")).collect();
        self
    }

    /// Sets the content of every file.
    pub(crate) fn bent(mut self, value: &str) -> Self {
        let bent = |line: &str| match line.split_once(" = ") {
            Some((path, _)) => format!("{path} = {value}\n"),
            None => format!("{line}\n"),
        };
        self.record = self.record.lines().map(bent).collect();
        self
    }

    pub(crate) fn tried(mut self, tried: Tried) -> Self {
        self.tried = Some(tried);
        self
    }

    pub(crate) fn report(&self) -> Report {
        let facts = HostFacts::read(&Tree::record(self.record.parse().unwrap()));
        let profile = profile_for(&facts, self.profile, &self.overrides).unwrap();
        examine(&CheckInput { facts: &facts, profile: &profile, tried: self.tried.as_ref() })
    }

    pub(crate) fn finding(&self, id: &str) -> Finding {
        self.report().check(id).unwrap().finding.clone()
    }

    pub(crate) fn verdict(&self, id: &str) -> Verdict {
        self.finding(id).verdict
    }
}

/// Test results of a host without any problem.
pub(crate) fn calm(cpus: usize) -> Tried {
    let sample = |idle: u64| {
        let line = |cpu| format!("cpu{cpu} 0 0 0 {idle} 0 0 0 0 0 0\\n");
        let stat: String = (0..cpus).map(line).collect();
        let record = format!("# spintune record 1\nproc/stat = {stat}\n");
        CpuTimes::read_all(&Tree::record(record.parse().unwrap()))
    };
    Tried {
        interval: Duration::from_secs(1),
        before: sample(1000),
        after: sample(1100),
        watched: Duration::from_secs(1),
        jitter: vec![Ok(Jitter { cpu: 1, longest_ns: 900, ..Jitter::default() })],
        allocator: "the test".to_owned(),
        ..Tried::default()
    }
}

/// Adds busy and stolen ticks to a CPU.
pub(crate) fn disturb(tried: &mut Tried, cpu: usize, busy: u64, stolen: u64) {
    let before = tried.before[&cpu];
    let record = format!(
        "# spintune record 1\nproc/stat = cpu{cpu} {busy} 0 0 {} 0 0 0 {stolen} 0 0\n",
        before.idle + 100 - busy - stolen
    );
    tried.after.extend(CpuTimes::read_all(&Tree::record(record.parse().unwrap())));
}
