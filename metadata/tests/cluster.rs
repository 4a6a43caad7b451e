//! What brokers that share a store see of each other, tried on every store they can share.

mod support;

use std::sync::Arc;
use std::time::Duration;

use kera_metadata::*;
use kera_protocol::ids::StreamletKey;
use kera_protocol::ids::*;
use support::*;

/// What a test needs of a shared store; kept for as long as the test runs.
struct Shared {
    brokers: Vec<Arc<dyn ClusterStore>>,
    memory: Option<Arc<MemoryCluster>>,
    #[cfg(feature = "etcd")]
    etcd: Option<etcd::Etcd>,
}

/// Runs a test on every store that `brokers` brokers can share.
fn on_each_cluster(brokers: usize, test: impl Fn(&Shared)) {
    let memory = Arc::new(MemoryCluster::new());
    test(&Shared {
        brokers: (0..brokers).map(|_| memory.clone() as Arc<_>).collect(),
        memory: Some(memory),
        #[cfg(feature = "etcd")]
        etcd: None,
    });
    #[cfg(feature = "etcd")]
    if let Some(etcd) = cluster() {
        test(&Shared {
            brokers: (0..brokers)
                .map(|_| Arc::new(opened(&etcd)) as Arc<_>)
                .collect(),
            memory: None,
            etcd: Some(etcd),
        });
    }
}

fn live(id: u32) -> LiveBroker {
    LiveBroker {
        address: format!("10.0.0.{id}:7600"),
        host: format!("host{id}"),
        rack: Some("a".into()),
        ..support::live(id)
    }
}

/// No lease ends by itself here.
const TTL: Duration = Duration::from_secs(60);

/// The next changes of a watch.
fn next(watch: &mut tokio::sync::mpsc::Receiver<Watched>) -> Vec<Change> {
    loop {
        let told = watch.blocking_recv().expect("the watch goes on").unwrap();
        if !told.changes.is_empty() {
            return told.changes;
        }
    }
}

#[test]
fn brokers_see_each_other_come_change_and_go() {
    on_each_cluster(2, |shared| {
        let (one, two) = (&shared.brokers[0], &shared.brokers[1]);
        let mut seen = one.living();
        let first = one.join(live(1), TTL).unwrap();
        let second = two.join(live(2), TTL).unwrap();
        assert!(first.is_valid() && second.is_valid());
        let all = until(&mut seen, |living| living.len() == 2);
        assert_eq!(all[&2], live(2));
        let draining = LiveBroker {
            state: LiveState::Draining,
            // Cannot change, whatever is asked for.
            id: 9,
            ..live(2)
        };
        second.update(draining).unwrap();
        let all = until(&mut seen, |living| living[&2].state != LiveState::Serving);
        assert_eq!(all.len(), 2);
        assert_eq!(all[&2].id, 2);
        let mut valid = second.valid();
        second.leave();
        assert!(!second.is_valid());
        assert!(!until(&mut valid, |valid| !valid));
        until(&mut seen, |living| living.len() == 1);
        assert!(second.update(live(2)).is_err());
        drop(first);
        until(&mut two.living(), |living| living.is_empty());
    });
}

#[test]
fn a_number_in_use_is_refused_and_a_later_start_of_the_same_broker_is_not() {
    on_each_cluster(2, |shared| {
        let (one, two) = (&shared.brokers[0], &shared.brokers[1]);
        let first = one.join(live(1), TTL).unwrap();
        let other = LiveBroker {
            incarnation: live(7).incarnation,
            ..live(1)
        };
        let refused = two.join(other.clone(), TTL).err().expect("it is in use");
        assert!(refused.to_string().contains("another number"), "{refused}");
        assert!(first.is_valid());
        let again = LiveBroker {
            address: "10.0.0.1:7601".into(),
            ..live(1)
        };
        let mut valid = first.valid();
        let second = two.join(again.clone(), TTL).unwrap();
        until(&mut valid, |valid| !valid);
        assert!(!first.is_valid() && second.is_valid());
        // The one that was replaced takes nothing of its successor along.
        drop(first);
        let mut seen = one.living();
        let all = until(&mut seen, |living| living.get(&1) == Some(&again));
        assert_eq!(all.len(), 1);
        drop(second);
        let _other = one.join(other, TTL).unwrap();
    });
}

