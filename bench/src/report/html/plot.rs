//! Plots as inline SVG: axes, grid, and lines labelled at their ends.
//!
//! Coordinates are data values; only this module knows pixels.

use super::escape;
use crate::units::{joined, show_count};
use std::fmt::Write;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    Linear,
    Log,
}

#[derive(Clone, Debug)]
pub(super) struct Axis {
    pub(super) label: String,
    pub(super) scale: Scale,
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) ticks: Vec<(f64, String)>,
}

impl Axis {
    /// A logarithmic axis for latencies; the range is extended to suitable ticks.
    pub(super) fn latency(values_ns: impl Iterator<Item = f64>) -> Self {
        let (low, high) = range(values_ns.filter(|ns| *ns > 0.0)).unwrap_or((100.0, 1000.0));
        let (low, high) = (low / 1.15, high * 1.15);
        let ticks = log_ticks(low, high).into_iter().map(|ns| (ns, show_time(ns))).collect();
        Self { label: "latency".to_owned(), scale: Scale::Log, low, high, ticks }
    }

    pub(super) fn from_zero(
        label: &str,
        values: impl Iterator<Item = f64>,
        show: fn(f64) -> String,
    ) -> Self {
        let high = range(values).map_or(1.0, |(_, high)| high.max(f64::MIN_POSITIVE)) * 1.04;
        let ticks = linear_ticks(high).into_iter().map(|value| (value, show(value))).collect();
        Self { label: label.to_owned(), scale: Scale::Linear, low: 0.0, high, ticks }
    }

    pub(super) fn rate(values: impl Iterator<Item = f64>) -> Self {
        let show = |rate| show_count(rate).replace(".00", "").replace(".0k", "k");
        Self::from_zero("calls per second", values, show)
    }

    pub(super) fn time(end_s: f64) -> Self {
        Self::from_zero("time, s", std::iter::once(end_s / 1.04), |s| format!("{}", round(s)))
    }

    fn place(&self, value: f64) -> f64 {
        let place = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value / self.low).ln() / (self.high / self.low).ln(),
        };
        if place.is_finite() { place.clamp(0.0, 1.0) } else { 0.0 }
    }
}

pub(super) struct Plot {
    x: Axis,
    y: Axis,
    /// Elements inside the frame.
    body: String,
    /// Labels of lines: heights of the line ends, texts and colours.
    names: Vec<(f64, String, String)>,
    /// Labels of levels: heights and left ends.
    levels: Vec<(f64, f64)>,
}

impl Plot {
    pub(super) fn new(x: Axis, y: Axis) -> Self {
        Self { x, y, body: String::new(), names: Vec::new(), levels: Vec::new() }
    }

    fn at(&self, (x, y): (f64, f64)) -> (f64, f64) {
        let (right, down) = (self.x.place(x), 1.0 - self.y.place(y));
        (LEFT + right * (WIDTH - LEFT - RIGHT), TOP + down * (HEIGHT - TOP - BOTTOM))
    }

    /// A line through points, with a tooltip; `extra` are CSS classes.
    pub(super) fn line(&mut self, points: &[(f64, f64)], colour: &str, extra: &str, title: &str) {
        let style = format!("series {extra}\" style=\"stroke:var({colour})");
        self.polyline(points, &style, title);
    }

    /// A line that is labelled in the margin, at its end.
    pub(super) fn course(&mut self, points: &[(f64, f64)], colour: &str, name: &str) {
        self.line(points, colour, "", name);
        if let Some(end) = points.iter().rev().find(|point| is_known(point)) {
            self.name(*end, colour, name);
        }
    }

    /// A thin line on top of everything, without its own colour.
    pub(super) fn overlay(&mut self, points: &[(f64, f64)], title: &str) {
        self.polyline(points, "over", title);
    }

    fn polyline(&mut self, points: &[(f64, f64)], class: &str, title: &str) {
        let points: Vec<(f64, f64)> = points.iter().copied().filter(is_known).collect();
        let pair = |(x, y): (f64, f64)| format!("{x:.1},{y:.1}");
        let path = joined(points.iter().map(|point| pair(self.at(*point))), " ");
        let (count, title) = (points.len(), escape(title));
        push!(
            self.body,
            "<polyline class=\"{class}\" data-points=\"{count}\" points=\"{path}\"><title>{title}</title></polyline>"
        );
    }

