//! Every type of every description, compared byte by byte with C code by rpcgen on libtirpc: what Rust
//! writes C reads and writes again as the same bytes, and the reverse; what one refuses for its length the
//! other refuses, too. Runs on request only, since it needs rpcgen, a C compiler and libtirpc.
//! `XDR_CASES` is the number of random values of each type.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends here")]

mod common;
#[path = "rpcgen/helper.rs"]
mod helper;

use common::values::{has_text, mutant};
use helper::{Answer, Helper};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use spinrpc_xdr::DecodeError;
use spinrpc_xdr_suite::{Row, TYPES};
use std::cell::RefCell;

/// Random values of each type, if `XDR_CASES` does not say otherwise.
const CASES: u32 = 200;

#[test]
fn every_type_is_coded_as_by_rpcgen() {
    let cases =
        std::env::var("XDR_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(CASES);
    let mut types = 0;
    for description in common::DESCRIPTIONS {
        let model = common::model(description);
        let helper = RefCell::new(Helper::build(description, &model));
        for (index, found) in model.types.iter().enumerate() {
            let mut rows = TYPES.iter().filter(|row| row.description == description);
            let row = rows.find(|row| row.name == found.name).unwrap();
            let ty = model.use_of(index);
            let is_textual = has_text(&model, &ty);
            let config = Config { cases, failure_persistence: None, ..Config::default() };
            let compared = TestRunner::new(config).run(&vec(any::<u8>(), 0..600), |entropy| {
                let (bytes, mut rest) = common::value(&model, &ty, &entropy);
                let mut helper = helper.borrow_mut();
                same(row, &bytes, &helper.again(index, &bytes))?;
                let mutant = mutant(&bytes, &mut rest);
                not_contrary(row, is_textual, &mutant, &helper.again(index, &mutant))
            });
            compared.unwrap_or_else(|error| panic!("{description}, {}: {error}", found.name));
            types += 1;
        }
    }
    assert_eq!(types, TYPES.len());
    println!("{types} types compared, {cases} values and as many mutants of each");
}

/// A value is the same in C and in Rust.
fn same(row: &Row, bytes: &[u8], c: &Answer) -> Result<(), TestCaseError> {
    let rust = (row.again)(bytes);
    let rust =
        rust.map_err(|error| TestCaseError::fail(format!("Rust refuses a value: {error}")))?;
    prop_assert_eq!(rust.read, bytes.len());
    prop_assert_eq!(&rust.written, bytes);
    prop_assert!(c.is_read && c.is_written, "C refuses a value");
    prop_assert_eq!(c.read, bytes.len());
    prop_assert_eq!(&c.written, bytes);
    Ok(())
}

/// Bytes that Rust takes are taken by C and mean the same; those too short or too long for Rust are so
/// for C. C takes booleans and enums of any value, which Rust refuses.
fn not_contrary(
    row: &Row,
    is_textual: bool,
    bytes: &[u8],
    c: &Answer,
) -> Result<(), TestCaseError> {
    match (row.again)(bytes) {
        Ok(rust) => {
            prop_assert!(c.is_read, "C refuses what Rust takes");
            prop_assert_eq!(c.read, rust.read);
            if !is_textual {
                prop_assert!(c.is_written);
                prop_assert_eq!(&c.written, &rust.written);
            }
        }
        Err(
            DecodeError::Truncated { .. }
            | DecodeError::TooLong { .. }
            | DecodeError::BadPadding { .. },
        ) => prop_assert!(!c.is_read, "C takes what is too short or too long for Rust"),
        Err(_) => {}
    }
    Ok(())
}
