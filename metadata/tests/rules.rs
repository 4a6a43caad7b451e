//! The rules that every store keeps, tried on each.

mod support;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use kera_metadata::*;
use kera_protocol::error::ErrorCode;
use kera_protocol::ids::*;
use support::*;
use uuid::Uuid;

#[track_caller]
fn assert_invalid(outcome: Result<Committed, MetadataError>, part: &str) {
    match outcome {
        Err(MetadataError::Invalid(error)) => {
            assert!(error.message.contains(part), "`{part}` not in: {error}");
        }
        other => panic!("expected invalid with `{part}`, not {other:?}"),
    }
}

#[track_caller]
fn assert_conflict(outcome: Result<Committed, MetadataError>) -> Conflict {
    match outcome {
        Err(MetadataError::Conflict(conflict)) => conflict,
        other => panic!("expected a conflict, not {other:?}"),
    }
}

#[test]
fn a_new_store_is_empty_and_has_an_id() {
    on_each_store(|store| {
        let image = store.load().unwrap();
        assert_ne!(image.cluster, Uuid::nil());
        assert_eq!(
            image,
            Image {
                cluster: image.cluster,
                revision: image.revision,
                ..Image::default()
            }
        );
    });
}

#[test]
fn a_stream_is_created_with_its_streamlets_and_deleted_with_everything() {
    on_each_store(|store| {
        let (stream, streamlets) = store.create_stream(stream("a"), 7).unwrap();
        let (other, _) = store.create_stream(support::stream("b"), 7).unwrap();
        assert_eq!(streamlets.len(), 4);
        assert_eq!(store.stream(stream.id).unwrap(), Some(stream.clone()));
        assert_eq!(store.stream_named("a").unwrap(), Some(stream.id));
        assert_eq!(
            store.streamlet(stream.id, StreamletId(2)).unwrap(),
            Some(streamlets[2].clone())
        );
        for number in 1..4 {
            store
                .commit(put_group(
                    &StreamletRecord {
                        next_group: GroupId(number),
                        ..streamlets[1].clone()
                    },
                    open_group(&streamlets[1], number, 0),
                ))
                .unwrap();
        }
        store.commit(put_start(&streamlets[3], 1, 99)).unwrap();
        let image = store.load().unwrap();
        assert_eq!(image.streams.len(), 2);
        assert_eq!(image.groups.len(), 3);
        assert_eq!(image.groups_of(stream.id, StreamletId(1)).len(), 3);
        assert!(image.groups_of(stream.id, StreamletId(2)).is_empty());
        assert_eq!(image.streamlets_of(other.id).len(), 4);
        assert_eq!(
            image.lane_starts_of(stream.id, StreamletId(3))[0].ordinal,
            99
        );
        let part = store.load_streamlet(stream.id, StreamletId(1)).unwrap();
        assert_eq!(part.groups, image.groups);
        assert_eq!(part.streamlets.len(), 1);
        assert!(part.streams.is_empty() && part.lane_starts.is_empty());

        store.commit(delete_stream(&stream)).unwrap();
        let image = store.load().unwrap();
        assert_eq!(image.streams, vec![other]);
        assert_eq!(image.streamlets.len(), 4);
        assert!(image.groups.is_empty() && image.lane_starts.is_empty());
        // The name is free again, for a stream of another id.
        let (again, _) = store.create_stream(support::stream("a"), 7).unwrap();
        assert_ne!(again.id, stream.id);
    });
}

