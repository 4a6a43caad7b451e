//! The Helm chart: by Helm itself, by the schemas of Kubernetes, and by the broker that it sets up.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::common::home;
use crate::process::Process;
use crate::settings::{check_environment, check_file, check_opens};
use crate::tools::{Verdict, python_tool, run, wanted};
use crate::{documents, read, repository};

const CHART: &str = "deploy/helm/kera";
/// A Helm that was built from its sources takes an old version of Kubernetes for given.
const KUBERNETES: &str = "--kube-version=1.33.0";
/// What Kubernetes itself has no schema for.
const FOREIGN: &str = "monitoring.coreos.com/v1";
/// To try things out, without certificates.
const TRIAL: &str = "insecure: [native, http, cluster]\n";
/// With certificates, and an etcd that has none.
const TRUSTED_ETCD: &str =
    "tls: { secret: kera-tls }\ninsecure: [http, etcd]\netcd: { enabled: true }\n";
/// Everything that can be switched on.
const FULL: &str = "
kafka: { enabled: true }
insecure: [native, kafka, http]
serviceMonitor: { enabled: true, labels: { release: prometheus } }
prometheusRule: { enabled: true }
grafanaDashboard: { enabled: true }
service: { type: LoadBalancer, annotations: { example.org/kind: internal } }
persistence: { size: 100Gi, storageClass: fast, accessModes: [ReadWriteOncePod], annotations: { a: b } }
settings:
  server: { max_connections: 20000, drain_timeout: 20s }
  memory: { pool: 4GiB }
  groups: { prepare_ahead: false }
seccompProfile: { type: Localhost, localhostProfile: kera.json }
imagePullSecrets: [{ name: pull }]
nodeSelector: { disk: nvme }
tolerations: [{ key: dedicated, operator: Exists }]
affinity: { nodeAffinity: {} }
priorityClassName: high
podAnnotations: { a: b }
podLabels: { team: streams }
serviceAccount: { annotations: { a: b } }
extraEnv: [{ name: KERA_LOG_LEVEL, value: debug }]
extraVolumes: [{ name: more, emptyDir: {} }]
extraVolumeMounts: [{ name: more, mountPath: /more }]
";

/// One broker that asks everybody for a password, over HTTP too.
const PASSWORDS: &str = "
tls: { secret: kera-tls, clientAuth: none, http: true }
insecure: []
serviceMonitor: { enabled: true, userSecret: scraper }
settings:
  auth: { listeners: \"native,http\", first_user: admin, first_user_password_file: /more/admin }
  http: { open_paths: probes }
";

/// Three brokers that share an etcd of somebody's.
const CLUSTER: &str = "
replicas: 3
cluster:
  etcd: [\"etcd-0.etcd:2379\", \"etcd-1.etcd:2379\"]
  prefix: events
  tlsSecret: etcd-tls
  tlsClientCertificate: true
  userSecret: etcd-user
  rack: eu-1a
  replicaMemory: 2Gi
  partition: 2
kafka: { enabled: true }
tls: { secret: kera-tls }
settings:
  cluster: { lease: 3s }
  backup: { flush_interval: 30s }
";
/// Three brokers that share the chart's own etcd, and a rack that their pods tell.
const OWN_ETCD: &str = "
replicas: 3
cluster: { copies: 1Gi, firstBroker: 101, rackLabel: topology.kubernetes.io/zone, antiAffinity: preferred }
etcd: { enabled: true, persistence: { storageClass: fast } }
insecure: [native, http, cluster]
affinity: { nodeAffinity: {} }
topologySpreadConstraints:
  - { maxSkew: 1, topologyKey: example.org/rack, whenUnsatisfiable: DoNotSchedule }
";

fn helm(program: &Path, words: &[&str], values: Option<&str>) -> Verdict {
    let home = home();
    let mut command = Command::new(program);
    command.args(words).arg(KUBERNETES);
    if let Some(values) = values {
        let path = home.path().join("values.yaml");
        std::fs::write(&path, values).expect("a file can be written");
        command.arg("--values").arg(path);
    }
    // Helm keeps nothing of its own between runs.
    for name in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
        command.env(name, home.path());
    }
    run(command)
}

fn chart() -> String {
    repository(CHART).display().to_string()
}

/// The documents that the chart gives with these values.
pub fn rendered(program: &Path, values: Option<&str>) -> (String, Vec<Value>) {
    let words = ["template", "events", &chart(), "--namespace", "streams"];
    let verdict = helm(program, &words, values);
    assert!(verdict.good, "{}", verdict.said);
    let documents = documents(&verdict.stdout);
    (verdict.stdout, documents)
}

fn only<'a>(documents: &'a [Value], kind: &str) -> &'a Value {
    let mut found = documents.iter().filter(|document| document["kind"] == kind);
    let first = found.next();
    assert!(found.next().is_none(), "more than one {kind}");
    first.unwrap_or_else(|| panic!("no {kind}"))
}

