//! Profiles through the library: shipped profiles, `include`, and rejected files with locations.
#![allow(clippy::unwrap_used)] // helpers of tests are not marked as tests

mod common;

use common::Folder;
use spinrpc::config::{Driver, Host, Key, RawConfig, Value};
use spinrpc_tuning::{Loader, Profile, load, reference, shipped};

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
fn profiles_of_rdma_devices_are_valid_for_the_driver_they_name() {
    for name in ["verbs-mlx5", "verbs-rxe", "verbs-siw"] {
        let config = load(name, &host()).unwrap().config().clone();
        assert_eq!(config.driver(), Driver::Verbs, "{name}");
    }
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

#[test]
fn the_nearest_file_wins_and_is_named_with_its_line() {
    let folder = Folder::new("nearest_file");
    folder.write("site.toml", "schema = 1\ninclude = [\"latency\"]\n[rpc]\ncredits = 7\n");
    folder.write("top.toml", "schema = 1\ninclude = [\"site\"]\n[poll]\nbudget = 8\n");
    let top = load(&folder.path("top.toml"), &host()).unwrap();
    assert_eq!(value(&top, "poll.budget"), ("8".into(), folder.path("top.toml:4")));
    assert_eq!(value(&top, "rpc.credits"), ("7".into(), folder.path("site.toml:4")));
    assert_eq!(value(&top, "poll.mode").0, "\"busy\"");
    assert!(value(&top, "poll.mode").1.starts_with("shipped:latency.toml:"));
    assert_eq!(top.config().credits(), 7);
}

#[test]
fn of_two_includes_the_later_wins() {
    let folder = Folder::new("later_include");
    folder.write("a.toml", "schema = 1\nrpc.credits = 1\nrpc.reverse_calls = 1\n");
    folder.write("b.toml", "schema = 1\nrpc.credits = 2\n");
    folder.write("top.toml", "schema = 1\ninclude = [\"a\", \"b.toml\"]\n");
    let top = load(&folder.path("top.toml"), &host()).unwrap();
    assert_eq!(value(&top, "rpc.credits").0, "2");
    assert_eq!(value(&top, "rpc.reverse_calls").0, "1");
}

#[test]
fn a_profile_included_on_two_ways_undoes_nothing() {
    let folder = Folder::new("two_ways");
    folder.write("a.toml", "schema = 1\ninclude = [\"base\"]\nrpc.credits = 1\n");
    folder.write("b.toml", "schema = 1\ninclude = [\"base\"]\nrpc.reverse_calls = 1\n");
    folder.write("top.toml", "schema = 1\ninclude = [\"a\", \"b\"]\n");
    let top = load(&folder.path("top.toml"), &host()).unwrap();
    assert_eq!(value(&top, "rpc.credits").0, "1");
    assert_eq!(value(&top, "rpc.reverse_calls").0, "1");
}

#[test]
fn a_file_beside_the_including_one_goes_before_a_shipped_profile() {
    let folder = Folder::new("same-folder");
    folder.write("base.toml", "schema = 1\nrpc.credits = 3\n");
    folder.write("top.toml", "schema = 1\ninclude = [\"base\"]\n");
    assert_eq!(load(&folder.path("top.toml"), &host()).unwrap().config().credits(), 3);
}

#[test]
fn a_cycle_is_shown_and_refused() {
    let folder = Folder::new("cycle");
    folder.write("a.toml", "schema = 1\ninclude = [\"b\"]\n");
    folder.write("b.toml", "schema = 1\ninclude = [\"latency\", \"a\"]\n");
    folder.write("self.toml", "schema = 1\ninclude = [\"./self\"]\n");
    assert_eq!(
        refusal(&folder, "a.toml"),
        "b.toml:2:23: include: cycle: a.toml -> b.toml -> a.toml"
    );
    assert_eq!(
        refusal(&folder, "self.toml"),
        "self.toml:2:12: include: cycle: self.toml -> ./self.toml"
    );
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
fn an_unknown_include_names_what_there_is() {
    let folder = Folder::new("unknown_include");
    folder.write("a.toml", "schema = 1\ninclude = [\"latencies\", \"nope\"]\n");
    assert_eq!(
        refusal(&folder, "a.toml"),
        "a.toml:2:12: include: no profile \"latencies\"; did you mean \"latency\"?\n\
         a.toml:2:25: include: no profile \"nope\"; shipped profiles are base, dev-vm, \
         hosts/two-socket-mlx5, hosts/vm-2-vcpus, latency, shm-local, throughput, verbs-mlx5, \
         verbs-rxe, verbs-siw; use a path for a file"
    );
}

#[test]
fn everything_wrong_is_reported_at_once_in_the_order_of_the_file() {
    let folder = Folder::new("everything");
    folder.write(
        "bad.toml",
        "schema = 1\n\
         description = 7\n\
         [rpc]\n\
         credit = 8\n\
         credits = \"many\"\n\
         max_segments = -1\n\
         inline_send_bytes = 1500\n\
         [poll]\n\
         mode = \"lazy\"\n\
         [mem]\n\
         lock = true\n\
         [colour]\n\
         deep = { blue = 1 }\n",
    );
    assert_eq!(
        refusal(&folder, "bad.toml"),
        "bad.toml:2:15: description: expected a string\n\
         bad.toml:4:1: unknown key \"rpc.credit\"; did you mean \"rpc.credits\"?\n\
         bad.toml:5:11: rpc.credits = \"many\": expected an integer from 1 to 1024\n\
         bad.toml:6:16: rpc.max_segments = -1: expected an integer from 1 to 512\n\
         bad.toml:7:21: rpc.inline_send_bytes = 1500: expected a multiple of 1024 from 1024 to \
         65536\n\
         bad.toml:9:8: poll.mode = \"lazy\": expected one of \"busy\", \"adaptive\", \"sleep\"\n\
         bad.toml:11:8: mem.lock = true: expected one of \"off\", \"try\", \"require\"\n\
         bad.toml:13:10: unknown key \"colour.deep.blue\"; no key has a similar name"
    );
}

#[test]
fn a_table_is_no_value_and_a_value_is_no_table() {
    let folder = Folder::new("tables");
    folder.write("a.toml", "schema = 1\nrpc = 3\n[poll.mode]\nbusy = true\n[rcp]\n");
    assert_eq!(
        refusal(&folder, "a.toml"),
        "a.toml:2:1: unknown key \"rpc\"; no key has a similar name\n\
         a.toml:3:1: poll.mode = [poll.mode]: expected one of \"busy\", \"adaptive\", \"sleep\"\n\
         a.toml:5:2: unknown key \"rcp\"; no key has a similar name"
    );
}

#[test]
fn keys_that_do_not_go_together_are_shown_where_the_first_was_set() {
    let folder = Folder::new("together");
    folder.write("a.toml", "schema = 1\n[rpc]\nmax_read_bytes = 33554432\n");
    assert_eq!(
        refusal(&folder, "a.toml"),
        "a.toml:3:1: rpc.max_read_bytes = 33554432: expected at most 16711680, what \
         mem.conn_arena_mib = 16 has room for"
    );
}

#[test]
fn cores_beyond_those_of_the_host_are_refused() {
    let folder = Folder::new("cores");
    folder.write("a.toml", "schema = 1\ncores.list = \"2-5\"\n");
    assert_eq!(
        refusal(&folder, "a.toml"),
        "a.toml:2:7: cores.list = \"2-5\": expected CPUs that this process may use: 0-3"
    );
}

#[test]
fn the_schema_must_be_there_and_be_1() {
    let folder = Folder::new("schema");
    folder.write("none.toml", "[rpc]\ncredits = 1\n");
    folder.write("two.toml", "schema = 2\n");
    assert_eq!(
        refusal(&folder, "none.toml"),
        "none.toml:1:1: schema is missing: write \"schema = 1\" at the top"
    );
    assert_eq!(refusal(&folder, "two.toml"), "two.toml:1:10: schema = 2: expected 1");
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
    assert_eq!(
        refusal(&folder, "large.toml"),
        "large.toml: not a profile: longer than 1048576 bytes"
    );
    assert!(refusal(&folder, "bytes.toml").starts_with("bytes.toml: "));
    assert!(refusal(&folder, "absent.toml").starts_with("absent.toml: No such file"));
    assert!(refusal(&folder, "").contains("directory"));
}

#[test]
fn no_beginning_of_a_profile_is_too_much_for_the_reader() {
    let folder = Folder::new("prefixes");
    let text = include_str!("../profiles/dev-vm.toml");
    for end in (0..text.len()).filter(|&end| text.is_char_boundary(end)) {
        folder.write("cut.toml", &text[..end]);
        if let Err(error) = load(&folder.path("cut.toml"), &host()) {
            assert!(error.problems().iter().all(|problem| problem.location.is_some()));
        }
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
