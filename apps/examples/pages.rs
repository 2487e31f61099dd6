//! pages: reads a file of numbered pages from several threads at a time, and checks each page.
//!
//! Every word of a page holds the number of the page. A page with another number was placed from memory
//! that the server had reused for another READ before the first one reached the client. Run on a file of
//! a mounted export.

use clap::Parser;
use rustix::fs::OFlags;
use spinrpc::sys::random::Random;
use spinrpc_apps::command_line;
use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const PAGE_BYTES: usize = 4096;
/// Wrong pages that are printed.
const PRINTED_MAX: usize = 8;

/// Write a file of numbered pages, read it at random from several threads past the page cache, and check
/// the number of each page.
///
/// Exit status: 0 success, 1 a page was wrong or an operation failed, 2 usage error. FILE is replaced, and
/// removed after success.
#[derive(Parser)]
#[command(name = "pages", after_help = "Example:\n  pages /mnt/file --bytes 1048576 --threads 8")]
struct Cli {
    /// File to write and read
    file: PathBuf,
    /// Length of the file, in MiB
    #[arg(long, default_value_t = 48, value_parser = clap::value_parser!(u32).range(2..))]
    mib: u32,
    /// Length of a read, in bytes; a multiple of 4096, at most 1 MiB
    #[arg(long, default_value_t = 1 << 20, value_parser = clap::value_parser!(u32).range(4096..=1 << 20))]
    bytes: u32,
    /// Threads that read
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: u32,
    /// Duration of the reads, in seconds
    #[arg(long, default_value_t = 12)]
    seconds: u64,
}

/// Result of one thread.
#[derive(Default)]
struct Tally {
    reads: u64,
    wrong_pages: u64,
    /// Wanted and found numbers of the first wrong pages.
    examples: Vec<(u64, u64)>,
}

fn main() -> ExitCode {
    command_line::run(run)
}

fn run(cli: Cli) -> Result<(), Box<dyn Error>> {
    if !(cli.bytes as usize).is_multiple_of(PAGE_BYTES) {
        return Err(format!("--bytes {}: expected a multiple of {PAGE_BYTES}", cli.bytes).into());
    }
    let pages = u64::from(cli.mib) << 20 >> PAGE_BYTES.trailing_zeros();
    write_pages(&cli.file, pages)?;
    let file =
        OpenOptions::new().read(true).custom_flags(OFlags::DIRECT.bits() as i32).open(&cli.file)?;
    let until = Instant::now() + Duration::from_secs(cli.seconds);
    let tallies = std::thread::scope(|scope| {
        let read = |seed| {
            let (file, bytes) = (&file, cli.bytes as usize);
            scope.spawn(move || read_pages(file, pages, bytes, u64::from(seed), until))
        };
        let readers: Vec<_> = (0..cli.threads).map(read).collect();
        let panicked = |_| Err(io::Error::other("a reader panicked"));
        let tallies = readers.into_iter().map(|reader| reader.join().unwrap_or_else(panicked));
        tallies.collect::<io::Result<Vec<Tally>>>()
    })?;
    report(&tallies)?;
    Ok(std::fs::remove_file(&cli.file)?)
}

fn report(tallies: &[Tally]) -> Result<(), Box<dyn Error>> {
    let reads: u64 = tallies.iter().map(|tally| tally.reads).sum();
    let wrong: u64 = tallies.iter().map(|tally| tally.wrong_pages).sum();
    for (wanted, found) in tallies.iter().flat_map(|tally| &tally.examples).take(PRINTED_MAX) {
        println!("pages: page {wanted} holds the number {found}");
    }
    println!("pages: {wrong} wrong pages in {reads} reads");
    match (wrong, reads) {
        (0, 1..) => Ok(()),
        (0, 0) => Err("nothing was read".into()),
        _ => Err(format!("{wrong} pages hold wrong data").into()),
    }
}

fn write_pages(path: &Path, pages: u64) -> io::Result<()> {
    let file = File::create(path)?;
    for page in 0..pages {
        let words: Vec<u8> = page.to_le_bytes().repeat(PAGE_BYTES / 8);
        file.write_all_at(&words, page * PAGE_BYTES as u64)?;
    }
    file.sync_all()
}

fn read_pages(
    file: &File,
    pages: u64,
    bytes: usize,
    seed: u64,
    until: Instant,
) -> io::Result<Tally> {
    let mut memory = vec![0; bytes + PAGE_BYTES];
    let start = memory.as_ptr().align_offset(PAGE_BYTES);
    let buffer = &mut memory[start..][..bytes];
    let mut tally = Tally::default();
    let places = pages - (bytes / PAGE_BYTES) as u64 + 1;
    while Instant::now() < until {
        let first = Random::seeded(seed << 32 | tally.reads).next_u64() % places;
        file.read_exact_at(buffer, first * PAGE_BYTES as u64)?;
        tally.reads += 1;
        for (page, found) in (first..).zip(buffer.chunks_exact(PAGE_BYTES)) {
            tally.check(page, found);
        }
    }
    Ok(tally)
}

impl Tally {
    fn check(&mut self, page: u64, bytes: &[u8]) {
        let wanted = page.to_le_bytes();
        let mut words = bytes.chunks_exact(8);
        if let Some(found) = words.find(|word| *word != wanted) {
            self.wrong_pages += 1;
            if self.examples.len() < PRINTED_MAX {
                let found = found.try_into().map_or(0, u64::from_le_bytes);
                self.examples.push((page, found));
            }
        }
    }
}
