//! Names that most tests of the public API import.
#![allow(unused_imports, reason = "each test binary uses a part of it")]

pub(crate) use super::caller::*;
pub(crate) use super::program::*;
pub(crate) use super::two_way::*;
pub(crate) use super::*;
pub(crate) use spinrpc::config::*;
pub(crate) use spinrpc::fabric::{Access, RemoteSlice};
pub(crate) use spinrpc::sync::lock;
pub(crate) use spinrpc::*;
pub(crate) use spinrpc_proto::dialect::Profile;
pub(crate) use std::cell::{Cell, RefCell};
pub(crate) use std::collections::{HashMap, HashSet};
pub(crate) use std::rc::Rc;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
pub(crate) use std::sync::{Arc, Mutex};
pub(crate) use std::time::{Duration, Instant};
