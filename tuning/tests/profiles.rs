//! Profiles through the library: shipped profiles, `include`, and rejected files with locations.
#![allow(clippy::unwrap_used)] // helpers of tests are not marked as tests

mod common;

use common::Folder;
use spinrpc::config::{Driver, Host, Key, RawConfig, Value};
use spinrpc_tuning::{Loader, Profile, load, reference, shipped};
use std::fs::File;
use std::process::Command;
use std::thread;

fn host() -> Host {
    Host { allowed: vec![0, 1, 2, 3], ..Host::default() }
}

fn value(profile: &Profile, key: &str) -> (String, String) {
    let setting = profile.settings().find(|setting| setting.key.name == key).unwrap();
    (setting.value.to_string(), setting.source.to_string())
}

/// The message for a profile that must be rejected, without the folder's name.
fn refusal(folder: &Folder, name: &str) -> String {
    let path = folder.path(name);
    let message = load(&path, &host()).unwrap_err().to_string();
    message.replace(&folder.path(""), "")
}

#[test]
fn every_shipped_profile_is_valid_on_small_and_large_hosts() {
    for cpus in [1, 2, 3, 64] {
        let host = Host { allowed: (0..cpus).collect(), ..Host::default() };
        for profile in shipped().iter().filter(|profile| !profile.name.starts_with("hosts/")) {
            let loaded = load(profile.name, &host).unwrap();
            assert!(loaded.description().is_some(), "{}", profile.name);
        }
    }
}

#[test]
fn examples_are_valid_on_the_hosts_they_are_for() {
    let siblings = (0..32).map(|cpu| vec![cpu, cpu + 32]).collect();
    let two_sockets = Host { allowed: (0..64).collect(), isolated: vec![], smt_siblings: siblings };
    let example = load("hosts/two-socket-mlx5", &two_sockets).unwrap();
    assert_eq!(
        (example.config().cpus(), example.config().driver()),
        (&[18, 19, 20, 21][..], Driver::Verbs)
    );
    assert_eq!(load("hosts/two-socket-mlx5", &host()).unwrap_err().problems().len(), 1);
    let two_cpus = Host { allowed: vec![0, 1], ..Host::default() };
    assert_eq!(load("hosts/vm-2-vcpus", &two_cpus).unwrap().config().cpus(), [1]);
}

#[test]
fn every_shipped_profile_goes_by_each_driver() {
    let host = Host { allowed: (0..64).collect(), ..Host::default() };
    for profile in shipped() {
        for driver in ["shm", "verbs"] {
            let set = format!("fabric.driver={driver}");
            Loader::new(&host).set(set).load(profile.name).unwrap();
        }
    }
}

#[test]
fn base_sets_every_key_to_its_default() {
    let base = load("base", &host()).unwrap();
    assert_eq!(base.config().raw(), &RawConfig::default());
    for setting in base.settings() {
        assert!(setting.source.to_string().starts_with("shipped:base.toml:"), "{setting:?}");
    }
}

/// To renew it after a change of the table of keys: `spintune explain > profiles/base.toml`.
#[test]
fn base_is_the_reference_of_all_keys() {
    assert_eq!(include_str!("../profiles/base.toml"), reference());
}

#[test]
fn shipped_profiles_say_why_they_set_a_key() {
    for profile in shipped() {
        let lines: Vec<_> = profile.toml.lines().collect();
        let group_starts = lines.iter().position(|line| line.starts_with('[')).unwrap();
        let mut explained = false;
        for line in &lines[group_starts..] {
            let sets = line.contains(" = ") && !line.starts_with('#');
            assert!(!sets || explained, "{}: {line}", profile.name);
            explained = line.starts_with('#') || (sets && explained);
        }
    }
}