#[test]
fn helm_lints_the_chart_and_refuses_wrong_values() {
    const NAME: &str = "helm_lints_the_chart_and_refuses_wrong_values";
    let Some(program) = wanted(NAME, "helm") else {
        return;
    };
    for values in [TRIAL, FULL, CLUSTER, OWN_ETCD, TRUSTED_ETCD, PASSWORDS].map(Some) {
        let verdict = helm(&program, &["lint", "--strict", &chart()], values);
        assert!(verdict.good, "{}", verdict.said);
    }
    let wrong = [
        "replicas: 0",
        "cluster: { etcd: [etcd] }",
        "cluster: { etcd: [\"http://etcd:2379\"] }",
        "cluster: { copies: 512MiB }",
        "cluster: { replicaMemory: 512MiB }",
        "cluster: { etcd: [\"e:1\"], tlsSecret: \"a/b\" }",
        "extraVolumeMounts: [{ name: more }]",
        "settings: { cluster: { broker_id: 1 } }",
        "settings: { backup: { memory_bytes: 1GiB } }",
        "settings: { server: { listen: \"0.0.0.0:1\" } }",
        "settings: { sever: { max_connections: 1 } }",
        "ports: { native: 0 }",
        "terminationGracePeriodSeconds: 1",
        "persistence: { size: big }",
        "insecure: [ftp]",
        "tls: { clientAuth: perhaps }",
    ];
    for values in wrong {
        let verdict = helm(&program, &["template", &chart()], Some(values));
        let by_schema = verdict
            .said
            .contains("values don't meet the specifications");
        assert!(!verdict.good && by_schema, "{values}: {}", verdict.said);
    }
    let both = "cluster: { etcd: [\"e:1\"] }\netcd: { enabled: true }";
    let racks = "cluster: { etcd: [\"e:1\"], rack: a, rackLabel: b }";
    let key = "cluster: { etcd: [\"e:1\"], tlsClientCertificate: true }";
    let users = "cluster: { userSecret: user }\netcd: { enabled: true }";
    for (values, told) in [
        ("replicas: 3", "there is no etcd"),
        (both, "both set"),
        (racks, "leave one empty"),
        ("cluster: { userSecret: user }", "there is no etcd"),
        (key, "cluster.tlsSecret, which has it, is empty"),
        (users, "has neither TLS nor users"),
        ("replicas: 1", "tls.secret"),
        ("insecure: [http]", "tls.secret"),
        ("insecure: [native]\ntls: { http: true }", "tls.secret"),
        (
            "tls: { secret: s }\netcd: { enabled: true }",
            "add etcd to insecure",
        ),
        (
            "insecure: [native, http, cluster]\nsettings: { acl: { enabled: true } }\ncluster: { etcd: [\"e:1\"], tlsSecret: s }",
            "cluster.userSecret",
        ),
        (
            "tls: { secret: s }\nsettings: { auth: { listeners: \"native,http\" } }",
            "set tls.http",
        ),
    ] {
        let verdict = helm(&program, &["template", &chart()], Some(values));
        let told = verdict.said.contains(told);
        assert!(!verdict.good && told, "{values}: {}", verdict.said);
    }
}

