//! Tests of the driver as a whole: what every driver must do, peers in other processes and their
//! death, and peers that are out to do harm.

pub(crate) mod conformance;
mod fetches;
mod hostile;
mod listeners;
mod processes;

use super::{ShmConfig, ShmConnector, ShmFabric};
use crate::mem::Slab;
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::tests::conformance::*;
use crate::tests::slab;
use crate::*;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::{Duration, Instant};