#[test]
fn the_epochs_of_many_streamlets_are_one_comparison() {
    on_each_store(|store| {
        let (stream, streamlets) = store.create_stream(stream("a"), 1).unwrap();
        let now = |stream: &StreamRecord| {
            Compare::revision(
                Key::Stream(stream.id),
                store.stream(stream.id).unwrap().unwrap().revision,
            )
        };
        let epochs = |of: &[StreamletRecord]| Compare::StreamletEpochs {
            stream: stream.id,
            epochs: of.iter().map(|s| (s.streamlet, s.epoch)).collect(),
        };
        let changed = |compare: Compare| {
            let compare = vec![now(&stream), compare];
            store.commit(Transaction::new(
                compare,
                vec![Write::PutStream(stream.clone())],
            ))
        };
        changed(epochs(&streamlets)).unwrap();
        // They guard what single ones do.
        let next = StreamletRecord {
            epoch: Epoch(streamlets[2].epoch.0 + 1),
            ..streamlets[2].clone()
        };
        let write = vec![Write::PutStreamlet(next.clone())];
        let moves = Transaction::new(vec![epochs(&streamlets)], write);
        store.commit(moves.clone()).unwrap();
        for refused in [store.commit(moves), changed(epochs(&streamlets))] {
            let conflict = Conflict::Epoch {
                stream: stream.id,
                streamlet: StreamletId(2),
                expected: streamlets[2].epoch,
                found: Some(next.epoch),
            };
            assert_eq!(assert_conflict(refused), conflict);
        }
        changed(epochs(std::slice::from_ref(&next))).unwrap();
        let none = StreamletRecord {
            streamlet: StreamletId(4),
            ..next
        };
        let refused = assert_conflict(changed(epochs(&[none])));
        assert!(matches!(refused, Conflict::Epoch { found: None, .. }));
    });
}

#[test]
fn a_taken_name_is_refused_with_its_own_code() {
    on_each_store(|store| {
        store.create_stream(stream("a"), 1).unwrap();
        let error = store.create_stream(stream("a"), 1).unwrap_err();
        assert_eq!(error.code(), ErrorCode::StreamExists);
        // Also where the caller compared only the id.
        let again = stream("a");
        let outcome = store.commit(Transaction::new(
            vec![Compare::revision(Key::Stream(again.id), 0)],
            vec![Write::PutStream(again)],
        ));
        assert!(matches!(
            assert_conflict(outcome),
            Conflict::StreamExists { .. }
        ));
        assert_eq!(store.load().unwrap().streams.len(), 1);
    });
}

#[test]
fn every_transaction_has_a_greater_revision_on_all_it_wrote() {
    on_each_store(|store| {
        let before = store.load().unwrap().revision;
        let (a, streamlets) = store.create_stream(stream("a"), 1).unwrap();
        assert_eq!(a.revision, before + 1);
        assert!(streamlets.iter().all(|s| s.revision == a.revision));
        let empty = store.commit(Transaction::default()).unwrap();
        assert_eq!(empty.revision, a.revision);
        let group = open_group(&streamlets[0], 1, 0);
        let revision = store
            .commit(put_group(&streamlets[0], group.clone()))
            .unwrap()
            .revision;
        assert_eq!(revision, before + 2);
        let read = store.group(group.key()).unwrap().unwrap();
        assert_eq!(read, GroupRecord { revision, ..group });
        let streamlet = store.streamlet(a.id, StreamletId(0)).unwrap().unwrap();
        assert_eq!(streamlet.revision, revision);
        assert_conflict(store.commit(put_group(&streamlets[0], open_group(&streamlets[0], 1, 0))));
        assert_eq!(store.load().unwrap().revision, revision);
    });
}

#[test]
fn a_refused_transaction_writes_nothing_and_refuses_no_other() {
    on_each_threaded_store(|store| {
        let (_, streamlets) = store.create_stream(stream("a"), 1).unwrap();
        let s = &streamlets[0];
        let raised = StreamletRecord {
            next_group: GroupId(1000),
            ..s.clone()
        };
        store
            .commit(Transaction::new(
                vec![Compare::epoch(s)],
                vec![Write::PutStreamlet(raised.clone())],
            ))
            .unwrap();
        let futures: Vec<_> = (1..300u64)
            .map(|n| {
                let mut transaction = put_group(&raised, open_group(&raised, n, 0));
                if n % 3 == 0 {
                    // One comparison of two fails; the other writes must not happen either.
                    let other = open_group(&raised, 500 + n, 1);
                    transaction
                        .compare
                        .push(Compare::revision(Key::Group(other.key()), 5));
                    transaction.write.push(Write::PutGroup(other));
                }
                (n, store.commit_async(transaction))
            })
            .collect();
        for (n, future) in futures {
            let outcome = future.wait();
            assert_eq!(outcome.is_err(), n % 3 == 0, "{n}: {outcome:?}");
        }
        let groups = store.load().unwrap().groups;
        assert_eq!(groups.len(), 200);
        assert!(groups.iter().all(|g| g.group.0 % 3 != 0));
    });
}

