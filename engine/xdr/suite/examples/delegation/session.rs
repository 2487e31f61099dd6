//! A client of NFSv4.1 with one session on one connection.

use super::load::{Load, Turns, sequence};
use super::recalls::SharedRecalls;
use spinrpc::{
    AuthSys, Backpressure, CallError, CallSpec, ConnectOptions, Groups, Reply, ReplyHandler, Token,
};
use spinrpc_xdr::{Array, Decode, Decoder, Opaque, rpc, to_bytes};
use spinrpc_xdr_suite::nfs41::nfs_v4::{self, Nfsproc4Compound};
use spinrpc_xdr_suite::nfs41::{
    self, CallbackSecParms4, CbAuthsysParms, ChannelAttrs4, ClientOwner4, Clientid4, Close4args,
    Compound4args, Compound4res, CreateSession4args, CreateSession4res, Delegreturn4args,
    DestroyClientid4args, DestroySession4args, ExchangeId4args, ExchangeId4res, Getfh4res,
    NfsArgop4, NfsResop4, Nfsstat4, Open4args, Open4res, OpenClaim4, OpenDelegation4, OpenOwner4,
    Openflag4, Putfh4args, ReclaimComplete4args, Sequence4res, Sessionid4, StateProtect4, Stateid4,
};
use std::cell::RefCell;
use std::error::Error;
use std::fmt;
use std::rc::Rc;
use std::sync::PoisonError;
use std::time::{Duration, Instant, UNIX_EPOCH};

pub(crate) type Failure = Box<dyn Error>;

/// Slots of a session: the first for calls that are waited for, the others for those of the load.
pub(crate) const SLOTS: u32 = 65;
const TIMEOUT: Duration = Duration::from_secs(30);
/// Longest message of a session. The results of all calls here fit into a message of RPC-over-RDMA.
const MESSAGE_BYTES: u32 = 4096;
const RESULTS_BYTES: usize = 3000;

/// Replies that have arrived.
#[derive(Default)]
pub(crate) struct Arrived {
    /// To the call that is waited for, encoded again.
    waited_for: Option<Result<Vec<u8>, CallError>>,
    pub(crate) free_slots: Vec<usize>,
    pub(crate) answered: u64,
    /// First call of the load that failed.
    pub(crate) failed: Option<String>,
}

struct Replies {
    arrived: Rc<RefCell<Arrived>>,
    recalls: Option<SharedRecalls>,
}

impl ReplyHandler for Replies {
    fn on_reply(&mut self, Token(slot): Token, mut reply: Result<Reply<'_>, CallError>) {
        let mut arrived = self.arrived.borrow_mut();
        let results = reply.as_mut().map_err(|error| error.clone());
        let results = results.and_then(|reply| Ok(rpc::results::<Nfsproc4Compound>(reply)?));
        if slot == 0 {
            arrived.waited_for = Some(results.map(|results| to_bytes(&results)));
            return;
        }
        arrived.free_slots.push(slot as usize);
        arrived.answered += 1;
        if let Some(recalls) = &self.recalls {
            recalls.lock().unwrap_or_else(PoisonError::into_inner).in_flight -= 1;
        }
        match results {
            Ok(Compound4res { status: Nfsstat4::Nfs4Ok, .. }) => {}
            other => drop(arrived.failed.get_or_insert(format!("slot {slot}: {other:?}"))),
        }
    }
}

/// A file that is open, with its read delegation.
pub(crate) struct Opened {
    pub(crate) stateid: Stateid4,
    pub(crate) delegation: Option<Stateid4>,
    pub(crate) handle: Vec<u8>,
}

pub(crate) struct Session {
    pub(crate) client: nfs_v4::Client,
    arrived: Rc<RefCell<Arrived>>,
    id: Clientid4,
    session: Sessionid4,
    /// Number of the last call in the first slot.
    last: u32,
    /// Status flags of the last SEQUENCE.
    pub(crate) flags: u32,
}

impl Session {
    /// Connects and makes a session. With `takes_recalls` the connection is also its back channel.
    pub(crate) fn open(
        turns: &mut Turns,
        address: &str,
        name: &str,
        takes_recalls: bool,
    ) -> Result<Self, Failure> {
        let options = ConnectOptions::new();
        let options = if takes_recalls { options.take_reverse_calls() } else { options };
        let arrived = Rc::default();
        let recalls = takes_recalls.then(|| SharedRecalls::clone(&turns.recalls));
        let make = |_| Replies { arrived: Rc::clone(&arrived), recalls };
        let (program, version) = (nfs_v4::PROGRAM, nfs_v4::VERSION);
        let core = &mut turns.core;
        let client = core.connect_wait_with(address, program, version, &options, make, TIMEOUT)?;
        let (machine_name, groups) = (b"spinrpc", Groups::default());
        client.set_auth_sys(Some(&AuthSys { stamp: 0, machine_name, uid: 0, gid: 0, groups }))?;
        let client = nfs_v4::Client(client);
        let mut new = Self { client, arrived, id: 0, session: [0; 16], last: 0, flags: 0 };
        let number = new.exchange_id(turns, name)?;
        new.create_session(turns, number, takes_recalls)?;
        let complete = NfsArgop4::OpReclaimComplete(ReclaimComplete4args { rca_one_fs: false });
        new.call_in_slot(turns, &[complete], |_| Some(()))??;
        Ok(new)
    }

