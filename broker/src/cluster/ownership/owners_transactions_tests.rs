//! Transactions with parts of which their coordinator has not heard yet.

use std::collections::{BTreeMap, BTreeSet};

use kera_coordinator::transactions::{Decided, End, Init, Member, Part, Reply, Request, Written};
use kera_coordinator::{Reply as AnyReply, Request as AnyRequest};
use kera_protocol::batch::mark_transactional;
use kera_streamlet::transactions::{EndTransaction, Ended, Grant};

use super::*;
use crate::coordination::{Coordination, CoordinatorKind, TRANSACTIONS_STREAM};
use crate::data::fetch::Subscription;
use crate::transactions::{Which, add_for, end_lost, finish, lost};

const ID: &str = "payments";
/// As `batch` has it.
const PRODUCER: i64 = 7;

/// The coordinator's answer, once it has read its state.
async fn ask(shared: &Arc<Shared>, request: Request) -> Reply {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let request = AnyRequest::Transaction(request.clone());
        match shared.coordination.call(shared, ID, request).await {
            Ok(AnyReply::Transaction(reply)) => return reply,
            Err(error) if error.code == ErrorCode::CoordinatorLoading => {
                assert!(Instant::now() < deadline, "{error}");
                tokio::task::yield_now().await;
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Appends a batch of the producer's transaction, for which the lane has a grant, and waits until it is durable.
async fn append_transactional(streamlet: &Streamlet, shared: &Shared, sequence: i32) {
    let mut bytes = batch(sequence, &value(sequence));
    mark_transactional(&mut bytes);
    let appended = append_batch(streamlet, shared, bytes).expect("it is taken");
    assert_eq!(outcome(&appended).await, Outcome::Durable);
}

impl Trio {
    /// The broker that coordinates [`ID`].
    async fn coordinator(&self) -> u32 {
        let shared = self.shared(1);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let kind = CoordinatorKind::Transactions;
            let placed = shared.coordination.place(shared, kind, ID).await;
            let at = placed.ok().map(|place| place.broker);
            let hosts = |at: &u32| !self.shared(*at).coordination.transaction_hosts().is_empty();
            if let Some(at) = at.filter(hosts) {
                return at;
            }
            assert!(Instant::now() < deadline, "nobody coordinates");
            tokio::task::yield_now().await;
        }
    }
}

/// A committed transaction with a record in a lane, of whose stream its coordinator has not heard.
struct Untold {
    /// The coordinator's broker,
    at: u32,
    /// and the lane's owner.
    owner: u32,
    stream: StreamId,
    /// Of the lane, and of its streamlet.
    number: u32,
    streamlet: Arc<Streamlet>,
}

fn member() -> Member {
    Member {
        id: ID.into(),
        producer: PRODUCER,
        epoch: 0,
    }
}

fn grant_of(number: u64) -> Grant {
    Grant {
        producer: PRODUCER,
        epoch: 0,
        number,
    }
}

fn end(commit: bool) -> Request {
    Request::End(End {
        member: member(),
        commit,
        number: None,
        raise: None,
    })
}

impl Untold {
    async fn commit(trio: &Trio) -> Self {
        let at = trio.coordinator().await;
        let coordinator = trio.shared(at);
        let begun = ask(
            coordinator,
            Request::Init(Init {
                id: ID.into(),
                timeout_ms: 60_000,
                known: None,
                fresh_producer: PRODUCER,
                keep: false,
                heartbeats: false,
                two_phase: None,
            }),
        )
        .await;
        assert_eq!(begun, Reply::Begun(PRODUCER, 0));

        trio.late[at as usize - 1].send_replace(true);
        let other = at % 3 + 1;
        let stream = trio.record(other, "orders", small(64 << 10)).await;
        let number = (0..3).find(|number| trio.owner(other, stream, *number).broker != at);
        let number = number.expect("another broker owns one");
        let owner = trio.owner(other, stream, number).broker;
        until(|| trio.shared(owner).data.catalog.get(stream).is_some()).await;
        let streamlet = trio.served(owner, stream, number).await;
        let added = add_for(
            coordinator,
            v1::AddTransactionPartsRequest {
                transactional_id: ID.into(),
                producer: PRODUCER,
                epoch: 0,
                streams: vec![v1::PartitionsOfTransaction {
                    stream: stream.as_bytes().to_vec().into(),
                    partitions: vec![number],
                }],
                groups: Vec::new(),
            },
        )
        .await
        .expect("it answers");
        assert_eq!(added.refusal(), v1::AddTransactionPartsRefusal::None);
        assert!(streamlet.grant(LANE, grant_of(added.number), 0, None, now_ms()));
        append_transactional(&streamlet, trio.shared(owner), 0).await;

        let before = trio.streams_read[at as usize - 1].load(Ordering::SeqCst);
        let ending = ask(coordinator, end(true)).await;
        assert_eq!(ending, Reply::Ending(1));
        // Its coordinator looks for the lane, and finds no stream.
        until(|| trio.streams_read[at as usize - 1].load(Ordering::SeqCst) > before).await;
        assert!(coordinator.data.catalog.get(stream).is_none());
        assert_eq!(
            streamlet.open_transactions(LANE).map(|open| open.len()),
            Some(1)
        );
        Self {
            at,
            owner,
            stream,
            number,
            streamlet,
        }
    }
}

/// What is committed in a lane: up to where, and where each aborted transaction begins.
fn committed(streamlet: &Streamlet) -> (u64, Vec<u64>) {
    let read = streamlet.read_committed(LaneReadSpec {
        lane: LANE,
        from: Located::default(),
        end_ordinal: u64::MAX,
        max_bytes: 1 << 20,
        cached_only: false,
    });
    let read = read.expect("it can be read");
    (
        read.stable,
        read.aborted.iter().map(|end| end.first).collect(),
    )
}

/// Who owns a lane makes it part of a transaction for a client that leaves that to brokers, and may have heard of the
/// stream before the coordinator has: a part is not given up for that.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_the_coordinator_has_not_heard_of_gets_its_marker() {
    let trio = Trio::start().await;
    let untold = Untold::commit(&trio).await;
    trio.late[untold.at as usize - 1].send_replace(false);
    until(|| untold.streamlet.stable(LANE) == Some(2)).await;
    assert_eq!(committed(&untold.streamlet), (2, vec![]));
}

/// A lane has lost the marker of a transaction whose end was answered, as by a loss of power. It is written again, and the
/// producer's next transaction, which the lane's next owner finds open, is left alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_marker_that_its_lane_has_lost_is_written_again() {
    let trio = Trio::start().await;
    let untold = Untold::commit(&trio).await;
    let (stream, number, owner) = (untold.stream, untold.number, untold.owner);
    let coordinator = trio.shared(untold.at);
    // It was told that the marker is there.
    let written = Written {
        id: ID.into(),
        number: 1,
        parts: BTreeSet::from([Part::Partition(stream, number)]),
        ends: BTreeMap::from([((stream, number), 2)]),
    };
    let noted = ask(coordinator, Request::Written(written)).await;
    assert_eq!(noted, Reply::Noted);
    trio.late[untold.at as usize - 1].send_replace(false);
    until(|| untold.streamlet.stable(LANE) == Some(2)).await;
    assert_eq!(committed(&untold.streamlet), (2, vec![]));

    let parts = BTreeSet::from([Part::Partition(stream, number)]);
    let added = ask(coordinator, Request::Add(member(), parts)).await;
    assert!(matches!(added, Reply::Added(2, _)), "{added:?}");
    let streamlet = &untold.streamlet;
    assert!(streamlet.grant(LANE, grant_of(2), 2, None, now_ms()));
    append_transactional(streamlet, trio.shared(owner), 1).await;
    trio.assign(stream, number, owner % 3 + 1);
    let taken = trio.served(owner % 3 + 1, stream, number).await;
    // Until the coordinator has heard that all markers are there and stay.
    let hosts = coordinator.coordination.transaction_hosts();
    until(|| {
        hosts
            .iter()
            .all(|host| host.unsettled_partitions().is_empty())
    })
    .await;
    assert_eq!(taken.open_transactions(LANE), Some(vec![(PRODUCER, 0, 2)]));
    assert_eq!(ask(coordinator, end(false)).await, Reply::Ending(2));
    until(|| taken.stable(LANE) == Some(4)).await;
    assert_eq!(committed(&taken), (4, vec![2]));
}

