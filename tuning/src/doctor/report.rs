//! All findings of an examination, and their text: one line for each check, a summary, and remedies, the worst first.

use super::{CheckInput, Finding, Verdict};
use crate::printable::printable;
use serde::Serialize;
use spinrpc::config::Choice;
use std::collections::BTreeMap;
use std::fmt::Write;

#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// Stable name for programs: `cpus.isolated`.
    pub id: &'static str,
    pub group: &'static str,
    pub title: &'static str,
    #[serde(flatten)]
    pub finding: Finding,
}

/// Result of an examination. Its JSON form is version [`Report::SCHEMA`]: fields may be added, but
/// keep their names and meanings.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub schema: u32,
    pub host: String,
    pub profile: String,
    pub profile_hash: String,
    /// CPUs that are polled on: all that the process may use, if cores are not pinned.
    pub cores: Vec<usize>,
    pub poll_mode: &'static str,
    pub fabric: &'static str,
    pub tried: bool,
    pub verdict: Verdict,
    pub counts: BTreeMap<Verdict, usize>,
    pub checks: Vec<Check>,
}

impl Report {
    pub const SCHEMA: u32 = 1;

    pub(super) fn new(input: &CheckInput<'_>, checks: Vec<Check>) -> Self {
        let count = |verdict| checks.iter().filter(|one| one.finding.verdict == verdict).count();
        let config = input.config();
        let name = input.facts.kernel.host_name.clone().filter(|name| name != "(none)");
        Self {
            schema: Self::SCHEMA,
            host: name.unwrap_or_else(|| "(no name)".to_owned()),
            profile: input.profile.name().to_owned(),
            profile_hash: format!("{:016x}", input.profile.hash()),
            cores: match config.pins_cores() {
                true => config.cpus().to_vec(),
                false => input.cores().iter().collect(),
            },
            poll_mode: input.mode().name(),
            fabric: config.driver().name(),
            tried: input.tried.is_some(),
            verdict: checks.iter().map(|one| one.finding.verdict).max().unwrap_or(Verdict::Ok),
            counts: Verdict::ALL.map(|verdict| (verdict, count(verdict))).into(),
            checks,
        }
    }

    /// With `strict`, warnings count as failures.
    pub fn is_good(&self, strict: bool) -> bool {
        self.verdict < if strict { Verdict::Warn } else { Verdict::Fail }
    }

    pub fn check(&self, id: &str) -> Option<&Check> {
        self.checks.iter().find(|check| check.id == id)
    }

    /// Text that ends with a line feed. With `all`, notes have their remedies, too.
    pub fn render(&self, all: bool) -> String {
        let mut text = self.head();
        text.push_str(&self.table());
        // Writing to a string does not fail.
        let _ = writeln!(text, "\n{}", self.summary());
        text.push_str(&self.remedies(if all { Verdict::Ok } else { Verdict::Warn }));
        text
    }

    fn head(&self) -> String {
        let cores: Vec<String> = self.cores.iter().map(ToString::to_string).collect();
        let tried = if self.tried { "" } else { ", read only, without tests" };
        format!(
            "host {}{tried}\nprofile {} ({}): polls on {} ({}), uses {}\n",
            printable(&self.host),
            printable(&self.profile),
            self.profile_hash,
            cores.join(","),
            self.poll_mode,
            self.fabric,
        )
    }

    fn table(&self) -> String {
        let width = self.checks.iter().map(|check| check.id.len()).max().unwrap_or_default();
        let mut text = String::new();
        let mut group = "";
        for check in &self.checks {
            if check.group != group {
                group = check.group;
                let _ = writeln!(text, "\n{group}");
            }
            let (id, says) = (check.id, printable(&check.finding.says));
            let _ = writeln!(text, "  {:<7}  {id:<width$}  {says}", check.finding.verdict);
        }
        text
    }

    /// One line: `doctor: 2 failures, 3 warnings on HOST for profile latency`.
    pub fn summary(&self) -> String {
        let counted = |verdict, one: &str, many: &str| match self.counts.get(&verdict)? {
            0 => None,
            1 => Some(format!("1 {one}")),
            count => Some(format!("{count} {many}")),
        };
        let parts = [
            counted(Verdict::Fail, "failure", "failures"),
            counted(Verdict::Warn, "warning", "warnings"),
            counted(Verdict::Info, "note", "notes"),
            counted(Verdict::Unknown, "unknown", "unknown"),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        let counts = if parts.is_empty() { "no problems".to_owned() } else { parts.join(", ") };
        let (host, profile) = (printable(&self.host), printable(&self.profile));
        format!("doctor: {counts} on {host} for profile {profile}")
    }

    fn remedies(&self, from: Verdict) -> String {
        let counts =
            |check: &&Check| check.finding.remedy.is_some() && check.finding.verdict >= from;
        let mut checks: Vec<&Check> = self.checks.iter().filter(counts).collect();
        checks.sort_by_key(|check| std::cmp::Reverse(check.finding.verdict));
        let advice: String = checks.into_iter().map(advice).collect();
        if advice.is_empty() { advice } else { format!("\nRemedies\n{advice}") }
    }
}

fn advice(check: &Check) -> String {
    let finding = &check.finding;
    let says = printable(&finding.says);
    let mut text = format!("\n  {} {}: {says}\n", finding.verdict, check.id);
    for evidence in &finding.evidence {
        let _ = writeln!(
            text,
            "    seen  {}: {}",
            printable(&evidence.source),
            one_line(&evidence.value)
        );
    }
    let Some(remedy) = &finding.remedy else { return text };
    if !remedy.says.is_empty() {
        let _ = writeln!(text, "    do    {}", printable(&remedy.says));
    }
    for command in &remedy.commands {
        let _ = writeln!(text, "      $ {}", printable(command));
    }
    text
}

fn one_line(value: &str) -> String {
    value.lines().map(printable).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_several_lines_stay_on_one() {
        assert_eq!(one_line("a\nb"), "a; b");
        assert!(Verdict::Fail > Verdict::Warn && Verdict::Unknown < Verdict::Info);
    }
}
