//! Who may import whom, read from every member's `Cargo.toml`.

use std::collections::BTreeSet;
use std::fs;

use toml::{Table, Value};

use kera_xtask::{check, files, root};

use crate::published::PUBLISHED;

/// The members and the members each may name in its dependencies. `None`: any.
/// `streamlet` and `replication` never see each other, but for tests ([`FOR_TESTS`]); the clients never see the
/// broker, nor the broker the clients.
const MAY_IMPORT: [(&str, Option<&[&str]>); 25] = [
    ("protocol", Some(&[])),
    ("log-segments", Some(&["protocol"])),
    ("records", Some(&["protocol"])),
    ("streamlet", Some(&["log-segments", "records", "protocol"])),
    ("metadata", Some(&["records", "protocol"])),
    ("controller", Some(&["metadata", "records", "protocol"])),
    ("coordinator", Some(&["protocol"])),
    ("rpc", Some(&["protocol"])),
    ("grpc", Some(&["protocol", "rpc"])),
    (
        "replication",
        Some(&["protocol", "records", "log-segments", "rpc", "grpc"]),
    ),
    ("telemetry", Some(&[])),
    ("producer", Some(&["protocol", "rpc"])),
    ("consumer", Some(&["protocol", "rpc"])),
    ("load", Some(&["producer", "consumer", "rpc"])),
    (
        "connectors/python",
        Some(&["producer", "consumer", "rpc", "protocol"]),
    ),
    (
        "broker",
        Some(&[
            "protocol",
            "log-segments",
            "streamlet",
            "records",
            "metadata",
            "controller",
            "coordinator",
            "rpc",
            "grpc",
            "replication",
            "telemetry",
        ]),
    ),
    (
        "kafka-shim",
        Some(&[
            "protocol",
            "log-segments",
            "streamlet",
            "records",
            "metadata",
            "coordinator",
            "broker",
        ]),
    ),
    ("kafka-clients", None),
    ("history", Some(&[])),
    ("cli", None),
    ("bench", None),
    ("instructions", None),
    ("sim", None),
    ("testkit", Some(&[])),
    ("xtask", None),
];

/// What the tests of a member may import besides: replication is judged over real streamlets.
const FOR_TESTS: [(&str, &str); 1] = [("replication", "streamlet")];

/// The codec of Kafka's protocol, and the members that may name it: what it has to say is said in
/// the broker's own words beyond `kafka-shim`, the tests with real clients speak for themselves, and members of
/// simulated share groups have no other language.
const KAFKA_CODEC: (&str, [&str; 3]) = ("kafka-protocol", ["kafka-shim", "kafka-clients", "sim"]);

/// Crates that know nothing of files, sockets and runtimes.
const WITHOUT_IO: [&str; 4] = ["protocol", "records", "coordinator", "history"];
const IO_CRATES: [&str; 8] = [
    "axum", "hyper", "io-uring", "libc", "rustix", "socket2", "tokio", "tonic",
];

pub(crate) fn manifest(member: &str) -> Table {
    let path = root().join(member).join("Cargo.toml");
    let text = fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{} cannot be read: {error}", path.display()));
    text.parse()
        .unwrap_or_else(|error| panic!("{} is no TOML: {error}", path.display()))
}

fn members() -> Vec<String> {
    let text = fs::read_to_string(root().join("Cargo.toml")).expect("the workspace's Cargo.toml");
    let workspace: Table = text.parse().expect("the workspace's Cargo.toml is TOML");
    let members = workspace["workspace"]["members"]
        .as_array()
        .expect("a list of members");
    members
        .iter()
        .map(|name| name.as_str().expect("a member's name").to_string())
        .collect()
}

/// The names in the tables called `kind`, at the top and below `[target.*]`.
fn dependencies(manifest: &Table, kind: &str) -> BTreeSet<String> {
    let mut tables = vec![manifest.get(kind)];
    if let Some(Value::Table(targets)) = manifest.get("target") {
        tables.extend(targets.values().map(|target| target.get(kind)));
    }
    let mut names = BTreeSet::new();
    for table in tables.into_iter().flatten().filter_map(Value::as_table) {
        for (name, value) in table {
            // `alias = { package = "real" }` hides the crate's name.
            let real = value.get("package").and_then(Value::as_str);
            names.insert(real.unwrap_or(name).to_string());
        }
    }
    names
}

