//! Transactions of producers: the rules one by one.

mod lingering;
mod model;
mod prepared;
mod raising;
#[path = "../support/mod.rs"]
mod support;
mod two_phase;
mod unsettled;

use std::collections::{BTreeMap, BTreeSet};

use kera_coordinator::transactions::{
    AbortOne, Decided, Described, End, Fault, Filter, Handle, Init, Member, Part, Partition,
    Prepare, Reply, Request, Stage, Written,
};
use kera_coordinator::{
    Coordinator, Event, Limits, Replay, Reply as AnyReply, Request as AnyRequest, Step,
};
use kera_protocol::ids::StreamId;
use kera_protocol::v1::LaneBy;
use support::FakeStream;

const ID: &str = "payments";
const TIMEOUT_MS: i32 = 10_000;

fn part(partition: u32) -> Part {
    let stream = StreamId::from_slice(&[9; 16]).expect("16 bytes");
    Part::Partition(stream, partition)
}

/// Where the markers of these parts end: all at one ordinal.
fn ends_of(parts: &BTreeSet<Part>, end: u64) -> BTreeMap<Partition, u64> {
    let partitions = parts.iter().filter_map(|part| match part {
        Part::Partition(stream, partition) => Some(((*stream, *partition), end)),
        Part::Group(_) => None,
    });
    partitions.collect()
}

struct Bench {
    coordinator: Coordinator,
    stream: FakeStream,
    now: u64,
    ticket: u64,
    fresh: i64,
    events: Vec<Event>,
}

impl Bench {
    fn new() -> Self {
        Self::with(Limits::default())
    }

    fn with(limits: Limits) -> Self {
        Self {
            coordinator: Coordinator::new(limits),
            stream: FakeStream::new(1, 1, LaneBy::Key),
            now: 1_000,
            ticket: 0,
            fresh: 100,
            events: Vec::new(),
        }
    }

    fn step(&mut self, request: Request) -> Step {
        self.ticket += 1;
        let request = AnyRequest::Transaction(request);
        self.coordinator
            .handle(self.now, self.ticket, request, &self.stream)
    }

    fn call(&mut self, request: Request) -> Reply {
        let mut step = self.step(request);
        self.events.append(&mut step.events);
        match step.replies.pop() {
            Some((_, Ok(AnyReply::Transaction(reply)))) => reply,
            other => panic!("{other:?}"),
        }
    }

    fn init_request(&mut self, known: Option<(i64, i16)>) -> Request {
        self.fresh += 1;
        Request::Init(Init {
            id: ID.into(),
            timeout_ms: TIMEOUT_MS,
            known,
            fresh_producer: self.fresh,
            keep: false,
            heartbeats: false,
            two_phase: None,
        })
    }

    fn init(&mut self, known: Option<(i64, i16)>) -> Reply {
        let request = self.init_request(known);
        self.call(request)
    }

    fn add(&mut self, producer: i64, epoch: i16, partitions: &[u32]) -> Reply {
        let parts = partitions.iter().map(|p| part(*p)).collect();
        self.call(Request::Add(member(producer, epoch), parts))
    }

    fn end(&mut self, producer: i64, epoch: i16, commit: bool) -> Reply {
        let member = member(producer, epoch);
        self.call(Request::End(End {
            member,
            commit,
            number: None,
            raise: None,
        }))
    }

    /// An id that nobody had before begins its first transaction, of one lane.
    fn begin_as(&mut self, id: &str) -> Handle {
        let member = Member {
            id: id.into(),
            producer: 7,
            epoch: 0,
        };
        let init = Init {
            id: id.into(),
            timeout_ms: TIMEOUT_MS,
            known: None,
            fresh_producer: 7,
            keep: false,
            heartbeats: false,
            two_phase: None,
        };
        assert_eq!(self.call(Request::Init(init)), Reply::Begun(7, 0));
        let added = self.call(Request::Add(member.clone(), [part(1)].into()));
        assert!(matches!(added, Reply::Added(1, _)));
        Handle { member, number: 1 }
    }

    fn prepare(&mut self, handle: Handle) -> Reply {
        self.call(Request::Prepare(Prepare {
            handle,
            principal: "flink".into(),
        }))
    }

