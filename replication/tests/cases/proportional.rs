//! What jobs do grows with what has changed, and not with that times what there is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kera_replication::ids::{BrokerId, ProcessId, StreamletKey};
use kera_replication::jobs::{Jobs, Owned};
use kera_replication::primary::{Lane, Primary};
use kera_replication::recovery::{Recovered, Unclean};
use kera_replication::transport::{
    CallError, Link, LinkError, Pending, Reply, Request, Transport, TransportRef,
};

use crate::jobs::{closed, jobs_with, owned, record};
use crate::scrub::flip;
use crate::suite::{Stage, busy};
use crate::{Case, OWNER, Opened, another, case};

/// Streamlets that are this broker's besides the one with groups.
const OTHERS: u32 = 50;

/// Jobs of a broker with many streamlets, and how many of these they were told of so far.
fn counted(
    case: &Case,
    primary: &Arc<Primary>,
    recovered: &Recovered,
) -> (Arc<Jobs>, Arc<AtomicU64>) {
    let one = owned(case, recovered);
    let all: Vec<Owned> = (0..=OTHERS)
        .map(|number| {
            let mut other = one.clone();
            other.streamlet.streamlet.0 += number;
            other
        })
        .collect();
    let told = Arc::new(AtomicU64::new(0));
    let counts = told.clone();
    let now = move |streamlet: Option<StreamletKey>| {
        let wanted = |one: &&Owned| streamlet.is_none_or(|key| one.streamlet == key);
        let found: Vec<_> = all.iter().filter(wanted).cloned().collect();
        counts.fetch_add(found.len() as u64, Ordering::Relaxed);
        found
    };
    (Jobs::new(primary, Box::new(now), busy()), told)
}

async fn several(case: &Case, lane: &Arc<Lane>, many: usize) -> Vec<Opened> {
    let mut groups = Vec::new();
    for _ in 0..many {
        groups.push(closed(case, lane).await);
    }
    groups
}

/// What comparing `many` groups takes, all of them sound or each with a damaged replica: streamlets that jobs are told
/// of, and records that they read.
fn cost(many: usize, damaged: bool) -> (u64, u64) {
    let spent = Arc::new(std::sync::Mutex::new((0, 0)));
    let out = spent.clone();
    case(move |case| async move {
        let (primary, recovered) = case.recover(OWNER, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let groups = several(&case, &lane, many).await;
        for group in groups.iter().filter(|_| damaged) {
            let copy = group.0.id();
            let length = record(&case, copy).length;
            flip(&case, another(group), copy, length).await;
        }
        let (jobs, told) = counted(&case, &primary, &recovered);
        let before = case.stage.groups_read();
        jobs.scrub_all().await;
        let mended = if damaged { many as u64 } else { 0 };
        assert_eq!(
            (jobs.stats().scrubbed, jobs.stats().mended),
            (many as u64, mended)
        );
        let read = case.stage.groups_read() - before;
        *out.lock().expect("no panic") = (told.load(Ordering::Relaxed), read);
    });
    let spent = spent.lock().expect("no panic");
    *spent
}

#[test]
fn comparing_more_groups_asks_for_no_more_streamlets_than_there_are_groups() {
    let (few, many) = (cost(2, false), cost(10, false));
    assert_eq!(many.0 - few.0, 8, "one question for each group more");
    assert!(many.1 <= 5 * few.1, "{many:?} of 10, {few:?} of 2");
}

#[test]
fn replacing_each_damaged_replica_reads_its_own_record_and_no_others() {
    let (few, many) = (cost(2, true), cost(10, true));
    assert!(many.1 <= 5 * few.1, "{many:?} of 10, {few:?} of 2");
}

/// A network that counts the copies in the lists that it carries, of streamlets that are asked about as known.
struct Counted {
    inner: TransportRef,
    lists: Arc<AtomicU64>,
    copies: Arc<AtomicU64>,
}

impl Transport for Counted {
    fn connect(
        &self,
        to: BrokerId,
        process: ProcessId,
    ) -> Pending<Result<Box<dyn Link>, LinkError>> {
        self.inner.connect(to, process)
    }

    fn call(&self, to: BrokerId, request: Request) -> Pending<Result<Reply, CallError>> {
        let call = self.inner.call(to, request);
        let (lists, copies) = (self.lists.clone(), self.copies.clone());
        Box::pin(async move {
            let reply = call.await;
            match &reply {
                Ok(Reply::Changed(changed)) => {
                    let sent: usize = changed.iter().map(|list| list.copies.len()).sum();
                    lists.fetch_add(changed.len() as u64, Ordering::Relaxed);
                    copies.fetch_add(sent as u64, Ordering::Relaxed);
                }
                Ok(Reply::Copies(all)) => {
                    copies.fetch_add(all.len() as u64, Ordering::Relaxed);
                }
                _ => {}
            }
            reply
        })
    }
}

#[test]
fn brokers_send_lists_that_have_changed_and_no_others() {
    case(move |case| async move {
        let (lists, copies) = <(Arc<AtomicU64>, Arc<AtomicU64>)>::default();
        let transport = Arc::new(Counted {
            inner: case.stage.transport(OWNER),
            lists: lists.clone(),
            copies: copies.clone(),
        });
        let records = case.stage.records(OWNER);
        let primary = Arc::new(case.primary_over(OWNER, transport, records));
        let recovered = case.recover_as(&primary, Unclean::Wait).await;
        let lane = case.lane(&primary, &recovered);
        let groups = several(&case, &lane, 4).await;
        let jobs = jobs_with(&case, &primary, &recovered, busy(), Arc::downgrade(&lane));
        // The first brings to disk what is closed.
        jobs.round().await;
        jobs.round().await;
        let sent = || {
            (
                lists.swap(0, Ordering::Relaxed),
                copies.swap(0, Ordering::Relaxed),
            )
        };
        let (_, first) = sent();
        assert!(first >= 4, "{first}");
        jobs.round().await;
        assert_eq!(sent(), (0, 0), "nothing has changed");

        // One broker loses one of them.
        let (id, at) = (groups[1].0.id(), another(&groups[1]));
        let free = Request::free(id, recovered.epoch, None);
        assert_eq!(case.ask(at, free).await, Reply::Done);
        jobs.round().await;
        let (lists, copies) = sent();
        assert_eq!(lists, 1, "that of the broker which has one copy less");
        assert!((3..first).contains(&copies), "{copies} of {first}");
        assert_eq!(jobs.stats().built, 1, "and it is seen to be missing");
    });
}