#[test]
fn what_the_chart_gives_fits_the_schemas_of_kubernetes() {
    const NAME: &str = "what_the_chart_gives_fits_the_schemas_of_kubernetes";
    let (Some(program), Some(validate)) = (
        wanted(NAME, "helm"),
        python_tool(NAME, "kubernetes-validate"),
    ) else {
        return;
    };
    let home = home();
    let check = |text: &str| {
        let path: PathBuf = home.path().join("manifest.yaml");
        std::fs::write(&path, text).expect("a file can be written");
        let mut command = Command::new(&validate);
        command.arg("--strict").arg(&path);
        run(command)
    };
    for values in [TRIAL, FULL, CLUSTER, OWN_ETCD, TRUSTED_ETCD, PASSWORDS].map(Some) {
        let (_, documents) = rendered(&program, values);
        let of_kubernetes = documents
            .iter()
            .filter(|document| document["apiVersion"] != FOREIGN);
        // JSON is YAML.
        let texts: Vec<String> = of_kubernetes.map(Value::to_string).collect();
        assert!(texts.len() >= 6, "only {} objects", texts.len());
        let verdict = check(&texts.join("\n---\n"));
        assert!(verdict.good, "{}", verdict.said);
    }
    let (text, _) = rendered(&program, Some(TRIAL));
    assert!(!check(&text.replace("serviceName:", "servicesName:")).good);
}

#[test]
fn the_chart_sets_up_a_broker_that_starts() {
    const NAME: &str = "the_chart_sets_up_a_broker_that_starts";
    let Some(program) = wanted(NAME, "helm") else {
        return;
    };
    for values in [TRIAL, FULL].map(Some) {
        let (_, documents) = rendered(&program, values);
        let set = only(&documents, "StatefulSet");
        let container = &set["spec"]["template"]["spec"]["containers"][0];
        let variables = container["env"].as_array().expect("variables");
        let variables: Vec<(&str, String)> = variables
            .iter()
            .filter_map(|variable| {
                let value = variable["value"].as_str()?;
                // As Kubernetes fills it in.
                Some((
                    variable["name"].as_str()?,
                    value.replace("$(POD_NAME)", "events-kera-0"),
                ))
            })
            .collect();
        check_environment(
            variables
                .iter()
                .map(|(name, value)| (*name, value.as_str())),
        );
        let advertised = variables
            .iter()
            .find(|(name, _)| *name == "KERA_SERVER_ADVERTISE");
        let headless = set["spec"]["serviceName"].as_str().expect("a service");
        let wanted = format!("events-kera-0.{headless}.streams.svc.cluster.local:7600");
        assert_eq!(
            advertised.map(|(_, value)| value.as_str()),
            Some(wanted.as_str())
        );

        let config = documents
            .iter()
            .find_map(|document| document["data"]["kera.toml"].as_str());
        check_file(config.expect("a configuration"));
        let told = variables
            .iter()
            .map(|(name, value)| (*name, value.as_str()));
        check_opens(config.unwrap_or_default(), told);
        if values == Some(FULL) {
            let config: toml::Table = config.unwrap_or_default().parse().expect("TOML");
            assert_eq!(
                config["server"]["max_connections"].as_integer(),
                Some(20_000)
            );
            assert_eq!(config["groups"]["prepare_ahead"].as_bool(), Some(false));
        }
    }
}

/// The set of brokers among the documents.
pub fn brokers(documents: &[Value]) -> &Value {
    let mut sets = documents.iter().filter(|one| one["kind"] == "StatefulSet");
    let found = sets.find(|set| set["metadata"]["name"] == "events-kera");
    found.expect("a set of brokers")
}

