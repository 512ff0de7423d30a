//! What `deploy/` says is true: its files parse, belong together, and name only what exists.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

#[allow(dead_code, reason = "shared with the tests of the service")]
#[path = "service/cluster.rs"]
mod cluster;
mod common;

use cluster::Cluster;
use common::{conclave, directory, put};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

fn text(file: &str) -> String {
    fs::read_to_string(folder().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn documents(file: &str) -> Vec<Value> {
    let text = text(file);
    serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn word(value: &Value) -> String {
    value.as_str().expect("a word").to_owned()
}

/// Puts a patch over a value, as kustomize does: lists of what has names are merged by name.
fn patched(value: &mut Value, patch: &Value) {
    match (value, patch) {
        (Value::Object(value), Value::Object(patch)) => {
            for (field, patch) in patch {
                patched(value.entry(field).or_insert(Value::Null), patch);
            }
        }
        (Value::Array(value), Value::Array(patch)) => {
            for patch in patch {
                let same = |one: &&mut Value| one["name"] == patch["name"];
                match value.iter_mut().find(same) {
                    Some(one) => patched(one, patch),
                    None => value.push(patch.clone()),
                }
            }
        }
        (value, patch) => *value = patch.clone(),
    }
}

/// The set of a node, as its folder says.
fn node_set(folder: &str) -> Value {
    let own = documents(&format!("kubernetes/{folder}/kustomization.yaml")).remove(0);
    assert_eq!(own["resources"][0], "../../node");
    let common = documents("kubernetes/node/kustomization.yaml").remove(0);
    assert_eq!(common["resources"], serde_json::json!(["statefulset.yaml"]));
    let mut set = documents("kubernetes/node/statefulset.yaml").remove(0);
    for patch in own["patches"].as_array().unwrap() {
        let patch: Value = serde_saphyr::from_str(&word(&patch["patch"])).unwrap();
        assert_eq!(patch["metadata"]["name"], set["metadata"]["name"]);
        patched(&mut set, &patch);
    }
    for labels in own["labels"].as_array().unwrap() {
        assert!(
            labels["includeSelectors"].is_null(),
            "the affinity is of all"
        );
        assert_eq!(labels["includeTemplates"], true);
        patched(&mut set["metadata"]["labels"], &labels["pairs"]);
        patched(
            &mut set["spec"]["template"]["metadata"]["labels"],
            &labels["pairs"],
        );
    }
    let name = word(&set["metadata"]["name"]) + &word(&own["nameSuffix"]);
    set["metadata"]["name"] = name.into();
    set
}

/// The sets of all nodes, in order.
fn node_sets() -> Vec<Value> {
    let sets = objects().into_iter();
    let sets = sets.filter(|((kind, _), _)| kind == "StatefulSet");
    sets.map(|(_, set)| set).collect()
}

/// Everything that Kubernetes is given, by kind and name.
fn objects() -> BTreeMap<(String, String), Value> {
    let kustomization = documents("kubernetes/kustomization.yaml").remove(0);
    let mut all = BTreeMap::new();
    let mut files = 0;
    for file in kustomization["resources"].as_array().unwrap() {
        let file = word(file);
        let found = if file.starts_with("nodes/") {
            vec![node_set(&file)]
        } else {
            files += 1;
            documents(&format!("kubernetes/{file}"))
        };
        for object in found {
            let key = (word(&object["kind"]), word(&object["metadata"]["name"]));
            assert!(object["apiVersion"].is_string(), "{key:?}");
            assert!(all.insert(key, object).is_none(), "{file}: twice");
        }
    }
    let written = |path: &str| fs::read_dir(folder().join(path)).unwrap();
    let yaml = written("kubernetes")
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "yaml"));
    assert_eq!(
        yaml.count(),
        files + 1,
        "a file is not in the kustomization"
    );
    let nodes = all.keys().filter(|(kind, _)| kind == "StatefulSet").count();
    assert_eq!(written("kubernetes/nodes").count(), nodes);
    all
}

fn object(kind: &str, name: &str) -> Value {
    let found = objects().remove(&(kind.to_owned(), name.to_owned()));
    found.unwrap_or_else(|| panic!("no {kind} {name}"))
}

/// Checks that the program takes these arguments: a command and options of it.
fn accepted(arguments: &[String]) {
    let home = directory();
    let command = &arguments[0];
    let help = conclave(home.path(), &[command.as_str(), "--help"]);
    assert_eq!(help.code, Some(0), "'{command}' is no command");
    let known: BTreeSet<&str> = help
        .out
        .split(|letter: char| letter.is_whitespace() || letter == ',')
        .filter(|word| word.starts_with("--"))
        .collect();
    for option in arguments.iter().filter(|word| word.starts_with("--")) {
        assert!(known.contains(option.as_str()), "{command} has no {option}");
    }
}

/// Checks a node file and its cluster file, as node `id`, with a secret and certificates of ours.
fn passes(node: &str, cluster: &str, id: usize) -> Value {
    let home = directory();
    put(home.path(), "node.toml", node);
    put(home.path(), "cluster.toml", cluster);
    put(home.path(), "secret", "0123456789abcdef0123456789abcdef\n");
    let id = id.to_string();
    let run = |words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        let run = conclave(home.path(), &words);
        assert_eq!(run.code, Some(0), "{words:?}: {}", run.err);
        run.out
    };
    let told: toml::Table = cluster.parse().expect("TOML");
    let name = told["name"].as_str().expect("a name");
    run(&format!("certs init --dir tls --cluster {name}"));
    run(&format!(
        "certs node --dir tls --id {id} --host example.org"
    ));
    let files = format!(
        "--secret-file secret --tls-ca tls/ca.pem --tls-cert tls/node-{id}.pem --tls-key \
         tls/node-{id}.key"
    );
    let out = run(&format!("check-config node.toml --id {id} {files} --json"));
    serde_json::from_str(&out).expect("JSON")
}

