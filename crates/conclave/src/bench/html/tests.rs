use serde_json::json;

use super::*;

/// Systems, with cycles a second of 64 clients, a gap and a time.
const SAMPLE: [(&str, f64, f64, f64); 6] = [
    ("conclave", 48_000.0, 15.0, 140.0),
    ("conclave-durable", 22_000.0, 21.0, 2_100.0),
    ("etcd", 1_310.0, 1_930.0, 3_900.0),
    ("zookeeper", 1_790.0, 2_400.0, 2_700.0),
    ("redis", 43_000.0, 0.0, 61.0),
    ("redlock", 5_100.0, 9.0, 290.0),
];

fn row(system: &str, load: &str, clients: u64, speed: f64, gap: f64, time: f64) -> Value {
    let quantiles = [
        0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 1.0,
    ];
    let points = quantiles.map(|share: f64| {
        let nines = -(1.0 - share.min(0.9999)).log10();
        json!([share, time * (0.7 + 0.9 * nines)])
    });
    json!({
        "system": system, "load": load, "clients": clients, "cycles_per_s": speed,
        "p50_us": time, "p99_us": 2.5 * time, "p999_us": 4.0 * time, "gap_ms": gap,
        "cpu_s_per_1000": 1_500.0 / speed / 10.0, "rss_mb": 68.4, "net_bytes_per_cycle": 900.0,
        "fsyncs_per_cycle": if system.contains("durable") { json!(0.6) } else { json!(null) },
        "errors": 0, "violations": 0, "rounds": 3,
        "spread": {"cycles_per_s": [speed * 0.9, speed * 1.1]},
        "latency_us": points,
    })
}

/// A whole result, as a run prints it.
fn sample() -> Value {
    let mut rows = vec![row("echo", "echo", 1, 10_000.0, 4.0, 95.0)];
    for (system, speed, gap, time) in SAMPLE {
        for clients in [1, 16, 64, 256_u64] {
            let crowd = clients as f64;
            let share = (crowd / 64.0).powf(0.5).min(1.15);
            let wait = time * (1.0 + crowd / 8.0);
            rows.push(row(
                system,
                "uncontended",
                clients,
                speed * share,
                4.0,
                wait,
            ));
            let hot = speed * if clients == 1 { 0.2 } else { 0.1 };
            rows.push(row(system, "hot", clients, hot, 8.0, wait * 9.0));
            if !system.starts_with("red") {
                rows.push(row(system, "mix", clients, speed * share * 0.7, 4.0, wait));
            }
        }
        rows.push(row(system, "kill", 64, speed * 0.8, gap, time));
        rows.push(row(system, "stop", 64, speed * 0.7, gap * 1.5, time));
    }
    json!({
        "machine": {"cores": 2, "cpu": "AMD <EPYC>", "memory_gb": 23.4, "kernel": "6.1",
            "fsync_us": {"p50": 900.0, "p99": 4100.0}},
        "command": "conclave bench --against etcd,zookeeper,redis,redlock --html out.html",
        "seconds": 10, "rounds": 3, "nodes": 5,
        "skipped": [{"system": "etcd", "why": "not installed: run bench/peers.sh"}],
        "impossible": [{"system": "redis", "load": "mix", "why": "it has no shared locks"}],
        "rows": rows,
        "targets": [
            {"what": "uncontended cycles/s, 64 clients", "against": "etcd",
             "wanted": "at least 30 x", "ratio": 36.6, "met": true},
            {"what": "longest pause, a node killed", "against": "etcd",
             "wanted": "at most 1/50", "ratio": 0.0078, "met": true},
            {"what": "hot lock, handovers/s, 64 clients", "against": "etcd",
             "wanted": "at least 30 x", "ratio": 22.1, "met": false},
        ],
    })
}

#[test]
fn a_page_tells_everything_of_a_result() {
    let page = page(&sample());
    assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
    for text in [
        "AMD &lt;EPYC&gt;",
        "--against etcd,zookeeper",
        "not installed: run bench/peers.sh",
        "<b>one Redis</b>, mix: it has no shared locks",
        "not met: 1",
        "<td>48,000</td>",
        "<td>37 ×</td>",
        "1/128",
        "Redlock (not measured)",
        "<h3>A node is stopped</h3>",
        "99.9 %",
    ] {
        assert!(page.contains(text), "{text}");
    }
    assert!(!page.contains("NaN") && !page.contains("<script") && !page.contains("src="));
}

#[test]
fn pictures_have_names_of_their_own() {
    let plots = plots(&sample());
    let names: Vec<&str> = plots.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "throughput-uncontended",
            "throughput-hot",
            "throughput-mix",
            "gap-kill",
            "gap-stop",
            "latency-1",
            "latency-64"
        ]
    );
    for (name, svg) in &plots {
        assert!(svg.starts_with("<svg") && !svg.contains("NaN"), "{name}");
    }
    // The echo is shown beside a client alone and nowhere else.
    assert!(plots[5].1.contains("bare echo") && !plots[6].1.contains("bare echo"));
}

#[test]
fn a_broken_promise_stands_out() {
    let mut result = sample();
    result["rows"][1]["violations"] = json!(3);
    result["rows"][1]["error"] = json!("a <b> c");
    assert!(page(&result).contains("a &lt;b&gt; c"));
    assert!(page(&result).contains("<span class=\"badge not-held\">3</span>"));
    assert!(!page(&sample()).contains("<span class=\"badge not-held\">3</span>"));
}

#[test]
fn odd_results_are_still_pages() {
    let bare = json!({"system": "etcd", "load": "hot"});
    let odd = json!({"system": "conclave", "load": "uncontended", "clients": -4,
        "cycles_per_s": "many", "p50_us": null, "latency_us": [[0.5], "x", [0.9, 3.0], [2.0, -1]],
        "spread": [1, 2]});
    let zero = json!({"system": "new", "load": "other", "clients": 64, "cycles_per_s": 0,
        "gap_ms": 1e300, "latency_us": {}});
    for result in [
        json!(null),
        json!({}),
        json!({"rows": 7, "targets": [3], "skipped": "x", "machine": []}),
        json!({"rows": [null, 3, {}, bare, odd, zero], "targets": [{}], "impossible": [{}]}),
        json!({"rows": [{"system": "etcd", "load": "kill", "gap_ms": 0}]}),
    ] {
        let page = page(&result);
        assert!(page.contains("<h1>") && !page.contains("NaN"), "{result}");
        let _ = plots(&result);
    }
}

#[test]
fn a_page_is_written_with_its_pictures_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("out.html");
    write(&file, &sample()).unwrap_or_else(|_| panic!("the folder is there"));
    assert_eq!(fs::read_to_string(&file).unwrap(), page(&sample()));
    let svg = fs::read_to_string(folder.path().join("out-latency-64.svg"));
    assert!(svg.unwrap().starts_with("<svg"));
    let nowhere = folder.path().join("none").join("out.html");
    assert!(matches!(write(&nowhere, &sample()), Err(Failure::Input(_))));
}
