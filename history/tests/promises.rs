//! What is an anomaly depends on what was promised.

use kera_history::{
    AckPolicy, Anomaly, AnomalyKind, Class, Event, Expectations, FailureOutcome, Fault, HeadBreach,
    History, HistoryError, Lane, LeaseRef, Order, OrderBreach, Reader, Record, Redelivery, Report,
    Scope, check,
};

const L0: Lane = lane(0);
const L1: Lane = lane(1);

const fn lane(lane: u32) -> Lane {
    Lane {
        stream: 0,
        streamlet: 0,
        lane,
    }
}

fn record(seq: u64) -> Record {
    Record { producer: 0, seq }
}

fn send(seq: u64) -> Event {
    Event::Send {
        record: record(seq),
        stream: 0,
        streamlet: None,
        lane: None,
        key: None,
    }
}

fn ack(seq: u64, ordinal: u64) -> Event {
    Event::Ack {
        record: record(seq),
        lane: L0,
        ordinal,
    }
}

fn stored(count: u64) -> Vec<Event> {
    (0..count).flat_map(|n| [send(n), ack(n, n)]).collect()
}

/// A read by a consumer without a group.
fn read(consumer: u32, seq: u64, ordinal: u64) -> Event {
    Event::Read {
        consumer,
        lease: None,
        lane: L0,
        ordinal,
        record: Some(record(seq)),
        key: None,
        head: None,
    }
}

fn lease(lease: u64) -> LeaseRef {
    LeaseRef { group: 0, lease }
}

fn granted(id: u64, member: u32, lane: Lane, start: u64, end: Option<u64>) -> Event {
    Event::LeaseGranted {
        lease: lease(id),
        member,
        lane,
        start,
        end,
    }
}

fn leased_read(id: u64, lane: Lane, seq: u64, ordinal: u64, key: Option<u64>) -> Event {
    Event::Read {
        consumer: 0,
        lease: Some(lease(id)),
        lane,
        ordinal,
        record: Some(record(seq)),
        key,
        head: None,
    }
}

fn committed(id: u64, ordinal: u64, asked: u64) -> Event {
    Event::Committed {
        lease: lease(id),
        ordinal,
        asked,
    }
}

fn gap(from: u64, to: u64) -> Event {
    Event::OrdinalGap { lane: L0, from, to }
}

fn judge(events: Vec<Event>, expectations: Expectations) -> Report {
    check(&History::from_events(events), &expectations).unwrap()
}

fn judge_by_default(events: Vec<Event>) -> Report {
    judge(events, Expectations::default())
}

#[test]
fn an_acknowledgement_without_a_place_promises_no_less() {
    let complete = Expectations {
        complete: true,
        ..Expectations::default()
    };
    let unplaced = |seq| Event::AckedUnplaced {
        record: record(seq),
    };
    // Wherever it is read, it is there; once.
    let mut events = vec![send(0), send(1), unplaced(0), ack(1, 1)];
    events.extend([read(1, 0, 0), read(1, 1, 1)]);
    let report = judge(events.clone(), complete);
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.counts.acknowledged, 2);
    events.push(read(1, 0, 2));
    let report = judge(events, complete);
    assert!(
        report.kinds().contains(&AnomalyKind::Duplicated),
        "{report}"
    );
    // What nobody reads is lost once reading is complete, and its own events are shown.
    let unread = vec![send(0), unplaced(0)];
    let report = judge(unread.clone(), complete);
    assert_eq!(report.kinds(), [AnomalyKind::Lost], "{report}");
    assert_eq!(report.evidence[0].len(), 2, "{report}");
    assert!(judge_by_default(unread).is_clean());
    // A policy that may lose it: not what was sent after the last fault.
    let memory = Expectations {
        ack: AckPolicy::Memory,
        ..complete
    };
    let mut before = vec![send(0), unplaced(0), Event::BrokerKilled];
    before.push(Event::BrokerStarted);
    assert!(judge(before.clone(), memory).is_clean());
    before.extend([send(1), unplaced(1)]);
    assert_eq!(judge(before, memory).kinds(), [AnomalyKind::Lost]);
    // Behind a later record of its producer it is out of order, as any other.
    let behind = vec![
        send(0),
        send(1),
        unplaced(0),
        ack(1, 0),
        read(1, 1, 0),
        read(1, 0, 1),
    ];
    assert_eq!(judge(behind, complete).kinds(), [AnomalyKind::Reordered]);
    let unsent = check(&History::from_events(vec![unplaced(3)]), &complete);
    assert!(unsent.is_err_and(|error| error.to_string().contains("0:3")));
}

