//! The files that the broker holds are what their sources give, and small.

use std::fs;
use std::io::Write;
use std::process::Command;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::common::machine;
use crate::{node_folder, ran, repository};

const BUILD: Duration = Duration::from_secs(180);
/// Of all files, as a browser would load them.
const MOST_BYTES: usize = 150 << 10;
const FILES: [&str; 4] = ["index.html", "console.js", "console.css", "licenses.txt"];

#[test]
fn the_console_is_small_and_names_the_licences_of_what_is_in_it() {
    let mut bytes = 0;
    for file in FILES {
        let content = fs::read(repository("broker/console/dist").join(file)).expect("a built file");
        let mut packed = GzEncoder::new(Vec::new(), Compression::best());
        packed.write_all(&content).expect("memory can be written");
        bytes += packed.finish().expect("memory can be written").len();
    }
    assert!(bytes <= MOST_BYTES, "the console has {bytes} bytes, packed");
    let licences = fs::read_to_string(repository("broker/console/dist/licenses.txt"));
    let licences = licences.expect("a built file");
    let packages = fs::read_to_string(repository("broker/console/package.json"));
    let packages: serde_json::Value =
        serde_json::from_str(&packages.expect("the list of packages")).expect("JSON");
    for (name, version) in packages["dependencies"].as_object().expect("dependencies") {
        let version = version.as_str().expect("a version");
        let wanted = format!("{} {version}", name.to_lowercase());
        let found = licences.to_lowercase().contains(&wanted);
        assert!(found, "licenses.txt does not have {wanted}");
    }
    assert!(licences.contains("Permission is hereby granted"));
}

#[test]
fn the_built_files_are_what_the_sources_give() {
    let sources = [
        "index.html",
        "tsconfig.json",
        "vite.config.ts",
        "src",
        "public",
    ];
    let Some(folder) = node_folder("broker/console", &sources) else {
        machine::skip(
            "the built files of the console are compared",
            "needs npm and its registry",
        );
        return;
    };
    for words in [
        &["run", "--silent", "check"][..],
        &["run", "--silent", "build"],
    ] {
        let mut command = Command::new("npm");
        command.current_dir(&folder).args(words);
        let (good, said) = ran(command, BUILD);
        assert!(good, "npm {}: {said}", words.join(" "));
    }
    for file in FILES {
        let fresh = fs::read(folder.join("dist").join(file)).expect("a built file");
        let stored = fs::read(repository("broker/console/dist").join(file)).unwrap_or_default();
        assert!(
            fresh == stored,
            "broker/console/dist/{file} is not what the sources give: run `cd broker/console && npm ci && npm run build`"
        );
    }
    let known = fs::read_dir(folder.join("dist"))
        .expect("the built files")
        .count();
    assert_eq!(
        known,
        FILES.len(),
        "the broker does not serve all files of the console"
    );
}
