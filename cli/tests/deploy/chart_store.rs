//! The chart's brokers and an etcd that asks for TLS and a certificate, or for a password: both containers
//! are run here with the environment that the chart gives them, and with what it mounts into them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Instant;

use serde_json::Value;

use crate::certificates::Certificates;
use crate::chart::{brokers, environment, rendered};
use crate::common::{PATIENCE, finish, home, kera};
use crate::etcd::Etcd;
use crate::process::Process;
use crate::tools::wanted;

/// Variables that only the name of a pod, or its room, makes right.
const OF_PODS: [&str; 4] = [
    "KERA_SERVER_ADVERTISE",
    "KERA_CLUSTER_ADVERTISE",
    "KERA_REPLICA_STORE_MEMORY_BYTES",
    "KERA_DATA_DIR",
];

/// Secrets by name, and what is in them.
type Secrets = BTreeMap<&'static str, BTreeMap<&'static str, String>>;

/// Puts the pod's secrets into folders below `root`, as a kubelet does.
fn mount(pod: &Value, secrets: &Secrets, root: &Path) {
    for volume in pod["volumes"].as_array().expect("volumes") {
        let Some(name) = volume["secret"]["secretName"].as_str() else {
            continue;
        };
        let folder = root.join(volume["name"].as_str().expect("a name"));
        fs::create_dir(&folder).expect("a folder");
        let items = volume["secret"]["items"].as_array();
        let shown = |key: &str| items.is_none_or(|all| all.iter().any(|item| item["key"] == key));
        for (key, content) in secrets[name].iter().filter(|(key, _)| shown(key)) {
            fs::write(folder.join(key), content).expect("a file");
        }
    }
}

/// The container's environment, with the paths of what is mounted into this container, and no other, as they are here.
fn told(container: &Value, secrets: &Secrets, root: &Path) -> Vec<(String, String)> {
    let mounts = container["volumeMounts"].as_array();
    let mounts = mounts.map(Vec::as_slice).unwrap_or_default();
    let all = container["env"].as_array().expect("variables");
    let secret = |variable: &Value| {
        let of = &variable["valueFrom"]["secretKeyRef"];
        let (name, key) = (of["name"].as_str()?, of["key"].as_str()?);
        Some(secrets[name][key].clone())
    };
    let mut told = environment(container, 1);
    told.retain(|(name, _)| !OF_PODS.contains(&name.as_str()));
    for (name, value) in &mut told {
        let variable = all.iter().find(|one| one["name"] == name.as_str());
        if let Some(found) = variable.and_then(secret) {
            *value = found;
        }
        for mount in mounts {
            let path = format!("{}/", mount["mountPath"].as_str().expect("a path"));
            let folder = mount["name"].as_str().expect("a name");
            if let Some(file) = value.strip_prefix(&path) {
                *value = root.join(folder).join(file).display().to_string();
            }
        }
    }
    told
}

/// Runs the two containers of the first pod with these values, until it is ready.
fn becomes_ready(helm: &Path, values: &str, secrets: &Secrets) {
    let (_, documents) = rendered(helm, Some(values));
    let pod = &brokers(&documents)["spec"]["template"]["spec"];
    let root = home();
    mount(pod, secrets, root.path());

    let container = &pod["initContainers"][0];
    let words = container["args"].as_array().expect("words");
    let mut init = kera();
    init.args(words.iter().map(|word| word.as_str().expect("text")))
        .envs(told(container, secrets, root.path()));
    let made = finish(init, b"");
    assert!(made.status.success(), "{}", made.stderr);

    let broker = Process::start(|mut command| {
        command
            .envs(told(&pod["containers"][0], secrets, root.path()))
            .args(["--replication-listen", "127.0.0.1:0"])
            .args(["--replica-store-memory-bytes", "32MiB"])
            .arg("--replica-store-shared-dir")
            .arg(root.path().join("copies"));
        Some(command.spawn().expect("it can be started"))
    });
    let broker = broker.expect("it is started");
    let begin = Instant::now();
    loop {
        let (status, text) = broker.get("/readyz");
        if status == 200 {
            break;
        }
        assert!(begin.elapsed() < PATIENCE, "/readyz: {status} {text}");
    }
}

#[test]
fn the_charts_brokers_reach_an_etcd_that_asks_for_a_certificate() {
    const NAME: &str = "the_charts_brokers_reach_an_etcd_that_asks_for_a_certificate";
    let Some(helm) = wanted(NAME, "helm") else {
        return;
    };
    let Some(made) = Certificates::make() else {
        return;
    };
    let Some(etcd) = Etcd::with("https", &made.flags()) else {
        return;
    };
    let file = |name: &str| fs::read_to_string(made.text(name)).expect("it was made");
    // As cert-manager writes them.
    let secret = BTreeMap::from([
        ("ca.crt", file("ca.pem")),
        ("tls.crt", file("client.pem")),
        ("tls.key", file("client.key")),
    ]);
    let values = format!(
        "cluster: {{ etcd: [\"{}\"], tlsSecret: etcd-tls, tlsClientCertificate: true }}\ntls: {{ secret: kera-tls }}",
        etcd.endpoint()
    );
    let secrets = BTreeMap::from([("etcd-tls", secret.clone()), ("kera-tls", secret)]);
    becomes_ready(&helm, &values, &secrets);
}

#[test]
fn the_charts_brokers_reach_an_etcd_that_has_users() {
    const NAME: &str = "the_charts_brokers_reach_an_etcd_that_has_users";
    let Some(helm) = wanted(NAME, "helm") else {
        return;
    };
    let Some(etcd) = Etcd::start() else {
        return;
    };
    for (path, body) in [
        ("user/add", r#"{"name":"root","password":"open sesame"}"#),
        ("role/add", r#"{"name":"root"}"#),
        ("user/grant", r#"{"user":"root","role":"root"}"#),
        ("enable", "{}"),
    ] {
        etcd.call(&format!("/v3/auth/{path}"), body);
    }
    let secret = BTreeMap::from([
        ("username", "root".to_owned()),
        ("password", "open sesame".to_owned()),
    ]);
    let values = format!(
        "cluster: {{ etcd: [\"{}\"], userSecret: etcd-user }}\ninsecure: [native, http, cluster]",
        etcd.endpoint()
    );
    becomes_ready(&helm, &values, &BTreeMap::from([("etcd-user", secret)]));
}
