//! `spintune diff`: compares two profiles.

use crate::report::{JsonSetting, shown, table, to_json};
use crate::{Outcome, Target};
use serde::Serialize;
use spinrpc_tuning::{Profile, Setting};

/// Arguments of `spintune diff`.
#[derive(clap::Args)]
pub(crate) struct DiffArguments {
    /// Name of a shipped profile, or path of a file
    a: String,
    /// Profile to compare it with
    b: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

pub(crate) const EXAMPLES: &str = "\
Examples:
  spintune diff latency throughput
  spintune diff base site.toml --json            how a site differs from the defaults

Exit status: 0 the profiles are equal, 1 they differ or one is invalid, 2 usage error.";

/// A key that two profiles set to different values.
type Pair<'a> = (Setting<'a>, Setting<'a>);

pub(crate) fn diff(arguments: &DiffArguments) -> Outcome {
    let load = |name: &String| arguments.target.load(name).map_err(|e| Outcome::unloaded(&e));
    let (a, b) = match (load(&arguments.a), load(&arguments.b)) {
        (Ok(a), Ok(b)) => (a, b),
        (a, b) => {
            let wrong: Vec<Outcome> = [a.err(), b.err()].into_iter().flatten().collect();
            let status = wrong.iter().map(|outcome| outcome.status).max().unwrap_or_default();
            let problems = wrong.into_iter().flat_map(|outcome| outcome.problems).collect();
            return Outcome { answer: String::new(), problems, status };
        }
    };
    let differing = |(a, b): &Pair<'_>| a.value != b.value || a.resolved != b.resolved;
    let pairs: Vec<Pair<'_>> = a.settings().zip(b.settings()).filter(differing).collect();
    let answer = if arguments.json { json(&a, &b, &pairs) } else { text(&a, &b, &pairs) };
    Outcome { answer, problems: Vec::new(), status: u8::from(!pairs.is_empty()) }
}

fn text(a: &Profile, b: &Profile, pairs: &[Pair<'_>]) -> String {
    if pairs.is_empty() {
        return String::new();
    }
    let head = ["KEY", a.name(), "FROM", b.name(), "FROM", "UNIT"].map(str::to_owned);
    let row = |(a, b): &Pair<'_>| {
        let (from_a, from_b) = (a.source.to_string(), b.source.to_string());
        [a.key.name.to_owned(), shown(a), from_a, shown(b), from_b, a.key.unit.to_owned()]
    };
    table(&std::iter::once(head).chain(pairs.iter().map(row)).collect::<Vec<_>>())
}

#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    a: &'a str,
    b: &'a str,
    keys: Vec<Difference>,
}

#[derive(Serialize)]
struct Difference {
    key: &'static str,
    unit: &'static str,
    a: JsonSetting,
    b: JsonSetting,
}

fn json(a: &Profile, b: &Profile, pairs: &[Pair<'_>]) -> String {
    let difference = |(a, b): &Pair<'_>| Difference {
        key: a.key.name,
        unit: a.key.unit,
        a: a.into(),
        b: b.into(),
    };
    let keys = pairs.iter().map(difference).collect();
    to_json(&Document { schema: 1, a: a.name(), b: b.name(), keys })
}
