//! The control socket: how another process looks at an engine that polls, and changes how it idles.
//!
//! Each engine of a process has one, unless `stats.export` is `none`: a Unix stream socket whose
//! name lies in the abstract namespace, so that nothing is left behind however the process ends,
//! with one thread that sleeps until a client connects. No core takes part, except where a request
//! says so. May use `config`, `mem`, `sys` and the published state of the reactor; the api has the
//! thread.
//!
//! # Name
//! [`NAME_PREFIX`], then user, process and a number that tells engines of one process apart:
//! `spinrpc-control/1000/4711/0`. `/proc/net/unix` lists it behind an `@`. Any process may take
//! such a name: a client has to ask the kernel whether the process at the other end is the one that
//! the name says (`SO_PEERCRED`).
//!
//! # Requests
//! One for each connection: a line of [`REQUEST_BYTES_MAX`] bytes at most with its end. The answer is one line, too: a
//! JSON object (RFC 8259), with a member `error` if the request was refused. The connection ends with it. What a
//! client asked for that has closed its end meanwhile is not done.
//!
//! * `snapshot`: counters of the engine and its cores since they started, with the 256 connections
//!   of each core that have had most calls. `snapshot 20` shows 20 of them; no request shows more
//!   than [`CONNECTIONS_SHOWN_MAX`]. Engines answer with the same snapshot for 10 ms.
//! * `idle busy`, `idle adaptive`, `idle sleep`: sets the behaviour of idle cores from now on, in
//!   the place of `poll.mode`. The answer has the number of cores that were told. A core whose
//!   thread takes its turns one by one ([`Core::poll_once`](crate::Core::poll_once)) rests as that
//!   thread decides.
//! * `latency`: the cores measure how long services take to answer calls, for [`LATENCY_LEASE`]
//!   from the last such request; the answer has their counts since the engine started.
//! * `slow`: the slowest calls of the last minutes, each with the time that it spent in every stage. Measures as `latency`
//!   does.
//!
//! Only processes of the engine's own user, and of root, are answered
//! ([`Credentials::is_trusted`](crate::sys::credentials::Credentials::is_trusted)); others are
//! disconnected. Clients are answered one after the other. One that has not asked within a second, or not taken its answer
//! within another one, is disconnected; the others wait for as long. An engine whose user cannot be told from others
//! ([`check_own_user`](crate::sys::credentials::check_own_user)) has no control socket.
//!
//! # Snapshots
//! The member `schema` is [`SCHEMA`]; within it members are added, and from the first release on never changed or taken away.
//! Counts are since the start, bytes where a name says so; the statistics of a core are named as
//! the fields of [`StatsSnapshot`](crate::StatsSnapshot), and `busy_ticks` is in ticks of which
//! there are `ticks_per_second`. `uptime_ns` is the time of the snapshot since the engine was made.
//! Of the configuration, `settings` has every key that differs from its default, and `budget` has
//! the purposes of a connection's message buffers. `gss` has the counters of security contexts, named as the fields of
//! `GssStats`, and is empty in an engine that was built without RPCSEC_GSS.
//!
//! A core that is `running` and has not `answered` has been in one turn for a tenth of a second,
//! its thread does something else, or a second was not enough for all its connections. The members
//! that only the core knows are then missing: calls that services have `deferred`, calls and answers that wait
//! for memory or room (`put_off`), blocks of the core's registered `memory` by size, and its
//! connections. In a connection, `requester` counts the calls that this side makes, and `responder`
//! those that it serves; `bytes` are those that it moved by RDMA Read and Write; `receives` and
//! `sends` are message buffers, `free` ones being in their pool, and `kept` ones with messages that
//! are worked on, or for the answers of deferred calls; `blocks` are those of registered memory by
//! holder: `calls` in flight, arguments that it `fetches`, replies that it `pulls`, and replies
//! that it `exports` for the peer to fetch. `memory_bytes`, and those of it in use, are there if
//! the connection has a separate arena.
//!
//! `application` has the metrics that the application publishes ([`Engine::publish_metric`](crate::Engine::publish_metric)):
//! `name`, `help`, the names of its `labels`, and `series`, each with the `values` of the labels and a `count`. Series of
//! durations also have `sum_ns`, and `buckets` as latencies have, or none. There are at most [`METRICS_MAX`] metrics, and
//! [`SERIES_MAX`] series, in addition to those with the value [`OTHER`]. A reader must not rely on that: any process may say more.
//!
//! # Latencies
//! The member `schema` is [`LATENCY_SCHEMA`]; within it members are added, and from the first release on never changed or taken away. A core that is
//! `measuring` counts each call of its services from the start of the handler until the handler returns, or, if the call
//! was deferred, until its answer has reached the core, unless its connection has ended before. Calls that are refused or
//! dropped, or whose handler panics, are counted, too. A core notices the request in one of
//! its next turns: the first answer may say that it does not measure.
//!
//! `histograms` says how many of a core have counted a call, and `procedures` shows them: at most
//! [`LATENCY_HISTOGRAMS_MAX`], those with most calls. `procedure` is its number, or `other` for all of a program from
//! [`PROCEDURES_MEASURED`] on. `count` is the sum of `buckets`, each of which counts durations up to its bound in
//! `bounds_ns` and above that of the bucket before; the last bucket has no bound. `sum_ns` is the sum of the durations.
//! Counts only grow: they are kept while measuring is off. A reader that needs rates subtracts two answers.
//!
//! # Slow calls
//! The member `schema` is [`SLOW_SCHEMA`]; within it members are added, and from the first release on never changed or taken away. Each core
//! keeps the [`SLOW_CALLS_KEPT`] calls of each minute that took longest, for [`SLOW_MINUTES`] minutes (`minutes`), whether or
//! not anybody asks. `calls` has those of a core that has `answered`, slowest first: the time since the end of the call
//! (`ago_ns`), its `xid`, `total_ns`, the address of the `peer` unless it is unknown, and `program`, `version` and `procedure` unless
//! the call was a long one that was deferred, or was refused after it had waited. `role` is `server` for a call that was served here, and `client` for one that was made here.
//!
//! `stages` has the nanoseconds of the total in each of these, without those of zero:
//!
//! | stage | from | until |
//! |---|---|---|
//! | `credit` | the core found that it could not start the call, for the lack of a credit, a buffer or a connection | it started the call |
//! | `wire` | the core started the call | its reply had arrived: the way there and back, and the server |
//! | `queue` | the call may have come: the first timed handler of the turn before began; if that had none, the core last looked at the clock, or a timed handler ended | the next stage |
//! | `fetch` | the message arrived | its Read chunks were fetched; also the wait for memory, and for room for the reply |
//! | `crypto` | a long body under RPCSEC_GSS was left to a thread | the core found it opened or sealed |
//! | `handler` | the handler began | it returned, or deferred the call |
//! | `deferred` | the call was deferred | it was answered, without the time in `disk` |
//! | `disk` | | what the application noted ([`Deferred::note_disk`](crate::Deferred::note_disk)) |
//! | `answer` | a thread answered | the core took the answer |
//!
//! All calls are timed that have Read chunks, wait for memory, or have bodies under RPCSEC_GSS that threads open. Of the others,
//! whether their handlers answer or defer them, all are timed while somebody asks (see `latency`), and else one in 10 ms: the
//! next one after an idle turn, 64 busy ones, or a sleep. So a busy core may have had
//! slower calls that it did not time: ask to find them. Calls that the core makes for other threads
//! ([`ClientHandle`](crate::ClientHandle)) are timed in the same way, and those of its own clients are not. A call that has not ended is not shown, and neither is one
//! whose connection has ended before. Without a counter of the processor, `answer` is part of `deferred`. What happens to a reply after the
//! core has passed it to the driver, and to a call before the core could see it, is seen by the client only.

