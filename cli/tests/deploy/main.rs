//! The files of `deploy/` against the tools that read them and against the program they start.
//!
//! What needs a tool that the machine lacks is skipped, loudly; `scripts/needs.sh` installs them.

#[path = "../common/mod.rs"]
mod common;

mod alerts;
mod chart;
mod chart_store;
mod cluster;
mod compose;
mod container;
mod debian_root;
mod machines;
mod members;
mod metrics;
mod package;
mod probes;
mod process;
mod queries;
mod sandbox;
mod secured;
mod settings;
mod systemd;
mod tools;
mod walk_through;

use kera_testkit::{certificates, etcd};
use std::fs;
use std::path::PathBuf;

/// A file or folder of the repository.
fn repository(path: &str) -> PathBuf {
    let cli = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    cli.parent().expect("cli has a parent").join(path)
}

/// The text of a file of the repository.
fn read(path: &str) -> String {
    let path = repository(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A document of YAML, as JSON.
fn yaml(text: &str) -> serde_json::Value {
    serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{error} in:\n{text}"))
}

/// The documents of a stream of YAML that hold anything.
fn documents(text: &str) -> Vec<serde_json::Value> {
    let mut documents = vec![String::new()];
    for line in text.lines() {
        if line == "---" {
            documents.push(String::new());
        } else if let Some(document) = documents.last_mut() {
            document.push_str(line);
            document.push('\n');
        }
    }
    let holds_anything = |text: &String| {
        text.lines()
            .any(|line| !line.trim().is_empty() && !line.starts_with('#'))
    };
    documents
        .iter()
        .filter(|text| holds_anything(text))
        .map(|text| yaml(text))
        .collect()
}
