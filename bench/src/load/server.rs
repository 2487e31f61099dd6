//! The server's end: one service per core, which holds nothing but the data it serves.

use super::back::Backs;
use super::program::{
    BACK, BACK_END, Check, ECHO, NONE_WRONG, NULL, PROGRAM, READ, READ_WINDOW_BYTES, SERVED_SEED,
    STATUS, VERSION, WRITE,
};
use super::workload::BackPlan;
use crate::failure::Failure;
use crate::pattern::{check, fill};
use spinrpc::sys::clock::Clock;
use spinrpc::{
    AcceptStatus, Bulk, Call, Config, ConnectionEvent, Data, DecodeError, Decoder, Engine,
    ReplyData, Service, SharedBulk,
};

/// Answers the benchmark program on every core of `engine`, at `address`. Returns when it listens.
pub(crate) fn serve(engine: &Engine, config: &Config, address: &str) -> Result<(), Failure> {
    register(engine, config);
    engine
        .listen(address)
        .map_err(|error| Failure::Measurement(format!("listening on {address}: {error}")))
}

/// Answers the benchmark program on every core of `engine`, by whatever connections it has.
pub(crate) fn register(engine: &Engine, config: &Config) {
    let served = served_data(config.read_bytes_max() + READ_WINDOW_BYTES);
    let write_bytes_max = config.write_bytes_max();
    let for_status = engine.clone();
    engine.serve(PROGRAM, VERSION, move |core| PerfService {
        engine: for_status.clone(),
        core: core.index(),
        clock: Clock::shared(),
        served: served.clone(),
        write_bytes_max,
        backs: Backs::default(),
    });
}

/// What READ sends: made once, so that a measured read is one copy by the engine and nothing else.
fn served_data(bytes: usize) -> SharedBulk {
    let mut data = vec![0; bytes];
    fill(&mut data, SERVED_SEED, 0);
    Bulk::from_vec(data).freeze()
}

struct PerfService {
    engine: Engine,
    core: usize,
    clock: Clock,
    served: SharedBulk,
    write_bytes_max: usize,
    backs: Backs,
}

impl Service for PerfService {
    fn call(&mut self, call: Call<'_>) {
        match call.procedure() {
            NULL => call.reply(|_| {}),
            ECHO => self.echo(call),
            READ => self.read(call),
            WRITE => self.write(call),
            STATUS => self.status(call),
            BACK => self.back(call),
            BACK_END => self.backs.finish(call),
            _ => call.reject(AcceptStatus::ProcUnavail),
        }
    }

    fn on_event(&mut self, event: &ConnectionEvent) {
        if let ConnectionEvent::Down { connection, .. } = event {
            self.backs.forget(*connection);
        }
    }
}

impl PerfService {
    fn echo(&self, mut call: Call<'_>) {
        let Ok(Some(echo)) = EchoArgs::decode(call.args(), self.write_bytes_max) else {
            return call.reject(AcceptStatus::GarbageArgs);
        };
        let source =
            if echo.reply_bytes <= echo.data.len() { echo.data } else { self.served.bytes() };
        let Some(data) = source.get(..echo.reply_bytes) else {
            return call.reject(AcceptStatus::GarbageArgs);
        };
        let wrong_at = first_wrong(echo.data, echo.check);
        call.reply(|results| {
            results.u32(wrong_at);
            results.opaque(data);
        });
    }

    fn read(&self, mut call: Call<'_>) {
        let Ok((offset, length)) = decode_read(call.args()) else {
            return call.reject(AcceptStatus::GarbageArgs);
        };
        if offset + length > self.served.len() {
            return call.reject(AcceptStatus::GarbageArgs);
        }
        let data = ReplyData::new().shared(&self.served, offset..offset + length);
        call.reply_with(data, |results| results.bulk());
    }

    fn write(&self, mut call: Call<'_>) {
        let Ok(Some((check, data))) = decode_write(call.args(), self.write_bytes_max) else {
            return call.reject(AcceptStatus::GarbageArgs);
        };
        let (wrong_at, count) = (first_wrong(data.bytes(), check), data.bytes().len() as u32);
        call.reply(|results| {
            results.u32(wrong_at);
            results.u32(count);
        });
    }

    fn back(&mut self, mut call: Call<'_>) {
        match BackPlan::decode(call.args(), self.write_bytes_max) {
            Ok(Some(plan)) => self.backs.start(call, &plan),
            _ => call.reject(AcceptStatus::GarbageArgs),
        }
    }

    fn status(&self, call: Call<'_>) {
        let stats = self.engine.stats(self.core);
        let ticks = self.clock.now().0;
        call.reply(|results| {
            results.u64(ticks);
            results.u64(stats.busy_ticks);
            results.u64(stats.polls);
            results.u64(stats.empty_polls);
            results.u64(stats.credit_stalls);
            results.u64(stats.queue_full);
            results.u64(stats.copies);
        });
    }
}

struct EchoArgs<'a> {
    reply_bytes: usize,
    check: Check,
    data: &'a [u8],
}

impl<'a> EchoArgs<'a> {
    /// `None` for a check that this version does not know.
    fn decode(mut args: Decoder<'a>, bytes_max: usize) -> Result<Option<Self>, DecodeError> {
        let reply_bytes = args.u32()? as usize;
        let check = Check::from_wire(args.u32()?);
        let data = args.opaque(bytes_max)?;
        args.finish()?;
        Ok(check.map(|check| Self { reply_bytes, check, data }))
    }
}

fn decode_read(mut args: Decoder<'_>) -> Result<(usize, usize), DecodeError> {
    let (offset, length) = (args.u32()? as usize, args.u32()? as usize);
    args.finish()?;
    Ok((offset, length))
}

fn decode_write<'a>(
    mut args: Decoder<'a>,
    bytes_max: usize,
) -> Result<Option<(Check, Data<'a>)>, DecodeError> {
    let check = Check::from_wire(args.u32()?);
    let data = args.data(bytes_max)?;
    args.finish()?;
    Ok(check.map(|check| (check, data)))
}

/// The client checks the length, so only the content counts here.
fn first_wrong(bytes: &[u8], expected: Check) -> u32 {
    match check(bytes, bytes.len(), expected.seed, 0, expected.verify) {
        Ok(()) => NONE_WRONG,
        Err(mismatch) => mismatch.index as u32,
    }
}
