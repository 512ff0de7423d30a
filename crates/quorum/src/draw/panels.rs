//! Panels: several small charts one below the other, for the measurements of a run.

use super::curves::{even_steps, marker, number};
use super::frame::{Entry, SAMPLE, Sheet, compose};
use super::palette::{self, EDGE, FAINT, GREY, INK};
use super::svg::{Point, Svg, fit};

/// One chart of a picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    /// What is shown, above the chart.
    pub title: String,
    /// The name of the axis to the right.
    pub across: String,
    /// The name of the axis upwards.
    pub up: String,
    /// What is drawn.
    pub chart: Chart,
}

/// The ways to draw.
#[derive(Clone, Debug, PartialEq)]
pub enum Chart {
    /// Lines that keep a value until the next one.
    Steps(Vec<Trace>),
    /// Lines from point to point.
    Lines(Vec<Trace>),
    /// Lines from point to point with a mark at each point, on axes of one's choice.
    Curves {
        /// The lines.
        traces: Vec<Trace>,
        /// How values are laid out to the right.
        x: Axis,
        /// How values are laid out upwards.
        y: Axis,
    },
    /// A bar for every item.
    Bars {
        /// The bars.
        bars: Vec<Bar>,
        /// A line to compare them with, by its name.
        line: Option<(String, Vec<f64>)>,
    },
}

/// How an axis is laid out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Axis {
    /// From 0 to the largest value.
    #[default]
    FromZero,
    /// From the smallest value to the largest.
    Fit,
    /// From the largest value to the smallest.
    Falling,
    /// From the smallest value to the largest, each factor as wide as the same factor elsewhere;
    /// the numbers along it are the values themselves. What is not positive is left out.
    Log,
    /// Shares from 0 to the largest below 1, each further nine as wide as the one before: half,
    /// 90 %, 99 % and so on. A share of 1 has no place and is left out.
    Nines,
}

/// A line of a chart: its name in the legend, and its points by ascending x. Points that are no
/// numbers are left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// What the legend calls it.
    pub name: String,
    /// The points.
    pub points: Vec<(f64, f64)>,
}

/// A bar of a chart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bar {
    /// Its name below the axis.
    pub name: String,
    /// Its height.
    pub value: f64,
}

const WIDTH: f64 = 860.0;
/// The height of a chart: of one alone, and of one among others.
const ALONE: f64 = 340.0;
const AMONG: f64 = 190.0;
const LEFT: f64 = 76.0;
/// Below a chart, down to the top of the next.
const FOOT: f64 = 70.0;
/// Room for a panel's title.
const HEAD: f64 = 30.0;
/// Bars with more neighbours than this have no names.
const NAMES_MAX: usize = 48;
/// Up to so many values stand along the axis themselves; more give way to round numbers.
const VALUES_MAX: usize = 14;
/// Numbers below the axis are at least this share of its width apart.
const MARKS_APART: f64 = 0.03;
/// Lines with more points than this have no marks.
const MARKS_MAX: usize = 40;

/// Draws charts one below the other.
pub fn panels(title: &str, lines: &[String], panels: &[Panel]) -> String {
    let height = if panels.len() == 1 { ALONE } else { AMONG };
    let stride = HEAD + height + FOOT;
    let mut sheet = Sheet {
        size: (LEFT + WIDTH + 24.0, stride * panels.len() as f64 - 16.0),
        ..Sheet::default()
    };
    let names = names(panels);
    for (place, panel) in panels.iter().enumerate() {
        let mut body = Svg::new();
        panel.draw(&mut body, &names, height);
        sheet.body.put((0.0, stride * place as f64), &body);
    }
    sheet.legend = legend(panels);
    compose(title, lines, &sheet, |_, _| 0.0)
}

/// The names of all lines, each once: a name has one colour in all panels.
fn names(panels: &[Panel]) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for panel in panels {
        for trace in panel.traces() {
            if !names.contains(&trace.name.as_str()) {
                names.push(&trace.name);
            }
        }
    }
    names
}

fn legend(panels: &[Panel]) -> Vec<Entry> {
    let marked = panels
        .iter()
        .any(|panel| matches!(panel.chart, Chart::Curves { .. }));
    let entry = |(place, name): (usize, &&str)| {
        if !marked {
            return Entry::line(&stroke(place), *name);
        }
        let mut sample = Svg::new();
        let (w, h) = SAMPLE;
        sample.line((0.0, h / 2.0), (w, h / 2.0), &stroke(place));
        marker(
            &mut sample,
            place,
            (w / 2.0, h / 2.0),
            palette::series(place),
        );
        Entry::new(sample, *name)
    };
    let mut entries: Vec<Entry> = names(panels).iter().enumerate().map(entry).collect();
    for panel in panels {
        if let Chart::Bars {
            line: Some((name, _)),
            ..
        } = &panel.chart
        {
            entries.push(Entry::line(&compared(), name.as_str()));
        }
    }
    entries
}

