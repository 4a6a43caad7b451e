//! A primary's process that is killed in the middle of writing.

use std::collections::{BTreeSet, VecDeque};
use std::io::BufRead;
use std::sync::Arc;

use kera_protocol::ids::{Epoch, GroupId, LaneId};
use kera_records::{Compare, GroupRecord, GroupState, Transaction, Write};
use kera_replication::ids::{BrokerId, CopyId, Incarnation, Replica, StreamletKey};
use kera_replication::primary::{Config, Shape};
use kera_replication::records::{MemoryRecords, Records, RecordsError, StreamletRecords};
use kera_replication::transport::Pending;

use crate::child::{Backup, start};
use crate::machine;
use crate::owner::Owner;
use crate::suite::scenario::streamlet;
use crate::suite::test_group::TestGroup;

const PEERS: &str = "KERA_TEST_OWNER_PEERS";
const KILLED: BrokerId = BrokerId(9);
/// It is killed after so many acknowledgements, with as many appends under way as it likes.
const ACKNOWLEDGED: usize = 2000;
const UNDER_WAY: u64 = 40;
/// Ends often, so that it is killed among opens and closes too.
const SHAPE: Shape = Shape {
    segment_size: 8 << 10,
    segments: 4,
};

/// The process itself; without the variable it is no test of anything. Batches have one record each,
/// so that a batch's id is its ordinal.
#[test]
fn write_until_killed() {
    let Ok(peers) = std::env::var(PEERS) else {
        return;
    };
    let peers: Vec<_> = peers
        .split(',')
        .map(|peer| {
            let (id, address) = peer.split_once('@').expect("ID@ADDRESS");
            (BrokerId(id.parse().expect("a number")), address.to_owned())
        })
        .collect();
    machine::runtime().block_on(async {
        let records = MemoryRecords::default();
        records.create(streamlet());
        let records = Arc::new(Told(Arc::new(records)));
        let config = Config::default();
        let mut owner = Owner::take(KILLED, &peers, records, config, SHAPE).await;
        println!("\nepoch {}", owner.recovered.epoch);
        let mut under_way = VecDeque::new();
        for id in 0.. {
            under_way.push_back((id, owner.append(id)));
            if under_way.len() as u64 > UNDER_WAY
                && let Some((id, appended)) = under_way.pop_front()
            {
                let acknowledged = owner.acknowledged(&appended).await;
                acknowledged.expect("all is well");
                println!("acked {id}");
            }
        }
    });
}

/// Records that say what is asked of them, so that they outlive the process.
struct Told(Arc<MemoryRecords>);

impl Records for Told {
    fn try_commit(&self, transaction: Transaction) -> Pending<Result<u64, RecordsError>> {
        let records = self.0.clone();
        Box::pin(async move {
            println!("commit {}", encode(&transaction));
            records.try_commit(transaction).await
        })
    }

    fn try_read(&self, streamlet: StreamletKey) -> Pending<Result<StreamletRecords, RecordsError>> {
        self.0.try_read(streamlet)
    }

    fn try_take_epoch(
        &self,
        streamlet: StreamletKey,
        owner: BrokerId,
    ) -> Pending<Result<(Epoch, u64), RecordsError>> {
        self.0.try_take_epoch(streamlet, owner)
    }
}

fn encode(transaction: &Transaction) -> String {
    let compared = transaction.compare.iter().map(|compare| match compare {
        Compare::StreamletEpoch { epoch, .. } => epoch.to_string(),
        Compare::Revision { revision, .. } => revision.to_string(),
        other => panic!("records of groups do not compare {other:?}"),
    });
    let written = transaction.write.iter().map(|write| match write {
        Write::PutGroup(record) => {
            let first = record.first_ordinal.map_or("-".into(), |o| o.to_string());
            format!(
                "put,{},{},{},{},{first},{},{},{},{}",
                record.group,
                record.lane,
                record.epoch,
                u8::from(record.is_closed()),
                record.length,
                record.end_ordinal,
                record.next_ordinal,
                holders(&record.copies)
            )
        }
        Write::DeleteGroup(key) => format!("delete,{}", key.group),
        other => panic!("records of groups do not write {other:?}"),
    });
    let (compared, written): (Vec<_>, Vec<_>) = (compared.collect(), written.collect());
    format!("{} {}", compared.join(","), written.join(" "))
}

fn holders(holders: &[Replica]) -> String {
    let holders = holders.iter().map(|holder| {
        let Incarnation { store_id, boot_id } = &holder.incarnation;
        format!(
            "{}:{}:{}",
            holder.broker.0,
            store_id.simple(),
            boot_id.simple()
        )
    });
    holders.collect::<Vec<_>>().join("+")
}

