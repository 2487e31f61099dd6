//! Plan, apply and revert, on copies of the files of recorded hosts.
#![allow(clippy::unwrap_used)] // helpers of tests are not marked as tests

mod common;
#[path = "common/program.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod program;
#[path = "../../bench/tests/common/schema.rs"]
mod schema;

use common::{Folder, record_path};
use program::spintune;
use rustix::fs::FlockOperation;
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::PathBuf;
use std::process::Command;

const JOURNAL: &str = "run/spinrpc/tuned.json";
/// Variable that names a directory in place of the root of this host.
const ROOT: &str = "SPINTUNE_TEST_ROOT";
const PLAN: &str = include_str!("../schema/spintune-plan-1.schema.json");
const STEPS: &str = include_str!("../schema/spintune-steps-1.schema.json");
const GOVERNOR: &str = "sys/devices/system/cpu/cpu2/cpufreq/scaling_governor";

/// A copy of a host, in the place of this one.
struct Copy(PathBuf);

impl Copy {
    /// Lays out a record.
    fn of(host: &str, test: &str) -> Self {
        let root = PathBuf::from(Folder::new(test).path(""));
        let text = fs::read_to_string(record_path(host)).unwrap();
        let copy = Self(root.canonicalize().unwrap());
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let text = |content: &str| content.replace("\\n", "\n").replace("\\\\", "\\") + "\n";
            match line.split_once(" = ") {
                Some((path, content)) => copy.write(path, &text(content)),
                // Links only say where devices belong, which does not matter here.
                None if line.contains(" -> ") => {}
                None => copy.write(line, ""),
            }
        }
        copy
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.0.join(path)).unwrap()
    }

    /// Every file with its bytes, or the value that it has chosen: the kernel would keep the others.
    fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut files = BTreeMap::new();
        let mut folders = vec![self.0.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
                let kind = entry.file_type().unwrap();
                if kind.is_dir() {
                    folders.push(entry.path());
                } else if kind.is_file() {
                    let bytes = fs::read(entry.path()).unwrap();
                    let text = String::from_utf8_lossy(&bytes);
                    let chosen = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
                    let chosen = chosen.map(|(value, _)| format!("{value}\n").into_bytes());
                    files.insert(entry.path(), chosen.unwrap_or(bytes));
                }
            }
        }
        files
    }

    /// Runs `spintune COMMAND` there; returns status, answer and problems.
    fn run(&self, arguments: &[&str]) -> (i32, String, String) {
        let mut program = Command::new(env!("CARGO_BIN_EXE_spintune"));
        let output = program.args(arguments).env(ROOT, &self.0).output().unwrap();
        let [answer, problems] =
            [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        (output.status.code().unwrap(), answer, problems)
    }

    fn apply(&self, more: &[&str]) -> (i32, String, String) {
        self.run(&[&["apply", "--profile", "latency", "--set", "cores.list=2-3"], more].concat())
    }

    fn plan(&self, more: &[&str]) -> (i32, String, String) {
        self.run(&[&["plan", "--profile", "latency", "--set", "cores.list=2-3"], more].concat())
    }
}

/// The answer of a run with this status and without problems.
#[track_caller]
fn quiet((status, answer, problems): (i32, String, String), expected: i32) -> String {
    assert_eq!((status, problems.as_str()), (expected, ""), "{answer}");
    answer
}

/// The answer of a run that told one problem in these words.
#[track_caller]
fn told((status, answer, problems): (i32, String, String), words: &str) -> String {
    assert_eq!((status, problems.lines().count()), (1, 1), "{problems}");
    assert!(problems.contains(words), "{problems}");
    answer
}

/// A server with the defaults of its installation.
fn wrong(test: &str) -> Copy {
    Copy::of("server-2s-mlx5-wrong", test)
}

