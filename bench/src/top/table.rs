//! A view as lines of text, for people.

use super::snapshot::Core;
use super::target::total;
use super::view::{BlocksView, ConnectionView, CoreView, EngineView, View};
use crate::units::{show_count, show_size};
use spinrpc_tuning::printable::printable;

/// Everything that is watched; with this many connections for each core.
pub(super) fn lines(view: &View<'_>, connections: usize) -> Vec<String> {
    let blocks = view.engines.iter().map(|engine| engine_lines(engine, connections));
    blocks.collect::<Vec<_>>().join(&String::new())
}

fn engine_lines(engine: &EngineView<'_>, connections: usize) -> Vec<String> {
    let cores = &engine.cores;
    let mut lines = vec![title(engine)];
    lines.extend(table(&of_cores(), cores));
    lines.extend(table(&of_waits(), cores));
    lines.extend(cores.iter().filter_map(memory_line));
    let rows: Vec<_> = cores.iter().flat_map(|core| rows_of(core, connections)).collect();
    if !rows.is_empty() {
        lines.extend(table(&of_connections(), &rows));
    }
    let open = total(cores.iter().map(|core| core.now.connections_open));
    if open > rows.len() as u64 {
        lines.push(format!("and {} more connections", open - rows.len() as u64));
    }
    lines
}

/// `spin-nfsd 4711, engine 0: shm, up 1h02m, listens at shm:nfs; over 1.0 s`
fn title(engine: &EngineView<'_>) -> String {
    let now = engine.now;
    let listens = match now.listens.is_empty() {
        true => "listens nowhere".to_owned(),
        false => format!("listens at {}", printable(&now.listens.join(" "))),
    };
    format!(
        "{} {}, engine {}: spinrpc {}, {}, up {}, {listens}; over {:.2} s",
        printable(engine.program),
        engine.owner.pid,
        now.engine,
        printable(&now.version),
        printable(&now.fabric),
        show_uptime(engine.uptime_s),
        engine.interval_s,
    )
}

/// A column: its head, and the cell of a row.
type Column<T> = (&'static str, fn(&T) -> String);

fn of_cores<'a>() -> [Column<CoreView<'a>>; 9] {
    [
        ("core", |core| core.now.index.to_string()),
        ("cpu", |core| core.now.cpu.map_or_else(|| "any".to_owned(), |cpu| cpu.to_string())),
        ("idle", idle),
        ("served/s", |core| rate(core, "calls_received")),
        ("called/s", |core| rate(core, "replies_received")),
        ("busy", |core| format!("{:.1}%", core.busy_percent)),
        ("empty", |core| format!("{:.1}%", core.empty_polls_percent)),
        ("ticks/call", |core| core.ticks_per_call.map_or_else(|| "-".to_owned(), show_count)),
        ("parks/s", |core| rate(core, "parks")),
    ]
}

fn idle(core: &CoreView<'_>) -> String {
    match (core.now.running, core.now.answered) {
        (false, _) => "not running".to_owned(),
        (true, false) => "no answer".to_owned(),
        (true, true) => printable(&core.now.idle),
    }
}

fn of_waits<'a>() -> [Column<CoreView<'a>>; 10] {
    [
        ("core", |core| core.now.index.to_string()),
        ("inline B/s", |core| rate(core, "bytes_inline")),
        ("read B/s", |core| rate(core, "bytes_read")),
        ("write B/s", |core| rate(core, "bytes_written")),
        ("copies", |core| rate(core, "copies")),
        ("no credit", |core| rate(core, "credit_stalls")),
        ("queue full", |core| rate(core, "queue_full")),
        ("no buffer", |core| rate(core, "no_buffer")),
        ("late", |core| rate(core, "calls_late")),
        ("timeouts", |core| rate(core, "timeouts")),
    ]
}

fn rate(core: &CoreView<'_>, name: &str) -> String {
    show_count(core.per_second.get(name).copied().unwrap_or(0.0))
}

