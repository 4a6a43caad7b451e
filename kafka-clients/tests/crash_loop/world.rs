//! What all clients of a run share.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use kera_history::{Event, History, Lane, NamedThing, Order, Recorder};
use rdkafka::ClientConfig;

pub const TOPIC: &str = "crashed";
pub const PARTITIONS: i32 = 4;
pub const GROUP: &str = "readers";
/// The group's number in the history.
pub const READERS: u32 = 0;

/// Shared by all clients.
#[derive(Clone)]
pub struct World {
    inner: Arc<Inner>,
}

struct Inner {
    recorder: Recorder,
    bootstrap: String,
    /// What clients are told beyond what all are.
    settings: Vec<(&'static str, &'static str)>,
    acknowledged: AtomicU64,
    next_consumer: AtomicU32,
    next_lease: AtomicU64,
    complaints: Mutex<Vec<String>>,
}

impl World {
    pub fn new(path: &Path, title: &str, bootstrap: &str) -> Self {
        Self::with(path, title, bootstrap, Vec::new())
    }

    /// As [`new`](Self::new), for clients with more settings of librdkafka.
    pub fn with(
        path: &Path,
        title: &str,
        bootstrap: &str,
        settings: Vec<(&'static str, &'static str)>,
    ) -> Self {
        let recorder = Recorder::to_file(path, title).expect("a history can be written");
        for (thing, name) in [(NamedThing::Stream, TOPIC), (NamedThing::Group, GROUP)] {
            let name = name.to_owned();
            recorder.record(Event::Named { thing, id: 0, name });
        }
        recorder.record(Event::GroupDefined {
            group: READERS,
            stream: 0,
            order: Order::Lane,
        });
        Self {
            inner: Arc::new(Inner {
                recorder,
                bootstrap: bootstrap.to_owned(),
                settings,
                acknowledged: AtomicU64::new(0),
                next_consumer: AtomicU32::new(0),
                next_lease: AtomicU64::new(0),
                complaints: Mutex::new(Vec::new()),
            }),
        }
    }

    pub fn recorder(&self) -> &Recorder {
        &self.inner.recorder
    }

    /// What all clients are told.
    pub fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", &self.inner.bootstrap)
            .set("reconnect.backoff.ms", "20")
            .set("reconnect.backoff.max.ms", "200")
            .set("retry.backoff.ms", "20")
            .set("log_level", "2");
        for (name, value) in &self.inner.settings {
            config.set(*name, *value);
        }
        config
    }

    pub fn next_consumer(&self) -> u32 {
        self.inner.next_consumer.fetch_add(1, Ordering::SeqCst)
    }

    pub fn next_lease(&self) -> u64 {
        self.inner.next_lease.fetch_add(1, Ordering::SeqCst)
    }

    pub fn acknowledged(&self) -> u64 {
        self.inner.acknowledged.load(Ordering::SeqCst)
    }

    pub fn count_acknowledged(&self) {
        self.inner.acknowledged.fetch_add(1, Ordering::SeqCst);
    }

    /// Something that no client should ever see, whatever is done to the broker.
    pub fn complain(&self, what: String) {
        self.recorder().record(Event::Note { text: what.clone() });
        let complaints = self.inner.complaints.lock();
        let mut complaints = complaints.expect("no client panicked");
        // The first few tell what went wrong; the history has all of them.
        if complaints.len() < 10 {
            eprintln!("complaint: {what}");
            complaints.push(what);
        }
    }

    pub fn complaints(&self) -> Result<(), String> {
        let complaints = self.inner.complaints.lock().expect("no client panicked");
        if complaints.is_empty() {
            Ok(())
        } else {
            Err(format!("clients complain: {}", complaints.join("; ")))
        }
    }

    /// Ends recording. All other clients must be gone.
    pub fn finish(self) -> History {
        let inner = Arc::into_inner(self.inner).expect("all clients have ended");
        inner.recorder.finish().expect("the history is written")
    }
}

/// A partition as the history names it.
pub fn lane(partition: i32) -> Lane {
    Lane {
        stream: 0,
        streamlet: partition as u32,
        lane: 0,
    }
}

/// A key as histories name it.
pub fn hashed(key: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}