#[test]
fn plan_changes_nothing_and_says_how_to_change_and_undo() {
    let copy = wrong("plan");
    let before = copy.files();
    let script = quiet(copy.plan(&[]), 1);
    assert_eq!(copy.files(), before);
    let file = copy.0.join(GOVERNOR).display().to_string();
    assert!(script.contains(&format!("\necho performance > {file}\n")), "{script}");
    assert!(script.contains(&format!("\n# To undo: echo powersave > {file}\n")), "{script}");
    let commands = script.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    assert!(
        commands.clone().count() > 8 && commands.into_iter().all(|line| line.starts_with("echo "))
    );
}

/// The script removes the brackets in the copy's files; the kernel would keep them.
#[test]
fn the_script_of_a_plan_has_the_host_fit() {
    let copy = wrong("script");
    let (_, script, _) = copy.plan(&[]);
    let status = Command::new("sh").args(["-euc", &script]).status().unwrap();
    assert!(status.success());
    let (status, left, _) = copy.plan(&["--json"]);
    let left: Json = serde_json::from_str(&left).unwrap();
    // A copy has no one to free pages; without a journal they count as used by others.
    let items: Vec<_> = left["changes"].as_array().unwrap().iter().map(|c| &c["item"]).collect();
    assert!(items.iter().all(|item| **item == "hugepages"), "{status}: {left:#}");
}

/// Names that have side effects if printed unescaped.
const HOSTILE: [&[u8]; 9] = [
    b"a\ntouch pwned #",
    b"$(touch pwned)",
    b"`touch pwned`",
    b"'; touch pwned; '",
    b"\"; touch pwned; \"",
    b"-n",
    b"esc\x1b[2J\x1b]0;title\x07",
    b"not-utf-8\xff\n",
    b"> pwned",
];

/// Side effects of the script would show in its working folder.
#[test]
fn a_script_with_hostile_names_does_what_it_says_and_nothing_else() {
    for (number, name) in HOSTILE.into_iter().enumerate() {
        let mut copy = wrong("hostile-root");
        let root = copy.0.with_file_name("hostile").join(OsStr::from_bytes(name));
        fs::create_dir_all(root.parent().unwrap()).unwrap();
        let _ = fs::remove_dir_all(&root);
        fs::rename(&copy.0, &root).unwrap();
        copy.0 = root;
        let folder = PathBuf::from(Folder::new("hostile-profile").path(""));
        let profile = folder.join(OsStr::from_bytes(name).to_string_lossy().into_owned() + ".toml");
        fs::write(&profile, "schema = 1\ninclude = [\"latency\"]\n").unwrap();
        let planned = Command::new(env!("CARGO_BIN_EXE_spintune"))
            .args([OsStr::new("plan"), OsStr::new("--set"), OsStr::new("cores.list=2-3")])
            .args([OsStr::new("--profile"), profile.as_os_str()])
            .env(ROOT, &copy.0)
            .output()
            .unwrap();
        assert_eq!(planned.status.code(), Some(1), "{number}: {planned:?}");
        let script = String::from_utf8(planned.stdout).unwrap();
        let shown = script.chars().all(|letter| letter == '\n' || !letter.is_control());
        assert!(shown, "{number}: {script:?}");
        let ran = Command::new("sh").args(["-ec", &script]).current_dir(&folder).output().unwrap();
        assert!(ran.status.success() && ran.stderr.is_empty(), "{number}: {ran:?}");
        assert_eq!(copy.read(GOVERNOR), "performance\n", "{number}");
        let names = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        assert_eq!(names.collect::<Vec<_>>(), [profile], "{number}: something else happened");
    }
}

#[test]
fn apply_has_the_host_fit_and_a_second_one_changes_nothing() {
    let copy = wrong("twice");
    let said = quiet(copy.apply(&[]), 0);
    assert!(
        said.lines()
            .any(|line| line.starts_with("governor") && line.ends_with("powersave -> performance")),
        "{said}"
    );
    assert_eq!(copy.read(GOVERNOR), "performance\n");
    assert_eq!(copy.plan(&[]).0, 0, "{}", copy.plan(&[]).1);
    let once = copy.files();
    assert_eq!(copy.apply(&[]), (0, "nothing to change\n".to_owned(), String::new()));
    assert_eq!(copy.files(), once);
}

