//! Curves: failure probability, or availability, over the probability that a node is down.

use super::frame::{Entry, SAMPLE, Sheet, compose};
use super::palette::{self, EDGE, FAINT, GREY, INK};
use super::svg::{Point, Svg};

/// One system's curve.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// What the legend calls it.
    pub name: String,
    /// The points, by ascending `p`. Points that are no numbers are left out.
    pub points: Vec<CurvePoint>,
    /// Whether the values are exact. Others are drawn dashed, with their confidence band.
    pub exact: bool,
}

/// The failure probability at one `p`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CurvePoint {
    /// The probability that a node is down.
    pub p: f64,
    /// Low end of the confidence interval.
    pub low: f64,
    /// The probability that no quorum is left.
    pub value: f64,
    /// High end of the confidence interval.
    pub high: f64,
}

/// What the height of a curve means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// Failure probability, each power of ten as high as the other.
    #[default]
    LogFailure,
    /// Availability, which is one minus the failure probability, on an even scale.
    Availability,
}

/// How to draw curves.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CurveOptions {
    /// The title.
    pub title: Option<String>,
    /// What the height means.
    pub scale: Scale,
    /// Whether each power of ten of `p` is as wide as the other. Points at 0 are then left out.
    pub log_p: bool,
}

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 460.0;
/// Room for numbers and titles of the axes.
const LEFT: f64 = 76.0;
const BOTTOM: f64 = 52.0;
/// Failure probabilities below this lie on the axis.
const FLOOR: f64 = 1e-15;