    fn end_by(&mut self, handle: Handle, commit: bool) -> Reply {
        self.call(Request::End(End {
            member: handle.member,
            commit,
            number: Some(handle.number),
            raise: None,
        }))
    }

    fn decided(&mut self) -> Vec<Decided> {
        match self.call(Request::Decided) {
            Reply::Decided(decided) => decided,
            other => panic!("{other:?}"),
        }
    }

    /// Every part of what is decided has its marker.
    fn write_markers(&mut self) {
        for decided in self.decided() {
            let written = Written {
                id: decided.id,
                number: decided.number,
                ends: ends_of(&decided.parts, decided.number * 100),
                parts: decided.parts,
            };
            assert_eq!(self.call(Request::Written(written)), Reply::Noted);
        }
    }

    /// Of the transaction that is open, or of the last one.
    fn number(&mut self) -> u64 {
        let mut step = self.step(Request::Describe(ID.into()));
        match step.replies.pop() {
            Some((_, Ok(AnyReply::Transaction(Reply::Described(described))))) => described.number,
            _ => 0,
        }
    }

    fn describe(&mut self) -> Described {
        match self.call(Request::Describe(ID.into())) {
            Reply::Described(described) => described,
            other => panic!("{other:?}"),
        }
    }

    fn tick(&mut self, ms: u64) {
        self.now += ms;
        let mut step = self.coordinator.tick(self.now, &self.stream);
        self.events.append(&mut step.events);
    }

    /// The process ends, and another reads the events.
    fn restart(&mut self) {
        let replayed = replay(&self.events, self.now);
        assert!(replayed.same_durable_state(&self.coordinator));
        self.coordinator = replayed;
    }
}

fn replay(events: &[Event], now: u64) -> Coordinator {
    let mut replay = Replay::new();
    for event in events {
        let event = Event::decode(event.key(), &event.value()).expect("an event");
        replay.apply(&event);
    }
    let (coordinator, report) = replay.finish(Limits::default(), now);
    assert_eq!(report.ignored, 0);
    coordinator
}

fn handle(producer: i64, epoch: i16, number: u64) -> Handle {
    Handle {
        member: member(producer, epoch),
        number,
    }
}

fn member(producer: i64, epoch: i16) -> Member {
    Member {
        id: ID.into(),
        producer,
        epoch,
    }
}

const FENCED: Reply = Reply::Refused(Fault::Fenced);
const ENDING: Reply = Reply::Refused(Fault::Ending);
const NOT_OPEN: Reply = Reply::Refused(Fault::NotOpen);

#[test]
fn a_transaction_begins_with_its_first_part_and_ends_with_its_last_marker() {
    let mut bench = Bench::new();
    assert_eq!(bench.init(None), Reply::Begun(101, 0));
    assert_eq!(bench.describe().stage, Stage::Empty);
    assert_eq!(bench.end(101, 0, true), NOT_OPEN);
    let added = |number, partitions: &[u32]| {
        Reply::Added(number, partitions.iter().map(|p| part(*p)).collect())
    };
    assert_eq!(bench.add(101, 0, &[1, 2]), added(1, &[1, 2]));
    assert_eq!(bench.add(101, 0, &[2, 3]), added(1, &[3]));
    let verify = |p| Request::Verify(member(101, 0), part(p));
    assert_eq!(bench.call(verify(3)), Reply::Open(1));
    assert_eq!(bench.call(verify(4)), NOT_OPEN);
    bench.restart();
    assert_eq!(bench.decided(), []);
    assert_eq!(bench.end(101, 0, true), Reply::Ending(1));
    assert_eq!(bench.end(101, 0, true), ENDING, "repeated");
    assert_eq!(bench.end(101, 0, false), NOT_OPEN);
    assert_eq!(bench.add(101, 0, &[1]), ENDING);
    assert_eq!(bench.call(verify(3)), NOT_OPEN);
    bench.restart();
    let decided = bench.decided().remove(0);
    assert_eq!(
        (decided.commit, decided.number, decided.epoch),
        (true, 1, 0)
    );
    let some = Written {
        id: ID.into(),
        number: 1,
        parts: [part(1), part(3)].into(),
        ends: Default::default(),
    };
    assert_eq!(bench.call(Request::Written(some.clone())), Reply::Noted);
    assert_eq!(bench.decided()[0].parts, [part(2)].into());
    // What had its markers is asked for again after a restart.
    bench.restart();
    assert_eq!(bench.decided()[0].parts.len(), 3);
    bench.write_markers();
    assert_eq!(bench.describe().stage, Stage::CompleteCommit);
    assert_eq!(
        bench.end(101, 0, true),
        Reply::Ending(1),
        "the answer was lost"
    );
    assert_eq!(bench.end(101, 0, false), NOT_OPEN);
    // The next one; a late report of the first one's markers is none of its.
    assert_eq!(bench.add(101, 0, &[2]), added(2, &[2]));
    assert_eq!(bench.end(101, 0, false), Reply::Ending(2));
    assert_eq!(bench.call(Request::Written(some)), Reply::Noted);
    assert_eq!(bench.decided()[0].parts, [part(2)].into());
    bench.write_markers();
    assert_eq!(bench.describe().stage, Stage::CompleteAbort);
    bench.restart();
}