/// The owner of a lane that was taken over knows of no grant. So nothing there tells the end of a former transaction from
/// that of the one that is open, but that its coordinator still is one.
#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_that_was_replaced_ends_nothing() {
    let trio = Trio::start().await;
    let at = trio.coordinator().await;
    let coordinator = trio.shared(at);
    let stream = trio.create(at, "orders").await;
    let owner = trio.owner(at, stream, 0).broker;
    let streamlet = trio.served(owner, stream, 0).await;
    let grant = Grant {
        producer: PRODUCER,
        epoch: 0,
        number: 2,
    };
    assert!(streamlet.grant(LANE, grant, 0, None, now_ms()));
    append_transactional(&streamlet, trio.shared(owner), 0).await;
    let open = streamlet.open_transactions(LANE);
    assert_eq!(open.as_ref().map(Vec::len), Some(1));
    // The broker that takes the streamlet over has no grants of it.
    let epoch = trio.assign(stream, 0, owner % 3 + 1);
    let taken = trio.served(owner % 3 + 1, stream, 0).await;
    until(|| coordinator.owner_of(&trio.streamlet(at, stream, 0)).epoch == epoch).await;

    let host = coordinator.coordination.transaction_hosts().remove(0);
    let states = coordinator.data.catalog.named(TRANSACTIONS_STREAM);
    let states = states.expect("its stream is there").id();
    trio.assign(states, host.streamlet().0, at % 3 + 1);
    until(|| !Coordination::still_coordinates(coordinator, &host)).await;
    let late = Decided {
        id: ID.into(),
        producer: PRODUCER,
        epoch: 0,
        batch_epoch: 0,
        number: 1,
        commit: true,
        parts: BTreeSet::from([Part::Partition(stream, 0)]),
    };
    assert!(!finish(coordinator, &host, vec![late]).await);
    assert_eq!(taken.open_transactions(LANE), open);
    // Nor does it grant what has ended since.
    let mut bytes = batch(1, &value(1));
    mark_transactional(&mut bytes);
    let header = BatchHeader::peek(&bytes).expect("a batch");
    let parts = [Part::Partition(stream, 0)];
    crate::transactions::grant(coordinator, &member(), 1, &parts).await;
    assert!(taken.awaits_grant(LANE, &header, now_ms()));
}