/// Runs another program if it is installed: whether it ended well, and what it said.
fn tool(name: &str, arguments: &[&str]) -> Option<(bool, String)> {
    let Ok(output) = Command::new(name).args(arguments).output() else {
        eprintln!("skipped: {name} is not installed");
        return None;
    };
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    Some((output.status.success(), said))
}

#[test]
fn the_stateful_sets_fit_the_cluster_file() {
    let files = object("ConfigMap", "conclave");
    let file = |name: &str| files["data"][name].as_str().unwrap().to_owned();
    let cluster: toml::Table = file("cluster.toml").parse().unwrap();
    let nodes = cluster["nodes"].as_array().unwrap();
    let kustomization = documents("kubernetes/kustomization.yaml").remove(0);
    let space = kustomization["namespace"].as_str().unwrap();
    let all = &documents("kubernetes/node/statefulset.yaml")[0]["spec"]["template"]["metadata"];
    let all = &all["labels"];
    let sets = node_sets();
    assert_eq!(sets.len(), nodes.len());
    for (place, (node, set)) in nodes.iter().zip(&sets).enumerate() {
        let spec = &set["spec"];
        assert_eq!(spec["replicas"], 1);
        assert_eq!(spec["serviceName"], "conclave");
        // One set does not wait for the others.
        assert_eq!(spec["updateStrategy"]["type"], "OnDelete");
        let host = format!("{}-0.conclave.{space}.svc", word(&set["metadata"]["name"]));
        assert_eq!(node["peer"].as_str().unwrap(), format!("{host}:7000"));
        let api = node["api"].as_str().unwrap();
        assert_eq!(api, format!("https://{host}:7001"));
        passes(&file("node.toml"), &file("cluster.toml"), place + 1);
        let labels = &spec["template"]["metadata"]["labels"];
        assert_eq!(&spec["selector"]["matchLabels"], labels);
        assert_eq!(labels["conclave-node"], place.to_string());
        let name = "app.kubernetes.io/name";
        assert_eq!(labels[name], all[name]);
    }
    let budget = object("PodDisruptionBudget", "conclave");
    assert_eq!(budget["spec"]["maxUnavailable"], 1);
    assert_eq!(&budget["spec"]["selector"]["matchLabels"], all);
    for name in ["conclave", "conclave-api"] {
        let service = object("Service", name);
        assert_eq!(&service["spec"]["selector"], all);
    }
    let headless = object("Service", "conclave");
    assert_eq!(headless["spec"]["clusterIP"], "None");
    assert_eq!(headless["spec"]["publishNotReadyAddresses"], true);
}