#[test]
fn another_instance_fences_the_one_before_and_raises_the_epoch_once() {
    let mut bench = Bench::new();
    assert_eq!(bench.init(None), Reply::Begun(101, 0));
    bench.add(101, 0, &[1]);
    // Two instances begin: the epoch is raised once for the abort, which the first of them takes.
    assert_eq!(bench.init(None), ENDING);
    assert_eq!(bench.init(None), ENDING);
    assert_eq!(bench.add(101, 0, &[2]), FENCED);
    assert_eq!(bench.end(101, 0, true), FENCED);
    let decided = bench.decided().remove(0);
    assert_eq!(
        (decided.commit, decided.epoch, decided.batch_epoch),
        (false, 1, 0)
    );
    bench.restart();
    bench.write_markers();
    assert_eq!(bench.init(None), Reply::Begun(101, 1));
    assert_eq!(bench.init(None), Reply::Begun(101, 2));
    for epoch in [0, 1] {
        assert_eq!(bench.init(Some((101, epoch))), FENCED);
        assert_eq!(bench.add(101, epoch, &[2]), FENCED);
    }
    assert_eq!(bench.describe().stage, Stage::Empty);
}

#[test]
fn a_producer_goes_on_after_an_error_and_hears_a_lost_answer_again() {
    let mut bench = Bench::new();
    bench.init(None);
    assert_eq!(bench.init(Some((101, 0))), Reply::Begun(101, 1));
    assert_eq!(bench.init(Some((101, 0))), Reply::Begun(101, 1), "repeated");
    assert_eq!(bench.init(Some((101, 1))), Reply::Begun(101, 2));
    assert_eq!(bench.init(Some((101, 0))), FENCED);
    // Its time is over: its next call is refused, and it goes on with what it had.
    bench.add(101, 2, &[1]);
    bench.tick(TIMEOUT_MS as u64 - 1);
    assert_eq!(bench.describe().stage, Stage::Ongoing);
    bench.tick(1);
    assert_eq!(bench.describe().stage, Stage::PrepareAbort);
    assert_eq!(bench.end(101, 2, true), FENCED);
    assert_eq!(bench.init(Some((101, 2))), ENDING);
    bench.write_markers();
    assert_eq!(bench.init(Some((101, 2))), Reply::Begun(101, 3));
    // Unless another instance took the epoch first.
    bench.add(101, 3, &[1]);
    bench.tick(TIMEOUT_MS as u64);
    bench.write_markers();
    assert_eq!(bench.init(None), Reply::Begun(101, 4));
    assert_eq!(bench.init(Some((101, 3))), FENCED);
    bench.restart();
}

