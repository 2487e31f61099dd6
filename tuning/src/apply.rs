//! `spintune plan`, `apply` and `revert`: apply a profile to a host, and undo it.

use crate::report::{json_list, table, to_json};
use crate::{Answer, Outcome, Target, at_root};
use serde_json::json;
use spinrpc_tuning::Profile;
use spinrpc_tuning::fit::{self, Change, FitError, Journal, Plan, Site, Step};
use spinrpc_tuning::host::{Cpus, Tree};
use spinrpc_tuning::printable::{shell_comment, shell_word};
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct PlanArguments {
    #[command(flatten)]
    fit: ApplyArguments,
    /// Plan for the host of this record, or whose files lie below this directory, instead of this
    /// one. Links do not lead out of DIR
    #[arg(long, value_name = "RECORD|DIR")]
    root: Option<PathBuf>,
}

#[derive(clap::Args)]
pub(crate) struct ApplyArguments {
    /// Name of a shipped profile, or path of a file
    #[arg(long, value_name = "PROFILE")]
    profile: String,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    target: Target,
}

#[derive(clap::Args)]
pub(crate) struct Place {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn plan(arguments: &PlanArguments) -> Answer {
    let PlanArguments { fit, root } = arguments;
    // A script for another host has the paths of that host.
    let (site, tree) = match root {
        Some(path) => (Site::host(), at_root(path, Tree::open(path))?),
        None => (Place::site(), Place::site().tree()),
    };
    let profile = fit.load(&tree)?;
    let journal = if root.is_some() { Journal::default() } else { Journal::load(&site)? };
    let plan = Plan::of(&tree, &profile, &journal);
    let answer = match fit.place.json {
        true => to_json(&json!({
            "schema": 1, "profile": profile.name(), "hash": format!("{:016x}", profile.hash()),
            "fits": plan.is_empty(), "changes": plan.changes, "advice": plan.advice,
        })),
        false => script(&site, root.is_some(), &profile, &plan),
    };
    Ok(Outcome { answer, problems: Vec::new(), status: u8::from(!plan.is_empty()) })
}

pub(crate) fn apply(arguments: &ApplyArguments) -> Answer {
    let site = Place::site();
    let profile = arguments.load(&site.tree())?;
    changed(&arguments.place, &site, || fit::apply(&site, &profile))
}

pub(crate) fn revert(place: &Place) -> Answer {
    let site = Place::site();
    changed(place, &site, || fit::revert(&site))
}

impl ApplyArguments {
    fn load(&self, tree: &Tree) -> Result<Profile, Outcome> {
        Ok(self.target.load_on(&self.profile, || Cpus::read(tree).for_engine())?)
    }
}

impl Place {
    /// This host. Tests name a directory that stands for its root.
    fn site() -> Site {
        Site::new(&std::env::var_os("SPINTUNE_TEST_ROOT").map_or("/".into(), PathBuf::from))
    }
}

fn changed(
    place: &Place,
    site: &Site,
    change: impl FnOnce() -> Result<Vec<Step>, FitError>,
) -> Answer {
    if site.is_this_host() && !rustix::process::geteuid().is_root() {
        let problem = "only root may change the host; spintune plan prints what it would do";
        return Err(Outcome::failed(problem));
    }
    Ok(told(place, site, change()?))
}

fn told(place: &Place, site: &Site, steps: Vec<Step>) -> Outcome {
    let (good, bad): (Vec<&Step>, Vec<&Step>) = steps.iter().partition(|step| step.is_good());
    let problems: Vec<String> = bad.into_iter().map(|step| problem(site, step)).collect();
    let status = u8::from(!problems.is_empty());
    let answer = match place.json {
        true => json_list("steps", &steps),
        false if steps.is_empty() => "nothing to change\n".to_owned(),
        false => {
            let row = |step: &&Step| {
                let file = site.path(&step.path).display().to_string();
                [step.item.clone(), file, format!("{} -> {}", step.from, step.to)]
            };
            table(&good.iter().map(row).collect::<Vec<_>>())
        }
    };
    Outcome { answer, problems, status }
}

fn problem(site: &Site, step: &Step) -> String {
    let Step { item, path, from, to, outcome, .. } = step;
    let file = site.path(path).display().to_string();
    match outcome {
        fit::Outcome::Set => format!("{item}: {file}: {from} -> {to}"),
        fit::Outcome::Partly(now) => {
            format!("{item}: {file}: has {now}, although {to} was written")
        }
        fit::Outcome::Failed(why) => format!("{item}: {file}: still {from}, not {to}: {why}"),
        _ => format!("{item}: {file}: another program has set it to {from}; not changed to {to}"),
    }
}

fn script(site: &Site, is_elsewhere: bool, profile: &Profile, plan: &Plan) -> String {
    let (name, hash) = (profile.name(), profile.hash());
    let host = if is_elsewhere { "the host given by --root" } else { "this host" };
    let head = format!("Changes that {host} needs to fit profile {name} ({hash:016x}).");
    let mut text = shell_comment(&head);
    if is_elsewhere {
        text.push_str(&shell_comment(ELSEWHERE));
    }
    if plan.is_empty() {
        text.push_str(&shell_comment("Nothing to change."));
    }
    for Change { item, path, from, to, reason, .. } in &plan.changes {
        let file = shell_word(site.path(path));
        let set = |value: &str| format!("echo {} > {file}", shell_word(value));
        text.push('\n');
        text.push_str(&shell_comment(&format!("{item}: {reason}")));
        text.push_str(&shell_comment(&format!("To undo: {}", set(from))));
        text.push_str(&set(to));
        text.push('\n');
    }
    for advice in &plan.advice {
        text.push('\n');
        text.push_str(&shell_comment(&format!("By hand: {}", advice.reason)));
        text.push_str(&shell_comment(&advice.what));
    }
    text
}

const ELSEWHERE: &str = "Made with --root: what was applied to that host before is not known. A record has only the files that \
                         spintune reads, and does not say which of them can be set.";
