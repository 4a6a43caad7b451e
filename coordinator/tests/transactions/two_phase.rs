//! Transactions without a timeout, and those that a later instance of their producer keeps: Kafka's two-phase commit (KIP-939).

use super::*;

const PREPARED: Reply = Reply::Refused(Fault::Prepared);

impl Bench {
    /// An instance begins: whether it keeps what is open, and whether its transactions have no timeout.
    fn begin(&mut self, keep: bool, without_timeout: bool) -> Reply {
        self.fresh += 1;
        self.call(Request::Init(Init {
            id: ID.into(),
            timeout_ms: TIMEOUT_MS,
            known: None,
            fresh_producer: self.fresh,
            keep,
            heartbeats: false,
            two_phase: without_timeout.then(|| "flink".to_owned()),
        }))
    }
}

fn kept(producer: i64, epoch: i16, ongoing: (i64, i16)) -> Reply {
    Reply::Kept {
        producer,
        epoch,
        ongoing,
    }
}

#[test]
fn a_later_instance_keeps_a_transaction_and_ends_it() {
    for (commit, raises) in [(true, false), (false, false), (true, true), (false, true)] {
        let mut bench = Bench::new();
        assert_eq!(bench.begin(false, true), Reply::Begun(101, 0));
        bench.add(101, 0, &[1, 2]);
        bench.restart();
        assert_eq!(bench.begin(true, true), kept(101, 1, (101, 0)));
        bench.restart_from_snapshot();
        // The instance before can do nothing more, and the later one nothing but end it.
        assert_eq!(bench.add(101, 0, &[3]), FENCED);
        assert_eq!(bench.end(101, 0, !commit), FENCED);
        assert_eq!(bench.init(Some((101, 0))), FENCED);
        let verify = |epoch| Request::Verify(member(101, epoch), part(1));
        assert_eq!(bench.call(verify(0)), FENCED);
        assert_eq!(bench.call(verify(1)), NOT_OPEN);
        assert_eq!(bench.add(101, 1, &[3]), PREPARED);
        let described = bench.describe();
        assert_eq!((described.producer, described.epoch), (101, 0));
        assert_eq!(
            (described.stage, described.parts.len()),
            (Stage::Ongoing, 2)
        );

        let end = |bench: &mut Bench, epoch, commit| match raises {
            true => bench.end_raising(101, epoch, commit),
            false => bench.end(101, epoch, commit),
        };
        let ended = match raises {
            true => raising::raised(1, 101, 2),
            false => Reply::Ending(1),
        };
        assert_eq!(end(&mut bench, 1, commit), ended);
        bench.restart();
        let decided = bench.decided().remove(0);
        assert_eq!((decided.producer, decided.batch_epoch), (101, 0));
        assert_eq!((decided.commit, decided.epoch), (commit, 1));
        bench.write_markers();
        assert_eq!(end(&mut bench, 1, commit), ended, "the answer was lost");
        assert_eq!(end(&mut bench, 1, !commit), NOT_OPEN);
        bench.restart_from_snapshot();
        // A client that names the batches' producer id and epoch is still told the outcome.
        assert_eq!(bench.end_by(handle(101, 0, 1), true), Reply::Ended(commit));

        let epoch = 1 + i16::from(raises);
        assert_eq!(bench.add(101, 0, &[1]), FENCED);
        assert_eq!(
            bench.add(101, epoch, &[1]),
            Reply::Added(2, [part(1)].into())
        );
        assert_eq!(
            end(&mut bench, epoch, true),
            match raises {
                true => raising::raised(2, 101, 3),
                false => Reply::Ending(2),
            }
        );
        let decided = bench.decided().remove(0);
        assert_eq!((decided.number, decided.batch_epoch), (2, epoch));
        assert_eq!(decided.epoch, epoch + i16::from(raises));
    }
}

