//! The metadata store of a simulated cluster, and each broker's way to it: slow, cut off, and with answers that are
//! lost after what was asked for is done, or before.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use kera_metadata::{
    BrokerRecord, ClusterStore, Committed, Done, Image, Key, LiveBroker, Living, Membership,
    MemoryCluster, MemoryStore, MetadataError, MetadataStore, Record, StreamletRecord, Transaction,
    WatchLost, Watched,
};
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::{StreamId, StreamletId};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use uuid::Uuid;

use crate::dice::Dice;
use crate::os;

/// Operations of a transaction, as few as etcd takes.
const MOST_OPERATIONS: usize = 128;
/// How long a broker waits for a store that it does not reach.
const PATIENCE: Duration = Duration::from_secs(3);
/// Transactions of a broker that wait.
const WAITING: usize = 4096;
/// How often it is looked whether the store can be reached again.
const LOOK: Duration = Duration::from_millis(20);
/// The lease of a broker.
pub const LEASE: Duration = Duration::from_secs(5);

/// How the store is. Times are microseconds, chances are of 1,000.
#[derive(Clone, Copy, Debug)]
pub struct StoreMood {
    /// Shortest and longest way to it, and the same back.
    pub least: u64,
    pub most: u64,
    /// What was asked for is done, and the answer is lost.
    pub answer_lost: u64,
    /// What was asked for is lost on its way.
    pub request_lost: u64,
    /// A watch loses its place.
    pub watch_lost: u64,
    /// A change is told so much later, at most.
    pub late: u64,
}

struct Fate {
    dice: Dice,
    mood: StoreMood,
    /// Brokers that do not reach it.
    away: BTreeSet<u32>,
    /// Brokers that do not notice when their leases end.
    late: BTreeSet<u32>,
}

/// The one store, and who reaches it.
pub struct Store {
    cluster: Mutex<Arc<MemoryCluster>>,
    /// An older state of it, and the streams that it has.
    snapshot: Mutex<Option<MemoryStore>>,
    fate: Mutex<Fate>,
    /// When each broker was last heard of, and whether its lease has ended since.
    heard: Mutex<BTreeMap<u32, (Duration, bool)>>,
    /// Brokers whose present process has taken the lease.
    joined: Mutex<BTreeSet<u32>>,
}

impl Store {
    pub fn new(seed: u64, mood: StoreMood) -> Arc<Self> {
        Arc::new(Self {
            cluster: Mutex::new(Arc::new(MemoryCluster::over(MemoryStore::manual()))),
            snapshot: Mutex::default(),
            fate: Mutex::new(Fate {
                dice: Dice::new(seed, "store"),
                mood,
                away: BTreeSet::new(),
                late: BTreeSet::new(),
            }),
            heard: Mutex::default(),
            joined: Mutex::default(),
        })
    }

    fn cluster(&self) -> Arc<MemoryCluster> {
        self.cluster.lock().clone()
    }

    /// Takes a snapshot, as an operator does; the one before is gone.
    pub fn take_snapshot(&self) {
        let copy = os::calmly(|| self.cluster().store().copy_after_kill());
        *self.snapshot.lock() = Some(copy);
    }

    /// Whether a snapshot was taken that has all streams that there are: files of others would be set aside.
    pub fn can_be_put_back(&self) -> bool {
        let snapshot = self.snapshot.lock();
        let Some(snapshot) = snapshot.as_ref() else {
            return false;
        };
        let then = snapshot.load().expect("it is in memory").streams;
        let now = self.image().streams;
        let is_there = |id: StreamId| then.iter().any(|stream| stream.id == id);
        now.iter().all(|stream| is_there(stream.id))
    }

    /// Puts the store back to the snapshot; nobody is alive then. No broker may be running.
    pub fn put_back(&self) {
        let snapshot = self.snapshot.lock();
        let Some(snapshot) = snapshot.as_ref() else {
            return;
        };
        let copy = os::calmly(|| MemoryCluster::over(snapshot.copy_after_kill()));
        *self.cluster.lock() = Arc::new(copy);
        self.heard.lock().clear();
        self.joined.lock().clear();
    }

