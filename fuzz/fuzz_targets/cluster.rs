//! A cluster file, as TOML and as the JSON that a node tells.
#![no_main]

use conclave_wire::Cluster;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = str::from_utf8(bytes) else {
        return;
    };
    if let Ok(cluster) = Cluster::parse(text) {
        assert_eq!(Cluster::parse(&cluster.to_toml()), Ok(cluster.clone()));
        let json = serde_json::to_string(&cluster).expect("a cluster can be told");
        let told: Cluster = serde_json::from_str(&json).expect("what was told is understood");
        assert_eq!(told.digest(), cluster.digest());
        assert_eq!(told, cluster);
    }
    if let Ok(cluster) = serde_json::from_str::<Cluster>(text) {
        let _ = (cluster.facts(), cluster.to_toml());
        if cluster.check().is_ok() {
            assert_eq!(Cluster::parse(&cluster.to_toml()), Ok(cluster));
        }
    }
});