#[test]
fn each_instance_that_keeps_a_transaction_fences_the_one_before() {
    let mut bench = Bench::new();
    bench.begin(false, true);
    bench.add(101, 0, &[1]);
    for epoch in 1..4 {
        assert_eq!(bench.begin(true, true), kept(101, epoch, (101, 0)));
        assert_eq!(bench.end(101, epoch - 1, true), FENCED);
        bench.restart();
    }
    assert_eq!(bench.end(101, 3, true), Reply::Ending(1));
    // What is decided is told once it is complete.
    assert_eq!(bench.begin(true, true), ENDING);
    let decided = bench.decided().remove(0);
    assert_eq!((decided.batch_epoch, decided.epoch), (0, 1));
    bench.write_markers();
    assert_eq!(bench.begin(true, true), Reply::Begun(101, 4));
    assert_eq!(
        bench.begin(true, false),
        Reply::Begun(101, 5),
        "nothing is open"
    );
    bench.restart();
}

#[test]
fn what_is_kept_where_no_epoch_is_left_has_another_producer_id_than_its_producer() {
    const LAST: i16 = i16::MAX - 1;
    let mut bench = Bench::new();
    bench.begin(false, true);
    for epoch in 0..LAST {
        let next = raising::raised(epoch as u64 + 1, 101, epoch + 1);
        assert_eq!(bench.end_raising(101, epoch, false), next);
        bench.events.clear();
    }
    bench.restart_from_snapshot();
    bench.add(101, LAST, &[1]);
    let number = bench.number();
    let Reply::Kept {
        producer,
        epoch: 0,
        ongoing,
    } = bench.begin(true, true)
    else {
        panic!("it is not kept")
    };
    assert!(producer > 101);
    assert_eq!(ongoing, (101, LAST));
    assert_eq!(
        bench.end(101, LAST, true),
        Reply::Refused(Fault::OtherProducer)
    );
    let listed = bench.call(Request::List(Filter {
        producers: vec![101],
        ..Filter::default()
    }));
    assert!(matches!(listed, Reply::Listed(listed) if listed.len() == 1));
    assert_eq!(bench.end(producer, 0, true), Reply::Ending(number));
    bench.restart();
    let decided = bench.decided().remove(0);
    assert_eq!((decided.producer, decided.batch_epoch), (101, LAST));
    assert_eq!(decided.epoch, i16::MAX);
    bench.write_markers();
    let added = bench.add(producer, 0, &[1]);
    assert_eq!(added, Reply::Added(number + 1, [part(1)].into()));
    bench.restart();
}

#[test]
fn a_transaction_for_two_phase_commit_has_no_timeout_and_is_counted_with_those_that_are_prepared() {
    const YEAR_MS: u64 = 365 * 24 * 3_600_000;
    let mut bench = Bench::new();
    bench.begin(false, true);
    assert_eq!(bench.describe().timeout_ms, i32::MAX.unsigned_abs());
    assert_eq!(bench.coordinator.prepared_transactions(), (0, None));
    let began = bench.now;
    bench.add(101, 0, &[1]);
    bench.tick(YEAR_MS);
    bench.restart();
    bench.tick(YEAR_MS);
    let described = bench.describe();
    let by = described.prepared.expect("somebody has it");
    assert_eq!((by.principal.as_str(), by.since_ms), ("flink", began));
    assert_eq!(described.stage, Stage::Ongoing);
    assert_eq!(bench.coordinator.prepared_transactions(), (1, Some(began)));
    assert_eq!(bench.coordinator.open_transactions(), (0, None));
    assert_eq!(bench.coordinator.transactions_due_ms(), None);
    // No operator aborts it in passing; by its handle it ends as somebody says.
    assert_eq!(bench.call(Request::Abort(ID.into())), PREPARED);
    assert_eq!(bench.end_by(handle(101, 0, 1), true), Reply::Ended(true));
    assert_eq!(bench.coordinator.prepared_transactions(), (0, None));
    bench.write_markers();
    // An instance that asks for no two-phase commit has its transactions aborted by their timeout again.
    assert_eq!(bench.begin(false, false), Reply::Begun(101, 1));
    bench.add(101, 1, &[1]);
    bench.tick(TIMEOUT_MS as u64);
    assert_eq!(bench.describe().stage, Stage::PrepareAbort);
}

