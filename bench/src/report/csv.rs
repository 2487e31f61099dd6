//! The report as comma-separated values (RFC 4180): a line for each repeat of each row, with a
//! header. Columns are named as in the JSON document, units last; missing values are empty.

use super::Report;
use super::columns::{name_of, places};
use crate::failure::Failure;
use crate::units::joined;
use serde_json::Value;

/// All repeats; lines end as RFC 4180 section 2 requires.
pub(crate) fn render(report: &Report) -> Result<String, Failure> {
    let places: Vec<String> = places().collect();
    let of_row = INDICES.into_iter().chain(OF_ROW.iter().map(|(name, _)| *name));
    let of_repeat = places.iter().map(|place| name_of(place));
    let names = of_row.map(str::to_owned).chain(of_repeat);
    let mut text = joined(names, ",") + LINE_END;
    for (number, row) in report.rows.iter().enumerate() {
        let row = serde_json::to_value(row)?;
        let repeats = row["repeats"].as_array().map_or(&[][..], Vec::as_slice);
        for (repeat_number, repeat) in repeats.iter().enumerate() {
            let indices = [number, repeat_number].map(|index| (index + 1).to_string());
            let of_row = OF_ROW.iter().map(|(_, pointer)| cell(&row, pointer));
            let of_repeat = places.iter().map(|place| cell(repeat, place));
            let cells = indices.into_iter().chain(of_row).chain(of_repeat);
            text += &(joined(cells, ",") + LINE_END);
        }
    }
    Ok(text)
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
    ("both", "/workload/both"),
    ("threads", "/workload/threads"),
    ("slabs", "/workload/slabs"),
    ("ends", "/workload/ends"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::floor::Placed;
    use crate::load::{Arrivals, Operation, Rate, Workload};
    use crate::report::Row;
    use crate::report::columns::FIGURES;
    use crate::report::tests::{empty, open_loop, repeat};

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
        one.measurement.open = Some(open_loop(1000));
        let placed = Placed::between(110.0, 110.0);
        let row = Row::new(echo, vec![one.at(Some(placed))]);
        let row = serde_json::to_value(&row).unwrap();
        let found = |at: &str, value: &Value| assert!(value.pointer(at).is_some(), "no {at}");
        OF_ROW.iter().for_each(|(_, at)| found(at, &row));
        places().for_each(|at| found(&at, &row["repeats"][0]));
        FIGURES.iter().for_each(|figure| assert!(places().any(|at| at == figure.at)));
    }

    #[test]
    fn quotes_and_commas_are_quoted() {
        assert_eq!(quoted("a,b"), "\"a,b\"");
        assert_eq!(quoted("say \"no\""), "\"say \"\"no\"\"\"");
        assert_eq!(quoted("plain"), "plain");
    }
}