#[test]
fn an_id_without_epochs_gets_another_producer_id() {
    let mut bench = Bench::new();
    bench.init(None);
    let mut last = (101, 0);
    for _ in 0..40_000 {
        // Each one is fenced in the middle of a transaction: no epoch overflows.
        bench.add(last.0, last.1, &[1]);
        assert_eq!(bench.init(None), ENDING);
        bench.write_markers();
        bench.events.clear();
        let Reply::Begun(producer, epoch) = bench.init(None) else {
            panic!("an init is refused")
        };
        assert!((producer, epoch) > last, "{last:?}");
        assert!(epoch < i16::MAX);
        last = (producer, epoch);
    }
    assert!(last.0 > 101);
}

#[test]
fn a_transaction_is_open_for_as_long_as_its_producer_wants_and_operators_let_it() {
    const HOURS_MS: u64 = 6 * 3_600_000;
    let mut limits = Limits::default();
    limits.transactions.max_timeout_ms = HOURS_MS as u32;
    let mut bench = Bench::with(limits);
    let init = |timeout_ms: u64| {
        Request::Init(Init {
            id: ID.into(),
            timeout_ms: timeout_ms as i32,
            known: None,
            fresh_producer: 101,
            keep: false,
            heartbeats: false,
            two_phase: None,
        })
    };
    let refused = bench.call(init(HOURS_MS + 1));
    assert_eq!(refused, Reply::Refused(Fault::InvalidTimeout));
    assert_eq!(bench.call(init(HOURS_MS)), Reply::Begun(101, 0));
    assert_eq!(bench.coordinator.transactions_due_ms(), None);
    bench.tick(HOURS_MS);
    let began = bench.now;
    bench.add(101, 0, &[1]);
    bench.tick(HOURS_MS - 1);
    // Those that began under a higher limit keep their time.
    bench.coordinator.set_limits(Limits::default());
    bench.add(101, 0, &[2]);
    assert_eq!(bench.describe().stage, Stage::Ongoing);
    let due = Some(began + HOURS_MS);
    assert_eq!(bench.coordinator.transactions_due_ms(), due);
    bench.tick(1);
    assert_eq!(bench.end(101, 0, true), FENCED);
    assert!(!bench.decided()[0].commit);
    // It is overdue until the last marker.
    assert_eq!(bench.coordinator.transactions_due_ms(), due);
    bench.write_markers();
    assert_eq!(bench.coordinator.transactions_due_ms(), None);
}

#[test]
fn what_is_out_of_bounds_is_refused_and_nothing_open_makes_room() {
    let mut limits = Limits::default();
    limits.transactions.ids = 2;
    limits.transactions.parts = 3;
    let mut bench = Bench::with(limits);
    let init = |id: &str, timeout_ms, fresh_producer| {
        Request::Init(Init {
            id: id.into(),
            timeout_ms,
            known: None,
            fresh_producer,
            keep: false,
            heartbeats: false,
            two_phase: None,
        })
    };
    for id in ["", &"x".repeat(2_000)] {
        let refused = bench.call(init(id, 1, 1));
        assert_eq!(refused, Reply::Refused(Fault::InvalidId));
    }
    for timeout_ms in [0, -1, 900_001, i32::MAX] {
        let refused = bench.call(init("a", timeout_ms, 1));
        assert_eq!(refused, Reply::Refused(Fault::InvalidTimeout));
    }
    bench.init(None);
    assert_eq!(
        bench.add(101, 0, &[1, 2, 3, 4]),
        Reply::Refused(Fault::TooManyParts)
    );
    bench.add(101, 0, &[1, 2, 3]);
    assert_eq!(bench.add(7, 0, &[1]), Reply::Refused(Fault::OtherProducer));
    assert_eq!(bench.call(init("a", 1_000, 1)), Reply::Begun(1, 0));
    // Who has just begun stays until it was silent for the time of a transaction.
    let refused = Reply::Refused(Fault::TooManyIds);
    assert_eq!(bench.call(init("b", 1_000, 2)), refused);
    bench.now += 1_000;
    assert_eq!(bench.call(init("b", 1_000, 2)), Reply::Begun(2, 0));
    let list = bench.call(Request::List(Filter::default()));
    let Reply::Listed(listed) = list else {
        panic!("{list:?}")
    };
    let ids: Vec<&str> = listed.iter().map(|listed| listed.id.as_str()).collect();
    assert_eq!(ids, ["b", ID]);
    let open = bench.call(Request::List(Filter {
        stages: vec![Stage::Ongoing],
        ..Filter::default()
    }));
    assert!(matches!(open, Reply::Listed(open) if open.len() == 1));
    // Silent ids are forgotten, and those with a transaction are not.
    bench.tick(7 * 24 * 3_600_000);
    let unknown = Reply::Refused(Fault::UnknownId);
    assert_eq!(bench.call(Request::Describe("b".into())), unknown);
    assert_eq!(bench.describe().stage, Stage::PrepareAbort);
    assert_eq!(bench.call(Request::Abort("b".into())), unknown);
}

