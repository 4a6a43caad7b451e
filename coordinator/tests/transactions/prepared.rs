//! Prepared transactions: what ends them, and what does not.

use super::*;

#[test]
fn a_prepared_transaction_has_no_time_and_ends_only_by_its_handle() {
    const PREPARED: Reply = Reply::Refused(Fault::Prepared);
    let mut bench = Bench::new();
    bench.init(None);
    let one = handle(101, 0, 1);
    assert_eq!(bench.prepare(one.clone()), NOT_OPEN, "nothing is open");
    bench.add(101, 0, &[1, 2]);
    assert_eq!(bench.prepare(handle(101, 0, 2)), NOT_OPEN);
    assert_eq!(bench.prepare(one.clone()), Reply::Prepared);
    assert_eq!(bench.prepare(one.clone()), Reply::Prepared, "repeated");
    let began = bench.now;
    bench.restart();
    // Neither its time, nor another instance, nor an operator ends it, and nothing joins it.
    bench.tick(365 * 24 * 3_600_000);
    assert_eq!(bench.init(None), PREPARED);
    assert_eq!(bench.init(Some((101, 0))), PREPARED);
    assert_eq!(bench.add(101, 0, &[3]), PREPARED);
    assert_eq!(bench.call(Request::Abort(ID.into())), PREPARED);
    assert_eq!(bench.call(Request::Forget(one.clone())), PREPARED);
    let verify = Request::Verify(member(101, 0), part(1));
    assert_eq!(bench.call(verify), NOT_OPEN);
    let described = bench.describe();
    let by = described.prepared.expect("somebody prepared it");
    assert_eq!((by.principal.as_str(), by.since_ms), ("flink", began));
    assert_eq!(bench.coordinator.open_transactions(), (0, None));
    assert_eq!(bench.coordinator.prepared_transactions(), (1, Some(began)));
    assert_eq!(bench.decided(), []);

    bench.events = bench.coordinator.snapshot();
    bench.restart();
    assert_eq!(bench.end_by(one.clone(), true), Reply::Ended(true));
    assert_eq!(bench.end_by(one.clone(), true), Reply::Ended(true));
    bench.restart();
    let decided = bench.decided().remove(0);
    assert_eq!((decided.commit, decided.parts.len()), (true, 2));
    bench.write_markers();
    // How it ended is told to whoever asks, whatever was asked for.
    for commit in [true, false] {
        assert_eq!(bench.end_by(one.clone(), commit), Reply::Ended(true));
    }
    assert_eq!(bench.add(101, 0, &[1]), Reply::Added(2, [part(1)].into()));
    let forgotten = Reply::Refused(Fault::Forgotten);
    assert_eq!(bench.end_by(one.clone(), true), forgotten);
    let two = handle(101, 0, 2);
    assert_eq!(bench.end_by(two.clone(), false), Reply::Ended(false));
    bench.write_markers();
    assert_eq!(bench.end_by(two.clone(), true), Reply::Ended(false));
    assert_eq!(bench.call(Request::Forget(two.clone())), Reply::Noted);
    assert_eq!(bench.call(Request::Forget(two.clone())), Reply::Noted);
    let unknown = Reply::Refused(Fault::UnknownId);
    assert_eq!(bench.end_by(two, true), unknown);
    bench.restart();
}

#[test]
fn a_prepared_transaction_waits_no_longer_than_operators_let_it() {
    const HOUR_MS: u64 = 3_600_000;
    let mut limits = Limits::default();
    limits.transactions.max_prepared_ms = Some(HOUR_MS);
    let mut bench = Bench::with(limits.clone());
    bench.init(None);
    bench.add(101, 0, &[1, 2]);
    bench.tick(TIMEOUT_MS as u64 - 1);
    let one = handle(101, 0, 1);
    assert_eq!(bench.prepare(one.clone()), Reply::Prepared);
    // Counted from when it was prepared, over a restart as well.
    bench.tick(HOUR_MS - 2);
    bench.restart();
    bench.coordinator.set_limits(limits);
    bench.tick(1);
    assert_eq!(bench.describe().stage, Stage::Prepared);
    bench.tick(1);
    assert_eq!(bench.describe().stage, Stage::PrepareAbort);
    assert_eq!(bench.coordinator.prepared_transactions(), (0, None));
    // Whoever has its handle is told, and no marker is of another epoch than its batches.
    assert_eq!(bench.end_by(one.clone(), true), Reply::Ended(false));
    let decided = bench.decided().remove(0);
    assert_eq!((decided.commit, decided.parts.len()), (false, 2));
    assert_eq!((decided.epoch, decided.batch_epoch), (0, 0));
    bench.write_markers();
    bench.restart();
    assert_eq!(bench.end_by(one, true), Reply::Ended(false));
    assert_eq!(bench.add(101, 0, &[1]), Reply::Added(2, [part(1)].into()));
}

