//! Lanes as they may be once the metadata store was put back, and what is recorded of them then.

use kera_metadata::{GroupState, Write};
use kera_protocol::ids::{StreamId, StreamletId};

use super::*;
use crate::cluster::restored_groups::Changes;

const LANE: LaneId = LaneId(0);
/// Bytes of a record in these tests.
const BYTES: u64 = 100;

fn key() -> StreamletKey {
    StreamletKey {
        stream: StreamId::from_slice(&[7; 16]).expect("16 bytes"),
        streamlet: StreamletId(0),
    }
}

fn replica(broker: u32) -> Replica {
    Replica {
        broker: BrokerId(broker),
        incarnation: Incarnation {
            store_id: Uuid::from_u128(broker.into()),
            boot_id: Uuid::from_u128(1),
        },
    }
}

/// Of the first restore.
fn lane(start: Ordinal, is_replicated: bool) -> RestoredLane {
    RestoredLane {
        key: key(),
        lane: LANE,
        start,
        restore: 1,
        served: 0,
        is_replicated,
        is_last: false,
    }
}

/// The groups that stay once all brokers have recorded what they have.
fn at_last(records: Vec<GroupRecord>, is_replicated: bool) -> Vec<GroupRecord> {
    let of = RestoredLane {
        is_last: true,
        ..lane(0, is_replicated)
    };
    let plan = plan(of, records, &Held::default(), &cut);
    plan.groups.into_values().collect()
}

/// A closed group of an older state, with replicas at these brokers.
fn closed(id: u64, (first, end): (u64, u64), brokers: &[u32]) -> GroupRecord {
    let copies = brokers.iter().copied().map(replica).collect();
    let record = GroupRecord::new(key().group(GroupId(id)), LANE, Epoch(5));
    GroupRecord {
        closed_ms: 1,
        revision: 9,
        ..record.closed(first, ((end - first) * BYTES, end), end, copies)
    }
}

fn open(id: u64, first: Option<u64>, brokers: &[u32]) -> GroupRecord {
    GroupRecord {
        state: GroupState::Open,
        first_ordinal: first,
        copies: brokers.iter().copied().map(replica).collect(),
        revision: 9,
        ..GroupRecord::new(key().group(GroupId(id)), LANE, Epoch(5))
    }
}

fn file((id, generation): (u64, u32), (first, end): (u64, u64)) -> Holding {
    Holding {
        lane: LANE,
        group: GroupId(id),
        generation,
        epoch: Epoch(5 + (id / 100) as u32),
        first,
        end,
        length: (end - first) * BYTES,
        max_timestamp_ms: 3,
        is_closed: true,
        is_decided: false,
        replica: replica(0),
    }
}

fn open_file(id: u64, place: (u64, u64)) -> Holding {
    Holding {
        is_closed: false,
        ..file((id, 0), place)
    }
}

/// What broker `id` has: `files`, and of these recorded groups.
fn held(id: u32, files: &[Holding], recorded: &[u64]) -> Held {
    let holdings: Vec<_> = files
        .iter()
        .map(|file| Holding {
            replica: replica(id),
            ..file.clone()
        })
        .collect();
    let recorded = recorded.iter().map(|group| (GroupId(*group), 0));
    Held {
        here: holdings.iter().map(Holding::name).chain(recorded).collect(),
        holdings,
        stores: vec![Uuid::from_u128(id.into())],
        me: BrokerId(id),
        ..Held::default()
    }
}

/// Batches of these tests have five records each.
fn cut(one: &Holding, below: Ordinal) -> Option<(u64, Ordinal)> {
    let end = one.first + below.saturating_sub(one.first) / 5 * 5;
    Some(((end - one.first) * BYTES, end))
}

type Seen = (u64, u32, u64, u64, Vec<u32>);

fn seen(records: &[GroupRecord]) -> Vec<Seen> {
    let seen = records.iter().map(|record| {
        let copies = record.copies.iter().filter(|copy| !is_nobody(copy));
        let mut brokers: Vec<_> = copies.map(|copy| copy.broker.0).collect();
        brokers.sort_unstable();
        let place = (record.start_ordinal(), record.end_ordinal);
        (record.group.0, record.generation, place.0, place.1, brokers)
    });
    seen.collect()
}