fn stroke(place: usize) -> String {
    let colour = palette::series(place);
    // Lines that lie on each other are told apart by their dashes.
    let dash = ["", " stroke-dasharray=\"8 3\"", " stroke-dasharray=\"2 3\""][place % 3];
    format!(r#"class="trace" fill="none" stroke="{colour}" stroke-width="1.6"{dash}"#)
}

fn compared() -> String {
    format!(r#"class="compared" fill="none" stroke="{INK}" stroke-width="1.6""#)
}

/// The digits of a large whole number in threes; other text as it is.
fn grouped(text: &str) -> String {
    if text.len() < 5 || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.to_owned();
    }
    let mut parts = Vec::new();
    let mut rest = text;
    while rest.len() > 3 {
        let (front, last) = rest.split_at(rest.len() - 3);
        parts.push(last);
        rest = front;
    }
    parts.push(rest);
    parts.reverse();
    parts.join(",")
}

/// A number with three digits or so.
fn rounded(value: f64) -> String {
    let digits = 2 - value.abs().max(1e-3).log10().floor() as i32;
    let scale = 10f64.powi(digits.max(0));
    number((value * scale).round() / scale)
}

fn usable(point: &(f64, f64)) -> bool {
    point.0.is_finite() && point.1.is_finite()
}

impl Panel {
    /// The lines of the chart, if it has lines.
    fn traces(&self) -> &[Trace] {
        match &self.chart {
            Chart::Steps(traces) | Chart::Lines(traces) | Chart::Curves { traces, .. } => traces,
            Chart::Bars { .. } => &[],
        }
    }

    fn draw(&self, svg: &mut Svg, names: &[&str], height: f64) {
        let bold = format!(r#"class="panel" font-weight="bold" fill="{INK}""#);
        svg.text((LEFT, 8.0), 14.0, &bold, &fit(&self.title, WIDTH, 14.0));
        let axes = self.axes(height);
        axes.draw(svg, self);
        for trace in self.traces() {
            let place = names.iter().position(|name| *name == trace.name);
            let place = place.unwrap_or(0);
            if let Chart::Steps(_) = &self.chart {
                svg.polyline(&axes.steps(trace), &stroke(place));
                continue;
            }
            let points = trace.points.iter().filter(|point| axes.shows(point));
            let points: Vec<Point> = points.map(|(x, y)| axes.at(*x, *y)).collect();
            svg.polyline(&points, &stroke(place));
            if let Chart::Curves { .. } = &self.chart
                && points.len() <= MARKS_MAX
            {
                for at in points {
                    marker(svg, place, at, palette::series(place));
                }
            }
        }
        if let Chart::Bars { bars, line } = &self.chart {
            axes.bars(svg, bars, line.as_ref());
        }
    }

    fn axes(&self, height: f64) -> Axes {
        let traces = self.traces();
        let points = traces.iter().flat_map(|trace| &trace.points);
        let points: Vec<(f64, f64)> = points.copied().filter(usable).collect();
        if let Chart::Curves { x, y, .. } = &self.chart {
            let shown = |point: &&(f64, f64)| x.shows(point.0) && y.shows(point.1);
            let shown = points.iter().filter(shown);
            let (across, up): (Vec<f64>, Vec<f64>) = shown.copied().unzip();
            return Axes {
                x: Span::new(*x, across, 1.0),
                y: Span::new(*y, up, 1.05),
                height,
            };
        }
        let (across, up, room) = if let Chart::Bars { bars, line } = &self.chart {
            let line = line.iter().flat_map(|(_, values)| values.iter().copied());
            let values = bars.iter().map(|bar| bar.value).chain(line);
            // Numbers above bars need room.
            (vec![bars.len() as f64], values.collect(), 1.15)
        } else {
            let (across, up) = points.into_iter().unzip();
            (across, up, 1.05)
        };
        let mut x = Span::new(Axis::FromZero, across, 1.0);
        let mut y = Span::new(Axis::FromZero, up, room);
        (x.marks, y.marks) = (even_steps(0.0, x.to, 10), even_steps(0.0, y.to, 5));
        Axes { x, y, height }
    }
}

impl Axis {
    /// Whether a value has a place.
    fn shows(self, value: f64) -> bool {
        match self {
            Self::Log => value.is_finite() && value > 0.0,
            Self::Nines => (0.0..1.0).contains(&value),
            Self::FromZero | Self::Fit | Self::Falling => value.is_finite(),
        }
    }
}

/// How many nines a share has; a half has about a third of one.
fn nines(share: f64) -> f64 {
    -(1.0 - share.clamp(0.0, 1.0 - 1e-12)).log10()
}

/// The values along one axis.
struct Span {
    axis: Axis,
    from: f64,
    to: f64,
    /// Where numbers stand.
    marks: Vec<f64>,
}

impl Span {
    /// The span of these values; `room` stretches an axis that begins at 0.
    fn new(axis: Axis, mut values: Vec<f64>, room: f64) -> Self {
        values.retain(|value| value.is_finite());
        if axis == Axis::Nines {
            return Self::nines(&values);
        }
        values.sort_by(f64::total_cmp);
        values.dedup();
        let least = values.first().copied().unwrap_or(0.0);
        let most = values.last().copied().unwrap_or(0.0);
        let (from, to) = match axis {
            Axis::FromZero if most > 0.0 => (0.0, most * room),
            Axis::Log if least > 0.0 && room > 1.0 && most > least => {
                // A whole number of powers of ten looks best along the height.
                (
                    10f64.powf(least.log10().floor()),
                    10f64.powf(most.log10().ceil()),
                )
            }
            _ if least < most => (least, most),
            Axis::Log => (least.max(1e-9), least.max(1e-9) * 10.0),
            _ => (0.0, room),
        };
        let few = values.len() <= VALUES_MAX;
        let marks = if room > 1.0 && axis == Axis::Log {
            let (low, high) = (from.log10().round() as i32, to.log10().round() as i32);
            let step = (high - low).unsigned_abs().div_ceil(7).max(1) as usize;
            (low..=high)
                .step_by(step)
                .map(|power| 10f64.powi(power))
                .collect()
        } else if room <= 1.0 && (axis == Axis::Log || few && axis != Axis::FromZero) {
            values
        } else {
            even_steps(from, to, if room > 1.0 { 5 } else { 10 })
        };
        let mut span = Self {
            axis,
            from,
            to,
            marks: Vec::new(),
        };
        for mark in marks {
            // Numbers must not stand on each other.
            let near = |last: &f64| (span.share(mark) - span.share(*last)).abs() < MARKS_APART;
            if room > 1.0 || !span.marks.last().is_some_and(near) {
                span.marks.push(mark);
            }
        }
        span
    }

    /// The span of shares.
    fn nines(values: &[f64]) -> Self {
        let shown = values.iter().copied().filter(|value| *value < 1.0);
        let to = shown.fold(0.9, f64::max);
        let round = [0.0, 0.5].into_iter();
        let round = round.chain((1..=12).map(|nines| 1.0 - 0.1f64.powi(nines)));
        Self {
            axis: Axis::Nines,
            from: 0.0,
            to,
            marks: round.filter(|mark| *mark <= to + 1e-12).collect(),
        }
    }

    /// A number along the axis.
    fn label(&self, value: f64) -> String {
        if self.axis == Axis::Nines {
            let digits = (nines(value).round() as usize).saturating_sub(2);
            return format!("{:.digits$} %", value * 100.0);
        }
        grouped(&number(value))
    }

    /// Where a value lies, from 0 to 1.
    fn share(&self, value: f64) -> f64 {
        let share = match self.axis {
            Axis::Log => (value / self.from).ln() / (self.to / self.from).ln(),
            Axis::Nines => nines(value) / nines(self.to),
            Axis::Falling => (self.to - value) / (self.to - self.from),
            Axis::FromZero | Axis::Fit => (value - self.from) / (self.to - self.from),
        };
        share.clamp(0.0, 1.0)
    }

    fn shows(&self, value: f64) -> bool {
        self.axis.shows(value)
    }
}

/// The axes of one panel.
struct Axes {
    x: Span,
    y: Span,
    height: f64,
}

impl Axes {
    fn at(&self, x: f64, y: f64) -> Point {
        let (across, up) = (self.x.share(x), self.y.share(y));
        (LEFT + across * WIDTH, HEAD + self.height * (1.0 - up))
    }

    fn shows(&self, point: &(f64, f64)) -> bool {
        self.x.shows(point.0) && self.y.shows(point.1)
    }

    fn draw(&self, svg: &mut Svg, panel: &Panel) {
        let grid = format!(r#"stroke="{FAINT}" stroke-width="0.7""#);
        let middle = format!(r#"text-anchor="middle" fill="{INK}""#);
        let end = format!(r#"text-anchor="end" fill="{INK}""#);
        let bottom = HEAD + self.height;
        for value in &self.y.marks {
            let (left, y) = self.at(self.x.from, *value);
            let left = left.min(LEFT);
            svg.line((left, y), (left + WIDTH, y), &grid);
            svg.text((left - 8.0, y), 12.0, &end, &self.y.label(*value));
        }
        if let Chart::Bars { bars, .. } = &panel.chart {
            self.names(svg, bars);
        } else {
            for value in &self.x.marks {
                let (x, _) = self.at(*value, self.y.from);
                svg.line((x, HEAD), (x, bottom), &grid);
                svg.text((x, bottom + 14.0), 12.0, &middle, &self.x.label(*value));
            }
        }
        let frame = format!(r#"fill="none" stroke="{EDGE}""#);
        let centre = (LEFT + WIDTH / 2.0, HEAD + self.height / 2.0);
        svg.rect(centre, (WIDTH, self.height), 0.0, &frame);
        svg.text((centre.0, bottom + 34.0), 13.0, &middle, &panel.across);
        svg.text_upwards((14.0, centre.1), 13.0, &panel.up);
    }

    /// The names of bars, or their numbers where there is no room for names.
    fn names(&self, svg: &mut Svg, bars: &[Bar]) {
        let middle = format!(r#"text-anchor="middle" fill="{INK}""#);
        let room = WIDTH / bars.len().max(1) as f64;
        let bottom = HEAD + self.height + 14.0;
        if bars.len() <= NAMES_MAX {
            for (place, bar) in bars.iter().enumerate() {
                let (x, _) = self.at(place as f64 + 0.5, 0.0);
                svg.text((x, bottom), 11.0, &middle, &fit(&bar.name, room, 11.0));
            }
            return;
        }
        for value in even_steps(0.0, self.x.to, 10) {
            let (x, _) = self.at(value, 0.0);
            svg.text((x, bottom), 12.0, &middle, &number(value));
        }
    }

    fn steps(&self, trace: &Trace) -> Vec<Point> {
        let mut points: Vec<Point> = Vec::new();
        for (x, y) in trace.points.iter().filter(|point| self.shows(point)) {
            let (x, y) = self.at(*x, *y);
            if let Some((_, before)) = points.last().copied() {
                points.push((x, before));
            }
            points.push((x, y));
        }
        points
    }

    fn bars(&self, svg: &mut Svg, bars: &[Bar], line: Option<&(String, Vec<f64>)>) {
        let width = WIDTH / bars.len().max(1) as f64;
        let wide = (width * 0.8).min(60.0);
        let few = bars.len() <= 12;
        for (place, bar) in bars.iter().enumerate() {
            let value = if bar.value.is_finite() {
                bar.value
            } else {
                0.0
            };
            let (x, y) = self.at(place as f64 + 0.5, value);
            let height = HEAD + self.height - y;
            let colour = palette::series(if few { place } else { 0 });
            let fill = format!(r#"class="bar" fill="{colour}" fill-opacity="0.75""#);
            let hover = format!("{}: {}", bar.name, number(value));
            svg.rect_with_hover((x, y + height / 2.0), (wide, height), 0.0, &fill, &hover);
            if few {
                let middle = format!(r#"text-anchor="middle" fill="{GREY}""#);
                svg.text((x, y - 8.0), 12.0, &middle, &rounded(value));
            }
        }
        if let Some((_, values)) = line {
            let mut points: Vec<Point> = Vec::new();
            for (place, value) in values.iter().enumerate() {
                let (x, y) = self.at(place as f64, *value);
                let (to, _) = self.at(place as f64 + 1.0, *value);
                points.extend([(x, y), (to, y)]);
            }
            svg.polyline(&points, &compared());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel(chart: Chart) -> Panel {
        Panel {
            title: "t <&>".to_owned(),
            across: "x".to_owned(),
            up: "y".to_owned(),
            chart,
        }
    }

    #[test]
    fn a_picture_has_every_line_and_bar_once() {
        let trace = |name: &str| Trace {
            name: name.to_owned(),
            points: vec![(0.0, 1.0), (2.0, f64::NAN), (4.0, 3.0)],
        };
        let bars = (0..3).map(|place| Bar {
            name: place.to_string(),
            value: f64::from(place),
        });
        let picture = panels(
            "title",
            &["a line".to_owned()],
            &[
                panel(Chart::Steps(vec![trace("a"), trace("b")])),
                panel(Chart::Lines(vec![trace("a")])),
                panel(Chart::Bars {
                    bars: bars.collect(),
                    line: Some(("theory".to_owned(), vec![1.0, 1.0, 1.0])),
                }),
            ],
        );
        assert_eq!(picture.matches("class=\"bar\"").count(), 3);
        // Three lines, and two samples of them in the legend.
        assert_eq!(picture.matches("class=\"trace\"").count(), 5);
        assert_eq!(picture.matches("class=\"compared\"").count(), 2);
        assert!(picture.contains("t &lt;&amp;&gt;"));
        assert!(!picture.contains("NaN"));
    }

    #[test]
    fn steps_keep_a_value_until_the_next() {
        let axes = Axes {
            x: Span::new(Axis::FromZero, vec![10.0], 1.0),
            y: Span::new(Axis::FromZero, vec![1.0], 1.0),
            height: AMONG,
        };
        let trace = Trace {
            name: String::new(),
            points: vec![(0.0, 0.0), (5.0, 1.0), (10.0, 0.0)],
        };
        let points = axes.steps(&trace);
        let corner = axes.at(5.0, 0.0);
        assert_eq!(points.len(), 5);
        assert_eq!(points[1], corner);
    }

    #[test]
    fn axes_are_laid_out_as_asked() {
        let values = || vec![1.0, 2.0, 16.0, 1024.0, f64::NAN];
        let log = Span::new(Axis::Log, values(), 1.0);
        assert_eq!(log.marks, [1.0, 2.0, 16.0, 1024.0]);
        assert!((log.share(32.0) - 0.5).abs() < 1e-12);
        assert!(!log.shows(0.0));
        let crowded = Span::new(Axis::Log, vec![10.0, 10.1, 57.0, 100.0], 1.0);
        assert_eq!(crowded.marks, [10.0, 57.0, 100.0]);
        let falling = Span::new(Axis::Falling, vec![0.75, 1.0], 1.0);
        assert_eq!((falling.share(1.0), falling.share(0.75)), (0.0, 1.0));
        let tens = Span::new(Axis::Log, vec![0.002, 0.9], 1.05);
        assert_eq!((tens.from, tens.to), (0.001, 1.0));
        let tail = Span::new(Axis::Nines, vec![0.0, 0.5, 0.999, 1.0], 1.0);
        let labels: Vec<String> = tail.marks.iter().map(|mark| tail.label(*mark)).collect();
        assert_eq!(labels, ["0 %", "50 %", "90 %", "99 %", "99.9 %"]);
        assert!((tail.share(0.9) - 1.0 / 3.0).abs() < 1e-9 && tail.share(0.0) == 0.0);
        assert!(tail.shows(0.0) && !tail.shows(1.0) && !tail.shows(-0.1));
        for axis in [
            Axis::FromZero,
            Axis::Fit,
            Axis::Falling,
            Axis::Log,
            Axis::Nines,
        ] {
            for values in [vec![], vec![0.0], vec![3.0], vec![-1.0]] {
                let span = Span::new(axis, values, 1.0);
                assert!(span.share(1.0).is_finite(), "{axis:?}");
            }
        }
    }

    #[test]
    fn a_name_has_one_colour_in_all_panels() {
        let trace = |name: &str| Trace {
            name: name.to_owned(),
            points: vec![(1.0, 1.0), (2.0, 2.0)],
        };
        let curves = |traces: Vec<Trace>| {
            panel(Chart::Curves {
                traces,
                x: Axis::Log,
                y: Axis::Fit,
            })
        };
        let picture = panels(
            "",
            &[],
            &[
                curves(vec![trace("a"), trace("b")]),
                curves(vec![trace("b")]),
            ],
        );
        let second = format!(r#"stroke="{}""#, palette::series(1));
        // Twice as a line and once in the legend.
        assert_eq!(picture.matches(&second).count(), 3);
        assert_eq!(picture.matches("class=\"trace\"").count(), 5);
    }

    #[test]
    fn numbers_above_bars_are_short() {
        assert_eq!(rounded(805.3271), "805");
        assert_eq!(rounded(24.5108), "24.5");
        assert_eq!(rounded(0.0), "0");
        assert_eq!(grouped("1000000"), "1,000,000");
        assert_eq!(grouped("20000"), "20,000");
        assert_eq!(
            (grouped("1000"), grouped("1e-15")),
            ("1000".into(), "1e-15".into())
        );
    }

    #[test]
    fn nothing_to_draw_is_still_a_picture() {
        let empty = Chart::Bars {
            bars: Vec::new(),
            line: None,
        };
        let picture = panels("", &[], &[panel(empty), panel(Chart::Lines(Vec::new()))]);
        assert!(picture.starts_with("<svg") && !picture.contains("NaN"));
    }
}
