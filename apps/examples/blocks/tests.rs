//! Two engines over shared memory: a server, and its clients.

use super::*;
use spinrpc::{Running, blocking};

/// Blocks of a volume, more than [`CALLS_MAX`] calls.
const VOLUME_BLOCKS: usize = 160;
const SEED: u64 = 0x0123_4567_89ab_cdef;

struct Server {
    engine: Engine,
    running: Running,
    address: String,
    file: PathBuf,
}

impl Server {
    fn start(name: &str) -> Result<Self, Failure> {
        let address = format!("shm:blocks-{name}-{}", std::process::id());
        let file = std::env::temp_dir().join(address.replace(':', "-"));
        let engine = Engine::new(Config::default())?;
        let opened = File::options().write(true).create(true).truncate(true).open(&file)?;
        Volumes::serve(&engine, &address, VOLUME_BLOCKS, opened)?;
        let running = engine.start()?;
        Ok(Self { engine, running, address, file })
    }

    /// Ends the server. Returns the number of calls that it left unanswered.
    fn end(self) -> Result<usize, Failure> {
        let unanswered = self.engine.drain(PATIENCE);
        self.running.join()?;
        std::fs::remove_file(self.file)?;
        Ok(unanswered)
    }
}

/// Calls `procedure`, and returns the first word of its results.
fn status(
    client: &mut blocking::Client,
    procedure: Procedure,
    (volume, first): (u32, u64),
    rest: impl FnOnce(&mut spinrpc::Encoder<'_>),
) -> Result<u32, Failure> {
    let arguments = |args: &mut spinrpc::Encoder<'_>| {
        args.u32(volume);
        args.u64(first);
        rest(args);
    };
    Ok(client.call(procedure, arguments, |results| results.u32())?)
}

#[test]
fn blocks_are_read_as_written_and_are_in_the_file_after_a_flush() -> Result<(), Failure> {
    let server = Server::start("content")?;
    let engine = Engine::new(Config::default())?;
    let running = engine.start()?;
    let open =
        |number: u32| Volume::open(&engine, &server.address, number, SEED + u64::from(number));
    let volumes = [1, 3].map(open);
    let volumes = volumes.into_iter().collect::<Result<Vec<_>, _>>()?;
    assert!(volumes.iter().all(|volume| volume.blocks == VOLUME_BLOCKS as u64));
    // By another client: the calls that it leaves in flight keep its memory.
    assert!(open(2)?.for_all(READ).is_err(), "zeros are not what a client writes");
    volumes.iter().try_for_each(|volume| volume.for_all(WRITE))?;
    volumes.iter().try_for_each(|volume| volume.for_all(READ))?;
    assert_eq!(std::fs::metadata(&server.file)?.len(), 0, "nothing was flushed");
    check_status(volumes[0].client.call(FLUSH, |_args| {}, |results| results.u32())?)?;
    let content = std::fs::read(&server.file)?;
    for volume in &volumes {
        let at = volume.number as usize * VOLUME_BLOCKS * BLOCK_BYTES;
        let bytes = content[at..].chunks(8).take(VOLUME_BLOCKS * BLOCK_BYTES / 8);
        assert!(bytes.eq(volume.words(0).take(VOLUME_BLOCKS * BLOCK_BYTES / 8)));
    }
    // Written again, over memory that replies and the flusher have given back.
    let other = Volume { seed: !SEED, ..volumes.into_iter().next().ok_or("no volume")? };
    (0..8).try_for_each(|_| other.for_all(WRITE))?;
    other.for_all(READ)?;
    drop(other);
    engine.shutdown();
    running.join()?;
    assert_eq!(server.end()?, 0);
    Ok(())
}

#[test]
fn numbers_of_a_hostile_client_get_a_status_and_change_nothing() -> Result<(), Failure> {
    let server = Server::start("hostile")?;
    let mut client = blocking::Client::connect(&server.address, PROGRAM, VERSION)?;
    let end = VOLUME_BLOCKS as u64;
    let block = [7; BLOCK_BYTES / 2];
    for (volume, first, count) in [
        (VOLUMES as u32, 0, 1),
        (u32::MAX, 0, 1),
        (0, end, 1),
        (0, end - 1, 2),
        (0, u64::MAX, 1),
        (0, u64::MAX - 1, 4),
        (u32::MAX, u64::MAX, u32::MAX),
        (0, 0, 0),
        (0, 0, BLOCKS_MAX as u32 + 1),
        (0, 0, u32::MAX),
    ] {
        let answer = status(&mut client, READ, (volume, first), |args| args.u32(count))?;
        assert_eq!(answer, Status::NoSuchBlocks as u32, "{volume} {first} {count}");
    }
    let invalid = Status::Invalid as u32;
    assert_eq!(status(&mut client, READ, (0, 0), |_| {})?, invalid, "no number of blocks");
    assert_eq!(status(&mut client, READ, (0, 0), |args| args.u64(1 << 32))?, invalid, "too long");
    assert_eq!(status(&mut client, WRITE, (0, 0), |args| args.opaque(&block[..100]))?, invalid);
    assert_eq!(status(&mut client, WRITE, (0, 0), |args| args.u32(u32::MAX))?, invalid);
    let no_bytes = status(&mut client, WRITE, (0, 0), |args| args.opaque(&[]))?;
    assert_eq!(no_bytes, Status::NoSuchBlocks as u32);

    // A Read chunk of one block, with a place beyond the volume.
    let mut data = client.bulk(BLOCK_BYTES).ok_or("no memory")?;
    data.bytes_mut().fill(7);
    let mut spec = CallSpec::new().argument(data);
    let beyond = |args: &mut spinrpc::Encoder<'_>| {
        args.u32(0);
        args.u64(end);
        args.bulk();
    };
    let answer = client.call_with(WRITE, &mut spec, beyond, |results| results.u32())?;
    assert_eq!(answer, Status::NoSuchBlocks as u32);

    let mut spec = CallSpec::new().result_into(client.bulk(BLOCK_BYTES).ok_or("no memory")?);
    let last = |args: &mut spinrpc::Encoder<'_>| {
        args.u32(VOLUMES as u32 - 1);
        args.u64(end - 1);
        args.u32(1);
    };
    let is_zero = client.call_with(READ, &mut spec, last, |results| {
        assert_eq!(results.u32()?, 0);
        Ok(results.data(BLOCK_BYTES)?.bytes() == [0; BLOCK_BYTES])
    })?;
    assert!(is_zero, "the last block of the last volume");
    drop(client);
    assert_eq!(server.end()?, 0);
    Ok(())
}
