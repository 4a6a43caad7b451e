//! A store of many groups: it loads whole, and prints how long that took.

mod support;

use std::time::Instant;

use kera_metadata::*;
use support::*;

#[test]
fn many_groups_load_whole() {
    // The figure that counts is of `cargo test --release`: 100,000 groups within 2 s.
    let groups = if cfg!(debug_assertions) {
        20_000
    } else {
        100_000
    };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metadata.redb");
    let start = Instant::now();
    let store = embedded(&directory);
    fill(&store, groups);
    println!("{groups} groups written in {:?}", start.elapsed());
    // What a kill leaves, taken before the store closes cleanly.
    let killed = directory.path().join("killed.redb");
    std::fs::copy(&path, &killed).unwrap();
    let before = store.load().unwrap();
    drop(store);

    for (name, path) in [("a clean stop", &path), ("a kill", &killed)] {
        let start = Instant::now();
        let store = EmbeddedStore::open(path, EmbeddedOptions::default()).unwrap();
        let opened = start.elapsed();
        let image = store.load().unwrap();
        let loaded = start.elapsed() - opened;
        let bumped = store.bump_epochs(7).unwrap();
        println!(
            "after {name}: opened and verified in {opened:?}, {} groups loaded in {loaded:?}, new epochs in {:?}; file {} MiB",
            image.groups.len(),
            start.elapsed() - opened - loaded,
            std::fs::metadata(path).unwrap().len() >> 20,
        );
        assert_eq!(image, before);
        assert_eq!(image.groups.len() as u64, groups);
        assert_eq!(bumped.len(), 4);
    }
}
