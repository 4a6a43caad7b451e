//! The crates that programs outside of this repository use, from a registry.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use kera_xtask::{check, files, root};

use crate::imports::manifest;

/// The clients, and what they need.
pub(crate) const PUBLISHED: [&str; 4] = ["protocol", "rpc", "producer", "consumer"];
/// Most crates that a producer needs, in each of their versions.
const MOST_NEEDED: usize = 60;
const OF_GRPC: [&str; 5] = ["h2", "http", "hyper", "tonic", "tower"];

#[test]
fn published_crates_say_what_a_registry_shows_and_need_no_others() {
    let mut broken = Vec::new();
    let least = &manifest("")["workspace"]["package"]["rust-version"];
    let least = format!("Rust {}", least.as_str().expect("a version"));
    for member in PUBLISHED {
        let manifest = manifest(member);
        for key in ["description", "readme", "keywords", "categories"] {
            if manifest["package"].get(key).is_none() {
                broken.push(format!("{member}: lacks package.{key}"));
            }
        }
        if manifest["package"].get("publish").is_some() {
            broken.push(format!("{member}: has package.publish"));
        }
        let readme = fs::read_to_string(root().join(member).join("README.md"));
        if !readme.is_ok_and(|text| text.contains(&least)) {
            broken.push(format!(
                "{member}: its README does not say which Rust it needs"
            ));
        }
        let needed = manifest["dependencies"].as_table().into_iter().flatten();
        for name in needed.filter_map(|(name, _)| name.strip_prefix("kera-")) {
            if !PUBLISHED.contains(&name) {
                broken.push(format!("{member}: needs {name}, which is not published"));
            }
        }
    }
    check("published crates are complete", broken);
}

/// What a producer brings along: programs that embed one count it.
#[test]
fn a_producer_needs_few_crates_and_none_of_grpc() {
    let tree = Command::new(env!("CARGO"))
        .current_dir(root())
        .args(["tree", "--locked", "--package", "kera-producer"])
        .args(["--edges", "normal", "--prefix", "none", "--format", "{p}"])
        .output()
        .expect("cargo runs");
    assert!(
        tree.status.success(),
        "{}",
        String::from_utf8_lossy(&tree.stderr)
    );
    let tree = String::from_utf8(tree.stdout).expect("text");
    let crates: BTreeSet<(&str, &str)> = tree.lines().filter_map(name_and_version).collect();
    let mut broken = Vec::new();
    // Itself is none of them.
    if crates.len() - 1 > MOST_NEEDED {
        broken.push(format!(
            "kera-producer needs {} crates, and may need {MOST_NEEDED}",
            crates.len() - 1
        ));
    }
    for (name, _) in &crates {
        if OF_GRPC.contains(name) {
            broken.push(format!("kera-producer needs {name}"));
        }
    }
    check("a producer needs few crates", broken);
}

fn name_and_version(line: &str) -> Option<(&str, &str)> {
    let (name, rest) = line.split_once(' ')?;
    Some((name, rest.split(' ').next()?))
}

/// Errors get more kinds: programs that use a published crate go on to compile.
#[test]
fn errors_of_published_crates_are_non_exhaustive() {
    let mut broken = Vec::new();
    let is_published = |path: &str| {
        let member = path.split_once("/src/").map(|(member, _)| member);
        member.is_some_and(|member| PUBLISHED.contains(&member))
    };
    for file in files(&[".rs"]) {
        if is_published(&file.path) {
            let open = open_errors(&file.text).into_iter();
            broken.extend(open.map(|name| format!("{}: {name}", file.path)));
        }
    }
    check("public errors have #[non_exhaustive]", broken);
}

/// Public types whose names end in "Error", which others may take apart to the last kind or field.
fn open_errors(source: &str) -> Vec<String> {
    let lines: Vec<&str> = source.lines().collect();
    let mut open = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        let declared = line
            .strip_prefix("pub enum ")
            .or(line.strip_prefix("pub struct "));
        let Some((name, "")) = declared.and_then(|rest| rest.split_once(" {")) else {
            continue;
        };
        let above = lines[..number].iter().rev();
        let mut above = above.take_while(|line| line.starts_with("#[") || line.starts_with(')'));
        if name.ends_with("Error") && !above.any(|line| *line == "#[non_exhaustive]") {
            open.push(name.to_owned());
        }
    }
    open
}

#[test]
fn an_error_that_is_exhaustive_is_seen() {
    let planted = "#[derive(Debug)]\npub enum OpenError {\n}\n\n#[non_exhaustive]\npub enum GrowsError {\n}\npub enum Kind {\n}\n";
    assert_eq!(open_errors(planted), ["OpenError"]);
}
