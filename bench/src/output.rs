//! What a measuring command does with its report: prints it, writes it to files, and compares it
//! with an earlier one.
//!
//! The commands open the [`Outputs`] before they measure and deliver the report to them after.

use crate::compare::{Comparison, Condition, Document};
use crate::failure::Failure;
use crate::report::sink::Sink;
use crate::report::{Report, csv, table};
use clap::Args;
use std::path::PathBuf;

/// Options that say where results go besides standard output.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Output")]
pub(crate) struct OutputArgs {
    /// Also write everything to this file, schema spinperf/2
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Also write a line per row and repeat to this file, as comma-separated values with a header
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Compare the result with this report, which --json wrote
    #[arg(long, value_name = "FILE")]
    pub(crate) baseline: Option<PathBuf>,
    /// End with exit code 1 when this change against the baseline is more than noise, such as
    /// "p99>+10%", "rate<-5%" or "p50>+3% in echo"; see spinperf compare --help
    #[arg(long, value_name = "CONDITION", requires = "baseline")]
    pub(crate) fail_if: Vec<Condition>,
}

/// Everything that a report goes to.
pub(crate) struct Outputs {
    json: Sink,
    csv: Sink,
    baseline: Option<(String, Document)>,
    conditions: Vec<Condition>,
}

impl Outputs {
    /// Opens every file, and reads the baseline.
    pub(crate) fn open(args: &OutputArgs) -> Result<Self, Failure> {
        let read = |path: &PathBuf| {
            let document = Document::read(path).map_err(Failure::Usage)?;
            Ok::<_, Failure>((path.display().to_string(), document))
        };
        Ok(Self {
            baseline: args.baseline.as_ref().map(read).transpose()?,
            json: Sink::open(args.json.as_deref())?,
            csv: Sink::open(args.csv.as_deref())?,
            conditions: args.fail_if.clone(),
        })
    }

    /// Prints and writes a report, and then judges it by the baseline, if there is one.
    pub(crate) fn deliver(self, report: &Report) -> Result<(), Failure> {
        print!("{}", table::render(report));
        self.json.write_json(report)?;
        self.csv.write(|| csv::render(report))?;
        let Some((name, baseline)) = self.baseline else { return Ok(()) };
        let now = Document::of(report).map_err(Failure::Measurement)?;
        let names = [name, "this run".to_owned()];
        let comparison = Comparison::new(names, [&baseline, &now], &self.conditions)?;
        print!("\n{}", comparison.render());
        comparison.verdict()
    }
}
