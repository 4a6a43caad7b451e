//! The file: kept over stops and kills, and refused when it cannot be trusted.

mod support;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, mpsc};

use kera_metadata::*;
use kera_protocol::ids::Epoch;
use support::*;

fn open(path: &Path) -> Result<EmbeddedStore, MetadataError> {
    EmbeddedStore::open(path, EmbeddedOptions::default())
}

#[test]
fn what_was_committed_is_there_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let store = embedded(&directory);
    fill(&store, 40);
    store.allocate_producer_ids(100).unwrap();
    let before = store.load().unwrap();
    drop(store);
    let store = embedded(&directory);
    assert_eq!(store.load().unwrap(), before);
    assert_eq!(store.allocate_producer_ids(1).unwrap(), 101..102);
    assert_eq!(
        std::fs::read_dir(directory.path()).unwrap().count(),
        1,
        "nothing is left beside the file"
    );
}

#[test]
fn the_floor_of_epochs_is_there_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let store = embedded(&directory);
    let (old, _) = store.create_stream(stream("a"), 1).unwrap();
    store.bump_epochs(1).unwrap();
    let old = store.stream(old.id).unwrap().unwrap();
    store.commit(delete_stream(&old)).unwrap();
    drop(store);
    let store = embedded(&directory);
    assert_eq!(
        store.load().unwrap().counters,
        vec![(Counter::EpochFloor, 2)]
    );
    let (_, streamlets) = store.create_stream(stream("a"), 1).unwrap();
    assert!(streamlets.iter().all(|s| s.epoch == Epoch(3)));
}

#[test]
fn settings_and_rules_are_there_after_a_restart_and_apart_from_what_older_builds_read() {
    use redb::{ReadableDatabase, ReadableTable, TableDefinition};

    let directory = tempfile::tempdir().unwrap();
    let store = embedded(&directory);
    fill(&store, 4);
    let mut record = store.settings(Some(1)).unwrap();
    record.values.insert("a.b".into(), "1".into());
    let compare = Compare::revision(Key::Settings(Some(1)), 0);
    let write = Write::PutSettings(record.clone());
    let put = Transaction::new(vec![compare], vec![write]);
    record.revision = store.commit(put).unwrap().revision;
    let compare = Compare::revision(Key::Rules, 0);
    let write = Write::PutRules(RulesRecord::default());
    let put = Transaction::new(vec![compare], vec![write]);
    let rules = store.commit(put).unwrap().revision;
    let path = store.path().to_owned();
    drop(store);
    {
        let file = redb::Database::open(&path).unwrap();
        let read = file.begin_read().unwrap();
        let records: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("records");
        let records = read.open_table(records).unwrap();
        let strange = |key: &[u8]| {
            Key::decode(key).is_none_or(|k| matches!(k, Key::Settings(_) | Key::Rules))
        };
        for entry in records.iter().unwrap() {
            let (key, _) = entry.unwrap();
            assert!(!strange(key.value()), "{:?}", key.value());
        }
    }
    let store = embedded(&directory);
    assert_eq!(store.load().unwrap().settings, vec![record.clone()]);
    assert_eq!(store.settings(Some(1)).unwrap(), record);
    assert_eq!(store.settings(None).unwrap().revision, 0);
    assert_eq!(store.rules().unwrap().revision, rules);
}

#[test]
fn an_acknowledged_transaction_is_in_the_file_before_its_callback_runs() {
    let directory = tempfile::tempdir().unwrap();
    let store = Arc::new(embedded(&directory));
    let (sender, receiver) = mpsc::sync_channel(32);
    for n in 0..20 {
        let name = format!("s{n}");
        let (transaction, _) = creation(&stream(&name), 1, 0).unwrap();
        let (from, to) = (store.path().to_path_buf(), directory.path().join(&name));
        let sender = sender.clone();
        store.submit(
            transaction,
            Box::new(move |outcome| {
                outcome.unwrap();
                // On the store's thread, so nothing is being written; the file was never closed.
                std::fs::copy(from, &to).unwrap();
                sender.send((name, to)).unwrap();
            }),
        );
    }
    drop(sender);
    let mut acknowledged = BTreeSet::new();
    for (name, copy) in receiver {
        acknowledged.insert(name);
        let found = open(&copy).unwrap().load().unwrap();
        let found: BTreeSet<_> = found.streams.into_iter().map(|s| s.name).collect();
        assert!(found.is_superset(&acknowledged), "{found:?}");
    }
    assert_eq!(acknowledged.len(), 20);
}

#[test]
fn a_second_opening_is_refused_while_the_first_lasts() {
    let directory = tempfile::tempdir().unwrap();
    let store = embedded(&directory);
    let path = store.path().to_path_buf();
    let error = open(&path).err().unwrap();
    assert_eq!(error, MetadataError::Locked { path: path.clone() });
    assert!(error.to_string().contains("in use by another process"));
    store.close();
    open(&path).unwrap();
}

#[test]
fn a_kill_while_the_file_was_made_leaves_nothing_in_the_way() {
    let directory = tempfile::tempdir().unwrap();
    for left_behind in [&b""[..], b"half a file"] {
        let path = directory.path().join(format!("{}", left_behind.len()));
        std::fs::write(
            directory.path().join(format!("{}.new", left_behind.len())),
            left_behind,
        )
        .unwrap();
        open(&path).unwrap().create_stream(stream("a"), 1).unwrap();
        assert_eq!(open(&path).unwrap().load().unwrap().streams.len(), 1);
    }
}