#[test]
fn names_of_groups_count_among_what_all_transactions_take() {
    let mut limits = Limits::default();
    limits.transactions.small_parts = 10;
    limits.transactions.total_parts = 150;
    let mut bench = Bench::with(limits);
    let groups = |count: usize, bytes: usize| {
        let names = (0..count).map(|n| Part::Group(format!("{n:0bytes$}")));
        names.collect::<BTreeSet<Part>>()
    };
    let mut add = |id: &str, producer: i64, parts| {
        let init = Request::Init(Init {
            id: id.into(),
            timeout_ms: TIMEOUT_MS,
            known: None,
            fresh_producer: producer,
            keep: false,
            heartbeats: false,
            two_phase: None,
        });
        assert_eq!(bench.call(init), Reply::Begun(producer, 0));
        let member = Member {
            id: id.into(),
            producer,
            epoch: 0,
        };
        bench.call(Request::Add(member, parts))
    };
    // Ten groups of 320 bytes are as much as 110 partitions.
    assert!(matches!(add("a", 1, groups(10, 320)), Reply::Added(..)));
    let refused = Reply::Refused(Fault::TooManyParts);
    assert_eq!(add("b", 2, groups(10, 320)), refused);
    assert!(matches!(add("c", 3, groups(4, 32)), Reply::Added(..)));
    assert!(matches!(add("d", 4, groups(10, 32)), Reply::Added(..)));
    assert_eq!(add("e", 5, groups(10, 32)), refused);
    assert!(matches!(add("f", 6, groups(5, 9)), Reply::Added(..)), "few");
}

#[test]
fn a_snapshot_carries_everything() {
    let mut bench = Bench::new();
    bench.init(None);
    let group = Part::Group("g".into());
    let mut parts: BTreeSet<Part> = (0..2_000).map(part).collect();
    parts.insert(group);
    bench.call(Request::Add(member(101, 0), parts));
    for groups in [0..100, 0..1] {
        let long = "g".repeat(if groups.len() == 1 { 2_000 } else { 9 });
        let groups = groups.map(|n| Part::Group(format!("{long}{n}"))).collect();
        let refused = bench.call(Request::Add(member(101, 0), groups));
        assert_eq!(refused, Reply::Refused(Fault::TooManyParts));
    }
    bench.end(101, 0, true);
    bench.events = bench.coordinator.snapshot();
    bench.restart();
    assert_eq!(bench.decided()[0].parts.len(), 2_001);
}

/// However long its transactions may be open.
#[test]
fn an_id_that_was_begun_long_ago_makes_room() {
    const DAY: u32 = 24 * 3_600_000;
    let mut limits = Limits::default();
    limits.transactions.ids = 1;
    limits.transactions.max_timeout_ms = DAY;
    let mut bench = Bench::with(limits);
    let init = |bench: &mut Bench, id: &str, fresh_producer| {
        bench.call(Request::Init(Init {
            id: id.into(),
            timeout_ms: DAY as i32,
            known: None,
            fresh_producer,
            keep: false,
            heartbeats: false,
            two_phase: None,
        }))
    };
    assert_eq!(init(&mut bench, "a", 1), Reply::Begun(1, 0));
    bench.now += 899_999;
    let refused = Reply::Refused(Fault::TooManyIds);
    assert_eq!(init(&mut bench, "b", 2), refused);
    bench.now += 1;
    assert_eq!(init(&mut bench, "b", 2), Reply::Begun(2, 0));
}