fn orders(brokers: &[Held]) -> Vec<Vec<&Held>> {
    if brokers.len() <= 1 {
        return vec![brokers.iter().collect()];
    }
    let mut all = Vec::new();
    for order in orders(&brokers[1..]) {
        for at in 0..=order.len() {
            let mut order = order.clone();
            order.insert(at, &brokers[0]);
            all.push(order);
        }
    }
    all
}

/// What is recorded once all of `brokers` have started, which is the same in any order.
fn after(records: &[GroupRecord], brokers: &[Held], is_replicated: bool) -> Vec<GroupRecord> {
    let mut found: Option<Vec<GroupRecord>> = None;
    for order in orders(brokers) {
        let mut now = records.to_vec();
        for held in order {
            let plan = plan(lane(0, is_replicated), now, held, &cut);
            now = plan.groups.into_values().collect();
            for record in &now {
                assert!(!record.copies.is_empty(), "{record:?}");
            }
        }
        now = at_last(now, is_replicated);
        let before = found.get_or_insert_with(|| now.clone());
        assert_eq!(seen(before), seen(&now));
    }
    found.expect("an order")
}

#[test]
fn what_one_broker_recorded_in_a_restore_that_ran_when_the_state_was_taken_can_grow() {
    // Brokers 2 and 3 had started when the older state was taken, and the owner, which has more, had not.
    let first = plan(
        lane(0, true),
        [],
        &held(2, &[open_file(4, (0, 17))], &[]),
        &cut,
    );
    let records: Vec<_> = first.groups.into_values().collect();
    let owner = held(1, &[open_file(4, (0, 37))], &[]);
    let again = |served| RestoredLane {
        restore: 2,
        served,
        ..lane(0, true)
    };
    let ends = |of| {
        let plan = plan(of, records.clone(), &owner, &cut);
        let groups = plan.groups.into_values();
        groups.map(|group| group.end_ordinal).collect::<Vec<_>>()
    };
    assert_eq!(ends(again(0)), [37]);
    assert_eq!(ends(again(1)), [17], "others have appended behind it since");
}

#[test]
fn what_compaction_made_since_takes_the_place_of_what_it_was_made_of() {
    let all = [1, 2, 3];
    let records = [
        closed(1, (0, 10), &all),
        closed(2, (10, 20), &all),
        open(3, Some(20), &all),
    ];
    // Groups 4 and 5 were closed since, and compacted with the others.
    let files = [file((5, 1), (0, 50)), open_file(105, (50, 60))];
    let brokers = all.map(|id| held(id, &files, &[]));
    let found = after(&records, &brokers, true);
    let all = all.to_vec();
    assert_eq!(
        seen(&found),
        [(5, 1, 0, 50, all.clone()), (105, 0, 50, 60, all)]
    );
    assert!(found.iter().all(GroupRecord::holds_records));
    // Once more: compacted with a later one, while a broker was down.
    let brokers = [
        held(1, &[file((5, 1), (0, 50))], &[]),
        held(2, &[file((105, 2), (0, 60))], &[]),
        held(3, &[file((105, 2), (0, 60))], &[]),
    ];
    let found = after(&records, &brokers, true);
    assert_eq!(seen(&found), [(105, 2, 0, 60, vec![2, 3])]);
}

#[test]
fn what_compaction_made_and_nobody_recorded_is_of_no_use() {
    let records = [closed(1, (0, 10), &[1, 2]), closed(2, (10, 20), &[1, 2])];
    let files = [file((2, 1), (0, 20))];
    let brokers = [held(1, &files, &[1, 2]), held(2, &[], &[1, 2])];
    let found = after(&records, &brokers, true);
    assert_eq!(found, records);
    let plan = plan(lane(0, true), found, &brokers[0], &cut);
    assert_eq!(plan.spare, [(GroupId(2), 1)]);
}

