//! The report as a document for programs: schema `spinperf/2`, described in
//! `bench/schema/spinperf-2.schema.json`.

/// Name and version of the document.
pub(crate) const SCHEMA: &str = "spinperf/2";

#[cfg(test)]
mod tests {
    use crate::cores::CoreList;
    use crate::env::{Environment, ProfileId};
    use crate::floor::Probe;
    use crate::load::{Operation, Workload};
    use crate::report::tests::repeat;
    use crate::report::{Goal, Report, Row};
    use serde_json::Value;

    fn sample() -> Value {
        let profile = ProfileId { name: "latency".to_owned(), hash: "0".to_owned() };
        let mut report = Report::new(Environment::observe(&CoreList::from(0), profile, None));
        let repeats = vec![repeat(1000, 300.0, &[(Probe::CacheLine, 100.0)])];
        report.rows.push(Row::new(Workload::ping_pong(Operation::Echo, 64), repeats));
        report.goals.push(Goal::at_most("echo", 3.0, 2.0).aiming_for(1.5));
        report.collect_floor();
        serde_json::to_value(&report).unwrap()
    }

    /// Checks `value` against the parts of JSON Schema the description uses: `required`,
    /// `properties`, `items`, `const`, `$ref`.
    fn check(value: &Value, schema: &Value, root: &Value, path: &str) {
        let name = schema["$ref"].as_str().and_then(|r| r.strip_prefix("#/$defs/"));
        let schema = name.map_or(schema, |name| &root["$defs"][name]);
        if let Some(expected) = schema.get("const") {
            assert_eq!(value, expected, "{path}");
        }
        for key in schema["required"].as_array().into_iter().flatten() {
            let key = key.as_str().unwrap();
            assert!(value.get(key).is_some(), "{path} lacks {key}");
        }
        for (key, inner) in schema["properties"].as_object().into_iter().flatten() {
            if let Some(value) = value.get(key) {
                check(value, inner, root, &format!("{path}.{key}"));
            }
        }
        if let (Some(items), Some(inner)) = (value.as_array(), schema.get("items")) {
            items.iter().for_each(|item| check(item, inner, root, &format!("{path}[]")));
        }
    }

    #[test]
    fn a_report_has_every_key_its_schema_requires() {
        let schema: Value =
            serde_json::from_str(include_str!("../../schema/spinperf-2.schema.json")).unwrap();
        check(&sample(), &schema, &schema, "report");
    }

    #[test]
    fn every_repeat_is_kept_beside_the_median() {
        let report = sample();
        assert_eq!(report["rows"][0]["repeats"][0]["latency"]["p50_ns"], 300.0);
        assert_eq!(report["rows"][0]["median"]["ratios"][0]["median"], 3.0);
        assert_eq!(report["floor"][0]["values"][0], 100.0);
        assert_eq!(report["goals"][0]["met"], false);
    }
}
