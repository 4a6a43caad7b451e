//! The files of the repository, without what builds and runs leave behind, and how a rule tells what breaks it. The
//! rules themselves are tests: `make house`.
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};

/// What holds no sources: build output, git's own, data of a broker run in place.
const NOT_SOURCES: [&str; 6] = [
    "target",
    ".git",
    "kera-data",
    "corpus",
    "artifacts",
    "node_modules",
];

/// The repository's root.
pub fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().expect("xtask has a parent").to_path_buf()
}

/// One file, read.
pub struct Source {
    /// Relative to the root, with forward slashes.
    pub path: String,
    /// Its text.
    pub text: String,
}

impl Source {
    /// True for what a generator wrote: it follows the generator's rules, not ours.
    pub fn is_generated(&self) -> bool {
        self.text
            .lines()
            .take(3)
            .any(|line| line.contains("@generated"))
    }

    /// The file's lines with their numbers, from 1.
    pub fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text
            .lines()
            .enumerate()
            .map(|(at, line)| (at + 1, line))
    }
}

/// Every text file of the repository whose name ends with one of `endings`, in order of path.
/// An empty list means every text file.
pub fn files(endings: &[&str]) -> Vec<Source> {
    let root = root();
    let mut found = Vec::new();
    walk(&root, &mut found);
    found.sort();
    let mut out = Vec::new();
    for path in found {
        let name = path.strip_prefix(&root).expect("below the root");
        let name = name.to_string_lossy().replace('\\', "/");
        if !endings.is_empty() && !endings.iter().any(|end| name.ends_with(end)) {
            continue;
        }
        // What is not UTF-8 is data, not text.
        if let Ok(text) = fs::read_to_string(&path) {
            out.push(Source { path: name, text });
        }
    }
    assert!(
        !out.is_empty(),
        "no file ends with {endings:?} below {root:?}"
    );
    out
}

fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder).expect("the source tree can be read");
    for entry in entries {
        let entry = entry.expect("the source tree can be read");
        let kind = entry.file_type().expect("the source tree can be read");
        let name = entry.file_name();
        // In a second work tree git's own is a file, which names the first.
        if NOT_SOURCES.iter().any(|skip| name == *skip) {
            continue;
        }
        if kind.is_dir() {
            walk(&entry.path(), found);
        } else if kind.is_file() {
            found.push(entry.path());
        }
    }
}

/// Fails with every line of `broken`, so that one run shows all there is to mend.
pub fn check(rule: &str, broken: Vec<String>) {
    assert!(
        broken.is_empty(),
        "{rule}; {} place(s):\n  {}",
        broken.len(),
        broken.join("\n  ")
    );
}