    /// A mark with a tooltip; hollow marks stand for failures.
    pub(super) fn dot(&mut self, point: (f64, f64), colour: &str, filled: bool, title: &str) {
        if !is_known(&point) {
            return;
        }
        let (x, y) = self.at(point);
        let paint = match filled {
            true => format!("class=\"dot\" style=\"fill:var({colour})\""),
            false => format!("class=\"hollow\" style=\"stroke:var({colour})\""),
        };
        let title = escape(title);
        push!(
            self.body,
            "<circle {paint} cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.6\"><title>{title}</title></circle>"
        );
    }

    /// A small text below a point, to the right.
    pub(super) fn note(&mut self, point: (f64, f64), text: &str) {
        if !is_known(&point) {
            return;
        }
        let (x, y) = self.at(point);
        push_text(&mut self.body, [" class=\"halo\"", ""], (x + 5.0, y + 12.0), text);
    }

    /// Labels the line that ends at this height in the margin.
    pub(super) fn name(&mut self, end: (f64, f64), colour: &str, name: &str) {
        if !is_known(&end) {
            return;
        }
        let (_, y) = self.at(end);
        self.names.push((y, colour.to_owned(), name.to_owned()));
    }

    /// A horizontal line across the plot, such as a limit of the machine. Omitted outside of the
    /// axis.
    pub(super) fn level(&mut self, y: f64, class: &str, text: &str) {
        if y < self.y.low || y > self.y.high {
            return;
        }
        let (left, height) = self.at((self.x.low, y));
        let right = WIDTH - RIGHT;
        // Next to the labels of nearby levels, not over them.
        let close = self.levels.iter().filter(|other| (other.0 - height).abs() < NAME_HEIGHT);
        let label_end = close.map(|other| other.1).fold(right, f64::min) - 4.0;
        self.levels.push((height, label_end - text.chars().count() as f64 * CHAR_WIDTH - 8.0));
        push!(
            self.body,
            "<line class=\"{class}\" x1=\"{left:.1}\" y1=\"{height:.1}\" x2=\"{right}\" y2=\"{height:.1}\"/>"
        );
        push_text(&mut self.body, LABEL_AT_END, (label_end, height - 4.0), text);
    }

    pub(super) fn upright(&mut self, x: f64, class: &str, text: &str) {
        if x < self.x.low || x > self.x.high {
            return;
        }
        let (right, top) = self.at((x, self.y.high));
        let bottom = HEIGHT - BOTTOM;
        push!(
            self.body,
            "<line class=\"{class}\" x1=\"{right:.1}\" y1=\"{top:.1}\" x2=\"{right:.1}\" y2=\"{bottom}\"/>"
        );
        if !text.is_empty() {
            push_text(&mut self.body, LABEL_AT_END, (right - 4.0, top + 12.0), text);
        }
    }

    /// Rectangles of one colour, given by their corners in data values: a single SVG element.
    pub(super) fn cells(&mut self, cells: &[[f64; 4]], colour: &str) {
        let mut path = String::new();
        for &[x0, y0, x1, y1] in cells {
            let ((left, bottom), (right, top)) = (self.at((x0, y0)), self.at((x1, y1)));
            push!(path, "M{left:.1} {top:.1}H{right:.1}V{bottom:.1}H{left:.1}z");
        }
        push!(
            self.body,
            "<path style=\"fill:var({colour})\" data-cells=\"{}\" d=\"{path}\"/>",
            cells.len()
        );
    }

    /// The figure, with a heading and a description for screen readers.
    pub(super) fn figure(self, title: &str, detail: &str, description: &str) -> String {
        let mut svg = String::new();
        self.push_axes(&mut svg);
        svg.push_str(&self.body);
        self.push_names(&mut svg);
        let detail = match detail {
            "" => String::new(),
            text => format!(" <span>{}</span>", escape(text)),
        };
        format!(
            "<figure><figcaption>{}{detail}</figcaption>\
             <svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">{svg}</svg></figure>\n",
            escape(title),
            escape(description)
        )
    }

