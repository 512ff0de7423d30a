//! The picture of a run, or of several side by side.

use conclave_quorum::draw::{Bar, Chart, Panel, Trace, panels};

use super::run::Measured;

/// More points than this are thinned out.
const POINTS_MAX: usize = 1200;

/// Draws what was measured.
pub(super) fn picture(title: &str, all: &[Measured]) -> String {
    let mut shown = Vec::new();
    shown.extend(inside(all));
    shown.extend(waiting(all));
    if let [one] = all {
        shown.push(load(one));
    } else {
        shown.push(bars(
            all,
            "Entries per second of virtual time",
            "entries/s",
            Measured::throughput,
        ));
        shown.push(bars(all, "Mean waiting time", "ms", |one| {
            one.measures.wait.mean
        }));
        shown.push(bars(all, "Messages per entry", "messages", |one| {
            one.measures.messages_per_entry
        }));
    }
    let names: Vec<String> = all.iter().map(|one| one.subject.to_string()).collect();
    let lines = [format!("{}; virtual time.", names.join(", "))];
    panels(title, &lines, &shown)
}

/// How many were inside over time: the mean of each slice of time.
fn inside(all: &[Measured]) -> Option<Panel> {
    let traces = all.iter().filter_map(|one| {
        let history = one.history.as_ref()?.borrow();
        Some(Trace {
            name: one.subject.to_string(),
            points: thinned(&history.inside),
        })
    });
    let traces: Vec<Trace> = traces.collect();
    let heal = all
        .iter()
        .find_map(|one| one.history.as_ref()?.borrow().healed);
    let until = heal.map_or(String::new(), |heal| {
        format!("; clients stop asking at {heal:.1} s")
    });
    (!traces.is_empty()).then(|| Panel {
        title: format!("Inside at once{until}"),
        across: "seconds".to_owned(),
        up: "holders".to_owned(),
        chart: Chart::Steps(traces),
    })
}

/// Keeps steps as they are if they are few, else averages them over slices of time.
fn thinned(steps: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let Some((end, _)) = steps.last().copied() else {
        return Vec::new();
    };
    if steps.len() <= POINTS_MAX || end <= 0.0 {
        return steps.to_vec();
    }
    let slice = end / 300.0;
    let mut area = vec![0.0; 301];
    for pair in steps.windows(2) {
        let ((mut from, value), (to, _)) = (pair[0], pair[1]);
        while from < to {
            let place = (from / slice + 1e-9).floor();
            let next = ((place + 1.0) * slice).min(to);
            if next <= from {
                break;
            }
            area[(place as usize).min(300)] += value * (next - from);
            from = next;
        }
    }
    let points = area.iter().take(300).enumerate();
    points
        .map(|(place, area)| (place as f64 * slice, area / slice))
        .collect()
}

/// The share of entries that waited at most so long.
fn waiting(all: &[Measured]) -> Option<Panel> {
    let traces = all.iter().filter_map(|one| {
        let history = one.history.as_ref()?.borrow();
        let mut waits = history.waits.clone();
        waits.sort_by(f64::total_cmp);
        let count = waits.len();
        let step = count.div_ceil(POINTS_MAX).max(1);
        let points = waits.iter().enumerate().step_by(step);
        let share = |place: usize| (place + 1) as f64 / count as f64;
        Some(Trace {
            name: one.subject.to_string(),
            points: points.map(|(place, wait)| (*wait, share(place))).collect(),
        })
    });
    let traces: Vec<Trace> = traces.collect();
    (!traces.is_empty()).then(|| Panel {
        title: "Share of entries that waited at most so long".to_owned(),
        across: "milliseconds".to_owned(),
        up: "share of entries".to_owned(),
        chart: Chart::Lines(traces),
    })
}

fn load(one: &Measured) -> Panel {
    let loads = one.measures.load.iter().enumerate();
    let bars = loads.map(|(node, load)| Bar {
        name: (node + 1).to_string(),
        value: *load,
    });
    let theory = one.theory.clone();
    Panel {
        title: "Share of entries that use a node".to_owned(),
        across: "node".to_owned(),
        up: "load".to_owned(),
        chart: Chart::Bars {
            bars: bars.collect(),
            line: theory
                .map(|loads| ("load under the best strategy, many locks".to_owned(), loads)),
        },
    }
}

fn bars(all: &[Measured], title: &str, unit: &str, value: fn(&Measured) -> f64) -> Panel {
    let bars = all.iter().map(|one| Bar {
        name: one.subject.to_string(),
        value: value(one),
    });
    Panel {
        title: title.to_owned(),
        across: String::new(),
        up: unit.to_owned(),
        chart: Chart::Bars {
            bars: bars.collect(),
            line: None,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinning_keeps_the_mean() {
        let steps: Vec<(f64, f64)> = (0..=6000)
            .map(|step| (f64::from(step) / 1000.0, f64::from(step % 2)))
            .collect();
        let thin = thinned(&steps);
        assert_eq!(thin.len(), 300);
        for (at, value) in thin {
            assert!((value - 0.5).abs() < 1e-6, "{at}: {value}");
        }
        assert_eq!(thinned(&steps[..10]), steps[..10]);
        assert!(thinned(&[]).is_empty());
    }
}
