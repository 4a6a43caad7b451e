//! Power loss, a full disk and failing syncs.

use std::path::PathBuf;

use super::fault_file::{FaultFile, FaultOpener, FileFault};
use super::file::file_error;
use super::format::{FORMAT_VERSION, META, encode_summary};
use super::*;
use crate::store::creation;
use kera_records::StreamRecord;
use kera_records::config::StreamConfig;

fn open(file: &FaultFile) -> Result<EmbeddedStore, MetadataError> {
    EmbeddedStore::open_with(
        PathBuf::from("(fault)"),
        EmbeddedOptions {
            // Small, so that a few transactions make several commits.
            batch_operations: 8,
            ..EmbeddedOptions::default()
        },
        Box::new(FaultOpener(file.clone())),
    )
}

fn stream(number: u64) -> Transaction {
    let config = StreamConfig {
        streamlets: 3,
        ..StreamConfig::default()
    };
    let record = StreamRecord::new(format!("s{number}"), config, number);
    creation(&record, 1, 0).unwrap().0
}

/// The numbers of the streams that a store holds, in order.
fn numbers(store: &EmbeddedStore) -> Vec<u64> {
    let image = store.load().unwrap();
    let mut numbers: Vec<u64> = image.streams.iter().map(|s| s.created_ms).collect();
    numbers.sort_unstable();
    numbers
}

/// Commits streams 1 to `count`, each of which takes the next revision.
fn commit_streams(file: &FaultFile, count: u64) {
    let store = open(file).unwrap();
    for number in 1..=count {
        let state = file.0.clone();
        store.submit(
            stream(number),
            Box::new(move |outcome| {
                let revision = outcome.unwrap().revision;
                assert_eq!(revision, number);
                state.lock().acknowledged = revision;
            }),
        );
    }
    store.close();
}

#[test]
fn after_a_power_loss_everything_acknowledged_is_there_and_nothing_is_half_there() {
    let quiet = FaultFile::default();
    drop(open(&quiet).unwrap());
    let (made, first) = {
        let state = quiet.0.lock();
        (state.operations, state.operations)
    };
    commit_streams(&quiet, 12);
    let last = quiet.0.lock().operations;
    assert!(last > first + 20, "too few operations: {}", last - first);
    let mut beyond = 0;
    for at in made + 1..=last {
        for seed in [1, 0x9e37_79b9_7f4a_7c15 ^ at] {
            let file = FaultFile::default();
            drop(open(&file).unwrap());
            file.0.lock().power_loss_at = Some((at, seed));
            commit_streams(&file, 12);
            // How transactions fall into commits varies, so there may be fewer operations this time.
            let Some((bytes, acknowledged)) = file.0.lock().after_power_loss.take() else {
                continue;
            };
            let store = open(&FaultFile::holding(bytes)).unwrap();
            let found = numbers(&store);
            let revision = store.load().unwrap().revision;
            assert_eq!(found, (1..=revision).collect::<Vec<_>>());
            assert!(
                revision >= acknowledged,
                "operation {at}, seed {seed}: {acknowledged} acknowledged, {revision} found"
            );
            beyond += u64::from(revision > acknowledged);
            // And it can be used.
            store.commit(stream(100)).unwrap();
        }
    }
    assert!(
        beyond > 0,
        "no loss ever fell between a commit and its answer"
    );
}

#[test]
fn a_full_disk_refuses_and_the_store_recovers_when_space_returns() {
    let mut full = 0;
    let mut later = 0;
    for operations in 1..30 {
        let file = FaultFile::default();
        let store = open(&file).unwrap();
        store.commit(stream(1)).unwrap();
        {
            let mut state = file.0.lock();
            state.fault = Some((state.operations + operations, FileFault::Full));
        }
        let mut there = vec![1];
        let mut perhaps = None;
        for number in 2..8 {
            match store.commit(stream(number)) {
                Ok(_) => there.push(number),
                Err(error @ MetadataError::UnknownOutcome { .. }) => {
                    assert!(error.to_string().contains("no space"), "{error}");
                    perhaps = Some(number);
                }
                Err(error) => {
                    full += u32::from(matches!(error, MetadataError::Full { .. }));
                    assert!(error.is_definite());
                    assert!(
                        matches!(
                            error,
                            MetadataError::Full { .. } | MetadataError::Storage { .. }
                        ),
                        "{error}"
                    );
                }
            }
        }
        file.0.lock().fault = None;
        store.commit(stream(8)).unwrap();
        let mut found = numbers(&store);
        assert_eq!(found.pop(), Some(8));
        if found.last() == perhaps.as_ref() {
            there.extend(perhaps);
        }
        found.sort_unstable();
        there.sort_unstable();
        assert_eq!(found, there, "full after {operations} operations");
        later += u32::from(there.len() > 1);
        drop(store);
        assert_eq!(numbers(&open(&file).unwrap()).last(), Some(&8));
    }
    assert!(full > 20 && later > 5, "{full} {later}");
}

