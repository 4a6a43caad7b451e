//! The fuzz targets' checks over the corpus in `fuzz/corpus`, each input as it is and mutated.
//!
//! `make fuzz` runs the same checks on inputs that a fuzzer makes up. What it finds to break a
//! check belongs into the corpus with the mend, so that this test meets it ever after.

use std::fs;
use std::path::{Path, PathBuf};

use kera_log_segments::io::fault::FaultIo;
use kera_log_segments::io::{Io, OpenHow};
use kera_log_segments::scan::{ScanSpec, scan};

#[path = "../../fuzz/checks/batch.rs"]
mod batch;
#[path = "../../fuzz/checks/frame.rs"]
mod frame;
#[path = "fuzz/mutate.rs"]
mod mutate;
#[path = "fuzz/seeds.rs"]
mod seeds;
#[path = "../../fuzz/checks/segment_scan.rs"]
mod segment_scan;

fn corpus(target: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../fuzz/corpus")
        .join(target)
}

fn replay(target: &str, check: fn(&[u8])) {
    mutate::replay(&corpus(target), check);
}

#[test]
fn batch_corpus() {
    replay("batch", batch::check);
}

#[test]
fn frame_corpus() {
    replay("frame", frame::check);
}

#[test]
fn segment_scan_corpus() {
    replay("segment_scan", segment_scan::check);
}

/// The seeds are what today's encoders make: they reach beyond the first check, and a layout that
/// changes by accident shows here. Compressed ones may come out otherwise with another version of
/// their codec. With `KERA_REGENERATE=1` the test writes them.
#[test]
fn seeds_are_what_the_encoders_make() {
    for seed in seeds::all() {
        let path = corpus(seed.target).join(&seed.name);
        if std::env::var_os("KERA_REGENERATE").is_some() {
            fs::create_dir_all(corpus(seed.target)).expect("the corpus can be made");
            fs::write(&path, &seed.bytes).expect("a seed can be written");
        }
        let stored = fs::read(&path).unwrap_or_default();
        assert!(
            stored == seed.bytes || (seed.compressed && !stored.is_empty()),
            "{} is not what the encoders make; if that is meant, run `make regenerate`",
            path.display()
        );
    }
}

/// Inputs that stop at the first check would prove nothing.
#[test]
fn the_groups_among_the_seeds_are_walked_as_far_as_they_are_whole() {
    let io = FaultIo::new(1);
    let mut walked = Vec::new();
    let groups = seeds::all()
        .into_iter()
        .filter(|seed| seed.target == "segment_scan");
    for seed in groups.filter(|seed| seed.name != "no-size") {
        let path = Path::new("/").join(&seed.name);
        let file = io
            .open(&path, OpenHow::CreateNew, false)
            .expect("an empty disk takes a file");
        io.plant(&path, 0, &seed.bytes).expect("the file is there");
        let spec = ScanSpec {
            verify_all: true,
            ..ScanSpec::default()
        };
        let found = scan(file.as_ref(), &spec, |_, _| {}).expect("a seed has a header");
        walked.push((
            seed.name,
            found.batches,
            found.mark.map(|mark| mark.sequence),
        ));
    }
    let expected = [
        ("three-segments", 6),
        ("one-segment", 2),
        ("empty", 0),
        ("torn", 4),
        ("stale", 2),
    ]
    .map(|(name, batches)| (name.to_string(), batches, Some(7)));
    assert_eq!(walked, expected);
}