#[test]
fn groups_that_were_trimmed_since_go_and_later_ones_are_recorded() {
    let records = [
        closed(1, (0, 10), &[1, 2, 3]),
        closed(2, (10, 20), &[1, 2]),
        closed(3, (20, 30), &[2, 3]),
    ];
    let files = [file((200, 0), (40, 50)), open_file(201, (50, 60))];
    let brokers = [
        held(1, &files, &[]),
        held(2, &files, &[]),
        held(3, &[], &[]),
    ];
    let found = after(&records, &brokers, true);
    let both = vec![1, 2];
    assert_eq!(
        seen(&found),
        [(200, 0, 40, 50, both.clone()), (201, 0, 50, 60, both)]
    );
    // Retention goes by the times of their records, as before.
    let newest = found.iter().map(|record| record.max_timestamp_ms);
    assert_eq!(newest.collect::<Vec<_>>(), [3, 3]);
    // One of them has not started, and may have what is recorded there.
    let found = after(&records, &brokers[..2], true);
    let found = seen(&found);
    assert_eq!(found[0], (1, 0, 0, 10, vec![3]));
    assert_eq!(found.len(), 5);
    // One has the second group still: what lies before it goes.
    let brokers = [
        held(1, &files, &[2]),
        held(2, &files, &[]),
        held(3, &[], &[]),
    ];
    let found = seen(&after(&records, &brokers, true));
    assert_eq!(found[0], (2, 0, 10, 20, vec![1]), "{found:?}");
    // The third is between two that are there: that is a loss, for people to decide about.
    assert_eq!(found[1].0, 3);
    assert_eq!(found.len(), 4);
}

#[test]
fn a_lane_of_which_nothing_is_left_says_where_it_goes_on() {
    let records = [closed(1, (0, 10), &[1, 2]), closed(2, (10, 20), &[1, 2])];
    let brokers = [held(1, &[], &[]), held(2, &[], &[])];
    let found = after(&records, &brokers, true);
    assert_eq!(found.len(), 1);
    assert!(found[0].is_given_up() && !found[0].holds_records());
    assert_eq!(found[0].next_ordinal, 20);
    // It comes to light after all.
    let late = held(3, &[file((2, 0), (10, 20))], &[]);
    let plan = plan(lane(0, true), found, &late, &cut);
    let left: Vec<_> = plan.groups.into_values().collect();
    assert_eq!(seen(&left), [(2, 0, 10, 20, vec![3])]);
    assert!(left[0].holds_records());
}

#[test]
fn without_other_replicas_the_owner_decides_alone() {
    let records = [closed(1, (0, 10), &[1]), open(2, Some(10), &[1])];
    let owner = held(1, &[file((9, 0), (30, 40))], &[]);
    let found = after(&records, &[owner], false);
    assert_eq!(seen(&found), [(9, 0, 30, 40, vec![1])]);
    // What may be a loss stays as it is recorded.
    let owner = held(1, &[], &[1]);
    let found = after(&records, &[owner], false);
    assert_eq!(found, records);
}

#[test]
fn a_group_ends_where_a_later_one_begins() {
    // Broker 1 was deposed with records that nobody acknowledged; another closed its group at 15.
    let deposed = [open_file(7, (10, 30)), open_file(8, (30, 40))];
    let later = [file((107, 0), (15, 25)), open_file(207, (25, 35))];
    let brokers = [
        held(1, &deposed, &[1]),
        held(2, &[&[file((7, 0), (10, 15))], &later[..]].concat(), &[1]),
    ];
    let records = [closed(1, (0, 10), &[1, 2])];
    let found = after(&records, &brokers, true);
    let places: Vec<_> = seen(&found).into_iter().map(|s| (s.0, s.2, s.3)).collect();
    assert_eq!(
        places,
        [(1, 0, 10), (7, 10, 15), (107, 15, 25), (207, 25, 35)]
    );
    // It is cut where nobody has the shorter one.
    let brokers = [held(1, &[&deposed[..], &later[..]].concat(), &[1])];
    let places: Vec<_> = seen(&after(&records, &brokers, true))
        .into_iter()
        .map(|s| (s.0, s.2, s.3))
        .collect();
    assert_eq!(
        places,
        [(1, 0, 10), (7, 10, 15), (107, 15, 25), (207, 25, 35)]
    );
}

#[test]
fn of_an_unknown_group_the_longest_replica_counts() {
    let brokers = [
        held(1, &[open_file(7, (0, 10))], &[]),
        held(2, &[open_file(7, (0, 20))], &[]),
        held(3, &[open_file(7, (0, 20))], &[]),
    ];
    let found = after(&[], &brokers, true);
    assert_eq!(seen(&found), [(7, 0, 0, 20, vec![2, 3])]);
}

