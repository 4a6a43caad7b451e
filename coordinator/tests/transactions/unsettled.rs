//! How transactions ended, for as long as their markers may be lost again.

use kera_coordinator::transactions::{EndedBefore, Lost, OpenThere};

use super::*;

fn partition(number: u32) -> Partition {
    match part(number) {
        Part::Partition(stream, number) => (stream, number),
        Part::Group(_) => panic!("a partition"),
    }
}

impl Bench {
    /// Adds partitions, ends the transaction, and reports where its markers end.
    fn run(&mut self, partitions: &[u32], commit: bool, end: u64) -> u64 {
        assert!(matches!(self.add(101, 0, partitions), Reply::Added(..)));
        let Reply::Ending(number) = self.end(101, 0, commit) else {
            panic!("it is open")
        };
        self.report(number, partitions, end);
        number
    }

    fn report(&mut self, number: u64, partitions: &[u32], end: u64) {
        let parts: BTreeSet<Part> = partitions.iter().map(|number| part(*number)).collect();
        let written = Written {
            id: ID.into(),
            number,
            ends: ends_of(&parts, end),
            parts,
        };
        assert_eq!(self.call(Request::Written(written)), Reply::Noted);
    }

    fn lost_in(&self, number: u32, first: u64) -> Lost {
        let open = OpenThere {
            producer: 101,
            epoch: 0,
            first,
        };
        let lost = self.coordinator.lost_in(partition(number), &[open]);
        assert!(lost.ended.len() + lost.forgotten.len() <= 1, "{lost:?}");
        lost
    }

    /// What the coordinator says of what producer 101 has open in a partition from there on.
    fn lost(&self, number: u32, first: u64) -> Option<EndedBefore> {
        self.lost_in(number, first).ended.first().copied()
    }

    /// Whether that has ended, and nobody knows how.
    fn is_forgotten(&self, number: u32, first: u64) -> bool {
        !self.lost_in(number, first).forgotten.is_empty()
    }

    /// A snapshot, and a coordinator that reads nothing else.
    pub(super) fn restart_from_snapshot(&mut self) {
        self.events = self.coordinator.snapshot();
        self.restart();
    }
}

#[test]
fn how_transactions_ended_is_kept_until_their_markers_stay() {
    let mut bench = Bench::new();
    bench.init(None);
    bench.run(&[1, 2], true, 10);
    let partitions = [partition(1), partition(2)];
    assert_eq!(bench.coordinator.unsettled_partitions(), partitions);
    // A later one, which is aborted, and a third one.
    bench.run(&[1], false, 20);
    bench.run(&[1], true, 30);
    for restart in [
        Bench::restart as fn(&mut Bench),
        Bench::restart_from_snapshot,
    ] {
        restart(&mut bench);
        for (first, number, commit) in [(0, 1, true), (9, 1, true), (10, 2, false), (25, 3, true)] {
            let lost = bench.lost(1, first).expect("it has ended");
            assert_eq!((lost.number, lost.commit), (number, commit), "from {first}");
            assert_eq!((lost.epoch, lost.epoch_after), (0, 0));
        }
        assert_eq!(bench.lost(1, 30), None, "the next one");
        assert_eq!(bench.lost(2, 0).map(|lost| lost.before), Some(10));
        assert_eq!(bench.coordinator.ended_before(ID, partition(1)), 30);
        assert_eq!(bench.coordinator.ended_before("other", partition(1)), 0);
    }
    // The next one is open meanwhile.
    bench.add(101, 0, &[1, 2]);
    assert_eq!(bench.coordinator.ended_before(ID, partition(2)), 10);
    bench.coordinator.settle(partition(1), 20);
    assert_eq!(bench.lost(1, 0), None, "that stays");
    assert!(!bench.is_forgotten(1, 30));
    assert_eq!(bench.lost(1, 20).map(|lost| lost.number), Some(3));
    bench.coordinator.settle(partition(1), 30);
    bench.coordinator.settle(partition(2), 9);
    assert_eq!(bench.coordinator.unsettled_partitions(), partitions[1..]);
    // That needs no event: who reads the events asks again, who reads a snapshot does not.
    bench.restart_from_snapshot();
    assert_eq!(bench.coordinator.unsettled_partitions(), partitions[1..]);
}