/// The environment of a container of the pod with this number, as Kubernetes fills it in.
pub fn environment(container: &Value, number: u32) -> Vec<(String, String)> {
    let pod = format!("events-kera-{number}");
    let all = container["env"].as_array().expect("variables");
    let value = |variable: &Value| match variable["value"].as_str() {
        Some(value) => value.replace("$(POD_NAME)", &pod),
        None if variable["valueFrom"]["secretKeyRef"].is_object() => "of a secret".to_owned(),
        None => {
            let field = &variable["valueFrom"]["fieldRef"]["fieldPath"];
            match field.as_str().expect("a field of the pod") {
                "metadata.name" => pod.clone(),
                "spec.nodeName" => format!("node-{number}"),
                "metadata.labels['apps.kubernetes.io/pod-index']" => number.to_string(),
                "metadata.labels['topology.kubernetes.io/zone']" => "eu-1a".to_owned(),
                other => panic!("pods have no {other}"),
            }
        }
    };
    let name = |variable: &Value| variable["name"].as_str().expect("a name").to_owned();
    all.iter()
        .map(|variable| (name(variable), value(variable)))
        .collect()
}

#[test]
fn the_chart_sets_up_brokers_that_find_each_other() {
    const NAME: &str = "the_chart_sets_up_brokers_that_find_each_other";
    let Some(program) = wanted(NAME, "helm") else {
        return;
    };
    let own = "etcd://events-kera-etcd.streams.svc.cluster.local:2379";
    for (values, first, store, copies, room) in [
        (
            CLUSTER,
            1,
            "etcd://etcd-0.etcd:2379,etcd-1.etcd:2379/events",
            "2GiB",
            "2112Mi",
        ),
        (OWN_ETCD, 101, own, "1GiB", "1088Mi"),
    ] {
        let (_, documents) = rendered(&program, Some(values));
        let set = brokers(&documents);
        assert_eq!(set["spec"]["replicas"], 3);
        assert_eq!(set["spec"]["ordinals"]["start"], first);
        assert_eq!(set["spec"]["podManagementPolicy"], "Parallel");
        assert!(set["spec"]["minReadySeconds"].as_u64() > Some(0));
        let pod = &set["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        let variables = environment(container, first);
        let told = || variables.iter().map(|(name, value)| (&**name, &**value));
        check_environment(told());
        check_opens("", told());
        // With certificates the brokers' own commands go by the name that is in them.
        let bootstrap = told().find(|(name, _)| *name == "KERA_BOOTSTRAP");
        let is_local = bootstrap.is_some_and(|(_, at)| at == "127.0.0.1:7600");
        assert_eq!(is_local, values == OWN_ETCD);
        let of = |name: &str| {
            let found = variables.iter().find(|(found, _)| found == name);
            found.unwrap_or_else(|| panic!("no {name}")).1.as_str()
        };
        assert_eq!(of("KERA_CLUSTER_STORE"), store);
        assert_eq!(of("KERA_CLUSTER_BROKER_ID"), first.to_string());
        assert_eq!(of("KERA_CLUSTER_RACK"), "eu-1a");
        let headless = set["spec"]["serviceName"].as_str().expect("a service");
        let told = format!("events-kera-{first}.{headless}.streams.svc.cluster.local");
        assert_eq!(of("KERA_SERVER_ADVERTISE"), format!("{told}:7600"));
        assert_eq!(of("KERA_CLUSTER_ADVERTISE"), format!("{told}:7601"));

        // The store is prepared before the first broker serves, with what the broker is told.
        let init = &pod["initContainers"][0];
        assert_eq!(
            init["args"],
            serde_json::json!(["cluster", "init", "--if-needed"])
        );
        assert_eq!(init["env"][0]["value"], store);

        // Copies have room in shared memory.
        assert_eq!(of("KERA_REPLICA_STORE_MEMORY_BYTES"), copies);
        let volumes = pod["volumes"].as_array().expect("volumes");
        let memory = volumes.iter().find(|v| v["emptyDir"]["medium"] == "Memory");
        let memory = memory.expect("shared memory");
        assert_eq!(memory["emptyDir"]["sizeLimit"], room);
        let mounts = container["volumeMounts"].as_array().expect("mounts");
        let mounted = mounts.iter().find(|mount| mount["mountPath"] == "/dev/shm");
        assert_eq!(mounted.expect("it is mounted")["name"], memory["name"]);

        // Brokers reach each other before they are ready; clients begin at those that are.
        let service = |name: &str| {
            let mut services = documents.iter().filter(|one| one["kind"] == "Service");
            let found = services.find(|service| service["metadata"]["name"] == name);
            found.unwrap_or_else(|| panic!("no service {name}"))["spec"].clone()
        };
        let between = service(headless);
        assert_eq!(between["publishNotReadyAddresses"], true);
        let ports = between["ports"].as_array().expect("ports");
        assert!(ports.iter().any(|port| port["port"] == 7601), "{ports:?}");
        assert_eq!(service("events-kera")["publishNotReadyAddresses"], false);
        let budget = only(&documents, "PodDisruptionBudget");
        assert_eq!(budget["spec"]["maxUnavailable"], 1);
    }
}

#[test]
fn the_charts_brokers_keep_apart_and_its_etcd_is_none_of_them() {
    const NAME: &str = "the_charts_brokers_keep_apart_and_its_etcd_is_none_of_them";
    let Some(program) = wanted(NAME, "helm") else {
        return;
    };
    let pod = |values: Option<&str>| {
        let (_, documents) = rendered(&program, values);
        brokers(&documents)["spec"]["template"]["spec"].clone()
    };
    let by_node = |pod: &Value, how: &str| {
        let terms = &pod["affinity"]["podAntiAffinity"][how][0];
        let key = terms.get("topologyKey");
        key.or(terms["podAffinityTerm"].get("topologyKey")).cloned()
    };
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
    let node = Some(Value::from("kubernetes.io/hostname"));
    let cluster = pod(Some(CLUSTER));
    assert_eq!(by_node(&cluster, REQUIRED), node);
    let zones = &cluster["topologySpreadConstraints"][0]["topologyKey"];
    assert_eq!(zones, "topology.kubernetes.io/zone");
    let own = pod(Some(OWN_ETCD));
    assert_eq!(by_node(&own, PREFERRED), node);
    assert!(own["affinity"]["nodeAffinity"].is_object());
    let racks = &own["topologySpreadConstraints"];
    assert_eq!(racks[0]["topologyKey"], "example.org/rack");
    assert!(racks.get(1).is_none(), "the values come first");
    let alone = pod(Some(TRIAL));
    assert!(alone["affinity"].is_null() && alone["initContainers"].is_null());

    let (_, documents) = rendered(&program, Some(OWN_ETCD));
    let mut sets = documents.iter().filter(|one| one["kind"] == "StatefulSet");
    let etcd = sets.find(|set| set["metadata"]["name"] == "events-kera-etcd");
    let etcd = &etcd.expect("an etcd")["spec"]["template"]["metadata"]["labels"];
    let of_brokers = &brokers(&documents)["spec"]["selector"]["matchLabels"];
    let labels = of_brokers.as_object().expect("labels");
    let selected = labels.iter().all(|(name, value)| etcd[name] == *value);
    assert!(!selected, "services of the brokers lead to etcd: {etcd}");
}

#[test]
fn the_charts_probes_ask_what_a_broker_answers() {
    const NAME: &str = "the_charts_probes_ask_what_a_broker_answers";
    let Some(program) = wanted(NAME, "helm") else {
        return;
    };
    let (_, documents) = rendered(&program, Some(TRIAL));
    let pod = &only(&documents, "StatefulSet")["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let broker = Process::free();
    let mut asked = Vec::new();
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        let get = &container[probe]["httpGet"];
        assert_eq!(get["port"], "http", "{probe}");
        let path = get["path"].as_str().expect("a path");
        assert_eq!(broker.get(path).0, 200, "{probe}");
        asked.push(path);
    }
    assert_eq!(asked, ["/livez", "/livez", "/readyz"]);
    let metrics = &only(&documents, "StatefulSet")["spec"]["template"]["metadata"]["annotations"];
    let path = metrics["prometheus.io/path"].as_str().expect("a path");
    assert_eq!(broker.get(path).0, 200);

    let drain = kera_broker::config::BrokerConfig::default()
        .server
        .drain_timeout;
    let grace = pod["terminationGracePeriodSeconds"].as_u64();
    // Handing over, draining, and as long again for the rest.
    assert!(grace.expect("seconds") >= drain.as_secs() * 3);
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
    // Variables like KERA_PORT, which Kubernetes would make for a service of this name, are not the
    // broker's settings.
    assert_eq!(pod["enableServiceLinks"], false);
}

#[test]
fn where_passwords_are_asked_for_over_http_prometheus_has_one_and_probes_need_none() {
    const NAME: &str =
        "where_passwords_are_asked_for_over_http_prometheus_has_one_and_probes_need_none";
    let Some(program) = wanted(NAME, "helm") else {
        return;
    };
    let (_, documents) = rendered(&program, Some(PASSWORDS));
    let template = &only(&documents, "StatefulSet")["spec"]["template"];
    let container = &template["spec"]["containers"][0];
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        assert_eq!(container[probe]["httpGet"]["scheme"], "HTTPS", "{probe}");
    }
    let endpoint = &only(&documents, "ServiceMonitor")["spec"]["endpoints"][0];
    assert_eq!(endpoint["scheme"], "https");
    assert_eq!(endpoint["tlsConfig"]["ca"]["secret"]["name"], "kera-tls");
    assert_eq!(endpoint["tlsConfig"]["serverName"], "events-kera.streams");
    assert_eq!(endpoint["basicAuth"]["password"]["name"], "scraper");
    // The broker takes all of it.
    let variables = environment(container, 0);
    check_environment(
        variables
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str())),
    );
    let config = documents
        .iter()
        .find_map(|document| document["data"]["kera.toml"].as_str());
    check_file(config.expect("a configuration"));
    let listeners = variables
        .iter()
        .find(|(name, _)| name == "KERA_TLS_LISTENERS");
    assert_eq!(listeners.expect("it is set").1, "native,http");
}

