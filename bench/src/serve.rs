//! `spinperf serve`: answers calls until interrupted.

use crate::child::LISTENING;
use crate::cli::ServeArgs;
use crate::console::say;
use crate::fabric::{self, Fabric};
use crate::failure::Failure;
use crate::load;
use crate::output::Capture;
use crate::profile;
use rustix::process::{Signal, set_parent_process_death_signal};
use spinrpc::Engine;
use spinrpc_tuning::printable::to_stderr;
use std::io::Read;
use std::thread;

pub(crate) fn run(args: &ServeArgs) -> Result<(), Failure> {
    if args.attached {
        // The death signal comes first: if the parent has died already, the end of standard input
        // shows it.
        set_parent_process_death_signal(Some(Signal::KILL))
            .map_err(|error| Failure::system("binding to the parent process", error))?;
    }
    let driver = Fabric::of(&args.address)?.driver;
    fabric::raise_limits(driver);
    let mut profile = profile::load(&args.profile, args.cores.as_ref(), driver)?;
    if !args.no_reverse {
        // A profile without the room serves everything but calls in reverse, and tells clients that
        // request them.
        profile = profile.clone().with_reverse_calls().unwrap_or(profile);
    }
    let (capture, sink) = Capture::open(args.capture.as_deref())?.unzip();
    let engine = profile::engine(&profile.config, sink)?;
    fabric::warn_of_memlock(&profile.config);
    load::serve(&engine, &profile.config, &args.address, args.slabs)?;
    if args.attached {
        stop_at_end_of_input(engine.clone())?;
    }
    let failed = |error| Failure::Measurement(format!("serving: {error}"));
    let running = engine.start().map_err(failed)?;
    say(&format!("spinperf: {LISTENING} {}\n", args.address))?;
    running.join().map_err(failed)?;
    if let Some(capture) = capture {
        to_stderr(format_args!("spinperf: {}", capture.outcome()?));
    }
    Ok(())
}

fn stop_at_end_of_input(engine: Engine) -> Result<(), Failure> {
    let wait = move || {
        let mut rest = Vec::new();
        // Unreadable input counts as closed.
        let _ = std::io::stdin().read_to_end(&mut rest);
        engine.shutdown();
    };
    thread::Builder::new()
        .name("parent-watch".to_owned())
        .spawn(wait)
        .map(drop)
        .map_err(|error| Failure::system("starting a thread", error))
}
