//! Threads pinned to the CPUs of cores, and given back when their cores end. Threads that a core's
//! thread starts would inherit its one CPU, so code that starts threads runs off it.

use super::affinity::{CpuSet, allowed, pin_current_thread, run_current_thread_on};
use super::topology::Topology;
use crate::sync::lock;
use std::cell::RefCell;
use std::io;
use std::marker::PhantomData;
use std::sync::{Mutex, MutexGuard};

#[derive(Default)]
struct Process {
    /// CPUs that cores of living engines poll on; one entry for each core.
    polled: Vec<usize>,
    /// CPUs that threads were allowed before they were pinned.
    original: Option<CpuSet>,
}

static PROCESS: Mutex<Process> = Mutex::new(Process { polled: Vec::new(), original: None });

fn process() -> MutexGuard<'static, Process> {
    lock(&PROCESS)
}

#[derive(Default)]
struct Pins {
    original: Option<CpuSet>,
    /// The last one was pinned last.
    cpus: Vec<(u64, usize)>,
    next: u64,
}

thread_local! {
    static PINS: RefCell<Pins> = RefCell::default();
}

/// CPUs that the cores of an engine poll on, for as long as it lives: helpers keep off them.
#[derive(Debug)]
pub struct PolledCpus(Vec<usize>);

impl PolledCpus {
    /// Makes them known to this process.
    pub fn register(cpus: &[usize]) -> Self {
        process().polled.extend_from_slice(cpus);
        Self(cpus.to_vec())
    }
}

impl Drop for PolledCpus {
    fn drop(&mut self) {
        let polled = &mut process().polled;
        for cpu in &self.0 {
            if let Some(place) = polled.iter().position(|other| other == cpu) {
                polled.swap_remove(place);
            }
        }
    }
}

/// Ties its thread to a CPU. Dropped it gives the thread back the CPUs that it had, or those of the
/// pin that is left, unless other code has changed them meanwhile.
#[derive(Debug)]
pub struct Pin {
    number: u64,
    cpu: usize,
    _of_its_thread: PhantomData<*const ()>,
}

impl Pin {
    /// Ties the calling thread to `cpu`.
    ///
    /// # Errors
    /// As [`pin_current_thread`].
    pub fn new(cpu: usize) -> io::Result<Self> {
        let before = allowed()?;
        pin_current_thread(cpu)?;
        let number = PINS.with_borrow_mut(|pins| {
            if pins.cpus.is_empty() {
                note_original(&before);
                pins.original = Some(before);
            }
            pins.next += 1;
            pins.cpus.push((pins.next, cpu));
            pins.next
        });
        Ok(Self { number, cpu, _of_its_thread: PhantomData })
    }

    /// Runs code that may start threads of the application: off the CPUs of cores, near that of
    /// this one.
    pub fn loosened<T>(&self, run: impl FnOnce() -> T) -> T {
        let helpers = helper_cpus();
        let near = helpers.as_ref().map(|cpus| near(cpus, self.cpu));
        let _tied = near.map(|cpus| Loosened::new(&cpus, self.cpu));
        run()
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let last = PINS.try_with(|pins| {
            let mut pins = pins.borrow_mut();
            let was_tied_to = pins.cpus.last().map(|(_, cpu)| *cpu);
            pins.cpus.retain(|(number, _)| *number != self.number);
            (was_tied_to, pins.cpus.last().map(|(_, cpu)| *cpu), pins.original.clone())
        });
        let Ok((Some(tied_to), left, original)) = last else { return };
        let is_untouched = allowed().is_ok_and(|now| now.iter().eq([tied_to]));
        let target = left.map(|cpu| CpuSet::from_iter([cpu])).or(original);
        if let Some(target) = target.filter(|_| is_untouched) {
            // Those that have gone offline meanwhile are left out by the kernel.
            let _ = run_current_thread_on(&target);
        }
    }
}

struct Loosened(usize);

impl Loosened {
    fn new(cpus: &CpuSet, cpu: usize) -> Self {
        // Without it threads are started where they would have been anyway.
        let _ = run_current_thread_on(cpus);
        Self(cpu)
    }
}

impl Drop for Loosened {
    fn drop(&mut self) {
        // It was possible before; where it is not any more, the thread runs on another CPU.
        let _ = pin_current_thread(self.0);
    }
}

/// Runs code that starts threads, on a thread that may have cores: off their CPUs.
pub fn off_the_cores<T>(run: impl FnOnce() -> T) -> T {
    let pinned = PINS.with_borrow(|pins| pins.cpus.last().map(|(_, cpu)| *cpu));
    let tied = pinned.filter(|cpu| allowed().is_ok_and(|now| now.iter().eq([*cpu])));
    let _tied = tied.zip(helper_cpus()).map(|(cpu, cpus)| Loosened::new(&cpus, cpu));
    run()
}

/// CPUs of this process on which none of its engines' cores polls; all of its CPUs if there are no
/// others. `None` if the system does not tell which CPUs exist.
pub fn helper_cpus() -> Option<CpuSet> {
    let own = PINS.with_borrow(|pins| pins.original.clone().filter(|_| !pins.cpus.is_empty()));
    let own = own.or_else(|| allowed().ok())?;
    let process = process();
    let known = process.original.iter().flat_map(CpuSet::iter);
    let all: CpuSet = own.iter().chain(known).collect();
    let free: CpuSet = all.iter().filter(|cpu| !process.polled.contains(cpu)).collect();
    Some(if free.is_empty() { all } else { free })
}

fn near(cpus: &CpuSet, cpu: usize) -> CpuSet {
    let Ok(topology) = Topology::current() else { return cpus.clone() };
    let node = topology.node_of(cpu);
    let near: CpuSet = cpus.iter().filter(|cpu| topology.node_of(*cpu) == node).collect();
    if near.is_empty() { cpus.clone() } else { near }
}

fn note_original(cpus: &CpuSet) {
    let original = &mut process().original;
    let known = original.iter().flat_map(CpuSet::iter);
    let all = known.chain(cpus.iter()).collect();
    *original = Some(all);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn pins_that_end_in_any_order_give_the_cpus_back_last() {
        let (between, after) = thread::spawn(|| {
            let cpu = allowed().unwrap().iter().next().unwrap();
            let (first, second) = (Pin::new(cpu).unwrap(), Pin::new(cpu).unwrap());
            drop(first);
            let between = allowed().unwrap();
            drop(second);
            (between, allowed().unwrap())
        })
        .join()
        .unwrap();
        assert_eq!(between.len(), 1);
        assert_eq!(after, allowed().unwrap());
    }

    #[test]
    fn helpers_keep_off_polled_cpus_unless_there_is_no_other() {
        let all = allowed().unwrap();
        let first = all.iter().next().unwrap();
        let polled = PolledCpus::register(&[first]);
        let helpers = helper_cpus().unwrap();
        assert_eq!(helpers.contains(first), all.len() == 1);
        drop(polled);
        let _all_polled = PolledCpus::register(&all.iter().collect::<Vec<_>>());
        assert_eq!(helper_cpus().unwrap(), all);
    }
}