    /// What is recorded now.
    pub fn image(&self) -> Image {
        self.cluster().load().expect("it is in memory")
    }

    /// The id of a stream.
    pub fn stream_named(&self, name: &str) -> Option<StreamId> {
        let found = self.cluster().store().stream_named(name);
        found.expect("it is in memory")
    }

    /// The recorded owner of a streamlet, and its epoch.
    pub fn owner_of(&self, stream: StreamId, streamlet: StreamletId) -> Option<(u32, u32)> {
        let found = self.cluster().store().streamlet(stream, streamlet);
        let found = found.expect("it is in memory");
        found.map(|record| (record.owner, record.epoch.0))
    }

    /// The store forgets what was changed: watches that ask for it have to load anew.
    pub fn compact(&self) {
        os::calmly(|| self.cluster().forget_history());
    }

    /// Lets a broker reach it, or not.
    pub fn set_away(&self, broker: u32, away: bool) {
        let set = &mut self.fate.lock().away;
        if away {
            set.insert(broker)
        } else {
            set.remove(&broker)
        };
    }

    /// Has a broker take its lease for longer than it is, until it reaches the store again.
    pub fn make_late(&self, broker: u32) {
        self.fate.lock().late.insert(broker);
    }

    /// Whether the broker had not noticed the end of its lease, which it does now.
    fn notices(&self, broker: u32) -> bool {
        self.fate.lock().late.remove(&broker)
    }

    fn is_late(&self, broker: u32) -> bool {
        self.fate.lock().late.contains(&broker)
    }

    /// The process of a broker is gone: nobody keeps its lease alive.
    pub fn process_ended(&self, broker: u32) {
        self.joined.lock().remove(&broker);
    }

    fn is_away(&self, broker: u32) -> bool {
        self.fate.lock().away.contains(&broker)
    }

    fn throw<T>(&self, throw: impl FnOnce(&mut Dice, StoreMood) -> T) -> T {
        let fate = &mut *self.fate.lock();
        throw(&mut fate.dice, fate.mood)
    }

    fn way(&self) -> Duration {
        Duration::from_micros(self.throw(|dice, mood| dice.between(mood.least, mood.most)))
    }

    /// Ends the leases of brokers that were not heard of for as long as a lease is, and gives those who are back new
    /// ones. `runs` says which brokers run and are not stopped.
    pub fn look_at_leases(&self, runs: &BTreeMap<u32, bool>) {
        for (broker, runs) in runs {
            let reaches = *runs && self.joined.lock().contains(broker) && !self.is_away(*broker);
            let (ends, begins) = {
                let mut heard = self.heard.lock();
                let (last, ended) = heard.entry(*broker).or_insert((os::now(), false));
                let was_ended = *ended;
                if reaches {
                    (*last, *ended) = (os::now(), false);
                } else if os::now().saturating_sub(*last) > LEASE {
                    *ended = true;
                }
                (*ended && !was_ended, was_ended && !*ended)
            };
            if ends {
                os::log(&format!("the lease of broker {broker} ends"));
                os::calmly(|| match self.is_late(*broker) {
                    true => self.cluster().expire_unnoticed(*broker),
                    false => self.cluster().expire(*broker),
                });
            } else if begins {
                os::log(&format!("broker {broker} has a lease again"));
                let notices = self.notices(*broker);
                os::calmly(|| {
                    if notices {
                        self.cluster().expire(*broker);
                    }
                    self.cluster().revive(*broker);
                });
            }
        }
    }

    /// The way of a process on `node`, which is about to start.
    pub fn view(self: &Arc<Self>, broker: u32) -> Arc<dyn ClusterStore> {
        let (jobs, asked) = sync_channel::<(Transaction, Done)>(WAITING);
        let (answers, answered) = sync_channel(WAITING);
        let store = self.clone();
        os::on_node(broker, "store-requests", move || {
            carry_requests(&store, broker, &asked, &answers)
        });
        let store = self.clone();
        os::on_node(broker, "store-answers", move || {
            carry_answers(&store, broker, &answered)
        });
        let living = follow(self, broker, self.cluster().living());
        let controller = follow(self, broker, self.cluster().controller());
        Arc::new(View {
            store: self.clone(),
            broker,
            jobs: Mutex::new(jobs),
            living,
            controller,
        })
    }
}

