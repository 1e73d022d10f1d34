//! A picture of a scenario: a column for each mix, and a plot over time for each panel.

use std::fmt::Write;

use super::report::{Curve, Panel, Row};
use crate::bench::plot;

/// The size of one plot, and the space around it.
const WIDTH: f64 = 220.0;
const HEIGHT: f64 = 60.0;
const SPACE: f64 = 34.0;

const COLORS: [&str; 5] = ["#2563eb", "#10b981", "#f59e0b", "#db2777", "#7c3aed"];

/// The picture as SVG. The plots of a row have the same scale; a vertical line marks the fault.
pub fn picture(mixes: &[String], row: &Row) -> String {
    let columns: Vec<&[Panel]> = row.outcomes.iter().map(|outcome| outcome.panels.as_slice()).collect();
    let panels = columns.first().map_or(0, |panels| panels.len());
    let mut body = String::new();
    for (column, mix) in (0_u8..).zip(mixes) {
        let left = SPACE + f64::from(column) * (WIDTH + SPACE);
        let _ = writeln!(body, r#"<text x="{left:.0}" y="14" font-weight="bold">{mix}</text>"#);
    }
    for number in 0..panels {
        let across: Vec<&Panel> = columns.iter().filter_map(|panels| panels.get(number)).collect();
        let points = || across.iter().flat_map(|panel| panel.curves.iter().flatten());
        let most = points().map(|point| point.1).fold(1.0, f64::max);
        let times = points().map(|point| point.0);
        let (first, last) = (times.clone().fold(0.0, f64::min), times.fold(1.0, f64::max));
        let top = 40.0 + number as f64 * (HEIGHT + SPACE);
        for (column, panel) in (0_u8..).zip(&across) {
            let left = SPACE + f64::from(column) * (WIDTH + SPACE);
            let frame = Frame { left, top, most, first, last };
            if column == 0 {
                let _ = writeln!(body, r#"<text x="{left:.0}" y="{:.0}">{}</text>"#, top - 6.0, panel.title);
            }
            frame.draw(&mut body, panel);
        }
    }
    let width = SPACE + columns.len() as f64 * (WIDTH + SPACE);
    plot::document(width, 40.0 + panels as f64 * (HEIGHT + SPACE), &body)
}

/// The place and the scale of one plot.
struct Frame {
    left: f64,
    top: f64,
    /// The number at the upper edge.
    most: f64,
    /// The times at the left and right edge.
    first: f64,
    last: f64,
}

impl Frame {
    fn x(&self, time: f64) -> f64 {
        self.left + (time - self.first) / (self.last - self.first) * WIDTH
    }

    fn draw(&self, body: &mut String, panel: &Panel) {
        let (left, top, bottom, fault) = (self.left, self.top, self.top + HEIGHT, self.x(0.0));
        let _ = writeln!(
            body,
            r##"<path d="M{left:.0} {top:.0}V{bottom:.0}H{:.0}M{fault:.0} {top:.0}V{bottom:.0}" stroke="#9ca3af" fill="none"/>"##,
            left + WIDTH
        );
        let _ = writeln!(
            body,
            r#"<text x="{:.0}" y="{:.0}" text-anchor="end">{:.0}</text>"#,
            left - 3.0,
            top + 9.0,
            self.most
        );
        let _ = writeln!(
            body,
            r#"<text x="{:.0}" y="{:.0}" text-anchor="end">{:.0} s</text>"#,
            left + WIDTH,
            bottom + 12.0,
            self.last
        );
        for (curve, color) in panel.curves.iter().zip(COLORS.iter().cycle()) {
            let _ =
                writeln!(body, r#"<polyline points="{}" stroke="{color}" fill="none"/>"#, self.points(curve));
        }
    }

    fn points(&self, curve: &Curve) -> String {
        let mut points = String::new();
        for (time, number) in curve {
            let y = self.top + HEIGHT - number / self.most * HEIGHT;
            let _ = write!(points, "{:.0},{y:.0} ", self.x(*time));
        }
        points.trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Scenario;
    use super::super::report::Outcome;
    use super::*;

    #[test]
    fn plots_of_a_row_have_one_scale() {
        let outcome = |number| {
            let curves = vec![vec![(-2.0, 0.0), (10.0, number)]];
            Outcome { figures: Vec::new(), panels: vec![Panel { title: "dials", curves }], stalled: false }
        };
        let row = Row { scenario: Scenario::BothReset, outcomes: vec![outcome(40.0), outcome(20.0)] };
        let picture = picture(&["ours".into(), "Go".into()], &row);
        assert!(picture.contains(r#"points="34,100 254,40""#), "{picture}");
        assert!(picture.contains(r#"points="288,100 508,70""#), "half as high: {picture}");
    }
}