#[test]
fn no_interrupt_is_left_on_the_cores() {
    let copy = wrong("interrupts");
    assert_eq!(copy.apply(&[]).0, 0);
    assert_eq!(copy.read("proc/irq/120/smp_affinity_list"), "0-1\n", "was never there");
    assert_eq!(copy.read("proc/irq/140/smp_affinity_list"), "4-17,20-31\n");
    assert_eq!(copy.read("proc/irq/121/smp_affinity_list"), "2-3\n", "the kernel manages it");
}

#[test]
fn isolated_cpus_are_given_interrupts_only_where_no_others_are_left() {
    let copy = wrong("isolated");
    copy.write("sys/devices/system/cpu/isolated", "0-31\n");
    assert_eq!(copy.apply(&[]).0, 0);
    assert_eq!(copy.read("proc/irq/140/smp_affinity_list"), "0-1,4-31\n");
}

/// The kernel's own timer, for example.
#[test]
fn an_interrupt_that_cannot_be_moved_is_left_out() {
    let copy = wrong("unmovable");
    let path = copy.0.join("proc/irq/140/smp_affinity_list");
    fs::set_permissions(path, fs::Permissions::from_mode(0o444)).unwrap();
    assert_eq!(copy.apply(&[]).0, 0);
    assert_eq!(copy.read("proc/irq/140/smp_affinity_list"), "0-31\n");
}

#[test]
fn revert_restores_every_byte_and_leaves_no_journal() {
    let copy = wrong("revert");
    let before = copy.files();
    assert_eq!(copy.apply(&[]).0, 0);
    assert_ne!(copy.files(), before);
    let said = quiet(copy.run(&["revert"]), 0);
    assert!(
        said.lines()
            .any(|line| line.starts_with("governor") && line.ends_with("performance -> powersave")),
        "{said}"
    );
    assert_eq!(copy.files(), before);
    assert_eq!(copy.run(&["revert"]), (0, "nothing to change\n".to_owned(), String::new()));
}

