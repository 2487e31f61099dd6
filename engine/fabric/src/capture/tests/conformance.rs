//! The conformance suite over captured shared memory: the wrapper changes nothing.

use super::Captured;
use crate::tests::conformance::fabric_conformance;
use std::sync::Mutex;

fabric_conformance!(Captured(Mutex::new(None)));
