//! Plays the scenarios of seeds on a simulated network, and says which of them fail.
//!
//! ```sh
//! cargo run --release -p spinrpc --example sim -- --seed 7 --trace
//! cargo run --release -p spinrpc --example sim -- --seeds 0..10000 --jobs 2
//! ```

mod harness;

use clap::Parser;
use harness::oracle::Seen;
use harness::progress::Progress;
use harness::run::Outcome;
use harness::run_seed;
use std::io::IsTerminal;
use std::ops::Range;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Whole engines on a simulated network: clients, servers and hostile peers in one thread on virtual
/// time. A seed decides everything; the same seed goes the same way.
#[derive(Parser)]
struct Options {
    /// Play one seed and say what became of it
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Play many: FIRST..END, the end not included
    #[arg(long, value_parser = range, default_value = "0..1000")]
    seeds: Range<u64>,
    /// Threads; each plays different seeds
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Print every step (with --seed)
    #[arg(long)]
    trace: bool,
}

fn range(text: &str) -> Result<Range<u64>, String> {
    let parse = |part: &str| part.parse::<u64>().map_err(|error| format!("{part}: {error}"));
    let (first, end) = text.split_once("..").ok_or("expected FIRST..END")?;
    Ok(parse(first)?..parse(end)?)
}

fn main() -> ExitCode {
    let options = Options::parse();
    // A panic is a failure of its seed, and told with it.
    std::panic::set_hook(Box::new(|_| {}));
    match options.seed {
        Some(seed) => play_one(seed, options.trace),
        None => play_many(options.seeds, options.jobs.max(1)),
    }
}

fn play_one(seed: u64, trace: bool) -> ExitCode {
    let outcome = run_seed(seed, trace);
    let Outcome { digest, seen, succeeded, virtual_ns, .. } = outcome;
    let rpcs = seen.calls;
    println!("seed {seed}: {rpcs} virtual RPCs, {succeeded} of the application's calls succeeded");
    println!("virtual time {:?}, digest {digest:016x}", Duration::from_nanos(virtual_ns));
    if outcome.failures.is_empty() {
        return ExitCode::SUCCESS;
    }
    tell(seed, &outcome.failures);
    ExitCode::FAILURE
}

/// Prints what broke with this seed, and how to see it.
fn tell(seed: u64, failures: &[String]) {
    let what: String = failures.iter().map(|failure| format!("  {failure}\n")).collect();
    println!(
        "seed {seed} FAILED\n{what}\
         cargo run --release -p spinrpc --example sim -- --seed {seed} --trace"
    );
}

/// Totals of all threads.
#[derive(Default)]
struct Tally {
    next: AtomicU64,
    played: AtomicU64,
    seen: Mutex<Seen>,
    virtual_ns: AtomicU64,
    failed: Mutex<Vec<u64>>,
}

impl Tally {
    fn add(&self, seed: u64, outcome: Outcome) {
        // Relaxed: counters, read when the threads are done.
        self.played.fetch_add(1, Ordering::Relaxed);
        if let Ok(mut seen) = self.seen.lock() {
            seen.add(&outcome.seen);
        }
        self.virtual_ns.fetch_add(outcome.virtual_ns, Ordering::Relaxed);
        if !outcome.failures.is_empty()
            && let Ok(mut failed) = self.failed.lock()
        {
            // At once: a long run may be ended before its time.
            tell(seed, &outcome.failures);
            failed.push(seed);
        }
    }

    fn play(&self, seeds: &Range<u64>) {
        loop {
            let seed = self.next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            self.add(seed, run_seed(seed, false));
        }
    }

    /// One line about what has been played so far.
    fn summary(&self, started: Instant) -> String {
        let played = self.played.load(Ordering::Relaxed);
        let calls = self.seen.lock().map_or(0, |seen| seen.calls);
        let failed = self.failed.lock().map_or(0, |failed| failed.len());
        let took = started.elapsed().as_secs_f64();
        let virtual_time = Duration::from_nanos(self.virtual_ns.load(Ordering::Relaxed));
        format!(
            "{played} seeds, {calls} virtual RPCs, {failed} failed; {:.1} s of virtual time in {took:.1} s",
            virtual_time.as_secs_f64()
        )
    }
}

fn play_many(seeds: Range<u64>, jobs: usize) -> ExitCode {
    let tally = Tally { next: AtomicU64::new(seeds.start), ..Tally::default() };
    let started = Instant::now();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs).map(|_| scope.spawn(|| tally.play(&seeds))).collect();
        let mut progress = Progress::new(std::io::stderr().is_terminal());
        while threads.iter().any(|thread| !thread.is_finished()) {
            std::thread::sleep(Duration::from_millis(20));
            if progress.is_due(started.elapsed()) {
                eprintln!("{}", tally.summary(started));
            }
        }
    });
    let seen = tally.seen.lock().map(|seen| *seen).unwrap_or_default();
    println!("seeds {}..{}: {}\n{seen}", seeds.start, seeds.end, tally.summary(started));
    let mut failed = tally.failed.into_inner().unwrap_or_default();
    if failed.is_empty() {
        return ExitCode::SUCCESS;
    }
    failed.sort_unstable();
    println!("failing seeds: {failed:?}");
    ExitCode::FAILURE
}