/// The secrets that the pods of a set mount.
fn secrets(set: &Value) -> BTreeSet<String> {
    let volumes = set["spec"]["template"]["spec"]["volumes"]
        .as_array()
        .unwrap();
    assert!(
        volumes.iter().all(|one| one.get("projected").is_none()),
        "secrets by another way"
    );
    let names = volumes
        .iter()
        .filter_map(|one| one["secret"]["secretName"].as_str());
    names.map(str::to_owned).collect()
}

#[test]
fn each_pod_mounts_the_key_of_its_own_node_alone() {
    let mut sets = node_sets();
    let files = folder().join("kubernetes");
    if let Some((ok, said)) = tool("kubectl", &["kustomize", files.to_str().unwrap()]) {
        assert!(ok, "{said}");
        let all: Vec<Value> = serde_saphyr::from_multiple(&said).unwrap();
        let made = all.into_iter().filter(|one| one["kind"] == "StatefulSet");
        sets.extend(made);
    }
    for set in &sets {
        let name = word(&set["metadata"]["name"]);
        let own = BTreeSet::from(["conclave-secret".to_owned(), format!("{name}-tls")]);
        assert_eq!(secrets(set), own);
    }
    // Made by hand or by cert-manager, they have the same names and files.
    let guide = text("kubernetes/README.md");
    assert!(guide.contains("create secret generic conclave-$i-tls"));
    let node = object("ConfigMap", "conclave");
    let node: toml::Table = word(&node["data"]["node.toml"]).parse().unwrap();
    for (setting, file) in [("ca", "ca.crt"), ("cert", "tls.crt"), ("key", "tls.key")] {
        assert!(guide.contains(&format!("--from-file={file}=")), "{file}");
        let path = node["tls"][setting].as_str().unwrap();
        assert_eq!(path, format!("/run/conclave/tls/{file}"));
    }
}

#[test]
fn the_certificates_of_cert_manager_let_nodes_serve() {
    let listed = documents("kubernetes/cert-manager/kustomization.yaml").remove(0);
    let listed = listed["resources"].as_array().unwrap().iter();
    let all = listed.flat_map(|file| documents(&format!("kubernetes/cert-manager/{}", word(file))));
    let (mut issuers, mut certificates) = (BTreeMap::new(), BTreeMap::new());
    for one in all {
        let name = word(&one["metadata"]["name"]);
        match one["kind"].as_str() {
            Some("Issuer") => issuers.insert(name, one),
            Some("Certificate") => certificates.insert(name, one),
            other => panic!("{other:?}"),
        };
    }
    let authority = certificates.remove("conclave-ca").unwrap();
    assert_eq!(authority["spec"]["isCA"], true);
    let issuer = &issuers["conclave"]["spec"]["ca"]["secretName"];
    assert_eq!(issuer, &authority["spec"]["secretName"]);
    let files = object("ConfigMap", "conclave");
    let cluster: toml::Table = word(&files["data"]["cluster.toml"]).parse().unwrap();
    let nodes = cluster["nodes"].as_array().unwrap();
    assert_eq!(certificates.len(), nodes.len());
    for ((name, one), node) in certificates.iter().zip(nodes) {
        let spec = &one["spec"];
        assert_eq!(spec["secretName"], format!("{name}-tls"));
        assert_eq!(spec["issuerRef"]["name"], "conclave");
        let names = |field: &str| -> Vec<String> {
            spec[field].as_array().unwrap().iter().map(word).collect()
        };
        let host = node["peer"].as_str().unwrap().rsplit_once(':').unwrap().0;
        assert!(names("dnsNames").contains(&host.to_owned()), "{name}");
        let usages = names("usages");
        for usage in ["server auth", "client auth"] {
            assert!(usages.iter().any(|one| one == usage), "{name}: {usage}");
        }
        let id = node["id"].as_integer().unwrap();
        let home = directory();
        issue(home.path(), &names("uris"), &names("dnsNames"));
        for (file, text) in files["data"].as_object().unwrap() {
            put(home.path(), file, word(text));
        }
        put(home.path(), "secret", "0123456789abcdef0123456789abcdef\n");
        let run = format!(
            "check-config node.toml --id {id} --secret-file secret --tls-ca ca.crt --tls-cert \
             tls.crt --tls-key tls.key"
        );
        let words: Vec<&str> = run.split_whitespace().collect();
        let run = conclave(home.path(), &words);
        assert_eq!(run.code, Some(0), "{name}: {}", run.err);
    }
}

