//! Generated profiles: valid on their hosts, explained, and within the hosts' resources.
#![allow(clippy::unwrap_used)] // helpers of tests are not marked as tests

mod common;
#[path = "common/program.rs"]
mod program;

use common::{Folder, hosts, record_path};
use program::{answer, problems};
use spinrpc::config::{Driver, IdlePolicy};
use spinrpc_tuning::host::{HostFacts, Tree};
use spinrpc_tuning::{Profile, load, propose};
use std::path::Path;

fn facts(host: &str) -> HostFacts {
    HostFacts::read(&Tree::open(Path::new(&record_path(host))).unwrap())
}

/// The profile generated for a recorded host, resolved for it.
fn proposed(host: &str, driver: Driver) -> Profile {
    proposed_for(host, &facts(host), driver)
}

fn proposed_for(host: &str, facts: &HostFacts, driver: Driver) -> Profile {
    let folder = Folder::new(&format!("proposed_{host}_{driver:?}"));
    folder.write("site.toml", &propose(facts, driver));
    let profile = load(&folder.path("site.toml"), &facts.cpus.for_engine()).unwrap();
    assert_eq!(profile.without_effect(), [], "{host}");
    profile
}

#[test]
fn a_profile_is_valid_on_its_host_and_has_a_reason_for_every_value() {
    for host in &hosts() {
        for driver in [Driver::Shm, Driver::Verbs] {
            let profile = proposed(host, driver);
            assert_eq!(profile.config().driver(), driver, "{host}");
            let text = propose(&facts(host), driver);
            let lines: Vec<_> = text.lines().collect();
            for pair in lines.windows(2).filter(|pair| pair[1].contains(" = ")) {
                let is_explained = pair[0].starts_with("# ") || pair[0].starts_with("include");
                assert!(is_explained || pair[1].starts_with("schema"), "{host}: {}", pair[1]);
            }
            assert!(lines.iter().all(|line| line.chars().count() <= 100), "{host}: {text}");
        }
    }
}

#[test]
fn isolated_cpus_near_the_adapter_are_polled_without_rest() {
    let profile = proposed("server-2s-mlx5-right", Driver::Verbs);
    let facts = facts("server-2s-mlx5-right");
    let adapter = &facts.rdma.adapters[0];
    let config = profile.config();
    assert_eq!(config.idle_policy(), IdlePolicy::Busy);
    for cpu in config.cpus() {
        assert!(adapter.local_cpus.as_ref().unwrap().contains(*cpu), "{cpu} is far away");
        assert!(facts.cpus.isolated.as_ref().unwrap().contains(*cpu), "{cpu} is not isolated");
    }
    assert_eq!(config.verbs().device.name(), Some(adapter.device.name.as_str()));
    assert_eq!(
        profile
            .settings()
            .find(|one| one.key.name == "verbs.registration")
            .unwrap()
            .value
            .to_string(),
        "\"window\"",
        "from the profile for mlx5"
    );
}

/// A quarter of the CPUs, one of each physical core, in one L3 cache and of one kind.
#[test]
fn cores_that_share_memory_are_close_to_each_other_and_fast() {
    let list = |host| proposed(host, Driver::Shm).config().cpus().to_vec();
    assert_eq!(list("chiplets-2-l3"), [4, 5, 6, 7]);
    let text = propose(&facts("chiplets-2-l3"), Driver::Shm).replace("\n# ", " ");
    assert!(text.contains("4-7,12-15"), "where peers are close: {text}");
    assert_eq!(list("hybrid-6p-8e"), [8, 10, 12, 14]);
}

#[test]
fn isolated_cpus_far_from_the_adapter_are_not_taken_for_it() {
    let (profile, facts) =
        (proposed("server-2s-mlx5-wrong", Driver::Verbs), facts("server-2s-mlx5-wrong"));
    let local = facts.rdma.adapters[0].local_cpus.clone().unwrap();
    assert!(profile.config().cpus().iter().all(|cpu| local.contains(*cpu)));
    assert_eq!(profile.config().idle_policy(), IdlePolicy::Adaptive);
}

#[test]
fn where_cpus_or_their_time_are_scarce_idle_cores_give_way() {
    for host in ["vm-2", "container-quota"] {
        let config = proposed(host, Driver::Shm).config().clone();
        assert_eq!(config.idle_policy(), IdlePolicy::Adaptive, "{host}");
        assert!(config.spin_time().as_micros() <= 20, "{host}");
        assert_eq!(config.cores(), 1, "{host}");
    }
}

/// Its threads process the packets on the CPUs of the cores.
#[test]
fn a_core_beside_rxe_yields_soon() {
    let mut guest = facts("guest-rxe-siw");
    let profile = load("verbs-rxe", &guest.cpus.for_engine()).unwrap();
    for quota in [None, facts("container-quota").cgroup.quota] {
        guest.cgroup.quota = quota;
        let config = proposed_for("beside_rxe", &guest, Driver::Verbs).config().clone();
        assert_eq!(config.raw().poll, profile.config().raw().poll, "{:?}", guest.cgroup.quota);
        assert_eq!(config.idle_policy(), IdlePolicy::Adaptive);
        assert_eq!(config.spin_time().as_micros(), 25);
    }
}

#[test]
fn a_host_with_one_cpu_sleeps() {
    let folder = Folder::new("one_cpu");
    folder.write("host.txt", "# spintune record 1\nsys/devices/system/cpu/online = 0\n");
    folder.write("site.toml", &answer(&["init", "--root", &folder.path("host.txt")]));
    let text = answer(&["show", &folder.path("site.toml"), "--cpus", "0"]);
    assert!(text.lines().any(|line| line.starts_with("poll.mode") && line.contains("sleep")));
}

#[test]
fn memory_fits_what_may_be_locked() {
    for host in &hosts() {
        let facts = facts(host);
        let config = proposed(host, Driver::Verbs).config().clone();
        let limit = facts.process.memlock.and_then(|bounds| bounds.soft);
        let Some(limit) = limit.filter(|_| !facts.process.may_lock_all) else { continue };
        let bytes = (config.arena_bytes() * config.cores()) as u64;
        assert!(bytes <= limit || config.arena_bytes() == 4 << 20, "{host}: {bytes} of {limit}");
    }
}

#[test]
fn what_is_written_for_this_host_passes_check_here_and_is_not_overwritten() {
    let folder = Folder::new("this_host");
    let path = folder.path("site.toml");
    assert_eq!(answer(&["init", "--output", &path]), "");
    assert_eq!(answer(&["check", &path]), format!("{path}: valid\n"));
    let written = std::fs::read_to_string(&path).unwrap();
    assert_eq!(written, answer(&["init"]));
    let message = problems(&["init", "--fabric", "verbs", "--output", &path], 1);
    assert!(message.contains("already exists"), "{message}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), written);
}

#[test]
fn a_root_that_is_not_there_or_no_record_is_said_to_be() {
    let folder = Folder::new("no_root");
    folder.write("none.txt", "nothing\n");
    for root in ["absent", "none.txt"] {
        let message = problems(&["init", "--root", &folder.path(root)], 2);
        assert!(message.contains(root) && message.lines().count() == 1, "{message}");
    }
    assert!(problems(&["init", "--fabric", "tcp"], 2).contains("shm, verbs"));
}