/// The kernel shows 0 in nmi_watchdog, whatever is written to it, while watchdog is 0.
#[test]
fn the_watchdog_that_needs_the_other_is_the_first_to_go_and_the_last_to_come_back() {
    let copy = wrong("watchdogs");
    let watchdogs = |answer: String| {
        let steps: Json = serde_json::from_str(&answer).unwrap();
        let steps = steps["steps"].as_array().unwrap().clone();
        let paths = steps.into_iter().filter(|step| step["item"] == "watchdog");
        paths.map(|step| step["path"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let [nmi, watchdog] = ["/proc/sys/kernel/nmi_watchdog", "/proc/sys/kernel/watchdog"];
    assert_eq!(watchdogs(copy.apply(&["--json"]).1), [nmi, watchdog]);
    assert_eq!(watchdogs(copy.run(&["revert", "--json"]).1), [watchdog, nmi]);
}

#[test]
fn what_somebody_changed_after_apply_is_what_the_next_revert_goes_back_to() {
    let copy = wrong("foreign_apply");
    assert_eq!(copy.apply(&[]).0, 0);
    copy.write(GOVERNOR, "schedutil\n");
    let (status, said, _) = copy.apply(&[]);
    assert!(status == 0 && said.lines().count() == 1 && said.contains("schedutil -> performance"));
    assert_eq!(copy.run(&["revert"]).0, 0);
    assert_eq!(copy.read(GOVERNOR), "schedutil\n");
}

#[test]
fn what_somebody_changed_after_apply_is_left_alone_by_revert() {
    let copy = wrong("foreign_revert");
    assert_eq!(copy.apply(&[]).0, 0);
    copy.write(GOVERNOR, "schedutil\n");
    told(copy.run(&["revert"]), "another program has set it to schedutil; not changed");
    assert_eq!(copy.read(GOVERNOR), "schedutil\n");
    assert_eq!(copy.run(&["revert"]).0, 0, "spintune no longer tracks it");
}

/// The kernel rejects a word that is not a number here, also for root.
#[test]
fn what_cannot_be_changed_is_told_and_the_rest_is_changed() {
    let copy = wrong("partial");
    let (governor, limit) = (copy.0.join(GOVERNOR), "/proc/sys/kernel/pid_max");
    let now = fs::read_to_string(limit).unwrap();
    fs::remove_file(&governor).unwrap();
    symlink(limit, &governor).unwrap();
    let before = copy.files();
    let said = told(copy.apply(&[]), &format!("still {}, not performance: ", now.trim()));
    assert!(said.lines().count() > 8, "{said}");
    assert_eq!(fs::read_to_string(limit).unwrap(), now);
    assert!(!copy.read(JOURNAL).contains("cpu2/"), "nothing is to be undone there");
    assert_eq!(copy.run(&["revert"]).0, 0);
    assert_eq!(copy.files(), before);
}

#[test]
fn a_file_that_went_away_stays_in_the_journal_until_it_is_back() {
    let copy = wrong("gone");
    assert_eq!(copy.apply(&[]).0, 0);
    fs::rename(copy.0.join(GOVERNOR), copy.0.join("kept")).unwrap();
    told(copy.run(&["revert"]), "");
    fs::rename(copy.0.join("kept"), copy.0.join(GOVERNOR)).unwrap();
    assert_eq!(copy.run(&["revert"]).0, 0);
    assert_eq!(copy.read(GOVERNOR), "powersave\n");
}

fn pool(copy: &Copy) -> u64 {
    let path = "sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages";
    copy.read(path).trim().parse().unwrap()
}

#[test]
fn pages_are_reserved_for_a_profile_once_and_anew_for_another() {
    let copy = wrong("pages");
    let path = "sys/devices/system/node/node0/hugepages/hugepages-2048kB";
    copy.write(&format!("{path}/nr_hugepages"), "10\n");
    copy.write(&format!("{path}/free_hugepages"), "4\n");
    // Two cores with 64 MiB.
    assert_eq!(copy.apply(&[]).0, 0);
    assert_eq!(pool(&copy), 10 + 64 - 4);
    copy.write(&format!("{path}/free_hugepages"), "0\n");
    assert_eq!(copy.apply(&[]).1, "nothing to change\n", "an engine uses them");
    copy.write(&format!("{path}/free_hugepages"), "64\n");
    assert_eq!(copy.apply(&["--set", "mem.arena_mib=128"]).0, 0);
    assert_eq!(pool(&copy), 10 + 128 - 4);
    assert_eq!(copy.run(&["revert"]).0, 0);
    assert_eq!(pool(&copy), 10);
    let (_, plan, _) = copy.plan(&["--set", "mem.hugepages=off"]);
    assert!(!plan.contains("hugepages"), "{plan}");
}

/// The second apply was killed after it wrote its journal, before it wrote to the file.
#[test]
fn what_an_apply_that_was_killed_left_behind_is_taken_back() {
    let copy = wrong("killed");
    let path = "sys/devices/system/node/node0/hugepages/hugepages-2048kB";
    copy.write(&format!("{path}/nr_hugepages"), "10\n");
    copy.write(&format!("{path}/free_hugepages"), "4\n");
    assert_eq!(copy.apply(&[]).0, 0);
    let reserved = pool(&copy);
    let journal = copy.read(JOURNAL);
    let settled = format!("\"to\": \"{reserved}\"");
    assert!(journal.contains(&settled), "{journal}");
    let unsettled = format!("\"to\": \"{}\", \"was\": \"{reserved}\"", reserved + 64);
    copy.write(JOURNAL, &journal.replacen(&settled, &unsettled, 1));
    let (status, _, problems) = copy.run(&["revert"]);
    assert_eq!((status, problems.as_str(), pool(&copy)), (0, "", 10));
}

#[test]
fn a_journal_or_a_folder_of_others_is_refused_and_nothing_is_changed() {
    let copy = wrong("others");
    assert_eq!(copy.apply(&[]).0, 0);
    let folder = copy.0.join("run/spinrpc");
    for (path, mode) in [(&folder, 0o755), (&copy.0.join(JOURNAL), 0o644)] {
        for more in [0o020, 0o002] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode | more)).unwrap();
            let (status, answer, problems) = copy.run(&["revert"]);
            assert_eq!((status, answer.as_str(), problems.lines().count()), (1, "", 1));
            assert!(problems.contains("is writable by others"), "{problems}");
        }
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        // Only root can change the owner of a file.
        if rustix::process::geteuid().is_root() {
            chown(path, Some(65534), None).unwrap();
            assert_eq!(copy.run(&["revert"]).0, 1);
            chown(path, Some(0), None).unwrap();
        }
    }
    assert_eq!(copy.read(GOVERNOR), "performance\n");
    assert_eq!(copy.run(&["revert"]).0, 0);
}

