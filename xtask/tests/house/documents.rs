//! The documents against the tree: links lead somewhere, paths are links, commands that they tell to type exist.

use std::collections::BTreeSet;
use std::fs;

use kera_xtask::{Source, check, files, root};

/// The targets of inline links `[text](target)` outside code blocks, with their lines.
fn links(file: &Source) -> Vec<(usize, String)> {
    let mut out = Vec::new();
    let mut in_code = false;
    for (number, line) in file.lines() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        for (at, _) in line.match_indices("](") {
            if let Some((target, _)) = line[at + 2..].split_once(')') {
                out.push((number, target.to_string()));
            }
        }
    }
    out
}

/// A heading's anchor, as the usual renderers make it.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn anchors(markdown: &str) -> BTreeSet<String> {
    let headings = markdown.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| anchor(line.trim_start_matches('#')))
        .collect()
}

#[test]
fn links_lead_somewhere() {
    let mut broken = Vec::new();
    for file in files(&[".md"]) {
        let folder = root().join(&file.path);
        let folder = folder.parent().expect("a file lies in a folder");
        for (number, target) in links(&file) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (path, fragment) = target.split_once('#').unwrap_or((&target, ""));
            let aim = if path.is_empty() {
                root().join(&file.path)
            } else {
                folder.join(path)
            };
            if !aim.exists() {
                broken.push(format!("{}:{number}: {target} is not there", file.path));
            } else if !fragment.is_empty() {
                let text = fs::read_to_string(&aim).unwrap_or_default();
                if !anchors(&text).contains(fragment) {
                    broken.push(format!(
                        "{}:{number}: {target} has no such heading",
                        file.path
                    ));
                }
            }
        }
    }
    check("a link in a document leads somewhere", broken);
}

/// The files and folders in backticks that `file` names, outside code blocks: line, path, and the target if
/// it is the text of a link. A word with a slash counts if it begins with a folder of the repository and
/// goes on like a path (`records/s` does not); a word that ends in `.rs` always counts.
fn paths(file: &Source) -> Vec<(usize, String, Option<String>)> {
    let mut out = Vec::new();
    let mut in_code = false;
    for (number, line) in file.lines() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        let parts: Vec<_> = line.split('`').collect();
        for at in (1..parts.len().saturating_sub(1)).step_by(2) {
            if is_path(parts[at]) {
                let target = parts[at + 1]
                    .strip_prefix("](")
                    .filter(|_| parts[at - 1].ends_with('['))
                    .and_then(|rest| rest.split_once(')'));
                let target = target.map(|(target, _)| target.to_string());
                out.push((number, parts[at].to_string(), target));
            }
        }
    }
    out
}

fn is_path(word: &str) -> bool {
    if word.is_empty()
        || !word
            .chars()
            .all(|c| c.is_alphanumeric() || "_-./".contains(c))
    {
        return false;
    }
    let Some((top, below)) = word.split_once('/') else {
        return word.ends_with(".rs");
    };
    // What is built is in no repository, and here only at times.
    let is_ours = !["", "target"].contains(&top) && root().join(top).is_dir();
    let is_code = ["src", "tests", "examples"].contains(&below.split('/').next().unwrap_or(""));
    let last = below.rsplit('/').next().unwrap_or_default();
    word.ends_with(".rs")
        || is_ours && (is_code || last.contains('.') || root().join(word).exists())
}

