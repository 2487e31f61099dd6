//! Checks documents against the JSON Schemas of this repository.
//!
//! Supports the keywords that they use, and rejects a schema with any other. Stricter than JSON
//! Schema in one way: every key must be described.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test ends here")]

use serde_json::{Map, Value};

/// Violations in a document, one line for each location; empty if it is valid.
pub(crate) fn violations(document: &Value, schema: &str) -> Vec<String> {
    let root: Value = serde_json::from_str(schema).unwrap();
    let mut found = Vec::new();
    Checker { root: &root }.check(document, &root, "$", &mut found);
    found
}

struct Checker<'a> {
    root: &'a Value,
}

impl Checker<'_> {
    fn check(&self, value: &Value, schema: &Value, at: &str, found: &mut Vec<String>) {
        let schema = schema.as_object().unwrap_or_else(|| panic!("{at}: a schema is an object"));
        for (keyword, rule) in schema {
            match keyword.as_str() {
                "$schema" | "$defs" | "title" | "description" => {}
                "$ref" => self.check(value, self.definition(rule), at, found),
                "type" if !has_type(value, rule) => {
                    found.push(format!("{at}: {value} is not {rule}"))
                }
                "const" if value != rule => found.push(format!("{at}: {value} is not {rule}")),
                "enum" if !rule.as_array().unwrap().contains(value) => {
                    found.push(format!("{at}: {value} is none of {rule}"));
                }
                "minimum" if value.as_f64() < rule.as_f64() && value.is_number() => {
                    found.push(format!("{at}: {value} is below {rule}"));
                }
                "minItems" | "maxItems" => check_length(value, keyword, rule, at, found),
                "required" => check_required(value, rule, at, found),
                "properties" => self.check_properties(value, rule, at, found),
                "items" => self.check_items(value, rule, at, found),
                "anyOf" => self.check_any(value, rule, at, found),
                "type" | "const" | "enum" | "minimum" => {}
                other => panic!("{at}: this checker does not know {other}"),
            }
        }
    }

    fn definition(&self, reference: &Value) -> &Value {
        let name = reference.as_str().and_then(|text| text.strip_prefix("#/$defs/")).unwrap();
        self.root["$defs"].get(name).unwrap_or_else(|| panic!("no definition of {name}"))
    }

    fn check_properties(&self, value: &Value, rule: &Value, at: &str, found: &mut Vec<String>) {
        let empty = Map::new();
        for (key, inner) in value.as_object().unwrap_or(&empty) {
            match rule.get(key) {
                Some(schema) => self.check(inner, schema, &format!("{at}.{key}"), found),
                None => found.push(format!("{at}.{key} is not described")),
            }
        }
    }

    fn check_items(&self, value: &Value, rule: &Value, at: &str, found: &mut Vec<String>) {
        for (index, item) in value.as_array().into_iter().flatten().enumerate() {
            self.check(item, rule, &format!("{at}[{index}]"), found);
        }
    }

    fn check_any(&self, value: &Value, rule: &Value, at: &str, found: &mut Vec<String>) {
        let attempts = rule.as_array().unwrap().iter().map(|schema| {
            let mut wrong = Vec::new();
            self.check(value, schema, at, &mut wrong);
            wrong
        });
        let attempts: Vec<Vec<String>> = attempts.collect();
        if !attempts.iter().any(Vec::is_empty) {
            found.extend(attempts.into_iter().flatten());
        }
    }
}

fn has_type(value: &Value, rule: &Value) -> bool {
    let is = |name: &str| match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("no type {other}"),
    };
    match rule {
        Value::Array(names) => names.iter().any(|name| is(name.as_str().unwrap())),
        name => is(name.as_str().unwrap()),
    }
}

fn check_required(value: &Value, rule: &Value, at: &str, found: &mut Vec<String>) {
    for key in rule.as_array().unwrap().iter().map(|key| key.as_str().unwrap()) {
        if value.is_object() && value.get(key).is_none() {
            found.push(format!("{at} lacks {key}"));
        }
    }
}

fn check_length(value: &Value, keyword: &str, rule: &Value, at: &str, found: &mut Vec<String>) {
    let (Some(items), Some(bound)) = (value.as_array(), rule.as_u64()) else { return };
    let fits = match keyword {
        "minItems" => items.len() as u64 >= bound,
        _ => items.len() as u64 <= bound,
    };
    if !fits {
        found.push(format!("{at}: {} items break {keyword} {rule}", items.len()));
    }
}