#[test]
fn a_host_without_such_files_is_left_as_it_is() {
    let copy = Copy::of("vm-2", "vm");
    let (_, said, problems) =
        copy.run(&["apply", "--profile", "hosts/vm-2-vcpus", "--set", "cores.list=1"]);
    assert_eq!(problems, "");
    assert!(!said.contains("governor") && !said.contains("hugepages"), "{said}");
    assert_eq!(copy.run(&["plan", "--profile", "hosts/vm-2-vcpus", "--set", "cores.list=1"]).0, 0);
}

#[test]
fn a_journal_that_spintune_did_not_write_is_refused_and_nothing_is_changed() {
    let copy = wrong("hostile");
    assert_eq!(copy.apply(&[]).0, 0);
    let good = copy.read(JOURNAL);
    let files = copy.files();
    let with = |item: &str, path: &str, from: &str| {
        let entry = serde_json::json!({ "item": item, "path": path, "from": from, "to": "0" });
        serde_json::json!({ "schema": 1, "profile": "x", "hash": "", "changes": [entry] })
            .to_string()
    };
    for hostile in [
        good[..good.len() / 2].to_owned(),
        String::new(),
        "[]".to_owned(),
        good.replacen("\"schema\": 1", "\"schema\": 2", 1),
        good.replacen("\"schema\": 1", "\"schema\": 1, \"more\": 1", 1),
        with("ksm", "etc/passwd", "1"),
        with("ksm", "proc/irq/1/smp_affinity_list", "1"),
        with("irq", "proc/irq/../../etc/cron.d/smp_affinity_list", "1"),
        with("irq", "/proc/irq/1/smp_affinity_list", "1"),
        with("ksm", "sys/kernel/mm/ksm/run", "1\n2"),
        with("ksm", "sys/kernel/mm/ksm/run", ""),
        with("none", "sys/kernel/mm/ksm/run", "1"),
        "x".repeat((4 << 20) + 1),
    ] {
        copy.write(JOURNAL, &hostile);
        let (status, answer, problems) = copy.run(&["revert"]);
        assert_eq!((status, answer.as_str()), (1, ""), "{hostile:.80}");
        assert!(problems.contains("nothing was changed"), "{problems}");
        assert_eq!(problems.lines().count(), 1, "{problems}");
    }
    for command in ["apply", "plan"] {
        assert_eq!(copy.run(&[command, "--profile", "base"]).0, 1, "{command}");
    }
    copy.write(JOURNAL, &good);
    assert_eq!(copy.files(), files);
}