#[test]
fn a_policy_loses_only_what_it_may_and_only_when_reported() {
    // Two records are acknowledged, the second is gone afterwards.
    let mut unreported = stored(2);
    unreported.extend([Event::BrokerKilled, read(1, 0, 0)]);
    unreported.push(Event::Drained {
        reader: Reader::Consumer(1),
        lane: L0,
        ordinal: 2,
    });
    let mut reported = unreported.clone();
    reported.push(gap(1, 1 << 32));
    for (ack, fault, may_lose) in [
        (AckPolicy::Memory, Fault::None, false),
        (AckPolicy::Memory, Fault::Kill, true),
        (AckPolicy::Written, Fault::Kill, false),
        (AckPolicy::Written, Fault::PowerLoss, true),
        (AckPolicy::Synced, Fault::PowerLoss, false),
    ] {
        let expectations = Expectations {
            ack,
            fault,
            ..Expectations::default()
        };
        assert_eq!(expectations.may_lose(), may_lose);
        let report = judge(reported.clone(), expectations);
        let expected = if may_lose {
            vec![]
        } else {
            vec![AnomalyKind::Lost]
        };
        assert_eq!(report.kinds(), expected, "{ack:?} {fault:?}: {report}");
        assert_eq!(report.counts.gap_ordinals, (1 << 32) - 1);
        let report = judge(unreported.clone(), expectations);
        assert_eq!(report.kinds(), [AnomalyKind::Lost], "{ack:?} {fault:?}");
    }
}

#[test]
fn what_was_shown_and_lost_as_allowed_may_be_stored_again_elsewhere() {
    let again = 1 << 32;
    let events = vec![
        send(0),
        send(1),
        read(1, 0, 0),
        read(1, 1, 1),
        Event::BrokerKilled,
        gap(0, again),
        // The producer never heard of it and sends it again; now a reader starts afresh.
        ack(0, again),
        ack(1, again + 1),
        read(2, 0, again),
        read(2, 1, again + 1),
        read(1, 0, again),
        read(1, 1, again + 1),
    ];
    let memory = Expectations {
        ack: AckPolicy::Memory,
        ..Expectations::default()
    };
    let report = judge(events.clone(), memory);
    assert!(report.is_clean(), "{report}");
    let report = judge_by_default(events);
    assert_eq!(
        report.kinds(),
        [AnomalyKind::Duplicated, AnomalyKind::AboveHead],
        "{report}"
    );
    assert!(report.anomalies.iter().any(|a| matches!(
        a,
        Anomaly::AboveHead {
            how: HeadBreach::LaterLost,
            ..
        }
    )));
}

/// What a `memory` stream shows when its broker is killed: four records are acknowledged and read,
/// the last two are lost, and their producer goes on. `what` is planted at the end.
fn after_a_loss(what: Vec<Event>) -> Report {
    let again = 1 << 32;
    let mut events = vec![Event::BrokerStarted];
    events.extend(stored(4));
    events.extend([read(1, 0, 0), read(1, 1, 1)]);
    events.extend([Event::BrokerKilled, Event::BrokerStarted, gap(2, again)]);
    events.extend([send(4), ack(4, again), send(5), ack(5, again + 1)]);
    events.extend([read(1, 4, again), read(1, 5, again + 1)]);
    events.extend(what);
    let memory = Expectations {
        ack: AckPolicy::Memory,
        complete: true,
        ..Expectations::default()
    };
    judge(events, memory)
}

#[test]
fn memory_may_lose_and_nothing_else() {
    let again = 1 << 32;
    let clean = after_a_loss(vec![]);
    assert!(clean.is_clean(), "{clean}");
    assert_eq!(clean.counts.unread, 2);
    for (what, expected) in [
        // Stored at two places, neither of which was lost.
        (vec![read(1, 1, again + 2)], AnomalyKind::Duplicated),
        // Sent after the loss, stored before what was sent ahead of it.
        (
            vec![
                send(6),
                send(7),
                read(1, 7, again + 2),
                read(1, 6, again + 3),
            ],
            AnomalyKind::Reordered,
        ),
        (vec![read(1, 9, again + 2)], AnomalyKind::Phantom),
        // An ordinal that had held a record is used again: the jump is too short.
        (
            vec![
                send(6),
                ack(6, 3),
                read(2, 0, 0),
                read(2, 1, 1),
                read(2, 6, 3),
            ],
            AnomalyKind::OrdinalReused,
        ),
        // Missing, and in no gap.
        (vec![send(6), ack(6, again + 2)], AnomalyKind::Lost),
        // In a gap, but nobody killed the broker since it was sent.
        (
            vec![send(6), ack(6, again + 2), gap(again + 2, again * 2)],
            AnomalyKind::Lost,
        ),
    ] {
        let report = after_a_loss(what);
        assert_eq!(report.kinds(), [expected], "{report}");
    }
    // Killed once more: now it may be gone.
    let report = after_a_loss(vec![
        send(6),
        ack(6, again + 2),
        Event::BrokerKilled,
        Event::BrokerStarted,
        gap(again + 2, again * 2),
    ]);
    assert!(report.is_clean(), "{report}");
}

