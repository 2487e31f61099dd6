//! Tests that more than one driver runs.

pub(crate) mod conformance;