#[test]
fn a_description_that_is_too_long_is_refused() {
    on_each_cluster(1, |shared| {
        let long = LiveBroker {
            host: "h".repeat(MAX_MEMBER_TEXT + 1),
            ..live(1)
        };
        let refused = shared.brokers[0].join(long.clone(), TTL).err().unwrap();
        assert!(refused.to_string().contains("shorten"), "{refused}");
        let membership = shared.brokers[0].join(live(1), TTL).unwrap();
        assert!(membership.update(long).is_err());
        let one = AdvertisedAddress {
            clients: ClientKind::Kafka,
            name: "outer".into(),
            address: "a:1".into(),
        };
        let with = |one: AdvertisedAddress, number| LiveBroker {
            named: vec![one; number],
            ..live(1)
        };
        assert!(membership.update(with(one.clone(), MAX_ADVERTISED)).is_ok());
        let many = with(one.clone(), MAX_ADVERTISED + 1);
        assert!(membership.update(many).is_err());
        let address = "a".repeat(MAX_MEMBER_TEXT + 1);
        let long = with(AdvertisedAddress { address, ..one }, 1);
        assert!(membership.update(long).is_err());
    });
}

#[test]
fn one_of_two_candidates_is_elected_and_the_other_follows_it() {
    on_each_cluster(2, |shared| {
        let (one, two) = (&shared.brokers[0], &shared.brokers[1]);
        let first = one.join(live(1), TTL).unwrap();
        let second = two.join(live(2), TTL).unwrap();
        assert_eq!(first.fence(), None);
        let mut terms = [first.campaign(), second.campaign()];
        let mut controller = one.controller();
        let elected = until(&mut controller, |elected| elected.is_some()).unwrap();
        let (mut winner, mut loser) = (first, second);
        if elected == 2 {
            std::mem::swap(&mut winner, &mut loser);
            terms.swap(0, 1);
        }
        until(&mut terms[0], |term| term.is_some());
        assert_eq!(*terms[1].borrow(), None);
        assert_eq!(loser.fence(), None);

        // What the controller decides is refused once it is one no longer.
        let fence = winner.fence().expect("it is elected");
        let (stream, streamlets) = one.create_stream(stream("a"), 1).unwrap();
        let decide = |fence: &Compare, s: &StreamletRecord, owner: u32| {
            one.commit(Transaction::new(
                vec![fence.clone(), Compare::epoch(s)],
                vec![Write::PutStreamlet(StreamletRecord {
                    owner,
                    epoch: Epoch(s.epoch.0 + 1),
                    ..s.clone()
                })],
            ))
        };
        decide(&fence, &streamlets[0], 2).unwrap();
        winner.leave();
        until(&mut terms[0], |term| term.is_none());
        until(&mut terms[1], |term| term.is_some());
        assert!(is_of_former_controller(&decide(&fence, &streamlets[1], 2)));
        let fence = loser.fence().expect("it is elected now");
        decide(&fence, &streamlets[1], 2).unwrap();
        drop(loser);
        until(&mut controller, |elected| elected.is_none());
        assert!(is_of_former_controller(&decide(&fence, &streamlets[2], 2)));
        // Nobody is not a term.
        let nobody = Compare::Controller { term: 0 };
        assert!(decide(&nobody, &streamlets[2], 2).is_err());
        let owners: Vec<_> = one.load().unwrap().streamlets_of(stream.id).to_vec();
        assert_eq!(
            owners.iter().map(|s| s.owner).collect::<Vec<_>>(),
            [2, 2, 1, 1]
        );
    });
}

#[test]
fn a_lease_counts_once_what_was_recorded_before_it_is_read() {
    on_each_cluster(2, |shared| {
        let (one, two) = (&shared.brokers[0], &shared.brokers[1]);
        one.create_stream(stream("a"), 1).unwrap();
        let before = one.load().unwrap().revision;
        let mut watch = one.watch(before);
        let (made, _) = two.create_stream(stream("b"), 1).unwrap();
        let seat = one.join(live(1), TTL).unwrap();
        seat.read_to(before);
        assert!(seat.is_valid() && !seat.is_current());
        // Its place is told as changes are.
        let mut told = before;
        while !seat.is_current() {
            assert!(told < made.revision || shared.memory.is_none());
            let changes = watch.blocking_recv().expect("the watch goes on").unwrap();
            told = changes.revision;
            seat.read_to(told);
        }
        assert!(told >= made.revision);
        seat.leave();
        assert!(!seat.is_current());
    });
}

