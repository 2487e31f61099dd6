//! The server's end: one service per core, which holds only the data it serves.

use super::control::{BackPlan, Intent, Welcome};
use super::program::{
    BACK, BACK_BEGIN, BACK_END, Check, ECHO, HOLDINGS, INTENT, JOIN, NONE_WRONG, NULL, PROGRAM,
    READ, READ_WINDOW_BYTES, SERVED_SEED, STATUS, VERSION, WRITE,
};
use super::rendezvous::{Join, Rendezvous};
use super::reverse_load::Backs;
use super::status::Status;
use crate::env::{ThreadTimes, holdings};
use crate::failure::Failure;
use crate::pattern::{check, fill};
use spinrpc::{
    AcceptStatus, Bulk, Call, Config, ConnectionEvent, ConnectionId, CoreContext, Data,
    DecodeError, Decoder, Engine, ListenOptions, ReplyData, Service, SharedBulk, SlabLayout,
};
use spinrpc_xdr::{Decode, Encode, Opaque, Xdr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// What it serves is in a slab that it lends, if `lends`. Returns when it listens.
pub(crate) fn serve(
    engine: &Engine,
    config: &Config,
    address: &str,
    lends: bool,
) -> Result<(), Failure> {
    let mut options = ListenOptions::new();
    let bytes = served_bytes(config);
    let served = match lends {
        false => Bulk::from_vec(vec![0; bytes]),
        true => {
            let layout = SlabLayout::new().block_bytes(bytes).blocks(1);
            let slab = engine.slab(layout)?;
            options = options.lend(&slab);
            let block = slab.take(bytes);
            block.ok_or_else(|| Failure::Measurement("a slab has no block".to_owned()))?
        }
    };
    register_with(engine, config, served)?;
    Ok(engine.listen_with(address, &options)?)
}

/// Answers the benchmark program on every core of `engine`, over whatever connections it has.
pub(crate) fn register(engine: &Engine, config: &Config) -> Result<(), Failure> {
    register_with(engine, config, Bulk::from_vec(vec![0; served_bytes(config)]))
}

fn served_bytes(config: &Config) -> usize {
    config.read_bytes_max() + READ_WINDOW_BYTES
}

/// Results of READ are made once, so that a measured read is a single copy by the engine.
fn register_with(engine: &Engine, config: &Config, mut served: Bulk) -> Result<(), Failure> {
    fill(served.bytes_mut(), SERVED_SEED, 0);
    let served = served.freeze();
    let write_bytes_max = config.write_bytes_max();
    let for_status = engine.clone();
    let rendezvous = Arc::default();
    let service = move |context: &CoreContext| PerfService {
        core: context.index(),
        engine: for_status.clone(),
        served: served.clone(),
        write_bytes_max,
        backs: Backs::default(),
        rendezvous: Arc::clone(&rendezvous),
        joined: Vec::new(),
    };
    Ok(engine.serve(PROGRAM, VERSION, service)?)
}

struct PerfService {
    core: usize,
    engine: Engine,
    served: SharedBulk,
    write_bytes_max: usize,
    backs: Backs,
    /// Shared by all cores; used before a measurement only.
    rendezvous: Arc<Mutex<Rendezvous<Place>>>,
    joined: Vec<ConnectionId>,
}

type Place = (usize, ConnectionId);

impl Service for PerfService {
    fn call(&mut self, call: Call<'_>) {
        match call.procedure() {
            NULL => call.reply(|_| {}),
            ECHO => self.echo(call),
            READ => self.read(call),
            WRITE => self.write(call),
            STATUS => self.status(call),
            BACK => self.back(call),
            BACK_BEGIN => self.backs.begin(call),
            BACK_END => self.backs.finish(call),
            INTENT => self.intent(call),
            JOIN => self.join(call),
            HOLDINGS => {
                let holdings = holdings(std::process::id());
                call.reply(|results| holdings.encode(results));
            }
            _ => call.reject(AcceptStatus::ProcUnavail),
        }
    }

    fn on_event(&mut self, event: &ConnectionEvent) {
        if let ConnectionEvent::Down { connection, .. } = event {
            self.backs.forget(*connection);
            self.leave(*connection);
        }
    }
}

impl PerfService {
    fn echo(&self, mut call: Call<'_>) {
        let echo = taken::<EchoArgs<'_>>(call.args());
        let echo = echo.filter(|echo| echo.data.len() <= self.write_bytes_max);
        let Some((echo, check)) = echo.and_then(|echo| Some((echo, Check::from_wire(echo.check)?)))
        else {
            return call.reject(AcceptStatus::GarbageArgs);
        };
        let (sent, reply_bytes) = (&*echo.data, echo.reply_bytes as usize);
        let source = if reply_bytes <= sent.len() { sent } else { self.served.bytes() };
        let Some(data) = source.get(..reply_bytes) else {
            return call.reject(AcceptStatus::GarbageArgs);
        };
        let wrong_at = first_wrong(sent, check);
        call.reply(|results| {
            results.u32(wrong_at);
            results.opaque(data);
        });
    }

    fn read(&self, mut call: Call<'_>) {
        let Some(ReadArgs { offset, length }) = taken(call.args()) else {
            return call.reject(AcceptStatus::GarbageArgs);
        };
        let (offset, length) = (offset as usize, length as usize);
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
        let Some(plan) = taken::<BackPlan>(call.args()) else {
            return call.reject(AcceptStatus::GarbageArgs);
        };
        let config = self.engine.config();
        let refusal = plan.refusal(config).or_else(|| self.backs.prepare(&call, &plan).err());
        let refusal = refusal.unwrap_or_default();
        call.reply(|results| Welcome::new(&refusal, config).encode(results));
    }

    fn intent(&self, mut call: Call<'_>) {
        let Some(intent) = taken::<Intent<'_>>(call.args()) else {
            return call.reject(AcceptStatus::GarbageArgs);
        };
        let config = self.engine.config();
        let refusal = intent.refusal(config).unwrap_or_default();
        call.reply(|results| Welcome::new(&refusal, config).encode(results));
    }

    fn join(&mut self, mut call: Call<'_>) {
        let Some(join) = taken::<Join<'_>>(call.args()) else {
            return call.reject(AcceptStatus::GarbageArgs);
        };
        let connection = call.connection();
        if !self.joined.contains(&connection) {
            self.joined.push(connection);
        }
        let mut rendezvous = self.rendezvous.lock().unwrap_or_else(PoisonError::into_inner);
        let joined = rendezvous.join(&join, (self.core, connection), Instant::now());
        drop(rendezvous);
        call.reply(|results| joined.encode(results));
    }

    /// A connection is down. Most are not those of ranks, and take no lock.
    fn leave(&mut self, connection: ConnectionId) {
        let Some(at) = self.joined.iter().position(|one| *one == connection) else { return };
        self.joined.swap_remove(at);
        let mut rendezvous = self.rendezvous.lock().unwrap_or_else(PoisonError::into_inner);
        rendezvous.forget((self.core, connection));
    }

    fn status(&self, call: Call<'_>) {
        let cores = 0..self.engine.cores();
        let status = Status::observe(&self.engine, cores, ThreadTimes::of_core);
        call.reply(|results| status.encode(results));
    }
}

fn taken<'a, T: Decode<'a>>(mut args: Decoder<'a>) -> Option<T> {
    let taken = T::decode(&mut args).ok()?;
    args.finish().ok().map(|()| taken)
}

#[derive(Clone, Copy, Xdr)]
struct EchoArgs<'a> {
    reply_bytes: u32,
    check: u32,
    data: Opaque<'a>,
}

#[derive(Clone, Copy, Xdr)]
struct ReadArgs {
    offset: u32,
    length: u32,
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

/// The client checks the length, so only the content matters here.
fn first_wrong(bytes: &[u8], expected: Check) -> u32 {
    match check(bytes, bytes.len(), expected.seed, 0, expected.verify) {
        Ok(()) => NONE_WRONG,
        Err(mismatch) => mismatch.index as u32,
    }
}
