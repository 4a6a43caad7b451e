//! Transactions whose producers may be gone: how long they stay open, and who aborts them.

use super::*;

const TIMEOUT: u64 = TIMEOUT_MS as u64;

impl Bench {
    fn init_with_heartbeats(&mut self) -> Reply {
        match self.init_request(None) {
            Request::Init(init) => self.call(Request::Init(Init {
                heartbeats: true,
                ..init
            })),
            other => panic!("{other:?}"),
        }
    }

    fn heartbeat(&mut self, producer: i64, epoch: i16) -> Reply {
        self.call(Request::Heartbeat(member(producer, epoch)))
    }

    fn abort_one(&mut self, handle: Handle, prepared: bool) -> Reply {
        self.call(Request::AbortOne(AbortOne { handle, prepared }))
    }
}

#[test]
fn a_transaction_stays_open_for_as_long_as_its_producer_sends_heartbeats() {
    let mut bench = Bench::new();
    assert_eq!(bench.init_with_heartbeats(), Reply::Begun(101, 0));
    assert_eq!(bench.heartbeat(101, 0), Reply::Noted, "nothing is open yet");
    bench.add(101, 0, &[1]);
    for _ in 0..5 {
        bench.tick(TIMEOUT - 1);
        assert_eq!(bench.describe().stage, Stage::Ongoing);
        let before = bench.events.len();
        assert_eq!(bench.heartbeat(101, 0), Reply::Noted);
        assert_eq!(bench.events.len(), before, "a heartbeat costs no event");
    }
    let due = bench.coordinator.transactions_due_ms();
    assert_eq!(due, Some(bench.now + TIMEOUT));
    // Parts are signs of life as well, each once.
    for partition in [2, 3] {
        bench.tick(TIMEOUT - 1);
        bench.add(101, 0, &[partition]);
    }
    bench.tick(TIMEOUT - 1);
    bench.heartbeat(101, 0);
    // Nobody knows any more when the last heartbeat came: it counts from the restart.
    bench.restart();
    bench.tick(TIMEOUT - 1);
    assert_eq!(bench.describe().stage, Stage::Ongoing);
    bench.tick(1);
    assert_eq!(bench.describe().stage, Stage::PrepareAbort);
    assert_eq!(bench.heartbeat(101, 0), FENCED, "the producer is told");
}

#[test]
fn who_adds_what_is_there_keeps_nothing_open() {
    let mut bench = Bench::new();
    bench.init_with_heartbeats();
    bench.add(101, 0, &[1]);
    // To keep it open takes another right than to write.
    bench.tick(TIMEOUT - 1);
    assert_eq!(bench.add(101, 0, &[1]), Reply::Added(1, [].into()));
    bench.tick(1);
    assert_eq!(bench.describe().stage, Stage::PrepareAbort);
}

#[test]
fn heartbeats_of_others_keep_nothing_open() {
    let mut bench = Bench::new();
    bench.init_with_heartbeats();
    bench.add(101, 0, &[1]);
    bench.tick(TIMEOUT - 1);
    assert_eq!(bench.heartbeat(101, 1), FENCED);
    let other = Reply::Refused(Fault::OtherProducer);
    assert_eq!(bench.heartbeat(7, 0), other);
    bench.tick(1);
    assert_eq!(bench.describe().stage, Stage::PrepareAbort);
    bench.write_markers();
    // As Kafka's clients have it, the time runs from the begin.
    assert_eq!(bench.init(Some((101, 0))), Reply::Begun(101, 1));
    bench.add(101, 1, &[1]);
    bench.tick(TIMEOUT - 1);
    assert_eq!(bench.heartbeat(101, 1), Reply::Noted);
    bench.add(101, 1, &[2]);
    bench.tick(1);
    assert_eq!(bench.describe().stage, Stage::PrepareAbort);
}

#[test]
fn the_heartbeats_of_one_transaction_say_nothing_of_the_next() {
    let mut bench = Bench::new();
    bench.init_with_heartbeats();
    bench.add(101, 0, &[1]);
    bench.tick(TIMEOUT - 1);
    bench.heartbeat(101, 0);
    bench.end(101, 0, true);
    bench.write_markers();
    bench.tick(TIMEOUT * 3);
    bench.add(101, 0, &[1]);
    bench.tick(TIMEOUT - 1);
    assert_eq!(bench.describe().stage, Stage::Ongoing);
    bench.tick(1);
    assert_eq!(bench.describe().stage, Stage::PrepareAbort);
}

#[test]
fn whoever_has_the_handle_of_an_open_transaction_aborts_it_and_fences_its_producer() {
    let mut bench = Bench::new();
    bench.init(None);
    bench.add(101, 0, &[1]);
    let one = handle(101, 0, 1);
    // Of another transaction of the id, or another producer, nothing is known.
    assert_eq!(bench.abort_one(handle(101, 0, 2), true), NOT_OPEN);
    assert_eq!(bench.abort_one(handle(7, 0, 1), true), NOT_OPEN);
    assert_eq!(bench.abort_one(one.clone(), false), Reply::Ending(1));
    assert_eq!(
        bench.abort_one(one.clone(), false),
        Reply::Ending(1),
        "repeated"
    );
    assert_eq!(bench.add(101, 0, &[2]), FENCED);
    assert_eq!(bench.init(Some((101, 0))), FENCED);
    bench.write_markers();
    assert_eq!(bench.abort_one(one.clone(), false), Reply::Ending(1));
    bench.restart();
    // Not as where its time is over: who was aborted does not go on, also not with an Init that names what it had.
    assert_eq!(bench.init(Some((101, 0))), FENCED);
    assert_eq!(
        bench.end_by(one.clone(), true),
        Reply::Ended(false),
        "it is told"
    );
    // The next one is another.
    assert_eq!(bench.init(None), Reply::Begun(101, 1));
    bench.add(101, 1, &[1]);
    assert_eq!(bench.abort_one(one, true), NOT_OPEN);
    assert_eq!(bench.describe().stage, Stage::Ongoing);
}

