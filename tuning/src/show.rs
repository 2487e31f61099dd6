//! `spintune list`, `show`, `check` and `explain`.

use crate::report::{self, json_list};
use crate::{Answer, Outcome, Target, status_of};
use serde::Serialize;
use spinrpc::config::{KEYS, Key};
use spinrpc_tuning::Problem;
use spinrpc_tuning::printable::printable;

#[derive(clap::Args)]
pub(crate) struct ShowArguments {
    /// Name of a shipped profile, or path of a file
    #[arg(value_name = "PROFILE")]
    profile: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

#[derive(clap::Args)]
pub(crate) struct ListArguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
pub(crate) struct CheckArguments {
    /// Names of shipped profiles, or paths of files
    #[arg(required = true, value_name = "PROFILE")]
    profiles: Vec<String>,
    /// Print JSON, with all problems
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

#[derive(clap::Args)]
pub(crate) struct ExplainArguments {
    /// Full name of the key, such as rpc.credits, or a group, such as rpc
    #[arg(value_name = "KEY", conflicts_with = "markdown")]
    key: Option<String>,
    /// Print all keys as a Markdown document
    #[arg(long)]
    markdown: bool,
    /// Print JSON: the key, or all keys
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
}

pub(crate) fn show(arguments: &ShowArguments) -> Answer {
    let profile = arguments.target.load(&arguments.profile)?;
    let show = if arguments.json { report::json } else { report::text };
    Ok(Outcome::good(show(&profile)))
}

pub(crate) fn list(arguments: &ListArguments) -> Answer {
    Ok(Outcome::good(if arguments.json { report::list_json() } else { report::list() }))
}

pub(crate) fn explain(arguments: &ExplainArguments) -> Answer {
    Ok(Outcome::good(match &arguments.key {
        Some(name) => explain_some(name, arguments.json)?,
        None if arguments.json => report::explanations(KEYS),
        None if arguments.markdown => spinrpc_tuning::markdown(),
        None => spinrpc_tuning::reference(),
    }))
}

fn explain_some(name: &str, json: bool) -> Result<String, Outcome> {
    let named = |key: &&Key| key.name == name || key.parts().0 == name;
    let keys: Vec<&Key> = KEYS.iter().filter(named).collect();
    match keys[..] {
        [] => Err(Outcome::usage(spinrpc_tuning::unknown_key(name))),
        _ if json => Ok(report::explanations(keys)),
        _ => Ok(keys.into_iter().map(report::explanation).collect::<Vec<_>>().join("\n")),
    }
}

#[derive(Serialize)]
struct Verdict<'a> {
    profile: &'a str,
    valid: bool,
    problems: Vec<Problem>,
    without_effect: Vec<Problem>,
    #[serde(skip)]
    status: u8,
}

pub(crate) fn check(arguments: &CheckArguments) -> Answer {
    let names = arguments.profiles.iter();
    let verdicts: Vec<Verdict<'_>> =
        names.map(|name| Verdict::of(name, &arguments.target)).collect();
    let problems = verdicts.iter().flat_map(|verdict| &verdict.problems);
    let problems: Vec<String> = problems.map(ToString::to_string).collect();
    let status = verdicts.iter().map(|verdict| verdict.status).max().unwrap_or_default();
    if arguments.json {
        let answer = json_list("profiles", &verdicts);
        return Ok(Outcome { answer, problems: Vec::new(), status });
    }
    let answer = verdicts.iter().filter(|verdict| verdict.valid).map(Verdict::text).collect();
    Ok(Outcome { answer, problems, status })
}

impl<'a> Verdict<'a> {
    fn of(profile: &'a str, target: &Target) -> Self {
        let (problems, without_effect, status) = match target.load(profile) {
            Ok(loaded) => (Vec::new(), loaded.without_effect(), 0),
            Err(error) => (error.problems().to_vec(), Vec::new(), status_of(&error)),
        };
        Self { profile, valid: problems.is_empty(), problems, without_effect, status }
    }

    fn text(&self) -> String {
        let notes = self.without_effect.iter();
        let notes = notes.map(|note| format!("  {}\n", printable(&note.to_string())));
        std::iter::once(format!("{}: valid\n", printable(self.profile))).chain(notes).collect()
    }
}