#[test]
fn many_transactions_in_a_row_take_no_room_and_an_id_that_is_forgotten_none_at_all() {
    let mut limits = Limits::default();
    limits.transactions.unsettled = 3;
    let mut bench = Bench::with(limits);
    bench.init(None);
    for n in 1..=100 {
        bench.run(&[1], true, n * 10);
    }
    assert_eq!(bench.lost(1, 0).map(|lost| lost.number), Some(100));
    // There is room for two more, and not for three: of those it is kept that they ended, and not how.
    bench.run(&[2, 3, 4], true, 2_000);
    for number in [2, 3, 4] {
        assert!(bench.is_forgotten(number, 0));
        let before = bench.coordinator.ended_before(ID, partition(number));
        assert_eq!(before, 2_000, "the next one is not taken for it");
    }
    for number in [2, 3] {
        bench.coordinator.settle(partition(number), 2_000);
    }
    bench.run(&[4], false, 3_000);
    for restart in [
        Bench::restart_from_snapshot as fn(&mut Bench),
        Bench::restart,
    ] {
        restart(&mut bench);
        assert_eq!(
            bench.lost(4, 1_999),
            None,
            "it does not end as the next one"
        );
        let lost = bench.lost(4, 2_000);
        assert_eq!(lost.map(|lost| lost.commit), Some(false));
    }
    bench.restart();
    bench.tick(Limits::default().transactions.expiry_ms + 60_000);
    assert!(bench.coordinator.unsettled_partitions().is_empty());
    bench.restart();

    // Ends of several kinds take room, but no more than for some time of a flush.
    let mut bench = Bench::new();
    bench.init(None);
    for n in 1..=1_100 {
        bench.run(&[1], n % 2 == 0, n * 10);
    }
    for restart in [
        Bench::restart as fn(&mut Bench),
        Bench::restart_from_snapshot,
    ] {
        restart(&mut bench);
        // What began before the oldest that is kept may have ended either way.
        assert!(bench.is_forgotten(1, 0) && bench.is_forgotten(1, 759));
        assert_eq!(bench.lost(1, 760).map(|lost| lost.number), Some(77));
        assert_eq!(bench.lost(1, 10_985).map(|lost| lost.number), Some(1_099));
    }
}

/// What is not kept is kept apart from what is: no later end decides about it, whatever the room.
#[test]
fn what_there_was_no_room_for_never_ends_as_a_later_one() {
    let mut limits = Limits::default();
    limits.transactions.unsettled = 1;
    let mut bench = Bench::with(limits);
    bench.init(None);
    bench.run(&[1], true, 10);
    bench.run(&[1, 2, 3], false, 20);
    bench.run(&[2], true, 30);
    bench.run(&[4], true, 40);
    // One more of an id and partition takes no room, another partition does: it ends once there is some.
    bench.run(&[4], false, 50);
    bench.run(&[6], false, 60);
    assert!(!bench.is_forgotten(6, 0));
    let next = |bench: &mut Bench| bench.add(101, 0, &[1]);
    assert_eq!(next(&mut bench), Reply::Refused(Fault::Ending));
    bench.coordinator.settle(partition(3), 20);
    let decided = bench.decided();
    assert!(decided[0].parts.is_empty(), "all have their markers");
    bench.report(decided[0].number, &[], 0);
    assert!(bench.is_forgotten(6, 59));
    assert!(matches!(next(&mut bench), Reply::Added(..)));
    bench.restart_from_snapshot();
    assert_eq!(bench.lost(1, 0).map(|lost| lost.commit), Some(true));
    for (number, first) in [(1, 10), (2, 0), (2, 20), (4, 0), (6, 0)] {
        assert!(bench.is_forgotten(number, first), "{number} from {first}");
    }
    assert_eq!(bench.coordinator.ended_before(ID, partition(2)), 30);
    // The coordinator writes the marker of what it keeps, and ends what is under way. All others end by hand.
    let knows = |number, first| {
        let open = OpenThere {
            producer: 101,
            epoch: 0,
            first,
        };
        bench.coordinator.knows(&[(partition(number), open)])[0]
    };
    assert!(knows(1, 0) && knows(1, 20));
    assert!(!knows(1, 10) && !knows(2, 0) && !knows(2, 30));
}

