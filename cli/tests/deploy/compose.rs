//! The compose file: its form by the specification's schema, and whether what it names is there.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

use crate::common::home;
use crate::settings::{check_environment, check_opens};
use crate::tools::{python_tool, run};
use crate::{read, repository, yaml};

/// One broker.
const FILE: &str = "deploy/compose/compose.yaml";
/// One that asks who clients are.
const SECURED: &str = "deploy/compose/secured.yaml";
/// Three, and their etcd.
const CLUSTER: &str = "deploy/compose/cluster.yaml";

#[test]
fn the_compose_file_fits_its_schema() {
    const NAME: &str = "the_compose_file_fits_its_schema";
    let Some(tool) = python_tool(NAME, "check-jsonschema") else {
        return;
    };
    let check = |path: &std::path::Path| {
        let mut command = Command::new(&tool);
        command
            .args(["--builtin-schema", "vendor.compose-spec"])
            .arg(path);
        run(command)
    };
    for file in [FILE, CLUSTER, SECURED] {
        let verdict = check(&repository(file));
        assert!(verdict.good, "{}", verdict.said);
    }
    // A word that compose does not know is seen.
    let home = home();
    let path = home.path().join("compose.yaml");
    std::fs::write(&path, read(FILE).replace("cap_drop:", "cap_dropped:")).expect("a file");
    assert!(!check(&path).good);
}

/// `${NAME:-default}` as its default.
fn with_defaults(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let (inner, behind) = after.split_once('}').expect("a variable ends");
        let (_, default) = inner.split_once(":-").expect("a variable has a default");
        out.push_str(before);
        out.push_str(default);
        rest = behind;
    }
    out + rest
}

/// The broker's variables of a service, as compose gives them to it.
pub fn variables(service: &Value) -> BTreeMap<String, String> {
    let all = service["environment"].as_object().expect("variables");
    let text = |value: &Value| match value {
        Value::String(text) => with_defaults(text),
        other => other.to_string(),
    };
    all.iter()
        .map(|(name, value)| (name.clone(), text(value)))
        .collect()
}

/// What every broker of a compose file is given.
fn check_broker(broker: &Value) {
    let variables = variables(broker);
    check_environment(
        variables
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str())),
    );
    // Where the image listens, and what this file adds to it.
    let mut whole: BTreeMap<&str, &str> = [
        ("KERA_SERVER_LISTEN", "0.0.0.0:7600"),
        ("KERA_HTTP_LISTEN", "0.0.0.0:7680"),
    ]
    .into();
    whole.extend(
        variables
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str())),
    );
    check_opens("", whole);
    assert_eq!(broker["read_only"], true);
    assert_eq!(broker["cap_drop"][0], "ALL");
    let needs = kera_broker::machine::Needs::of(&Default::default(), "uring");
    let limit = |name: &str| broker["ulimits"][name].as_u64().expect("a limit");
    assert!(limit("nofile") >= needs.open_files && limit("memlock") >= needs.locked_bytes);
    let options = broker["security_opt"].as_array().expect("options");
    let mut options = options.iter().filter_map(Value::as_str);
    let profile = options.find_map(|option| option.strip_prefix("seccomp="));
    let profile = profile.expect("a profile");
    assert!(repository("deploy/compose").join(profile).is_file());
    let context = broker["build"]["dockerfile"].as_str();
    assert!(repository(context.expect("a file")).is_file());
}

/// Every port is for this machine alone, and no two services want the same.
fn check_ports(compose: &Value) {
    let mut taken = BTreeSet::new();
    let services = compose["services"].as_object().expect("services");
    for (name, service) in services {
        for port in service["ports"].as_array().into_iter().flatten() {
            let port = port.as_str().expect("text");
            assert!(port.starts_with("127.0.0.1:"), "{name} publishes {port}");
            let (outside, _) = port.rsplit_once(':').expect("two ports");
            assert!(taken.insert(outside.to_owned()), "{outside} twice");
        }
    }
}

#[test]
fn the_broker_of_the_compose_file_is_set_up_as_the_documents_say() {
    let compose = yaml(&read(FILE));
    check_broker(&compose["services"]["broker"]);
    check_ports(&compose);
}

/// The port of `host:port`.
fn port(address: &str) -> &str {
    address.rsplit(':').next().unwrap_or_default()
}

