//! Positions that transactions commit.

use kera_coordinator::SendPositions;
use kera_coordinator::classic::{self, EndOffsets, OfTransaction};

use super::*;

pub(super) fn of(producer: i64, number: u64) -> OfTransaction {
    OfTransaction { producer, number }
}

pub(super) fn send(
    b: &mut Bench,
    member: &str,
    transaction: OfTransaction,
    commits: &[v1::LeaseCommit],
) -> Result<(), ErrorCode> {
    let request = SendPositions {
        group: "g".into(),
        member: member.into(),
        transaction,
        commits: commits.to_vec(),
    };
    match b.call(Request::SendPositions(request)) {
        Ok(Reply::SendPositions(_)) => Ok(()),
        Ok(other) => panic!("positions answered {other:?}"),
        Err(error) => Err(error.code),
    }
}

pub(super) fn end(b: &mut Bench, transaction: OfTransaction, commit: bool) {
    let request = classic::Request::EndOffsets(EndOffsets {
        group: "g".into(),
        transaction,
        commit,
    });
    let ended = b.call(Request::Classic(request));
    assert_eq!(ended, Ok(Reply::Classic(classic::Reply::OffsetsEnded)));
}

fn committed(b: &mut Bench) -> Vec<u64> {
    let lanes = b.describe("g").lanes;
    lanes.iter().map(|lane| lane.committed).collect()
}

/// The coordinator that reads the events, or a snapshot of them, goes on in its place.
pub(super) fn restart(b: &mut Bench, from_snapshot: bool) {
    let events = match from_snapshot {
        true => b.coordinator.snapshot(),
        false => b.events.clone(),
    };
    let replayed = b.replayed(&events);
    assert!(replayed.same_durable_state(&b.coordinator));
    b.coordinator = replayed;
}

fn at(lease: u64, next: u64) -> v1::LeaseCommit {
    commit(lease, Some(next), false)
}

#[test]
fn they_count_once_their_transaction_is_committed() {
    for (is_committed, from_snapshot) in [(true, true), (true, false), (false, true)] {
        let mut b = bench(1, 2);
        b.stream.append((0, 0), 10);
        b.stream.append((0, 1), 10);
        let m = b.join("g", "c", Order::Lane);
        let leases = ids(&b.acquire("g", &m, 2));
        b.commit("g", &m, &[at(leases[0], 2)]);
        send(&mut b, &m, of(7, 1), &[at(leases[0], 5)]).unwrap();
        send(&mut b, &m, of(7, 1), &[at(leases[0], 6), at(leases[1], 4)]).unwrap();
        // Asked again, and what is lower: nothing changes.
        let events = b.events.len();
        send(&mut b, &m, of(7, 1), &[at(leases[1], 4), at(leases[0], 5)]).unwrap();
        assert_eq!(b.events.len(), events);
        assert_eq!(committed(&mut b), [2, 0]);
        restart(&mut b, from_snapshot);
        end(&mut b, of(7, 1), is_committed);
        end(&mut b, of(7, 1), is_committed);
        let expected = if is_committed { [6, 4] } else { [2, 0] };
        assert_eq!(committed(&mut b), expected);
        restart(&mut b, true);
        // The lease goes on.
        assert_eq!(b.commit("g", &m, &[at(leases[0], 8)]), []);
        assert_eq!(committed(&mut b), [8, expected[1]]);
    }
}

#[test]
fn what_is_committed_is_taken_by_no_other_transaction() {
    let mut b = bench(1, 1);
    b.stream.append((0, 0), 10);
    let m = b.join("g", "c", Order::Lane);
    let lease = ids(&b.acquire("g", &m, 1))[0];
    send(&mut b, &m, of(7, 1), &[at(lease, 5)]).unwrap();
    end(&mut b, of(7, 1), true);
    // Whoever lost the answer to its commit copies the same records again.
    for transaction in [of(7, 2), of(8, 1)] {
        let refused = send(&mut b, &m, transaction, &[at(lease, 5)]);
        assert_eq!(refused, Err(ErrorCode::StaleLease));
    }
    send(&mut b, &m, of(7, 2), &[at(lease, 6)]).unwrap();
    // Nobody told the end of that one; a later one of the same producer shows that it is over.
    send(&mut b, &m, of(7, 3), &[at(lease, 7)]).unwrap();
    end(&mut b, of(7, 2), true);
    assert_eq!(committed(&mut b), [5]);
    end(&mut b, of(7, 3), true);
    assert_eq!(committed(&mut b), [7]);
    restart(&mut b, true);
}