type Answered = (Duration, Done, Result<Committed, MetadataError>);

fn unknown() -> MetadataError {
    MetadataError::UnknownOutcome {
        path: PathBuf::from("(simulated)"),
        detail: "the answer was lost".to_owned(),
    }
}

fn unavailable() -> MetadataError {
    MetadataError::Unavailable {
        store: "(simulated)".to_owned(),
        detail: "no way to it".to_owned(),
    }
}

/// Waits until the store is reached; false if that takes too long.
fn reach(store: &Store, broker: u32) -> bool {
    let until = os::now() + PATIENCE;
    while store.is_away(broker) {
        if os::now() >= until {
            return false;
        }
        os::sleep(LOOK);
    }
    true
}

fn carry_requests(
    store: &Store,
    broker: u32,
    asked: &Receiver<(Transaction, Done)>,
    answers: &SyncSender<Answered>,
) {
    while let Ok((transaction, done)) = asked.recv() {
        os::sleep(store.way());
        let (request_lost, answer_lost) = store.throw(|dice, mood| {
            (
                dice.chance(mood.request_lost),
                dice.chance(mood.answer_lost),
            )
        });
        let outcome = if !reach(store, broker) {
            Err(unavailable())
        } else if request_lost {
            Err(unknown())
        } else {
            let committed = os::calmly(|| store.cluster().commit(transaction));
            match committed {
                Ok(_) if answer_lost => Err(unknown()),
                committed => committed,
            }
        };
        // Who carries answers ends with the process.
        let _ = answers.send((os::now() + store.way(), done, outcome));
    }
}

fn carry_answers(store: &Store, broker: u32, answered: &Receiver<Answered>) {
    while let Ok((due, done, outcome)) = answered.recv() {
        os::sleep(due.saturating_sub(os::now()));
        let lost = !reach(store, broker);
        done(if lost && outcome.is_ok() {
            Err(unknown())
        } else {
            outcome
        });
    }
}

/// What the store tells of who is alive, as it comes to a broker.
fn follow<T: Clone + Send + Sync + 'static>(
    store: &Arc<Store>,
    broker: u32,
    mut told: watch::Receiver<T>,
) -> watch::Receiver<T> {
    let (sender, receiver) = watch::channel(told.borrow_and_update().clone());
    let store = store.clone();
    os::on_node(broker, "store-follow", move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.expect("a runtime");
        while runtime.block_on(told.changed()).is_ok() {
            os::sleep(store.way());
            while store.is_away(broker) {
                os::sleep(LOOK);
            }
            let now = told.borrow_and_update().clone();
            sender.send_replace(now);
        }
    });
    receiver
}

/// One broker's way to the store.
struct View {
    store: Arc<Store>,
    broker: u32,
    jobs: Mutex<SyncSender<(Transaction, Done)>>,
    living: watch::Receiver<Living>,
    controller: watch::Receiver<Option<u32>>,
}

impl View {
    fn ask<T>(
        &self,
        ask: impl FnOnce(&MemoryCluster) -> Result<T, MetadataError>,
    ) -> Result<T, MetadataError> {
        os::sleep(self.store.way());
        if !reach(&self.store, self.broker) {
            return Err(unavailable());
        }
        let answer = os::calmly(|| ask(&self.store.cluster()));
        os::sleep(self.store.way());
        answer
    }
}

impl MetadataStore for View {
    fn made_with(&self) -> Result<u32, MetadataError> {
        self.ask(|store| store.made_with())
    }

    fn load(&self) -> Result<Image, MetadataError> {
        self.ask(|store| store.load())
    }

