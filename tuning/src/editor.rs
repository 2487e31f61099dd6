//! The format of a profile as a JSON Schema, which editors use for completion and checks (taplo and
//! Even Better TOML accept it for TOML).

use serde_json::{Map, Value as Json, json};
use spinrpc::config::{Field, KEYS, Key, Limits, Step, Value};

/// A JSON Schema (draft 2020-12) for profiles: every key with its limits, default and description.
/// Relations between keys are checked by `spintune check`.
pub fn json_schema() -> String {
    let mut groups = Map::new();
    for key in KEYS {
        let (group, name) = key.parts();
        let group = groups.entry(group).or_insert_with(
            || json!({ "type": "object", "properties": {}, "additionalProperties": false }),
        );
        group["properties"][name] = property(key);
    }
    let mut properties = head();
    properties.append(&mut groups);
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Profile of spinrpc",
        "type": "object",
        "required": ["schema"],
        "additionalProperties": false,
        "properties": properties,
    });
    format!("{schema:#}\n")
}

/// The members before the keys.
fn head() -> Map<String, Json> {
    let head = json!({
        "schema": { "const": 1, "description": "The format; always 1." },
        "include": {
            "type": "array",
            "items": { "type": "string" },
            "description": "Profiles to include first: files in the same folder, or else shipped \
                            ones.",
        },
        "description": { "type": "string", "description": "Shown in listings." },
    });
    match head {
        Json::Object(head) => head,
        _ => Map::new(),
    }
}

fn property(key: &Key) -> Json {
    let mut property = key.inspect(|field| match field {
        Field::Integer(_, limits) => integer(limits),
        Field::Optional(_, limits) => json!({ "anyOf": [{ "const": "off" }, integer(limits)] }),
        Field::Flag(_) => json!({ "type": "boolean" }),
        Field::Choice(place) => json!({ "enum": place.names() }),
        Field::Cores(_) => json!({ "type": ["string", "integer"] }),
        Field::Device(_) => json!({ "type": "string" }),
    });
    let unit = if key.unit.is_empty() { String::new() } else { format!(" Unit: {}.", key.unit) };
    property["description"] = format!("{}{unit} {}", key.effect, key.reason).into();
    property["default"] = match key.default_value() {
        Value::Integer(number) => number.into(),
        Value::Flag(flag) => flag.into(),
        Value::Text(text) => text.into(),
    };
    property
}

fn integer(limits: Limits) -> Json {
    let Limits { min, max, step } = limits;
    let powers = || (0..u64::BITS).map(|bit| 1 << bit).filter(move |n| (min..=max).contains(n));
    match step {
        Step::Any => json!({ "type": "integer", "minimum": min, "maximum": max }),
        Step::MultipleOf(unit) => {
            json!({ "type": "integer", "minimum": min, "maximum": max, "multipleOf": unit })
        }
        Step::PowerOfTwo => json!({ "enum": powers().collect::<Vec<u64>>() }),
        Step::PowerOfTwoOrZero => {
            json!({ "enum": std::iter::once(0).chain(powers()).collect::<Vec<u64>>() })
        }
    }
}
