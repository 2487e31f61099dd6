//! `spintune explain` and `spintune check`.
#![allow(clippy::unwrap_used)] // helpers of tests are not marked as tests

mod common;
#[path = "common/program.rs"]
mod program;

use common::Folder;
use program::{answer, problems, spintune};
use serde_json::Value as Json;
use spinrpc::config::KEYS;

#[test]
fn a_relation_is_told_where_the_profile_set_one_of_its_keys() {
    let folder = Folder::new("relation");
    for (text, told) in [
        (
            "schema = 1\n[shm]\nring_slots = 64\n[rpc]\ninline_send_bytes = 8192\n",
            ":5:1: rpc.inline",
        ),
        ("schema = 1\n[rpc]\ninline_recv_bytes = 65536\n", ":3:1: rpc.inline_recv_bytes"),
        ("schema = 1\n[mem]\n\narena_mib = 1\n", ":4:1: rpc.max_read_bytes = 1048576: "),
        (
            "schema = 1\nfabric.driver = \"shm\"\nmem.conn_arena_mib = 1\n",
            ":3:5: rpc.max_read_bytes = 1048576: ",
        ),
    ] {
        folder.write("site.toml", text);
        let message = problems(&["check", &folder.path("site.toml")], 1);
        assert!(message.contains(told), "{told}: {message}");
    }
}

#[test]
fn check_says_what_is_set_without_effect() {
    let folder = Folder::new("in_vain");
    let text = "schema = 1\ninclude = [\"latency\"]\n[rpc]\nccp_auth = \"sys\"\n\
                [poll]\nspin_us = 7\npark_us = 7\nbudget = 7\n";
    folder.write("site.toml", text);
    let path = folder.path("site.toml");
    let told = answer(&["check", &path]);
    let lines: Vec<_> = told.lines().collect();
    assert_eq!((lines.len(), lines[0]), (4, format!("{path}: valid").as_str()), "{told}");
    for (line, number, says) in [
        (lines[1], 6, "poll.spin_us has no effect with poll.mode = \"busy\""),
        (lines[2], 7, "poll.park_us has no effect with poll.mode = \"busy\""),
        (lines[3], 4, "rpc.ccp_auth has no effect with rpc.ccp = \"auto\""),
    ] {
        assert!(line.starts_with(&format!("  {path}:{number}:")) && line.ends_with(says), "{told}");
    }
    folder.write("site.toml", "schema = 1\ninclude = [\"verbs-mlx5\"]\n");
    assert_eq!(answer(&["check", &path]), format!("{path}: valid\n"), "shipped ones may");
}

#[test]
fn explain_names_what_defines_a_key_and_what_to_look_at_with_it() {
    let text = answer(&["explain", "rpc.credits"]);
    assert!(text.contains("\n  from     RFC 8166 section 3.3.1\n"), "{text}");
    assert!(text.contains("\n  related  rpc.reverse_calls, rpc.inline_recv_bytes"), "{text}");
    assert!(!answer(&["explain", "cores.max"]).contains("\n  from "), "no document defines it");
}

/// To renew it after a change of the table of keys: `spintune explain --markdown > REFERENCE.md`.
#[test]
fn the_reference_in_the_repository_is_current() {
    assert_eq!(include_str!("../REFERENCE.md"), spinrpc_tuning::markdown());
    assert_eq!(answer(&["explain", "--markdown"]), spinrpc_tuning::markdown());
}

fn document(arguments: &[&str]) -> Json {
    serde_json::from_str(&answer(arguments)).unwrap()
}

#[test]
fn programs_get_keys_and_profiles_as_json() {
    let all = document(&["explain", "--json"]);
    assert_eq!(all["keys"].as_array().unwrap().len(), KEYS.len());
    let one = &document(&["explain", "rpc.credits", "--json"])["keys"][0];
    assert_eq!((&one["default"], &one["unit"]), (&64.into(), &"calls".into()));
    assert_eq!(one["origin"], "RFC 8166 section 3.3.1");
    let list = document(&["list", "--json"]);
    assert_eq!(list["profiles"][0]["name"], "base");
    assert_eq!(list["profiles"][0]["description"], "the defaults of every key");
}

#[test]
fn check_tells_programs_all_that_is_wrong_and_nothing_else() {
    let folder = Folder::new("check_json");
    folder.write("bad.toml", "schema = 1\nrpc.credits = 0\n");
    folder.write("vain.toml", "schema = 1\npoll.mode = \"busy\"\npoll.spin_us = 1\n");
    let [bad, vain] = ["bad.toml", "vain.toml"].map(|name| folder.path(name));
    let output = spintune(&["check", &bad, &vain, "--json"]);
    assert_eq!((output.status.code(), output.stderr.len()), (Some(1), 0));
    let checked: Json = serde_json::from_slice(&output.stdout).unwrap();
    let [first, second] = [0, 1].map(|index| &checked["profiles"][index]);
    assert_eq!((&first["valid"], &second["valid"]), (&false.into(), &true.into()));
    assert_eq!(
        (&first["problems"][0]["file"], &first["problems"][0]["line"]),
        (&bad.into(), &2.into())
    );
    let message = "rpc.credits = 0: expected an integer from 1 to 1024";
    assert_eq!(first["problems"][0]["message"], message);
    assert_eq!(second["without_effect"][0]["line"], 3);
}

#[test]
fn forms_of_the_reference_exclude_each_other() {
    for wrong in
        [&["explain", "rpc.credits", "--markdown"][..], &["explain", "--markdown", "--json"]]
    {
        assert!(problems(wrong, 2).contains("cannot be used with"), "{wrong:?}");
    }
}

#[test]
fn explain_lists_a_group() {
    let text = answer(&["explain", "rpc"]);
    let keys = || KEYS.iter().filter(|key| key.parts().0 == "rpc");
    assert!(keys().count() > 5 && keys().all(|key| text.contains(key.name)), "{text}");
    assert!(!text.contains("mem.arena_mib\n"), "{text}");
    let document: Json = serde_json::from_str(&answer(&["explain", "rpc", "--json"])).unwrap();
    assert_eq!(document["keys"].as_array().unwrap().len(), keys().count());
    assert!(problems(&["explain", "rpcc"], 2).contains("unknown key"));
}
