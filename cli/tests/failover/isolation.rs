//! Transfers between accounts, over kills of brokers: transactions read and append to lists, as their clients have locked
//! them. What they saw is one order of transactions, or the checker of isolation tells why not.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kera_consumer::Reader;
use kera_history::isolation::{Operation, Outcome, Transaction, check_all};
use kera_producer::{Producer, Record, TransactionError};
use tokio::runtime::Runtime;
use tokio::sync::{OwnedMutexGuard, watch};

use super::Trio;
use crate::common::PATIENCE;

/// Accounts. Each is a list of what was transferred, in the records of one key.
const LISTS: u32 = 8;
const CLIENTS: u64 = 4;
/// A run counts if so many have ended each way,
const COMMITS: usize = 150;
const ABORTS: usize = 20;
/// and each broker was killed.
const KILLS: usize = 3;

/// What its clients know of an account, under its lock: the last value that was committed to it; `None` from a transfer on of
/// which nobody knows how it ended.
type Account = Option<Option<u64>>;

struct Bank {
    bootstrap: String,
    accounts: Vec<Arc<tokio::sync::Mutex<Account>>>,
    history: Mutex<Vec<Transaction>>,
    next: Mutex<u64>,
    ended: watch::Sender<(usize, usize)>,
    is_over: watch::Receiver<bool>,
}

impl Bank {
    /// What is committed, by list.
    async fn read(&self) -> Option<BTreeMap<u32, Vec<u64>>> {
        let reader = Reader::builder().bootstrap(&self.bootstrap);
        let reader = reader.stream("accounts").follow(false).open().await;
        let mut reader = reader.ok()?;
        let mut lists: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        while let Some(batch) = reader.next_batch().await.ok()? {
            for record in batch.owned_records().expect("whole records") {
                let key = record.key.expect("a key");
                let list = u32::from_be_bytes(key[..].try_into().expect("four bytes"));
                let value = record.value.expect("a value");
                let value = u64::from_be_bytes(value[..].try_into().expect("eight bytes"));
                lists.entry(list).or_default().push(value);
            }
        }
        Some(lists)
    }

    /// Waits until a reader sees what was committed last to each of these.
    async fn read_past(&self, seen: &[(u32, Option<u64>)]) -> BTreeMap<u32, Vec<u64>> {
        let begin = Instant::now();
        loop {
            let lists = self.read().await;
            let is_seen = |lists: &BTreeMap<u32, Vec<u64>>| {
                seen.iter().all(|(list, last)| {
                    let values = lists.get(list).map_or(&[][..], Vec::as_slice);
                    last.is_none_or(|last| values.contains(&last))
                })
            };
            if let Some(lists) = lists.filter(is_seen) {
                return lists;
            }
            assert!(begin.elapsed() < PATIENCE, "{seen:?} are not read");
            tokio::task::yield_now().await;
        }
    }

    /// One transfer.
    async fn transfer(&self, producer: &Producer, dice: u64) {
        let one = (dice % u64::from(LISTS)) as u32;
        let other = (one + 1 + (dice / 8 % u64::from(LISTS - 1)) as u32) % LISTS;
        let lists = [one.min(other), one.max(other)];
        let mut locked: Vec<OwnedMutexGuard<Account>> = Vec::new();
        for list in lists {
            locked.push(self.accounts[list as usize].clone().lock_owned().await);
        }
        let known: Option<Vec<(u32, Option<u64>)>> = lists
            .iter()
            .zip(&locked)
            .map(|(list, account)| Some((*list, (**account)?)))
            .collect();
        let Some(known) = known else {
            return;
        };
        let seen = self.read_past(&known).await;
        let mut operations: Vec<Operation> = Vec::new();
        for list in lists {
            operations.push(Operation::Read {
                list,
                values: seen.get(&list).cloned().unwrap_or_default(),
            });
        }
        let Ok(transaction) = producer.transaction().await else {
            return;
        };
        let mut last = [0; 2];
        let mut is_taken = true;
        for (at, list) in [(0, lists[0]), (1, lists[1]), (0, lists[0])] {
            let value = {
                let mut next = self.next.lock().expect("no panic");
                *next += 1;
                *next
            };
            last[at] = value;
            operations.push(Operation::Append { list, value });
            let (key, value) = (list.to_be_bytes(), value.to_be_bytes());
            let appended = transaction.append_wait(&Record::keyed(&key, &value)).await;
            is_taken &= appended.is_ok();
        }
        let outcome = match is_taken && !(dice / 64).is_multiple_of(5) {
            false => match transaction.abort().await {
                Err(TransactionError::Committed) => Outcome::Committed,
                _ => Outcome::Aborted,
            },
            true => match transaction.commit().await {
                Ok(()) => Outcome::Committed,
                Err(TransactionError::Unknown { .. }) => Outcome::Unknown,
                Err(_) => Outcome::Aborted,
            },
        };
        self.history.lock().expect("no panic").push(Transaction {
            outcome,
            operations,
        });
        for (account, last) in locked.iter_mut().zip(last) {
            match outcome {
                Outcome::Committed => **account = Some(Some(last)),
                Outcome::Aborted => {}
                Outcome::Unknown => **account = None,
            }
        }
        self.ended.send_modify(|(commits, aborts)| match outcome {
            Outcome::Committed => *commits += 1,
            Outcome::Aborted => *aborts += 1,
            Outcome::Unknown => {}
        });
    }

