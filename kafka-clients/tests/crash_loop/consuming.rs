//! Members of a consumer group, which come and go.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use kera_history::{Event, LeaseRef, payload};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance};
use rdkafka::message::{BorrowedMessage, Message};
use rdkafka::{ClientContext, Offset, TopicPartitionList};

use crate::world::{GROUP, READERS, TOPIC, World, hashed, lane};

/// Partitions that a member holds: under which lease of the history, and what is next.
type Held = HashMap<i32, (u64, i64)>;

/// Hears of partitions that come and go.
struct Watch {
    world: World,
    held: Mutex<Held>,
    /// It leaves without committing: what it read comes again.
    vanishes: AtomicBool,
}

impl ClientContext for Watch {}

impl ConsumerContext for Watch {
    fn pre_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Revoke(_) = rebalance {
            self.commit(consumer);
            self.end();
        }
    }
}

impl Watch {
    /// Commits what was read so far. Refused where the group has gone on without this member.
    fn commit(&self, consumer: &BaseConsumer<Self>) {
        let held = self.held.lock().expect("no member panicked").clone();
        if held.is_empty() || self.vanishes.load(Ordering::SeqCst) {
            return;
        }
        let mut list = TopicPartitionList::new();
        for (partition, (_, next)) in &held {
            let next = Offset::Offset(*next);
            list.add_partition_offset(TOPIC, *partition, next)
                .expect("an offset");
        }
        let asked = self.world.recorder().now();
        if consumer.commit(&list, CommitMode::Sync).is_ok() {
            let events = held.values().map(|(lease, next)| Event::Committed {
                lease: LeaseRef {
                    group: READERS,
                    lease: *lease,
                },
                ordinal: *next as u64,
                asked,
            });
            self.world.recorder().record_all(events);
        }
    }

    fn end(&self) {
        let mut held = self.held.lock().expect("no member panicked");
        let ended = held.drain().map(|(_, (lease, _))| Event::LeaseEnded {
            lease: LeaseRef {
                group: READERS,
                lease,
            },
        });
        self.world.recorder().record_all(ended);
    }

    fn read(&self, number: u32, message: &BorrowedMessage<'_>) {
        let (partition, offset) = (message.partition(), message.offset());
        let mut held = self.held.lock().expect("no member panicked");
        let mut events = Vec::new();
        let entry = held.entry(partition).or_insert_with(|| {
            // Where a member starts shows in the first record it gets.
            let lease = self.world.next_lease();
            events.push(Event::LeaseGranted {
                lease: LeaseRef {
                    group: READERS,
                    lease,
                },
                member: number,
                lane: lane(partition),
                start: offset as u64,
                end: None,
            });
            (lease, offset)
        });
        entry.1 = offset + 1;
        events.push(Event::Read {
            consumer: number,
            lease: Some(LeaseRef {
                group: READERS,
                lease: entry.0,
            }),
            lane: lane(partition),
            ordinal: offset as u64,
            record: message
                .payload()
                .and_then(|value| payload::decode(value).ok()),
            key: message.key().map(hashed),
            head: None,
        });
        self.world.recorder().record_all(events);
    }
}

struct Member {
    leave: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// All members of a run.
pub struct Members {
    members: Vec<Member>,
    next_seed: u64,
}

impl Members {
    pub fn start(world: &World, seed: u64) -> Self {
        let mut members = Self {
            members: Vec::new(),
            next_seed: seed,
        };
        for _ in 0..2 {
            members.add(world);
        }
        members
    }

    fn add(&mut self, world: &World) {
        self.next_seed = self.next_seed.wrapping_add(0x1000);
        let rng = StdRng::seed_from_u64(self.next_seed);
        let leave = Arc::new(AtomicBool::new(false));
        let thread = {
            let (world, leave) = (world.clone(), leave.clone());
            std::thread::spawn(move || run(&world, rng, &leave))
        };
        self.members.push(Member { leave, thread });
    }

    /// The oldest member goes, another comes.
    pub fn change(&mut self, world: &World) {
        let gone = self.members.remove(0);
        gone.leave.store(true, Ordering::SeqCst);
        gone.thread.join().expect("members do not panic");
        self.add(world);
    }

    /// Ends all of them.
    pub fn finish(self) {
        for member in &self.members {
            member.leave.store(true, Ordering::SeqCst);
        }
        for member in self.members {
            member.thread.join().expect("members do not panic");
        }
    }
}

fn run(world: &World, mut rng: StdRng, leave: &AtomicBool) {
    let number = world.next_consumer();
    let consumer: BaseConsumer<Watch> = world
        .config()
        .set("group.id", GROUP)
        .set("client.id", format!("member-{number}"))
        .set("session.timeout.ms", "1000")
        .set("heartbeat.interval.ms", "100")
        .set("partition.assignment.strategy", "range")
        .set("enable.auto.commit", "false")
        // An offset out of range would be a loss.
        .set("auto.offset.reset", "earliest")
        .set("fetch.wait.max.ms", "100")
        .create_with_context(Watch {
            world: world.clone(),
            held: Mutex::new(HashMap::new()),
            vanishes: AtomicBool::new(false),
        })
        .expect("a consumer can be made");
    consumer.subscribe(&[TOPIC]).expect("a topic can be named");
    let mut since_commit = 0;
    while !leave.load(Ordering::SeqCst) {
        match consumer.poll(Duration::from_millis(50)) {
            Some(Ok(message)) => {
                consumer.context().read(number, &message);
                since_commit += 1;
                if since_commit < 500 || rng.random_bool(0.9) {
                    continue;
                }
            }
            // Errors of the time without a broker pass by themselves.
            Some(Err(_)) => continue,
            None if since_commit == 0 => continue,
            None => {}
        }
        since_commit = 0;
        consumer.context().commit(&consumer);
    }
    // Half of them vanish with their work uncommitted.
    let vanishes = rng.random_bool(0.5);
    consumer
        .context()
        .vanishes
        .store(vanishes, Ordering::SeqCst);
    consumer.context().commit(&consumer);
    consumer.context().end();
}
