//! A configuration file: TOML, whose keys are the options of the command line.
//!
//! ```toml
//! listen = ["rdma://0.0.0.0:20049"]
//! threads = 8
//!
//! [[export]]
//! directory = "/srv/data"
//! client = ["192.0.2.0/24", "2001:db8::/32"]
//! ro = true
//!
//! [[memory]]
//! name = "scratch"
//! client = "any"
//! bytes = "4G"
//! ```
//!
//! Unknown keys are rejected, with a suggestion.

use crate::cli::Options;
use crate::export_spec::{ExportSpec, What, Written};
use clap::{CommandFactory, Parser};
use spinrpc_apps::command_line::{self, one_line};
use spinrpc_nfs::server::exports::{KEYS, Settings};
use spinrpc_tuning::did_you_mean;
use spinrpc_tuning::printable::read_bounded;
use std::collections::BTreeSet;
use std::fs::File;
use std::ops::Range;
use std::path::Path;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Maximum length of a file, in bytes, so that a wrong path, such as a device, causes an error.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The options of a file, parsed like a command line.
#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct FileOptions {
    #[command(flatten)]
    options: Options,
}

pub(crate) fn read(path: &Path) -> Result<(Options, Vec<String>), String> {
    let shown = path.display();
    let in_file = |problem: String| format!("{shown}: {problem}");
    let text = File::open(path).and_then(|file| read_bounded(file, FILE_BYTES_MAX));
    let text = text.map_err(|error| in_file(error.to_string()))?;
    let (mut options, problems) = parse(&text).map_err(in_file)?;
    let others = options.cephfs.iter_mut().chain(&mut options.memory);
    for export in options.export.iter_mut().chain(others) {
        let problems = export.as_mut().err().into_iter().flatten();
        problems.for_each(|problem| *problem = in_file(std::mem::take(problem)));
    }
    Ok((options, problems.into_iter().map(in_file).collect()))
}

type Node<'a> = Spanned<DeValue<'a>>;

fn parse(text: &str) -> Result<(Options, Vec<String>), String> {
    let table = DeTable::parse(text)
        .map_err(|error| in_line(text, &error.span().unwrap_or_default(), error.message()))?;
    let mut table = table.into_inner();
    let mut problems = Vec::new();
    let mut taken = |name, key| {
        let tables = tables(text, &mut table, name);
        let tables = tables.map_err(|problem| problems.push(problem)).unwrap_or_default();
        tables.iter().map(|export| export_of(text, export, name, key)).collect::<Vec<_>>()
    };
    let (exports, memories) = (taken("export", "directory"), taken("memory", "name"));
    let cephfs = taken("cephfs", "directory");
    let mut options = parse_plain(text, &table, &mut problems);
    // Errors of exports in plain keys are among the exports.
    options.export.extend(exports);
    options.cephfs.extend(cephfs);
    options.memory.extend(memories);
    Ok((options, problems))
}

fn in_line(text: &str, span: &Range<usize>, problem: &str) -> String {
    let before = text.get(..span.start).unwrap_or(text);
    format!("line {}: {problem}", before.matches('\n').count() + 1)
}

/// Removes and returns the tables `[[name]]`; another form stays, to be parsed as an option.
fn tables<'t>(text: &str, table: &mut DeTable<'t>, name: &str) -> Result<Vec<Node<'t>>, String> {
    let is_table = |node: &Node<'_>| node.get_ref().is_table();
    let is_tables = |node: &Node<'_>| {
        is_table(node) || node.get_ref().as_array().is_some_and(|nodes| nodes.iter().any(is_table))
    };
    let Some(node) = table.get(name).filter(|node| is_tables(node)) else { return Ok(Vec::new()) };
    let wrong = format!("{name}: expected a list of tables: [[{name}]]");
    let wrong = in_line(text, &node.span(), &wrong);
    match table.remove(name).map(Spanned::into_inner) {
        Some(DeValue::Array(nodes)) if nodes.iter().all(is_table) => {
            Ok(nodes.into_iter().collect())
        }
        _ => Err(wrong),
    }
}

/// Parses all other keys as command-line words, each by itself, so that every wrong one is found.
fn parse_plain(text: &str, table: &DeTable<'_>, problems: &mut Vec<String>) -> Options {
    let (mut options, mut seen) = (Options::default(), BTreeSet::new());
    for (key, value) in table {
        let name = key.get_ref().replace('_', "-");
        let mut refuse = |problem: &str| problems.push(in_line(text, &key.span(), problem));
        if !seen.insert(name.clone()) {
            refuse(&format!("{} is there twice, once as {name}", key.get_ref()));
        }
        match parse_key(&name, value.get_ref()) {
            Ok(parsed) => options = parsed.over(options),
            Err(problem) => refuse(&problem),
        }
    }
    options
}