#[test]
fn what_was_trimmed_is_neither_lost_nor_served() {
    let reader = Reader::Consumer(2);
    let positioned = Event::Positioned {
        reader,
        lane: L0,
        ordinal: 2,
    };
    let history_after = |first: u64, is_put_back: bool| {
        let mut events = stored(4);
        // This one had fetched what was trimmed a moment later.
        events.extend([read(1, 0, 0), Event::LogTrimmed { lane: L0, start: 2 }]);
        events.push(read(1, 1, 1));
        events.extend(is_put_back.then_some(Event::StorePutBack));
        events.push(positioned.clone());
        events.extend((first..4).map(|n| read(2, n, n)));
        let complete = Expectations {
            complete: true,
            ..Expectations::default()
        };
        judge(events, complete)
    };
    let history = |first| history_after(first, false);
    assert!(history(2).is_clean(), "{}", history(2));
    assert!(
        history_after(1, true).is_clean(),
        "an older state may have it still"
    );
    assert_eq!(
        history(1).anomalies,
        [Anomaly::BelowStart {
            reader,
            place: kera_history::Place {
                lane: L0,
                ordinal: 1
            },
            start: 2
        }]
    );
    assert_eq!(history(3).kinds(), [AnomalyKind::Lost], "not trimmed");
}

#[test]
fn nobody_has_lost_what_nobody_came_past() {
    let mut events = stored(3);
    events.push(read(1, 0, 0));
    let report = judge_by_default(events.clone());
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.counts.unread, 2);
    let complete = Expectations {
        complete: true,
        ..Expectations::default()
    };
    assert_eq!(judge(events.clone(), complete).counts.lost(), 2);
    // Trimmed is not lost.
    events.push(Event::LogTrimmed { lane: L0, start: 3 });
    assert!(judge(events, complete).is_clean());
}

#[test]
fn a_hole_is_unseen_unless_reported() {
    let events = vec![send(0), send(1), read(1, 0, 0), read(1, 1, 9)];
    let report = judge_by_default(events.clone());
    assert_eq!(
        report.anomalies,
        [Anomaly::Unseen {
            reader: Reader::Consumer(1),
            lane: L0,
            from: 1,
            to: 9,
            scope: Some(Scope::External),
        }]
    );
    let mut reported = events;
    reported.push(gap(1, 9));
    assert!(judge_by_default(reported).is_clean());
}

#[test]
fn a_reader_starts_where_it_says() {
    let mut events = stored(4);
    events.extend([read(1, 2, 2), read(1, 3, 3)]);
    let report = judge_by_default(events.clone());
    assert_eq!(report.kinds(), [AnomalyKind::Lost]);
    let positioned = |ordinal| Event::Positioned {
        reader: Reader::Consumer(1),
        lane: L0,
        ordinal,
    };
    events.insert(8, positioned(2));
    assert!(judge_by_default(events.clone()).is_clean());
    // Back again.
    events.extend([positioned(1), read(1, 1, 1), read(1, 2, 2)]);
    assert!(judge_by_default(events.clone()).is_clean());
    events.push(read(1, 2, 2));
    assert_eq!(judge_by_default(events).kinds(), [AnomalyKind::Duplicated]);
}

#[test]
fn without_idempotence_retries_may_store_twice() {
    let mut events = stored(2);
    events.extend([read(1, 0, 0), read(1, 1, 1), read(1, 0, 2), read(1, 1, 3)]);
    assert_eq!(
        judge_by_default(events.clone()).kinds(),
        [AnomalyKind::Duplicated]
    );
    let at_least_once = Expectations {
        idempotent: false,
        ..Expectations::default()
    };
    assert!(judge(events, at_least_once).is_clean());
}

