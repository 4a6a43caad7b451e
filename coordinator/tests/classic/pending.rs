//! Offsets that transactions commit.

use kera_coordinator::classic::{
    CommittedOffset, EndOffsets, Fault, FetchOffsets, OfTransaction, Reply, Request,
};

use crate::driver::{GROUP, World, replay};

fn of(producer: i64, number: u64) -> OfTransaction {
    OfTransaction { producer, number }
}

fn commit(
    w: &mut World,
    (member, generation): (&str, i32),
    transaction: OfTransaction,
    offsets: &[(u32, i64)],
) -> Result<(), Fault> {
    let mut request = w.commit_request(member, generation, offsets);
    request.transaction = Some(transaction);
    match w.call(Request::Commit(request)) {
        Reply::Committed(results) => results.into_iter().collect(),
        Reply::Refused(fault) => Err(fault),
        other => panic!("commit answered {other:?}"),
    }
}

fn end(w: &mut World, transaction: OfTransaction, commit: bool) {
    let group = GROUP.into();
    let request = Request::EndOffsets(EndOffsets {
        group,
        transaction,
        commit,
    });
    assert_eq!(w.call(request), Reply::OffsetsEnded);
}

/// Partition, offset, and whether it is unstable.
fn stable(w: &mut World, partitions: Option<&[u32]>) -> Vec<(u32, Option<(i64, bool)>)> {
    let stream = w.stream();
    let partitions = partitions.map(|all| all.iter().map(|p| (stream, *p)).collect());
    let request = Request::Fetch(FetchOffsets {
        group: GROUP.into(),
        partitions,
        max_bytes: usize::MAX,
        require_stable: true,
        member: None,
    });
    let Reply::Offsets(offsets) = w.call(request) else {
        panic!("expected offsets")
    };
    let shown = |offset: CommittedOffset| (offset.offset, offset.unstable);
    let offsets = offsets.into_iter();
    offsets
        .map(|(_, p, offset)| (p, offset.map(shown)))
        .collect()
}

const ALONE: (&str, i32) = ("", -1);

#[test]
fn they_count_once_the_transaction_is_committed() {
    let mut w = World::new();
    w.commit("", -1, &[(0, 1)]).unwrap();
    commit(&mut w, ALONE, of(7, 1), &[(0, 5), (1, 6)]).unwrap();
    commit(&mut w, ALONE, of(8, 4), &[(2, 9)]).unwrap();
    for _ in 0..2 {
        let offsets: Vec<_> = w.fetch().into_iter().map(|(p, o)| (p, o.offset)).collect();
        assert_eq!(offsets, [(0, 1)], "nothing of them is shown");
        let unstable = Some((-1, true));
        assert_eq!(
            stable(&mut w, None),
            [(0, unstable), (1, unstable), (2, unstable)]
        );
        assert_eq!(
            stable(&mut w, Some(&[2, 3])),
            [(2, unstable), (3, None)],
            "only where something is open"
        );
        w.restart();
    }
    end(&mut w, of(7, 1), true);
    end(&mut w, of(8, 4), false);
    end(&mut w, of(8, 4), false);
    let all = [(0, Some((5, false))), (1, Some((6, false)))];
    assert_eq!(stable(&mut w, None), all);
    w.restart();
    assert_eq!(stable(&mut w, None), all);
}

#[test]
fn an_end_does_not_take_back_what_was_committed_after_it() {
    for restarts in [false, true] {
        let mut w = World::new();
        let restart = |w: &mut World| {
            if restarts {
                let snapshot = w.bench.coordinator.snapshot();
                let replayed = replay(&snapshot, w.bench.now);
                assert!(replayed.same_durable_state(&w.bench.coordinator));
                w.bench.coordinator = replayed;
            }
        };
        w.commit("", -1, &[(2, 1)]).unwrap();
        commit(&mut w, ALONE, of(7, 1), &[(0, 100), (1, 100), (2, 100)]).unwrap();
        w.commit("", -1, &[(0, 150)]).unwrap();
        restart(&mut w);
        end(&mut w, of(7, 1), true);
        let expected = [(0, 150), (1, 100), (2, 100)];
        let expected = expected.map(|(p, offset)| (p, Some((offset, false))));
        assert_eq!(stable(&mut w, None), expected);

        // Of two transactions the later offset counts, whichever ends first.
        commit(&mut w, ALONE, of(7, 2), &[(0, 200), (1, 210)]).unwrap();
        commit(&mut w, ALONE, of(8, 1), &[(0, 300), (1, 310)]).unwrap();
        commit(&mut w, ALONE, of(7, 2), &[(1, 220)]).unwrap();
        restart(&mut w);
        end(&mut w, of(8, 1), true);
        restart(&mut w);
        end(&mut w, of(7, 2), true);
        let expected = [(0, 300), (1, 220)].map(|(p, offset)| (p, Some((offset, false))));
        assert_eq!(stable(&mut w, Some(&[0, 1])), expected);
    }
}

