//! Tests of the driver: the conformance suite, and peers that break the rules.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod conformance;
mod handshakes;
mod hostile;
mod raw_peer;
mod turns;

use super::wire::{Agreed, Event as WireEvent, Frame, FrameKind, Local, Message, ReadResponse};
use super::{IwarpConfig, IwarpConnector, IwarpFabric};
use crate::tests::conformance::*;
use crate::*;
use conformance::{address, config};
use raw_peer::*;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};