#[test]
fn uncommitted_records_come_again_unless_nobody_died() {
    let mut events = stored(2);
    events.extend([
        granted(10, 1, L0, 0, None),
        leased_read(10, L0, 0, 0, None),
        leased_read(10, L0, 1, 1, None),
        committed(10, 1, 7),
        granted(20, 2, L0, 1, None),
        leased_read(20, L0, 1, 1, None),
    ]);
    let report = judge_by_default(events.clone());
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.counts.redeliveries, 1);
    let never = Expectations {
        redelivery: Redelivery::Never,
        ..Expectations::default()
    };
    assert_eq!(judge(events, never).kinds(), [AnomalyKind::Duplicated]);
}

#[test]
fn where_leases_cannot_expire_two_at_once_are_one_too_many() {
    let mut events = stored(2);
    events.extend([granted(10, 1, L0, 0, None), granted(20, 2, L0, 0, Some(2))]);
    assert!(judge_by_default(events.clone()).is_clean());
    let never = Expectations {
        leases_expire: false,
        ..Expectations::default()
    };
    assert_eq!(
        judge(events.clone(), never).kinds(),
        [AnomalyKind::LeasedTwice]
    );
    events.insert(5, Event::LeaseEnded { lease: lease(10) });
    assert!(judge(events, never).is_clean());
}

#[test]
fn a_commit_of_a_lease_that_had_expired_shows_that_it_had_not() {
    let history = |asked| {
        let mut events = stored(2);
        events.extend([
            granted(10, 1, L0, 0, None),
            leased_read(10, L0, 0, 0, None),
            granted(20, 2, L0, 0, Some(2)),
            committed(10, 1, asked),
        ]);
        judge_by_default(events)
    };
    // Asked before the other lease was granted: the answer was merely late.
    assert!(history(6).is_clean());
    assert_eq!(history(7).kinds(), [AnomalyKind::LeasedTwice]);
}

#[test]
fn an_older_grant_heard_of_late_is_no_second_lease() {
    let mut events = stored(2);
    events.extend([
        granted(20, 2, L0, 0, Some(2)),
        leased_read(20, L0, 0, 0, None),
        leased_read(20, L0, 1, 1, None),
        committed(20, 2, 7),
        granted(10, 1, L0, 0, None),
    ]);
    assert!(judge_by_default(events.clone()).is_clean());
    // But not if the older one goes on to commit.
    events.extend([leased_read(10, L0, 0, 0, None), committed(10, 1, 10)]);
    events.swap(7, 8);
    let report = judge_by_default(events);
    assert!(
        report.kinds().contains(&AnomalyKind::LeasedTwice),
        "{report}"
    );
}

#[test]
fn a_key_keeps_its_order_when_it_moves_to_another_lane() {
    let history = |order, key_of_second| {
        let mut events = vec![
            Event::GroupDefined {
                group: 0,
                stream: 0,
                order,
            },
            send(0),
            send(1),
        ];
        // The lane of the new generation is delivered first.
        events.extend([
            granted(10, 1, L0, 0, None),
            granted(20, 2, L1, 0, None),
            leased_read(20, L1, 1, 0, Some(key_of_second)),
            leased_read(10, L0, 0, 0, Some(5)),
        ]);
        judge_by_default(events)
    };
    let report = history(Order::Lane, 5);
    assert!(
        matches!(
            report.anomalies[..],
            [Anomaly::Reordered {
                how: OrderBreach::Key,
                ..
            }]
        ),
        "{report}"
    );
    assert!(history(Order::Lane, 6).is_clean());
    assert!(history(Order::None, 5).is_clean());
}

#[test]
fn ordered_groups_get_a_lane_in_order_and_others_need_not() {
    let history = |order| {
        let mut events = stored(4);
        events.push(Event::GroupDefined {
            group: 0,
            stream: 0,
            order,
        });
        events.extend([
            granted(10, 1, L0, 0, Some(2)),
            granted(20, 2, L0, 2, Some(4)),
            leased_read(20, L0, 2, 2, None),
            leased_read(10, L0, 0, 0, None),
            leased_read(20, L0, 3, 3, None),
            leased_read(10, L0, 1, 1, None),
        ]);
        judge_by_default(events).kinds()
    };
    assert_eq!(history(Order::Lane), [AnomalyKind::Reordered]);
    assert_eq!(history(Order::None), []);
}

#[test]
fn asking_counts_only_after_the_data_is_known() {
    let history = |asks: u32, first_before_data: bool| {
        let ask = |asked| Event::AcquiredNothing {
            group: 0,
            member: 1,
            asked,
        };
        let mut events = vec![Event::GroupDefined {
            group: 0,
            stream: 0,
            order: Order::None,
        }];
        if first_before_data {
            events.push(ask(0));
        }
        events.extend(stored(1));
        for _ in 0..asks {
            events.push(ask(events.len() as u64));
        }
        judge_by_default(events).kinds()
    };
    assert_eq!(history(3, false), []);
    assert_eq!(history(4, false), [AnomalyKind::NeverLeased]);
    // The answers all belong to a time when nothing was known to be there.
    assert_eq!(history(8, true), []);
}