#[test]
fn an_operator_s_abort_of_an_id_fences_its_producer() {
    let mut bench = Bench::new();
    bench.init(None);
    bench.add(101, 0, &[1]);
    let abort = Request::Abort(ID.into());
    assert_eq!(bench.call(abort.clone()), Reply::Ending(1));
    assert_eq!(bench.end(101, 0, true), FENCED);
    assert_eq!(bench.init(Some((101, 0))), FENCED);
    assert_eq!(bench.call(abort), Reply::Ending(1), "repeated");
    bench.restart();
    bench.write_markers();
    assert_eq!(bench.init(Some((101, 0))), FENCED);
    assert_eq!(bench.init(None), Reply::Begun(101, 1));
    assert_eq!(bench.init(Some((101, 0))), FENCED);
}

#[test]
fn an_abort_fences_a_producer_whose_time_was_over_a_moment_before() {
    for (by_handle, is_complete) in [(false, false), (true, false), (true, true)] {
        let mut bench = Bench::new();
        bench.init(None);
        bench.add(101, 0, &[1]);
        bench.tick(TIMEOUT);
        assert_eq!(bench.describe().stage, Stage::PrepareAbort);
        if is_complete {
            bench.write_markers();
        }
        // Both found it open.
        let aborted = match by_handle {
            true => bench.abort_one(handle(101, 0, 1), false),
            false => bench.call(Request::Abort(ID.into())),
        };
        assert_eq!(aborted, Reply::Ending(1));
        bench.restart();
        bench.write_markers();
        assert_eq!(bench.init(Some((101, 0))), FENCED);
        assert_eq!(bench.init(None), Reply::Begun(101, 1));
    }
}

#[test]
fn a_prepared_transaction_is_aborted_with_others_only_if_that_is_asked_for() {
    let prepared = Reply::Refused(Fault::Prepared);
    let mut bench = Bench::new();
    bench.init(None);
    bench.add(101, 0, &[1]);
    let one = handle(101, 0, 1);
    bench.prepare(one.clone());
    assert_eq!(bench.abort_one(one.clone(), false), prepared);
    assert_eq!(bench.abort_one(one.clone(), true), Reply::Ending(1));
    assert_eq!(bench.end_by(one.clone(), true), Reply::Ended(false));
    bench.write_markers();
    bench.restart();
    assert_eq!(bench.end_by(one, true), Reply::Ended(false), "it is told");
    // Its producer, which waits for its end, begins no other.
    assert_eq!(bench.add(101, 0, &[1]), FENCED);
    assert_eq!(bench.init(Some((101, 0))), FENCED);
    // One that was committed stays so.
    assert_eq!(bench.init(None), Reply::Begun(101, 1));
    bench.add(101, 1, &[1]);
    let two = handle(101, 1, 2);
    bench.prepare(two.clone());
    assert_eq!(bench.end_by(two.clone(), true), Reply::Ended(true));
    assert_eq!(bench.abort_one(two.clone(), true), NOT_OPEN);
    bench.write_markers();
    assert_eq!(bench.abort_one(two.clone(), true), NOT_OPEN);
    assert_eq!(bench.end_by(two, false), Reply::Ended(true));
}

#[test]
fn outcomes_are_remembered_for_as_long_and_as_many_as_is_set() {
    let mut limits = Limits::default();
    limits.transactions.outcome_ms = 60_000;
    let mut bench = Bench::with(limits.clone());
    let end = |bench: &mut Bench, id: &str| {
        let handle = bench.begin_as(id);
        assert_eq!(bench.prepare(handle.clone()), Reply::Prepared);
        assert_eq!(bench.end_by(handle.clone(), true), Reply::Ended(true));
        bench.write_markers();
        bench.tick(1);
        handle
    };
    let unknown = Reply::Refused(Fault::UnknownId);
    let ended: Vec<Handle> = (0..4).map(|n| end(&mut bench, &format!("a{n}"))).collect();
    // Fewer from now on: the oldest go as the next one begins.
    limits.transactions.outcomes = 2;
    bench.coordinator.set_limits(limits);
    let last = end(&mut bench, "b");
    let told = |bench: &mut Bench, handle: &Handle| bench.end_by(handle.clone(), false);
    for handle in &ended[..3] {
        assert_eq!(told(&mut bench, handle), unknown);
    }
    assert_eq!(told(&mut bench, &ended[3]), Reply::Ended(true));
    bench.tick(60_000);
    bench.tick(60_000);
    assert_eq!(told(&mut bench, &ended[3]), unknown);
    assert_eq!(told(&mut bench, &last), unknown);
}
