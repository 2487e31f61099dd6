//! Effects of the keys of polling: the length of a turn, and the rest of idle cores.

/// Number of events in the fullest turn of a server with 40 waiting calls.
use super::common::prelude::*;
fn fullest_turn(budget: u64) -> usize {
    let budget = small_with(|raw| raw.poll.budget = budget);
    let mut cores = Cores::new(engine(client_config()), engine(budget), |there| drop(serve(there)));
    let heard = SharedHeard::default();
    let client = cores.connect(&ConnectOptions::new(), |_| recorder(&heard, all_words));
    let Cores { near: mut core, far: mut server, .. } = cores;
    for token in 0..40 {
        client.call(NULL, Token(token), &mut CallSpec::short(), |_| {}).unwrap();
    }
    core.poll_once();
    let turns = std::iter::from_fn(|| Some(server.poll_once().events));
    let taken: Vec<usize> = turns.take_while(|events| *events > 0).collect();
    assert!(taken.iter().sum::<usize>() >= 40, "{taken:?}");
    taken.into_iter().max().unwrap()
}

#[test]
fn a_turn_takes_no_more_events_of_a_source_than_the_budget() {
    assert_eq!(fullest_turn(3), 3);
    assert_eq!(fullest_turn(7), 7);
}

/// Sleeps of an idle core within so many turns, after which it has been idle for some time.
fn parks(turns: u32, change: impl FnOnce(&mut RawConfig)) -> u64 {
    let engine = engine(small_with(change));
    let mut core = engine.core(0).unwrap();
    let mut left = turns;
    core.run_until(|| {
        left = left.saturating_sub(1);
        left == 0
    });
    engine.stats(0).unwrap().parks
}

#[test]
fn a_busy_core_never_sleeps_and_one_in_mode_sleep_does_at_once() {
    let no_phases = |raw: &mut RawConfig| {
        (raw.poll.spin_us, raw.poll.park_us) = (0, 1);
    };
    let of_mode = |mode: IdlePolicy| {
        parks(1000, |raw| {
            no_phases(raw);
            raw.poll.mode = mode;
        })
    };
    assert_eq!(of_mode(IdlePolicy::Busy), 0);
    assert!(of_mode(IdlePolicy::Adaptive) > 900);
    let patient = |mode: IdlePolicy| {
        parks(1000, |raw| {
            (raw.poll.spin_us, raw.poll.park_us) = (1_000_000, 1);
            raw.poll.mode = mode;
        })
    };
    // A thread that is paused for a second has been idle for as long.
    let spins = (0..5).any(|_| patient(IdlePolicy::Adaptive) == 0);
    assert!(spins, "it spins for a second first");
    assert!(patient(IdlePolicy::Sleep) > 900, "it does not spin at all");
}

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn an_idle_core_in_mode_sleep_leaves_its_cpu_to_others() {
    let (began, cpu_before) = (Instant::now(), cpu_time());
    let slept = parks(11, |raw| {
        (raw.poll.mode, raw.poll.park_us) = (IdlePolicy::Sleep, 20_000);
        raw.rpc.credits = 1;
        raw.limits.conns = 1;
    });
    let (passed, used) = (began.elapsed(), cpu_time() - cpu_before);
    assert!(slept >= 9, "{slept}");
    assert!(passed >= Duration::from_millis(20 * (slept - 1)), "{slept} sleeps in {passed:?}");
    assert!(used < passed / 2, "{used:?} of {passed:?}");
}
