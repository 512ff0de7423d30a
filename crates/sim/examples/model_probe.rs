//! probe
use conclave_protocol::lock::Plant;
use conclave_sim::model::*;
fn main() {
    let mut o = ModelOptions::default();
    for arg in std::env::args().skip(1) {
        let (k, v) = arg.split_once('=').unwrap();
        match k {
            "system" => o.system = v.into(),
            "req" => o.requesters = v.parse().unwrap(),
            "groups" => o.groups = v.parse().unwrap(),
            "inside" => o.max_inside = v.parse().unwrap(),
            "bypass" => o.max_bypass = v.parse().unwrap(),
            "entries" => o.entries = v.parse().unwrap(),
            "cancels" => o.cancels = v.parse().unwrap(),
            "expiries" => o.expiries = v.parse().unwrap(),
            "crashes" => o.crashes = v.parse().unwrap(),
            "max" => o.states_max = v.parse().unwrap(),
            "spread" => o.spread = v == "1",
            "notes" => o.notes = v == "1",
            "plant" => o.plant = Some(Plant::named(v).unwrap()),
            "serial" => o.protocol = conclave_protocol::lock::Protocol::Serial,
            _ => panic!("{k}"),
        }
    }
    let t = std::time::Instant::now();
    let r = check(&o, &mut |p| eprintln!("{p:?}")).unwrap();
    println!(
        "states {} transitions {} exhausted {} depth {} in {:?}",
        r.states,
        r.transitions,
        r.exhausted,
        r.depth,
        t.elapsed()
    );
    for v in &r.violations {
        println!("{}: {}\n  {}", v.property, v.what, v.trace.join("\n  "));
    }
}