fn parse_key(key: &str, value: &DeValue<'_>) -> Result<Options, String> {
    check_key(key)?;
    let values = values(key, value)?;
    if key == "listen" {
        values.iter().try_for_each(|address| command_line::address(address).map(drop))?;
    }
    let words = values.into_iter().map(|value| format!("--{key}={value}"));
    let parsed = FileOptions::try_parse_from(words);
    parsed
        .map(|parsed| parsed.options)
        .map_err(|error| one_line(&error.to_string()).trim_start_matches("error: ").to_owned())
}

fn check_key(key: &str) -> Result<(), String> {
    let command = FileOptions::command();
    let known: Vec<&str> = command.get_arguments().filter_map(clap::Arg::get_long).collect();
    if known.contains(&key) {
        return Ok(());
    }
    let all = "the keys are the options of spin-nfsd --help, except config and check";
    Err(format!("unknown key {key:?}{}", did_you_mean(key, known.into_iter(), all)))
}

fn values(key: &str, value: &DeValue<'_>) -> Result<Vec<String>, String> {
    match value {
        DeValue::String(text) => Ok(vec![text.to_string()]),
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => Ok(vec![number.to_string()]),
            Err(error) => Err(format!("{key}: {error}")),
        },
        // 1e6 is a number of files.
        DeValue::Float(number) => match number.as_str().parse::<f64>() {
            Ok(number) => Ok(vec![number.to_string()]),
            Err(error) => Err(format!("{key}: {error}")),
        },
        DeValue::Array(all) => {
            let each = all.iter().map(|value| values(key, value.get_ref()));
            Ok(each.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
        }
        other => Err(format!("{key}: {} is not a valid type", other.type_str())),
    }
}

/// An export from a table; `name` is the key of the exported object.
fn export_of(text: &str, node: &Node<'_>, kind: &str, name: &str) -> Written {
    let refuse = |span, problem: &str| in_line(text, &span, &format!("[[{kind}]] {problem}"));
    let table = node.get_ref().as_table();
    let find = |name: &str| table?.get(name)?.get_ref().as_str();
    let needs = || vec![refuse(node.span(), &format!("needs {name} = \"...\""))];
    let what = find(name).ok_or_else(needs)?;
    let refuse = |span, problem: String| refuse(span, &format!("{what}: {problem}"));
    let (mut settings, mut problems) = (Settings::default(), Vec::new());
    for (key, value) in table.into_iter().flatten().filter(|(key, _)| key.get_ref() != name) {
        let set = set(&mut settings, key.get_ref(), value.get_ref());
        problems.extend(set.err().map(|problem| refuse(key.span(), problem)));
    }
    let named = what.to_owned();
    let object = match kind {
        "memory" => What::Memory(named),
        "cephfs" => What::Cephfs(named),
        _ => What::Directory(named.into()),
    };
    match ExportSpec::new(object, settings) {
        Ok(spec) if problems.is_empty() => return Ok(spec),
        // It may follow from the others.
        Err(problem) if problems.is_empty() => problems.push(refuse(node.span(), problem)),
        _ => {}
    }
    Err(problems)
}