    async fn client(self: Arc<Self>, number: u64) {
        let producer = Producer::builder()
            .bootstrap(&self.bootstrap)
            .stream("accounts")
            .transactional_id(format!("client/{number}"))
            .transaction_timeout(Duration::from_secs(10))
            .build();
        let producer = producer.await.expect("a producer");
        let mut dice = number + 1;
        while !*self.is_over.borrow() {
            dice = dice
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            self.transfer(&producer, dice >> 33).await;
        }
    }
}

#[test]
fn transfers_are_isolated_while_brokers_are_killed() {
    let Some(mut trio) = Trio::start() else {
        return;
    };
    let bootstrap = trio.bootstrap();
    let create = [
        "stream",
        "create",
        "accounts",
        "--if-not-exists",
        "--lane-by",
        "key",
        "--streamlets",
        "3",
        "--replicas",
        "3",
        "--min-insync-replicas",
        "2",
        "--segment-size",
        "64KiB",
    ];
    trio.run(&bootstrap, &create, b"");
    let runtime = Runtime::new().expect("a runtime");
    let (ended, mut told) = watch::channel((0, 0));
    let (over, is_over) = watch::channel(false);
    let account = || Arc::new(tokio::sync::Mutex::new(Some(None)));
    let bank = Arc::new(Bank {
        bootstrap,
        accounts: (0..LISTS).map(|_| account()).collect(),
        history: Mutex::default(),
        next: Mutex::new(0),
        ended,
        is_over,
    });
    let clients = (0..CLIENTS).map(|number| runtime.spawn(bank.clone().client(number)));
    let clients: Vec<_> = clients.collect();
    let mut until = |commits: usize, aborts: usize| {
        let wait = told.wait_for(|told| told.0 >= commits && told.1 >= aborts);
        let waited = runtime.block_on(async { tokio::time::timeout(4 * PATIENCE, wait).await });
        waited.expect("transfers go on").expect("clients run");
    };
    let step = COMMITS / (2 * KILLS + 1);
    let mut commits = step;
    for kill in 0..KILLS {
        until(commits, 0);
        let broker = &mut trio.brokers[kill % 3];
        broker.kill();
        commits += step;
        until(commits, 0);
        broker.restart();
        commits += step;
    }
    until(COMMITS, ABORTS);
    over.send_replace(true);
    for client in clients {
        runtime.block_on(client).expect("a client ends");
    }

    // Nothing is open any more: what is read now is all.
    let mut history = std::mem::take(&mut *bank.history.lock().expect("no panic"));
    let committed: Vec<(u32, Option<u64>)> = history
        .iter()
        .filter(|transaction| transaction.outcome == Outcome::Committed)
        .flat_map(|transaction| &transaction.operations)
        .filter_map(|operation| match operation {
            Operation::Append { list, value } => Some((*list, Some(*value))),
            Operation::Read { .. } => None,
        })
        .collect();
    let last = runtime.block_on(bank.read_past(&committed));
    let found = check_all(&history, &last);
    assert!(found.is_empty(), "{}", told_of(&found));

    // The checker would have seen one that was aborted, and half a transfer.
    let shown = history
        .iter()
        .position(|transaction| transaction.outcome == Outcome::Committed);
    history[shown.expect("a commit")].outcome = Outcome::Aborted;
    assert!(!check_all(&history, &last).is_empty());
}

fn told_of(found: &[kera_history::isolation::Finding]) -> String {
    let lines = found.iter().map(ToString::to_string);
    lines.collect::<Vec<_>>().join("\n")
}