/// Writes the files of a secret as cert-manager does: an authority, a certificate and its key.
fn issue(folder: &Path, uris: &[String], hosts: &[String]) {
    use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer};
    use rcgen::{KeyPair, SanType};
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let root = KeyPair::generate().unwrap();
    put(
        folder,
        "ca.crt",
        authority.self_signed(&root).unwrap().pem(),
    );
    let mut node = CertificateParams::new(hosts.to_vec()).unwrap();
    let uri = |uri: &String| SanType::URI(uri.as_str().try_into().unwrap());
    node.subject_alt_names.extend(uris.iter().map(uri));
    node.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    let key = KeyPair::generate().unwrap();
    let issuer = Issuer::from_params(&authority, &root);
    put(
        folder,
        "tls.crt",
        node.signed_by(&key, &issuer).unwrap().pem(),
    );
    put(folder, "tls.key", key.serialize_pem());
}

#[test]
fn the_pods_are_confined_and_probed() {
    let set = node_sets().remove(0);
    let pod = &set["spec"]["template"]["spec"];
    assert!(pod["terminationGracePeriodSeconds"].as_u64() >= Some(30));
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    let apart = &pod["affinity"]["podAntiAffinity"];
    let apart = &apart["requiredDuringSchedulingIgnoredDuringExecution"][0];
    assert_eq!(apart["topologyKey"], "kubernetes.io/hostname");
    let others = &apart["labelSelector"]["matchLabels"];
    assert!(others["conclave-node"].is_null(), "apart from all nodes");
    let container = &pod["containers"][0];
    let confined = &container["securityContext"];
    assert_eq!(confined["readOnlyRootFilesystem"], true);
    assert_eq!(confined["allowPrivilegeEscalation"], false);
    assert_eq!(confined["capabilities"]["drop"][0], "ALL");
    for (probe, path) in [
        ("startupProbe", "/healthz"),
        ("livenessProbe", "/healthz"),
        ("readinessProbe", "/readyz"),
    ] {
        let get = &container[probe]["httpGet"];
        assert_eq!(get["path"], path);
        assert_eq!(get["scheme"], "HTTPS");
        assert_eq!(get["port"], "api");
    }
    let named = |list: &Value| -> BTreeSet<String> {
        let list = list.as_array().unwrap().iter();
        let name = |one: &Value| one.get("name").or(one.pointer("/metadata/name")).cloned();
        list.map(|one| name(one).unwrap().as_str().unwrap().to_owned())
            .collect()
    };
    let mut volumes = named(&pod["volumes"]);
    volumes.extend(named(&set["spec"]["volumeClaimTemplates"]));
    assert_eq!(named(&container["volumeMounts"]), volumes);
    let words = container["args"].as_array().unwrap().iter();
    let words: Vec<String> = words
        .map(|word| word.as_str().unwrap().to_owned())
        .collect();
    accepted(&words);
}

