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

    #[test]
    fn every_repeat_is_kept_beside_the_median() {
        let report = sample();
        assert_eq!(report["rows"][0]["repeats"][0]["latency"]["p50_ns"], 300.0);
        assert_eq!(report["rows"][0]["median"]["ratios"][0]["median"], 3.0);
        assert_eq!(report["floor"][0]["values"][0], 100.0);
        assert_eq!(report["goals"][0]["met"], false);
    }
}
