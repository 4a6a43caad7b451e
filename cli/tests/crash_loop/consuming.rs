//! Consumers in two groups, which come and go.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kera_consumer::{Batch, ConsumeError, Consumer, LeaseInfo, Order, Rebalance, Start};
use kera_history::{Event, LeaseRef, payload};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::world::{KEYED, ORDERED, SHARED, World, hashed};

/// Without batches for so long, what was read is committed.
const IDLE: Duration = Duration::from_millis(50);

struct Member {
    group: u32,
    leave: Arc<Notify>,
    task: JoinHandle<()>,
}

/// All consumers of a run.
pub struct Members {
    members: Vec<Member>,
    next_seed: u64,
}

impl Members {
    pub fn start(world: &World, seed: u64) -> Self {
        Self::of(world, seed, &[ORDERED, ORDERED, SHARED, SHARED, SHARED])
    }

    /// As [`start`](Self::start), with a consumer for each group that is named.
    pub fn of(world: &World, seed: u64, groups: &[u32]) -> Self {
        let mut members = Self {
            members: Vec::new(),
            next_seed: seed,
        };
        for group in groups {
            members.add(world, *group);
        }
        members
    }

    fn add(&mut self, world: &World, group: u32) {
        self.next_seed = self.next_seed.wrapping_add(0x1000);
        let rng = StdRng::seed_from_u64(self.next_seed);
        let leave = Arc::new(Notify::new());
        let task = tokio::spawn(run(world.clone(), group, rng, leave.clone()));
        self.members.push(Member { group, leave, task });
    }

    /// One consumer goes, another of its group comes; or one more joins.
    pub async fn change(&mut self, world: &World, rng: &mut StdRng) {
        let index = rng.random_range(0..self.members.len());
        let group = self.members[index].group;
        if rng.random_bool(0.7) || self.members.len() >= 10 {
            let gone = self.members.swap_remove(index);
            gone.leave.notify_one();
            gone.task.await.expect("consumers do not panic");
        }
        self.add(world, group);
    }

    /// Ends all of them.
    pub async fn finish(self) {
        for member in &self.members {
            member.leave.notify_one();
        }
        for member in self.members {
            member.task.await.expect("consumers do not panic");
        }
    }
}

/// A consumer under one number of the history, with what it has yet to commit.
struct Session {
    world: World,
    group: u32,
    number: u32,
    consumer: Consumer,
    /// By lease, the last batch that was read and not committed.
    uncommitted: HashMap<u64, Batch>,
}

async fn run(world: World, group: u32, mut rng: StdRng, leave: Arc<Notify>) {
    let Some(mut session) = Session::open(&world, group, &leave).await else {
        return;
    };
    loop {
        let next = tokio::select! {
            () = leave.notified() => break,
            next = timeout(IDLE, session.consumer.next_batch()) => next,
        };
        let result = match next {
            Err(_) => session.commit_all().await,
            Ok(Ok(batch)) => {
                session.note(&batch);
                if let Some(lease) = batch.lease() {
                    session.uncommitted.insert(lease, batch);
                }
                if rng.random_bool(0.1) {
                    session.commit_all().await
                } else {
                    Ok(())
                }
            }
            Ok(Err(error)) => session.judge(error),
        };
        if let Err(error) = result {
            world.complain(format!("consumer {} ended: {error}", session.number));
            break;
        }
    }
    // Half of them vanish with their work uncommitted.
    if rng.random_bool(0.5) && !world.is_stopping() {
        session.vanish();
    } else {
        session.close().await;
    }
}

