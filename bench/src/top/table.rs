//! A view as lines of text, for people.

use super::target::total;
use super::view::{BlocksView, ConnectionView, CoreView, EngineView, View};
use crate::units::{show_count, show_size};
use spinrpc_tuning::text::printable;

/// Everything that is watched; with this many connections for each core.
pub(super) fn lines(view: &View, connections: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for (index, engine) in view.engines.iter().enumerate() {
        if index > 0 {
            lines.push(String::new());
        }
        lines.extend(engine_lines(engine, connections));
    }
    lines
}

fn engine_lines(engine: &EngineView, connections: usize) -> Vec<String> {
    let mut lines = vec![title(engine)];
    lines.extend(aligned(with_head(&CORE_HEAD, engine.cores.iter().map(core_cells))));
    lines.extend(aligned(with_head(&WAIT_HEAD, engine.cores.iter().map(wait_cells))));
    lines.extend(engine.cores.iter().filter_map(memory_line));
    let rows = engine.cores.iter().flat_map(|core| {
        core.connections.iter().take(connections).map(|row| connection_cells(core.index, row))
    });
    let rows: Vec<_> = rows.collect();
    if !rows.is_empty() {
        lines.extend(aligned(with_head(&CONNECTION_HEAD, rows.into_iter())));
    }
    let open = total(engine.cores.iter().map(|core| core.connections_open));
    let shown: usize =
        engine.cores.iter().map(|core| core.connections.len().min(connections)).sum();
    if open > shown as u64 {
        lines.push(format!("and {} more connections", open - shown as u64));
    }
    lines
}

/// `spin-nfsd 4711, engine 0: shm, up 1h02m, listens at shm:nfs; over 1.0 s`
fn title(engine: &EngineView) -> String {
    let listens = match engine.listens.is_empty() {
        true => "listens nowhere".to_owned(),
        false => format!("listens at {}", printable(&engine.listens.join(" "))),
    };
    format!(
        "{} {}, engine {}: spinrpc {}, {}, up {}, {listens}; over {:.2} s",
        printable(&engine.program),
        engine.pid,
        engine.engine,
        printable(&engine.version),
        printable(&engine.fabric),
        show_uptime(engine.uptime_s),
        engine.interval_s,
    )
}

const CORE_HEAD: [&str; 9] =
    ["core", "cpu", "idle", "served/s", "called/s", "busy", "empty", "ticks/call", "parks/s"];

fn core_cells(core: &CoreView) -> Vec<String> {
    let idle = match (core.running, core.answered) {
        (false, _) => "not running",
        (true, false) => "no answer",
        (true, true) => core.idle.as_str(),
    };
    vec![
        core.index.to_string(),
        core.cpu.to_string(),
        printable(idle),
        rate(core, "calls_received"),
        rate(core, "replies_received"),
        format!("{:.1}%", core.busy_percent),
        format!("{:.1}%", core.empty_polls_percent),
        core.ticks_per_call.map_or_else(|| "-".to_owned(), show_count),
        rate(core, "parks"),
    ]
}

/// Traffic and waits per second.
const WAIT_HEAD: [&str; 10] = [
    "core",
    "inline B/s",
    "read B/s",
    "write B/s",
    "copies",
    "no credit",
    "queue full",
    "no buffer",
    "late",
    "timeouts",
];

fn wait_cells(core: &CoreView) -> Vec<String> {
    let moved = ["bytes_inline", "bytes_read", "bytes_written", "copies"];
    let waited = ["credit_stalls", "queue_full", "no_buffer", "calls_late", "timeouts"];
    let rates = moved.into_iter().chain(waited).map(|name| rate(core, name));
    std::iter::once(core.index.to_string()).chain(rates).collect()
}

fn rate(core: &CoreView, name: &str) -> String {
    show_count(core.per_second.get(name).copied().unwrap_or(0.0))
}

/// `core 0 blocks used: 8 KiB 4/64, 128 KiB 0/8; deferred 1, waiting 0`; nothing for a core that
/// has not answered.
fn memory_line(core: &CoreView) -> Option<String> {
    let class = |blocks: &BlocksView| {
        format!("{} {}/{}", show_size(blocks.block_bytes), blocks.used, blocks.total)
    };
    let classes: Vec<String> = core.memory.iter().map(class).collect();
    let (index, deferred, put_off) = (core.index, core.deferred, core.put_off);
    core.answered.then(|| {
        let classes = classes.join(", ");
        format!("core {index} blocks used: {classes}; calls deferred {deferred}, waiting {put_off}")
    })
}

const CONNECTION_HEAD: [&str; 15] = [
    "conn",
    "core",
    "peer",
    "by",
    "v",
    "served/s",
    "called/s",
    "read B/s",
    "write B/s",
    "serving",
    "in flight",
    "receives",
    "sends",
    "blocks c/f/p/e",
    "memory",
];

fn connection_cells(core: u32, row: &ConnectionView) -> Vec<String> {
    let held = ["calls", "fetches", "pulls", "exports"]
        .map(|holder| row.blocks.get(holder).copied().unwrap_or(0).to_string());
    vec![
        printable(&row.id),
        core.to_string(),
        printable(&row.peer),
        made_by(row),
        row.version.to_string(),
        show_count(row.served_per_second),
        show_count(row.called_per_second),
        show_count(row.read_bytes_per_second),
        show_count(row.written_bytes_per_second),
        format!("{}/{}", row.serving, row.credits_given),
        format!("{}/{}", row.credits_in_flight, row.credits_granted),
        format!("{}/{}", row.receives_kept, row.receives),
        format!("{}/{}", row.sends_out.saturating_add(row.sends_kept), row.sends),
        held.join("/"),
        memory(row),
    ]
}

/// The connection's own memory, if it has any.
fn memory(row: &ConnectionView) -> String {
    match row.memory_bytes {
        0 => "-".to_owned(),
        bytes => format!("{} of {}", show_size(row.memory_used_bytes), show_size(bytes)),
    }
}

/// The side that opened the connection; and its state, if it is not up.
fn made_by(row: &ConnectionView) -> String {
    match row.state.as_str() {
        "up" => printable(&row.made_by),
        state => printable(&format!("{}, {state}", row.made_by)),
    }
}

fn with_head(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> Vec<Vec<String>> {
    let head = head.iter().map(|&title| title.to_owned()).collect();
    std::iter::once(head).chain(rows).collect()
}

/// Right-aligned columns.
fn aligned(rows: Vec<Vec<String>>) -> Vec<String> {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}"));
        cells.collect::<Vec<_>>().join("  ")
    };
    rows.into_iter().map(line).collect()
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
    use super::super::view::Order;
    use super::super::view::tests::found;
    use super::*;

    #[test]
    fn a_view_is_a_title_a_table_of_cores_their_memory_and_a_table_of_connections() {
        let view = View::between(&[found(100)], &[found(102)], Order::Calls);
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
        let view = View::between(&[], &[found(1)], Order::Calls);
        let text = lines(&view, 1).join("\n");
        assert!(text.ends_with("and 1 more connections"), "{text}");
    }

    #[test]
    fn what_another_process_says_commands_no_terminal() {
        let mut engine = found(1);
        engine.snapshot.listens = vec!["shm:\u{1b}[2J\n".to_owned()];
        engine.snapshot.cores[0].idle = "\u{9b}1m".to_owned();
        engine.snapshot.cores[0].connections[0].peer = "\u{7}".to_owned();
        let view = View::between(&[], &[engine], Order::Calls);
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