/// `core 0 blocks used: 8 KiB 4/64, 128 KiB 0/8; deferred 1, waiting 0`; nothing for a core that
/// has not answered.
fn memory_line(core: &CoreView<'_>) -> Option<String> {
    let class = |blocks: &BlocksView| {
        format!("{} {}/{}", show_size(blocks.block_bytes), blocks.used, blocks.total)
    };
    let classes: Vec<String> = core.memory.iter().map(class).collect();
    let Core { index, deferred, put_off, answered, .. } = core.now;
    answered.then(|| {
        let classes = classes.join(", ");
        format!("core {index} blocks used: {classes}; calls deferred {deferred}, waiting {put_off}")
    })
}

type Row<'a> = (u32, &'a ConnectionView<'a>);

fn rows_of<'a>(core: &'a CoreView<'_>, most: usize) -> impl Iterator<Item = Row<'a>> {
    core.connections.iter().take(most).map(|row| (core.now.index, row))
}

fn of_connections<'a>() -> [Column<Row<'a>>; 15] {
    [
        ("conn", |(_, row)| printable(&row.now.id)),
        ("core", |(core, _)| core.to_string()),
        ("peer", |(_, row)| printable(&row.now.peer)),
        ("by", |(_, row)| made_by(row)),
        ("v", |(_, row)| row.now.version.to_string()),
        ("served/s", |(_, row)| show_count(row.served_per_second)),
        ("called/s", |(_, row)| show_count(row.called_per_second)),
        ("read B/s", |(_, row)| show_count(row.read_bytes_per_second)),
        ("write B/s", |(_, row)| show_count(row.written_bytes_per_second)),
        ("serving", |(_, row)| part(row.responder.in_progress, row.responder.credits_granted)),
        ("in flight", |(_, row)| {
            part(row.requester.credits_in_flight, row.requester.credits_granted)
        }),
        ("receives", |(_, row)| part(row.receives_kept, row.receives)),
        ("sends", |(_, row)| part(row.sends_out.saturating_add(row.sends_kept), row.sends)),
        ("blocks c/f/p/e", |(_, row)| {
            let held = ["calls", "fetches", "pulls", "exports"];
            held.map(|holder| row.now.blocks.get(holder).copied().unwrap_or(0).to_string())
                .join("/")
        }),
        ("memory", |(_, row)| memory(row)),
    ]
}

fn part(used: u64, all: u64) -> String {
    format!("{used}/{all}")
}

/// The connection's own memory, if it has any.
fn memory(row: &ConnectionView<'_>) -> String {
    match row.now.memory_bytes {
        0 => "-".to_owned(),
        bytes => format!("{} of {}", show_size(row.now.memory_used_bytes), show_size(bytes)),
    }
}

/// The side that opened the connection; and its state, if it is not up.
fn made_by(row: &ConnectionView<'_>) -> String {
    match row.now.state.as_str() {
        "up" => printable(&row.now.made_by),
        state => printable(&format!("{}, {state}", row.now.made_by)),
    }
}

/// Lines with right-aligned columns, below their heads.
fn table<T>(columns: &[Column<T>], rows: &[T]) -> Vec<String> {
    let lines_of = |(head, cell): &Column<T>| {
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
    use super::super::view::Order;
    use super::super::view::tests::found;
    use super::*;

    #[test]
    fn a_view_is_a_title_a_table_of_cores_their_memory_and_a_table_of_connections() {
        let now = [found(102)];
        let view = View::between(&[found(100)], &now, Order::Calls);
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
        let now = [found(1)];
        let view = View::between(&[], &now, Order::Calls);
        let text = lines(&view, 1).join("\n");
        assert!(text.ends_with("and 1 more connections"), "{text}");
    }

    #[test]
    fn what_another_process_says_commands_no_terminal() {
        let mut engine = found(1);
        engine.snapshot.listens = vec!["shm:\u{1b}[2J\n".to_owned()];
        engine.snapshot.cores[0].idle = "\u{9b}1m".to_owned();
        engine.snapshot.cores[0].connections[0].peer = "\u{7}".to_owned();
        let now = [engine];
        let view = View::between(&[], &now, Order::Calls);
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