#[test]
fn a_journal_that_is_no_plain_file_is_refused() {
    let copy = wrong("no_file");
    copy.write("elsewhere", "{}");
    fs::create_dir_all(copy.0.join("run/spinrpc")).unwrap();
    symlink(copy.0.join("elsewhere"), copy.0.join(JOURNAL)).unwrap();
    assert_eq!(copy.run(&["revert"]).0, 1);
    fs::remove_file(copy.0.join(JOURNAL)).unwrap();
    fs::create_dir(copy.0.join(JOURNAL)).unwrap();
    assert_eq!(copy.apply(&[]).0, 1);
    assert_eq!(copy.read(GOVERNOR), "powersave\n");
}

#[test]
fn only_one_at_a_time_changes_a_host() {
    let copy = wrong("busy");
    fs::create_dir_all(copy.0.join("run/spinrpc")).unwrap();
    let folder = fs::File::open(copy.0.join("run/spinrpc")).unwrap();
    folder.set_permissions(fs::Permissions::from_mode(0o755)).unwrap();
    rustix::fs::flock(&folder, FlockOperation::LockExclusive).unwrap();
    let (status, _, problems) = copy.apply(&[]);
    assert!(status == 1 && problems.contains("another spintune"), "{problems}");
    drop(folder);
    assert_eq!(copy.apply(&[]).0, 0);
}

#[test]
fn programs_get_json() {
    let copy = wrong("json");
    let parse = |text: String| serde_json::from_str::<Json>(&text).unwrap();
    let plan = parse(copy.plan(&["--json", "--set", "cores.list=2,20"]).1);
    assert_eq!(schema::violations(&plan, PLAN), [""; 0]);
    assert!(!plan["advice"].as_array().unwrap().is_empty());
    assert_eq!((&plan["schema"], &plan["fits"]), (&1.into(), &false.into()));
    let governor =
        plan["changes"].as_array().unwrap().iter().find(|c| c["item"] == "governor").unwrap();
    assert_eq!(governor["path"], format!("/{GOVERNOR}"));
    assert_eq!((&governor["from"], &governor["to"]), (&"powersave".into(), &"performance".into()));
    let steps = parse(copy.apply(&["--json"]).1);
    assert_eq!(schema::violations(&steps, STEPS), [""; 0]);
    assert_eq!(schema::violations(&parse(copy.apply(&["--json"]).1), STEPS), [""; 0]);
    assert!(steps["steps"].as_array().unwrap().iter().all(|step| step["outcome"] == "set"));
    assert_eq!(parse(copy.plan(&["--json"]).1)["fits"], true);
    copy.write(GOVERNOR, "schedutil\n");
    let stuck = copy.0.join("sys/kernel/mm/ksm/run");
    fs::rename(&stuck, stuck.with_extension("kept")).unwrap();
    let steps = parse(copy.run(&["revert", "--json"]).1);
    assert_eq!(schema::violations(&steps, STEPS), [""; 0]);
    let failed = steps["steps"].as_array().unwrap().iter().find(|s| s["outcome"] == "failed");
    assert!(failed.unwrap()["detail"].is_string(), "{steps:#}");
    let outcomes: Vec<_> =
        steps["steps"].as_array().unwrap().iter().map(|s| &s["outcome"]).collect();
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == "foreign").count(), 1);
}