#[test]
fn writes_without_their_comparisons_are_refused() {
    on_each_store(|store| {
        let (stream, streamlets) = store.create_stream(stream("a"), 1).unwrap();
        let s = &streamlets[0];
        let group = open_group(s, 1, 0);
        let put = |compare: Vec<Compare>, write: Write| {
            store.commit(Transaction::new(compare, vec![write]))
        };
        let add = "add the comparison";
        assert_invalid(put(vec![], Write::PutStream(stream.clone())), add);
        assert_invalid(put(vec![], Write::PutStream(support::stream("b"))), add);
        assert_invalid(put(vec![], Write::DeleteStream(stream.id)), add);
        assert_invalid(put(vec![], Write::PutStreamlet(s.clone())), add);
        assert_invalid(
            put(vec![Compare::epoch(s)], Write::PutGroup(group.clone())),
            add,
        );
        assert_invalid(
            put(vec![Compare::group(&group)], Write::PutGroup(group.clone())),
            add,
        );
        assert_invalid(
            put(vec![Compare::epoch(s)], Write::DeleteGroup(group.key())),
            add,
        );
        let key = group.lane_key();
        assert_invalid(put(vec![], Write::PutLaneStart { key, ordinal: 1 }), add);
        let counter = Counter::ProducerIds;
        assert_invalid(put(vec![], Write::PutCounter { counter, value: 9 }), add);
        assert_invalid(put(vec![], Write::DeleteBroker(1)), add);
        // Absent is not what can be deleted.
        assert_invalid(
            put(
                vec![Compare::epoch(s), Compare::group(&group)],
                Write::DeleteGroup(group.key()),
            ),
            "absent",
        );
        assert_eq!(store.load().unwrap().revision, s.revision);
    });
}

#[test]
fn contradicting_writes_in_one_transaction_are_refused() {
    on_each_store(|store| {
        let (stream, streamlets) = store.create_stream(stream("a"), 1).unwrap();
        let s = &streamlets[0];
        let mut twice = put_group(s, open_group(s, 1, 0));
        twice.write.push(Write::PutGroup(open_group(s, 1, 1)));
        assert_invalid(store.commit(twice), "twice");
        let mut both = put_group(s, open_group(s, 1, 0));
        both.compare
            .push(Compare::revision(Key::Stream(stream.id), stream.revision));
        both.write.push(Write::DeleteStream(stream.id));
        assert_invalid(store.commit(both), "deletes its stream");
        assert_eq!(store.load().unwrap().revision, s.revision);
    });
}

#[test]
fn an_ended_epoch_writes_no_more_but_its_groups_are_closed() {
    on_each_store(|store| {
        let (_, old) = store.create_stream(stream("a"), 7).unwrap();
        let (_, other) = store.create_stream(stream("b"), 8).unwrap();
        let mut group = open_group(&old[0], 1, 0);
        group.revision = store
            .commit(put_group(&old[0], group.clone()))
            .unwrap()
            .revision;

        let new = store.bump_epochs(7).unwrap();
        assert_eq!(new.len(), 4);
        assert!(new.iter().all(|s| s.epoch == Epoch(2) && s.owner == 7));
        assert_eq!(
            store.streamlet(other[0].stream, StreamletId(0)).unwrap(),
            Some(other[0].clone())
        );

        let conflict = assert_conflict(store.commit(put_group(&old[0], closed(&group, 10, 1000))));
        assert!(matches!(
            conflict,
            Conflict::Epoch {
                found: Some(Epoch(2)),
                ..
            }
        ));
        assert_conflict(store.commit(put_start(&old[0], 0, 1)));

        let now = new
            .iter()
            .find(|s| s.streamlet == old[0].streamlet)
            .unwrap();
        // Nor are those that the epoch before may have used without a record.
        let used = GroupId(2);
        assert!(now.next_group > used, "ids are not reused");
        assert_invalid(
            store.commit(put_group(now, open_group(&old[0], 2, 0))),
            "has ended",
        );
        store
            .commit(put_group(now, closed(&group, 10, 1000)))
            .unwrap();
        store.commit(put_group(now, open_group(now, 2, 0))).unwrap();
    });
}