#[test]
fn where_the_older_state_has_a_group_as_closed_it_ends() {
    // Broker 3 was deposed with records that nobody acknowledged, and nothing was appended since.
    let records = [closed(3, (20, 30), &[1, 2])];
    let brokers = [
        held(1, &[], &[3]),
        held(3, &[open_file(3, (20, 40))], &[]),
        held(2, &[], &[3]),
    ];
    assert_eq!(after(&records, &brokers, true), records);
}

#[test]
fn of_two_files_that_compaction_gave_one_name_all_brokers_take_the_same() {
    let longer = file((5, 1), (0, 50));
    let shorter = Holding {
        length: longer.length - BYTES,
        ..longer.clone()
    };
    let brokers = [
        held(1, &[shorter], &[]),
        held(2, std::slice::from_ref(&longer), &[]),
        held(3, std::slice::from_ref(&longer), &[]),
    ];
    let found = after(&[], &brokers, true);
    assert_eq!(seen(&found), [(5, 1, 0, 50, vec![2, 3])]);
    assert_eq!(found[0].length, longer.length);
}

#[test]
fn a_group_that_was_closed_since_is_closed() {
    let records = [open(3, Some(20), &[1, 2])];
    let brokers = [
        held(1, &[file((3, 0), (20, 30))], &[]),
        held(2, &[file((3, 0), (20, 30))], &[]),
    ];
    let found = after(&records, &brokers, true);
    assert!(found[0].is_closed());
    assert_eq!(seen(&found), [(3, 0, 20, 30, vec![1, 2])]);
    // One that is open still is left to who takes it over.
    let brokers = [held(1, &[open_file(3, (20, 30))], &[])];
    assert_eq!(after(&records, &brokers, true), records);
}

#[test]
fn what_was_gone_before_the_older_state_was_taken_stays_gone() {
    // Trimmed up to 80, and the group that goes on there is recorded ahead: nobody knows yet where it begins.
    let found = vec![open(5, None, &[1, 2])];
    let files = [file((3, 0), (0, 50)), file((4, 0), (50, 80))];
    let held_by = held(1, &files, &[]);
    let planned = plan(lane(80, true), found.clone(), &held_by, &cut);
    assert_eq!(planned.groups.into_values().collect::<Vec<_>>(), found);
    assert_eq!(planned.spare.len(), 2);
    // One that a former owner made longer reaches beyond the start; it was removed before the open one was recorded.
    let longer = held(1, &[file((4, 0), (50, 95))], &[]);
    let planned = plan(lane(80, true), found.clone(), &longer, &cut);
    assert_eq!(planned.groups.into_values().collect::<Vec<_>>(), found);
    // Below the start none comes back, whatever is recorded behind it.
    let found = vec![closed(6, (80, 90), &[1])];
    let held_by = held(1, &files, &[6]);
    let planned = plan(lane(80, true), found.clone(), &held_by, &cut);
    assert_eq!(planned.groups.into_values().collect::<Vec<_>>(), found);
}

#[test]
fn the_lowest_start_of_all_later_groups_ends_one() {
    let records = [
        closed(5, (0, 30), &[1]),
        closed(6, (30, 40), &[1]),
        closed(105, (15, 50), &[2]),
        closed(106, (50, 60), &[2]),
    ];
    let found: Vec<_> = overlaps(&records)
        .into_iter()
        .map(|(record, to)| (record.group.0, to))
        .collect();
    assert_eq!(found, [(6, 15), (5, 15)]);
    assert!(overlaps(&records[2..]).is_empty());
}

#[test]
fn what_an_earlier_restore_went_on_without_does_not_come_back() {
    const JUMP: u64 = 1 << 32;
    let of = |records: &[GroupRecord]| -> Vec<_> {
        let found = overlaps(records).into_iter();
        found.map(|(record, to)| (record.group.0, to)).collect()
    };
    // The lane had ended at 25 when ordinals jumped.
    for jumps in [1, 16] {
        let (from, to) = (jumps * JUMP + 25, jumps * JUMP + 60);
        let records = [
            closed(5, (0, 20), &[1]),
            closed(6, (20, 30), &[1]),
            closed(7, (30, 40), &[2]),
            closed(105, (from, to), &[2]),
        ];
        assert_eq!(of(&records), [(7, 25), (6, 25)]);
        assert!(of(&records[..3]).is_empty() && of(&records[3..]).is_empty());
    }
    // At 40: nothing more is there, or less.
    let behind = closed(105, (JUMP + 40, JUMP + 60), &[2]);
    for end in [40, 33] {
        assert_eq!(of(&[closed(7, (30, end), &[2]), behind.clone()]), []);
    }
    // What is missing before a later group is no jump.
    assert_eq!(
        of(&[closed(7, (30, 40), &[2]), closed(9, (70, 80), &[2])]),
        []
    );
}