#[test]
fn whoever_has_the_lane_next_waits_until_it_is_known_where_to_begin() {
    for is_committed in [true, false] {
        let mut b = bench(1, 1);
        b.stream.append((0, 0), 10);
        let first = b.join("g", "c", Order::Lane);
        let lease = ids(&b.acquire("g", &first, 1))[0];
        send(&mut b, &first, of(7, 1), &[at(lease, 5)]).unwrap();
        b.leave("g", &first);
        // What was asked before the lease ended is answered again.
        let second = b.join("g", "c", Order::Lane);
        let waits = b.park("g", &second, 1, 60_000);
        assert_eq!(b.leases(waits), None, "nobody knows");
        restart(&mut b, true);
        let waits = b.park("g", &second, 1, 60_000);
        for _ in 0..5 {
            b.tick(500);
            assert_eq!(b.leases(waits), None, "nobody knows");
        }
        end(&mut b, of(7, 1), is_committed);
        let leases = b.leases(waits).expect("it is known");
        let begin = if is_committed { 5 } else { 0 };
        assert_eq!(ranges(&leases), [(begin, 0)]);
        restart(&mut b, true);
    }
}

#[test]
fn of_a_range_only_what_the_transaction_commits_is_held() {
    for is_committed in [true, false] {
        let mut b = bench(1, 1);
        b.stream.append((0, 0), 10);
        b.stream.append((0, 0), 10);
        let first = b.join("g", "c", Order::None);
        let leases = b.acquire("g", &first, 1);
        assert_eq!(ranges(&leases), [(0, 20)]);
        send(&mut b, &first, of(7, 1), &[at(leases[0].lease, 10)]).unwrap();
        b.leave("g", &first);
        restart(&mut b, true);
        let second = b.join("g", "c", Order::None);
        let leases = b.acquire("g", &second, 4);
        assert_eq!(ranges(&leases), [(10, 20)]);
        let waits = b.park("g", &second, 1, 60_000);
        assert_eq!(b.leases(waits), None);
        end(&mut b, of(7, 1), is_committed);
        match is_committed {
            true => assert_eq!(committed(&mut b), [10]),
            false => assert_eq!(ranges(&b.leases(waits).expect("it is free")), [(0, 10)]),
        }
        restart(&mut b, true);
    }
}

#[test]
fn a_lease_that_a_transaction_consumes_to_its_end_is_over() {
    let mut b = bench(1, 1);
    b.stream.append((0, 0), 10);
    let m = b.join("g", "c", Order::None);
    let lease = ids(&b.acquire("g", &m, 1))[0];
    send(&mut b, &m, of(7, 1), &[at(lease, 10)]).unwrap();
    end(&mut b, of(7, 1), true);
    assert_eq!(committed(&mut b), [10]);
    assert!(b.describe("g").lanes[0].leases.is_empty());
    // The member ends it as well, after all.
    assert_eq!(b.commit("g", &m, &[commit(lease, None, true)]), []);
}