#[test]
fn impossible_groups_are_refused() {
    on_each_store(|store| {
        let (_, streamlets) = store.create_stream(stream("a"), 1).unwrap();
        let s = &streamlets[0];
        type Change = fn(&mut GroupRecord);
        let cases: [(&str, Change); 16] = [
            ("only 4 lanes", |g| g.lane = LaneId(4)),
            ("above the streamlet's", |g| g.epoch = Epoch(2)),
            ("has ended", |g| g.epoch = Epoch(0)),
            ("more than", |g| g.length = (128 << 20) + 1),
            ("more than", |g| g.live_bytes = u64::MAX),
            ("above", |g| g.first_ordinal = Some(1 << 63)),
            ("above", |g| g.next_ordinal = u64::MAX),
            ("negative", |g| g.max_timestamp_ms = -2),
            ("replicas", |g| g.copies.clear()),
            ("two of its replicas", |g| g.copies.push(g.copies[0])),
            ("recorded ahead", |g| {
                g.state = GroupState::Ahead;
                g.length = 1;
            }),
            ("first ordinal is unknown", |g| {
                g.state = GroupState::Closed;
                g.first_ordinal = None;
            }),
            ("span", |g| {
                *g = closed(g, (1 << 32) + 1, 1);
            }),
            ("below its end", |g| {
                *g = closed(g, 10, 10);
                g.next_ordinal = 9;
            }),
            ("damage", |g| {
                g.damaged = Some(Damage {
                    address: 0,
                    detail: "x".repeat(1025),
                    lost: LostRecords::default(),
                });
            }),
            ("damage", |g| {
                *g = closed(g, 10, 10);
                let mut damage = Damage::new(100, String::new());
                damage.lost.add(4..11);
                g.damaged = Some(damage);
            }),
        ];
        for (part, change) in cases {
            let mut group = open_group(s, 1, 0);
            change(&mut group);
            assert_invalid(store.commit(put_group(s, group)), part);
        }
        // A group above the streamlet's next one would let its id be given out twice.
        let group = open_group(s, 5, 0);
        let without_raise = Transaction::new(
            vec![Compare::epoch(s), Compare::group(&group)],
            vec![Write::PutGroup(group)],
        );
        assert_invalid(store.commit(without_raise), "next group");
        assert_eq!(store.load().unwrap().revision, s.revision);
    });
}

#[test]
fn a_group_only_moves_forward() {
    on_each_store(|store| {
        let (_, streamlets) = store.create_stream(stream("a"), 1).unwrap();
        let s = &streamlets[0];
        let mut group = GroupRecord {
            state: GroupState::Ahead,
            first_ordinal: None,
            ..open_group(s, 1, 2)
        };
        let put = |group: &mut GroupRecord| {
            let committed = store.commit(put_group(s, group.clone()))?;
            group.revision = committed.revision;
            Ok(committed)
        };
        put(&mut group).unwrap();
        group.state = GroupState::Open;
        put(&mut group).unwrap();
        group.first_ordinal = Some(50);
        put(&mut group).unwrap();

        type Change = fn(&mut GroupRecord);
        let while_open: [(&str, Change); 5] = [
            ("lane and epoch", |g| g.lane = LaneId(1)),
            ("first ordinal", |g| g.first_ordinal = Some(51)),
            ("first ordinal", |g| g.first_ordinal = None),
            ("state cannot go back", |g| g.state = GroupState::Ahead),
            ("replica set of an open group", |g| {
                g.copies[0].incarnation.boot_id = Uuid::from_u128(99);
            }),
        ];
        for (part, change) in while_open {
            let mut bad = group.clone();
            change(&mut bad);
            assert_invalid(put(&mut bad), part);
        }

        group = closed(&group, 100, 4096);
        group.next_ordinal += 1 << 32;
        put(&mut group).unwrap();
        let while_closed: [(&str, Change); 5] = [
            ("state cannot go back", |g| g.state = GroupState::Open),
            ("end and closing time", |g| g.end_ordinal += 1),
            ("end and closing time", |g| g.closed_ms += 1),
            ("length changes only", |g| g.length += 1),
            ("live bytes", |g| g.live_bytes = g.length + 1),
        ];
        for (part, change) in while_closed {
            let mut bad = group.clone();
            change(&mut bad);
            assert_invalid(put(&mut bad), part);
        }
        // A job's new generation may be shorter, with other copies.
        group.generation += 1;
        group.length = 100;
        group.live_bytes = 100;
        group.copies[0].incarnation.store_id = Uuid::from_u128(77);
        put(&mut group).unwrap();
        group.generation -= 1;
        assert_invalid(put(&mut group), "generation cannot go back");
    });
}

