//! Waits for leases are what they were measured to be elsewhere.

use conclave_sim::lease::response::{Style, burst, load, styles};

fn style(name: &str) -> Style {
    let mut styles = styles().into_iter();
    styles.find(|style| style.name == name).expect("a style")
}

/// For 1, 2, 4 and 16 clients that come at once: their mean wait over span and number.
const MEANS: [(&str, [f64; 4]); 4] = [
    ("exponential", [0.13, 1.35, 1.68, 1.57]),
    ("quadratic", [0.13, 1.88, 1.91, 1.42]),
    ("exponential, release", [0.13, 1.36, 1.62, 1.30]),
    ("power 1.5, release", [0.13, 1.56, 1.54, 1.08]),
];

#[test]
fn waits_in_bursts_are_as_measured() {
    for (name, means) in MEANS {
        for ((clients, runs), mean) in [(1, 200), (2, 600), (4, 400), (16, 60)]
            .into_iter()
            .zip(means)
        {
            let found = burst(style(name), clients, runs, 1).mean;
            let off = (found / mean - 1.0).abs();
            assert!(
                off < 0.15,
                "{name}, {clients} clients: {found:.2} for {mean}"
            );
        }
    }
}

#[test]
fn growth_that_is_too_slow_costs_attempts() {
    let linear = burst(style("linear"), 64, 6, 1);
    let power = burst(style("power 1.5, release"), 64, 6, 1);
    assert!(linear.mean > 1.5 * power.mean, "{linear:?} {power:?}");
    assert!(
        linear.attempts > 1.5 * power.attempts,
        "{linear:?} {power:?}"
    );
}

#[test]
fn under_steady_load_most_get_their_lease_at_once() {
    let found = load(style("as the service does"), 0.2, 1000, 1, 1);
    assert!(found.median < 0.2 && found.mean < 1.0, "{found:?}");
}