#[test]
fn after_a_failed_sync_the_answer_is_never_wrong() {
    let mut unknown = 0;
    let mut refused = 0;
    for fault in [FileFault::SyncLoses, FileFault::SyncLies] {
        for operations in 1..14 {
            let file = FaultFile::default();
            let store = open(&file).unwrap();
            {
                let mut state = file.0.lock();
                state.fault = Some((state.operations + operations, fault));
            }
            let mut certain = Vec::new();
            for number in 1..6 {
                match store.commit(stream(number)) {
                    Ok(_) => certain.push((number, true)),
                    Err(MetadataError::UnknownOutcome { .. }) => unknown += 1,
                    Err(error) => {
                        assert!(error.to_string().contains("planted"), "{error}");
                        certain.push((number, false));
                        refused += 1;
                    }
                }
            }
            // What a power loss leaves now; the store is not closed, which would write more.
            let disk = FaultFile::holding(file.0.lock().synced_bytes());
            for store in [&store, &open(&disk).unwrap()] {
                let found = numbers(store);
                for (number, there) in &certain {
                    assert_eq!(
                        found.contains(number),
                        *there,
                        "{fault:?} after {operations}: stream {number} in {found:?}"
                    );
                }
            }
        }
    }
    assert!(unknown > 0 && refused > 0, "{unknown} {refused}");
}

#[test]
fn a_newer_format_and_a_damaged_summary_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metadata.redb");
    drop(EmbeddedStore::open(&path, EmbeddedOptions::default()).unwrap());
    let write = |bytes: &[u8]| {
        let database = Database::create(&path).unwrap();
        let write = database.begin_write().unwrap();
        write
            .open_table(META)
            .unwrap()
            .insert("summary", bytes)
            .unwrap();
        write.commit().unwrap();
    };
    let summary = Summary {
        cluster: uuid::Uuid::nil(),
        revision: 3,
        values: 0,
        format: 99,
    };
    write(&encode_summary(&summary));
    let error = EmbeddedStore::open(&path, EmbeddedOptions::default())
        .err()
        .unwrap();
    assert_eq!(
        error,
        MetadataError::NewerFormat {
            path: path.clone(),
            found: 99,
            supported: FORMAT_VERSION
        }
    );
    let message = error.to_string();
    assert!(message.contains(path.to_str().unwrap()) && message.contains("99"));

    // As an older build left it.
    let summary = Summary {
        format: 1,
        ..summary
    };
    write(&encode_summary(&summary));
    let store = EmbeddedStore::open(&path, EmbeddedOptions::default()).unwrap();
    assert_eq!(store.load().unwrap().revision, 3);
    drop(store);

    let mut damaged = encode_summary(&summary);
    damaged[7] ^= 1;
    write(&damaged);
    let error = EmbeddedStore::open(&path, EmbeddedOptions::default())
        .err()
        .unwrap();
    assert!(error.to_string().contains("summary"), "{error}");

    // A record less than the summary counts.
    write(&encode_summary(&Summary {
        values: 1,
        ..summary
    }));
    let store = EmbeddedStore::open(&path, EmbeddedOptions::default()).unwrap();
    let error = store.load().unwrap_err();
    assert!(
        error.to_string().contains("should hold 1 records"),
        "{error}"
    );
}

#[test]
fn errors_of_the_file_are_told_apart() {
    let path = PathBuf::from("p");
    let io = |kind: std::io::ErrorKind| redb::StorageError::Io(kind.into());
    assert!(matches!(
        file_error(&path, io(std::io::ErrorKind::StorageFull)),
        MetadataError::Full { .. }
    ));
    assert!(matches!(
        file_error(&path, io(std::io::ErrorKind::PermissionDenied)),
        MetadataError::Storage { .. }
    ));
    assert!(matches!(
        file_error(&path, redb::StorageError::Corrupted("x".into())),
        MetadataError::Corrupt { .. }
    ));
}

/// Counts what is logged at info and above.
#[derive(Clone, Default)]
struct LineCount(Arc<std::sync::atomic::AtomicUsize>);

impl tracing::Subscriber for LineCount {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::INFO
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// The log may be on the disk that is full.
#[test]
fn a_full_disk_does_not_fill_the_log() {
    let file = FaultFile::default();
    let path = PathBuf::from("(fault)");
    let opener = Box::new(FaultOpener(file.clone()));
    let (database, summary) = file::open(&path, &*opener).unwrap();
    let database: Shared = Arc::new(RwLock::new(Some(database)));
    let mut writer = writer::Writer::new(path, database, opener, summary);
    // What is held back of the file for closing makes the first ones succeed.
    let mut fail = |batches: u64| {
        for number in 0..batches {
            // It strikes at the next operation, and one that opens the file again meets none.
            let mut state = file.0.lock();
            state.fault = Some((state.operations + 1, FileFault::SyncLoses));
            drop(state);
            writer.commit(&[stream(number)]).pop().unwrap().unwrap_err();
        }
    };
    // Lines that no thread listens for are found out at their first: see that somebody does.
    fail(1);
    let lines = LineCount::default();
    tracing::subscriber::with_default(lines.clone(), || fail(100));
    let told = lines.0.load(std::sync::atomic::Ordering::Relaxed);
    assert!(told <= 3, "{told} lines");
}
