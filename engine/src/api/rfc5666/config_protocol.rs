//! The Connection Configuration Protocol at both ends (RFC 5666 section 6): the service that every
//! engine has which serves it, and the call with which a client begins that asks it.
//!
//! `proto` has the wire format and security; the reactor acts on the words. The runtime creates
//! both when a core starts; the dispatch runs them.

use crate::api::call::Call;
use crate::api::connection_setup::NO_TOKEN;
use crate::api::errors::CallError;
use crate::api::identity::Identity;
use crate::api::service::Service;
use crate::config::{Config, Protection};
use crate::fabric::ConnId;
use crate::reactor::state::core::CoreCell;
use crate::reactor::types::calls::{CallId, CallTarget, HeaderTemplate};
use crate::reactor::{Backpressure, CallSpec, Negotiated};
use rustix::process::{getegid, geteuid};
use spinrpc_proto::chunking::StreamWriter;
use spinrpc_proto::config_proto::{BODY_BYTES, CONFIGURE, ConfigReply, ConfigRequest};
use spinrpc_proto::config_proto::{PROGRAM, VERSION};
use spinrpc_proto::ids::{Procedure, Program, Version};
use spinrpc_proto::limits::INLINE_THRESHOLD_MIN_BYTES;
use spinrpc_proto::rpc::{
    AUTH_BODY_MAX_BYTES, AcceptStatus, AuthFlavor, AuthSys, Groups, OpaqueAuth,
};
use spinrpc_proto::version::TransportVersion;
use spinrpc_proto::xdr::DecodeError;
use std::rc::Rc;
use std::time::Duration;

pub(in crate::api) const SERVED_AS: (Program, Version) = (PROGRAM, VERSION);

/// Longest wait for the reply, less where `rpc.timeout_ms` is less. Short enough that a client
/// which waits five seconds for a connection still gets one without the protocol.
const REPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// The RPC header of a call without its credential's body.
const CALL_HEADER_BYTES: usize = 40;

// "at least one RPC message at a time that is at least 1 KB in size" (RFC 5666 section 6.1): the
// request keeps to that with any credential, in either version, so that nothing need be known when it is sent.
const _: () = assert!(
    TransportVersion::Two.chunkless_header_bytes()
        + CALL_HEADER_BYTES
        + AUTH_BODY_MAX_BYTES
        + BODY_BYTES
        <= INLINE_THRESHOLD_MIN_BYTES as usize
);

/// Program 100417 of one core.
pub(in crate::api) struct ConfigService {
    ops: Rc<CoreCell>,
    protection: Protection,
}

impl ConfigService {
    pub(in crate::api) fn new(ops: Rc<CoreCell>, config: &Config) -> Self {
        Self { ops, protection: config.ccp_protection() }
    }

    /// A request may come at any time and more than once. The newest one counts, for every message
    /// that is built after it: its own reply is the first.
    fn configure(&self, mut call: Call<'_>) {
        let checked = match call.identity() {
            Identity::Gss { service, .. } => self.protection.check_verified(service),
            Identity::None | Identity::Sys(_) => self.protection.check(&call.credential()),
        };
        if let Err(why) = checked {
            return call.deny(why);
        }
        match request(&mut call) {
            Ok(request) => {
                let reply = self.ops.configure(call.connection().0, &request);
                call.reply(|results| results.fixed(&reply.emit()));
            }
            Err(_) => call.reject(AcceptStatus::GarbageArgs),
        }
    }
}

impl Service for ConfigService {
    fn call(&mut self, call: Call<'_>) {
        match call.procedure() {
            Procedure(0) => call.reply(|_| {}),
            CONFIGURE => self.configure(call),
            _ => call.reject(AcceptStatus::ProcUnavail),
        }
    }
}

fn request(call: &mut Call<'_>) -> Result<ConfigRequest, DecodeError> {
    let mut arguments = call.args();
    let request = ConfigRequest::parse(arguments.fixed(BODY_BYTES)?)?;
    arguments.finish()?;
    Ok(request)
}

/// Asks the server of a new connection, before anything else is sent on it.
pub(in crate::api) struct ConfigClient {
    header: HeaderTemplate,
    timeout: Duration,
    pub(in crate::api) is_protected: bool,
}

impl ConfigClient {
    /// State with a credential of the configured flavor: AUTH_SYS names the user of this process.
    pub(in crate::api) fn new(config: &Config) -> Self {
        let mut body = [0; AUTH_BODY_MAX_BYTES];
        let credential = match config.ccp_protection() {
            // Calls under a context get its credential when they are sent.
            Protection::None | Protection::Gss => OpaqueAuth::NONE,
            Protection::Sys => {
                OpaqueAuth { flavor: AuthFlavor::Sys, body: process_user(&mut body) }
            }
        };
        let timeout = config.timeout().map_or(REPLY_TIMEOUT, |most| most.min(REPLY_TIMEOUT));
        let is_protected = config.ccp_protection() == Protection::Gss;
        Self { header: HeaderTemplate::new(PROGRAM, VERSION, credential), timeout, is_protected }
    }

    /// Sends the request. The one credit of a new connection is in use until its reply, so that no
    /// other call can go before (RFC 5666 section 6.1).
    pub(in crate::api) fn call(
        &self,
        ops: &CoreCell,
        conn: ConnId,
    ) -> Result<CallId, Backpressure> {
        let request = ops.config_request().emit();
        let target = CallTarget { header: &self.header, procedure: CONFIGURE, token: NO_TOKEN };
        let mut spec = CallSpec::short().deadline(self.timeout);
        #[cfg(feature = "gss")]
        if !self.is_protected {
            spec.mark_setup();
        }
        let encode = |arguments: &mut StreamWriter<'_>| arguments.fixed(&request);
        ops.start_call((conn, &None), target, &mut spec, encode, |_| {})
    }

    /// The results of the request came: they bind the connection from now on.
    ///
    /// # Errors
    /// They are not three words, and bind nothing.
    pub(in crate::api) fn finish(
        ops: &CoreCell,
        conn: ConnId,
        results: &[u8],
    ) -> Result<Option<Negotiated>, CallError> {
        Ok(ops.take_config(conn, &ConfigReply::parse(results)?))
    }
}

/// An AUTH_SYS body for the user of this process, without a machine name: nothing may depend on one.
fn process_user(body: &mut [u8; AUTH_BODY_MAX_BYTES]) -> &[u8] {
    let user = AuthSys {
        stamp: 0,
        machine_name: &[],
        uid: geteuid().as_raw(),
        gid: getegid().as_raw(),
        groups: Groups::default(),
    };
    // It always fits: no name and no groups are five words.
    let length = user.emit(body).unwrap_or(0);
    &body[..length]
}
