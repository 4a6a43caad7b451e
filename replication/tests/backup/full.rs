//! Shared memory that is full is refused, and ends no process: on a small file system of the test's
//! own, where the machine lets it make one.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use kera_replication::backup::{BackupStore, Limits, ShmMemory, ShmOptions};
use kera_replication::faults::Faults;
use kera_replication::transport::Refusal;

use crate::content::{SEGMENT, copy, segment};
use crate::stage::Ask;

const DIR: &str = "KERA_TEST_SMALL_DIR";
/// As small as shared memory gets, and a quota that fits it if nobody else takes any.
const SIZE: u64 = 1 << 20;

/// Runs in a mount namespace of its own, with `SIZE` bytes of shared memory at `DIR`.
#[test]
fn within_a_small_file_system() {
    let Some(dir) = std::env::var_os(DIR) else {
        return;
    };
    let dir = Path::new(&dir);
    let options = ShmOptions {
        dir: dir.join("shared"),
        disk: None,
        quota: SIZE,
    };
    let limits = Limits {
        memory_bytes: SIZE,
        copies_in_memory: 100,
        ..Limits::default()
    };
    let store = BackupStore::start(ShmMemory::new(options), limits, Faults::default());
    let store = store.expect("starts");
    // A freed copy's memory stays warm; whoever needs room gets it.
    let spare = copy(1, 7);
    store.fill(&spare, &segment(&spare, 2, 500)).expect("fills");
    store.free(&spare, 7).expect("is freed");

    // Somebody else takes most of the machine's memory.
    let mut other = File::create(dir.join("other")).expect("a file");
    other
        .write_all(&vec![1; (SIZE / 2) as usize])
        .expect("there is room");
    let content = |group| segment(&copy(group, 7), 3, 5000);
    let mut filled = 0;
    let refused = loop {
        let group = filled + 2;
        match store.fill(&copy(group, 7), &content(group)) {
            Ok(()) => filled += 1,
            Err(refusal) => break refusal,
        }
    };
    assert!(matches!(refused, Refusal::NoRoom { .. }), "{refused:?}");
    let expected = SIZE / 2 / u64::from(SEGMENT);
    assert!(
        (expected - 3..=expected).contains(&filled),
        "{filled} of {expected}"
    );
    for group in 2..filled + 2 {
        let content = content(group);
        let bytes = store.bytes(&copy(group, 7), content.bytes.len());
        assert!(bytes == content.bytes, "group {group}");
    }
    // What was refused left nothing behind, and room is found again when there is some.
    drop(other);
    std::fs::remove_file(dir.join("other")).expect("is removed");
    let again = copy(filled + 2, 7);
    store
        .fill(&again, &content(filled + 2))
        .expect("there is room");
    println!("\nfull memory was refused");
}

#[test]
fn full_shared_memory_is_refused_and_ends_no_process() {
    let dir = tempfile::tempdir().expect("a directory");
    let script = r#"mount -t tmpfs -o size=1m none "$0" || exit 77; exec "$@""#;
    let run = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script])
        .arg(dir.path())
        .arg(std::env::current_exe().expect("this binary"))
        .args(["--exact", "full::within_a_small_file_system", "--nocapture"])
        .env(DIR, dir.path())
        .output();
    let run = match run {
        Ok(run) => run,
        Err(error) => return skip(&format!("unshare cannot be run: {error}")),
    };
    let said = String::from_utf8_lossy(&run.stdout).into_owned();
    let complained = String::from_utf8_lossy(&run.stderr).into_owned();
    // The test's binary itself ends with 0 or 101.
    if !run.status.success() && run.status.code().is_some_and(|code| code != 101) {
        return skip(&format!("no file system can be mounted here: {complained}"));
    }
    assert!(
        said.contains("full memory was refused"),
        "{said}{complained}"
    );
}

/// Says loudly that the test did not run here; `make test` counts and lists it.
fn skip(reason: &str) {
    let line = format!("SKIPPED: full shared memory: {}", reason.trim());
    eprintln!("{line}");
    if let Some(path) = std::env::var_os("KERA_SKIP_FILE") {
        let file = File::options().create(true).append(true).open(path);
        let written = file.and_then(|mut file| writeln!(file, "{line}"));
        written.expect("the list for the summary can be written");
    }
}