/// Owners of an earlier version do not say where a marker ended: what begins before the next end may be of that one.
#[test]
fn the_end_after_one_of_which_nobody_knows_where_it_was_is_not_known_either() {
    let mut bench = Bench::new();
    bench.init(None);
    bench.run(&[1], true, 10);
    bench.run(&[1], false, 0);
    for restart in [
        Bench::restart as fn(&mut Bench),
        Bench::restart_from_snapshot,
    ] {
        restart(&mut bench);
        assert_eq!(bench.lost(1, 9).map(|lost| lost.commit), Some(true));
        assert_eq!(bench.lost_in(1, 10), Lost::default(), "it may be open");
    }
    bench.coordinator.settle(partition(1), 15);
    bench.run(&[1], true, 30);
    bench.run(&[1], false, 40);
    for restart in [
        Bench::restart_from_snapshot as fn(&mut Bench),
        Bench::restart,
    ] {
        restart(&mut bench);
        assert!(bench.is_forgotten(1, 12) && bench.is_forgotten(1, 29));
        assert_eq!(bench.lost(1, 30).map(|lost| lost.commit), Some(false));
    }
    bench.coordinator.settle(partition(1), 40);
    assert!(bench.coordinator.unsettled_partitions().is_empty());
}

/// Partition 1 of transaction 1, committed before 10,
const ONE: &str = "0802b2014a086518ffffffffffffffffff0120ffffffffffffffffff0130904e3804400148e80750e8077a23086520012801321b0a10090909090909090909090909090909091201011a010a220100";
/// and as builds wrote it that kept eight of an id and partition.
const ONE_BEFORE: &str = "0802b20147086518ffffffffffffffffff0120ffffffffffffffffff0130904e3804400148e80750e8077a2008652001280132180a10090909090909090909090909090909091201011a010a";
/// Partitions 1 and 2 of transaction 2, aborted before 20; there was no room for how.
const TWO: &str = "0802b2014d086518ffffffffffffffffff0120ffffffffffffffffff0130904e3805400248e80750e8077a2608652002321e0a1009090909090909090909090909090909120201021a021414220200003801";

#[test]
fn stored_ends_are_read_as_they_were_written() {
    let mut limits = Limits::default();
    limits.transactions.unsettled = 1;
    let mut bench = Bench::with(limits);
    bench.init(None);
    bench.run(&[1], true, 10);
    let hex = |bench: &Bench| -> String {
        let last = bench.events.last().expect("an event");
        let value = last.value();
        value.iter().map(|byte| format!("{byte:02x}")).collect()
    };
    assert_eq!(hex(&bench), ONE);
    bench.run(&[1, 2], false, 20);
    assert_eq!(hex(&bench), TWO);

    let read = |stored: &[&str]| {
        let mut bench = Bench::new();
        bench.init(None);
        for stored in stored {
            let digits: Vec<char> = stored.chars().collect();
            let byte = |pair: &[char]| {
                let text: String = pair.iter().collect();
                u8::from_str_radix(&text, 16).expect("two digits")
            };
            let value: Vec<u8> = digits.chunks(2).map(byte).collect();
            let event = Event::decode(ID.as_bytes(), &value);
            bench.events.push(event.expect("an event"));
        }
        bench.coordinator = replay(&bench.events, bench.now);
        bench
    };
    let bench = read(&[ONE, TWO]);
    assert_eq!(bench.lost(1, 9).map(|lost| lost.commit), Some(true));
    assert!(bench.is_forgotten(1, 10) && bench.is_forgotten(2, 0));
    // What a build dropped that said nothing of it may be any that began before.
    let bench = read(&[ONE_BEFORE, TWO]);
    assert!(bench.is_forgotten(1, 9) && bench.is_forgotten(1, 10));
}