#[test]
fn streams_only_change_as_they_may() {
    on_each_store(|store| {
        let (mut stream, _) = store.create_stream(stream("a"), 1).unwrap();
        let alter = |stream: &StreamRecord| {
            store.commit(Transaction::new(
                vec![Compare::revision(Key::Stream(stream.id), stream.revision)],
                vec![Write::PutStream(stream.clone())],
            ))
        };
        type Change = fn(&mut StreamRecord);
        let cases: [(&str, Change); 8] = [
            ("cannot change", |s| s.name = "b".into()),
            ("cannot change", |s| s.created_ms += 1),
            ("must begin with", |s| s.internal = true),
            ("fixed at creation", |s| s.config.segment_size = 4 << 20),
            ("another number of lanes", |s| s.config.lanes = 8),
            ("no lane generation", |s| s.lane_generations.clear()),
            ("lists boundaries", |s| {
                s.lane_generations[0]
                    .starts
                    .push((StreamletId(0), LaneId(0), 0));
            }),
            ("does not list every lane", |s| {
                s.config.lanes = 8;
                s.lane_generations.push(LaneGeneration {
                    lanes: 8,
                    starts: vec![(StreamletId(0), LaneId(0), 5)],
                    ..LaneGeneration::default()
                });
            }),
        ];
        for (part, change) in cases {
            let mut bad = stream.clone();
            change(&mut bad);
            assert_invalid(alter(&bad), part);
        }
        let starts: Vec<_> = (0..16)
            .map(|n| (StreamletId(n / 4), LaneId(n % 4), u64::from(n) * 10))
            .collect();
        let mut twice = stream.clone();
        twice.config.lanes = 8;
        twice.lane_generations.push(LaneGeneration {
            lanes: 8,
            starts: starts.clone(),
            ..LaneGeneration::default()
        });
        twice.lane_generations[1].starts[3] = starts[2];
        assert_invalid(alter(&twice), "listed twice");

        let old = stream.clone();
        stream.config.lanes = 8;
        stream.config.ack = AckPolicy::Synced;
        stream.lane_generations.push(LaneGeneration {
            lanes: 8,
            starts,
            ..LaneGeneration::default()
        });
        stream.revision = alter(&stream).unwrap().revision;
        assert_eq!(store.stream(stream.id).unwrap(), Some(stream.clone()));
        assert_conflict(alter(&old));
        let mut forgets = stream.clone();
        forgets.lane_generations[1].starts[0].2 = 1;
        assert_invalid(alter(&forgets), "recorded lane generations");
        // A lane of the new generation counts from now on.
        let s = store.streamlet(stream.id, StreamletId(0)).unwrap().unwrap();
        store.commit(put_group(&s, open_group(&s, 1, 7))).unwrap();
    });
}

#[test]
fn names_are_checked() {
    on_each_store(|store| {
        for name in ["", "a/b", "..", "_kera.x"] {
            let record = StreamRecord {
                internal: false,
                ..stream(name)
            };
            let error = store.create_stream(record, 1).unwrap_err();
            assert_eq!(error.code(), ErrorCode::InvalidName, "{name}");
        }
        let (internal, _) = store.create_stream(stream("_kera.groups"), 1).unwrap();
        assert!(internal.internal);
    });
}