#[test]
fn paths_in_documents_are_links_to_what_they_name() {
    let (mut broken, mut found) = (Vec::new(), 0);
    for file in files(&[".md"]) {
        let is_document = ["README.md", "ARCHITECTURE.md"].contains(&file.path.as_str());
        // The change log tells of files that are gone by now.
        if !is_document && !file.path.starts_with("docs/") {
            continue;
        }
        let folder = root().join(&file.path);
        let folder = folder.parent().expect("a file lies in a folder");
        for (number, path, target) in paths(&file) {
            found += 1;
            let at = format!("{}:{number}: `{path}`", file.path);
            let Some(target) = target else {
                broken.push(format!("{at} is no link; write [`{path}`](...)"));
                continue;
            };
            let named = root().join(&path).canonicalize();
            match (named, folder.join(&target).canonicalize()) {
                (Ok(named), Ok(aim)) if named == aim => {}
                (Err(_), _) => broken.push(format!("{at} is no path from the repository's root")),
                _ => broken.push(format!("{at} leads to {target}")),
            }
        }
    }
    assert!(found > 50, "only {found} paths are named");
    check("a path in a document is a link to what it names", broken);
}

/// The targets that the Makefile defines.
fn make_targets() -> BTreeSet<String> {
    let text = fs::read_to_string(root().join("Makefile")).expect("a Makefile");
    let rules = text
        .lines()
        .filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()));
    let heads = rules
        .filter_map(|line| line.split_once(':'))
        .map(|(head, _)| head);
    heads
        .flat_map(str::split_whitespace)
        .map(str::to_string)
        .collect()
}

#[test]
fn make_targets_that_documents_name_exist() {
    let targets = make_targets();
    assert!(targets.contains("test"), "the Makefile defines {targets:?}");
    let mut broken = Vec::new();
    for file in files(&[".md"]) {
        for (number, line) in file.lines() {
            // `make x` in backticks, or alone at the start of a line of a code block.
            let quoted = line
                .match_indices("`make ")
                .map(|(at, mark)| &line[at + mark.len()..]);
            let typed = line.strip_prefix("make ");
            for rest in quoted.chain(typed) {
                let target: String = rest
                    .chars()
                    .take_while(|c| c.is_alphanumeric() || "-_.".contains(*c))
                    .collect();
                if !targets.contains(&target) {
                    broken.push(format!(
                        "{}:{number}: make {target} is no target",
                        file.path
                    ));
                }
            }
        }
    }
    check("a make target that a document names exists", broken);
}

/// The string literal that follows each `mark` in `text`.
fn literals_after<'a>(text: &'a str, mark: &str) -> BTreeSet<&'a str> {
    let after = text
        .match_indices(mark)
        .map(|(at, _)| text[at + mark.len()..].trim_start());
    let opened = after.filter_map(|rest| rest.strip_prefix('"'));
    opened
        .filter_map(|rest| rest.split_once('"'))
        .map(|(literal, _)| literal)
        .collect()
}

#[test]
fn every_metric_is_documented_and_every_documented_metric_exists() {
    let sources = [
        "broker/src/scrape.rs",
        "broker/src/stream_metrics.rs",
        "broker/src/telemetry.rs",
        "broker/src/cluster/metrics.rs",
        "broker/src/turns/metrics.rs",
        "broker/src/pins/figures.rs",
        "broker/src/cluster/counts.rs",
    ];
    let source = |path| fs::read_to_string(root().join(path)).expect("the metrics");
    let code = sources.map(source).concat();
    // However the formatter breaks the lines of a call.
    let code = code
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .replace("( ", "(");
    let document = fs::read_to_string(root().join("docs/metrics.md")).expect("docs/metrics.md");
    let mut exist = literals_after(&code, "registry.register(");
    exist.extend(literals_after(&code, "gauge(&mut registry,"));
    exist.extend(literals_after(&code, "gauge(registry,"));
    exist.extend(literals_after(&code, "counter(registry,"));
    exist.extend(literals_after(&code, "gauges(registry,"));
    exist.extend(literals_after(&code, "counters(registry,"));
    exist.extend(literals_after(&code, "encode_descriptor("));
    assert!(exist.len() > 10, "only {exist:?} were found in the code");
    let quoted = document.split('`').skip(1).step_by(2);
    // A counter is exposed with a suffix of its own.
    let documented: BTreeSet<_> = quoted
        .filter_map(|code| code.strip_prefix("kera_"))
        .map(|name| name.strip_suffix("_total").unwrap_or(name))
        .collect();
    let broken: Vec<_> = exist
        .symmetric_difference(&documented)
        .map(|name| format!("kera_{name} is only in one of the code and docs/metrics.md"))
        .collect();
    check(
        "the document lists every metric there is, and no other",
        broken,
    );
}