/// Plan for a host from its record, and from a copy of its files. Expect the changes that the host needs, with its own paths,
/// and that neither is written to.
#[test]
fn a_plan_can_be_made_for_another_host() {
    let copy = wrong("recorded");
    let (_, of_copy, _) = copy.plan(&["--json"]);
    let record = record_path("server-2s-mlx5-wrong");
    let run = |command: &str, root: &str, more: &[&str]| {
        let arguments = [command, "--profile", "latency", "--set", "cores.list=2-3", "--root"];
        let output = spintune(&[&arguments[..], &[root], more].concat());
        let [answer, problems] =
            [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        (output.status.code(), answer, problems)
    };
    let (status, of_record, problems) = run("plan", &record, &["--json"]);
    assert_eq!((status, problems.as_str()), (Some(1), ""));
    let items = |text: &str| {
        let plan: serde_json::Value = serde_json::from_str(text).unwrap();
        let changes = plan["changes"].as_array().unwrap().clone();
        let item = |change: &serde_json::Value| {
            (change["path"].to_string(), change["from"].to_string(), change["to"].to_string())
        };
        changes.iter().map(item).collect::<Vec<_>>()
    };
    let of_record = items(&of_record);
    assert!(!of_record.is_empty());
    assert!(items(&of_copy).iter().all(|change| of_record.contains(change)), "{of_record:?}");
    // The journal of another host says nothing about this one, whatever is in it.
    copy.write(JOURNAL, "of another host");
    let (before, folder) = (copy.files(), copy.0.to_str().unwrap());
    let (_, of_folder, _) = run("plan", folder, &["--json"]);
    assert_eq!(items(&of_folder), items(&of_copy));
    let (_, script, _) = run("plan", folder, &[]);
    assert!(script.contains(&format!("\necho performance > /{GOVERNOR}\n")), "{script}");
    assert!(script.contains("what was applied to that host before is not known"), "{script}");
    for root in [&record, folder] {
        let (status, _, problems) = run("apply", root, &[]);
        assert_eq!(status, Some(2), "{problems}");
    }
    assert_eq!(copy.files(), before);
}

/// The program's arguments in a line of the unit, for this copy and its profile.
fn unit_arguments(key: &str) -> Vec<&'static str> {
    let unit = include_str!("../spintune-apply.service");
    let line = unit.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    let mut words = line.split(' ');
    assert_eq!(words.next(), Some("/usr/local/bin/spintune"), "{line}");
    words.collect()
}

/// Runs the program as that line of the unit does, with a profile for cores 2 and 3 that also has this text.
fn run_unit(copy: &Copy, key: &str, more: &str) -> (i32, String, String) {
    let folder = Folder::new("unit-profile");
    let text = "schema = 1\ninclude = [\"latency\"]\ndescription = \"a test\"\n";
    folder.write("host.toml", &format!("{text}{more}\n[cores]\nlist = \"2-3\"\n"));
    let profile = folder.path("host.toml");
    let words = unit_arguments(key).into_iter();
    let words = words.map(|word| match word {
        "/etc/spinrpc/host.toml" => profile.as_str(),
        other => other,
    });
    copy.run(&words.collect::<Vec<_>>())
}

/// A boot is simulated: the kernel has its own values again, and /run is empty.
#[test]
fn the_unit_applies_its_profile_after_each_boot_and_restores_the_values_when_it_stops() {
    let copy = wrong("unit");
    let before = copy.files();
    let run = |key: &str| quiet(run_unit(&copy, key, ""), 0);
    for _boot in 0..2 {
        assert!(run("ExecStart=").contains("powersave -> performance"));
        assert_eq!(copy.read(GOVERNOR), "performance\n");
        fs::remove_dir_all(copy.0.join("run/spinrpc")).unwrap();
        before.iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
    }
    run("ExecStart=");
    run("ExecStopPost=");
    assert_eq!(copy.files(), before);
}

/// Stop and start restore it; `apply` alone would leave it as it is. So there is no reload.
#[test]
fn a_restart_of_the_unit_restores_what_is_no_longer_in_the_profile() {
    let copy = wrong("unit-restart");
    assert!(!include_str!("../spintune-apply.service").contains("\nExecReload="));
    assert_eq!(run_unit(&copy, "ExecStart=", "").0, 0);
    assert_eq!(copy.read(GOVERNOR), "performance\n");
    let sleeps = "[poll]\nmode = \"sleep\"";
    assert_eq!(run_unit(&copy, "ExecStopPost=", sleeps).0, 0);
    assert_eq!(run_unit(&copy, "ExecStart=", sleeps).0, 0);
    assert_eq!(copy.read(GOVERNOR), "powersave\n");
    assert!(copy.0.join(JOURNAL).exists(), "the rest of the profile is applied");
}