#[test]
fn a_handle_tells_that_the_time_of_its_transaction_was_over() {
    let mut bench = Bench::new();
    bench.init(None);
    bench.add(101, 0, &[1]);
    let one = handle(101, 0, 1);
    bench.tick(TIMEOUT_MS as u64);
    assert_eq!(bench.end_by(one.clone(), true), Reply::Ended(false));
    assert_eq!(bench.prepare(one.clone()), NOT_OPEN);
    bench.write_markers();
    assert_eq!(bench.end_by(one.clone(), true), Reply::Ended(false));
    assert_eq!(bench.init(Some((101, 0))), Reply::Begun(101, 1));
    let forgotten = Reply::Refused(Fault::Forgotten);
    assert_eq!(bench.end_by(one, true), forgotten);
    assert_eq!(bench.end_by(handle(101, 1, 2), true), NOT_OPEN);
    // No coordinator that knows of the last transaction gives such a number.
    let forgotten = Reply::Refused(Fault::Forgotten);
    assert_eq!(bench.end_by(handle(101, 1, 4), true), forgotten);
}

#[test]
fn a_user_prepares_no_more_than_it_may_and_outcomes_outlive_other_ids() {
    let mut limits = Limits::default();
    limits.transactions.prepared_per_user = 2;
    limits.transactions.ids = 3;
    let mut bench = Bench::with(limits);
    let a = bench.begin_as("a");
    let b = bench.begin_as("b");
    let c = bench.begin_as("c");
    assert_eq!(bench.prepare(a.clone()), Reply::Prepared);
    assert_eq!(bench.prepare(b.clone()), Reply::Prepared);
    let refused = Reply::Refused(Fault::TooManyPrepared);
    assert_eq!(bench.prepare(c.clone()), refused);
    let other = Prepare {
        handle: c.clone(),
        principal: "spark".into(),
    };
    assert_eq!(bench.call(Request::Prepare(other)), Reply::Prepared);
    let of_prefix = Filter {
        stages: vec![Stage::Prepared],
        prefix: "b".into(),
        ..Filter::default()
    };
    let Reply::Listed(listed) = bench.call(Request::List(of_prefix)) else {
        panic!("no list")
    };
    let listed: Vec<_> = listed
        .iter()
        .map(|listed| (listed.id.as_str(), listed.epoch, listed.number))
        .collect();
    assert_eq!(listed, [("b", 0, 1)]);
    // All are prepared: nothing makes room, until one has ended.
    let init = |id: &str| {
        Request::Init(Init {
            id: id.into(),
            timeout_ms: TIMEOUT_MS,
            known: None,
            fresh_producer: 8,
            keep: false,
            heartbeats: false,
            two_phase: None,
        })
    };
    assert_eq!(bench.call(init("d")), Reply::Refused(Fault::TooManyIds));
    assert_eq!(bench.end_by(a.clone(), true), Reply::Ended(true));
    bench.write_markers();
    assert_eq!(bench.prepare(a.clone()), NOT_OPEN);
    // Silent ids are forgotten a week later, outcomes after a month.
    bench.tick(8 * 24 * 3_600_000);
    assert_eq!(bench.end_by(a.clone(), true), Reply::Ended(true));
    bench.tick(30 * 24 * 3_600_000);
    let unknown = Reply::Refused(Fault::UnknownId);
    assert_eq!(bench.end_by(a, true), unknown);
    // An outcome is counted apart from ids that have a transaction, or may begin one.
    assert_eq!(bench.call(init("d")), Reply::Begun(8, 0));
    assert_eq!(bench.end_by(b.clone(), false), Reply::Ended(false));
    bench.write_markers();
    bench.now += 1;
    assert_eq!(bench.call(init("e")), Reply::Begun(8, 0));
    assert_eq!(bench.end_by(b, false), Reply::Ended(false));
    bench.restart();
}

#[test]
fn outcomes_make_room_for_each_other_and_drive_out_nobody_who_is_at_work() {
    let mut limits = Limits::default();
    limits.transactions.ids = 2;
    limits.transactions.outcomes = 2;
    let mut bench = Bench::with(limits);
    let member = |id: &str| Member {
        id: id.into(),
        producer: 7,
        epoch: 0,
    };
    let init = |id: &str| {
        Request::Init(Init {
            id: id.into(),
            timeout_ms: TIMEOUT_MS,
            known: None,
            fresh_producer: 7,
            keep: false,
            heartbeats: false,
            two_phase: None,
        })
    };
    let add = |id: &str| Request::Add(member(id), [part(1)].into());
    let handle = |id: &str| Handle {
        member: member(id),
        number: 1,
    };
    for id in ["a", "b"] {
        assert_eq!(bench.call(init(id)), Reply::Begun(7, 0));
        assert!(matches!(bench.call(add(id)), Reply::Added(1, _)));
        assert_eq!(bench.prepare(handle(id)), Reply::Prepared);
        assert_eq!(bench.end_by(handle(id), true), Reply::Ended(true));
        bench.write_markers();
        bench.now += 1;
    }
    // The oldest outcome goes; who has just begun stays.
    for id in ["d", "e"] {
        assert_eq!(bench.call(init(id)), Reply::Begun(7, 0));
    }
    assert!(matches!(bench.call(add("d")), Reply::Added(1, _)));
    assert_eq!(bench.end_by(handle("b"), true), Reply::Ended(true));
    let unknown = Reply::Refused(Fault::UnknownId);
    assert_eq!(bench.end_by(handle("a"), true), unknown);
    assert_eq!(bench.call(init("f")), Reply::Refused(Fault::TooManyIds));
    // Until it was silent for the time of a transaction.
    bench.now += u64::try_from(TIMEOUT_MS).expect("a time");
    assert_eq!(bench.call(init("f")), Reply::Begun(7, 0));
    assert_eq!(bench.end_by(handle("b"), true), Reply::Ended(true));
    bench.restart();
}