#[test]
fn a_watch_tells_every_change_of_others_in_order() {
    on_each_cluster(2, |shared| {
        let (one, two) = (&shared.brokers[0], &shared.brokers[1]);
        let before = one.load().unwrap().revision;
        let (stream, streamlets) = one.create_stream(stream("a"), 1).unwrap();
        let mut watch = two.watch(before);
        let changes = next(&mut watch);
        assert!(changes.iter().all(|c| c.revision == stream.revision));
        let named = Key::StreamName("a".into());
        assert!(changes.iter().any(|c| c.key == named));
        assert!(changes.contains(&Change {
            key: Key::Stream(stream.id),
            record: Some(Record::Stream(stream.clone())),
            revision: stream.revision,
        }));
        assert_eq!(changes.len(), 2 + streamlets.len());

        let s = &streamlets[0];
        let mut revisions = Vec::new();
        let mut group = open_group(s, 1, 0);
        group.revision = one.commit(put_group(s, group.clone())).unwrap().revision;
        revisions.push(group.revision);
        let ended = closed(&group, 10, 100);
        revisions.push(one.commit(put_group(s, ended)).unwrap().revision);
        revisions.push(one.commit(put_start(s, 0, 5)).unwrap().revision);
        let mut told = Vec::new();
        while told.len() < 5 {
            told.extend(next(&mut watch));
        }
        let of_groups: Vec<_> = told.iter().map(|c| (c.key.clone(), c.revision)).collect();
        let start = Key::LaneStart(LaneKey {
            stream: stream.id,
            streamlet: StreamletId(0),
            lane: LaneId(0),
        });
        // The first two also wrote the streamlet, with its next group.
        let streamlet = Key::Streamlet(StreamletKey {
            stream: stream.id,
            streamlet: StreamletId(0),
        });
        let mut expected = vec![
            (Key::Group(group.key()), revisions[0]),
            (streamlet.clone(), revisions[0]),
            (Key::Group(group.key()), revisions[1]),
            (streamlet, revisions[1]),
            (start, revisions[2]),
        ];
        assert!(of_groups.is_sorted_by_key(|(_, revision)| *revision));
        expected.sort();
        let mut of_groups = of_groups;
        of_groups.sort();
        assert_eq!(of_groups, expected);

        // A deletion tells of every record, and none of them is left.
        let gone = one.commit(delete_stream(&stream)).unwrap().revision;
        let changes = next(&mut watch);
        let deleted = changes.iter().filter(|c| c.record.is_none()).count();
        assert_eq!(deleted, 1 + 1 + 4 + 1 + 1);
        assert!(changes.iter().all(|c| c.revision == gone));
        let floor = changes.iter().find(|c| c.record.is_some()).unwrap();
        assert_eq!(floor.key, Key::Counter(Counter::EpochFloor));

        // Who begins to watch now is told nothing that was before.
        let mut late = two.watch(gone);
        let (other, _) = two.create_stream(support::stream("b"), 1).unwrap();
        assert_eq!(next(&mut late)[0].revision, other.revision);
    });
}

#[test]
fn a_watch_tells_settings_that_others_change() {
    on_each_cluster(2, |shared| {
        let (one, two) = (&shared.brokers[0], &shared.brokers[1]);
        let mut watch = two.watch(one.load().unwrap().revision);
        let mut record = one.settings(None).unwrap();
        record.values.insert("a.b".into(), "1".into());
        let compare = Compare::revision(Key::Settings(None), 0);
        let write = Write::PutSettings(record.clone());
        let put = Transaction::new(vec![compare], vec![write]);
        record.revision = one.commit(put).unwrap().revision;
        let told = Change {
            key: Key::Settings(None),
            record: Some(Record::Settings(record.clone())),
            revision: record.revision,
        };
        assert_eq!(next(&mut watch), vec![told]);
        assert_eq!(two.settings(None).unwrap(), record);
        assert_eq!(two.load().unwrap().settings, vec![record]);
    });
}

#[test]
fn a_watch_tells_rules_that_others_change() {
    on_each_cluster(2, |shared| {
        let (one, two) = (&shared.brokers[0], &shared.brokers[1]);
        let mut watch = two.watch(one.load().unwrap().revision);
        let mut record = RulesRecord {
            rules: vec![Rule {
                kind: access::Kind::Group,
                name: "g".to_owned(),
                pattern: access::Pattern::Literal,
                principal: "User:*".to_owned(),
                host: "::1".to_owned(),
                operation: access::Operation::All,
                permission: access::Permission::Deny,
            }],
            roles: vec![access::Role {
                name: "readers".to_owned(),
                members: vec!["ann".to_owned()],
            }],
            revision: 0,
        };
        let compare = Compare::revision(Key::Rules, 0);
        let write = Write::PutRules(record.clone());
        let put = Transaction::new(vec![compare], vec![write]);
        record.revision = one.commit(put).unwrap().revision;
        let told = Change {
            key: Key::Rules,
            record: Some(Record::Rules(record.clone())),
            revision: record.revision,
        };
        assert_eq!(next(&mut watch), vec![told]);
        assert_eq!(two.rules().unwrap(), record);
        assert_eq!(two.load().unwrap().rules, Some(record));
    });
}

