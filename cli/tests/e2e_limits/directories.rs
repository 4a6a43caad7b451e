//! Data directories that a broker must not touch.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::machine::skip;
use crate::common::{Broker, Finished, finish, home, kera};

fn serve(directory: &Path) -> Finished {
    let mut serve = kera();
    serve
        .args(["serve", "--listen", "127.0.0.1:0", "--http-listen", "off"])
        .arg("--data-dir")
        .arg(directory);
    finish(serve, b"")
}

/// The broker does not start, and says what stands in the way in words that hold all of `words`.
fn refused(directory: &Path, words: &[&str]) {
    let finished = serve(directory);
    let said = &finished.stderr;
    assert_eq!(finished.status.code(), Some(1), "{said}");
    assert_eq!(finished.text(), "", "it never listened");
    let error = said
        .lines()
        .find(|line| line.starts_with("error: "))
        .unwrap_or_else(|| panic!("no error in {said}"));
    for word in words {
        assert!(error.contains(word), "{word} is not in {error}");
    }
}

/// A directory with one record in it, and no broker.
fn with_a_record() -> Broker {
    let mut broker = Broker::start();
    broker.run(&["stream", "create", "s"]);
    broker.feed(&["produce", "s", "-q"], b"kept\n");
    broker.kill();
    broker
}

/// All files below a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).expect("a directory can be listed") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found
}

/// The file that the record is in.
fn group_file(broker: &Broker) -> PathBuf {
    let logs = files(&broker.data_dir().join("streams"));
    let holds = |path: &PathBuf| {
        let bytes = fs::read(path).expect("a file can be read");
        bytes.windows(4).any(|window| window == b"kept")
    };
    logs.into_iter().find(holds).expect("the record's file")
}

fn has_its_record(mut broker: Broker) {
    broker.restart();
    assert_eq!(broker.run(&["consume", "s"]), "kept\n");
    broker.feed(&["produce", "s", "-q"], b"more\n");
    assert_eq!(broker.run(&["consume", "s"]), "kept\nmore\n");
}

#[test]
fn a_newer_store_is_left_to_the_newer_build() {
    let broker = with_a_record();
    let store = broker.data_dir().join("STORE");
    let ours = fs::read_to_string(&store).expect("the store's mark can be read");
    let newer = ours.replacen("kera store 1 ", "kera store 2 ", 1);
    assert_ne!(newer, ours);
    fs::write(&store, newer).expect("a file is written");
    let directory = broker.data_dir().display().to_string();
    refused(broker.data_dir(), &[&directory, "newer", "format 2"]);
    fs::write(&store, ours).expect("a file is written");
    has_its_record(broker);
}

#[test]
fn a_group_of_a_newer_format_is_left_to_the_newer_build() {
    let broker = with_a_record();
    let path = group_file(&broker);
    let ours = fs::read(&path).expect("a file can be read");
    assert_eq!(&ours[..8], b"KERASEG\0");
    let mut newer = ours.clone();
    newer[8] += 1;
    fs::write(&path, &newer).expect("a file is written");
    let name = path.file_name().expect("a name").to_string_lossy();
    refused(broker.data_dir(), &[&name, "newer"]);
    assert!(fs::read(&path).expect("it is still there") == newer);
    fs::write(&path, ours).expect("a file is written");
    has_its_record(broker);
}

#[test]
fn metadata_that_is_something_else_is_named() {
    let broker = with_a_record();
    let path = broker.data_dir().join("metadata.redb");
    let ours = fs::read(&path).expect("a file can be read");
    fs::write(&path, b"not a database".repeat(1_000)).expect("a file is written");
    refused(broker.data_dir(), &["metadata.redb", "damaged"]);
    fs::write(&path, ours).expect("a file is written");
    has_its_record(broker);
}

#[test]
fn what_is_no_data_directory_is_refused() {
    let home = home();
    let file = home.path().join("file");
    fs::write(&file, "mine").expect("a file is written");
    refused(&file, &[&file.display().to_string()]);
    assert_eq!(fs::read_to_string(&file).expect("still there"), "mine");

    let other = home.path().join("other");
    fs::create_dir(&other).expect("a directory can be made");
    fs::write(other.join("STORE"), "a shop's opening hours").expect("a file is written");
    refused(&other, &[&other.display().to_string(), "STORE"]);

    let foreign = home.path().join("foreign");
    fs::create_dir_all(foreign.join("pictures")).expect("a directory can be made");
    refused(&foreign, &[&foreign.display().to_string(), "pictures"]);
    assert!(foreign.join("pictures").is_dir());
}

#[test]
fn foreign_files_among_the_streams_are_left_alone() {
    let mut broker = with_a_record();
    let beside = group_file(&broker).with_file_name("notes.txt");
    let holiday = broker.data_dir().join("streams/holiday");
    fs::create_dir(&holiday).expect("a directory can be made");
    let foreign = [beside, holiday.join("picture")];
    for path in &foreign {
        fs::write(path, "mine").expect("a file is written");
    }
    broker.restart();
    assert!(broker.log().contains("holiday"), "{}", broker.log());
    assert_eq!(broker.run(&["consume", "s"]), "kept\n");
    broker.kill();
    for path in &foreign {
        let text = fs::read_to_string(path);
        assert_eq!(text.expect("it is still there"), "mine");
    }
    has_its_record(broker);
}

/// A directory that cannot be written, whoever we are; writable again when dropped.
struct ReadOnly {
    directory: PathBuf,
}

impl ReadOnly {
    fn mount(directory: &Path) -> Result<Self, String> {
        mount(&["--bind"], &[directory, directory])?;
        let mounted = Self {
            directory: directory.to_owned(),
        };
        mount(&["-o", "remount,bind,ro"], &[directory])?;
        Ok(mounted)
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.directory).status();
    }
}

fn mount(words: &[&str], paths: &[&Path]) -> Result<(), String> {
    let output = Command::new("mount")
        .args(words)
        .args(paths)
        .output()
        .map_err(|error| error.to_string())?;
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

#[test]
fn a_read_only_directory_is_named() {
    let broker = with_a_record();
    let mounted = match ReadOnly::mount(broker.data_dir()) {
        Ok(mounted) => mounted,
        Err(reason) => {
            let reason = format!("nothing can be mounted read-only here: {reason}");
            skip("e2e_limits read-only directory", &reason);
            return;
        }
    };
    let directory = broker.data_dir().display().to_string();
    refused(broker.data_dir(), &[&directory, "read-only"]);
    // A new directory in a place that cannot be written.
    let inside = broker.data_dir().join("new");
    refused(&inside, &[&inside.display().to_string(), "created"]);
    drop(mounted);
    has_its_record(broker);
}