fn decode(text: &str) -> Transaction {
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let mut words = text.split(' ');
    let mut compared = words.next().expect("comparisons").split(',').map(number);
    let epoch = Epoch(compared.next().expect("an epoch") as u32);
    let changes = words.zip(compared).map(|(change, revision)| {
        let fields: Vec<_> = change.split(',').collect();
        let key = streamlet().group(GroupId(number(fields[1])));
        match fields[0] {
            "put" => {
                let lane = LaneId(number(fields[2]) as u32);
                let record = GroupRecord {
                    state: match fields[4] {
                        "1" => GroupState::Closed,
                        _ => GroupState::Open,
                    },
                    first_ordinal: (fields[5] != "-").then(|| number(fields[5])),
                    length: number(fields[6]),
                    end_ordinal: number(fields[7]),
                    next_ordinal: number(fields[8]),
                    copies: read_holders(fields[9]),
                    revision,
                    ..GroupRecord::new(key, lane, Epoch(number(fields[3]) as u32))
                };
                record.put()
            }
            "delete" => Write::delete_group(key, revision),
            other => panic!("{other} is no change"),
        }
    });
    Transaction::of_groups(streamlet(), epoch, changes)
}

fn read_holders(text: &str) -> Vec<Replica> {
    let id = |hex: &str| hex.parse().expect("an id");
    let holders = text.split('+').filter(|holder| !holder.is_empty());
    holders
        .map(|holder| {
            let fields: Vec<_> = holder.split(':').collect();
            Replica {
                broker: BrokerId(fields[0].parse().expect("a number")),
                incarnation: Incarnation {
                    store_id: id(fields[1]),
                    boot_id: id(fields[2]),
                },
            }
        })
        .collect()
}

/// What the process said until it died.
#[derive(Default)]
struct Story {
    epoch: Option<Epoch>,
    commits: Vec<Transaction>,
    acknowledged: BTreeSet<u64>,
}

impl Story {
    fn hear(&mut self, line: &str) {
        let line = line.trim_end();
        let Some((word, rest)) = line.split_once(' ') else {
            return;
        };
        let number = || rest.parse::<u64>().expect("a number");
        match word {
            "epoch" => self.epoch = Some(Epoch(number() as u32)),
            "commit" => self.commits.push(decode(rest)),
            "acked" => {
                self.acknowledged.insert(number());
            }
            _ => {}
        }
    }
}

#[test]
fn a_primary_killed_while_it_writes_is_recovered() {
    let Some(address) = machine::address("a_primary_killed_while_it_writes_is_recovered") else {
        return;
    };
    let backups = Backup::three(address);
    let peers: Vec<_> = backups.iter().map(|b| (b.id, b.address.clone())).collect();
    let told: Vec<_> = peers
        .iter()
        .map(|(id, a)| format!("{}@{a}", id.0))
        .collect();
    let settings = [(PEERS, told.join(","))];
    let (mut process, output) = start("killed::write_until_killed", &settings);
    let mut story = Story::default();
    let mut lines = output.lines();
    while story.acknowledged.len() < ACKNOWLEDGED {
        let line = lines.next().expect("it goes on").expect("text");
        story.hear(&line);
    }
    process.kill();
    // What it said before it died was said; the last line may be cut short.
    let rest: Vec<_> = lines.map_while(Result::ok).collect();
    let whole = rest.len().saturating_sub(1);
    rest[..whole].iter().for_each(|line| story.hear(line));

    machine::runtime().block_on(async {
        let records = MemoryRecords::default();
        records.create(streamlet());
        let taken = records.try_take_epoch(streamlet(), KILLED).await;
        assert_eq!(taken.expect("an epoch").0, story.epoch.expect("an epoch"));
        for commit in &story.commits {
            // What failed there fails here.
            let _as_there = records.try_commit(commit.clone()).await;
        }
        let config = Config::default();
        let successor = BrokerId(8);
        let owner = Owner::take(successor, &peers, Arc::new(records), config, SHAPE).await;
        let lane = owner.recovered.lanes.first().expect("its lane");
        assert!(lane.gaps.is_empty(), "{:?}", lane.gaps);
        let mut next = 0;
        for closed in &lane.groups {
            let copy = &CopyId::of(closed);
            assert_eq!(closed.start_ordinal(), next, "{copy}");
            next = closed.end_ordinal;
            let wanted = appended(*copy, closed);
            assert!(closed.copies.len() >= 2, "{closed:?}");
            for holder in &closed.copies {
                let found = owner.read(holder.broker, *copy, wanted.len()).await;
                assert!(found == wanted, "{copy} differs at {}", holder.broker);
            }
        }
        assert_eq!(lane.next_ordinal, next);
        let last = story.acknowledged.last().expect("acknowledgements");
        assert!(*last < next, "{last} was acknowledged, and {next} is next");
        println!(
            "{} acknowledged, {next} recovered, {} groups",
            story.acknowledged.len(),
            lane.groups.len()
        );
    });
}

/// What was appended to a group that was closed so.
fn appended(copy: CopyId, closed: &GroupRecord) -> Vec<u8> {
    let source = TestGroup::with_shape(copy, LaneId(0), closed.start_ordinal(), SHAPE).shipped();
    for id in closed.start_ordinal()..closed.end_ordinal {
        source.append(id, 20).expect("it fitted there");
    }
    let bytes = source.bytes();
    assert_eq!(bytes.len() as u64, closed.length, "{copy}");
    bytes
}