#[test]
fn what_only_grows_does_not_move_back() {
    on_each_store(|store| {
        let (_, streamlets) = store.create_stream(stream("a"), 1).unwrap();
        let s = &streamlets[0];
        store.commit(put_start(s, 0, 100)).unwrap();
        store.commit(put_start(s, 0, 100)).unwrap();
        assert!(matches!(
            assert_conflict(store.commit(put_start(s, 0, 99))),
            Conflict::MovesBack { current: 100, .. }
        ));
        assert_invalid(store.commit(put_start(s, 9, 1)), "only 4 lanes");
        let change = |change: fn(&mut StreamletRecord)| {
            let mut record = StreamletRecord {
                next_group: GroupId(5),
                ..s.clone()
            };
            change(&mut record);
            store.commit(Transaction::new(
                vec![Compare::epoch(s)],
                vec![Write::PutStreamlet(record)],
            ))
        };
        change(|_| ()).unwrap();
        assert_conflict(change(|r| r.next_group = GroupId(4)));
        assert_conflict(change(|r| r.epoch = Epoch(0)));
        assert_invalid(change(|r| r.owner = 2), "new owner needs a new epoch");
        assert_invalid(change(|r| r.epoch = Epoch(1 << 31)), "above");
        assert_invalid(
            change(|r| r.streamlet = StreamletId(1)),
            "add the comparison",
        );
        change(|r| {
            r.owner = 2;
            r.epoch = Epoch(2);
        })
        .unwrap();
    });
}

#[test]
fn brokers_are_recorded_and_forgotten() {
    on_each_store(|store| {
        let mut broker = BrokerRecord {
            id: 3,
            address: "127.0.0.1:7600".into(),
            store_id: Uuid::from_u128(1),
            boot_id: Uuid::from_u128(2),
            started_ms: 5,
            version: "0.1.0".into(),
            role: Default::default(),
            restore: 0,
            revision: 0,
        };
        let compare = |b: &BrokerRecord| Compare::revision(Key::Broker(b.id), b.revision);
        let put = |b: &BrokerRecord| {
            store.commit(Transaction::new(
                vec![compare(b)],
                vec![Write::PutBroker(b.clone())],
            ))
        };
        let stale = broker.clone();
        broker.revision = put(&broker).unwrap().revision;
        assert_eq!(store.broker(3).unwrap(), Some(broker.clone()));
        assert_conflict(put(&stale));
        let mut bad = broker.clone();
        bad.address.clear();
        assert_invalid(put(&bad), "address");
        store
            .commit(Transaction::new(
                vec![compare(&broker)],
                vec![Write::DeleteBroker(3)],
            ))
            .unwrap();
        assert_eq!(store.broker(3).unwrap(), None);
    });
}