#[test]
fn an_instance_that_does_not_keep_it_aborts_it() {
    let mut bench = Bench::new();
    bench.begin(false, true);
    bench.add(101, 0, &[1]);
    bench.begin(true, true);
    // As an administrator ends one by force: the instance before is fenced.
    assert_eq!(bench.begin(false, false), ENDING);
    assert_eq!(bench.end(101, 1, true), FENCED);
    let decided = bench.decided().remove(0);
    assert_eq!(
        (decided.commit, decided.batch_epoch, decided.epoch),
        (false, 0, 1)
    );
    bench.restart();
    bench.write_markers();
    assert_eq!(bench.begin(false, false), Reply::Begun(101, 2));
    assert_eq!(bench.add(101, 2, &[1]), Reply::Added(2, [part(1)].into()));
    assert_eq!(bench.decided(), []);
    bench.restart();
}

#[test]
fn what_is_kept_without_two_phase_commit_has_its_timeout() {
    let mut bench = Bench::new();
    bench.init(None);
    bench.add(101, 0, &[1]);
    assert_eq!(bench.begin(true, false), kept(101, 1, (101, 0)));
    bench.tick(TIMEOUT_MS as u64 - 1);
    assert_eq!(bench.describe().stage, Stage::Ongoing);
    bench.restart();
    bench.tick(1);
    assert_eq!(bench.end(101, 1, true), FENCED);
    let decided = bench.decided().remove(0);
    assert_eq!(
        (decided.commit, decided.batch_epoch, decided.epoch),
        (false, 0, 1)
    );
    bench.write_markers();
    assert_eq!(bench.init(Some((101, 1))), Reply::Begun(101, 2));

    // A transaction without a timeout keeps none when another instance keeps it.
    bench.begin(false, true);
    bench.add(101, 3, &[1]);
    assert_eq!(bench.begin(true, false), kept(101, 4, (101, 3)));
    bench.tick(10 * TIMEOUT_MS as u64);
    assert_eq!(bench.end(101, 4, true), Reply::Ending(2));
    bench.write_markers();
    bench.add(101, 4, &[1]);
    bench.tick(TIMEOUT_MS as u64);
    assert_eq!(bench.describe().stage, Stage::PrepareAbort);
}

#[test]
fn what_was_prepared_natively_is_kept_as_well() {
    let mut bench = Bench::new();
    bench.init(None);
    bench.add(101, 0, &[1]);
    let one = handle(101, 0, 1);
    assert_eq!(bench.prepare(one.clone()), Reply::Prepared);
    assert_eq!(bench.begin(true, false), kept(101, 1, (101, 0)));
    assert_eq!(bench.begin(false, true), PREPARED);
    bench.restart();
    assert_eq!(bench.add(101, 1, &[1]), PREPARED);
    // It ends by its handle, or by the instance that keeps it.
    let described = bench.describe();
    assert_eq!((described.stage, described.epoch), (Stage::Prepared, 0));
    assert_eq!(bench.end(101, 1, true), Reply::Ending(1));
    assert_eq!(bench.end_by(one, false), Reply::Ended(true));
}

