//! The report as comma-separated values (RFC 4180): a line for each repeat of each row, with a
//! header. Columns are named as in the JSON document, units last; missing values are empty.

use super::Report;
use crate::failure::Failure;
use serde_json::Value;

/// All repeats; lines end as RFC 4180 section 2 requires.
pub(crate) fn render(report: &Report) -> Result<String, Failure> {
    let names: Vec<&str> = INDICES
        .iter()
        .chain(OF_ROW.iter().chain(OF_REPEAT).map(|(name, _)| name))
        .copied()
        .collect();
    let mut text = names.join(",") + LINE_END;
    for (number, row) in report.rows.iter().enumerate() {
        let row = document(row)?;
        let repeats = row["repeats"].as_array().map_or(&[][..], Vec::as_slice);
        for (repeat_number, repeat) in repeats.iter().enumerate() {
            let indices = [number, repeat_number].map(|index| (index + 1).to_string());
            let of_row = OF_ROW.iter().map(|(_, pointer)| cell(&row, pointer));
            let of_repeat = OF_REPEAT.iter().map(|(_, pointer)| cell(repeat, pointer));
            let cells: Vec<String> = indices.into_iter().chain(of_row).chain(of_repeat).collect();
            text += &(cells.join(",") + LINE_END);
        }
    }
    Ok(text)
}

fn document(row: &super::Row) -> Result<Value, Failure> {
    serde_json::to_value(row)
        .map_err(|error| Failure::Measurement(format!("the report is not JSON: {error}")))
}

fn cell(value: &Value, pointer: &str) -> String {
    match value.pointer(pointer) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => quoted(text),
        Some(other) => quoted(&other.to_string()),
    }
}

/// Quotes a field if necessary (RFC 4180 section 2).
fn quoted(text: &str) -> String {
    match text.contains(['"', ',', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

const LINE_END: &str = "\r\n";
/// Both counted from 1.
const INDICES: [&str; 2] = ["row", "repeat"];
/// Columns, with the locations of their values in a row.
const OF_ROW: &[(&str, &str)] = &[
    ("name", "/name"),
    ("mode", "/workload/mode"),
    ("op", "/workload/op"),
    ("rate_per_second", "/workload/rate/per_second"),
    ("arrivals", "/workload/rate/arrivals"),
    ("cores", "/workload/cores"),
    ("call_bytes", "/workload/call_bytes"),
    ("reply_bytes", "/workload/reply_bytes"),
    ("depth", "/workload/depth"),
    ("connections", "/workload/connections"),
    ("idle_connections", "/workload/idle_connections"),
    ("verify", "/workload/verify"),
    ("reverse", "/workload/reverse"),
];
/// Columns, with the locations of their values in a repeat.
const OF_REPEAT: &[(&str, &str)] = &[
    ("calls", "/calls"),
    ("lost", "/lost"),
    ("elapsed_s", "/elapsed_s"),
    ("calls_per_second", "/calls_per_second"),
    ("bytes_per_second", "/bytes_per_second"),
    ("samples", "/latency/samples"),
    ("p50_ns", "/latency/p50_ns"),
    ("p90_ns", "/latency/p90_ns"),
    ("p99_ns", "/latency/p99_ns"),
    ("p99_9_ns", "/latency/p99_9_ns"),
    ("p99_99_ns", "/latency/p99_99_ns"),
    ("p99_999_ns", "/latency/p99_999_ns"),
    ("max_ns", "/latency/max_ns"),
    ("mean_ns", "/latency/mean_ns"),
    ("service_p50_ns", "/service/p50_ns"),
    ("service_p99_ns", "/service/p99_ns"),
    ("service_p99_9_ns", "/service/p99_9_ns"),
    ("service_max_ns", "/service/max_ns"),
    ("achieved_per_second", "/open/achieved_per_second"),
    ("adherence_percent", "/open/adherence_percent"),
    ("late", "/open/late"),
    ("never_sent", "/open/never_sent"),
    ("overran", "/open/overran"),
    ("client_ticks_per_call", "/client/busy_ticks_per_call"),
    ("client_busy_percent", "/client/busy_percent"),
    ("client_polls", "/client/polls"),
    ("client_empty_polls", "/client/empty_polls"),
    ("client_credit_stalls", "/client/credit_stalls"),
    ("client_queue_full", "/client/queue_full"),
    ("client_steal_ms", "/client/steal_ms"),
    ("server_ticks_per_call", "/server/busy_ticks_per_call"),
    ("server_busy_percent", "/server/busy_percent"),
    ("server_polls", "/server/polls"),
    ("server_empty_polls", "/server/empty_polls"),
    ("server_queue_full", "/server/queue_full"),
    ("server_steal_ms", "/server/steal_ms"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{Arrivals, OpenLoop, Operation, Rate, Workload};
    use crate::report::Row;
    use crate::report::tests::{empty, repeat};

    #[test]
    fn every_repeat_is_a_line_with_every_column() {
        let mut report = empty();
        let repeats = vec![repeat(1000, 300.0, &[]), repeat(2000, 200.0, &[])];
        report.rows.push(Row::new(Workload::ping_pong(Operation::Echo, 64).at_depth(2), repeats));
        let text = render(&report).unwrap();
        let lines: Vec<&str> = text.split_terminator("\r\n").collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].starts_with("row,repeat,name,mode,op,"), "{}", lines[0]);
        assert!(
            lines[1].starts_with("1,1,\"echo 64 B, depth 2\",closed,echo,,,1,64,64,2,1,0,"),
            "{}",
            lines[1]
        );
        assert!(lines[2].starts_with("1,2,") && lines[2].contains(",2000,"), "{}", lines[2]);
    }

    #[test]
    fn every_column_has_a_value_in_a_whole_repeat() {
        let rate = Rate { per_second: 1000, arrivals: Arrivals::Poisson, burst: None };
        let echo = Workload::ping_pong(Operation::Echo, 64).at_rate(rate);
        let mut one = repeat(10, 3.0, &[]);
        one.measurement.service = Some(one.measurement.latency);
        one.measurement.open = Some(OpenLoop {
            target_per_second: 1000.0,
            achieved_per_second: 1000.0,
            adherence_percent: 100.0,
            late: 0,
            intended: 1000,
            overran: 0,
            never_sent: 0,
            arrivals: Arrivals::Poisson,
            refused: None,
        });
        let row = Row::new(echo, vec![one]);
        let row = document(&row).unwrap();
        let found = |(name, pointer): &(&str, &str), value: &Value| {
            assert!(value.pointer(pointer).is_some(), "no {name} at {pointer}");
        };
        OF_ROW.iter().for_each(|column| found(column, &row));
        OF_REPEAT.iter().for_each(|column| found(column, &row["repeats"][0]));
    }

    #[test]
    fn quotes_and_commas_are_quoted() {
        assert_eq!(quoted("a,b"), "\"a,b\"");
        assert_eq!(quoted("say \"no\""), "\"say \"\"no\"\"\"");
        assert_eq!(quoted("plain"), "plain");
    }
}