#[test]
fn members_leases_and_transactions_are_fenced() {
    let mut b = bench(1, 1);
    b.stream.append((0, 0), 10);
    let first = b.join("g", "c", Order::Lane);
    let lease = ids(&b.acquire("g", &first, 1))[0];
    let second = b.join("g", "c", Order::Lane);
    let refused = [
        ("nobody", at(lease, 5), ErrorCode::UnknownMember),
        (&second, at(lease, 5), ErrorCode::StaleLease),
        (&first, at(lease + 1, 5), ErrorCode::StaleLease),
        (&first, at(lease, 11), ErrorCode::InvalidArgument),
        (
            &first,
            commit(lease, None, false),
            ErrorCode::InvalidArgument,
        ),
        (
            &first,
            commit(lease, Some(5), true),
            ErrorCode::InvalidArgument,
        ),
    ];
    let events = b.events.len();
    for (member, position, code) in refused {
        assert_eq!(send(&mut b, member, of(7, 1), &[position]), Err(code));
    }
    // One that is refused takes the others with it.
    let both = [at(lease, 5), at(lease + 1, 5)];
    assert!(send(&mut b, &first, of(7, 1), &both).is_err());
    assert_eq!(b.events.len(), events);
    send(&mut b, &first, of(7, 1), &[at(lease, 5)]).unwrap();
    // Nothing else moves the lease until then.
    let other = send(&mut b, &first, of(8, 1), &[at(lease, 6)]);
    assert_eq!(other, Err(ErrorCode::TransactionPending));
    let plain = b.try_commit("g", &first, &[at(lease, 6)]);
    assert_eq!(plain.unwrap_err().code, ErrorCode::TransactionPending);
    // A late end of another one ends nothing.
    end(&mut b, of(7, 0), true);
    assert_eq!(committed(&mut b), [0]);
    end(&mut b, of(7, 1), true);
    let late = send(&mut b, &first, of(7, 1), &[at(lease, 7)]);
    assert_eq!(late, Err(ErrorCode::TransactionNotOpen));
    // Also where no position came before the end.
    end(&mut b, of(9, 3), false);
    let late = send(&mut b, &first, of(9, 3), &[at(lease, 7)]);
    assert_eq!(late, Err(ErrorCode::TransactionNotOpen));
    assert_eq!(send(&mut b, &first, of(7, 2), &[at(lease, 7)]), Ok(()));
}

#[test]
fn of_a_commit_only_the_leases_wait_that_a_transaction_has() {
    let mut b = bench(1, 3);
    for lane in 0..3 {
        b.stream.append((0, lane), 10);
    }
    let m = b.join("g", "c", Order::Lane);
    let leases = ids(&b.acquire("g", &m, 3));
    send(&mut b, &m, of(7, 1), &[at(leases[0], 5)]).unwrap();
    let all = [
        at(leases[0], 6),
        commit(leases[0], None, true),
        at(leases[1], 4),
        commit(leases[2], Some(3), true),
    ];
    // A member that does not know of leases that wait is refused as before, and loses nothing.
    let refused = b.try_commit("g", &m, &all).unwrap_err();
    assert_eq!(refused.code, ErrorCode::TransactionPending);
    assert_eq!(committed(&mut b), [0, 0, 0]);
    let request = |commits: &[v1::LeaseCommit]| v1::CommitRequest {
        group: "g".into(),
        member: m.clone(),
        commits: commits.to_vec(),
        accepts_pending: true,
    };
    let pending = |b: &mut Bench, commits: &[v1::LeaseCommit]| match b
        .call(Request::Commit(request(commits)))
    {
        Ok(Reply::Commit(reply)) => {
            assert_eq!(reply.stale, []);
            reply.pending
        }
        other => panic!("commit answered {other:?}"),
    };
    assert_eq!(pending(&mut b, &all), [leases[0]]);
    assert_eq!(committed(&mut b), [0, 4, 3]);
    let held = |b: &mut Bench| -> Vec<usize> {
        let lanes = b.describe("g").lanes;
        lanes.iter().map(|lane| lane.leases.len()).collect()
    };
    assert_eq!(
        held(&mut b),
        [1, 1, 0],
        "a lease that waits is not released"
    );
    restart(&mut b, true);
    end(&mut b, of(7, 1), true);
    assert_eq!(pending(&mut b, &all), []);
    assert_eq!(committed(&mut b), [6, 4, 3]);
    assert_eq!(held(&mut b), [0, 1, 0]);
}

