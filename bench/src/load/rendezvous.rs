//! Ranks of a job meet at the server to start each repeat together.
//!
//! A rank says JOIN again and again. When all ranks of a round are there, the server sets its start
//! a little into the future, and answers how far that is. The state is shared by the server's cores,
//! and touched before a measurement only.

use super::program::{RANKS_SHOWN, REFUSAL_BYTES_MAX};
use crate::failure::Failure;
use crate::ranks::{self, RANKS_MAX, Rank};
use crate::units::joined;
use spinrpc::{DecodeError, Decoder, Encoder};
use spinrpc_xdr::{Text, Xdr};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub(super) struct Join<'a> {
    job: Text<'a, JOB_BYTES_MAX>,
    rank: u32,
    ranks: u32,
    /// Distinguishes the process from another one with the same rank.
    process: u64,
    round: u32,
}

impl<'a> Join<'a> {
    pub(super) fn new(rank: &'a Rank, process: u64, round: u32) -> Result<Self, Failure> {
        let job = Text::new(&rank.job).map_err(|error| Failure::Usage(error.to_string()))?;
        Ok(Self { job, rank: rank.rank, ranks: rank.ranks, process, round })
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Joined {
    /// Reason why the rank may not take part; empty if it may.
    pub(super) refusal: String,
    /// Time until the start, once all ranks are there.
    pub(super) start_in: Option<Duration>,
    /// Number of ranks that have not come, and the first of them.
    pub(super) missing: u32,
    pub(super) first_missing: Vec<u32>,
}

impl Joined {
    pub(super) fn encode(&self, results: &mut Encoder<'_>) {
        results.opaque(self.refusal.as_bytes());
        results.u32(u32::from(self.start_in.is_some()));
        results.u64(self.start_in.unwrap_or_default().as_nanos() as u64);
        results.u32(self.missing);
        results.u32(self.first_missing.len() as u32);
        self.first_missing.iter().for_each(|rank| results.u32(*rank));
    }

    pub(super) fn decode(mut results: Decoder<'_>) -> Result<Self, DecodeError> {
        let refusal = results.string(REFUSAL_BYTES_MAX as usize)?.to_owned();
        let is_set = results.u32()? != 0;
        let start_in = Duration::from_nanos(results.u64()?.min(START_NS_MAX));
        let missing = results.u32()?;
        let count = (results.u32()? as usize).min(RANKS_SHOWN);
        let first_missing = (0..count).map(|_| results.u32()).collect::<Result<_, _>>()?;
        Ok(Self { refusal, start_in: is_set.then_some(start_in), missing, first_missing })
    }

    pub(super) fn shown(&self, ranks: u32) -> String {
        let more = if self.missing as usize > self.first_missing.len() { ", ..." } else { "" };
        format!("{} of {ranks} ranks ({}{more})", self.missing, joined(&self.first_missing, ", "))
    }
}

/// Time between two questions of a rank; a large job must not flood the server.
pub(super) fn pause(ranks: u32) -> Duration {
    Duration::from_millis(u64::from(ranks / 16).max(1))
}

/// The jobs whose ranks meet here; `C` names the connection of a rank among all of the server.
#[derive(Debug)]
pub(super) struct Rendezvous<C>(BTreeMap<String, Job<C>>);

impl<C> Default for Rendezvous<C> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

#[derive(Debug)]
struct Job<C> {
    ranks: u32,
    members: BTreeMap<u32, Member<C>>,
    /// The last round that all came to, and its start.
    started: Option<(u32, Instant)>,
    seen: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Member<C> {
    process: u64,
    round: u32,
    seen: Instant,
    /// `None` if it is down: the process has ended, or has begun another run.
    connection: Option<C>,
}

impl<C: Copy + PartialEq> Rendezvous<C> {
    pub(super) fn join(&mut self, join: &Join<'_>, connection: C, now: Instant) -> Joined {
        let Join { rank, ranks, .. } = *join;
        let job = join.job.text();
        if !(2..=RANKS_MAX).contains(&ranks) || rank >= ranks {
            return refused(format!("rank {rank} of {ranks} cannot be"));
        }
        if !self.0.contains_key(job) && self.0.len() >= JOBS_MAX {
            let over = self.0.iter().filter(|(_, job)| !job.is_live());
            let oldest = over.min_by_key(|(_, job)| job.seen).map(|(name, _)| name.clone());
            let Some(oldest) = oldest else {
                return refused(format!("the server has {JOBS_MAX} jobs, and all have ranks here"));
            };
            self.0.remove(&oldest);
        }
        let entry = self.0.entry(job.to_owned()).or_insert_with(|| Job::new(ranks, now));
        entry.join(join, connection, now)
    }

    pub(super) fn forget(&mut self, connection: C) {
        let members = self.0.values_mut().flat_map(|job| job.members.values_mut());
        let of_it = members.filter(|member| member.connection == Some(connection));
        of_it.for_each(|member| member.connection = None);
    }
}

impl<C: Copy + PartialEq> Job<C> {
    fn new(ranks: u32, seen: Instant) -> Self {
        Self { ranks, members: BTreeMap::new(), started: None, seen }
    }

    fn is_live(&self) -> bool {
        self.members.values().any(|member| member.connection.is_some())
    }

    fn is_stranger(&self, join: &Join) -> bool {
        let known = self.members.get(&join.rank).map(|member| member.process);
        let is_other = known != Some(join.process) || join.ranks != self.ranks;
        self.started.is_some() && is_other
    }

    fn join(&mut self, join: &Join<'_>, connection: C, now: Instant) -> Joined {
        let Join { rank, ranks, process, round, .. } = *join;
        if let Some(refusal) = self.refusal(join, now) {
            return refused(refusal);
        }
        if self.is_stranger(join) || ranks != self.ranks {
            *self = Self::new(ranks, now);
        }
        self.seen = now;
        self.members
            .insert(rank, Member { process, round, seen: now, connection: Some(connection) });
        if let Some((_, start)) = self.started.filter(|(started, _)| *started == round) {
            let start_in = Some(start.saturating_duration_since(now));
            return Joined { start_in, ..Joined::default() };
        }
        let joined = self.missing(round, now);
        if joined.missing > 0 {
            return joined;
        }
        // All others ask once more before that.
        let lead = LEAD + pause(ranks) * 2;
        self.started = Some((round, now + lead));
        Joined { start_in: Some(lead), ..Joined::default() }
    }

    /// The ranks that have not come to this round, in one pass: all ranks of a large job ask.
    fn missing(&self, round: u32, now: Instant) -> Joined {
        let is_there = |member: &Member<C>| member.round == round && member.waits(now);
        let present = self.members.iter().filter(|(_, member)| is_there(member));
        let mut present = present.map(|(rank, _)| *rank).peekable();
        let mut joined = Joined::default();
        for rank in 0..self.ranks {
            if present.next_if_eq(&rank).is_some() {
                continue;
            }
            joined.missing += 1;
            if joined.first_missing.len() < RANKS_SHOWN {
                joined.first_missing.push(rank);
            }
        }
        joined
    }

    fn refusal(&self, join: &Join<'_>, now: Instant) -> Option<String> {
        let Join { rank, ranks, job, .. } = join;
        if self.started.is_some() {
            return (self.is_stranger(join) && self.is_live())
                .then(|| format!("job {job} is running already; name the jobs (--rank-job)"));
        }
        if *ranks != self.ranks && self.members.values().any(|one| one.waits(now)) {
            let others = self.ranks;
            return Some(format!(
                "this rank is one of {ranks}, and others of job {job} of {others}"
            ));
        }
        let same = self.members.get(rank).filter(|one| one.waits(now))?;
        (same.process != join.process).then(|| {
            format!("another process is rank {rank} of job {job}; name the jobs (--rank-job)")
        })
    }
}

impl<C> Member<C> {
    fn waits(&self, now: Instant) -> bool {
        self.connection.is_some() && now.saturating_duration_since(self.seen) < GONE
    }
}

fn refused(refusal: String) -> Joined {
    Joined { refusal, ..Joined::default() }
}

const JOB_BYTES_MAX: u32 = ranks::JOB_BYTES_MAX as u32;
/// Jobs that are remembered; the one that was silent for longest is forgotten.
const JOBS_MAX: usize = 64;
/// A rank that has not asked for so long has ended.
const GONE: Duration = Duration::from_secs(3);
/// Time for every rank to hear of the start.
const LEAD: Duration = Duration::from_millis(20);
/// Bounds the start that a client believes.
const START_NS_MAX: u64 = 10_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use spinrpc_xdr::Decode;

    fn join(rank: u32, process: u64, round: u32) -> Join<'static> {
        Join { rank, ranks: 3, job: Text::new("j").unwrap(), process, round }
    }

    /// Joins by a connection that is named by the process.
    fn come(all: &mut Rendezvous<u64>, join: &Join<'_>, now: Instant) -> Joined {
        all.join(join, join.process, now)
    }

    fn at(milliseconds: u64) -> Instant {
        use std::sync::OnceLock;
        static BEGIN: OnceLock<Instant> = OnceLock::new();
        *BEGIN.get_or_init(Instant::now) + Duration::from_millis(milliseconds)
    }

    #[test]
    fn ranks_start_at_one_time_when_the_last_has_come() {
        let mut all = Rendezvous::default();
        assert_eq!(come(&mut all, &join(0, 10, 1), at(0)).first_missing, [1, 2]);
        assert_eq!(come(&mut all, &join(2, 12, 1), at(1)).first_missing, [1]);
        let last = come(&mut all, &join(1, 11, 1), at(2)).start_in.unwrap();
        let first = come(&mut all, &join(0, 10, 1), at(7)).start_in.unwrap();
        assert_eq!(first + Duration::from_millis(5), last);
        // The next repeat: one rank is ahead.
        assert_eq!(come(&mut all, &join(0, 10, 2), at(900)).missing, 2);
        assert!(come(&mut all, &join(1, 11, 2), at(901)).start_in.is_none());
        assert!(come(&mut all, &join(2, 12, 2), at(902)).start_in.is_some());
    }

    #[test]
    fn a_rank_that_ended_is_missing_and_may_be_replaced() {
        let mut all = Rendezvous::default();
        come(&mut all, &join(0, 10, 1), at(0));
        come(&mut all, &join(1, 11, 1), at(0));
        let late = come(&mut all, &join(2, 12, 1), at(4000));
        assert_eq!((late.missing, &late.first_missing[..]), (2, &[0, 1][..]));
        assert_eq!(late.shown(3), "2 of 3 ranks (0, 1)");
        assert_eq!(come(&mut all, &join(0, 20, 1), at(4001)).refusal, "");
    }

    #[test]
    fn two_processes_of_one_rank_and_other_numbers_of_ranks_are_refused() {
        let mut all = Rendezvous::default();
        come(&mut all, &join(0, 10, 1), at(0));
        let twice = come(&mut all, &join(0, 99, 1), at(1));
        assert!(twice.refusal.contains("another process is rank 0"), "{twice:?}");
        let mut other = join(1, 11, 1);
        other.ranks = 2;
        assert!(come(&mut all, &other, at(2)).refusal.contains("one of 2"));
        for (rank, ranks) in [(0, 1), (3, 3), (0, RANKS_MAX + 1)] {
            let mut wrong = join(rank, 1, 1);
            wrong.ranks = ranks;
            assert!(!come(&mut all, &wrong, at(3)).refusal.is_empty(), "{rank} of {ranks}");
        }
    }

    /// All three ranks of a run of the job at this time; each connection is named by its process.
    fn start(all: &mut Rendezvous<u64>, run: u64, now: u64) {
        for rank in [0, 1] {
            let one = come(all, &join(rank, run * 10 + u64::from(rank), 1), at(now));
            assert!(one.start_in.is_none() && one.refusal.is_empty(), "{one:?}");
        }
        assert!(come(all, &join(2, run * 10 + 2, 1), at(now)).start_in.is_some());
    }

    #[test]
    fn the_same_job_can_run_again() {
        let mut all = Rendezvous::default();
        start(&mut all, 1, 100);
        (10..13).for_each(|connection| all.forget(connection));
        start(&mut all, 2, 200);
    }

    /// Join a job that measures under its name, with the same and another number of ranks. Expect
    /// a refusal, even long after its last meeting, and the next repeat of the job.
    #[test]
    fn strangers_do_not_end_a_job_that_has_begun() {
        let mut all = Rendezvous::default();
        start(&mut all, 1, 0);
        // One of its ranks has ended.
        all.forget(12);
        let mut other = join(0, 99, 1);
        other.ranks = 2;
        for stranger in [join(0, 99, 1), join(2, 99, 1), other] {
            let refusal = come(&mut all, &stranger, at(60_000)).refusal;
            assert!(refusal.contains("job j is running already"), "{stranger:?}: {refusal:?}");
        }
        let next = come(&mut all, &join(0, 10, 2), at(60_001));
        assert_eq!((&*next.refusal, next.missing), ("", 2));
        // A connection that goes down is missed at once.
        come(&mut all, &join(1, 11, 2), at(60_001));
        all.forget(11);
        assert_eq!(come(&mut all, &join(0, 10, 2), at(60_002)).first_missing, [1, 2]);
    }

    #[test]
    fn the_number_of_jobs_is_bounded() {
        let mut all = Rendezvous::default();
        for number in 0..1000 {
            let name = number.to_string();
            let one = Join { job: Text::new(&name).unwrap(), ..join(0, 1, 1) };
            let joined = all.join(&one, number, at(number));
            assert_eq!(joined.refusal, "", "{number}");
            // The first stays, and is kept.
            (number > 0).then(|| all.forget(number));
        }
        assert_eq!(all.0.len(), JOBS_MAX);
        assert!(all.0.contains_key("0") && all.0.contains_key("999"));
        for number in 1000..1063 {
            let name = number.to_string();
            let one = Join { job: Text::new(&name).unwrap(), ..join(0, 1, 1) };
            assert_eq!(all.join(&one, number, at(number)).refusal, "", "{number}");
        }
        let full = all.join(&join(0, 1, 1), 2000, at(2000));
        assert!(full.refusal.contains("64 jobs"), "{full:?}");
    }

    #[test]
    fn what_a_rank_and_a_server_say_survives_the_wire() {
        let mut words: Vec<u8> = Vec::new();
        words.extend(1_u32.to_be_bytes());
        words.extend(b"j\0\0\0");
        for word in [2_u32, 3, 0, 7, 1] {
            words.extend(word.to_be_bytes());
        }
        assert_eq!(Join::decode(&mut Decoder::plain(&words)), Ok(join(2, 7, 1)));
        assert!(Join::decode(&mut Decoder::plain(&words[..words.len() - 4])).is_err());
        let answer: Vec<u8> =
            [0_u32, 0, 0, 0, 2, 2, 0, 1].iter().flat_map(|word| word.to_be_bytes()).collect();
        let decoded = Joined::decode(Decoder::plain(&answer)).unwrap();
        assert_eq!((decoded.missing, decoded.first_missing), (2, vec![0, 1]));
    }
}