#[test]
fn what_comes_late_is_refused_and_a_late_end_ends_nothing() {
    let mut w = World::new();
    commit(&mut w, ALONE, of(7, 1), &[(0, 5)]).unwrap();
    end(&mut w, of(7, 1), true);
    let late = commit(&mut w, ALONE, of(7, 1), &[(0, 6)]);
    assert_eq!(late, Err(Fault::TransactionEnded));
    // Also where no offset came before the end.
    end(&mut w, of(9, 3), false);
    let late = commit(&mut w, ALONE, of(9, 3), &[(0, 6)]);
    assert_eq!(late, Err(Fault::TransactionEnded));
    commit(&mut w, ALONE, of(7, 2), &[(0, 8)]).unwrap();
    end(&mut w, of(7, 1), false);
    assert_eq!(stable(&mut w, None), [(0, Some((-1, true)))]);
    end(&mut w, of(7, 2), true);
    assert_eq!(stable(&mut w, None), [(0, Some((8, false)))]);
}

#[test]
fn members_are_fenced_by_generation_and_others_by_their_transactional_id() {
    let mut w = World::new();
    let ids = w.stable(2);
    commit(&mut w, ALONE, of(7, 1), &[(0, 5)]).unwrap();
    commit(&mut w, (&ids[0], 1), of(7, 1), &[(1, 5)]).unwrap();
    let other = commit(&mut w, (&ids[0], 0), of(7, 1), &[(1, 5)]);
    assert_eq!(other, Err(Fault::IllegalGeneration));
    let other = commit(&mut w, ("nobody", 1), of(7, 1), &[(1, 5)]);
    assert_eq!(other, Err(Fault::UnknownMember));
}

#[test]
fn a_group_is_kept_while_offsets_are_pending() {
    let mut w = World::new();
    commit(&mut w, ALONE, of(7, 1), &[(0, 5)]).unwrap();
    for _ in 0..3 {
        w.bench.now += 24 * 3_600_000;
        let (now, stream) = (w.bench.now, &w.bench.stream);
        let step = w.bench.coordinator.tick(now, stream);
        assert!(step.events.is_empty(), "{step:?}");
    }
    end(&mut w, of(7, 1), true);
    assert_eq!(stable(&mut w, None), [(0, Some((5, false)))]);
}

#[test]
fn offsets_that_were_pending_for_long_are_kept_from_their_commit_on() {
    const DAY_MS: u64 = 24 * 3_600_000;
    let mut w = World::new();
    commit(&mut w, ALONE, of(7, 1), &[(0, 5)]).unwrap();
    w.bench.tick(8 * DAY_MS);
    end(&mut w, of(7, 1), true);
    let kept = [(0, Some((5, false)))];
    w.bench.tick(1_000);
    assert_eq!(stable(&mut w, None), kept);
    w.restart();
    w.bench.tick(6 * DAY_MS);
    assert_eq!(stable(&mut w, None), kept);
    w.bench.tick(2 * DAY_MS);
    assert_eq!(stable(&mut w, None), []);
}

#[test]
fn what_is_pending_goes_with_a_group_that_is_deleted_as_at_kafka() {
    let mut w = World::new();
    w.commit("", -1, &[(0, 1)]).unwrap();
    commit(&mut w, ALONE, of(7, 1), &[(0, 5), (1, 6)]).unwrap();
    assert_eq!(w.call(Request::Delete(GROUP.into())), Reply::Deleted);
    for _ in 0..2 {
        assert_eq!(stable(&mut w, None), []);
        w.restart();
    }
    // What the transaction commits after that counts with it.
    commit(&mut w, ALONE, of(7, 1), &[(2, 7)]).unwrap();
    end(&mut w, of(7, 1), true);
    assert_eq!(stable(&mut w, None), [(2, Some((7, false)))]);
}