#[test]
fn foreign_and_damaged_files_are_refused_by_name_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &[u8]| {
        let path = directory.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    };
    let paths = [
        file("empty", b""),
        file("text", b"not a store\n"),
        file("zeros", &[0; 65_536]),
        directory.path().to_path_buf(),
    ];
    for path in paths {
        let before = std::fs::read(&path).ok();
        let error = open(&path).err().unwrap();
        assert!(matches!(error, MetadataError::Corrupt { .. }), "{error:?}");
        assert!(error.to_string().contains(path.to_str().unwrap()));
        assert_eq!(std::fs::read(&path).ok(), before);
    }
    let foreign = directory.path().join("foreign");
    {
        let database = redb::Database::create(&foreign).unwrap();
        let write = database.begin_write().unwrap();
        let table = redb::TableDefinition::<u64, u64>::new("other");
        write.open_table(table).unwrap().insert(1, 1).unwrap();
        write.commit().unwrap();
    }
    let error = open(&foreign).err().unwrap();
    assert!(error.to_string().contains("of another program"), "{error}");
    let nowhere = directory.path().join("no/such/directory");
    assert!(matches!(open(&nowhere), Err(MetadataError::Storage { .. })));
}

/// A store with a few of everything, as bytes of its file after a clean stop and after a kill.
fn sample(directory: &tempfile::TempDir) -> (Image, Vec<u8>, Vec<u8>) {
    let store = embedded(directory);
    let path = store.path().to_path_buf();
    fill(&store, 200);
    store.create_stream(stream("second"), 3).unwrap();
    store.allocate_producer_ids(5).unwrap();
    let image = store.load().unwrap();
    let killed = std::fs::read(&path).unwrap();
    drop(store);
    (image, std::fs::read(&path).unwrap(), killed)
}

/// Opens damaged bytes: refused, or whole. Counts the refusals.
fn refused_or_whole(path: &Path, bytes: &[u8], expected: &Image, what: &str) -> bool {
    std::fs::write(path, bytes).unwrap();
    let store = match open(path) {
        Ok(store) => store,
        Err(error) => {
            assert!(
                error.to_string().contains(path.to_str().unwrap()),
                "{what}: {error}"
            );
            return true;
        }
    };
    match store.load() {
        Ok(image) => {
            assert_eq!(&image, expected, "{what} went unnoticed");
            // Whatever was hit is not in the way of what comes next.
            let (added, _) = store.create_stream(stream("next"), 1).unwrap();
            drop(store);
            let image = open(path).unwrap().load().unwrap();
            assert_eq!(image.streams.len(), expected.streams.len() + 1, "{what}");
            assert!(image.streams.contains(&added));
            assert_eq!(image.groups, expected.groups, "{what}");
            false
        }
        Err(_) => true,
    }
}

#[test]
fn no_flipped_bit_goes_unnoticed() {
    let directory = tempfile::tempdir().unwrap();
    let (image, clean, killed) = sample(&directory);
    let path = directory.path().join("damaged.redb");
    for (kind, bytes) in [("stopped", &clean), ("killed", &killed)] {
        assert!(!refused_or_whole(&path, bytes, &image, kind));
        let mut refused = 0;
        // Every part of the header, and a sample of the rest, at a distance prime to page sizes.
        let rest = (4096..bytes.len()).step_by((bytes.len() / 50) | 1);
        for at in (0..400).step_by(11).chain(rest) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            let what = format!("{kind}: a bit of byte {at}");
            refused += u32::from(refused_or_whole(&path, &damaged, &image, &what));
        }
        assert!(refused > 5, "the damage hit nothing: {refused}");
    }
}

#[test]
fn a_cut_file_is_refused_or_whole() {
    let directory = tempfile::tempdir().unwrap();
    let (image, clean, killed) = sample(&directory);
    let path = directory.path().join("cut.redb");
    for bytes in [&clean, &killed] {
        for length in (0..bytes.len()).step_by(bytes.len() / 23) {
            let what = format!("cut to {length}");
            assert!(
                refused_or_whole(&path, &bytes[..length], &image, &what),
                "{what}"
            );
        }
    }
}

#[test]
fn reads_go_on_beside_writes() {
    let directory = tempfile::tempdir().unwrap();
    let store = Arc::new(embedded(&directory));
    let streamlets = fill(store.as_ref(), 100);
    let reader = {
        let store = store.clone();
        std::thread::spawn(move || {
            let mut last = 0;
            for _ in 0..50 {
                let image = store.load().unwrap();
                assert!(image.revision >= last);
                last = image.revision;
                // Each transaction below writes one start in each of two lanes, or none.
                assert!(image.lane_starts.len().is_multiple_of(2));
            }
        })
    };
    for n in 0..100 {
        let mut transaction = put_start(&streamlets[n % 4], 0, n as u64);
        transaction
            .write
            .extend(put_start(&streamlets[n % 4], 1, n as u64).write);
        store.commit(transaction).unwrap();
    }
    reader.join().unwrap();
}