#[test]
fn a_watch_from_before_what_is_forgotten_is_lost() {
    on_each_cluster(1, |shared| {
        let store = &shared.brokers[0];
        let before = store.load().unwrap().revision;
        store.create_stream(stream("a"), 1).unwrap();
        let (last, _) = store.create_stream(stream("b"), 1).unwrap();
        if let Some(memory) = &shared.memory {
            memory.forget_history();
        }
        #[cfg(feature = "etcd")]
        if let Some(etcd) = &shared.etcd {
            etcd.compact(last.revision);
        }
        let mut watch = store.watch(before);
        assert!(watch.blocking_recv().expect("it says so").is_err());
        assert!(watch.blocking_recv().is_none());
        // From what is loaded now it goes on.
        let mut watch = store.watch(store.load().unwrap().revision);
        let (next_stream, _) = store.create_stream(stream("c"), 1).unwrap();
        assert_eq!(next(&mut watch)[0].revision, next_stream.revision);
    });
}

#[test]
fn owners_of_a_new_stream_take_turns() {
    on_each_cluster(1, |shared| {
        let store = &shared.brokers[0];
        let (_, streamlets) = store.create_stream_over(stream("a"), &[3, 1, 2]).unwrap();
        let owners: Vec<_> = streamlets.iter().map(|s| s.owner).collect();
        assert_eq!(owners, [3, 1, 2, 3]);
        assert_eq!(store.load().unwrap().streamlets, streamlets);
        let nobody = store.create_stream_over(stream("b"), &[]).unwrap_err();
        assert!(nobody.to_string().contains("start one"), "{nobody}");
    });
}

#[test]
fn stores_that_share_records_never_undo_each_other() {
    on_each_cluster(2, |shared| {
        let (one, two) = (&shared.brokers[0], &shared.brokers[1]);
        let (_, streamlets) = one.create_stream(stream("a"), 1).unwrap();
        let s = &streamlets[0];
        // The first remembers the streamlet from here on.
        let mut group = open_group(s, 1, 0);
        group.revision = one.commit(put_group(s, group.clone())).unwrap().revision;
        two.bump_epochs(1).unwrap();
        let refused = one.commit(put_group(s, closed(&group, 1, 1)));
        assert!(matches!(
            refused,
            Err(MetadataError::Conflict(Conflict::Epoch {
                found: Some(Epoch(2)),
                ..
            }))
        ));
        // And goes on at once with what is true now.
        let now = two.streamlet(s.stream, s.streamlet).unwrap().unwrap();
        one.commit(put_group(&now, closed(&group, 1, 1))).unwrap();
        one.commit(put_group(&now, open_group(&now, 2, 1))).unwrap();
        // A stream is gone for both, and with it what one of them remembers.
        let record = two.stream(s.stream).unwrap().unwrap();
        let put_pin = |name: &str| {
            let pin = PinRecord {
                stream: s.stream,
                name: name.to_owned(),
                job: String::new(),
                owner: "User:ann".to_owned(),
                created_ms: 5,
                positions: vec![0],
                max_age_ms: 1,
                max_bytes: 1,
                policy: PinPolicy::Wait,
                lost: None,
                revision: 0,
            };
            let absent = Compare::revision(Key::Pin(pin.key()), 0);
            one.commit(Transaction::new(vec![absent], vec![Write::PutPin(pin)]))
        };
        put_pin("a").unwrap();
        two.commit(delete_stream(&record)).unwrap();
        // No pin lies there for a stream that is gone.
        assert!(matches!(
            put_pin("b"),
            Err(MetadataError::Conflict(Conflict::Absent { .. }))
        ));
        assert_eq!(two.pins(None).unwrap(), []);
        assert!(one.commit(put_group(&now, open_group(&now, 3, 1))).is_err());
        assert!(one.commit(put_start(&now, 0, 1)).is_err());
        assert!(one.load().unwrap().groups.is_empty());

        let ids: Vec<_> = std::thread::scope(|scope| {
            let take = |store: &Arc<dyn ClusterStore>| {
                let store = store.clone();
                scope.spawn(move || {
                    let blocks = (0..20).map(|_| store.allocate_producer_ids(3).unwrap());
                    blocks.flatten().collect::<Vec<_>>()
                })
            };
            let threads = [take(one), take(two)];
            threads.map(|t| t.join().unwrap()).concat()
        });
        let distinct: std::collections::BTreeSet<_> = ids.iter().collect();
        assert_eq!(distinct.len(), 2 * 20 * 3);
    });
}