/// The cases of `profiles/files.txt`.
#[test]
fn files_give_the_values_or_the_problems_of_the_table() {
    for case in include_str!("profiles/files.txt").split("\n= ").skip(1) {
        let folder = Folder::new("files");
        for part in case.split("\n- ").skip(1) {
            let (name, text) = part.split_once('\n').unwrap();
            let text = text.trim_end();
            match name.split_once(' ') {
                None => folder.write(name, &format!("{text}\n")),
                Some(("refused", name)) => assert_eq!(refusal(&folder, name), text),
                Some((_, name)) => {
                    let profile = load(&folder.path(name), &host()).unwrap();
                    for line in text.lines() {
                        let (key, wanted) = line.split_once(" = ").unwrap();
                        let (found, source) = value(&profile, key);
                        let found = format!("{found} {}", source.replace(&folder.path(""), ""));
                        // A line of a shipped profile may change.
                        let is_so = match wanted.strip_suffix(':') {
                            Some(file) => found.starts_with(file),
                            None => format!("{found} ").starts_with(&format!("{wanted} ")),
                        };
                        assert!(is_so, "{case}: {key} = {found}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_chain_of_includes_has_an_end() {
    let folder = Folder::new("chain");
    for link in 0..40 {
        let text = format!("schema = 1\ninclude = [\"{}\"]\n", link + 1);
        folder.write(&format!("{link}.toml"), &text);
    }
    assert_eq!(refusal(&folder, "0.toml"), "15.toml:2:12: include: nested deeper than 16 files");
}

#[test]
fn mistakes_of_syntax_have_a_place_and_take_one_line() {
    let folder = Folder::new("syntax");
    folder.write("a.toml", "schema = 1\n[rpc\ncredits = 1\n");
    folder.write("twice.toml", "schema = 1\n[rpc]\ncredits = 1\ncredits = 2\n");
    for (name, place) in [("a.toml", "a.toml:2:"), ("twice.toml", "twice.toml:4:1: ")] {
        let message = refusal(&folder, name);
        assert!(message.starts_with(place), "{message}");
        assert!(!message.contains('\n'), "{message}");
    }
}

#[test]
fn what_is_no_file_of_text_is_refused() {
    let folder = Folder::new("no_text");
    folder.write("large.toml", &"#".repeat((1 << 20) + 1));
    std::fs::write(folder.path("bytes.toml"), [0xff, 0xfe]).unwrap();
    assert_eq!(refusal(&folder, "large.toml"), "large.toml: longer than 1048576 bytes");
    assert!(refusal(&folder, "bytes.toml").starts_with("bytes.toml: "));
    assert!(refusal(&folder, "absent.toml").starts_with("absent.toml: No such file"));
    assert!(refusal(&folder, "").contains("regular file"));
    let pipe = folder.path("pipe.toml");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    folder.write("over_pipe.toml", "schema = 1\ninclude = [\"pipe\"]\n");
    for name in ["pipe.toml", "over_pipe.toml"] {
        // The other end, which closes the pipe if something opens it.
        let pipe = pipe.clone();
        thread::spawn(|| File::options().write(true).open(pipe));
        assert!(refusal(&folder, name).contains("regular file"), "{name}");
    }
}

#[test]
fn an_override_wins_over_every_file() {
    let host = host();
    let loader = Loader::new(&host).set("poll.mode=sleep").set("rpc.credits = 5");
    let profile = loader.set("cores.list=3").load("latency").unwrap();
    assert_eq!(value(&profile, "poll.mode"), ("\"sleep\"".into(), "override".into()));
    assert_eq!(value(&profile, "rpc.credits"), ("5".into(), "override".into()));
    assert_eq!(profile.config().cpus(), [3]);
}

#[test]
fn a_wrong_override_is_told_in_the_words_of_the_caller() {
    let host = host();
    let refused = |set: &str| Loader::new(&host).set(set).load("base").unwrap_err().to_string();
    assert_eq!(refused("rpc.credits=0"), "rpc.credits = 0: expected an integer from 1 to 1024");
    assert_eq!(
        refused("rpc.credit=1"),
        "unknown key \"rpc.credit\"; did you mean \"rpc.credits\"?"
    );
    assert_eq!(refused("busy"), "\"busy\": expected KEY=VALUE, such as poll.mode=busy");
    assert!(refused("cores.list=9").starts_with("cores.list = \"9\": expected CPUs that"));
}

#[test]
fn auto_is_resolved_and_shown_beside_the_value() {
    let profile = load("throughput", &host()).unwrap();
    let cores = profile.settings().find(|setting| setting.key.name == "cores.list").unwrap();
    assert_eq!(cores.value, Value::Text("auto".into()));
    assert_eq!(cores.resolved.as_deref(), Some("1-3"));
    assert!(profile.settings().filter(|setting| setting.resolved.is_some()).count() == 1);
}

#[test]
fn the_hash_tells_values_apart_and_nothing_else() {
    let folder = Folder::new("hash");
    folder.write("same.toml", "schema = 1\ndescription = \"the same\"\n");
    folder.write("other.toml", "schema = 1\nrpc.credits = 63\n");
    let hash = |name: &str| load(name, &host()).unwrap().hash();
    assert_eq!(hash("base"), hash(&folder.path("same.toml")));
    assert_ne!(hash("base"), hash(&folder.path("other.toml")));
    let other_host = Host { allowed: vec![7], ..Host::default() };
    assert_eq!(hash("base"), load("base", &other_host).unwrap().hash());
}

#[test]
fn every_value_that_is_shown_can_be_set() {
    let profile = load("throughput", &host()).unwrap();
    let mut raw = RawConfig::default();
    for setting in profile.settings() {
        Key::find(setting.key.name).unwrap().set(&mut raw, &setting.value).unwrap();
    }
    assert_eq!(&raw, profile.config().raw());
}