    fn exchange_id(&mut self, turns: &mut Turns, name: &str) -> Result<u32, Failure> {
        let started_at = UNIX_EPOCH.elapsed()?.as_micros() as u64;
        let (co_verifier, co_ownerid) = (started_at.to_be_bytes(), Opaque::new(name.as_bytes())?);
        let exchange = NfsArgop4::OpExchangeId(ExchangeId4args {
            eia_clientowner: ClientOwner4 { co_verifier, co_ownerid },
            eia_flags: nfs41::EXCHGID4_FLAG_USE_NON_PNFS,
            eia_state_protect: StateProtect4::Sp4None,
            eia_client_impl_id: Array::default(),
        });
        let (id, number) = self.call(turns, &[exchange], |results| match results {
            [NfsResop4::OpExchangeId(ExchangeId4res::Nfs4Ok(ok))] => {
                Some((ok.eir_clientid, ok.eir_sequenceid))
            }
            _ => None,
        })??;
        self.id = id;
        Ok(number)
    }

    fn create_session(
        &mut self,
        turns: &mut Turns,
        number: u32,
        takes_recalls: bool,
    ) -> Result<(), Failure> {
        let channel = |requests| ChannelAttrs4 {
            ca_maxrequestsize: MESSAGE_BYTES,
            ca_maxresponsesize: MESSAGE_BYTES,
            ca_maxresponsesize_cached: 256,
            ca_maxoperations: 8,
            ca_maxrequests: requests,
            ..ChannelAttrs4::default()
        };
        let flag = nfs41::CREATE_SESSION4_FLAG_CONN_BACK_CHAN * u32::from(takes_recalls);
        let security = [CallbackSecParms4::CbAuthSys(CbAuthsysParms::default())];
        let create = NfsArgop4::OpCreateSession(CreateSession4args {
            csa_clientid: self.id,
            csa_sequence: number,
            csa_flags: flag,
            csa_fore_chan_attrs: channel(SLOTS),
            csa_back_chan_attrs: channel(1),
            csa_cb_program: nfs41::nfs_cb::PROGRAM.0,
            csa_sec_parms: Array::new(&security)?,
        });
        let (session, flags, slots) = self.call(turns, &[create], |results| match results {
            [NfsResop4::OpCreateSession(CreateSession4res::Nfs4Ok(ok))] => {
                Some((ok.csr_sessionid, ok.csr_flags, ok.csr_fore_chan_attrs.ca_maxrequests))
            }
            _ => None,
        })??;
        self.session = session;
        if flags & flag == flag && slots == SLOTS {
            return Ok(());
        }
        Err(format!("the server made a session with flags {flags:#x} and {slots} slots").into())
    }

