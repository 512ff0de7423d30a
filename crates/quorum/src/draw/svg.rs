//! A small writer of SVG elements.
//!
//! Attributes are written by this module's callers from constants and numbers; only text content
//! can come from people, and it is escaped here.

use std::fmt::Write as _;

/// A place on the picture, x to the right and y down.
pub(super) type Point = (f64, f64);

/// SVG elements, one after the other.
#[derive(Clone, Debug, Default)]
pub(super) struct Svg(String);

impl Svg {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// A rectangle around `centre`; `round` is the radius of its corners.
    pub(super) fn rect(&mut self, centre: Point, size: Point, round: f64, attributes: &str) {
        self.open_rect(centre, size, round, attributes);
        self.0.push_str("/>\n");
    }

    /// A rectangle that shows `hover` while the pointer rests on it.
    pub(super) fn rect_with_hover(
        &mut self,
        centre: Point,
        size: Point,
        round: f64,
        attributes: &str,
        hover: &str,
    ) {
        self.open_rect(centre, size, round, attributes);
        let _ = writeln!(self.0, "><title>{}</title></rect>", escape(hover));
    }

    fn open_rect(&mut self, centre: Point, size: Point, round: f64, attributes: &str) {
        let _ = write!(
            self.0,
            r#"<rect x="{}" y="{}" width="{}" height="{}""#,
            num(centre.0 - size.0 / 2.0),
            num(centre.1 - size.1 / 2.0),
            num(size.0),
            num(size.1),
        );
        if round > 0.0 {
            let _ = write!(self.0, r#" rx="{}""#, num(round));
        }
        let _ = write!(self.0, " {attributes}");
    }

    pub(super) fn circle(&mut self, centre: Point, radius: f64, attributes: &str) {
        let _ = writeln!(
            self.0,
            r#"<circle cx="{}" cy="{}" r="{}" {attributes}/>"#,
            num(centre.0),
            num(centre.1),
            num(radius),
        );
    }

    pub(super) fn line(&mut self, from: Point, to: Point, attributes: &str) {
        let _ = writeln!(
            self.0,
            r#"<line x1="{}" y1="{}" x2="{}" y2="{}" {attributes}/>"#,
            num(from.0),
            num(from.1),
            num(to.0),
            num(to.1),
        );
    }

    /// An open line through the points.
    pub(super) fn polyline(&mut self, points: &[Point], attributes: &str) {
        self.points("polyline", points, attributes);
    }

    /// A closed area.
    pub(super) fn polygon(&mut self, points: &[Point], attributes: &str) {
        self.points("polygon", points, attributes);
    }

    fn points(&mut self, element: &str, points: &[Point], attributes: &str) {
        let _ = write!(self.0, r#"<{element} points=""#);
        for (place, (x, y)) in points.iter().enumerate() {
            let gap = if place == 0 { "" } else { " " };
            let _ = write!(self.0, "{gap}{},{}", num(*x), num(*y));
        }
        let _ = writeln!(self.0, r#"" {attributes}/>"#);
    }

    /// Two strokes from corner to corner of the box around `centre`.
    pub(super) fn cross(&mut self, centre: Point, size: Point, attributes: &str) {
        let (left, right) = (centre.0 - size.0 / 2.0, centre.0 + size.0 / 2.0);
        let (top, bottom) = (centre.1 - size.1 / 2.0, centre.1 + size.1 / 2.0);
        let _ = writeln!(
            self.0,
            r#"<path d="M{} {}L{} {}M{} {}L{} {}" {attributes}/>"#,
            num(left),
            num(top),
            num(right),
            num(bottom),
            num(left),
            num(bottom),
            num(right),
            num(top),
        );
    }

    /// Text whose middle is at the height of `at`; `attributes` say where it begins.
    pub(super) fn text(&mut self, at: Point, size: f64, attributes: &str, content: &str) {
        let _ = writeln!(
            self.0,
            r#"<text x="{}" y="{}" font-size="{}" {attributes}>{}</text>"#,
            num(at.0),
            num(at.1 + 0.36 * size),
            num(size),
            escape(content),
        );
    }

    /// Text turned to run upwards, its middle at `at`.
    pub(super) fn text_upwards(&mut self, at: Point, size: f64, content: &str) {
        let (x, y) = (num(at.0), num(at.1));
        let _ = writeln!(
            self.0,
            "<text x=\"{x}\" y=\"{y}\" font-size=\"{}\" text-anchor=\"middle\" \
             transform=\"rotate(-90 {x} {y})\">{}</text>",
            num(size),
            escape(content),
        );
    }

    /// Puts other elements here, moved by `by`.
    pub(super) fn put(&mut self, by: Point, inner: &Self) {
        let _ = write!(
            self.0,
            "<g transform=\"translate({} {})\">\n{}</g>\n",
            num(by.0),
            num(by.1),
            inner.0,
        );
    }

    /// The whole picture: a white sheet of this size with the elements on it.
    pub(super) fn document(&self, width: f64, height: f64) -> String {
        let (w, h) = (num(width.ceil()), num(height.ceil()));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w}\" height=\"{h}\" \
             viewBox=\"0 0 {w} {h}\" font-family=\"sans-serif\">\n\
             <rect width=\"{w}\" height=\"{h}\" fill=\"#ffffff\"/>\n{}</svg>\n",
            self.0
        )
    }
}

/// A number with at most two decimals. What is no number becomes 0, so that a picture is always
/// well formed.
pub(super) fn num(value: f64) -> String {
    if !value.is_finite() {
        return "0".to_owned();
    }
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0" } else { text }.to_owned()
}

/// Text as XML content. Characters that XML cannot hold become question marks.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\u{fffe}' | '\u{ffff}' => escaped.push('?'),
            _ if character.is_control() => escaped.push('?'),
            _ => escaped.push(character),
        }
    }
    escaped
}

/// About how wide a text is: fonts differ, so this errs on the wide side.
pub(super) fn text_width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * 0.6
}

/// The text, cut with three dots at its end if it is wider than `width`.
pub(super) fn fit(text: &str, width: f64, size: f64) -> String {
    if text_width(text, size) <= width {
        return text.to_owned();
    }
    let room = (width / (size * 0.6)) as usize;
    let kept: String = text.chars().take(room.saturating_sub(3)).collect();
    format!("{}...", kept.trim_end_matches([' ', ',']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!(num(3.0), "3");
        assert_eq!(num(-0.001), "0");
        assert_eq!(num(2.5), "2.5");
        assert_eq!(num(1.0 / 3.0), "0.33");
        assert_eq!(num(f64::NAN), "0");
        assert_eq!(num(100.0), "100");
    }

    #[test]
    fn hostile_text_is_escaped() {
        assert_eq!(escape(r#"<a&"b'>"#), "&lt;a&amp;&quot;b&#39;&gt;");
        assert_eq!(escape("a\u{1b}[0m\0"), "a?[0m?");
    }

    #[test]
    fn long_text_is_cut() {
        assert_eq!(fit("short", 100.0, 10.0), "short");
        assert_eq!(fit("1, 2, 3, 4, 5, 6", 60.0, 10.0), "1, 2, 3...");
        assert_eq!(fit("abcdef", 1.0, 10.0), "...");
    }
}
