//! `spinperf job FILE`: a repeatable suite of `spinperf run`s, described in TOML.
//!
//! Keys are the options of `run` without their dashes. Everything is checked before the first run.

use crate::cli::{JobArgs, RunArgs, parse_run, run_options};
use crate::console::{is_standard_output, say_to_people};
use crate::failure::Failure;
use crate::interrupt;
use crate::output::place_of;
use crate::ranks::RUN_BYTES_MAX;
use crate::run::{self, InSuite};
use serde::Deserialize;
use spinrpc_tuning::did_you_mean;
use spinrpc_tuning::printable::read_bounded;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

pub(crate) fn run(args: &JobArgs) -> Result<(), Failure> {
    let job = Job::read(&args.file).map_err(Failure::Usage)?;
    for one in &job.runs {
        let named = |failure: Failure| match failure {
            Failure::Usage(text) => Failure::Usage(format!("run {:?}: {text}", one.name)),
            other => other,
        };
        run::check(&one.args, &one.name).map_err(named)?;
    }
    if args.check {
        let lines = job.runs.iter().map(|one| format!("{}: {}\n", one.name, one.line));
        return say_to_people(false, &lines.collect::<String>());
    }
    if let Some(folder) = &job.output {
        fs::create_dir_all(folder)
            .map_err(|error| Failure::system(format!("creating {}", folder.display()), error))?;
    }
    let mut failed: Vec<String> = Vec::new();
    let mut after_failure = false;
    for (number, one) in job.runs.iter().enumerate() {
        let place = [number + 1, job.runs.len()];
        let done = run::run(&one.args, Some(InSuite { name: &one.name, place, after_failure }));
        after_failure = done.is_err();
        match done {
            Ok(()) => {}
            Err(failure @ Failure::Interrupted(_)) => return Err(failure),
            // The other runs may still tell something.
            Err(failure) => failed.push(format!("{}: {failure}", one.name)),
        }
        if let Some(signal) = interrupt::signal() {
            return Err(Failure::Interrupted(signal));
        }
    }
    let (count, runs) = (failed.len(), job.runs.len());
    match failed.is_empty() {
        true => Ok(()),
        false => Err(Failure::Measurement(format!(
            "{count} of {runs} runs failed: {}",
            failed.join("; ")
        ))),
    }
}

#[derive(Deserialize)]
struct File {
    output: Option<PathBuf>,
    #[serde(default)]
    defaults: Table,
    #[serde(default)]
    run: Vec<Table>,
}

#[derive(Debug)]
struct Job {
    output: Option<PathBuf>,
    runs: Vec<Run>,
}

#[derive(Debug)]
struct Run {
    name: String,
    line: String,
    args: Box<RunArgs>,
}

impl Job {
    fn read(path: &Path) -> Result<Self, String> {
        let shown = path.display();
        let file = fs::File::open(path).and_then(|file| read_bounded(file, FILE_BYTES_MAX));
        let text = file.map_err(|error| format!("reading {shown}: {error}"))?;
        Self::parse(&text, path.parent()).map_err(|error| format!("{shown}: {error}"))
    }

    /// Paths are relative to this folder.
    fn parse(text: &str, folder: Option<&Path>) -> Result<Self, String> {
        let table: Table = text.parse().map_err(|error: toml::de::Error| {
            let at = error.span().map_or(0, |span| span.start);
            let line = text.get(..at).map_or(1, |before| before.matches('\n').count() + 1);
            format!("line {line}: {}", error.message())
        })?;
        check_keys(&table, KEYS, "the job")?;
        if table.get("schema") != Some(&Value::Integer(SCHEMA)) {
            return Err(format!("schema = {SCHEMA} is missing at the top"));
        }
        let File { output, defaults, run } =
            table.try_into().map_err(|error: toml::de::Error| {
                // The second line names the key.
                error.to_string().trim_end().replace('\n', " ")
            })?;
        if run.is_empty() {
            return Err("no [[run]]".to_owned());
        }
        check_keys(&defaults, &options(&[]), "[defaults]")?;
        let output = output.map(|path| folder.unwrap_or(Path::new("")).join(path));
        let mut job = Self { output, runs: Vec::new() };
        for (number, own) in run.iter().enumerate() {
            job.add(number + 1, own, &defaults, folder)?;
        }
        job.check_files()?;
        Ok(job)
    }

