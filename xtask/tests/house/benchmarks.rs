//! The plots of docs/benchmarks.md are shown, described, and named by one file of scenarios each. That they are what
//! the results give is checked by `bench/tests/house.rs`, which has the program that draws them.

use std::collections::BTreeSet;
use std::fs;

use kera_xtask::{check, root};

#[test]
fn every_plot_is_shown_and_described() {
    let text = fs::read_to_string(root().join("docs/benchmarks.md")).expect("the document");
    let folder = root().join("docs/benchmarks");
    let mut plots = BTreeSet::new();
    let mut broken = Vec::new();
    for entry in fs::read_dir(folder).expect("docs/benchmarks") {
        let name = entry.expect("an entry").file_name();
        let name = name.to_string_lossy().into_owned();
        if !name.ends_with(".svg") {
            continue;
        }
        if !text.contains(&format!("](benchmarks/{name})")) {
            broken.push(format!("docs/benchmarks.md does not show {name}"));
        }
        let svg = fs::read_to_string(root().join("docs/benchmarks").join(&name)).expect("a plot");
        for part in ["<title>", "<desc>", "prefers-color-scheme:dark"] {
            if !svg.contains(part) {
                broken.push(format!("{name} has no {part}"));
            }
        }
        plots.insert(name);
    }
    check("a plot is shown, described and readable", broken);
    assert!(plots.contains("summary.svg"), "only {plots:?}");
    let readme = fs::read_to_string(root().join("README.md")).expect("the README");
    assert!(readme.contains("](docs/benchmarks/summary.svg)"));
}

#[test]
fn files_of_scenarios_name_their_plots() {
    let folder = root().join("bench/scenarios");
    let mut names: Vec<String> = Vec::new();
    let mut broken = Vec::new();
    for entry in fs::read_dir(folder).expect("bench/scenarios") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|ending| ending != "toml") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("a file of scenarios");
        let file: toml::Table = text.parse().expect("TOML");
        let plots = file.get("plot").and_then(toml::Value::as_array);
        for plot in plots.into_iter().flatten() {
            let name = plot["name"].as_str().expect("a name").to_owned();
            if names.contains(&name) {
                broken.push(format!("{}: {name} is another file's", path.display()));
            }
            names.push(name);
        }
    }
    check("a plot's name is its own", broken);
    assert!(names.iter().any(|name| name == "summary"), "{names:?}");
}
