//! Speed of the library: measures of large systems, and the two calls that protocols make.
//!
//! Run with `cargo bench -p conclave-quorum`.

#![allow(
    missing_docs,
    reason = "the macros of the harness make undocumented items"
)]
#![allow(
    clippy::unwrap_used,
    reason = "a benchmark that cannot go on should stop"
)]

use std::hint::black_box;
use std::time::Duration;

use conclave_quorum::build::{Built, build};
use conclave_quorum::measure::failure::{FailureOptions, Faults, failure};
use conclave_quorum::measure::load::load;
use conclave_quorum::measure::quiet;
use conclave_quorum::{NodeSet, Prng, pick, text};
use criterion::{Criterion, criterion_group, criterion_main};

fn system(text: &str) -> Built {
    let read = |_: &str| Err("no files".to_owned());
    build(&text::parse(text).unwrap(), None, &read).unwrap()
}

fn measures(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("load with certificate");
    group
        .sample_size(10)
        .measurement_time(Duration::from_secs(2));
    for text in [
        "majority(1001)",
        "grid(1024)",
        "tree(1023)",
        "triangular(1035)",
        "plane(993)",
        "multilevel(tree, 1200, levels=1)",
        "multilevel(tree, 1200, levels=2)",
        "billiard(1104)",
    ] {
        let built = system(text);
        let family = built.system.families()[0].clone();
        group.bench_function(text, |bench| {
            bench.iter(|| black_box(load(family.as_ref(), None, &mut quiet)));
        });
    }
    group.finish();
    let mut group = criterion.benchmark_group("exact failure probability");
    group
        .sample_size(10)
        .measurement_time(Duration::from_secs(2));
    for text in [
        "majority(1001)",
        "grid(1024)",
        "tree(1023)",
        "triangular(1035)",
        "multilevel(tree, 1200, levels=2)",
        "billiard(24)",
        "plane(31)",
    ] {
        let built = system(text);
        let family = built.system.families()[0].clone();
        let faults = Faults::uniform(family.nodes(), 0.05).unwrap();
        let options = FailureOptions::default();
        group.bench_function(text, |bench| {
            bench.iter(|| failure(family.as_ref(), &faults, &options, &mut quiet).unwrap());
        });
    }
    group.finish();
}

fn protocol_calls(criterion: &mut Criterion) {
    for (name, share) in [("pick, all up", 0.0), ("pick, 20 % to avoid", 0.2)] {
        let mut group = criterion.benchmark_group(name);
        group
            .sample_size(20)
            .measurement_time(Duration::from_secs(1));
        for text in [
            "billiard(40)",
            "billiard(480)",
            "grid(484)",
            "tree(511)",
            "majority(501)",
        ] {
            let built = system(text);
            let family = built.system.families()[0].clone();
            let mut prng = Prng::new(1);
            let n = family.nodes();
            let avoid = NodeSet::of(n, (0..n).filter(|_| prng.chance(share)));
            group.bench_function(text, |bench| {
                bench.iter(|| pick(family.as_ref(), black_box(&avoid), None, &mut prng));
            });
        }
        group.finish();
    }
    let mut group = criterion.benchmark_group("contains a quorum, 20 % down");
    group
        .sample_size(20)
        .measurement_time(Duration::from_secs(1));
    for text in [
        "billiard(40)",
        "billiard(480)",
        "grid(484)",
        "tree(511)",
        "majority(501)",
    ] {
        let built = system(text);
        let family = built.system.families()[0].clone();
        let mut prng = Prng::new(1);
        let n = family.nodes();
        let live = NodeSet::of(n, (0..n).filter(|_| prng.chance(0.8)));
        group.bench_function(text, |bench| {
            bench.iter(|| family.contains_quorum(black_box(&live)));
        });
    }
    group.finish();
}

fn node_sets(criterion: &mut Criterion) {
    let mut prng = Prng::new(1);
    let mut random = || NodeSet::of(1000, (0..1000).filter(|_| prng.chance(0.5)));
    let (a, b) = (random(), random());
    let mut group = criterion.benchmark_group("sets of 1000 nodes");
    group
        .sample_size(20)
        .measurement_time(Duration::from_secs(1));
    group.bench_function("intersects", |bench| {
        bench.iter(|| black_box(&a).intersects(&b));
    });
    group.bench_function("union", |bench| bench.iter(|| black_box(&a).union(&b)));
    group.finish();
}

criterion_group!(benches, measures, protocol_calls, node_sets);
criterion_main!(benches);