    fn add(
        &mut self,
        number: usize,
        own: &Table,
        defaults: &Table,
        folder: Option<&Path>,
    ) -> Result<(), String> {
        let name = match own.get("name") {
            Some(Value::String(name)) if is_name(name) => name.clone(),
            Some(_) => {
                return Err(format!(
                    "run {number}: a name is up to {RUN_BYTES_MAX} letters, digits, - and _"
                ));
            }
            None => return Err(format!("run {number} has no name")),
        };
        if self.runs.iter().any(|run| run.name == name) {
            return Err(format!("two runs are called {name:?}"));
        }
        let place = format!("run {name:?}");
        check_keys(own, &options(&["name"]), &place)?;
        let mut keys = defaults.clone();
        keys.extend(own.iter().map(|(key, value)| (key.clone(), value.clone())));
        keys.remove("name");
        for (_, value) in keys.iter_mut().filter(|(key, _)| FILES.contains(&key.as_str())) {
            let Value::String(file) = value else { continue };
            if !is_standard_output(Path::new(file)) {
                *file = folder.unwrap_or(Path::new("")).join(&*file).display().to_string();
            }
        }
        if let Some(folder) = self.output.as_ref().filter(|_| !keys.contains_key("json")) {
            let file = folder.join(format!("{name}.json"));
            keys.insert("json".to_owned(), Value::String(file.display().to_string()));
        }
        let mut words = Vec::new();
        for (key, value) in &keys {
            words.extend(option(key, value).map_err(|error| format!("{place}: {key} {error}"))?);
        }
        let line = format!("spinperf run {}", words.join(" "));
        let args = parse_run(words).map_err(|failure| format!("{place}: {failure}"))?;
        self.runs.push(Run { name, line, args });
        Ok(())
    }

