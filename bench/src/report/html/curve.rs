//! Latency against throughput, which shows where more load only adds waiting. Also the steps of a
//! search for the highest rate, and the course of a soak.

use super::family::Family;
use super::plot::{Axis, Plot, range, show_time};
use crate::floor::Probe;
use crate::latency::{LatencySummary, median};
use crate::report::{Row, Saturation, Soak, SoakWindow};
use crate::units::{joined, show_count};

/// The curve of a family of rows under different loads; `None` with fewer than two.
pub(super) fn figure(family: &Family<'_>) -> Option<String> {
    let loaded = family.members.iter().map(|member| member.row).filter(|row| is_plain(row));
    let rows: Vec<&Row> = loaded.collect();
    if rows.len() < 2 {
        return None;
    }
    let rates = || rows.iter().map(|row| row.median.calls_per_second);
    let limit = ring_limit(&rows);
    let highest = range(rates())?.1;
    let drawn_limit = limit.filter(|limit| *limit <= highest * LIMIT_SHOWN);
    let latencies = rows.iter().flat_map(|row| PERCENTILES.map(|(_, of)| of(&row.median.latency)));
    // The labels below the lowest points need room above the axis.
    let lowest = rows.iter().map(|row| row.median.latency.p50_ns * ROOM_BELOW);
    let latencies = Axis::latency(latencies.chain(lowest));
    let mut plot = Plot::new(Axis::rate(rates().chain(drawn_limit)), latencies);
    if let Some(limit) = drawn_limit {
        plot.upright(limit, "floor", &format!("bare ring: {}", show_count(limit)));
    }
    for (index, (name, of)) in PERCENTILES.iter().enumerate() {
        draw(&mut plot, &rows, index, name, *of);
    }
    let detail = match (limit, drawn_limit) {
        (Some(limit), None) => {
            format!("latency against throughput; the bare ring reaches {}", show_count(limit))
        }
        _ => "latency against throughput".to_owned(),
    };
    let described = rows.iter().map(|row| {
        let (rate, p99) = (row.median.calls_per_second, row.median.latency.p99_ns);
        format!("{}: {} calls per second, p99 {}", row.name, show_count(rate), show_time(p99))
    });
    Some(plot.figure(&family.title, &detail, &joined(described, "; ")))
}

fn draw(plot: &mut Plot, rows: &[&Row], index: usize, name: &str, of: fn(&LatencySummary) -> f64) {
    let colour = format!("--s{index}");
    let point = |row: &Row| (row.median.calls_per_second, of(&row.median.latency));
    let points: Vec<(f64, f64)> = rows.iter().map(|row| point(row)).collect();
    plot.course(&points, &colour, name);
    for row in rows {
        let title = format!("{}, {name} {}", row.name, show_time(point(row).1));
        plot.dot(point(row), &colour, true, &title);
        if index == 0 {
            plot.note(point(row), &load_of(row));
        }
    }
}

fn load_of(row: &Row) -> String {
    match row.workload.rate {
        Some(rate) => show_count(rate.per_second as f64),
        None => row.workload.depth.to_string(),
    }
}

fn is_plain(row: &Row) -> bool {
    row.workload.idle_connections == 0 && row.median.latency.p50_ns.is_finite()
}

/// The highest rate of a bare ring measured with one of the rows.
fn ring_limit(rows: &[&Row]) -> Option<f64> {
    let of = |row: &&Row| {
        let floor = row.repeats.iter().flat_map(|repeat| &repeat.floor);
        let rates = floor.filter(|value| matches!(value.probe, Probe::RingRate { .. }));
        median(rates.map(|value| value.value))
    };
    range(rows.iter().map(of)).map(|(_, high)| high).filter(|high| *high > 0.0)
}

pub(super) fn saturation(found: &Saturation) -> Option<String> {
    let steps = &found.steps;
    range(steps.iter().map(|step| step.p99_ns))?;
    let latencies = steps.iter().map(|step| step.p99_ns).chain([found.p99_limit_ns]);
    let rates = Axis::rate(steps.iter().map(|step| step.achieved_per_second));
    let mut plot = Plot::new(rates, Axis::latency(latencies));
    plot.level(found.p99_limit_ns, "bound", &format!("limit: {}", show_time(found.p99_limit_ns)));
    for step in steps.iter().filter(|step| step.p99_ns.is_finite()) {
        let title = format!(
            "{} requested, {} started, p99 {}",
            show_count(step.target_per_second),
            show_count(step.achieved_per_second),
            show_time(step.p99_ns)
        );
        plot.dot((step.achieved_per_second, step.p99_ns), "--s0", step.held, &title);
    }
    let detail = match found.highest_per_second {
        Some(rate) => {
            plot.upright(rate, "floor", &format!("highest: {}", show_count(rate)));
            "filled dots kept the limit and the rate".to_owned()
        }
        None => "no rate kept the limit".to_owned(),
    };
    let description = format!("99th percentile at {} tried rates", steps.len());
    Some(plot.figure("Search for the highest rate", &detail, &description))
}