#[test]
fn kubernetes_tools_take_the_files() {
    let files = folder().join("kubernetes");
    let files = files.to_str().unwrap();
    if let Some((ok, said)) = tool("kubectl", &["kustomize", files]) {
        assert!(ok, "{said}");
        let kinds = said.lines().filter(|line| line.starts_with("kind: "));
        assert_eq!(kinds.count(), objects().len());
    }
    let certificates = format!("{files}/cert-manager");
    if let Some((ok, said)) = tool("kubectl", &["kustomize", &certificates]) {
        assert!(ok, "{said}");
    }
    let strict = [
        "-strict",
        "-ignore-missing-schemas",
        "-ignore-filename-pattern",
        "kustomization",
        files,
    ];
    if let Some((ok, said)) = tool("kubeconform", &strict) {
        assert!(ok, "{said}");
    }
}

/// The entries of a section of a unit file: names and values in order.
fn section(unit: &str, name: &str) -> Vec<(String, String)> {
    let begin = format!("[{name}]\n");
    let body = unit.split(&begin).nth(1).expect("the section exists");
    let body = body.split("\n[").next().unwrap();
    let lines = body.lines().filter(|line| !line.starts_with('#'));
    let pairs = lines.filter_map(|line| line.split_once('='));
    pairs
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

#[test]
fn the_unit_starts_what_there_is() {
    let unit = text("systemd/conclave.service");
    let service = section(&unit, "Service");
    let values = |name: &str| -> Vec<&str> {
        let fits = service.iter().filter(|(found, _)| found == name);
        fits.map(|(_, value)| value.as_str()).collect()
    };
    let [line] = values("ExecStart")[..] else {
        panic!("one ExecStart");
    };
    let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
    assert_eq!(words[0], "/usr/local/bin/conclave");
    accepted(&words[1..]);
    // Its exit code would not keep systemd from trying bad configuration again and again.
    assert!(values("ExecStartPre").is_empty());
    let unit = section(&unit, "Unit");
    let limit = unit
        .iter()
        .find(|(name, _)| name == "StartLimitIntervalSec");
    assert_eq!(limit.map(|(_, value)| value.as_str()), Some("0"));
    let number = |name: &str| values(name)[0].parse::<u64>().unwrap();
    assert!(number("RestartMaxDelaySec") > number("RestartSec"));
    assert!(number("RestartSteps") > 0 && number("WatchdogSec") > 0);
    for (name, value) in [
        ("Type", "notify"),
        ("Restart", "on-failure"),
        ("RestartPreventExitStatus", "2"),
        ("TimeoutStartSec", "infinity"),
        ("User", "conclave"),
        ("NoNewPrivileges", "yes"),
        ("ProtectSystem", "strict"),
        ("CapabilityBoundingSet", ""),
        ("StateDirectory", "conclave"),
        ("LogsDirectory", "conclave"),
    ] {
        assert_eq!(values(name), [value], "{name}");
    }
    let told = passes(&text("systemd/node.toml"), &text("systemd/cluster.toml"), 1);
    let settings = told["settings"].as_array().unwrap();
    let setting = |name: &str| {
        let row = settings.iter().find(|row| row["name"] == name).unwrap();
        row["value"].as_str().unwrap()
    };
    assert_eq!(setting("data"), "/var/lib/conclave", "the StateDirectory");
    let audit = Path::new(setting("audit"));
    assert_eq!(audit.parent(), Some(Path::new("/var/log/conclave")));
}

#[test]
fn systemd_takes_the_unit() {
    let home = directory();
    let unit = text("systemd/conclave.service");
    let unit = unit.replace("/usr/local/bin/conclave", env!("CARGO_BIN_EXE_conclave"));
    // Delays that grow are known from version 254 on; older ones ignore them, and say so.
    let version = tool("systemd-analyze", &["--version"]);
    let version = version.and_then(|(_, said)| said.split(' ').nth(1)?.parse::<u32>().ok());
    let known = |line: &&str| {
        version >= Some(254)
            || !line.starts_with("RestartSteps=") && !line.starts_with("RestartMaxDelaySec=")
    };
    let unit: Vec<&str> = unit.lines().filter(known).collect();
    put(home.path(), "conclave.service", unit.join("\n"));
    let file = home.path().join("conclave.service");
    let file = file.to_str().unwrap();
    let arguments = ["verify", "--man=no", "--recursive-errors=no", file];
    let Some((ok, said)) = tool("systemd-analyze", &arguments) else {
        return;
    };
    let ours: Vec<&str> = said
        .lines()
        .filter(|line| line.contains("conclave.service"))
        .collect();
    assert!(ok && ours.is_empty(), "{said}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_node_tells_its_manager_when_it_serves_and_when_it_stops() {
    use std::os::unix::net::UnixDatagram;
    let mut old = Cluster::start(&["--nodes", "1", "--processes"]);
    let home = directory();
    let path = home.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(cluster::PATIENCE)).unwrap();
    let hear = || {
        let mut text = [0; 100];
        let size = manager.recv(&mut text).expect("the manager hears");
        String::from_utf8_lossy(&text[..size]).into_owned()
    };
    let node = &old.nodes[0];
    cluster::signal(node.pid, rustix::process::Signal::TERM);
    cluster::until("the first process is gone", || !cluster::lives(node.pid));
    let mut serve = cluster::conclave(home.path());
    serve.args(["serve", "--config"]);
    serve.arg(old.data().join("node1.toml"));
    serve.args(["--log", "info"]);
    serve.env("NOTIFY_SOCKET", &path);
    serve.stderr(std::process::Stdio::piped());
    let mut serve = cluster::Kid::spawn(&mut serve);
    assert_eq!(hear(), "READY=1");
    serve.signal(rustix::process::Signal::TERM);
    assert_eq!(hear(), "STOPPING=1");
    assert_eq!(serve.code(), 0);
    assert!(serve.errors().contains("open files allowed"));
    old.up.signal(rustix::process::Signal::TERM);
    assert_eq!(old.up.code(), 0);
}

#[cfg(target_os = "linux")]
#[test]
fn a_node_feeds_the_watchdog_of_its_manager() {
    use std::os::unix::net::UnixDatagram;
    let old = Cluster::start(&["--nodes", "1", "--processes"]);
    let home = directory();
    let path = home.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(cluster::PATIENCE)).unwrap();
    let node = &old.nodes[0];
    cluster::signal(node.pid, rustix::process::Signal::TERM);
    cluster::until("the first process is gone", || !cluster::lives(node.pid));
    let mut serve = cluster::conclave(home.path());
    serve.args(["serve", "--config"]);
    serve.arg(old.data().join("node1.toml"));
    serve.env("NOTIFY_SOCKET", &path);
    serve.env("WATCHDOG_USEC", "60000");
    let mut serve = cluster::Kid::spawn(&mut serve);
    let mut heard = BTreeMap::new();
    while heard.get("WATCHDOG=1") < Some(&5) || !heard.contains_key("READY=1") {
        let mut text = [0; 100];
        let size = manager.recv(&mut text).expect("the manager hears");
        let word = String::from_utf8_lossy(&text[..size]).into_owned();
        *heard.entry(word).or_insert(0) += 1;
    }
    assert_eq!(heard.len(), 2, "{heard:?}");
    serve.signal(rustix::process::Signal::TERM);
    assert_eq!(serve.code(), 0);
}