    fn check_files(&self) -> Result<(), String> {
        let mut taken: BTreeMap<PathBuf, &str> = BTreeMap::new();
        for run in &self.runs {
            let files = run.args.output.json.iter().chain(&run.args.capture);
            for file in files.filter(|file| !is_standard_output(file)) {
                let Some(place) = place_of(file) else { continue };
                let (name, shown) = (&run.name, file.display());
                match taken.insert(place, name) {
                    Some(other) if other != name => {
                        return Err(format!("runs {other:?} and {name:?} both write {shown}"));
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

fn is_name(name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    (1..=RUN_BYTES_MAX).contains(&name.len()) && name.chars().all(is_part)
}

fn options(others: &[&'static str]) -> Vec<String> {
    let others = others.iter().map(|key| (*key).to_owned());
    run_options().into_iter().chain(others).collect()
}

fn check_keys<K: AsRef<str>>(table: &Table, known: &[K], place: &str) -> Result<(), String> {
    let is_known = |key: &str| known.iter().any(|one| one.as_ref() == key);
    match table.keys().find(|key| !is_known(key)) {
        None => Ok(()),
        Some(key) => {
            let names = known.iter().map(AsRef::as_ref);
            let hint =
                did_you_mean(key, names, "no key has a similar name; see spinperf run --help");
            Err(format!("{place}: unknown key {key:?}{hint}"))
        }
    }
}

fn option(key: &str, value: &Value) -> Result<Vec<String>, &'static str> {
    // One word, so that a value may begin with a dash.
    let word = |value: String| format!("--{key}={value}");
    match value {
        Value::Boolean(true) => Ok(vec![format!("--{key}")]),
        Value::Boolean(false) => Ok(Vec::new()),
        Value::Array(values) => {
            let values = values.iter().map(plain).collect::<Result<Vec<_>, _>>()?;
            match REPEATED.contains(&key) {
                true => Ok(values.into_iter().map(word).collect()),
                false => Ok(vec![word(values.join(","))]),
            }
        }
        value => plain(value).map(|value| vec![word(value)]),
    }
}

fn plain(value: &Value) -> Result<String, &'static str> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Float(number) => Ok(number.to_string()),
        _ => Err("is not a text, a number, true, false, or a list of them"),
    }
}

const SCHEMA: i64 = 1;
const KEYS: &[&str] = &["schema", "output", "defaults", "run"];
/// Options that are given several times, rather than once with a list.
const REPEATED: &[&str] = &["address", "set", "fail-if"];
const FILES: &[&str] = &["json", "baseline", "capture"];
const FILE_BYTES_MAX: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Job, String> {
        Job::parse(&format!("schema = 1\n{text}"), Some(Path::new("suite")))
    }

    const GOOD: &str = r#"
        output = "results"
        [defaults]
        address = "shm:x"
        repeats = 5
        set = ["rpc.version=2", "rpc.credits=8"]
        [[run]]
        name = "small"
        size = "64..256"
        depth = [1, 4]
        [[run]]
        name = "both"
        bidir = true
        repeats = 2
        force = false
    "#;

    #[test]
    fn runs_take_the_defaults_and_replace_them() {
        let job = parse(GOOD).unwrap();
        let [small, both] = &job.runs[..] else { panic!("{job:?}") };
        assert_eq!((small.args.modes.repeats, both.args.modes.repeats), (5, 2));
        assert_eq!(small.args.depth.as_ref().map(|list| list.0.clone()), Some(vec![1, 4]));
        assert_eq!(small.args.profile.set, ["rpc.version=2", "rpc.credits=8"]);
        assert!(both.args.bidir && !both.args.modes.force && !small.args.bidir);
        let json = both.args.output.json.as_deref();
        assert_eq!(json, Some(Path::new("suite/results/both.json")));
        assert!(small.line.starts_with("spinperf run --address=shm:x"), "{}", small.line);
    }

    /// Name one file in two runs, by a default and by another path to it. Expect an error; paths
    /// are those from the folder of the job file.
    #[test]
    fn runs_do_not_write_over_the_files_of_others() {
        let runs = |defaults: &str, first: &str, second: &str| {
            parse(&format!(
                "output = \"out\"\n[defaults]\naddress = \"shm:x\"\n{defaults}\n\
                 [[run]]\nname = \"a\"\n{first}\n[[run]]\nname = \"b\"\n{second}"
            ))
        };
        for (defaults, first, second) in [
            ("capture = \"all\"", "", ""),
            ("", "json = \"out/b.json\"", ""),
            ("", "json = \"x\"", "capture = \"./x\""),
        ] {
            let error = runs(defaults, first, second).unwrap_err();
            assert!(error.starts_with("runs \"a\" and \"b\" both write suite/"), "{error}");
        }
        let job = runs("json = \"-\"", "capture = \"/tmp/x\"", "capture = \"x\"").unwrap();
        let files: Vec<_> = job.runs.iter().map(|run| run.args.capture.clone()).collect();
        assert_eq!(files, [Some("/tmp/x".into()), Some("suite/x".into())]);
    }

    #[test]
    fn mistakes_are_one_line_that_says_where_and_what_is_meant() {
        let run = |text: &str| format!("[[run]]\nname = \"a\"\naddress = \"shm:x\"\n{text}");
        for (text, told) in [
            (run("dept = 4"), "run \"a\": unknown key \"dept\"; did you mean \"depth\"?"),
            (format!("[defaults]\nduraton = \"1s\"\n{}", run("")), "\"duration\""),
            (format!("ouput = \"x\"\n{}", run("")), "\"output\""),
            (run("size = \"4q\""), "1MiB"),
            (run("depth = {a = 1}"), "depth is not"),
            (run("bidir = \"yes\""), "bidir"),
            (run("") + &run(""), "two runs are called \"a\""),
            ("[[run]]\nname = \"a b\"".to_owned(), "letters"),
            (format!("[[run]]\nname = \"{}\"", "a".repeat(65)), "up to 64 letters"),
            ("[[run]]\nname = \"a\"".to_owned(), "--address"),
            ("[[run]]\nsize = 4".to_owned(), "run 1 has no name"),
            (String::new(), "no [[run]]"),
            ("[run]\nname = \"a\"".to_owned(), "`run`"),
            (format!("output = 5\n{}", run("")), "`output`"),
            ("[[run]\n".to_owned(), "line 2: "),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(error.contains(told) && !error.contains('\n'), "{text}: {error}");
        }
        assert!(Job::parse("[[run]]", None).unwrap_err().contains("schema = 1"));
    }
}
