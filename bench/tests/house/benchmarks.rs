//! The figures in the documents against the results that they come from: nobody edits a plot or a
//! generated section by hand, and nobody forgets to make them anew.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use crate::check;
use crate::tree::root;

#[test]
fn plots_and_sections_are_what_the_results_give() {
    let output = Command::new(env!("CARGO_BIN_EXE_kera-bench"))
        .current_dir(root())
        .args(["report", "docs/benchmarks", "--document"])
        .args(["docs/benchmarks.md", "--check"])
        .output()
        .expect("kera-bench can be run");
    assert!(
        output.status.success(),
        "`make bench-document` makes them anew: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

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