/// What nobody but a lane knows is listed, and an operator ends it. What a coordinator knows is left alone, also where it is
/// of the same producer.
#[tokio::test(flavor = "multi_thread")]
async fn what_no_coordinator_knows_is_listed_and_ended_by_hand() {
    let trio = Trio::start().await;
    let at = trio.coordinator().await;
    let coordinator = trio.shared(at);
    let stream = trio.create(at, "orders").await;
    let mut streamlets = Vec::new();
    for number in 0..2 {
        let owner = trio.owner(at, stream, number).broker;
        until(|| trio.shared(owner).data.catalog.get(stream).is_some()).await;
        streamlets.push((owner, trio.served(owner, stream, number).await));
    }
    let init = Init {
        id: ID.into(),
        timeout_ms: 60_000,
        known: None,
        fresh_producer: PRODUCER,
        keep: false,
        heartbeats: false,
        two_phase: None,
    };
    ask(coordinator, Request::Init(init)).await;
    let known = BTreeSet::from([Part::Partition(stream, 1)]);
    let added = ask(coordinator, Request::Add(member(), known)).await;
    assert!(matches!(added, Reply::Added(1, _)), "{added:?}");
    for (owner, streamlet) in &streamlets {
        assert!(streamlet.grant(LANE, grant_of(1), 0, None, now_ms()));
        append_transactional(streamlet, trio.shared(*owner), 0).await;
    }

    // Any broker tells, once all coordinators have read their state.
    for broker in 1..=3 {
        let shared = trio.shared(broker);
        until(|| shared.data.catalog.get(stream).is_some()).await;
        let deadline = Instant::now() + PATIENCE;
        let lost = loop {
            match lost::list(shared).await {
                Ok(lost) => break lost,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
        };
        let [one] = &lost[..] else {
            panic!("{lost:?}");
        };
        let partition = one.partition.clone().expect("where it is");
        assert_eq!((one.producer, one.epoch), (PRODUCER, 0));
        assert_eq!(
            (partition.stream.as_str(), partition.partition),
            ("orders", 0)
        );
        assert_eq!((partition.owner, one.first_ordinal), (streamlets[0].0, 0));
        assert!(
            one.waiting_records > 0 && one.silent_ms.is_some(),
            "{one:?}"
        );
    }
    let found = coordinator.data.catalog.get(stream).expect("it is there");
    let memory = v1::StreamConfig {
        ack: Some(v1::AckPolicy::Memory.into()),
        ..v1::StreamConfig::default()
    };
    let refused = admin::alter_stream(coordinator, &found, &memory).await;
    let refused = refused.expect_err("transactions are open").to_string();
    assert!(refused.contains("2 transactions are open"), "{refused}");

    let which = Which {
        producer: Some(PRODUCER),
        ..Which::default()
    };
    let elsewhere = Which {
        stream: Some(stream),
        partition: Some(2),
        ..which
    };
    let shared = trio.shared(at % 3 + 1);
    let none = end_lost(shared, elsewhere, true, 0).await;
    assert_eq!(
        none.expect_err("nothing").code,
        ErrorCode::UnknownTransaction
    );
    let ended = end_lost(shared, which, true, 0).await.expect("it is ended");
    assert_eq!(ended.len(), 1);
    let (_, lost) = &streamlets[0];
    until(|| lost.stable(LANE) == Some(2)).await;
    assert_eq!(committed(lost), (2, vec![]));
    let refused = end_lost(shared, which, false, 0).await;
    assert_eq!(
        refused.expect_err("it is known").code,
        ErrorCode::InvalidArgument
    );

    let (_, known) = &streamlets[1];
    assert_eq!(known.stable(LANE), Some(0));
    assert_eq!(ask(coordinator, end(false)).await, Reply::Ending(1));
    until(|| known.stable(LANE) == Some(2)).await;
    assert_eq!(committed(known), (2, vec![0]));
    let none = end_lost(shared, which, true, 0).await;
    assert_eq!(
        none.expect_err("all ended").code,
        ErrorCode::UnknownTransaction
    );
    let altered = admin::alter_stream(coordinator, &found, &memory).await;
    altered.expect("nothing is open");
}

/// GBs of aborted records take longer than clients wait for an answer: it comes with how far the read is.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_hears_how_far_it_is_where_much_was_aborted() {
    let trio = Trio::start().await;
    let stream = trio.record(1, "orders", small(64 << 10)).await;
    let owner = trio.owner(1, stream, 0).broker;
    let shared = trio.shared(owner);
    until(|| shared.data.catalog.get(stream).is_some()).await;
    let streamlet = trio.served(owner, stream, 0).await;
    let grant = Grant {
        producer: PRODUCER,
        epoch: 0,
        number: 1,
    };
    assert!(streamlet.grant(LANE, grant, 0, None, now_ms()));
    for sequence in 0..20 {
        append_transactional(&streamlet, shared, sequence).await;
    }
    let abort = EndTransaction {
        grant,
        epoch_after: 0,
        commit: false,
        coordinator_epoch: 1,
        ended_before: 0,
        owner_epoch: None,
    };
    match streamlet.end_transaction(LANE, &abort, now_ms()) {
        Ok(Ended::Marked(marker)) => {
            marker.group.pump(&shared.data.env.pump);
            assert_eq!(outcome(&marker).await, Outcome::Durable);
        }
        _ => panic!("no marker"),
    }
    append_all(shared, &streamlet, 20..21).await;

    // A batch a look: where each answer ends, and whether there is a record in it.
    let expected = [(8, false), (16, false), (22, true)];
    let id = bytes::Bytes::copy_from_slice(stream.as_bytes());
    let (mut from, mut read) = (0, Vec::new());
    while from < 22 {
        let request = v1::ReadRequest {
            stream: id.clone(),
            cursor: Some(v1::Cursor {
                ordinal: from,
                ..v1::Cursor::default()
            }),
            max_bytes: 1,
            max_wait_ms: 60_000,
            ..v1::ReadRequest::default()
        };
        let mut asked = Read::new(&shared.data, 1, &request).expect("a read");
        let step = asked.step(std::task::Waker::noop(), Instant::now(), usize::MAX, true);
        let Step::Reply(reply, body) = step else {
            panic!("no answer at {from}");
        };
        assert_eq!((reply.error, reply.head_ordinal), (0, 22), "{reply:?}");
        from = reply.next.expect("where it goes on").ordinal;
        read.push((from, !body.is_empty()));
    }
    assert_eq!(read, expected);

    let request = v1::SubscribeRequest {
        stream: id,
        max_bytes: 1,
        credit_bytes: 1 << 20,
        ..v1::SubscribeRequest::default()
    };
    let mut subscription = Subscription::new(&shared.data, &request).expect("a subscription");
    let mut pushed = Vec::new();
    while let Step::Reply(push, body) =
        subscription.step(std::task::Waker::noop(), usize::MAX, true)
    {
        assert_eq!(push.error, 0, "{push:?}");
        let next = push.next.expect("where it goes on").ordinal;
        pushed.push((next, !body.is_empty()));
    }
    assert_eq!(pushed, expected);
}