#[test]
fn the_image_runs_what_there_is_and_not_as_root() {
    let file = text("docker/Dockerfile").replace("\\\n", " ");
    let after = |word: &str| -> Vec<&str> {
        let lines = file.lines().map(str::trim);
        lines.filter_map(|line| line.strip_prefix(word)).collect()
    };
    let list = |line: &str| -> Vec<String> {
        let list = &line[line.find('[').expect("a list")..];
        serde_json::from_str(list).expect("a list of words")
    };
    let from = after("FROM ");
    assert!(
        from.len() == 2 && from[0].ends_with(" AS build"),
        "{from:?}"
    );
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml");
    let manifest: toml::Table = fs::read_to_string(manifest).unwrap().parse().unwrap();
    let rust = &manifest["workspace"]["package"]["rust-version"];
    let rust = format!("rust:{}-", rust.as_str().unwrap());
    assert!(from[0].starts_with(&rust), "{}", from[0]);
    assert!(!after("USER ")[0].starts_with('0'));
    assert_eq!(list(after("ENTRYPOINT ")[0]), ["/usr/local/bin/conclave"]);
    accepted(&list(after("CMD ")[0]));
    let health = list(after("HEALTHCHECK ")[0]);
    assert_eq!(health[0], "/usr/local/bin/conclave");
    accepted(&health[1..]);
}

