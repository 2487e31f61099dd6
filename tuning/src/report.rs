//! Output of spintune.

use serde::Serialize;
use spinrpc::config::{Host, Key, Value};
use spinrpc::mem::budget::Budget;
use spinrpc_tuning::text::{self, printable};
use spinrpc_tuning::{Profile, Setting, Source, background, load, shipped};
use std::collections::BTreeMap;

/// The shipped profiles, one per line.
pub(crate) fn list() -> String {
    let row = |(name, description)| format!("{name:<21}  {description}\n");
    described().map(row).collect()
}

/// The shipped profiles as JSON.
pub(crate) fn list_json() -> String {
    #[derive(Serialize)]
    struct Listed {
        name: &'static str,
        description: String,
    }
    #[derive(Serialize)]
    struct List {
        schema: u32,
        profiles: Vec<Listed>,
    }
    let listed = described().map(|(name, description)| Listed { name, description });
    to_json(&List { schema: 1, profiles: listed.collect() })
}

/// The shipped profiles with their descriptions.
fn described() -> impl Iterator<Item = (&'static str, String)> {
    // Examples name CPUs that only their hosts have.
    let host = Host { allowed: (0..64).collect(), ..Host::default() };
    shipped().iter().map(move |profile| {
        let loaded = load(profile.name, &host).ok();
        let description = loaded.and_then(|profile| profile.description().map(str::to_owned));
        (profile.name, description.unwrap_or_default())
    })
}

/// Explanations of keys as JSON.
pub(crate) fn explanations(keys: impl IntoIterator<Item = &'static Key>) -> String {
    #[derive(Serialize)]
    struct Explained {
        key: &'static str,
        unit: &'static str,
        effect: &'static str,
        takes: String,
        default: JsonValue,
        reason: &'static str,
        origin: &'static str,
        related: &'static [&'static str],
    }
    #[derive(Serialize)]
    struct Explanations {
        schema: u32,
        keys: Vec<Explained>,
    }
    let explained = |key: &'static Key| Explained {
        key: key.name,
        unit: key.unit,
        effect: key.effect,
        takes: key.allowed(),
        default: JsonValue::from(&key.default_value()),
        reason: key.reason,
        origin: background(key).origin,
        related: background(key).related,
    };
    to_json(&Explanations { schema: 1, keys: keys.into_iter().map(explained).collect() })
}

/// Explanation of one key.
pub(crate) fn explanation(key: &Key) -> String {
    let unit = if key.unit.is_empty() { String::new() } else { format!(" ({})", key.unit) };
    let background = background(key);
    let rows = [
        ("does", key.effect.to_owned()),
        ("takes", key.allowed()),
        ("default", key.default_value().to_string()),
        ("because", key.reason.to_owned()),
        ("from", background.origin.to_owned()),
        ("related", background.related.join(", ")),
    ];
    let told = rows.iter().filter(|(_, what)| !what.is_empty());
    let lines = told.map(|(title, what)| format!("  {title:<7}  {what}\n")).collect::<String>();
    format!("{}{unit}\n{lines}", key.name)
}

/// A profile as a table.
pub(crate) fn text(profile: &Profile) -> String {
    let mut rows = vec![["KEY", "VALUE", "UNIT", "FROM"].map(str::to_owned)];
    rows.extend(profile.settings().map(|setting| row(&setting)));
    let derived = derived(profile);
    let facts = derived.iter().map(|fact| format!("{:<32}{:>9}\n", fact.label, fact.value));
    format!(
        "profile {}, hash {:016x}\n\n{}\nDerived values\n{}",
        printable(profile.name()),
        profile.hash(),
        table(&rows),
        facts.collect::<String>(),
    )
}

fn row(setting: &Setting<'_>) -> [String; 4] {
    let (key, unit) = (setting.key.name.to_owned(), setting.key.unit.to_owned());
    [key, shown(setting), unit, setting.source.to_string()]
}

/// A value with its resolved form on this host.
pub(crate) fn shown(setting: &Setting<'_>) -> String {
    let value = plain(&setting.value);
    match &setting.resolved {
        Some(resolved) => format!("{value} -> {resolved}"),
        None => value,
    }
}

/// A value without the quotes that a profile needs.
fn plain(value: &Value) -> String {
    match value {
        Value::Text(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Aligned columns, each as wide as its widest cell. Cells may contain untrusted text.
pub(crate) fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let rows: Vec<_> = rows.iter().map(|row| row.each_ref().map(|cell| printable(cell))).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; N] = std::array::from_fn(|column| width(column).unwrap_or_default());
    let cell = |(cell, width): (&String, &usize)| format!("{cell:<width$}  ");
    let line = |row: &[String; N]| row.iter().zip(&widths).map(cell).collect::<String>();
    rows.iter().map(|row| line(row).trim_end().to_owned() + "\n").collect()
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
        ("recv_buffer_bytes", "bytes per receive buffer", config.recv_buffer_bytes()),
        ("send_buffers_per_conn", "send buffers per connection", send),
        ("send_buffer_bytes", "bytes per send buffer", config.send_buffer_bytes()),
        ("headroom_bytes", "bytes of these for the header", config.headroom_bytes()),
        ("buffers_per_conn_bytes", "buffer bytes per connection", buffers_bytes),
    ]
    .map(|(name, label, value)| Derived { name, label, value })
    .into()
}

fn buffers(budget: &impl Budget) -> usize {
    usize::try_from(budget.total()).unwrap_or(usize::MAX)
}

/// A profile as JSON.
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
    to_json(&document)
}

/// Serializes a document. All values written here have a JSON form.
pub(crate) fn to_json(document: &impl Serialize) -> String {
    let text = serde_json::to_string_pretty(document);
    text::json(&text.unwrap_or_else(|error| format!("{{\"error\": {:?}}}", error.to_string())))
        + "\n"
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
    unit: &'static str,
    #[serde(flatten)]
    setting: JsonSetting,
}

/// A value and its origin.
#[derive(Serialize)]
pub(crate) struct JsonSetting {
    value: JsonValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    resolved: Option<String>,
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
        Self { key: setting.key.name, unit: setting.key.unit, setting: setting.into() }
    }
}

impl From<&Setting<'_>> for JsonSetting {
    fn from(setting: &Setting<'_>) -> Self {
        let source = match setting.source {
            Source::Default => "default",
            Source::File(_) => "file",
            Source::Override => "override",
        };
        let place = setting.source.location();
        Self {
            value: JsonValue::from(&setting.value),
            resolved: setting.resolved.clone(),
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