/// Draws curves in one frame, with a line for one node alone.
///
/// Values of 0, and others below the axis, are drawn as triangles on it.
pub fn curves(series: &[Series], options: &CurveOptions) -> String {
    let plot = Plot::new(series, options);
    let mut sheet = Sheet {
        size: (LEFT + WIDTH + 24.0, HEIGHT + BOTTOM + 8.0),
        ..Sheet::default()
    };
    plot.axes(&mut sheet.body);
    plot.alone(&mut sheet);
    let mut clipped = false;
    for (place, series) in series.iter().enumerate() {
        clipped |= plot.series(&mut sheet, place, series);
    }
    if clipped {
        let mut sample = Svg::new();
        triangle(&mut sample, (15.0, 9.0), 6.0, &format!(r#"fill="{GREY}""#));
        let text = format!("below {} (maybe 0)", number(plot.floor));
        sheet.legend.push(Entry::new(sample, text));
    }
    let title = match (&options.title, options.scale) {
        (Some(title), _) => title.as_str(),
        (None, Scale::LogFailure) => "Failure probability",
        (None, Scale::Availability) => "Availability",
    };
    let line = match options.scale {
        Scale::LogFailure => "How likely it is that no quorum is left; lower is better.",
        Scale::Availability => "How likely it is that some quorum is left; higher is better.",
    };
    compose(title, &[line.to_owned()], &sheet, |_, _| 0.0)
}

struct Plot {
    scale: Scale,
    log_p: bool,
    /// The range of p.
    from: f64,
    to: f64,
    /// The lowest value on the axis, and the highest.
    floor: f64,
    top: f64,
}

impl Plot {
    fn new(series: &[Series], options: &CurveOptions) -> Self {
        let usable = |point: &&CurvePoint| point.is_usable(options.log_p);
        let points = || series.iter().flat_map(|s| s.points.iter().filter(usable));
        let (mut from, mut to) = points().fold((f64::INFINITY, 0.0f64), |(from, to), point| {
            (from.min(point.p), to.max(point.p))
        });
        if !options.log_p {
            // Numbers along an even axis begin at 0.
            from = 0.0;
        } else if !from.is_finite() {
            from = 0.01;
        }
        if to <= from {
            to = if options.log_p { from * 10.0 } else { 1.0 };
        }
        let values = points().map(|point| point.value);
        let (floor, top) = match options.scale {
            Scale::LogFailure => {
                let positive = values.filter(|value| *value > 0.0);
                let least = positive.fold(0.1, f64::min).max(FLOOR);
                (10f64.powf((least.log10() + 1e-9).floor()).max(FLOOR), 1.0)
            }
            Scale::Availability => {
                let least = values.map(|value| 1.0 - value).fold(1.0, f64::min);
                let least = least.min(1.0 - to);
                (((least * 10.0).floor() / 10.0).clamp(0.0, 0.9), 1.0)
            }
        };
        Self {
            scale: options.scale,
            log_p: options.log_p,
            from,
            to,
            floor,
            top,
        }
    }

    fn x(&self, p: f64) -> f64 {
        let share = if self.log_p {
            (p / self.from).log10() / (self.to / self.from).log10()
        } else {
            (p - self.from) / (self.to - self.from)
        };
        LEFT + share.clamp(0.0, 1.0) * WIDTH
    }

    /// The height of a value of the axis, cut to the axis.
    fn level(&self, value: f64) -> f64 {
        let value = value.clamp(self.floor, self.top);
        let share = match self.scale {
            Scale::LogFailure => (value / self.floor).log10() / (self.top / self.floor).log10(),
            Scale::Availability => (value - self.floor) / (self.top - self.floor),
        };
        HEIGHT * (1.0 - share) + 4.0
    }

    /// The height of a failure probability.
    fn y(&self, failure: f64) -> f64 {
        match self.scale {
            Scale::LogFailure => self.level(failure),
            Scale::Availability => self.level(1.0 - failure),
        }
    }

    fn is_below(&self, failure: f64) -> bool {
        self.scale == Scale::LogFailure && failure < self.floor * (1.0 - 1e-9)
    }

    fn axes(&self, svg: &mut Svg) {
        let grid = format!(r#"stroke="{FAINT}" stroke-width="0.7""#);
        let (left, right) = (LEFT, LEFT + WIDTH);
        let (top, bottom) = (4.0, HEIGHT + 4.0);
        let middle = format!(r#"text-anchor="middle" fill="{INK}""#);
        let end = format!(r#"text-anchor="end" fill="{INK}""#);
        for value in self.levels() {
            let y = self.level(value);
            svg.line((left, y), (right, y), &grid);
            svg.text((left - 8.0, y), 12.0, &end, &number(value));
        }
        for p in self.steps() {
            let x = self.x(p);
            svg.line((x, top), (x, bottom), &grid);
            svg.text((x, bottom + 14.0), 12.0, &middle, &number(p));
        }
        let frame = format!(r#"fill="none" stroke="{EDGE}""#);
        let centre = (left + WIDTH / 2.0, top + HEIGHT / 2.0);
        svg.rect(centre, (WIDTH, HEIGHT), 0.0, &frame);
        let name = "p: probability that a node is down";
        svg.text((centre.0, bottom + 38.0), 13.0, &middle, name);
        let name = match self.scale {
            Scale::LogFailure => "failure probability",
            Scale::Availability => "availability",
        };
        svg.text_upwards((14.0, centre.1), 13.0, name);
    }

    /// The numbers along the height.
    fn levels(&self) -> Vec<f64> {
        match self.scale {
            Scale::LogFailure => {
                let decades = self.floor.log10().round() as i32;
                (decades..=0).map(|power| 10f64.powi(power)).collect()
            }
            Scale::Availability => even_steps(self.floor, self.top, 10),
        }
    }

    /// The numbers along p.
    fn steps(&self) -> Vec<f64> {
        if !self.log_p {
            return even_steps(self.from, self.to, 10);
        }
        let first = self.from.log10().floor() as i32;
        let last = self.to.log10().ceil() as i32;
        let few = last - first <= 3;
        let all = (first..=last).flat_map(|power| {
            let leads: &[f64] = if few { &[1.0, 2.0, 5.0] } else { &[1.0] };
            leads.iter().map(move |lead| lead * 10f64.powi(power))
        });
        let inside = self.from * (1.0 - 1e-9)..=self.to * (1.0 + 1e-9);
        all.filter(|p| inside.contains(p)).collect()
    }

    /// The line of a single node.
    fn alone(&self, sheet: &mut Sheet) {
        let attributes =
            format!(r#"fill="none" stroke="{GREY}" stroke-width="1.5" stroke-dasharray="2 4""#);
        let steps = 100;
        let points: Vec<Point> = (0..=steps)
            .map(|step| {
                let share = f64::from(step) / f64::from(steps);
                let p = if self.log_p {
                    self.from * (self.to / self.from).powf(share)
                } else {
                    self.from + share * (self.to - self.from)
                };
                (p, self.y(p))
            })
            .filter(|(p, _)| !self.is_below(*p))
            .map(|(p, y)| (self.x(p), y))
            .collect();
        sheet
            .body
            .polyline(&points, &format!(r#"class="alone" {attributes}"#));
        let entry = Entry::line(&attributes, "one node alone");
        sheet.legend.push(entry);
    }

    /// Draws a curve; tells whether a value lies below the axis.
    fn series(&self, sheet: &mut Sheet, place: usize, series: &Series) -> bool {
        let colour = palette::series(place);
        let points: Vec<&CurvePoint> = series
            .points
            .iter()
            .filter(|point| point.is_usable(self.log_p))
            .collect();
        if !series.exact {
            let lows = points
                .iter()
                .map(|point| (self.x(point.p), self.y(point.low)));
            let highs = points
                .iter()
                .map(|point| (self.x(point.p), self.y(point.high)));
            let band: Vec<Point> = lows.chain(highs.rev()).collect();
            let attributes = format!(r#"class="band" fill="{colour}" fill-opacity="0.2""#);
            sheet.body.polygon(&band, &attributes);
        }
        let dash = if series.exact {
            ""
        } else {
            r#" stroke-dasharray="7 4""#
        };
        let attributes = format!(r#"fill="none" stroke="{colour}" stroke-width="2"{dash}"#);
        let line: Vec<Point> = points
            .iter()
            .map(|point| (self.x(point.p), self.y(point.value)))
            .collect();
        // A simulation that saw no failure says nothing about the way down to the axis.
        let solid = points.iter().zip(&line);
        let solid = solid.filter(|(point, _)| series.exact || !self.is_below(point.value));
        let solid: Vec<Point> = solid.map(|(_, at)| *at).collect();
        let class = format!(r#"class="curve" {attributes}"#);
        sheet.body.polyline(&solid, &class);
        let mut clipped = false;
        let every = points.len().div_ceil(40).max(1);
        for (index, (point, at)) in points.iter().zip(&line).enumerate() {
            if self.is_below(point.value) {
                clipped = true;
                let attributes = format!(r#"class="clipped" fill="{colour}""#);
                triangle(&mut sheet.body, (at.0, at.1 - 5.0), 5.0, &attributes);
            } else if index % every == 0 {
                marker(&mut sheet.body, place, *at, colour);
            }
        }
        let mut sample = Svg::new();
        let (w, h) = SAMPLE;
        sample.line((0.0, h / 2.0), (w, h / 2.0), &attributes);
        marker(&mut sample, place, (w / 2.0, h / 2.0), colour);
        let about = if series.exact {
            ""
        } else {
            " (simulated, with its confidence band)"
        };
        let text = format!("{}{about}", series.name);
        sheet.legend.push(Entry::new(sample, text));
        clipped
    }
}

impl CurvePoint {
    fn is_usable(&self, log_p: bool) -> bool {
        let least = if log_p { f64::MIN_POSITIVE } else { 0.0 };
        (least..=1.0).contains(&self.p)
            && [self.low, self.value, self.high]
                .iter()
                .all(|value| value.is_finite())
    }
}

/// A mark of the series at this place: shapes and colours repeat after different counts.
pub(super) fn marker(svg: &mut Svg, place: usize, at: Point, colour: &str) {
    let attributes = format!(r##"fill="{colour}" stroke="#ffffff" stroke-width="0.8""##);
    let r = 4.0;
    match place % 4 {
        0 => svg.circle(at, r, &attributes),
        1 => svg.rect(at, (2.0 * r - 1.0, 2.0 * r - 1.0), 0.0, &attributes),
        2 => {
            let points = [
                (at.0, at.1 - r - 1.0),
                (at.0 + r, at.1 + r - 1.0),
                (at.0 - r, at.1 + r - 1.0),
            ];
            svg.polygon(&points, &attributes);
        }
        _ => {
            let r = r + 1.0;
            let points = [
                (at.0, at.1 - r),
                (at.0 + r, at.1),
                (at.0, at.1 + r),
                (at.0 - r, at.1),
            ];
            svg.polygon(&points, &attributes);
        }
    }
}

/// A triangle that points down.
fn triangle(svg: &mut Svg, at: Point, r: f64, attributes: &str) {
    let points = [(at.0 - r, at.1 - r), (at.0 + r, at.1 - r), (at.0, at.1 + r)];
    svg.polygon(&points, attributes);
}

/// Round numbers from `from` to `to`, at most about `count` of them.
pub(super) fn even_steps(from: f64, to: f64, count: usize) -> Vec<f64> {
    let rough = (to - from) / count as f64;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|lead| lead * power)
        .find(|step| *step >= rough * (1.0 - 1e-9))
        .unwrap_or(rough);
    if !step.is_finite() || step <= 0.0 {
        return vec![from];
    }
    let first = (from / step - 1e-9).ceil();
    (0..=count + 1)
        .map(|index| (first + index as f64) * step)
        .take_while(|value| *value <= to + step * 1e-6)
        .collect()
}

/// A number as people write it: decimals down to a thousandth, then powers of ten.
pub(super) fn number(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    if value.abs() < 0.000_999 {
        return format!("{value:.0e}");
    }
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_round_numbers() {
        let close = |steps: Vec<f64>, wanted: &[f64]| {
            assert_eq!(steps.len(), wanted.len(), "{steps:?}");
            for (a, b) in steps.iter().zip(wanted) {
                assert!((a - b).abs() < 1e-9, "{steps:?}");
            }
        };
        close(
            even_steps(0.0, 0.5, 10),
            &[0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5],
        );
        close(even_steps(0.0, 1.0, 4), &[0.0, 0.5, 1.0]);
        close(even_steps(0.0, 0.0, 4), &[0.0]);
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!(number(1.0), "1");
        assert_eq!(number(0.001), "0.001");
        assert_eq!(number(1e-4), "1e-4");
        assert_eq!(number(0.15), "0.15");
        assert_eq!(number(0.0), "0");
    }
}