    fn load_streamlet(&self, stream: StreamId, id: StreamletId) -> Result<Image, MetadataError> {
        self.ask(|store| store.load_streamlet(stream, id))
    }

    fn read(&self, key: &Key) -> Result<Option<Record>, MetadataError> {
        self.ask(|store| store.read(key))
    }

    fn streamlets(&self) -> Result<Vec<StreamletRecord>, MetadataError> {
        self.ask(|store| store.streamlets())
    }

    fn records_of(&self, kind: u8, stream: Option<StreamId>) -> Result<Image, MetadataError> {
        self.ask(|store| store.records_of(kind, stream))
    }

    fn submit(&self, transaction: Transaction, done: Done) {
        // Streams are created in parts, by however many writes.
        let compared = transaction.compare.len();
        if compared > MOST_OPERATIONS {
            let text = format!("{compared} comparisons; split it");
            let refused = WireError::new(ErrorCode::InvalidArgument, text);
            return done(Err(MetadataError::Invalid(refused)));
        }
        let sent = self.jobs.lock().try_send((transaction, done));
        match sent {
            Ok(()) => {}
            Err(TrySendError::Full((_, done))) => {
                done(Err(MetadataError::Overloaded { waiting: WAITING }))
            }
            Err(TrySendError::Disconnected((_, done))) => done(Err(MetadataError::Closed)),
        }
    }

    fn max_operations(&self) -> usize {
        MOST_OPERATIONS
    }

    fn close(&self) {}
}

impl ClusterStore for View {
    fn watch(&self, after: u64) -> mpsc::Receiver<Watched> {
        let mut told = os::calmly(|| self.store.cluster().watch(after));
        let (sender, receiver) = mpsc::channel(64);
        let (changes, told_late) = sync_channel(WAITING);
        let store = self.store.clone();
        os::on_node(self.broker, "store-watch", move || {
            // Each change has its own way, so that lateness does not add up over many of them.
            while let Some(watched) = told.blocking_recv() {
                let (lost, late) = store
                    .throw(|dice, mood| (dice.chance(mood.watch_lost), dice.between(0, mood.late)));
                let due = os::now() + store.way() + Duration::from_micros(late);
                if changes.send((due, lost, watched)).is_err() {
                    return;
                }
            }
        });
        let (store, broker) = (self.store.clone(), self.broker);
        os::on_node(broker, "store-told", move || {
            while let Ok((due, lost, watched)) = told_late.recv() {
                os::sleep(due.saturating_sub(os::now()));
                let is_cut = store.is_away(broker);
                while store.is_away(broker) {
                    os::sleep(LOOK);
                }
                // One that was cut off may find that its place is gone.
                let ends = watched.is_err()
                    || (lost && is_cut)
                    || (lost && store.throw(|dice, _| dice.chance(50)));
                let watched = if ends && watched.is_ok() {
                    Err(WatchLost {
                        detail: "its place is gone".to_owned(),
                    })
                } else {
                    watched
                };
                if sender.blocking_send(watched).is_err() || ends {
                    return;
                }
            }
        });
        receiver
    }

    fn join(&self, live: LiveBroker, ttl: Duration) -> Result<Membership, MetadataError> {
        let joined = self.ask(|store| {
            let joined = store.join(live, ttl);
            if joined.is_ok() {
                // Now: while the answer is on its way the lease of the process before must not end this one.
                let mut heard = self.store.heard.lock();
                heard.insert(self.broker, (os::now(), false));
            }
            joined
        });
        if joined.is_ok() {
            self.store.joined.lock().insert(self.broker);
            self.store.notices(self.broker);
        }
        joined
    }

    fn cluster(&self) -> Uuid {
        self.store.cluster().cluster()
    }

    fn brokers(&self) -> Result<Vec<BrokerRecord>, MetadataError> {
        self.ask(|store| store.brokers())
    }

    fn living(&self) -> watch::Receiver<Living> {
        self.living.clone()
    }

    fn controller(&self) -> watch::Receiver<Option<u32>> {
        self.controller.clone()
    }
}
