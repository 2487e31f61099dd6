//! `spintune list`, `show`, `check` and `explain`.

use crate::report::{self, to_json};
use crate::{Outcome, Target, status_of};
use serde::Serialize;
use spinrpc::config::{KEYS, Key};
use spinrpc_tuning::text::printable;
use spinrpc_tuning::{Location, Profile, ProfileError, WithoutEffect};

/// Arguments of `spintune show`.
#[derive(clap::Args)]
pub(crate) struct ShowArguments {
    /// Name of a shipped profile, or path of a file
    profile: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `spintune list`.
#[derive(clap::Args)]
pub(crate) struct ListArguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `spintune check`.
#[derive(clap::Args)]
pub(crate) struct CheckArguments {
    /// Names of shipped profiles, or paths of files
    #[arg(required = true, value_name = "FILE")]
    profiles: Vec<String>,
    /// Print JSON, with all problems
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `spintune explain`.
#[derive(clap::Args)]
pub(crate) struct ExplainArguments {
    /// Full name of the key, such as rpc.credits, or a group, such as rpc
    #[arg(conflicts_with_all = ["markdown", "json_schema"])]
    key: Option<String>,
    /// Print all keys as a Markdown document
    #[arg(long, conflicts_with = "json_schema")]
    markdown: bool,
    /// Print the format of profiles as a JSON Schema, for editors
    #[arg(long)]
    json_schema: bool,
    /// Print JSON: the key, or all keys
    #[arg(long, conflicts_with_all = ["markdown", "json_schema"])]
    json: bool,
}

pub(crate) const SHOW_EXAMPLES: &str = "\
Examples:
  spintune show latency
  spintune show ./site.toml --set rpc.credits=128 --json
  spintune show verbs-mlx5 --cpus 0-63           as if on a host with 64 CPUs

Exit status: 0 success, 1 the profile is invalid, 2 usage error.";

pub(crate) const LIST_EXAMPLES: &str = "\
Examples:
  spintune list
  spintune list --json

Exit status: 0 success, 2 usage error.";

pub(crate) const CHECK_EXAMPLES: &str = "\
Examples:
  spintune check site.toml
  spintune check site/*.toml --cpus 0-63         as if on a host with 64 CPUs
  spintune check site.toml --json                with locations, for editors and CI

Exit status: 0 all are valid, 1 one is not, 2 usage error.";

pub(crate) const EXPLAIN_EXAMPLES: &str = "\
Examples:
  spintune explain rpc.credits                   effect and allowed values of one key
  spintune explain rpc                           all keys of a group
  spintune explain > site.toml                   all keys, as a profile to edit
  spintune explain rpc.credits --json
  spintune explain --json-schema > profile.json  completion and checks in editors

Exit status: 0 success, 2 usage error or unknown key.";

pub(crate) fn show(arguments: &ShowArguments) -> Outcome {
    match arguments.target.load(&arguments.profile) {
        Ok(profile) if arguments.json => Outcome::good(report::json(&profile)),
        Ok(profile) => Outcome::good(report::text(&profile)),
        Err(error) => Outcome::unloaded(&error),
    }
}

pub(crate) fn list(arguments: &ListArguments) -> Outcome {
    Outcome::good(if arguments.json { report::list_json() } else { report::list() })
}

pub(crate) fn explain(arguments: &ExplainArguments) -> Outcome {
    match &arguments.key {
        Some(name) => explain_one(name, arguments.json),
        None if arguments.json => Outcome::good(report::explanations(KEYS)),
        None if arguments.markdown => Outcome::good(spinrpc_tuning::markdown()),
        None if arguments.json_schema => Outcome::good(spinrpc_tuning::json_schema()),
        None => Outcome::good(spinrpc_tuning::reference()),
    }
}

/// Explains a key, or all keys of a group.
fn explain_one(name: &str, json: bool) -> Outcome {
    let group = || KEYS.iter().filter(|key| key.parts().0 == name);
    match Key::find(name) {
        Some(key) if json => Outcome::good(report::explanations([key])),
        Some(key) => Outcome::good(report::explanation(key)),
        None if group().next().is_some() => {
            let texts: Vec<String> = group().map(report::explanation).collect();
            Outcome::good(if json { report::explanations(group()) } else { texts.join("\n") })
        }
        None => Outcome::usage(spinrpc_tuning::unknown_key(name)),
    }
}

/// Result of checking one profile.
#[derive(Serialize)]
struct Verdict<'a> {
    profile: &'a str,
    valid: bool,
    problems: Vec<Remark>,
    without_effect: Vec<Remark>,
    #[serde(skip)]
    status: u8,
}

/// A problem or note about a location in a profile.
#[derive(Serialize)]
struct Remark {
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    column: Option<usize>,
    message: String,
    /// The message with its location, for people.
    #[serde(skip)]
    whole: String,
}

#[derive(Serialize)]
struct CheckDocument<'a> {
    schema: u32,
    profiles: Vec<Verdict<'a>>,
}

pub(crate) fn check(arguments: &CheckArguments) -> Outcome {
    let names = arguments.profiles.iter();
    let verdicts: Vec<Verdict<'_>> =
        names.map(|name| Verdict::of(name, &arguments.target)).collect();
    let problems = verdicts.iter().flat_map(|verdict| &verdict.problems);
    let problems: Vec<String> = problems.map(|problem| problem.whole.clone()).collect();
    let status = verdicts.iter().map(|verdict| verdict.status).max().unwrap_or_default();
    if arguments.json {
        let answer = to_json(&CheckDocument { schema: 1, profiles: verdicts });
        return Outcome { answer, problems: Vec::new(), status };
    }
    let answer = verdicts.iter().filter(|verdict| verdict.valid).map(Verdict::text).collect();
    Outcome { answer, problems, status }
}

impl<'a> Verdict<'a> {
    fn of(profile: &'a str, target: &Target) -> Self {
        let (problems, without_effect, status) = match target.load(profile) {
            Ok(loaded) => (Vec::new(), vain(&loaded), 0),
            Err(error) => (remarks(&error), Vec::new(), status_of(&error)),
        };
        Self { profile, valid: problems.is_empty(), problems, without_effect, status }
    }

    fn text(&self) -> String {
        let notes =
            self.without_effect.iter().map(|note| format!("  {}\n", printable(&note.whole)));
        std::iter::once(format!("{}: valid\n", printable(self.profile))).chain(notes).collect()
    }
}

impl Remark {
    fn at(location: Option<&Location>, message: String, whole: String) -> Self {
        Self {
            file: location.map(|place| place.file.to_string()),
            line: location.map(|place| place.line),
            column: location.map(|place| place.column),
            message,
            whole,
        }
    }
}

fn remarks(error: &ProfileError) -> Vec<Remark> {
    let problems = error.problems().iter();
    problems
        .map(|problem| {
            let message = problem.message.clone();
            Remark::at(problem.location.as_ref(), message, problem.to_string())
        })
        .collect()
}

fn vain(profile: &Profile) -> Vec<Remark> {
    let settings = profile.without_effect();
    let remark =
        |vain: &WithoutEffect| Remark::at(vain.location.as_ref(), vain.message(), vain.to_string());
    settings.iter().map(remark).collect()
}