#[test]
fn what_is_held_is_shown_and_is_in_nobodys_share() {
    let mut b = bench(1, 4);
    for lane in 0..4 {
        b.stream.append((0, lane), 10);
    }
    let first = b.join("g", "c", Order::Lane);
    let leases = ids(&b.acquire("g", &first, 4));
    let positions = [at(leases[0], 5), at(leases[1], 6)];
    send(&mut b, &first, of(7, 1), &positions).unwrap();
    b.leave("g", &first);
    let lanes = b.describe("g").lanes;
    let shown = lanes.iter().map(|lane| {
        let held = lane.held.iter();
        held.map(|h| (h.lease, h.producer_id, h.from_ordinal, h.next_ordinal))
            .collect()
    });
    let shown: Vec<Vec<_>> = shown.collect();
    let expected = [
        vec![(leases[0], 7, 0, 5)],
        vec![(leases[1], 7, 0, 6)],
        vec![],
        vec![],
    ];
    assert_eq!(shown, expected);
    // Two lanes are there to share, however long the transaction takes.
    let second = b.join("g", "c", Order::Lane);
    let of_second = ids(&b.acquire("g", &second, 4));
    assert_eq!(of_second.len(), 2);
    let third = b.join("g", "c", Order::Lane);
    let waits = b.park("g", &third, 4, 60_000);
    let told = b.heartbeat("g", &second, &of_second).give_back;
    assert_eq!(told.len(), 1, "one for each");
    b.commit("g", &second, &[commit(told[0], None, true)]);
    let of_third = ids(&b.leases(waits).expect("it is free"));
    assert_eq!(of_third.len(), 1);
    end(&mut b, of(7, 1), true);
    assert!(
        b.describe("g")
            .lanes
            .iter()
            .all(|lane| lane.held.is_empty())
    );
    assert_eq!(
        b.acquire("g", &third, 4).len(),
        1,
        "the rest is shared as well"
    );
    assert_eq!(b.acquire("g", &second, 4).len(), 1);
}

#[test]
fn a_group_is_not_moved_elsewhere_meanwhile_and_may_be_deleted() {
    let mut b = bench(1, 1);
    b.stream.append((0, 0), 10);
    let m = b.join("g", "c", Order::Lane);
    let lease = ids(&b.acquire("g", &m, 1))[0];
    send(&mut b, &m, of(7, 1), &[at(lease, 5)]).unwrap();
    b.leave("g", &m);
    let reset = Request::ResetGroup(v1::ResetGroupRequest {
        group: "g".into(),
        to: Some(v1::StartAt {
            at: Some(v1::start_at::At::Ordinal(3)),
        }),
        ..Default::default()
    });
    let refused = b.call(reset.clone()).unwrap_err();
    assert_eq!(refused.code, ErrorCode::GroupNotEmpty);
    assert!(refused.message.contains("producer 7"), "{refused}");
    let positions = Request::CommitPositions {
        request: v1::CommitPositionsRequest {
            group: "g".into(),
            stream: "s".into(),
            positions: vec![v1::LanePosition {
                streamlet: 0,
                lane: 0,
                ordinal: 3,
            }],
            ..v1::CommitPositionsRequest::default()
        },
        client_host: String::new(),
    };
    let refused = b.call(positions).unwrap_err();
    assert_eq!(refused.code, ErrorCode::GroupNotEmpty);
    // What was trimmed meanwhile is passed over, as elsewhere.
    b.stream.trim((0, 0), 7);
    end(&mut b, of(7, 1), true);
    b.call(reset).expect("it is settled");
    let m = b.join("g", "c", Order::Lane);
    let leases = b.acquire("g", &m, 1);
    send(&mut b, &m, of(7, 2), &[at(leases[0].lease, 9)]).unwrap();
    b.leave("g", &m);
    let delete = Request::DeleteGroup(v1::DeleteGroupRequest { group: "g".into() });
    b.call(delete).expect("it is deleted");
    end(&mut b, of(7, 2), true);
    restart(&mut b, true);
}