impl Session {
    async fn open(world: &World, group: u32, leave: &Notify) -> Option<Self> {
        let number = world.next_consumer();
        let hook = {
            let world = world.clone();
            move |news: Rebalance<'_>| note_leases(&world, group, number, &news)
        };
        let opening = Consumer::builder()
            .bootstrap(world.address())
            .stream(World::stream_name(KEYED))
            .group(World::group_name(group))
            .order(if group == SHARED {
                Order::None
            } else {
                Order::Lane
            })
            .start(Start::Earliest)
            .session(Duration::from_secs(2))
            .range_bytes(8 << 10)
            .manual_commit()
            .retry(World::retry())
            .on_rebalance(hook)
            .open();
        let opened = tokio::select! {
            () = leave.notified() => return None,
            opened = opening => opened,
        };
        match opened {
            Ok(consumer) => Some(Self {
                world: world.clone(),
                group,
                number,
                consumer,
                uncommitted: HashMap::new(),
            }),
            Err(error) => {
                world.complain(format!("consumer {number} cannot join: {error}"));
                None
            }
        }
    }

    fn lease(&self, lease: u64) -> LeaseRef {
        LeaseRef {
            group: self.group,
            lease,
        }
    }

    fn note(&self, batch: &Batch) {
        let lane = self.world.lane(batch.lane());
        let lease = batch.lease().map(|lease| self.lease(lease));
        let mut events = Vec::with_capacity(batch.len() + 1);
        events.push(Event::Polled {
            consumer: self.number,
        });
        for record in batch.records() {
            match record {
                Ok(record) => events.push(Event::Read {
                    consumer: self.number,
                    lease,
                    lane,
                    ordinal: record.ordinal,
                    record: record.value.and_then(|value| payload::decode(value).ok()),
                    key: record.key.map(hashed),
                    head: Some(batch.head_ordinal()),
                }),
                Err(error) => self.world.complain(format!(
                    "a record of lane {lane} after ordinal {} does not decode: {error}",
                    batch.first_ordinal()
                )),
            }
        }
        self.world.recorder().record_all(events);
    }

    async fn commit_all(&mut self) -> Result<(), ConsumeError> {
        for (lease, batch) in std::mem::take(&mut self.uncommitted) {
            let asked = self.world.recorder().now();
            match self.consumer.commit(&batch).await {
                Ok(()) => {
                    self.world.recorder().record(Event::Committed {
                        lease: self.lease(lease),
                        ordinal: batch.next_ordinal(),
                        asked,
                    });
                }
                // The records come again, to someone.
                Err(ConsumeError::StaleLease { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Errors that pass are none; some must never be.
    fn judge(&self, error: ConsumeError) -> Result<(), ConsumeError> {
        if matches!(error, ConsumeError::Corrupt { .. }) {
            return Err(error);
        }
        if error.is_retryable() {
            Ok(())
        } else {
            Err(error)
        }
    }

    /// Ends without committing, as a crashed consumer does.
    fn vanish(self) {
        for lease in self.consumer.leases() {
            let lease = self.lease(lease.lease);
            self.world.recorder().record(Event::LeaseEnded { lease });
        }
    }

    async fn close(mut self) {
        if let Err(error) = self.commit_all().await {
            self.world
                .complain(format!("consumer {} cannot commit: {error}", self.number));
        }
        for lease in self.consumer.leases() {
            let lease = self.lease(lease.lease);
            self.world.recorder().record(Event::LeaseEnded { lease });
        }
        if let Err(error) = self.consumer.close().await {
            self.world
                .complain(format!("consumer {} cannot close: {error}", self.number));
        }
    }
}

fn note_leases(world: &World, group: u32, member: u32, news: &Rebalance<'_>) {
    let reference = |info: &LeaseInfo| LeaseRef {
        group,
        lease: info.lease,
    };
    match news {
        Rebalance::Assigned(leases) => {
            world
                .recorder()
                .record_all(leases.iter().map(|info| Event::LeaseGranted {
                    lease: reference(info),
                    member,
                    lane: world.lane(info.lane),
                    start: info.start,
                    end: info.end,
                }));
        }
        Rebalance::Released(leases) | Rebalance::Lost(leases) => {
            let ended = leases.iter().map(|info| Event::LeaseEnded {
                lease: reference(info),
            });
            world.recorder().record_all(ended);
        }
        _ => {}
    }
}