mod application;
mod latency;
mod slow;
mod snapshot;
mod socket;

pub use crate::reactor::{
    LATENCY_BUCKETS, PROCEDURES_MEASURED, SLOW_CALLS_KEPT, SLOW_CALLS_MAX, SLOW_MINUTES, STAGES,
    latency_bounds_ns,
};
pub use application::{
    Durations, LABEL_BYTES_MAX, LABELS_MAX, LatencyHistogram, METRICS_MAX, Metric, MetricSeries,
    NAME_BYTES_MAX, OTHER, SERIES_MAX, is_label_name, is_metric_name,
};
pub(crate) use latency::{CoreLatencies, render_latencies};
pub(crate) use slow::render_slow;
pub(crate) use snapshot::{CoreFacts, EngineFacts, Inside, render};
pub(crate) use socket::listen;

pub use crate::sys::line_server::REQUEST_BYTES_MAX;

use std::time::Duration;

/// Prefix of the names of control sockets, in the abstract namespace.
pub const NAME_PREFIX: &str = "spinrpc-control/";
/// Name and version of the format of a snapshot.
pub const SCHEMA: &str = "spinrpc-control/1";
/// Name and version of the format of an answer about latencies.
pub const LATENCY_SCHEMA: &str = "spinrpc-latency/1";
/// Name and version of the format of an answer about slow calls.
pub const SLOW_SCHEMA: &str = "spinrpc-slow/1";
/// Time for which cores measure latencies after a request for them.
pub const LATENCY_LEASE: Duration = Duration::from_secs(60);
/// Most latency histograms of a core that an answer shows: those with most calls.
pub const LATENCY_HISTOGRAMS_MAX: usize = 1024;
/// Connections of a core that a snapshot shows, if the request does not say.
pub const CONNECTIONS_SHOWN: usize = 256;
/// Most connections of a core that a snapshot shows, whatever the request says: the busiest. All
/// are counted (`connections_open`).
pub const CONNECTIONS_SHOWN_MAX: usize = 1024;