#[test]
fn the_charts_alerts_and_dashboard_are_whole() {
    const NAME: &str = "the_charts_alerts_and_dashboard_are_whole";
    let Some(program) = wanted(NAME, "helm") else {
        return;
    };
    let (_, documents) = rendered(&program, Some(FULL));
    let rule = only(&documents, "PrometheusRule");
    let alerts = crate::yaml(&read("deploy/monitoring/alerts.yaml"));
    assert_eq!(rule["spec"]["groups"], alerts["groups"]);
    let dashboard = documents
        .iter()
        .find_map(|document| document["data"]["kera.json"].as_str());
    let dashboard: Value = serde_json::from_str(dashboard.expect("a dashboard")).expect("JSON");
    let file: Value =
        serde_json::from_str(&read("deploy/monitoring/dashboard.json")).expect("JSON");
    assert_eq!(dashboard, file);
    let monitor = only(&documents, "ServiceMonitor");
    assert_eq!(monitor["spec"]["endpoints"][0]["path"], "/metrics");
}

#[test]
fn versions_agree() {
    let manifest: toml::Table = read("Cargo.toml").parse().expect("TOML");
    let broker = manifest["workspace"]["package"]["version"].as_str();
    let chart = crate::yaml(&read(&format!("{CHART}/Chart.yaml")));
    assert_eq!(chart["appVersion"].as_str(), broker);
}