fn set(settings: &mut Settings, key: &str, value: &DeValue<'_>) -> Result<(), String> {
    let set = |settings: &mut Settings, value: Option<&str>| {
        settings.set(key, value).map_err(|error| error.to_string())
    };
    match value {
        DeValue::Boolean(true) => set(settings, None),
        // "ro = false" is the default and has no effect, but an unknown key stays an error.
        DeValue::Boolean(false) if KEYS.iter().any(|(known, _)| *known == key) => Ok(()),
        DeValue::Boolean(false) => set(settings, None),
        value => values(key, value)?.iter().try_for_each(|value| set(settings, Some(value))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{MountAt, Register};
    use std::time::Duration;

    /// All problems of a file, those of its exports included.
    fn problems(text: &str) -> Vec<String> {
        let (options, mut problems) = match parse(text) {
            Ok(parsed) => parsed,
            Err(problem) => return vec![problem],
        };
        let exports = options.export.into_iter().chain(options.cephfs).chain(options.memory);
        problems.extend(exports.filter_map(Result::err).flatten());
        problems
    }

    #[track_caller]
    fn refused(text: &str) -> String {
        let problems = problems(text);
        assert_eq!(problems.len(), 1, "{problems:?}");
        problems[0].clone()
    }

    #[track_caller]
    fn accepted(text: &str) -> Options {
        assert_eq!(problems(text), [""; 0]);
        parse(text).unwrap().0
    }

    #[test]
    fn everything_that_is_wrong_is_said_at_once() {
        let text = "threads = 0\nlisen = \"shm:a\"\nmount = true\n\
                    [[export]]\ndirectory = \"/srv\"\nclients = \"any\"\nid = -1\n\
                    [[memory]]\nname = \"a\"\nro = true\nrw = true\n\
                    [[memory]]\nclient = \"any\"\n";
        let problems = problems(text);
        let says = [
            (1, "1..=256"),
            (2, "\"listen\""),
            (3, "boolean"),
            (6, "\"client\""),
            (7, "id: "),
            (11, "ro and rw"),
            (12, "[[memory]] needs"),
        ];
        assert_eq!(problems.len(), says.len(), "{problems:#?}");
        for (line, says) in says {
            let is_said = |problem: &String| {
                problem.starts_with(&format!("line {line}: ")) && problem.contains(says)
            };
            assert!(problems.iter().any(is_said), "{line}: {says}: {problems:#?}");
        }
    }

    #[test]
    fn every_option_may_be_in_a_file() {
        let text = r#"
            listen = ["rdma://0.0.0.0:20049", "rdma://[::]:20049"]
            mount = 20048
            register = "no"
            keytab = "/etc/spin-nfsd.keytab"
            principal = "nfs/server"
            realm = "EXAMPLE.NET"
            gss_map = "/etc/spin-nfsd.map"
            gss_port = "no"
            profile = "latency"
            set = ["rpc.credits=128"]
            cores = "2,3"
            threads = 8
            state = "/var/lib/spin-nfsd"
            stats = 0.5

            [[export]]
            directory = "/srv/a:b"
            client = ["192.0.2.0/24", "local:7"]
            sec = ["krb5p", "krb5i:krb5"]
            ro = true
            rw = false
            id = 7

            [[memory]]
            name = "scratch"
            client = "any"
            bytes = "4G"
            files = 1000
        "#;
        let options = accepted(text);
        assert_eq!((options.listen.len(), options.threads), (2, Some(8)));
        assert_eq!(options.mount, Some(MountAt::USUAL));
        assert_eq!(options.register, Some(Register::No));
        assert_eq!(options.keytab, Some("/etc/spin-nfsd.keytab".into()));
        assert_eq!(options.gss_port, Some(MountAt::Nowhere));
        assert_eq!(options.stats, Some(Duration::from_millis(500)));
        let [Ok(export)] = &options.export[..] else { panic!("{options:?}") };
        assert_eq!(export.what, What::Directory("/srv/a:b".into()));
        assert!(export.settings.options.read_only);
        assert_eq!((export.settings.options.clients.len(), export.settings.id), (2, Some(7)));
        let [Ok(memory)] = &options.memory[..] else { panic!("{options:?}") };
        assert_eq!(
            (memory.settings.bytes_max, memory.settings.files_max),
            (Some(4 << 30), Some(1000))
        );
    }

    #[test]
    fn the_file_that_comes_with_it_is_one() {
        let options = accepted(include_str!("../../../spin-nfsd.toml"));
        assert_eq!((options.export.len(), options.memory.len()), (2, 1));
    }

    #[test]
    fn exports_may_be_written_as_on_the_command_line() {
        let options = accepted("export = \"/srv:ro\"\nmemory = [\"a\", \"b\"]");
        assert_eq!((options.export.len(), options.memory.len()), (1, 2));
    }

    #[test]
    fn what_is_not_known_is_refused_with_the_nearest() {
        assert!(refused("lisen = \"shm:a\"").contains("did you mean \"listen\"?"));
        assert!(refused("gss_prt = \"/x\"").contains("did you mean \"gss-port\"?"));
        assert!(refused("config = \"x\"").contains("unknown key \"config\""));
        assert!(refused("[server]\nx = 1").contains("unknown key \"server\""));
        let export = refused("[[export]]\ndirectory = \"/srv\"\nclients = \"any\"");
        assert!(export.contains("/srv") && export.contains("did you mean \"client\"?"), "{export}");
        assert!(refused("[[memory]]\nname = \"a\"\nreadonly = false").contains("unknown option"));
    }

    #[test]
    fn wrong_values_are_refused_with_what_is_allowed() {
        for (text, says) in [
            ("threads = 0", "1..=256"),
            ("threads = [1, 2]", "cannot be used multiple times"),
            ("mount = true", "boolean"),
            ("listen = \"tcp:1\"", "rdma://HOST:PORT"),
            ("[[export]]\nro = true", "directory"),
            ("[export]\ndirectory = \"/srv\"", "[[export]]"),
            ("[[export]]\ndirectory = \"/srv\"\nro = 1", "takes no value"),
            ("[[export]]\ndirectory = \"/srv\"\nclient = \"ho_st\"", "192.0.2.0/24"),
            ("[[export]]\ndirectory = \"/srv\"\nbytes = \"1G\"", "in memory"),
            ("listen = ", "line 1"),
        ] {
            let said = refused(text);
            assert!(said.contains(says), "{text}: {said}");
            assert_eq!(said.lines().count(), 1, "{said}");
        }
    }

    #[test]
    fn the_command_line_counts_more_and_exports_add_up() {
        let file = accepted("listen = \"shm:a\"\nthreads = 8\nmemory = \"a\"");
        let words = ["--listen", "shm:b", "--memory", "b"];
        let line = FileOptions::try_parse_from(words).unwrap().options;
        let both = line.over(file);
        assert_eq!(
            (both.listen, both.threads, both.memory.len()),
            (vec!["shm:b".into()], Some(8), 2)
        );
    }
}