    /// Calls and waits. `take` gets the results.
    fn call<T>(
        &mut self,
        turns: &mut Turns,
        operations: &[NfsArgop4<'_>],
        take: impl FnOnce(&[NfsResop4<'_>]) -> Option<T>,
    ) -> Result<Result<T, Refusal>, Failure> {
        let bytes = self.bytes_of_results(turns, operations)?;
        let Compound4res { status, resarray, .. } =
            Compound4res::decode(&mut Decoder::plain(&bytes))?;
        let results: Vec<_> = resarray.iter().collect();
        if let Some(NfsResop4::OpSequence(Sequence4res::Nfs4Ok(ok))) = results.first() {
            self.flags = ok.sr_status_flags;
        }
        if status != Nfsstat4::Nfs4Ok {
            return Ok(Err(Refusal(status, format!("{results:?}"))));
        }
        Ok(Ok(take(&results).ok_or_else(|| format!("unexpected results: {results:?}"))?))
    }

    fn bytes_of_results(
        &self,
        turns: &mut Turns,
        operations: &[NfsArgop4<'_>],
    ) -> Result<Vec<u8>, Failure> {
        let end = Instant::now() + TIMEOUT;
        // With a load, as many calls as the server grants are in flight: one of them has to be answered first.
        while let Err(refused) = start(&self.client, 0, operations) {
            if refused != Backpressure::NoCredit || Instant::now() > end {
                return Err(refused.into());
            }
            turns.turn_without_load();
        }
        let arrived = Rc::clone(&self.arrived);
        let reply = || arrived.borrow_mut().waited_for.take();
        Ok(turns.until("a reply", TIMEOUT + TIMEOUT, reply)??)
    }

    /// As [`Self::call`], behind SEQUENCE in the first slot, whose result `take` does not get.
    fn call_in_slot<T>(
        &mut self,
        turns: &mut Turns,
        operations: &[NfsArgop4<'_>],
        take: impl FnOnce(&[NfsResop4<'_>]) -> Option<T>,
    ) -> Result<Result<T, Refusal>, Failure> {
        self.last += 1;
        let all = [&[sequence(self.session, 0, self.last)], operations].concat();
        self.call(turns, &all, |results| take(results.get(1..)?))
    }

    /// Opens a file in the root.
    pub(crate) fn open_file(
        &mut self,
        turns: &mut Turns,
        name: &str,
        share_access: u32,
    ) -> Result<Result<Opened, Refusal>, Failure> {
        let open = NfsArgop4::OpOpen(Open4args {
            seqid: 0,
            share_access,
            share_deny: 0,
            owner: OpenOwner4 { clientid: self.id, owner: Opaque::new(b"owner")? },
            openhow: Openflag4::Open4Nocreate,
            claim: OpenClaim4::ClaimNull(Opaque::new(name.as_bytes())?),
        });
        let operations = [NfsArgop4::OpPutrootfh, open, NfsArgop4::OpGetfh];
        self.call_in_slot(turns, &operations, |results| match results {
            [
                _,
                NfsResop4::OpOpen(Open4res::Nfs4Ok(ok)),
                NfsResop4::OpGetfh(Getfh4res::Nfs4Ok(handle)),
            ] => {
                let delegation = match ok.delegation {
                    OpenDelegation4::OpenDelegateRead(read) => Some(read.stateid),
                    _ => None,
                };
                Some(Opened { stateid: ok.stateid, delegation, handle: handle.to_vec() })
            }
            _ => None,
        })
    }

    pub(crate) fn return_delegation(
        &mut self,
        turns: &mut Turns,
        opened: &Opened,
        deleg_stateid: Stateid4,
    ) -> Result<(), Failure> {
        let args = Delegreturn4args { deleg_stateid };
        self.call_on_file(turns, opened, NfsArgop4::OpDelegreturn(args))
    }

    pub(crate) fn close_file(&mut self, turns: &mut Turns, opened: &Opened) -> Result<(), Failure> {
        let args = Close4args { seqid: 0, open_stateid: opened.stateid };
        self.call_on_file(turns, opened, NfsArgop4::OpClose(args))
    }

    fn call_on_file(
        &mut self,
        turns: &mut Turns,
        opened: &Opened,
        operation: NfsArgop4<'_>,
    ) -> Result<(), Failure> {
        let object = Opaque::new(&opened.handle)?;
        let operations = [NfsArgop4::OpPutfh(Putfh4args { object }), operation];
        Ok(self.call_in_slot(turns, &operations, |_| Some(()))??)
    }

    /// Keeps `calls` in flight, when turns pump them.
    pub(crate) fn load(&self, calls: usize) -> Load {
        Load::new(self.client.clone(), self.session, Rc::clone(&self.arrived), calls)
    }

    /// Calls of the load that were answered.
    pub(crate) fn answered(&self) -> u64 {
        self.arrived.borrow().answered
    }

    /// Ends the session, the client and the connection.
    pub(crate) fn end(&mut self, turns: &mut Turns) -> Result<(), Failure> {
        let args = DestroySession4args { dsa_sessionid: self.session };
        self.call(turns, &[NfsArgop4::OpDestroySession(args)], |_| Some(()))??;
        let args = DestroyClientid4args { dca_clientid: self.id };
        self.call(turns, &[NfsArgop4::OpDestroyClientid(args)], |_| Some(()))??;
        self.client.0.close();
        Ok(())
    }
}

/// Starts a COMPOUND. The slot of its session is its token.
pub(crate) fn start(
    client: &nfs_v4::Client,
    slot: usize,
    operations: &[NfsArgop4<'_>],
) -> Result<(), Backpressure> {
    let argarray = Array::new(operations).unwrap_or_default();
    let args = Compound4args { tag: Opaque::default(), minorversion: 1, argarray };
    let spec = &mut CallSpec::new().reply_bytes_max(RESULTS_BYTES).deadline(TIMEOUT);
    client.nfsproc4_compound(Token(slot as u64), spec, &args).map(drop)
}

/// Status of a COMPOUND that failed, and its results.
#[derive(Debug)]
pub(crate) struct Refusal(pub(crate) Nfsstat4, String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "refused with {}: {}", self.0, self.1)
    }
}

impl Error for Refusal {}
