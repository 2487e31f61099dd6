use serde::Serialize;
use serde_json::json;
use spinrpc::config::{Host, Key, Value};
use spinrpc::mem::budget::Budget;
use spinrpc_tuning::printable::{self, printable};
use spinrpc_tuning::{Profile, Setting, Source, load, shipped};
use std::collections::BTreeMap;

pub(crate) fn list() -> String {
    let row = |(name, description)| format!("{name:<21}  {description}\n");
    described().map(row).collect()
}

pub(crate) fn list_json() -> String {
    let listed = |(name, description)| json!({"name": name, "description": description});
    json_list("profiles", described().map(listed).collect::<Vec<_>>())
}

fn described() -> impl Iterator<Item = (&'static str, String)> {
    // Examples name CPUs that only their hosts have.
    let host = Host { allowed: (0..64).collect(), ..Host::default() };
    shipped().iter().map(move |profile| {
        let loaded = load(profile.name, &host).ok();
        let description = loaded.and_then(|profile| profile.description().map(str::to_owned));
        (profile.name, description.unwrap_or_default())
    })
}

pub(crate) fn explanations(keys: impl IntoIterator<Item = &'static Key>) -> String {
    let explained = |key: &Key| {
        json!({
            "key": key.name, "unit": key.unit, "effect": key.effect, "takes": key.allowed(),
            "default": json_value(key.default_value()), "reason": key.reason, "origin": key.origin,
            "related": key.related,
        })
    };
    json_list("keys", keys.into_iter().map(explained).collect::<Vec<_>>())
}

pub(crate) fn explanation(key: &Key) -> String {
    let unit = if key.unit.is_empty() { String::new() } else { format!(" ({})", key.unit) };
    let rows = [
        ("does", key.effect.to_owned()),
        ("takes", key.allowed()),
        ("default", key.default_value().to_string()),
        ("because", key.reason.to_owned()),
        ("from", key.origin.to_owned()),
        ("related", key.related.join(", ")),
    ];
    let told = rows.iter().filter(|(_, what)| !what.is_empty());
    let lines = told.map(|(title, what)| format!("  {title:<7}  {what}\n")).collect::<String>();
    format!("{}{unit}\n{lines}", key.name)
}

pub(crate) fn text(profile: &Profile) -> String {
    let mut rows = vec![["KEY", "VALUE", "UNIT", "FROM"].map(str::to_owned)];
    rows.extend(profile.settings().map(|setting| row(&setting)));
    let facts = derived(profile).map(|(_, label, value)| format!("{label:<32}{value:>9}\n"));
    format!(
        "profile {}, hash {:016x}\n\n{}\nDerived values\n{}",
        printable(profile.name()),
        profile.hash(),
        table(&rows),
        facts.concat(),
    )
}

fn row(setting: &Setting<'_>) -> [String; 4] {
    let (key, unit) = (setting.key.name.to_owned(), setting.key.unit.to_owned());
    let mut value = match &setting.value {
        Value::Text(text) => text.clone(),
        other => other.to_string(),
    };
    if let Some(resolved) = &setting.resolved {
        value += &format!(" -> {resolved}");
    }
    [key, value, unit, setting.source.to_string()]
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

fn derived(profile: &Profile) -> [(&'static str, &'static str, usize); 7] {
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
}

fn buffers(budget: &Budget) -> usize {
    usize::try_from(budget.total()).unwrap_or(usize::MAX)
}

pub(crate) fn json(profile: &Profile) -> String {
    let derived = BTreeMap::from(derived(profile).map(|(name, _, value)| (name, value)));
    to_json(&json!({
        "schema": 1, "profile": profile.name(), "description": profile.description(),
        "hash": format!("{:016x}", profile.hash()), "cpus": profile.config().cpus(),
        "keys": profile.settings().map(json_key).collect::<Vec<_>>(), "derived": derived,
    }))
}

pub(crate) fn json_list(name: &str, items: impl Serialize) -> String {
    to_json(&json!({"schema": 1, name: items}))
}

/// Serializes a document. All values written here have a JSON form.
pub(crate) fn to_json(document: &impl Serialize) -> String {
    let text = serde_json::to_string_pretty(document);
    printable::json(&text.unwrap_or_else(|error| format!("{{\"error\": {:?}}}", error.to_string())))
        + "\n"
}

fn json_key(Setting { key, value, resolved, source, .. }: Setting<'_>) -> serde_json::Value {
    let name = match source {
        Source::Default => "default",
        Source::File(_) => "file",
        Source::Override => "override",
    };
    let (unit, value) = (key.unit, json_value(value));
    let mut members = json!({"key": key.name, "unit": unit, "value": value, "source": name});
    if let Some(resolved) = resolved {
        members["resolved"] = resolved.into();
    }
    if let Some(place) = source.location() {
        (members["file"], members["line"]) = ((*place.file).into(), place.line.into());
    }
    members
}

fn json_value(value: Value) -> serde_json::Value {
    match value {
        Value::Integer(number) => number.into(),
        Value::Flag(flag) => flag.into(),
        Value::Text(text) => text.into(),
    }
}
