//! A list of prepared transactions is how a client finds those that it has to end. A list that is answered names all of
//! them, also while their coordinators are killed, move, and read their state elsewhere.

use std::collections::BTreeSet;
use std::time::Duration;

use kera_metadata::{EtcdOptions, EtcdStore};
use kera_producer::{Producer, Record, TransactionHandle, Transactions};
use kera_protocol::partition::key_hash;
use kera_rpc::{Client, ClientOptions, RetryPolicy};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::{Trio, reassign};
use crate::common::{Broker, PATIENCE};

pub(super) const CREATE: [&str; 10] = [
    "stream",
    "create",
    "s",
    "--if-not-exists",
    "--streamlets",
    "3",
    "--replicas",
    "3",
    "--min-insync-replicas",
    "2",
];
/// Prepared before anything fails.
pub(super) const EARLY: usize = 12;
/// Streamlets of the internal stream, as by default.
pub(super) const COORDINATORS: u32 = 4;

/// A client that asks one broker for all that is prepared, again and again.
struct Lister {
    /// How many lists the broker has answered.
    answered: watch::Receiver<u64>,
    task: JoinHandle<()>,
}

impl Lister {
    fn start(runtime: &Runtime, broker: &str, prepared: watch::Receiver<BTreeSet<String>>) -> Self {
        let (count, answered) = watch::channel(0);
        let broker = broker.to_owned();
        let options = ClientOptions {
            retry: RetryPolicy {
                longest: Duration::from_millis(50),
                ..RetryPolicy::default()
            },
            ..ClientOptions::default()
        };
        let task = runtime.spawn(async move {
            let all = Transactions::new(Client::new(&broker, options).expect("an address"));
            loop {
                let before = prepared.borrow().clone();
                // A refusal is no list.
                let Ok(listed) = all.prepared("").await else {
                    continue;
                };
                let ids = listed.into_iter().map(|one| one.handle.transactional_id);
                let listed: BTreeSet<String> = ids.collect();
                let lacks: Vec<_> = before.difference(&listed).collect();
                assert!(lacks.is_empty(), "{broker} leaves out {lacks:?}");
                count.send_modify(|count| *count += 1);
            }
        });
        Self { answered, task }
    }

    /// Waits for a list that this broker was asked for from now on.
    async fn next(&self) {
        let mut answered = self.answered.clone();
        // The first one may have been on its way.
        let enough = *answered.borrow() + 2;
        let awaited = answered.wait_for(|count| *count >= enough);
        let awaited = tokio::time::timeout(PATIENCE, awaited).await;
        let counted = awaited.expect("the broker answers with a list");
        counted.expect("no list lacks anything");
    }

    /// It asks no more.
    async fn end(self) {
        self.task.abort();
        let ended = self.task.await;
        assert!(ended.is_err_and(|error| error.is_cancelled()));
    }
}

pub(super) fn id(number: usize) -> String {
    format!("job/{number}")
}

/// A transaction of its own producer, with records, that waits for somebody to end it.
pub(super) async fn prepare(bootstrap: &str, number: usize) -> TransactionHandle {
    let producer = Producer::builder()
        .bootstrap(bootstrap)
        .stream("s")
        .transactional_id(id(number))
        .build();
    let producer = producer.await.expect("a producer");
    let transaction = producer.transaction().await.expect("it begins");
    for record in 0..10_u32 {
        let key = record.to_be_bytes();
        let appended = transaction.append(&Record::keyed(&key, id(number).as_bytes()));
        drop(appended.expect("room"));
    }
    let prepared = transaction.prepare().await.expect("it is prepared");
    prepared.expect("it has records")
}

#[test]
fn no_prepared_transaction_is_left_out_while_coordinators_move() {
    let Some(mut trio) = Trio::start() else {
        return;
    };
    let all = trio.bootstrap();
    trio.run(&all, &CREATE, b"");
    let store = EtcdStore::open(&trio.etcd.address(), EtcdOptions::default());
    let store = store.expect("it opens");
    let runtime = Runtime::new().expect("a runtime");
    let (prepared, is_prepared) = watch::channel(BTreeSet::new());
    let mut handles = Vec::new();
    let prepare_next = |handles: &mut Vec<TransactionHandle>| {
        let number = handles.len();
        handles.push(runtime.block_on(prepare(&all, number)));
        prepared.send_modify(|prepared: &mut BTreeSet<String>| {
            prepared.insert(id(number));
        });
    };
    for _ in 0..EARLY {
        prepare_next(&mut handles);
    }
    let at = |number: usize| key_hash(id(number).as_bytes()) % COORDINATORS;
    let coordinators: BTreeSet<u32> = (0..EARLY).map(at).collect();
    assert_eq!(coordinators.len(), COORDINATORS as usize, "each has some");

    let lister = |broker: &Broker| Lister::start(&runtime, broker.address(), is_prepared.clone());
    let listers: Vec<Lister> = trio.brokers.iter().map(lister).collect();
    let all_list = |but: Option<usize>| {
        for (broker, lister) in listers.iter().enumerate() {
            if Some(broker) != but {
                runtime.block_on(lister.next());
            }
        }
    };
    all_list(None);
    for broker in 0..3 {
        let number = u32::try_from(broker + 1).expect("three brokers");
        let others: Vec<u32> = (1..=3).filter(|other| *other != number).collect();
        // From one that lives, which hears of it later than the next one.
        reassign(&store, number, &others);
        prepare_next(&mut handles);
        all_list(None);
        trio.brokers[broker].kill();
        reassign(&store, number, &others);
        prepare_next(&mut handles);
        all_list(Some(broker));
        trio.brokers[broker].restart();
        all_list(None);
        // It coordinates again when it is killed or loses them next.
        reassign(&store, others[0], &[number]);
        prepare_next(&mut handles);
        all_list(None);
    }
    for lister in listers {
        runtime.block_on(lister.end());
    }

    // Each one is ended by its handle, and none is listed then.
    runtime.block_on(async {
        let any = Transactions::new(Client::connect_to(&all).expect("addresses"));
        for handle in &handles {
            any.commit(handle).await.expect("it is committed");
        }
        let left = any.prepared("").await.expect("a list");
        assert_eq!(left, []);
    });
}