/// The member's folder for a crate of ours, `None` for any other crate.
fn folder(package: &str) -> Option<&str> {
    package
        .strip_prefix("kera-")
        .or((package == "kera").then_some("cli"))
}

/// What `member` may not name among the crates that its manifest names.
fn forbidden(member: &str, manifest: &Table, may: &[&str]) -> Vec<String> {
    let mut broken = Vec::new();
    for kind in ["dependencies", "build-dependencies", "dev-dependencies"] {
        for package in dependencies(manifest, kind) {
            let Some(import) = folder(&package) else {
                continue;
            };
            // The checker of histories and what starts processes are made for tests, so any test may use them.
            // A crate's own tests take it with its test doubles.
            let for_tests = kind == "dev-dependencies"
                && (["history", "testkit"].contains(&import)
                    || import == member
                    || FOR_TESTS.contains(&(member, import)));
            if !may.contains(&import) && !for_tests {
                broken.push(format!("{member} names {package} in its {kind}"));
            }
        }
    }
    broken
}

#[test]
fn members_import_only_what_lies_below_them() {
    let mut broken = Vec::new();
    let known: BTreeSet<_> = MAY_IMPORT
        .iter()
        .map(|(name, _)| name.to_string())
        .collect();
    for member in members() {
        if !known.contains(&member) {
            broken.push(format!("{member} is a member without a line in MAY_IMPORT"));
        }
    }
    for (member, may) in MAY_IMPORT {
        if let Some(may) = may {
            broken.extend(forbidden(member, &manifest(member), may));
        }
    }
    check("a member imports only what lies below it", broken);
}

/// The dependencies of a manifest that ask for test doubles, but for those of tests.
fn with_test_doubles(member: &str, manifest: &Table) -> Vec<String> {
    let asks = |value: &Value| {
        let features = value.get("features").and_then(Value::as_array);
        features.is_some_and(|all| all.iter().any(|name| name.as_str() == Some("testing")))
    };
    let tables = ["dependencies", "build-dependencies"];
    let tables = tables
        .iter()
        .filter_map(|kind| manifest.get(*kind)?.as_table());
    let named = tables.flatten().filter(|(_, value)| asks(value));
    let named = named.map(|(name, _)| format!("{member} asks for the feature testing of {name}"));
    let mut broken: Vec<_> = named.collect();
    if let Some(Value::Table(features)) = manifest.get("features") {
        // One feature testing may bring another: what asks for it is asked about in its turn.
        for (name, enabled) in features.iter().filter(|(name, _)| *name != "testing") {
            let enables = |value: &Value| {
                let text = value.as_str().unwrap_or_default();
                text == "testing" || text.ends_with("/testing")
            };
            if enabled
                .as_array()
                .is_some_and(|all| all.iter().any(enables))
            {
                broken.push(format!(
                    "{member}'s feature {name} brings the feature testing"
                ));
            }
        }
    }
    broken
}

#[test]
fn test_doubles_are_for_tests_alone() {
    // The simulator plays clusters for tests, and is no build for use.
    let members = members().into_iter().filter(|member| member != "sim");
    let members: Vec<String> = members.collect();
    let manifests = members.iter().map(|member| (member, manifest(member)));
    let broken = manifests.flat_map(|(member, manifest)| with_test_doubles(member, &manifest));
    check("a build for use has no test doubles", broken.collect());
    let planted = r#"
        [features]
        default = ["kera-metadata/testing"]
        [dependencies]
        kera-metadata = { workspace = true, features = ["testing"] }
        [dev-dependencies]
        kera-metadata = { workspace = true, features = ["testing"] }
    "#;
    let planted: Table = planted.parse().expect("TOML");
    assert_eq!(with_test_doubles("planted", &planted).len(), 2);
}