/// The tests that documents name: links whose text is a name in backticks and whose target is Rust.
fn named_tests(file: &Source) -> Vec<(usize, String, String)> {
    let mut out = Vec::new();
    for (number, line) in file.lines() {
        for (at, _) in line.match_indices("`](") {
            let (before, after) = (&line[..at], &line[at + 3..]);
            let name = before.rsplit('`').next().unwrap_or_default();
            let target = after.split_once(')').map_or("", |(target, _)| target);
            let is_name =
                name.contains('_') && name.chars().all(|c| c.is_alphanumeric() || c == '_');
            if is_name && target.ends_with(".rs") {
                out.push((number, name.to_string(), target.to_string()));
            }
        }
    }
    out
}

#[test]
fn tests_that_documents_name_exist() {
    let (mut broken, mut found) = (Vec::new(), 0);
    for file in files(&[".md"]) {
        let folder = root().join(&file.path);
        let folder = folder.parent().expect("a file lies in a folder");
        for (number, name, target) in named_tests(&file) {
            found += 1;
            let text = fs::read_to_string(folder.join(&target)).unwrap_or_default();
            if !text.contains(&format!("fn {name}(")) {
                broken.push(format!("{}:{number}: {target} has no {name}", file.path));
            }
        }
    }
    assert!(found > 5, "only {found} tests are named");
    check("a test that a document names exists", broken);
}

#[test]
fn the_two_commands_stand_in_the_readme_and_ci_runs_the_second() {
    let readme = fs::read_to_string(root().join("README.md")).expect("a README");
    for command in ["cargo run --release -- demo", "make test"] {
        assert!(
            readme.lines().any(|line| line.trim() == command),
            "README.md lacks `{command}`"
        );
    }
    let ci = fs::read_to_string(root().join(".ci/run")).expect("a .ci/run");
    let commands: Vec<_> = ci
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .filter(|line| !line.starts_with("set ") && !line.starts_with("cd "))
        .collect();
    assert_eq!(
        commands,
        ["exec make test"],
        ".ci/run runs something else than make test"
    );
}

#[test]
fn the_checks_see_what_they_look_for() {
    let text = "# One head: ok\n[a](b.md#c) [d](e)\n```\n[not](a-link)\n```\n".to_string();
    let file = Source {
        path: "x.md".into(),
        text,
    };
    let found: Vec<_> = links(&file).into_iter().map(|(_, target)| target).collect();
    assert_eq!(found, ["b.md#c", "e"]);
    assert!(anchors(&file.text).contains("one-head-ok"));
    let text = "See [`a_test`](x.rs), [`word`](y.rs) and [`kera`](z.md).".to_string();
    let file = Source {
        path: "x.md".into(),
        text,
    };
    assert_eq!(named_tests(&file), [(1, "a_test".into(), "x.rs".into())]);
    let text = "`broker/src/a.rs`, [`x.rs`](y.rs), `records/s`, `docs/no.md`, `/readyz`, `make x`\n```\n`b.rs`\n```";
    let file = Source {
        path: "x.md".into(),
        text: text.into(),
    };
    let found: Vec<_> = paths(&file)
        .into_iter()
        .map(|(_, path, target)| (path, target.unwrap_or_default()))
        .collect();
    let link = |path: &str, target: &str| (path.to_string(), target.to_string());
    let expected = [
        link("broker/src/a.rs", ""),
        link("x.rs", "y.rs"),
        link("docs/no.md", ""),
    ];
    assert_eq!(found, expected);
}
