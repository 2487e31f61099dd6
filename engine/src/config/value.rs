//! Values of keys as they are written in a profile.

use std::fmt;

/// A value of an enum that is written by name.
pub trait Choice {
    /// All names, in the order to show them.
    fn names(&self) -> &'static [&'static str];
    /// The name of the present value.
    fn name(&self) -> &'static str;
    /// Takes the value of that name; `false`, and no change, when there is none.
    fn set(&mut self, name: &str) -> bool;
}

/// A value as it stands in a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// `64`
    Integer(u64),
    /// `true`
    Flag(bool),
    /// `"busy"`
    Text(String),
}

impl fmt::Display for Value {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(number) => number.fmt(out),
            Self::Flag(flag) => flag.fmt(out),
            Self::Text(text) => write!(out, "{text:?}"),
        }
    }
}