#[test]
fn what_does_not_fit_or_is_not_whole_changes_nothing() {
    let records = [closed(1, (0, 10), &[1]), closed(2, (10, 20), &[2])];
    // Compaction has not finished it.
    let unfinished = Holding {
        is_closed: false,
        ..file((2, 1), (0, 20))
    };
    // It is of the same epoch as what it overlaps.
    let odd = file((3, 0), (15, 30));
    let brokers = [held(1, &[unfinished, odd], &[1])];
    assert_eq!(after(&records, &brokers, true), records);
    // What compaction made is there, and cannot be read: nobody knows what it has.
    let torn = Held {
        is_torn: true,
        ..held(1, &[], &[])
    };
    assert_eq!(after(&records, &[torn], true), records);
}

/// A lane as it went on after the older state, and what each of three brokers has.
#[derive(Default)]
struct History {
    random: u64,
    /// What counts: oldest first, with the brokers that have it.
    groups: Vec<(Holding, Vec<u32>)>,
    files: [Vec<Holding>; 3],
    next: (u64, u64),
    /// Where groups that counted at any time ended.
    ends: BTreeMap<(GroupId, u32), Ordinal>,
}

impl History {
    fn roll(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005);
        self.random = self.random.wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below
    }

    fn drop_files(&mut self, group: GroupId, generation: u32, brokers: &[u32]) {
        for broker in brokers {
            let files = &mut self.files[*broker as usize - 1];
            files.retain(|one| one.name() != (group, generation));
        }
    }

    fn put_files(&mut self, one: &Holding, brokers: &[u32]) {
        for broker in brokers {
            self.files[*broker as usize - 1].push(one.clone());
        }
    }

    fn two(&mut self) -> Vec<u32> {
        let without = 1 + self.roll(3) as u32;
        (1..=3).filter(|id| *id != without).collect()
    }

    fn append(&mut self) {
        let (id, first) = self.next;
        let end = first + 5 * (1 + self.roll(4));
        let one = file((id, 0), (first, end));
        let brokers = self.two();
        self.put_files(&one, &brokers);
        if self.roll(3) == 0 {
            // The third one fell out of its set.
            let third = 6 - brokers[0] - brokers[1];
            self.put_files(&open_file(id, (first, first + 5)), &[third]);
        }
        self.ends.insert(one.name(), one.end);
        self.groups.push((one, brokers));
        self.next = (id + 1, end);
    }

    /// The owner is deposed: it has written more, of this group or of one that nobody has recorded.
    fn fail_over(&mut self) {
        let (id, first) = self.next;
        let more = first + 5 * (1 + self.roll(3));
        let deposed = 1 + self.roll(3) as u32;
        match self.groups.last().cloned() {
            Some((one, brokers)) if one.generation == 0 && self.roll(2) == 0 => {
                self.drop_files(one.group, 0, &[deposed]);
                self.put_files(&open_file(one.group.0, (one.first, more)), &[deposed]);
                let left = brokers.into_iter().filter(|id| *id != deposed);
                let at = self.groups.len() - 1;
                self.groups[at].1 = left.collect();
            }
            _ => self.put_files(&open_file(id, (first, more)), &[deposed]),
        }
        self.next.0 = (id / 100 + 1) * 100;
        // A new owner appends.
        self.append();
    }

    fn compact(&mut self) {
        let Some(most) = self.groups.len().checked_sub(2) else {
            return;
        };
        let from = self.roll(most as u64 + 1) as usize;
        let to = from + 1 + self.roll((self.groups.len() - from) as u64) as usize;
        let run: Vec<_> = self.groups[from..to].to_vec();
        let (last, _) = run[run.len() - 1].clone();
        let name = (last.group.0, last.generation + 1);
        let one = Holding {
            epoch: last.epoch,
            ..file(name, (run[0].0.first, last.end))
        };
        let brokers = self.two();
        self.put_files(&one, &brokers);
        for (source, brokers) in run {
            self.drop_files(source.group, source.generation, &brokers);
        }
        self.ends.insert(one.name(), one.end);
        self.groups.splice(from..to, [(one, brokers)]);
    }

    fn trim(&mut self) {
        let trimmed = self.roll(1 + self.groups.len() as u64) as usize;
        for (one, brokers) in self.groups.drain(..trimmed).collect::<Vec<_>>() {
            self.drop_files(one.group, one.generation, &brokers);
        }
    }

    fn go_on(&mut self) {
        match self.roll(8) {
            0 | 1 => self.fail_over(),
            2 | 3 => self.compact(),
            4 => self.trim(),
            _ => self.append(),
        }
    }

    fn records(&self) -> Vec<GroupRecord> {
        let records = self.groups.iter().map(|(one, brokers)| {
            let record = closed(one.group.0, (one.first, one.end), brokers);
            GroupRecord {
                generation: one.generation,
                epoch: one.epoch,
                ..record
            }
        });
        records.collect()
    }
}

