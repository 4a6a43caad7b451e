//! Who may import whom, read from every member's `Cargo.toml`.

use std::collections::BTreeSet;
use std::fs;

use toml::{Table, Value};

use crate::check;
use crate::tree::root;

/// The members and the members each may name in its dependencies. `None`: any.
/// `streamlet` and what will replicate segments never see each other; the clients never see the
/// broker, nor the broker the clients.
const MAY_IMPORT: [(&str, Option<&[&str]>); 12] = [
    ("protocol", Some(&[])),
    ("log-segments", Some(&["protocol"])),
    ("streamlet", Some(&["log-segments", "protocol"])),
    ("metadata", Some(&["protocol"])),
    ("coordinator", Some(&["protocol"])),
    ("rpc", Some(&["protocol"])),
    ("producer", Some(&["protocol", "rpc"])),
    ("consumer", Some(&["protocol", "rpc"])),
    (
        "broker",
        Some(&[
            "protocol",
            "log-segments",
            "streamlet",
            "metadata",
            "coordinator",
            "rpc",
        ]),
    ),
    ("history", Some(&[])),
    ("cli", None),
    ("bench", None),
];

/// Crates that know nothing of files, sockets and runtimes.
const WITHOUT_IO: [&str; 3] = ["protocol", "coordinator", "history"];
const IO_CRATES: [&str; 8] = [
    "axum", "hyper", "io-uring", "libc", "rustix", "socket2", "tokio", "tonic",
];

fn manifest(member: &str) -> Table {
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
            // The checker of histories is made for tests, so any test may use it.
            let for_tests = kind == "dev-dependencies" && import == "history";
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
            if !inherits("package", key) {
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