#[test]
fn producer_ids_are_never_given_twice() {
    on_each_threaded_store(|store| {
        assert_eq!(store.allocate_producer_ids(10).unwrap(), 1..11);
        let ranges = Arc::new(Mutex::new(Vec::new()));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (store, ranges) = (store.clone(), ranges.clone());
                std::thread::spawn(move || {
                    for _ in 0..5 {
                        let range = store.allocate_producer_ids(7).unwrap();
                        ranges.lock().unwrap().push(range);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        let ids: BTreeSet<u64> = ranges.lock().unwrap().iter().cloned().flatten().collect();
        assert_eq!(ids, (11..11 + 4 * 5 * 7).collect());
        for count in [0, MAX_PRODUCER_ID_BLOCK + 1] {
            assert!(matches!(
                store.allocate_producer_ids(count),
                Err(MetadataError::Invalid(_))
            ));
        }
    });
}

#[test]
fn producer_ids_end_before_they_overflow() {
    on_each_store(|store| {
        let counter = Counter::ProducerIds;
        store
            .commit(Transaction::new(
                vec![Compare::CounterValue { counter, value: 0 }],
                vec![Write::PutCounter {
                    counter,
                    value: MAX_ORDINAL - 1,
                }],
            ))
            .unwrap();
        assert!(store.allocate_producer_ids(2).is_err());
        assert_eq!(
            store.allocate_producer_ids(1).unwrap(),
            MAX_ORDINAL - 1..MAX_ORDINAL
        );
    });
}

#[test]
fn the_largest_stream_is_created_and_deleted_at_once() {
    on_each_store(|store| {
        let config = StreamConfig {
            streamlets: 65_536,
            ..StreamConfig::default()
        };
        let record = StreamRecord::new("wide", config, 0);
        let (stream, streamlets) = store.create_stream(record, 9).unwrap();
        assert_eq!(streamlets.len(), 65_536);
        assert_eq!(store.bump_epochs(9).unwrap().len(), 65_536);
        store.commit(delete_stream(&stream)).unwrap();
        assert!(store.load().unwrap().streamlets.is_empty());
    });
}

#[test]
fn epochs_rise_over_the_deletion_of_a_name() {
    on_each_store(|store| {
        let (first, streamlets) = store.create_stream(stream("a"), 9).unwrap();
        assert!(streamlets.iter().all(|s| s.epoch == FIRST_EPOCH));
        let (other, _) = store.create_stream(stream("b"), 9).unwrap();
        for _ in 0..3 {
            store.bump_epochs(9).unwrap();
        }
        store.commit(delete_stream(&first)).unwrap();
        assert_eq!(store.counter(Counter::EpochFloor).unwrap(), 4);
        let (again, streamlets) = store.create_stream(stream("a"), 9).unwrap();
        assert!(streamlets.iter().all(|s| s.epoch == Epoch(5)));
        // Whichever stream is deleted, the floor never falls.
        store.commit(delete_stream(&other)).unwrap();
        assert_eq!(store.counter(Counter::EpochFloor).unwrap(), 4);
        store.commit(delete_stream(&again)).unwrap();
        let (_, streamlets) = store.create_stream(stream("c"), 9).unwrap();
        assert!(streamlets.iter().all(|s| s.epoch == Epoch(6)));
    });
}

#[test]
fn a_streamlet_at_or_below_the_floor_is_refused_and_nobody_else_moves_it() {
    on_each_store(|store| {
        let (old, _) = store.create_stream(stream("a"), 9).unwrap();
        store.commit(delete_stream(&old)).unwrap();
        // As of a caller that knows nothing of the deletion.
        let (stale, _) = creation(&stream("a"), 9, 0).unwrap();
        assert!(matches!(
            assert_conflict(store.commit(stale.clone())),
            Conflict::Counter {
                expected: 0,
                found: 1,
                ..
            }
        ));
        let compare = |c: &Compare| !matches!(c, Compare::CounterValue { .. });
        let unguarded = Transaction {
            compare: stale.compare.into_iter().filter(compare).collect(),
            write: stale.write,
        };
        assert!(matches!(
            assert_conflict(store.commit(unguarded)),
            Conflict::MovesBack {
                current: 2,
                written: 1,
                ..
            }
        ));
        let counter = Counter::EpochFloor;
        assert_invalid(
            store.commit(Transaction::new(
                vec![Compare::CounterValue { counter, value: 1 }],
                vec![Write::PutCounter { counter, value: 9 }],
            )),
            "deleting streams",
        );
        assert!(creation(&stream("a"), 9, i32::MAX as u64).is_err());
        let (last, streamlets) = creation(&stream("a"), 9, i32::MAX as u64 - 1).unwrap();
        assert_eq!(streamlets[0].epoch, Epoch(i32::MAX as u32));
        assert!(store.commit(last).is_err(), "the floor is another");
    });
}

#[path = "rules/compaction.rs"]
mod compaction;
#[path = "rules/lanes.rs"]
mod lanes;

#[path = "rules/access.rs"]
mod access;
#[path = "rules/pins.rs"]
mod pins;
#[path = "rules/restored.rs"]
mod restored;
#[path = "rules/settings.rs"]
mod settings;
