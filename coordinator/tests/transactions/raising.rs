//! Ends that give the producer another epoch: Kafka's `transaction.version` 2.

use super::*;

impl Bench {
    pub(super) fn end_raising(&mut self, producer: i64, epoch: i16, commit: bool) -> Reply {
        self.fresh += 1;
        self.call(Request::End(End {
            member: member(producer, epoch),
            commit,
            number: None,
            raise: Some(self.fresh),
        }))
    }
}

pub(super) fn raised(number: u64, producer: i64, epoch: i16) -> Reply {
    Reply::Raised {
        number,
        producer,
        epoch,
    }
}

#[test]
fn each_end_gives_the_producer_another_epoch_and_is_answered_alike_when_it_is_repeated() {
    let mut bench = Bench::new();
    bench.init(None);
    let mut epoch = 0;
    for (number, commit) in [(1, true), (2, false), (3, true)] {
        bench.add(101, epoch, &[1, 2]);
        bench.restart();
        assert_eq!(
            bench.end_raising(101, epoch, commit),
            raised(number, 101, epoch + 1)
        );
        // Before its markers are written, after a restart, and afterwards.
        for _ in 0..2 {
            assert_eq!(
                bench.end_raising(101, epoch, commit),
                raised(number, 101, epoch + 1)
            );
            assert_eq!(bench.end_raising(101, epoch, !commit), NOT_OPEN);
            bench.restart();
        }
        // What is late, and what is early.
        assert_eq!(bench.add(101, epoch, &[3]), FENCED);
        assert_eq!(bench.add(101, epoch + 1, &[3]), ENDING);
        assert_eq!(bench.end_raising(101, epoch + 1, false), ENDING);
        let decided = bench.decided().remove(0);
        assert_eq!(
            (decided.commit, decided.producer, decided.number),
            (commit, 101, number)
        );
        assert_eq!((decided.batch_epoch, decided.epoch), (epoch, epoch + 1));
        bench.write_markers();
        bench.events = bench.coordinator.snapshot();
        bench.restart();
        assert_eq!(
            bench.end_raising(101, epoch, commit),
            raised(number, 101, epoch + 1)
        );
        epoch += 1;
    }
    bench.add(101, epoch, &[1]);
    // The client has gone on, so nobody asks for that any more.
    assert_eq!(bench.end_raising(101, epoch - 1, true), FENCED);
    assert_eq!(bench.describe().stage, Stage::Ongoing);
    bench.restart();
}

#[test]
fn what_is_aborted_without_a_part_is_fenced_as_well() {
    let mut bench = Bench::new();
    bench.init(None);
    assert_eq!(bench.end_raising(101, 0, true), NOT_OPEN);
    assert_eq!(bench.end_raising(101, 0, false), raised(1, 101, 1));
    assert_eq!(bench.end_raising(101, 0, false), raised(1, 101, 1));
    assert_eq!(bench.end_raising(101, 0, true), NOT_OPEN);
    assert_eq!(bench.add(101, 0, &[1]), FENCED, "a batch that came late");
    assert_eq!(bench.decided(), []);
    bench.add(101, 1, &[1]);
    assert_eq!(bench.end_raising(101, 1, true), raised(2, 101, 2));
    bench.write_markers();
    assert_eq!(bench.end_raising(101, 2, false), raised(3, 101, 3));
    assert_eq!(bench.end_raising(101, 3, false), raised(4, 101, 4));
    bench.restart();
    assert_eq!(bench.describe().stage, Stage::CompleteAbort);
}

#[test]
fn where_no_epoch_is_left_the_next_transaction_has_another_producer_id() {
    let mut bench = Bench::new();
    bench.init(None);
    let mut last = 0;
    // Nothing takes part, so that it is quick.
    while last < i16::MAX - 1 {
        let next = raised(last as u64 + 1, 101, last + 1);
        assert_eq!(bench.end_raising(101, last, false), next);
        last += 1;
    }
    bench.events = bench.coordinator.snapshot();
    let Reply::Added(number, _) = bench.add(101, last, &[1]) else {
        panic!("it is not added")
    };
    let Reply::Raised {
        producer, epoch, ..
    } = bench.end_raising(101, last, true)
    else {
        panic!("it does not end")
    };
    assert_eq!((producer, epoch), (bench.fresh, 0));
    // Repeated it brings no other one.
    let again = raised(number, producer, 0);
    assert_eq!(bench.end_raising(101, last, true), again);
    let decided = bench.decided().remove(0);
    assert_eq!((decided.producer, decided.number), (101, number));
    assert_eq!((decided.batch_epoch, decided.epoch), (last, i16::MAX));
    bench.write_markers();
    assert_eq!(bench.end_raising(101, last, true), again);
    bench.restart();
    let other = Reply::Refused(Fault::OtherProducer);
    assert_eq!(bench.add(101, last, &[1]), other);
    assert!(matches!(bench.add(producer, 0, &[1]), Reply::Added(..)));
}

#[test]
fn whoever_begins_after_a_raising_end_goes_on_or_is_fenced() {
    let mut bench = Bench::new();
    bench.init(None);
    bench.add(101, 0, &[1]);
    assert_eq!(bench.end_raising(101, 0, true), raised(1, 101, 1));
    assert_eq!(bench.init(Some((101, 0))), ENDING);
    bench.write_markers();
    // It never heard which epoch it has, and begins instead of asking: nobody else has that epoch.
    assert_eq!(bench.init(Some((101, 0))), Reply::Begun(101, 1));
    assert_eq!(bench.init(Some((101, 0))), Reply::Begun(101, 1), "repeated");
    assert_eq!(bench.end_raising(101, 0, true), FENCED);
    bench.add(101, 1, &[1]);
    assert_eq!(bench.end_raising(101, 1, false), raised(2, 101, 2));
    bench.write_markers();
    // Another instance.
    assert_eq!(bench.init(None), Reply::Begun(101, 3));
    for late in [1, 2] {
        assert_eq!(bench.end_raising(101, late, false), FENCED);
        assert_eq!(bench.init(Some((101, late))), FENCED);
    }
    bench.add(101, 3, &[1]);
    // Its time is over: its epoch is raised once, not by its end as well.
    bench.tick(TIMEOUT_MS as u64);
    assert_eq!(bench.end_raising(101, 3, true), FENCED);
    let decided = bench.decided().remove(0);
    assert_eq!((decided.batch_epoch, decided.epoch), (3, 4));
    bench.write_markers();
    assert_eq!(bench.init(Some((101, 3))), Reply::Begun(101, 4));
    bench.restart();
}

#[test]
fn a_prepared_transaction_is_ended_by_either() {
    let mut bench = Bench::new();
    bench.init(None);
    bench.add(101, 0, &[1]);
    let one = handle(101, 0, 1);
    assert_eq!(bench.prepare(one.clone()), Reply::Prepared);
    assert_eq!(bench.end_raising(101, 0, true), raised(1, 101, 1));
    assert_eq!(bench.end_by(one.clone(), false), Reply::Ended(true));
    bench.write_markers();
    assert_eq!(bench.end_by(one.clone(), false), Reply::Ended(true));
    // One without parts is another one.
    assert_eq!(bench.end_raising(101, 1, false), raised(2, 101, 2));
    let forgotten = Reply::Refused(Fault::Forgotten);
    assert_eq!(bench.end_by(one, true), forgotten);
}
