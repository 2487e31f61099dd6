//! Two threads, each on a CPU of its own. `doctor` measures the distance of CPUs with them, and `spinperf` the limits of a
//! host that take two cores.

use rustix::process::Pid;
use rustix::thread::{CpuSet, gettid, sched_setaffinity};
use spinrpc::sys::affinity::pin_current_thread;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Runs `ask` on the first of these CPUs and `answer` on the second, until `ask` has its result. The flag tells `answer`
/// to stop; it may be checked rarely. Blocks.
///
/// # Errors
/// A thread cannot be pinned, or panics. `answer` does not begin within `patience`, as another thread keeps its CPU.
pub fn on_two_cpus<T: Send>(
    [asking, answering]: [usize; 2],
    patience: Duration,
    answer: impl FnOnce(&AtomicBool) + Send,
    ask: impl FnOnce() -> T + Send,
) -> io::Result<T> {
    let stop = &AtomicBool::new(false);
    let (ready, answerer_pinned) = mpsc::channel();
    let (named, name) = mpsc::channel();
    thread::scope(|scope| {
        let answerer = scope.spawn(move || {
            let _ = named.send(gettid());
            let pinned = pin(answering);
            let may_answer = pinned.is_ok();
            let _ = ready.send(pinned);
            if may_answer {
                answer(stop);
            }
        });
        let asker = scope.spawn(move || {
            // Without a partner on its own CPU, `ask` would never return.
            answerer_pinned.recv_timeout(patience).map_err(|_| lost())??;
            pin(asking).map(|()| ask())
        });
        let result = asker.join().unwrap_or_else(|_| Err(lost()));
        stop.store(true, Ordering::Relaxed);
        let thread = name.recv().ok();
        while !answerer.is_finished() {
            // Where it is, it may not get the CPU to end.
            thread.into_iter().for_each(|thread| move_to(thread, asking));
            thread::sleep(MOVE_AGAIN);
        }
        result
    })
}

fn pin(cpu: usize) -> io::Result<()> {
    pin_current_thread(cpu).map_err(|error| {
        io::Error::new(error.kind(), format!("pinning a thread to core {cpu}: {error}"))
    })
}

fn move_to(thread: Pid, cpu: usize) {
    if cpu < CpuSet::MAX_CPU {
        let mut cpus = CpuSet::new();
        cpus.set(cpu);
        // It may have ended.
        let _ = sched_setaffinity(Some(thread), &cpus);
    }
}

fn lost() -> io::Error {
    io::Error::other("a thread of the measurement between two cores exited early")
}

/// Shortest possible round trip between two CPUs, in nanoseconds: one writes a cache line, the other sees it and writes one
/// back. No message format can be faster. The median over batches of a batch's mean, after a warm-up of a quarter of
/// `duration`. Blocks.
///
/// # Errors
/// As [`on_two_cpus`]; a line does not come back within `patience`.
pub fn cache_line_ns(cpus: [usize; 2], duration: Duration, patience: Duration) -> io::Result<f64> {
    let (there, back) = (Line::default(), Line::default());
    let answer = |stop: &AtomicBool| answer(&there, &back, stop);
    on_two_cpus(cpus, patience, answer, || ask(&there, &back, duration, patience))?
        .ok_or_else(|| io::Error::other(format!("another thread keeps core {} busy", cpus[1])))
}

/// A counter alone on its cache line, and on the neighbour that prefetchers pair with it.
#[derive(Default)]
#[repr(align(128))]
struct Line(AtomicU64);

fn answer(there: &Line, back: &Line, stop: &AtomicBool) {
    let mut seen = 0;
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..SPINS_PER_STOP_CHECK {
            // Acquire and Release pair with those of `ask`: each store answers a load.
            let count = there.0.load(Ordering::Acquire);
            if count != seen {
                seen = count;
                back.0.store(count, Ordering::Release);
            }
        }
    }
}

/// `None` if an answer is missing after `patience`.
fn ask(there: &Line, back: &Line, duration: Duration, patience: Duration) -> Option<f64> {
    let mut count = 0;
    let began = Instant::now();
    let mut batch = || {
        let start = Instant::now();
        for _ in 0..BATCH {
            count += 1;
            there.0.store(count, Ordering::Release);
            let mut spins = 0_u32;
            while back.0.load(Ordering::Acquire) != count {
                spins = spins.wrapping_add(1);
                if spins.is_multiple_of(SPINS_PER_LOOK) && began.elapsed() > patience {
                    return None;
                }
            }
        }
        Some(start.elapsed().as_nanos() as f64 / BATCH as f64)
    };
    while began.elapsed() < duration / 4 {
        batch()?;
    }
    let mut means = Vec::new();
    while means.is_empty() || began.elapsed() < duration + duration / 4 {
        means.push(batch()?);
    }
    means.sort_by(f64::total_cmp);
    Some(means[(means.len() - 1) / 2])
}

/// Pause before a thread that has not ended is moved again: it may have been about to pin itself.
const MOVE_AGAIN: Duration = Duration::from_micros(100);
/// Exchanges between two looks at the time: few, as each takes a slice of time where other programs have the CPUs.
const BATCH: u64 = 200;
const SPINS_PER_STOP_CHECK: u32 = 64;
/// Looks at the answer between two at the time: more than any round trip takes.
const SPINS_PER_LOOK: u32 = 1 << 14;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_takes_time_to_come_back() {
        let allowed = spinrpc::sys::affinity::allowed().unwrap();
        let [one, other] = allowed.iter().take(2).collect::<Vec<_>>()[..] else { return };
        let ns = cache_line_ns([one, other], Duration::from_millis(5), Duration::MAX).unwrap();
        assert!(ns > 1.0, "{ns}");
    }

    /// A thread that never gets its core answers nothing.
    #[test]
    fn without_an_answer_it_gives_up() {
        let (there, back) = (Line::default(), Line::default());
        assert_eq!(ask(&there, &back, Duration::ZERO, Duration::from_millis(1)), None);
    }
}