#[test]
fn a_user_has_no_more_without_a_timeout_than_it_may_and_operators_may_limit_their_age() {
    const HOUR_MS: u64 = 3_600_000;
    let mut limits = Limits::default();
    limits.transactions.prepared_per_user = 2;
    limits.transactions.max_prepared_ms = Some(HOUR_MS);
    let mut bench = Bench::with(limits);
    let begin = |bench: &mut Bench, id: &str, producer, user: &str| {
        let member = Member {
            id: id.into(),
            producer,
            epoch: 0,
        };
        let init = Init {
            id: id.into(),
            timeout_ms: -1,
            known: None,
            fresh_producer: producer,
            keep: false,
            heartbeats: false,
            two_phase: Some(user.to_owned()),
        };
        assert_eq!(bench.call(Request::Init(init)), Reply::Begun(producer, 0));
        bench.call(Request::Add(member, [part(1)].into()))
    };
    let added = Reply::Added(1, [part(1)].into());
    assert_eq!(begin(&mut bench, "a", 1, "flink"), added);
    assert_eq!(begin(&mut bench, "b", 2, "flink"), added);
    let refused = Reply::Refused(Fault::TooManyPrepared);
    assert_eq!(begin(&mut bench, "c", 3, "flink"), refused);
    assert_eq!(begin(&mut bench, "d", 4, "spark"), added);
    // One that has a timeout gets none beyond the limit.
    bench.init(None);
    bench.add(101, 0, &[1]);
    assert_eq!(bench.begin(true, true), refused);
    assert_eq!(bench.begin(true, false), kept(101, 1, (101, 0)));
    assert_eq!(bench.end(101, 1, true), Reply::Ending(1));
    bench.tick(HOUR_MS - 1);
    assert_eq!(bench.coordinator.prepared_transactions().0, 3);
    bench.tick(1);
    assert_eq!(bench.coordinator.prepared_transactions().0, 0);
    let decided = bench.decided();
    let of = |id: &str| decided.iter().find(|decided| decided.id == id);
    let aborted = of("a").expect("it is decided");
    // Nobody said that all of it is durable: what comes late is fenced.
    assert_eq!(
        (aborted.commit, aborted.batch_epoch, aborted.epoch),
        (false, 0, 1)
    );
    let late = Member {
        id: "a".into(),
        producer: 1,
        epoch: 0,
    };
    assert_eq!(bench.call(Request::Add(late, [part(2)].into())), FENCED);
    assert_eq!(begin(&mut bench, "e", 5, "flink"), added);
}

#[test]
fn an_idle_producer_of_two_phase_commit_is_remembered_as_others_are() {
    const WEEK_MS: u64 = 7 * 24 * 3_600_000;
    let mut limits = Limits::default();
    limits.transactions.outcomes = 1;
    limits.transactions.outcome_ms = 60_000;
    let mut bench = Bench::with(limits);
    assert_eq!(bench.begin(false, true), Reply::Begun(101, 0));
    bench.add(101, 0, &[1]);
    bench.end(101, 0, true);
    bench.write_markers();
    // Outcomes of others are forgotten and drive each other out, and it stays.
    let prepare = |bench: &mut Bench, id: &str| {
        let handle = bench.begin_as(id);
        bench.prepare(handle.clone());
        bench.end_by(handle, true);
        bench.write_markers();
    };
    for id in ["a", "b", "c"] {
        prepare(&mut bench, id);
    }
    bench.tick(WEEK_MS - 1);
    let unknown = Reply::Refused(Fault::UnknownId);
    assert_eq!(bench.call(Request::Describe("c".into())), unknown);
    assert_eq!(bench.add(101, 0, &[1]), Reply::Added(2, [part(1)].into()));
    bench.end(101, 0, true);
    bench.write_markers();
    bench.tick(WEEK_MS);
    assert_eq!(bench.call(Request::Describe(ID.into())), unknown);
}

#[test]
fn what_an_operator_aborts_of_two_phase_commit_fences_its_producer() {
    let mut bench = Bench::new();
    bench.begin(false, true);
    bench.add(101, 0, &[1]);
    bench.begin(true, true);
    let one = AbortOne {
        handle: handle(101, 0, 1),
        prepared: true,
    };
    assert_eq!(bench.call(Request::AbortOne(one)), Reply::Ending(1));
    assert_eq!(bench.init(Some((101, 1))), FENCED);
    let decided = bench.decided().remove(0);
    assert_eq!((decided.batch_epoch, decided.epoch), (0, 1));
    bench.restart();
    bench.write_markers();
    assert_eq!(bench.init(Some((101, 1))), FENCED);
    assert_eq!(bench.begin(true, true), Reply::Begun(101, 2));
}
