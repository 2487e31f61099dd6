//! A key of the configuration, and what can be done with it.

use super::ConfigError;
use super::cores::CoreList;
use super::device::DeviceName;
use super::keys::{KEYS, RawConfig};
use super::ranges::Limits;
use super::value::{Choice, Value};

/// One key of the configuration.
#[derive(Debug)]
pub struct Key {
    /// Full name, as written in a profile: `rpc.credits`.
    pub name: &'static str,
    /// Unit of a number; empty if it has none.
    pub unit: &'static str,
    /// Effect of the key, in one sentence.
    pub effect: &'static str,
    /// Reason for the default, in one sentence.
    pub reason: &'static str,
    /// Document that defines the key; empty for keys that only concern this engine.
    pub origin: &'static str,
    /// Full names of keys that limit this key or that it limits.
    pub related: &'static [&'static str],
    pub(super) field: fn(&mut RawConfig) -> Field<'_>,
}

/// A place in a [`RawConfig`], with the allowed values.
pub enum Field<'a> {
    /// A number within limits.
    Integer(&'a mut u64, Limits),
    /// A number within limits, or a word for none: `off` or `auto`.
    Optional(&'a mut Option<u64>, Limits, &'static str),
    /// One of a few names.
    Choice(&'a mut dyn Choice),
    /// `auto`, `any` or a list of CPUs.
    Cores(&'a mut CoreList),
    /// `auto` or the name of an RDMA device.
    Device(&'a mut DeviceName),
}

impl Key {
    /// The key of that full name.
    pub fn find(name: &str) -> Option<&'static Self> {
        KEYS.iter().find(|key| key.name == name)
    }

    /// The default, as it would stand in a profile.
    pub fn default_value(&self) -> Value {
        self.value(&RawConfig::default())
    }

    /// The value in `raw`, as it would stand in a profile.
    pub fn value(&self, raw: &RawConfig) -> Value {
        // One accessor serves reading and writing, so reading works on a copy.
        match (self.field)(&mut raw.clone()) {
            Field::Integer(place, _) => Value::Integer(*place),
            Field::Optional(place, _, none) => {
                place.map_or_else(|| Value::Text(none.to_owned()), Value::Integer)
            }
            Field::Choice(place) => Value::Text(place.name().to_owned()),
            Field::Cores(place) => Value::Text(place.to_string()),
            Field::Device(place) => Value::Text(place.to_string()),
        }
    }

    /// Puts a value in its place.
    ///
    /// # Errors
    /// It is of another type or outside the limits; `raw` is then as before.
    pub fn set(&self, raw: &mut RawConfig, value: &Value) -> Result<(), ConfigError> {
        let done = match ((self.field)(raw), value) {
            (Field::Integer(place, limits), Value::Integer(number)) if limits.allow(*number) => {
                *place = *number;
                true
            }
            (Field::Optional(place, limits, _), Value::Integer(number))
                if limits.allow(*number) =>
            {
                *place = Some(*number);
                true
            }
            (Field::Optional(place, _, none), Value::Text(text)) if text == none => {
                *place = None;
                true
            }
            (Field::Choice(place), Value::Text(name)) => place.set(name),
            // A name that is a number, as that of a version.
            (Field::Choice(place), Value::Integer(number)) => place.set(&number.to_string()),
            (Field::Cores(place), Value::Text(text)) => place.read(text),
            (Field::Cores(place), Value::Integer(cpu)) => place.read(&cpu.to_string()),
            (Field::Device(place), Value::Text(text)) => place.read(text),
            _ => false,
        };
        if done { Ok(()) } else { Err(self.refuse(&value.to_string())) }
    }

    /// The error for a value that this key cannot take, given as it was written.
    pub fn refuse(&self, written: &str) -> ConfigError {
        ConfigError { key: self.name, value: written.to_owned(), expected: self.allowed() }
    }

    /// Accepted values, in words: `an integer from 1 to 1024`.
    pub fn allowed(&self) -> String {
        self.inspect(|field| match field {
            Field::Integer(_, limits) => limits.to_string(),
            Field::Optional(_, limits, none) => format!("\"{none}\", or {limits}"),
            Field::Choice(place) => {
                let names: Vec<_> = place.names().iter().map(|name| format!("{name:?}")).collect();
                format!("one of {}", names.join(", "))
            }
            Field::Cores(_) => {
                "\"auto\", \"any\", a CPU, or a list of CPUs such as \"2-5,8\"".to_owned()
            }
            Field::Device(_) => "\"auto\", or the name of a device such as \"mlx5_0\"".to_owned(),
        })
    }

    /// Shows `look` the place of this key, with its default and the allowed values.
    pub fn inspect<T>(&self, look: impl FnOnce(Field<'_>) -> T) -> T {
        look((self.field)(&mut RawConfig::default()))
    }

    /// The group and the name within it: `("rpc", "credits")`.
    pub fn parts(&self) -> (&'static str, &'static str) {
        self.name.split_once('.').unwrap_or(("", self.name))
    }
}

/// Text for an optional number that is not set: nothing is done, ...
pub(super) const OFF: &str = "off";
/// ... or the system decides.
pub(super) const AUTO: &str = "auto";