pub(super) fn soak(soak: &Soak) -> Option<String> {
    let end_s = soak.windows.last().map(|window| window.start_s + window.elapsed_s)?;
    let latency: [Course; 3] = [
        ("p50", |window| window.p50_ns),
        ("p99", |window| window.p99_ns),
        ("max", |window| window.max_ns),
    ];
    let memory: [Course; 2] = [
        ("client", |window| window.client.resident_bytes as f64 / MIB),
        ("server", |window| window.server.resident_bytes as f64 / MIB),
    ];
    let windows = format!("{} windows", soak.windows.len());
    let axis = Axis::latency(values_of(soak, &latency));
    let of_latency = with_courses(Plot::new(Axis::time(end_s), axis), soak, &latency);
    let show = |mib: f64| format!("{mib:.0}");
    let axis = Axis::from_zero("resident memory, MiB", values_of(soak, &memory), show);
    let of_memory = with_courses(Plot::new(Axis::time(end_s), axis), soak, &memory);
    let of_latency = of_latency.figure("Soak: latency", &windows, "latency over time");
    Some(of_latency + &of_memory.figure("Soak: memory", &windows, "memory over time"))
}

fn values_of(soak: &Soak, courses: &[Course]) -> impl Iterator<Item = f64> {
    courses.iter().flat_map(move |course| soak.windows.iter().map(course.1))
}

fn with_courses(mut plot: Plot, soak: &Soak, courses: &[Course]) -> Plot {
    for (index, (name, of)) in courses.iter().enumerate() {
        let point = |window: &SoakWindow| (window.start_s + window.elapsed_s / 2.0, of(window));
        let points: Vec<(f64, f64)> = soak.windows.iter().map(point).collect();
        plot.course(&points, &format!("--s{index}"), name);
    }
    plot
}

type Course = (&'static str, fn(&SoakWindow) -> f64);

type Percentile = (&'static str, fn(&LatencySummary) -> f64);

const PERCENTILES: [Percentile; 3] = [
    ("p50", |latency| latency.p50_ns),
    ("p99", |latency| latency.p99_ns),
    ("p99.9", |latency| latency.p99_9_ns),
];
/// A limit further away than this factor is only mentioned in the text: in the plot, it would leave
/// no room for the rows.
const LIMIT_SHOWN: f64 = 2.5;
const ROOM_BELOW: f64 = 0.5;
const MIB: f64 = 1_048_576.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::Holdings;
    use crate::load::{Operation, Workload};
    use crate::report::SaturationStep;
    use crate::report::html::family::families;
    use crate::report::html::tests::{data_points, sampled};

    #[test]
    fn each_load_is_a_point_of_each_line() {
        let null = Workload::ping_pong(Operation::Null, 0);
        let rows = [1, 2, 4].map(|depth| sampled(null.at_depth(depth), &[1000]));
        let html = figure(&families(&rows)[0]).unwrap();
        assert_eq!(data_points(&html), [3, 3, 3]);
        assert_eq!(html.matches("<circle").count(), 9);
        assert!(figure(&families(&rows[..1])[0]).is_none());
    }

    #[test]
    fn a_rate_that_did_not_hold_is_hollow() {
        let step = |rate: f64, held| SaturationStep {
            target_per_second: rate,
            achieved_per_second: rate,
            lost: 0,
            p99_ns: rate,
            adherence_percent: 100.0,
            held,
        };
        let found = Saturation {
            p99_limit_ns: 1500.0,
            steps: vec![step(1000.0, true), step(2000.0, false)],
            highest_per_second: Some(1000.0),
        };
        let html = saturation(&found).unwrap();
        assert_eq!((html.matches("\"dot\"").count(), html.matches("\"hollow\"").count()), (1, 1));
        assert!(html.contains("limit: 1.5 µs"), "{html}");
    }

    #[test]
    fn a_soak_is_a_course_of_latency_and_one_of_memory() {
        let holdings = Holdings { resident_bytes: 1 << 24, descriptors: 9 };
        let window = |start_s: f64| SoakWindow {
            start_s,
            elapsed_s: 1.0,
            calls: 10,
            calls_per_second: 10.0,
            p50_ns: 300.0,
            p99_ns: 500.0,
            max_ns: 9000.0,
            client: holdings,
            server: holdings,
            server_buffers: f64::NAN,
        };
        let windows = vec![window(0.0), window(1.0)];
        let soaked = Soak {
            windows,
            refused_windows: 0,
            lost: 0,
            trends: Vec::new(),
            held: true,
            buffers_not_watched: None,
        };
        let html = soak(&soaked).unwrap();
        assert_eq!(data_points(&html), [2, 2, 2, 2, 2]);
    }
}
