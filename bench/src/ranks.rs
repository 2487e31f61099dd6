//! Ranks: processes of one job that measure together, as `mpirun`, `srun` or a remote shell starts
//! them. Each learns its number from its environment or from options.

use crate::failure::Failure;
use crate::units::parse_time;
use clap::Args;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rank {
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    /// Name of the job. Ranks of other jobs at the same server are not waited for.
    pub(crate) job: String,
}

/// Options of processes that measure together.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Ranks (processes of a job that start each repeat together)")]
pub(crate) struct RankArgs {
    /// Number of this process, from 0 [default: from srun, mpirun, or PMI]
    #[arg(long, requires = "ranks")]
    pub(crate) rank: Option<u32>,
    /// Number of processes; 1 measures alone [default: from srun, mpirun, or PMI]
    #[arg(long)]
    pub(crate) ranks: Option<u32>,
    /// Name of the job: ranks wait for those of the same job [default: from the launcher]
    #[arg(long, value_name = "NAME")]
    pub(crate) rank_job: Option<String>,
    /// Maximum wait for the other ranks before each repeat
    #[arg(long, default_value = "30s", value_parser = parse_time)]
    pub(crate) rank_wait: Duration,
}

impl Rank {
    /// This process's rank; `None` if it measures alone.
    pub(crate) fn find(given: &RankArgs) -> Result<Option<Self>, Failure> {
        Self::find_in(given, |name| std::env::var(name).ok())
    }

    fn find_in(
        given: &RankArgs,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, Failure> {
        let launched = LAUNCHERS.iter().find(|one| variable(one.rank).is_some());
        let launched = launched.filter(|one| one.needs.is_none_or(|name| variable(name).is_some()));
        let (rank, ranks, job) = match (given.rank, given.ranks, launched) {
            (None, Some(1), _) | (None, None, None) => return Ok(None),
            (Some(rank), Some(ranks), _) => (rank, ranks, None),
            (_, _, None) => {
                return Err(Failure::Usage(
                    "--ranks needs --rank, outside of a launcher".to_owned(),
                ));
            }
            (_, ranks, Some(launcher)) => {
                let number = |name: &str| variable(name).map(|text| parse(name, &text)).transpose();
                let rank = number(launcher.rank)?.unwrap_or(0);
                let known = launcher.ranks.iter().find(|name| variable(name).is_some());
                let known = known.map_or(Ok(None), |name| number(name))?;
                let job = launcher.job.iter().map_while(|name| variable(name));
                let job: Vec<String> = job.collect();
                let Some(ranks) = ranks.or(known) else {
                    let names = launcher.ranks.join(" or ");
                    return Err(Failure::Usage(format!(
                        "{} is set, and {names} is not: add --ranks",
                        launcher.rank
                    )));
                };
                (rank, ranks, (!job.is_empty()).then(|| job.join(".")))
            }
        };
        let job = given.rank_job.clone().or(job).unwrap_or_else(|| JOB.to_owned());
        Self { rank, ranks, job: job.chars().take(JOB_CHARS_MAX).collect() }.checked()
    }

    fn checked(self) -> Result<Option<Self>, Failure> {
        let Self { rank, ranks, .. } = self;
        if !(1..=RANKS_MAX).contains(&ranks) || rank >= ranks {
            return Err(Failure::Usage(format!(
                "rank {rank} of {ranks}: ranks count from 0, and there may be {RANKS_MAX}"
            )));
        }
        Ok((ranks > 1).then_some(self))
    }

    /// The same rank in one run of a suite. Its ranks meet under a name of their own, so that one
    /// that has failed a run and goes on is not taken for one that came to the run before.
    pub(crate) fn in_run(self, run: &str) -> Self {
        Self { job: format!("{}/{run}", self.job), ..self }
    }

    /// `out.json` becomes `out.rank03.json`: with as many digits as the last rank, so that files sort.
    pub(crate) fn file(&self, path: &Path) -> PathBuf {
        let digits = (self.ranks - 1).to_string().len();
        let own = format!("rank{:0digits$}", self.rank);
        let extension = path.extension().map(|extension| extension.to_string_lossy().into_owned());
        path.with_extension(match extension {
            Some(extension) => format!("{own}.{extension}"),
            None => own,
        })
    }
}

fn parse(name: &str, text: &str) -> Result<u32, Failure> {
    text.trim().parse().map_err(|_| {
        Failure::Usage(format!("{name} is {text:?} in the environment, which is not a number"))
    })
}

struct Launcher {
    rank: &'static str,
    /// The first of these that is set.
    ranks: &'static [&'static str],
    /// Together they name the job.
    job: &'static [&'static str],
    /// Without this variable the others say nothing.
    needs: Option<&'static str>,
}