/// What is recorded after so many of a broker's changes, one by one; all of them for none.
fn after_changes(records: Vec<GroupRecord>, held: &Held, most: Option<usize>) -> Vec<GroupRecord> {
    let plan = plan(lane(0, true), records.clone(), held, &cut);
    let mut changes = Changes::default();
    changes.of(&records.iter().collect::<Vec<_>>(), &plan);
    let mut now: BTreeMap<_, _> = records.into_iter().map(|r| (r.group, r)).collect();
    let parts = changes.parts(1);
    for (_, write) in parts.into_iter().flatten().take(most.unwrap_or(usize::MAX)) {
        match write {
            Write::PutGroup(record) => drop(now.insert(record.group, record)),
            Write::DeleteGroup(key) => drop(now.remove(&key.group)),
            other => panic!("{other:?}"),
        }
    }
    if most.is_none() {
        let now: Vec<_> = now.values().cloned().collect();
        let planned: Vec<_> = plan.groups.into_values().collect();
        assert_eq!(seen(&now), seen(&planned));
    }
    now.into_values().collect()
}

#[test]
fn whatever_happened_since_what_counted_is_recorded_and_nothing_else_in_its_place() {
    for seed in 0..4000 {
        let mut history = History {
            random: seed,
            ..History::default()
        };
        for _ in 0..history.roll(6) {
            history.go_on();
        }
        let mut records = history.records();
        for _ in 0..history.roll(8) {
            history.go_on();
        }
        let mut brokers: Vec<u32> = vec![1, 2, 3];
        let first = history.roll(3) as usize;
        brokers.rotate_left(first);
        if history.roll(2) == 0 {
            brokers.swap(0, 1);
        }
        for id in brokers {
            // Some end within their changes, and start again; others are done before that.
            let (ends, at) = (1 + history.roll(5) as u32, history.roll(6) as usize);
            for (id, most) in [(ends, Some(at)), (id, None)] {
                if id <= 3 {
                    let held = held(id, &history.files[id as usize - 1], &[]);
                    records = after_changes(records, &held, most);
                }
            }
        }
        // As who takes it over does, with what a holder has.
        records = at_last(records, true);
        for (record, to) in overlaps(&records) {
            let mut ended = record.clone();
            ended.end_ordinal = to;
            let at = records.iter().position(|one| one.group == record.group);
            records[at.expect("it is there")] = ended;
        }
        let now = seen(&records);
        let counts: Vec<_> = records.iter().filter(|r| r.holds_records()).collect();
        for pair in counts.windows(2) {
            let (one, next) = (pair[0], pair[1]);
            assert!(one.end_ordinal <= next.start_ordinal(), "{seed}: {now:?}");
        }
        for (one, brokers) in history.groups.iter().filter(|(_, b)| !b.is_empty()) {
            let mut at = one.first;
            for record in counts.iter().filter(|r| r.start_ordinal() < one.end) {
                if record.end_ordinal <= at {
                    continue;
                }
                assert_eq!(record.start_ordinal(), at, "{seed}: {one:?} of {now:?}");
                let name = (record.group, record.generation);
                let end = history.ends.get(&name);
                assert_eq!(end, Some(&record.end_ordinal), "{seed}: {name:?}");
                // Those that it was made of are as good, if all of them are there.
                let is_of = name <= one.name() && record.end_ordinal <= one.end;
                assert!(is_of, "{seed}: {name:?} for {:?}", one.name());
                at = record.end_ordinal;
                let mut holders = record.copies.iter().map(|copy| copy.broker.0);
                if name == one.name() {
                    assert!(holders.any(|id| brokers.contains(&id)), "{seed}: {name:?}");
                }
            }
            assert_eq!(at, one.end, "{seed}: {one:?} of {now:?}");
        }
    }
}

