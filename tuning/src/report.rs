//! What spintune prints.

use serde::Serialize;
use spinrpc::config::{Host, Key, Value};
use spinrpc::mem::budget::Budget;
use spinrpc_tuning::{Profile, Setting, Source, load, shipped};
use std::collections::BTreeMap;

/// The shipped profiles, one a line.
pub(crate) fn list() -> String {
    // Examples name CPUs that only their hosts have.
    let host = Host { allowed: (0..64).collect(), ..Host::default() };
    let describe = |name| load(name, &host).ok()?.description().map(str::to_owned);
    let row = |name| format!("{name:<21}  {}\n", describe(name).unwrap_or_default());
    shipped().iter().map(|profile| row(profile.name)).collect()
}

/// One key.
pub(crate) fn explanation(key: &Key) -> String {
    let unit = if key.unit.is_empty() { String::new() } else { format!(" ({})", key.unit) };
    let Key { name, effect, reason, .. } = key;
    let (allowed, default) = (key.allowed(), key.default_value());
    format!(
        "{name}{unit}\n  does     {effect}\n  takes    {allowed}\n  default  {default}\n  \
         because  {reason}\n"
    )
}

/// A profile as a table.
pub(crate) fn text(profile: &Profile) -> String {
    let mut rows = vec![["KEY", "VALUE", "UNIT", "FROM"].map(str::to_owned)];
    rows.extend(profile.settings().map(|setting| row(&setting)));
    let derived = derived(profile);
    let facts = derived.iter().map(|fact| format!("{:<32}{:>9}\n", fact.label, fact.value));
    format!(
        "profile {}, hash {:016x}\n\n{}\nWhat follows from it\n{}",
        profile.name(),
        profile.hash(),
        table(&rows),
        facts.collect::<String>(),
    )
}

fn row(setting: &Setting<'_>) -> [String; 4] {
    let value = plain(&setting.value);
    let value = match &setting.resolved {
        Some(resolved) => format!("{value} -> {resolved}"),
        None => value,
    };
    [setting.key.name.to_owned(), value, setting.key.unit.to_owned(), setting.source.to_string()]
}

/// Without the quotes a profile needs.
fn plain(value: &Value) -> String {
    match value {
        Value::Text(text) => text.clone(),
        other => other.to_string(),
    }
}

fn table(rows: &[[String; 4]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let [a, b, c] = [0, 1, 2].map(|column| width(column).unwrap_or_default());
    let line = |[key, value, unit, from]: &[String; 4]| {
        format!("{key:<a$}  {value:<b$}  {unit:<c$}  {from}\n")
    };
    rows.iter().map(line).collect()
}

/// Sizes that the engine computes from the values.
struct Derived {
    name: &'static str,
    label: &'static str,
    value: usize,
}

fn derived(profile: &Profile) -> Vec<Derived> {
    let config = profile.config();
    let recv = buffers(&config.recv_budget());
    let send = buffers(&config.responder_send_budget());
    let buffers_bytes = recv * config.recv_buffer_bytes() + send * config.send_buffer_bytes();
    [
        ("cores", "cores", config.cores()),
        ("recv_buffers_per_conn", "receive buffers per connection", recv),
        ("recv_buffer_bytes", "bytes of a receive buffer", config.recv_buffer_bytes()),
        ("send_buffers_per_conn", "send buffers per connection", send),
        ("send_buffer_bytes", "bytes of a send buffer", config.send_buffer_bytes()),
        ("headroom_bytes", "bytes of it for the header", config.headroom_bytes()),
        ("buffers_per_conn_bytes", "buffer bytes per connection", buffers_bytes),
    ]
    .map(|(name, label, value)| Derived { name, label, value })
    .into()
}

fn buffers(budget: &impl Budget) -> usize {
    usize::try_from(budget.total()).unwrap_or(usize::MAX)
}

/// A profile for programs.
pub(crate) fn json(profile: &Profile) -> String {
    let document = Document {
        schema: 1,
        profile: profile.name(),
        description: profile.description(),
        hash: format!("{:016x}", profile.hash()),
        cpus: profile.config().cpus(),
        keys: profile.settings().map(|setting| JsonKey::from(&setting)).collect(),
        derived: derived(profile).iter().map(|fact| (fact.name, fact.value)).collect(),
    };
    let text = serde_json::to_string_pretty(&document);
    text.unwrap_or_else(|error| format!("{{\"error\": {:?}}}", error.to_string())) + "\n"
}

#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    profile: &'a str,
    description: Option<&'a str>,
    hash: String,
    cpus: &'a [usize],
    keys: Vec<JsonKey>,
    derived: BTreeMap<&'static str, usize>,
}

#[derive(Serialize)]
struct JsonKey {
    key: &'static str,
    value: JsonValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    resolved: Option<String>,
    unit: &'static str,
    source: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum JsonValue {
    Integer(u64),
    Flag(bool),
    Text(String),
}

impl From<&Setting<'_>> for JsonKey {
    fn from(setting: &Setting<'_>) -> Self {
        let (source, place) = match setting.source {
            Source::Default => ("default", None),
            Source::File(location) => ("file", Some(location)),
            Source::Override => ("override", None),
        };
        Self {
            key: setting.key.name,
            value: JsonValue::from(&setting.value),
            resolved: setting.resolved.clone(),
            unit: setting.key.unit,
            source,
            file: place.map(|location| location.file.to_string()),
            line: place.map(|location| location.line),
        }
    }
}

impl From<&Value> for JsonValue {
    fn from(value: &Value) -> Self {
        match value {
            Value::Integer(number) => Self::Integer(*number),
            Value::Flag(flag) => Self::Flag(*flag),
            Value::Text(text) => Self::Text(text.clone()),
        }
    }
}