#[test]
fn the_brokers_of_the_cluster_differ_where_they_must_and_find_each_other() {
    let compose = yaml(&read(CLUSTER));
    check_ports(&compose);
    let services = &compose["services"];
    let store = variables(&services["cluster-init"])["KERA_CLUSTER_STORE"].clone();
    let command = services["cluster-init"]["command"].clone();
    assert_eq!(
        command,
        serde_json::json!(["cluster", "init", "--if-needed"])
    );
    let etcd = services["etcd"]["command"].as_array().expect("words");
    let told = format!(
        "--advertise-client-urls=http://{}",
        &store["etcd://".len()..]
    );
    assert!(etcd.iter().any(|word| *word == told), "{told}: {etcd:?}");
    let mut seen = BTreeSet::new();
    for number in 1..=3 {
        let name = format!("broker-{number}");
        let broker = &services[&name];
        check_broker(broker);
        let variables = variables(broker);
        let of = |name: &str| variables[name].as_str();
        assert_eq!(of("KERA_CLUSTER_BROKER_ID"), number.to_string());
        assert_eq!(of("KERA_CLUSTER_STORE"), store);
        for differs in ["KERA_CLUSTER_RACK", "KERA_SERVER_ADVERTISE"] {
            assert!(seen.insert(of(differs).to_owned()), "{name}: {differs}");
        }
        let volume = broker["volumes"][0].as_str().expect("a volume");
        assert!(seen.insert(volume.to_owned()), "{volume} twice");
        // By this name it is found, and by this machine's name it is told apart.
        assert_eq!(broker["hostname"], name);
        let advertised = of("KERA_SERVER_ADVERTISE");
        assert_eq!(advertised, format!("{name}:{}", port(advertised)));
        // One number inside and outside: clients on this machine may use the name too.
        assert_eq!(port(of("KERA_SERVER_LISTEN")), port(advertised));
        assert_eq!(of("KERA_BOOTSTRAP"), advertised);
        let published = broker["ports"].as_array().expect("ports");
        let is_published = |port: &str| {
            let whole = format!("127.0.0.1:{port}:{port}");
            published.iter().any(|one| *one == whole)
        };
        assert!(is_published(port(advertised)), "{name}: {published:?}");
        let (outside, inside) = of("KERA_KAFKA_ADVERTISE").split_once(',').expect("two");
        assert!(outside.starts_with("127.0.0.1:") && is_published(port(outside)));
        assert!(inside.starts_with(&format!("{name}:")), "{inside}");
        // The shared memory holds the copies, and some.
        let copies = of("KERA_REPLICA_STORE_MEMORY_BYTES").trim_end_matches("MiB");
        let room = broker["shm_size"].as_str().expect("a size");
        let number = |text: &str| text.parse::<u64>().expect("a number");
        assert!(
            number(room.trim_end_matches("mb")) > number(copies),
            "{name}"
        );
        let waits = &broker["depends_on"]["cluster-init"]["condition"];
        assert_eq!(waits, "service_completed_successfully");
    }
}

#[test]
fn files_that_the_compose_files_mount_are_there() {
    for file in [FILE, CLUSTER] {
        let compose = yaml(&read(file));
        let volumes = compose["volumes"].as_object().expect("volumes");
        let mut mounted = 0;
        let services = compose["services"].as_object().expect("services");
        for (name, service) in services {
            for volume in service["volumes"].as_array().into_iter().flatten() {
                let volume = volume.as_str().expect("text");
                let (from, _) = volume.split_once(':').expect("from and to");
                if from.starts_with('.') {
                    let path = repository("deploy/compose").join(from);
                    assert!(path.is_file(), "{name} mounts {from}, which is not there");
                    mounted += 1;
                } else {
                    assert!(volumes.contains_key(from), "{name}: no volume {from}");
                }
            }
        }
        assert!(mounted > 3, "only {mounted} files");
    }
}

#[test]
fn prometheus_grafana_and_the_dashboard_know_each_other() {
    let one = ["broker:7680"].as_slice();
    let three = ["broker-1:7680", "broker-2:7680", "broker-3:7680"].as_slice();
    for (file, scraped, brokers) in [
        (FILE, "deploy/compose/prometheus.yaml", one),
        (CLUSTER, "deploy/compose/prometheus-cluster.yaml", three),
    ] {
        let prometheus = yaml(&read(scraped));
        let scrape = &prometheus["scrape_configs"][0];
        // The alerts ask for this job.
        assert_eq!(scrape["job_name"], "kera");
        let targets = &scrape["static_configs"][0]["targets"];
        assert_eq!(*targets, serde_json::json!(brokers));
        let source = yaml(&read("deploy/compose/grafana/datasources.yaml"));
        assert_eq!(source["datasources"][0]["url"], "http://prometheus:9090");
        let compose = yaml(&read(file));
        let holds = |service: &str, path: &Value| {
            let path = path.as_str().expect("a path");
            let volumes = compose["services"][service]["volumes"].as_array();
            let mut targets = volumes
                .expect("volumes")
                .iter()
                .filter_map(|volume| volume.as_str()?.split(':').nth(1));
            targets.any(|target| target.starts_with(path))
        };
        assert!(holds("prometheus", &prometheus["rule_files"][0]));
        let boards = yaml(&read("deploy/compose/grafana/dashboards.yaml"));
        assert!(holds("grafana", &boards["providers"][0]["options"]["path"]));
        let name = scraped.rsplit('/').next().unwrap_or_default();
        let mounts = &compose["services"]["prometheus"]["volumes"][0];
        let mounts = mounts.as_str().expect("text");
        assert!(mounts.starts_with(&format!("./{name}:")), "{mounts}");
    }
    let etcd = &yaml(&read("deploy/compose/prometheus-cluster.yaml"))["scrape_configs"][1];
    let alerts = read("deploy/monitoring/alerts.yaml");
    let job = etcd["job_name"].as_str().expect("a name");
    assert!(alerts.contains(&format!("up{{job=\"{job}\"}}")), "{job}");
}
