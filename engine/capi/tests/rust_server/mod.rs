//! The program of `c/program.h`, served in Rust.

pub(crate) mod nfs;

use spinrpc::config::{IdlePolicy, RawConfig, Want};
use spinrpc::{
    AcceptStatus, Call, Config, CoreContext, DecodeError, Engine, Procedure, Program, ReplyData,
    Version,
};
use std::thread;

pub(crate) const PROGRAM: Program = Program(0x2000_0001);
pub(crate) const VERSION: Version = Version(1);
pub(crate) const ECHO: Procedure = Procedure(1);
pub(crate) const SUM: Procedure = Procedure(2);
pub(crate) const LATER: Procedure = Procedure(3);
pub(crate) const REVERSE: Procedure = Procedure(4);
const DROP: Procedure = Procedure(5);
pub(crate) const QUIT: Procedure = Procedure(8);
pub(crate) const DATA_MAX: usize = 1 << 20;

/// As the C programs have it: one core, which sleeps when it is idle.
pub(crate) fn config() -> Config {
    let mut raw = RawConfig::default();
    raw.cores.max = 1;
    raw.poll.mode = IdlePolicy::Sleep;
    raw.mem.arena_mib = 16;
    // For NFS.
    raw.rpc.reply_cache_mib = 8;
    raw.mem.lock = Want::Off;
    raw.mem.hugepages = Want::Off;
    raw.validate().unwrap()
}

pub(crate) fn serve(engine: &Engine) {
    engine
        .serve(PROGRAM, VERSION, |context: &CoreContext| {
            let context = context.clone();
            move |call: Call<'_>| handle(&context, call)
        })
        .unwrap();
}

fn handle(context: &CoreContext, mut call: Call<'_>) {
    match call.procedure() {
        Procedure(0) => call.reply(|_| {}),
        ECHO => match call.args().pass_plain(|bytes| Some(bytes.len())) {
            Some(bytes) => call.reply(|to| to.fixed(bytes)),
            None => call.reject(AcceptStatus::GarbageArgs),
        },
        SUM => match sum(&mut call) {
            Ok(sum) => call.reply(|to| to.u64(sum)),
            Err(_) => call.reject(AcceptStatus::GarbageArgs),
        },
        LATER => {
            let number = call.args().u32().unwrap();
            let deferred = call.defer().unwrap();
            thread::spawn(move || deferred.reply(|to| to.u32(number + 1)));
        }
        REVERSE => reverse(context, call),
        DROP => drop(call),
        _ => call.reject(AcceptStatus::ProcUnavail),
    }
}

fn sum(call: &mut Call<'_>) -> Result<u64, DecodeError> {
    let mut args = call.args();
    let sum = u64::from(args.u32()?) + args.u64()?;
    args.finish()?;
    Ok(sum)
}

fn reverse(context: &CoreContext, mut call: Call<'_>) {
    let data = call.args().data(DATA_MAX).unwrap();
    let mut reversed = context.bulk(data.bytes().len()).unwrap();
    let from = data.bytes().iter().rev();
    reversed.bytes_mut().iter_mut().zip(from).for_each(|(to, from)| *to = *from);
    let length = reversed.len() as u32;
    call.reply_with(ReplyData::new().bulk(reversed), |to| {
        to.u32(length);
        to.bulk();
    });
}
