//! Output of a report: prints it, writes it to files, and compares it with an earlier one.
//!
//! The commands open the [`Outputs`] before they measure, and deliver the report to them afterwards.

use crate::compare::{Comparison, Condition, Document};
use crate::console::{Sink, is_standard_output, say_to_people};
use crate::failure::Failure;
use crate::ranks::Rank;
use crate::report::{Report, table};
use clap::Args;
use spinrpc::{CaptureCounters, CaptureSink};
use std::path::{Path, PathBuf};

/// Options for results in addition to standard output.
#[derive(Args, Clone, Debug, Default)]
#[command(
    next_help_heading = "Output (FILE may be -, standard output: the table then goes to standard error)"
)]
pub(crate) struct OutputArgs {
    /// Also write all results to this file, schema spinperf/3 [without FILE: standard output]
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub(crate) json: Option<PathBuf>,
    /// Compare the result with this report, written by --json
    #[arg(long, value_name = "FILE")]
    pub(crate) baseline: Option<PathBuf>,
    /// End with exit code 1 if this change against the baseline exceeds noise, such as "p99>+10%",
    /// "max>+50%", "rate<-5%" or "p50>+3% in echo", or with 125 if the repeats were too disturbed to
    /// tell; see spinperf compare --help
    #[arg(long, value_name = "CONDITION", requires = "baseline")]
    pub(crate) fail_if: Vec<Condition>,
}

impl OutputArgs {
    /// Ranks share standard output, and have no baseline of their own: either is an error.
    pub(crate) fn of_rank(&self, rank: &Rank) -> Result<Self, Failure> {
        if self.json.as_deref().is_some_and(is_standard_output) {
            return Err(Failure::Usage("- is for one process: ranks need files".to_owned()));
        }
        if self.baseline.is_some() {
            let message = "--baseline cannot be used with ranks; spinperf merge has it";
            return Err(Failure::Usage(message.to_owned()));
        }
        Ok(Self { json: self.json.as_ref().map(|path| rank.file(path)), ..Self::default() })
    }

    /// Rejects a report and a capture in one file, before either is written.
    pub(crate) fn check_files(&self, capture: Option<&Path>) -> Result<(), Failure> {
        let json = self.json.as_deref().filter(|path| !is_standard_output(path));
        let (Some(json), Some(capture)) = (json, capture) else { return Ok(()) };
        match (place_of(json), place_of(capture)) {
            (Some(one), Some(other)) if one == other => Err(Failure::Usage(format!(
                "{} and {} are the same file; each output needs its own",
                json.display(),
                capture.display()
            ))),
            _ => Ok(()),
        }
    }
}

/// Also of a file that does not exist yet; `None` for pipes and devices, which may take several outputs.
pub(crate) fn place_of(path: &Path) -> Option<PathBuf> {
    match path.canonicalize() {
        Ok(there) => there.is_file().then_some(there),
        Err(_) => Some(canonical(or_here(path.parent()?)).join(path.file_name()?)),
    }
}

/// A canonical path as far as there are folders.
fn canonical(path: &Path) -> PathBuf {
    let known = path.ancestors().find_map(|above| {
        Some(or_here(above).canonicalize().ok()?.join(path.strip_prefix(above).ok()?))
    });
    known.unwrap_or_else(|| path.to_owned())
}

fn or_here(folder: &Path) -> &Path {
    if folder == Path::new("") { Path::new(".") } else { folder }
}

pub(crate) struct Outputs {
    json: Sink,
    is_output_taken: bool,
    baseline: Option<(String, Document)>,
    conditions: Vec<Condition>,
}

impl Outputs {
    pub(crate) fn open(args: &OutputArgs) -> Result<Self, Failure> {
        let read = |path: &PathBuf| {
            let document = Document::read(path).map_err(Failure::Usage)?;
            Ok::<_, Failure>((path.display().to_string(), document))
        };
        Ok(Self {
            json: Sink::open(args.json.as_deref())?,
            is_output_taken: args.json.as_deref().is_some_and(is_standard_output),
            baseline: args.baseline.as_ref().map(read).transpose()?,
            conditions: args.fail_if.clone(),
        })
    }

    pub(crate) fn deliver(self, mut report: Report) -> Result<(), Failure> {
        report.explain();
        report.note_validity();
        let report = &report;
        self.json.write(|| Ok(serde_json::to_string_pretty(report)? + "\n"))?;
        // The terminal has the table of one rank.
        if report.rank.as_ref().is_none_or(|rank| rank.rank == 0) {
            say_to_people(self.is_output_taken, &table::render(report))?;
        }
        let Some((name, baseline)) = self.baseline else { return Ok(()) };
        let now = Document::of(report).map_err(Failure::Measurement)?;
        let names = [name, "this run".to_owned()];
        let comparison = Comparison::new(names, [&baseline, &now], &self.conditions)?;
        say_to_people(self.is_output_taken, &format!("\n{}", comparison.render()))?;
        comparison.verdict()
    }
}

/// `--capture FILE`: makes the engine capture to the file, and reports the result.
pub(crate) struct Capture {
    path: PathBuf,
    counters: CaptureCounters,
}

impl Capture {
    pub(crate) fn open(path: Option<&Path>) -> Result<Option<(Self, CaptureSink)>, Failure> {
        let Some(path) = path else { return Ok(None) };
        if is_standard_output(path) {
            return Err(Failure::Usage(NOT_TO_OUTPUT.to_owned()));
        }
        let failed = |error| Failure::system(format!("opening {}", path.display()), error);
        let sink = CaptureSink::create(path).map_err(failed)?;
        Ok(Some((Self { path: path.to_owned(), counters: sink.counters() }, sink)))
    }

    /// For after the cores have stopped. Fails if the file could not be written.
    pub(crate) fn outcome(&self) -> Result<String, Failure> {
        let path = self.path.display();
        if let Some(failure) = self.counters.failure() {
            return Err(Failure::Measurement(format!("writing {path}: {failure}")));
        }
        let (written, dropped) = (self.counters.written(), self.counters.dropped());
        Ok(format!(
            "captured {written} packets to {path}, {dropped} dropped; \
             rates and latencies include capturing"
        ))
    }
}

const NOT_TO_OUTPUT: &str =
    "--capture takes a file or a named pipe, not - for standard output, which has the table";
