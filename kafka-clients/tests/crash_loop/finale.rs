//! The end of a run: the group reads to the end, and everything is read once more.

use std::time::{Duration, Instant};

use kera_history::{Event, Reader, payload};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Message;
use rdkafka::{Offset, TopicPartitionList};

use crate::common::librdkafka::passes;
use crate::common::{PATIENCE, pause};
use crate::world::{GROUP, PARTITIONS, READERS, TOPIC, World, hashed, lane};

const CALL: Duration = Duration::from_secs(20);

/// A consumer that only asks.
fn observer(world: &World, group: &str) -> BaseConsumer {
    world
        .config()
        .set("group.id", group)
        .set("enable.auto.commit", "false")
        .set("auto.offset.reset", "error")
        .create()
        .expect("a consumer can be made")
}

/// The first offset of a partition and the next. What is known of its leader may be old: the client does
/// not look it up again by itself for this, so it is told to.
fn watermarks(observer: &BaseConsumer, partition: i32) -> Result<(i64, i64), String> {
    let begin = Instant::now();
    loop {
        match observer.fetch_watermarks(TOPIC, partition, CALL) {
            Ok(found) => return Ok(found),
            Err(error) if begin.elapsed() > PATIENCE => return Err(format!("watermarks: {error}")),
            Err(_) => {
                let _looked_up = observer.fetch_metadata(Some(TOPIC), CALL);
                pause();
            }
        }
    }
}

/// Waits until the group has committed everything; records what the broker says then.
pub fn drain(world: &World) -> Result<(), String> {
    let observer = observer(world, GROUP);
    let begin = Instant::now();
    loop {
        let asked = world.recorder().now();
        let mut list = TopicPartitionList::new();
        for partition in 0..PARTITIONS {
            list.add_partition(TOPIC, partition);
        }
        let committed = match observer.committed_offsets(list, CALL) {
            Ok(committed) => committed,
            // The coordinator has just changed: the client looks for it again, but says so first.
            Err(_) if begin.elapsed() < PATIENCE => {
                pause();
                continue;
            }
            Err(error) => return Err(format!("committed offsets: {error}")),
        };
        let mut behind = 0;
        let mut drained = Vec::new();
        for each in committed.elements() {
            let head = watermarks(&observer, each.partition())?.1;
            let Offset::Offset(offset) = each.offset() else {
                behind += i64::from(head > 0);
                continue;
            };
            world.recorder().record(Event::CommitObserved {
                group: READERS,
                lane: lane(each.partition()),
                ordinal: offset as u64,
                asked,
            });
            behind += head - offset;
            drained.push(Event::Drained {
                reader: Reader::Group(READERS),
                lane: lane(each.partition()),
                ordinal: head as u64,
            });
        }
        if behind == 0 {
            world.recorder().record_all(drained);
            return Ok(());
        }
        if begin.elapsed() > PATIENCE {
            return Err(format!(
                "the group did not read to the end: {behind} behind"
            ));
        }
        pause();
    }
}

/// Reads all partitions without a group, from their first record to their last.
pub fn read_everything(world: &World) {
    let number = world.next_consumer();
    let consumer = observer(world, "everything");
    for partition in 0..PARTITIONS {
        let asked = world.recorder().now();
        let (low, head) = watermarks(&consumer, partition).expect("they are told");
        assert_eq!(low, 0, "nothing was deleted");
        world.recorder().record(Event::HeadObserved {
            lane: lane(partition),
            head: head as u64,
            asked,
        });
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(TOPIC, partition, Offset::Beginning)
            .expect("an offset");
        consumer.assign(&list).expect("a partition can be assigned");
        let begin = Instant::now();
        let mut next = 0;
        while next < head {
            assert!(begin.elapsed() < PATIENCE, "{next} of {head} were read");
            let message = match consumer.poll(CALL) {
                Some(Ok(message)) => message,
                // A connection that breaks now is no loss: what follows is read over the next.
                Some(Err(error)) if passes(&error) => continue,
                Some(Err(error)) => {
                    world.complain(format!("partition {partition} cannot be read: {error}"));
                    return;
                }
                None => continue,
            };
            next = message.offset() + 1;
            world.recorder().record(Event::Read {
                consumer: number,
                lease: None,
                lane: lane(partition),
                ordinal: message.offset() as u64,
                record: message
                    .payload()
                    .and_then(|value| payload::decode(value).ok()),
                key: message.key().map(hashed),
                head: Some(head as u64),
            });
        }
        world.recorder().record(Event::Drained {
            reader: Reader::Consumer(number),
            lane: lane(partition),
            ordinal: head as u64,
        });
    }
}