#[test]
fn a_broker_that_was_given_a_group_after_its_end_has_all_of_it() {
    // The older state has it open at others, all of which have freed it since.
    let records = [closed(1, (0, 20), &[4]), open(3, Some(20), &[1, 2])];
    let holder = held(4, &[open_file(3, (20, 30))], &[1]);
    let found = after(&records, &[holder], true);
    assert!(found[1].is_closed());
    let found = after(&found, &[1, 2].map(|id| held(id, &[], &[])), true);
    assert_eq!(seen(&found)[1], (3, 0, 20, 30, vec![4]));
}

#[test]
fn a_store_of_which_memory_is_gone_still_tells_what_it_has_freed() {
    let records = [closed(1, (0, 10), &[1, 2]), closed(2, (10, 20), &[1, 2])];
    let files = [file((200, 0), (40, 50))];
    let rebooted = |id: u32, freed: &[u64]| Held {
        stores: vec![Uuid::from_u128(100 + u128::from(id))],
        removed: freed.iter().copied().map(GroupId).collect(),
        ..held(id, &files, &[])
    };
    let brokers = [rebooted(1, &[1, 2]), rebooted(2, &[1, 2])];
    let found = seen(&after(&records, &brokers, true));
    assert_eq!(found, [(200, 0, 40, 50, vec![1, 2])]);
    // One of them has lost the second one: that may have been acknowledged.
    let brokers = [rebooted(1, &[1, 2]), rebooted(2, &[1])];
    let found = seen(&after(&records, &brokers, true));
    assert_eq!(found[0], (2, 0, 10, 20, vec![2]));
}

#[test]
fn a_lane_goes_on_behind_what_was_trimmed_though_a_group_is_open_behind_it() {
    let records = [
        closed(1, (0, 10), &[1, 2]),
        closed(2, (10, 20), &[1, 2]),
        open(3, None, &[1, 2]),
    ];
    let brokers = [held(1, &[], &[]), held(2, &[], &[])];
    let found = after(&records, &brokers, true);
    assert_eq!(found.len(), 2);
    assert!(found[0].is_given_up() && found[0].next_ordinal == 20);
    // Broker 2 has what followed: that says it, in any order of starts.
    let brokers = [held(1, &[], &[]), held(2, &[file((200, 0), (40, 50))], &[])];
    let found = seen(&after(&records, &brokers, true));
    let ids: Vec<_> = found.iter().map(|one| one.0).collect();
    assert_eq!(ids, [3, 200]);
}

#[test]
fn a_group_that_has_moved_off_all_its_holders_is_kept_whoever_starts_first() {
    // Brokers 1 to 3 had the first group, and have given it to broker 4; behind it the older state has one open.
    let all = [1, 2, 3];
    let records = [closed(1, (0, 10), &all), open(3, Some(10), &all)];
    let mut brokers = Vec::from(all.map(|id| held(id, &[open_file(3, (10, 20))], &[])));
    brokers.push(held(4, &[open_file(1, (0, 10))], &[]));
    let found = after(&records, &brokers, true);
    assert_eq!(seen(&found)[0], (1, 0, 0, 10, vec![4]));
    // Nobody has it.
    brokers.pop();
    let found = after(&records, &brokers, true);
    assert!(is_trimmed(&found[0]));
}

#[path = "restore_plan_hole_tests.rs"]
mod of_holes;
#[path = "restore_plan_open_tests.rs"]
mod of_open_groups;