/// In this order: `mpirun` within an allocation of Slurm sets those of both.
const LAUNCHERS: &[Launcher] = &[
    Launcher {
        rank: "OMPI_COMM_WORLD_RANK",
        ranks: &["OMPI_COMM_WORLD_SIZE"],
        job: &["PMIX_NAMESPACE"],
        needs: None,
    },
    Launcher { rank: "PMI_RANK", ranks: &["PMI_SIZE"], job: &["PMI_JOBID"], needs: None },
    Launcher {
        rank: "SLURM_PROCID",
        ranks: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        job: &["SLURM_JOB_ID", "SLURM_STEP_ID"],
        // A batch script has a number, too, and is alone.
        needs: Some("SLURM_STEP_ID"),
    },
];
pub(crate) const RANKS_MAX: u32 = 4096;
/// Longest name of a job, without that of its run.
const JOB_CHARS_MAX: usize = 64;
/// Longest name of a run, in letters of ASCII.
pub(crate) const RUN_BYTES_MAX: usize = 64;
/// Longest `JOB/RUN`: a character of a job's name has at most four bytes.
pub(crate) const JOB_BYTES_MAX: usize = JOB_CHARS_MAX * 4 + 1 + RUN_BYTES_MAX;
const JOB: &str = "spinperf";

#[cfg(test)]
mod tests {
    use super::*;

    fn find(given: &RankArgs, variables: &[(&str, &str)]) -> Result<Option<Rank>, String> {
        let variable = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Rank::find_in(given, variable).map_err(|failure| failure.to_string())
    }

    fn found(variables: &[(&str, &str)]) -> Option<(u32, u32, String)> {
        find(&RankArgs::default(), variables).unwrap().map(|one| (one.rank, one.ranks, one.job))
    }

    #[test]
    fn every_launcher_tells_rank_number_and_job() {
        let slurm = [
            ("SLURM_PROCID", "3"),
            ("SLURM_NTASKS", "8"),
            ("SLURM_JOB_ID", "17"),
            ("SLURM_STEP_ID", "0"),
        ];
        assert_eq!(found(&slurm), Some((3, 8, "17.0".to_owned())));
        let open = [
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("PMIX_NAMESPACE", "99"),
        ];
        assert_eq!(found(&open), Some((1, 4, "99".to_owned())));
        assert_eq!(found(&[&slurm[..], &open].concat()), Some((1, 4, "99".to_owned())));
        assert_eq!(
            found(&[("PMI_RANK", "0"), ("PMI_SIZE", "2")]),
            Some((0, 2, "spinperf".to_owned()))
        );
    }

    #[test]
    fn a_process_alone_is_no_rank() {
        assert_eq!(found(&[]), None);
        assert_eq!(found(&[("PMI_RANK", "0"), ("PMI_SIZE", "1")]), None);
        // A batch script of Slurm.
        assert_eq!(found(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")]), None);
        let alone = RankArgs { ranks: Some(1), ..RankArgs::default() };
        let open = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "4")];
        assert_eq!(find(&alone, &open), Ok(None));
    }

    #[test]
    fn options_come_first_and_wrong_ones_are_told() {
        let rank_job = Some("night".to_owned());
        let given = |rank, ranks| RankArgs {
            rank,
            ranks,
            rank_job: rank_job.clone(),
            ..RankArgs::default()
        };
        let open = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "4")];
        let rank = find(&given(Some(5), Some(6)), &open).unwrap().unwrap();
        assert_eq!((rank.rank, rank.ranks, &*rank.job), (5, 6, "night"));
        for (given, variables, told) in [
            (given(Some(4), Some(4)), &open[..], "count from 0"),
            (given(None, Some(4)), &[], "--rank"),
            (given(None, None), &[("PMI_RANK", "1")], "PMI_SIZE"),
            (given(None, None), &[("PMI_RANK", "x"), ("PMI_SIZE", "2")], "not a number"),
            (given(Some(0), Some(1 << 20)), &[], "4096"),
        ] {
            let error = find(&given, variables).unwrap_err();
            assert!(error.contains(told), "{error}");
        }
    }

    #[test]
    fn files_of_ranks_sort_by_rank() {
        let rank = |rank, ranks| Rank { rank, ranks, job: String::new() };
        assert_eq!(rank(3, 12).file(Path::new("a/out.json")), Path::new("a/out.rank03.json"));
        assert_eq!(rank(3, 4).file(Path::new("out")), Path::new("out.rank3"));
    }
}
