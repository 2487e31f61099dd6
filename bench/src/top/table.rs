//! A view as lines of text, for people.

use super::target::total;
use crate::units::{joined, show_count, show_size};
use serde_json::Value;
use spinrpc_tuning::printable::printable;

pub(super) fn lines(view: &Value, connections: usize) -> Vec<String> {
    let blocks = items(view, "engines").map(|engine| engine_lines(engine, connections));
    blocks.collect::<Vec<_>>().join(&String::new())
}

fn items<'a>(of: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    of[name].as_array().into_iter().flatten()
}

fn count(of: &Value, name: &str) -> u64 {
    of[name].as_u64().unwrap_or(0)
}

fn figure(of: &Value, name: &str) -> f64 {
    of[name].as_f64().unwrap_or(0.0)
}

fn text(of: &Value, name: &str) -> String {
    printable(of[name].as_str().unwrap_or_default())
}

fn engine_lines(engine: &Value, connections: usize) -> Vec<String> {
    let cores: Vec<Value> = items(engine, "cores").cloned().collect();
    let mut lines = vec![title(engine)];
    lines.extend(table(OF_CORES, &cores));
    lines.extend(table(OF_WAITS, &cores));
    lines.extend(cores.iter().filter_map(memory_line));
    let rows: Vec<Value> = cores.iter().flat_map(|core| rows_of(core, connections)).collect();
    if !rows.is_empty() {
        lines.extend(table(OF_CONNECTIONS, &rows));
    }
    let open = total(cores.iter().map(|core| count(core, "connections_open")));
    if open > rows.len() as u64 {
        lines.push(format!("and {} more connections", open - rows.len() as u64));
    }
    lines
}

/// `spin-nfsd 4711, engine 0: shm, up 1h02m, listens at shm:nfs; over 1.0 s`
fn title(engine: &Value) -> String {
    let listens = match &*joined(items(engine, "listens").filter_map(Value::as_str), " ") {
        "" => "listens nowhere".to_owned(),
        addresses => format!("listens at {}", printable(addresses)),
    };
    format!(
        "{} {}, engine {}: spinrpc {}, {}, up {}, {listens}; over {:.2} s",
        text(engine, "program"),
        count(engine, "pid"),
        count(engine, "engine"),
        text(engine, "version"),
        text(engine, "fabric"),
        show_uptime(figure(engine, "uptime_s")),
        figure(engine, "interval_s"),
    )
}