#[test]
fn health_tells_of_a_node_by_its_file() {
    for more in [&[][..], &["--tls"]] {
        health_of(Cluster::start(
            &[&["--nodes", "1", "--processes"], more].concat(),
        ));
    }
}

fn health_of(mut one: Cluster) {
    let file = one.data().join("node1.toml");
    let file = file.to_str().unwrap().to_owned();
    for more in [&[][..], &["--ready"]] {
        let words = [&["health", "--config", &file], more].concat();
        let (code, out, err) = one.run(&words);
        assert_eq!(code, 0, "{err}");
        assert!(out.starts_with("node 1 is "), "{out}");
    }
    let pid = one.nodes[0].pid;
    cluster::signal(pid, rustix::process::Signal::KILL);
    cluster::until("the node is gone", || !cluster::lives(pid));
    let (code, _, err) = one.run(&["health", "--config", &file]);
    assert_eq!(code, 1);
    assert!(err.contains("node 1 is not alive"), "{err}");
    one.up.signal(rustix::process::Signal::TERM);
    assert_eq!(one.up.code(), 0);
}

/// The metrics that an expression names.
fn metrics(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
    words
        .filter(|word| word.starts_with("conclave_"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn alarms_watch_metrics_that_exist() {
    let rules = documents("prometheus/alerts.yml").remove(0);
    let rules = rules["groups"][0]["rules"].as_array().unwrap().clone();
    let mut named = BTreeSet::new();
    for rule in &rules {
        let name = rule["alert"].as_str().expect("an alarm has a name");
        assert!(rule["annotations"]["summary"].is_string(), "{name}");
        assert!(rule["labels"]["severity"].is_string(), "{name}");
        named.extend(metrics(rule["expr"].as_str().expect("an expression")));
    }
    assert!(named.len() > 5, "{named:?}");
    let cluster = Cluster::start(&["--nodes", "1"]);
    let api = &cluster.nodes[0].api;
    let known = metrics(&cluster::page(&format!("{api}/metrics")).unwrap().1);
    let unknown: Vec<_> = named.difference(&known).collect();
    assert!(unknown.is_empty(), "no such metrics: {unknown:?}");
    let scrape = documents("prometheus/prometheus.yml").remove(0);
    assert_eq!(scrape["rule_files"][0], "alerts.yml");
    let job = &scrape["scrape_configs"][0];
    assert_eq!(job["job_name"], "conclave", "as the alarms name it");
    let file = folder().join("prometheus/alerts.yml");
    if let Some((ok, said)) = tool("promtool", &["check", "rules", file.to_str().unwrap()]) {
        assert!(ok, "{said}");
    }
}

#[test]
fn the_checks_can_fail() {
    assert_eq!(metrics("rate(conclave_x_total[5m]) > up").len(), 1);
    let wrong = |what: &[&str]| {
        let words: Vec<String> = what.iter().map(|word| (*word).to_owned()).collect();
        std::panic::catch_unwind(|| accepted(&words)).is_err()
    };
    assert!(wrong(&["serve", "--no-such-flag"]));
    assert!(wrong(&["no-such-command"]));
    assert!(!wrong(&["serve", "--config", "x", "--id-from-hostname"]));
    let broken = "name = \"x\"\nepoch = 1\nquorum = \"nonsense\"\n[[nodes]]\n";
    let node = "cluster = \"cluster.toml\"\ndata = \"d\"\n";
    assert!(std::panic::catch_unwind(|| passes(node, broken, 1)).is_err());
}