    fn push_axes(&self, svg: &mut String) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for (value, label) in &self.x.ticks {
            let (x, _) = self.at((*value, self.y.low));
            push!(
                svg,
                "<line class=\"grid\" x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom}\"/>"
            );
            push_text(svg, ["", " text-anchor=\"middle\""], (x, bottom + 15.0), label);
        }
        for (value, label) in &self.y.ticks {
            let (_, y) = self.at((self.x.low, *value));
            push!(
                svg,
                "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\"/>"
            );
            push_text(svg, ["", " text-anchor=\"end\""], (LEFT - 7.0, y + 4.0), label);
        }
        push!(svg, "<path class=\"frame\" d=\"M{LEFT} {TOP}V{bottom}H{right}\"/>");
        let (middle, low) = (f64::midpoint(LEFT, right), HEIGHT - 6.0);
        push!(
            svg,
            "<text class=\"unit\" x=\"{middle}\" y=\"{low}\" text-anchor=\"middle\">{}</text>\
             <text class=\"unit\" transform=\"translate(11 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            escape(&self.x.label),
            f64::midpoint(TOP, bottom),
            escape(&self.y.label)
        );
    }

    /// Labels in the margin, moved apart if lines end close together, each connected by a hairline.
    fn push_names(&self, svg: &mut String) {
        let mut names: Vec<_> = self.names.iter().collect();
        names.sort_by(|a, b| a.0.total_cmp(&b.0));
        let ends: Vec<f64> = names.iter().map(|name| name.0).collect();
        let heights = spread_out(&ends, NAME_HEIGHT, TOP + 4.0, HEIGHT - BOTTOM);
        for ((end, colour, name), height) in names.into_iter().zip(heights) {
            let (from, to) = (WIDTH - RIGHT + 2.0, WIDTH - RIGHT + 12.0);
            push!(
                svg,
                "<path class=\"leader\" style=\"stroke:var({colour})\" d=\"M{from} {end:.1}L{to} {height:.1}\"/>"
            );
            let place = (to + 3.0, height + 4.0);
            push_text(svg, [" class=\"label\"", ""], place, &shortened(name));
        }
    }
}

/// A text with attributes before and behind its place.
fn push_text(svg: &mut String, [before, behind]: [&str; 2], (x, y): (f64, f64), text: &str) {
    let text = escape(text);
    push!(svg, "<text{before} x=\"{x:.1}\" y=\"{y:.1}\"{behind}>{text}</text>");
}

/// Sorted heights, moved so that each is `gap` below the previous one, within bounds if they fit.
fn spread_out(ends: &[f64], gap: f64, top: f64, bottom: f64) -> Vec<f64> {
    let mut heights = ends.to_vec();
    let mut least = top;
    for height in &mut heights {
        *height = height.max(least);
        least = *height + gap;
    }
    let mut most = bottom;
    for height in heights.iter_mut().rev() {
        *height = height.min(most);
        most = *height - gap;
    }
    heights
}

fn shortened(name: &str) -> String {
    match name.chars().count() > NAME_CHARS_MAX {
        true => name.chars().take(NAME_CHARS_MAX - 1).chain(['…']).collect(),
        false => name.to_owned(),
    }
}

/// Returns false for a figure that was refused or not measured: it cannot be plotted.
fn is_known(&(x, y): &(f64, f64)) -> bool {
    x.is_finite() && y.is_finite()
}

pub(super) fn range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.filter(|value| value.is_finite()).fold(None, |found, value| {
        let (low, high) = found.unwrap_or((value, value));
        Some((low.min(value), high.max(value)))
    })
}

/// 1, 2 and 5 of every decade within the range, or fewer for many decades.
fn log_ticks(low: f64, high: f64) -> Vec<f64> {
    let decades = (high / low).log10();
    let steps: &[f64] = match decades {
        _ if decades < 0.4 => &[1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0],
        _ if decades < 2.0 => &[1.0, 2.0, 5.0],
        _ if decades < 4.0 => &[1.0, 3.0],
        _ => &[1.0],
    };
    let exponents = low.log10().floor() as i32..=high.log10().floor() as i32;
    let ticks = exponents.flat_map(|power| steps.iter().map(move |s| s * 10f64.powi(power)));
    ticks.filter(|tick| (low..=high).contains(tick)).collect()
}

/// Four to eight round values from 0 up to `high`.
fn linear_ticks(high: f64) -> Vec<f64> {
    let magnitude = 10f64.powf((high / 5.0).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * magnitude);
    let step = steps.into_iter().find(|step| high / step <= 7.0).unwrap_or(high);
    (0..=7).map(|index| f64::from(index) * step).filter(|tick| *tick <= high).collect()
}

/// A time in a suitable unit, with few digits.
pub(super) fn show_time(ns: f64) -> String {
    let (value, unit) = match ns {
        _ if ns.is_nan() => return "-".to_owned(),
        _ if ns < 999.5 => (ns, "ns"),
        _ if ns < 999.5e3 => (ns / 1e3, "µs"),
        _ if ns < 999.5e6 => (ns / 1e6, "ms"),
        _ => (ns / 1e9, "s"),
    };
    format!("{} {unit}", round(value))
}