type Column = (&'static str, fn(&Value) -> String);

const OF_CORES: &[Column] = &[
    ("core", |core| core["index"].to_string()),
    ("cpu", |core| core["cpu"].as_u64().map_or_else(|| "any".to_owned(), |cpu| cpu.to_string())),
    ("idle", idle),
    ("served/s", |core| rate(core, "calls_received")),
    ("called/s", |core| rate(core, "replies_received")),
    ("busy", |core| format!("{:.1}%", figure(core, "busy_percent"))),
    ("empty", |core| format!("{:.1}%", figure(core, "empty_polls_percent"))),
    ("ticks/call", |core| {
        core["ticks_per_call"].as_f64().map_or_else(|| "-".to_owned(), show_count)
    }),
    ("parks/s", |core| rate(core, "parks")),
];

fn idle(core: &Value) -> String {
    match (&core["running"], &core["answered"]) {
        (Value::Bool(false), _) => "not running".to_owned(),
        (_, Value::Bool(false)) => "no answer".to_owned(),
        _ => text(core, "idle"),
    }
}

const OF_WAITS: &[Column] = &[
    ("core", |core| core["index"].to_string()),
    ("inline B/s", |core| rate(core, "bytes_inline")),
    ("read B/s", |core| rate(core, "bytes_read")),
    ("write B/s", |core| rate(core, "bytes_written")),
    ("copies", |core| rate(core, "copies")),
    ("no credit", |core| rate(core, "credit_stalls")),
    ("queue full", |core| rate(core, "queue_full")),
    ("no buffer", |core| rate(core, "no_buffer")),
    ("late", |core| rate(core, "calls_late")),
    ("timeouts", |core| rate(core, "timeouts")),
];

fn rate(core: &Value, name: &str) -> String {
    show_count(figure(&core["per_second"], name))
}

/// Nothing for a core that has not answered.
fn memory_line(core: &Value) -> Option<String> {
    let class = |blocks: &Value| {
        let size = show_size(count(blocks, "block_bytes") as usize);
        format!("{size} {}", part(blocks, "used", "total"))
    };
    let classes = joined(items(core, "memory").map(class), ", ");
    let [index, deferred, put_off] = ["index", "deferred", "put_off"].map(|name| count(core, name));
    (core["answered"] == true).then(|| {
        format!("core {index} blocks used: {classes}; calls deferred {deferred}, waiting {put_off}")
    })
}

fn rows_of(core: &Value, most: usize) -> impl Iterator<Item = Value> {
    items(core, "connections").take(most).map(|row| {
        let mut row = row.clone();
        row["core"] = core["index"].clone();
        row
    })
}

const OF_CONNECTIONS: &[Column] = &[
    ("conn", |row| text(row, "id")),
    ("core", |row| row["core"].to_string()),
    ("peer", |row| text(row, "peer")),
    ("by", made_by),
    ("v", |row| row["version"].to_string()),
    ("served/s", |row| show_count(figure(row, "served_per_second"))),
    ("called/s", |row| show_count(figure(row, "called_per_second"))),
    ("read B/s", |row| show_count(figure(row, "read_bytes_per_second"))),
    ("write B/s", |row| show_count(figure(row, "written_bytes_per_second"))),
    ("serving", |row| part(row, "serving", "credits_given")),
    ("in flight", |row| part(row, "credits_in_flight", "credits_granted")),
    ("receives", |row| part(row, "receives_kept", "receives")),
    ("sends", |row| {
        let used = count(row, "sends_out").saturating_add(count(row, "sends_kept"));
        format!("{used}/{}", count(row, "sends"))
    }),
    ("blocks c/f/p/e", |row| {
        joined(["calls", "fetches", "pulls", "exports"].map(|of| count(&row["blocks"], of)), "/")
    }),
    ("memory", memory),
];

fn part(of: &Value, used: &str, all: &str) -> String {
    format!("{}/{}", count(of, used), count(of, all))
}

fn memory(row: &Value) -> String {
    match ["memory_used_bytes", "memory_bytes"].map(|name| count(row, name) as usize) {
        [_, 0] => "-".to_owned(),
        [used, bytes] => format!("{} of {}", show_size(used), show_size(bytes)),
    }
}

/// The side that opened the connection; and its state, if it is not up.
fn made_by(row: &Value) -> String {
    match &*text(row, "state") {
        "up" => text(row, "made_by"),
        state => format!("{}, {state}", text(row, "made_by")),
    }
}

fn table(columns: &[Column], rows: &[Value]) -> Vec<String> {
    let lines_of = |(head, cell): &Column| {
        let cells = rows.iter().map(cell);
        let cells: Vec<String> = std::iter::once((*head).to_owned()).chain(cells).collect();
        let width = cells.iter().map(|cell| cell.chars().count()).max().unwrap_or(0);
        cells.into_iter().map(move |cell| format!("{cell:>width$}")).collect::<Vec<_>>()
    };
    let columns: Vec<Vec<String>> = columns.iter().map(lines_of).collect();
    let line = |at: usize| columns.iter().map(|cells| &*cells[at]).collect::<Vec<_>>().join("  ");
    (0..=rows.len()).map(line).collect()
}

/// `42s`, `3m07s`, `1h02m`, `5d03h`.
fn show_uptime(seconds: f64) -> String {
    let seconds = seconds as u64;
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{minutes}m{:02}s", seconds % 60),
        3600..86_400 => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{days}d{:02}h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::super::view::tests::found;
    use super::super::view::{Order, between};
    use super::*;

    #[test]
    fn a_view_is_a_title_a_table_of_cores_their_memory_and_a_table_of_connections() {
        let view = between(&[found(100)], &[found(102)], Order::Calls);
        let lines = lines(&view, 10);
        let (title, all) = (&lines[0], lines.join("\n"));
        assert_eq!(
            title,
            "spin 1, engine 0: spinrpc 0.1.0, shm, up 1m42s, listens at shm:x; over 2.00 s"
        );
        let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(cells(&lines[2])[..8], ["0", "3", "busy", "100", "0", "50.0%", "25.0%", "5000"]);
        assert!(
            all.contains("core 0 blocks used: 8 KiB 4/64; calls deferred 1, waiting 0"),
            "{all}"
        );
        assert_eq!(cells(&lines[4])[5], "7", "calls without a credit: {all}");
        let busiest = cells(&lines[7]);
        assert_eq!((busiest[0].as_str(), busiest[8].as_str()), ("5.1", "80"), "{all}");
        assert!(lines[7].contains("3/64") && lines[7].contains("0/1/0/0  8 KiB of 1 MiB"), "{all}");
    }

    #[test]
    fn connections_that_are_not_shown_are_counted() {
        let view = between(&[], &[found(1)], Order::Calls);
        let text = lines(&view, 1).join("\n");
        assert!(text.ends_with("and 1 more connections"), "{text}");
    }

    #[test]
    fn what_another_process_says_commands_no_terminal() {
        let mut engine = found(1);
        engine.snapshot.listens = vec!["shm:\u{1b}[2J\n".to_owned()];
        engine.snapshot.cores[0].idle = "\u{9b}1m".to_owned();
        engine.snapshot.cores[0].connections[0].peer = "\u{7}".to_owned();
        let view = between(&[], &[engine], Order::Calls);
        let all = lines(&view, 9).join("");
        assert!(!all.chars().any(char::is_control), "{all:?}");
    }

    #[test]
    fn uptimes_have_two_units() {
        for (seconds, expected) in
            [(5.9, "5s"), (187.0, "3m07s"), (3720.0, "1h02m"), (442_800.0, "5d03h")]
        {
            assert_eq!(show_uptime(seconds), expected);
        }
    }
}
