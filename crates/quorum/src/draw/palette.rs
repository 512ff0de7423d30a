//! Colours: those of Okabe and Ito, which colour-blind people can tell apart.

/// A quorum.
pub(super) const FIRST: &str = "#56b4e9";
/// The lines of a quorum.
pub(super) const FIRST_DARK: &str = "#0072b2";
/// Another quorum.
pub(super) const SECOND: &str = "#e69f00";
/// Where the two meet.
pub(super) const BOTH: &str = "#009e73";
/// The border of the site whose quorum is shown.
pub(super) const OWNER: &str = "#000000";
/// The same in a heat map, where black would not show.
pub(super) const OWNER_HOT: &str = "#cc79a7";
/// Down: a darker vermilion, which shows on orange too.
pub(super) const DEAD: &str = "#9e2a00";
/// The ground of a node that is down and in no quorum shown.
pub(super) const DOWN: &str = "#e0e0e0";
/// A node of no quorum shown.
pub(super) const PLAIN: &str = "#f4f4f4";
/// Borders.
pub(super) const EDGE: &str = "#8a8a8a";
/// Frames and faint lines.
pub(super) const FAINT: &str = "#c4c4c4";
/// Text.
pub(super) const INK: &str = "#1a1a1a";
/// Text of lesser weight.
pub(super) const GREY: &str = "#5a5a5a";

/// The colour of the series, cartel or line at this place.
pub(super) fn series(place: usize) -> &'static str {
    SERIES[place % SERIES.len()]
}

/// The colour of a share from 0 to 1 of the largest load, as `#rrggbb`, and that of text on it.
pub(super) fn heat(share: f64) -> (String, &'static str) {
    let share = if share.is_finite() {
        share.clamp(0.0, 1.0)
    } else {
        0.0
    };
    let place = share * (HEAT.len() - 1) as f64;
    let low = (place as usize).min(HEAT.len() - 2);
    let part = place - low as f64;
    let mix = |channel: usize| {
        let (a, b) = (HEAT[low][channel], HEAT[low + 1][channel]);
        (a + part * (b - a)).round() as u8
    };
    let (red, green, blue) = (mix(0), mix(1), mix(2));
    let light = 0.299 * f64::from(red) + 0.587 * f64::from(green) + 0.114 * f64::from(blue);
    let ink = if light < 140.0 { "#ffffff" } else { INK };
    (format!("#{red:02x}{green:02x}{blue:02x}"), ink)
}

const SERIES: [&str; 7] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000",
];

/// Light to dark, in equal steps of lightness.
const HEAT: [[f64; 3]; 5] = [
    [255.0, 255.0, 229.0],
    [199.0, 233.0, 180.0],
    [65.0, 182.0, 196.0],
    [34.0, 94.0, 168.0],
    [8.0, 29.0, 88.0],
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heat_runs_from_light_to_dark() {
        assert_eq!(heat(0.0), ("#ffffe5".to_owned(), INK));
        assert_eq!(heat(1.0), ("#081d58".to_owned(), "#ffffff"));
        assert_eq!(heat(7.0), heat(1.0));
        assert_eq!(heat(f64::NAN), heat(0.0));
    }
}