#[test]
fn a_forbidden_import_is_seen_in_every_kind_of_table() {
    let planted = r#"
        [dependencies]
        kera-protocol.workspace = true
        kera-broker.workspace = true
        bytes.workspace = true
        [build-dependencies]
        kera-rpc = { path = "../rpc" }
        [dev-dependencies]
        kera-history.workspace = true
        alias = { package = "kera", path = "../cli" }
        [target.'cfg(unix)'.dependencies]
        kera-metadata.workspace = true
    "#;
    let manifest: Table = planted.parse().expect("TOML");
    let seen = forbidden("streamlet", &manifest, &["protocol"]).join("; ");
    for package in ["kera-broker", "kera-metadata", "kera-rpc", "kera "] {
        assert!(seen.contains(package), "{package} is missing in: {seen}");
    }
    assert!(
        !seen.contains("kera-protocol") && !seen.contains("kera-history"),
        "{seen}"
    );
}

#[test]
fn the_crates_without_io_name_no_crate_that_does_io() {
    let mut broken = Vec::new();
    for member in WITHOUT_IO {
        for package in dependencies(&manifest(member), "dependencies") {
            if IO_CRATES.contains(&package.as_str()) {
                broken.push(format!("{member} names {package}"));
            }
        }
    }
    check("protocol, coordinator and history do no I/O", broken);
}

/// The dependencies of `member` that are Kafka's codec although it may not know it.
fn knows_the_codec(member: &str, manifest: &Table) -> Vec<String> {
    let (codec, may) = KAFKA_CODEC;
    if may.contains(&member) {
        return Vec::new();
    }
    let kinds = ["dependencies", "build-dependencies", "dev-dependencies"];
    let named = kinds
        .into_iter()
        .filter(|kind| dependencies(manifest, kind).contains(codec));
    named
        .map(|kind| format!("{member} names {codec} in its {kind}"))
        .collect()
}

#[test]
fn types_of_the_kafka_codec_stay_inside_kafka_shim() {
    let mut broken = Vec::new();
    for member in members() {
        broken.extend(knows_the_codec(&member, &manifest(&member)));
    }
    broken.extend(knows_the_codec("fuzz", &manifest("fuzz")));
    // Nor by way of what the shim could show to others.
    let name = concat!("kafka", "_protocol");
    for file in files(&[".rs"]) {
        let member = file.path.split('/').next().unwrap_or_default();
        if KAFKA_CODEC.1.contains(&member) {
            continue;
        }
        for (number, line) in file.lines().filter(|(_, line)| line.contains(name)) {
            broken.push(format!("{}:{number}: {}", file.path, line.trim()));
        }
    }
    check("types of the Kafka codec stay inside kafka-shim", broken);
}

#[test]
fn a_member_that_names_the_codec_is_seen() {
    let planted = r#"
        [dev-dependencies]
        codec = { package = "kafka-protocol", version = "1" }
    "#;
    let manifest: Table = planted.parse().expect("TOML");
    assert_eq!(
        knows_the_codec("broker", &manifest),
        ["broker names kafka-protocol in its dev-dependencies"]
    );
    assert!(knows_the_codec("kafka-shim", &manifest).is_empty());
}

#[test]
fn members_share_the_workspace_lints_licence_and_edition() {
    let mut broken = Vec::new();
    for member in members() {
        let manifest = manifest(&member);
        let inherits = |table: &str, key: &str| {
            let value = manifest.get(table).and_then(|table| table.get(key));
            value
                .and_then(|value| value.get("workspace"))
                .and_then(Value::as_bool)
                == Some(true)
        };
        for key in ["version", "edition", "rust-version", "license", "publish"] {
            let is_chosen = key == "publish" && PUBLISHED.contains(&member.as_str());
            if !is_chosen && !inherits("package", key) {
                broken.push(format!(
                    "{member}: package.{key} does not come from the workspace"
                ));
            }
        }
        let lints = manifest
            .get("lints")
            .and_then(|table| table.get("workspace"));
        if lints.and_then(Value::as_bool) != Some(true) {
            broken.push(format!("{member}: its lints are not the workspace's"));
        }
        if manifest["package"].get("build").is_some()
            || root().join(&member).join("build.rs").exists()
        {
            broken.push(format!(
                "{member}: has a build script; generated code is checked in"
            ));
        }
    }
    check(
        "members inherit from the workspace and build without scripts",
        broken,
    );
}