fn round(value: f64) -> f64 {
    if value == 0.0 {
        return value;
    }
    let factor = 10f64.powi(2 - value.abs().log10().floor() as i32);
    (value * factor).round() / factor
}

const LABEL_AT_END: [&str; 2] = [" class=\"label halo\"", " text-anchor=\"end\""];
const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 290.0;
const LEFT: f64 = 66.0;
const RIGHT: f64 = 128.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 42.0;
const NAME_HEIGHT: f64 = 13.5;
/// Width of a character of a label, with room for wide fonts (DejaVu Sans).
const CHAR_WIDTH: f64 = 7.0;
const NAME_CHARS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_logarithmic_axis_gives_each_decade_the_same_room() {
        let axis = Axis { low: 1.0, high: 100.0, ..Axis::latency([1.0].into_iter()) };
        assert_eq!([1.0, 10.0, 100.0].map(|value| axis.place(value)), [0.0, 0.5, 1.0]);
        assert_eq!(axis.place(f64::NAN), 0.0);
    }

    #[test]
    fn ticks_are_round_and_within_the_axis() {
        assert_eq!(log_ticks(150.0, 6000.0), [200.0, 500.0, 1000.0, 2000.0, 5000.0]);
        assert_eq!(linear_ticks(1.04), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        for (low, high) in [(1.0, 1.3), (90.0, 110.0), (1.0, 1e9)] {
            let ticks = log_ticks(low, high);
            assert!((2..=14).contains(&ticks.len()), "{low} to {high}: {ticks:?}");
        }
    }

    #[test]
    fn a_time_has_the_unit_that_suits_it() {
        assert_eq!(show_time(200.0), "200 ns");
        assert_eq!(show_time(1234.0), "1.23 µs");
        assert_eq!(show_time(5e6), "5 ms");
        assert_eq!(show_time(2e9), "2 s");
    }

    #[test]
    fn names_that_would_overlap_are_moved_apart_within_the_plot() {
        assert_eq!(spread_out(&[10.0, 11.0, 50.0], 13.0, 0.0, 100.0), [10.0, 23.0, 50.0]);
        assert_eq!(spread_out(&[98.0, 99.0], 13.0, 0.0, 100.0), [87.0, 100.0]);
    }

    #[test]
    fn labels_of_levels_close_together_stand_side_by_side() {
        let mut plot = Plot::new(Axis::time(1.0), Axis::latency([100.0, 1e6].into_iter()));
        [150.0, 160.0, 1e5].iter().for_each(|ns| plot.level(*ns, "floor", "a limit"));
        let [near, moved, far] = plot.levels[..] else { panic!("{:?}", plot.levels) };
        assert!(moved.1 < near.1 - 40.0 && far.1 == near.1, "{:?}", plot.levels);
    }

    #[test]
    fn what_is_not_known_is_not_drawn() {
        let mut plot = Plot::new(Axis::time(1.0), Axis::latency([100.0, 1000.0].into_iter()));
        plot.line(&[(0.1, 200.0), (0.2, f64::NAN), (0.3, 300.0)], "--s0", "", "");
        plot.dot((0.5, f64::NAN), "--s0", true, "");
        plot.note((f64::NAN, 1.0), "note");
        plot.name((0.5, f64::NAN), "--s0", "name");
        let html = plot.figure("", "", "");
        assert!(html.contains("data-points=\"2\"") && !html.contains("<circle"), "{html}");
        assert!(!html.contains(">note<") && !html.contains(">name<"), "{html}");
    }

    #[test]
    fn a_figure_tells_those_who_do_not_see_it_and_escapes_what_it_tells() {
        let x = Axis::time(1.0);
        let mut plot = Plot::new(x, Axis::latency([100.0, 1000.0].into_iter()));
        plot.line(&[(0.0, 100.0), (1.0, 1000.0)], "--s0", "", "<b>");
        let html = plot.figure("a & b", "", "rises \"steeply\"");
        assert!(html.contains("aria-label=\"rises &quot;steeply&quot;\""), "{html}");
        assert!(html.contains("a &amp; b") && html.contains("<title>&lt;b&gt;</title>"), "{html}");
        assert!(html.contains("data-points=\"2\""), "{html}");
    }
}