#[test]
fn a_broken_recording_is_an_error_and_no_anomaly() {
    let invalid = |events: Vec<Event>| {
        let history = History::from_events(events);
        match check(&history, &Expectations::default()) {
            Err(HistoryError::Invalid { at, reason }) => (at, reason),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(invalid(vec![send(0), send(0)]).0, 1);
    assert_eq!(invalid(vec![send(1 << 30)]).0, 0);
    assert_eq!(invalid(vec![leased_read(1, L0, 0, 0, None)]).0, 0);
    assert_eq!(invalid(vec![committed(1, 1, 0)]).0, 0);
    assert_eq!(invalid(vec![Event::LeaseEnded { lease: lease(1) }]).0, 0);
    let unsent = Event::Failed {
        record: record(0),
        outcome: FailureOutcome::Unknown,
    };
    assert_eq!(invalid(vec![unsent]).0, 0);
    let entry = kera_history::Entry {
        at: 3,
        event: Event::BrokerStarted,
    };
    let twice = History::from_entries(vec![entry.clone(), entry]);
    assert!(check(&twice, &Expectations::default()).is_err());
}

#[test]
fn counting_goes_on_where_keeping_ends() {
    let mut events = stored(500);
    events.push(Event::Drained {
        reader: Reader::Group(0),
        lane: L0,
        ordinal: 500,
    });
    let report = judge_by_default(events);
    assert_eq!(report.counts.lost(), 500);
    assert_eq!(report.anomalies.len(), 100);
    assert_eq!(report.evidence.len(), 10);
    let text = report.to_string();
    assert!(
        text.starts_with("500 sent, 500 lost, 0 duplicated, 0 out of order\n"),
        "{text}"
    );
}

#[test]
fn whether_it_shows_within_one_call_is_told() {
    let polled = Event::Polled { consumer: 1 };
    let classes = |reads: Vec<Event>| {
        let mut events = stored(4);
        // All is read by somebody else.
        events.extend((0..4).map(|n| read(2, n, n)));
        events.extend(reads);
        judge_by_default(events).classes()
    };
    let (first, last) = (read(1, 0, 0), read(1, 3, 3));
    assert_eq!(
        classes(vec![polled.clone(), first.clone(), last.clone()]),
        [Class::IntPollSkip]
    );
    assert_eq!(
        classes(vec![
            polled.clone(),
            first.clone(),
            polled.clone(),
            last.clone()
        ]),
        [Class::PollSkip]
    );
    // Nothing is known of calls.
    assert_eq!(classes(vec![first.clone(), last]), [Class::PollSkip]);
    assert_eq!(
        classes(vec![polled.clone(), first.clone(), first.clone()]),
        [Class::IntNonmonotonicPoll]
    );
    assert_eq!(
        classes(vec![polled.clone(), first.clone(), polled, first]),
        [Class::NonmonotonicPoll]
    );
}

#[test]
fn a_group_that_got_a_record_before_has_to_get_it_again_where_it_reads_again() {
    let history = |again: &[u64]| {
        let mut events = stored(4);
        events.push(granted(10, 1, L0, 0, None));
        events.extend((0..3).map(|n| leased_read(10, L0, n, n, None)));
        events.push(granted(20, 2, L0, 0, None));
        events.extend(again.iter().map(|n| leased_read(20, L0, *n, *n, None)));
        judge_by_default(events)
    };
    assert!(history(&[0, 1, 2, 3]).is_clean());
    assert_eq!(
        history(&[0, 2, 3]).anomalies,
        [Anomaly::Skipped {
            lease: lease(20),
            lane: L0,
            from: 1,
            to: 2,
            scope: Scope::External,
        }]
    );
    // Late under the same lease is one anomaly, not two.
    assert_eq!(history(&[0, 2, 1, 3]).kinds(), [AnomalyKind::Duplicated]);
}

#[test]
fn a_report_says_its_verdict_in_one_line() {
    let mut events = stored(3);
    events.extend([read(1, 0, 0), read(1, 2, 2)]);
    let report = judge_by_default(events);
    assert_eq!(
        report.headline(),
        "1 lost; the first: lost: record 0:1 was acknowledged at ordinal 1 of lane 0/0/0 and never \
         read although consumer 1 came past it"
    );
    let clean = judge_by_default(stored(3));
    assert_eq!(clean.headline(), "no anomaly in 3 records");
}
