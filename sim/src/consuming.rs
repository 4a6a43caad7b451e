//! Members of a consumer group, which come and go.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kera_consumer::{Batch, ConsumeError, Consumer, LeaseInfo, Order, Rebalance, Start};
use kera_history::{Event, LeaseRef, payload};
use tokio::time::timeout;

use crate::dice::Dice;
use crate::load::{GROUP, GROUP_NAME, Load, hashed};
use crate::os;

/// Without batches for so long, what was read is committed.
const IDLE: Duration = Duration::from_millis(200);

/// One member, under one number of the history.
struct Member {
    load: Arc<Load>,
    number: u32,
    consumer: Consumer,
    /// By lease, the last batch that was read and not committed.
    uncommitted: BTreeMap<u64, Batch>,
}

/// A member after the other, until `is_over`. `numbers` are for this one's members.
pub async fn run(
    load: Arc<Load>,
    mut number: u32,
    mut dice: Dice,
    is_over: Arc<std::sync::atomic::AtomicBool>,
) {
    let over = || is_over.load(std::sync::atomic::Ordering::SeqCst);
    while !over() {
        let Some(mut member) = Member::open(&load, number).await else {
            return;
        };
        number += 1;
        let until = os::now() + Duration::from_millis(dice.between(1_000, 40_000));
        // Some commit each batch.
        let often = *dice.one(&[100, 100, 1_000]);
        // The last one stays to the end.
        while !over() && (os::now() < until || load.is_stopping()) {
            let commits = dice.chance(often);
            if let Err(error) = member.step(commits).await {
                load.complain(format!("consumer {} ended: {error}", member.number));
                return;
            }
        }
        // Some vanish with their work uncommitted.
        if dice.chance(400) && !over() {
            member.end_leases();
        } else {
            member.close().await;
        }
    }
}

impl Member {
    async fn open(load: &Arc<Load>, number: u32) -> Option<Self> {
        let hook = {
            let load = load.clone();
            move |news: Rebalance<'_>| note_leases(&load, number, &news)
        };
        let opened = Consumer::builder()
            .bootstrap(&load.bootstrap)
            .stream(load.name(0))
            .group(GROUP_NAME)
            .order(Order::Lane)
            .start(Start::Earliest)
            .session(Duration::from_secs(3))
            .manual_commit()
            .retry(Load::retry())
            .on_rebalance(hook)
            .open()
            .await;
        match opened {
            Ok(consumer) => {
                load.note_joined();
                Some(Self {
                    load: load.clone(),
                    number,
                    consumer,
                    uncommitted: BTreeMap::new(),
                })
            }
            Err(error) => {
                load.complain(format!("consumer {number} cannot join: {error}"));
                None
            }
        }
    }

    async fn step(&mut self, commits: bool) -> Result<(), ConsumeError> {
        match timeout(IDLE, self.consumer.next_batch()).await {
            Err(_) => self.commit_all().await,
            Ok(Ok(batch)) => {
                self.note(&batch);
                if let Some(lease) = batch.lease() {
                    self.uncommitted.insert(lease, batch);
                }
                match commits {
                    true => self.commit_all().await,
                    false => Ok(()),
                }
            }
            Ok(Err(error)) => pass(error),
        }
    }

    fn note(&self, batch: &Batch) {
        let lane = self.load.lane(batch.lane());
        let lease = batch.lease().map(lease);
        let mut events = vec![Event::Polled {
            consumer: self.number,
        }];
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
                Err(error) => self.load.complain(format!(
                    "a record of lane {lane} after ordinal {} does not decode: {error}",
                    batch.first_ordinal()
                )),
            }
        }
        self.load.record_all(events);
    }

    async fn commit_all(&mut self) -> Result<(), ConsumeError> {
        for (of, batch) in std::mem::take(&mut self.uncommitted) {
            let asked = self.load.moment();
            match self.consumer.commit(&batch).await {
                Ok(()) => {
                    self.load.record(Event::Committed {
                        lease: lease(of),
                        ordinal: batch.next_ordinal(),
                        asked,
                    });
                }
                // The records come again, to someone.
                Err(ConsumeError::StaleLease { .. }) => {}
                Err(error) => pass(error)?,
            }
        }
        Ok(())
    }

    fn end_leases(&self) {
        for info in self.consumer.leases() {
            let lease = lease(info.lease);
            self.load.record(Event::LeaseEnded { lease });
        }
    }

    async fn close(mut self) {
        if let Err(error) = self.commit_all().await {
            self.load
                .complain(format!("consumer {} cannot commit: {error}", self.number));
        }
        self.end_leases();
        if let Err(error) = self.consumer.close().await {
            self.load
                .complain(format!("consumer {} cannot close: {error}", self.number));
        }
    }
}

/// Errors that pass are none; some must never be.
fn pass(error: ConsumeError) -> Result<(), ConsumeError> {
    let passes = error.is_retryable() && !matches!(error, ConsumeError::Corrupt { .. });
    if passes { Ok(()) } else { Err(error) }
}

fn lease(lease: u64) -> LeaseRef {
    LeaseRef {
        group: GROUP,
        lease,
    }
}

fn note_leases(load: &Load, member: u32, news: &Rebalance<'_>) {
    match news {
        Rebalance::Assigned(leases) => {
            let granted = leases.iter().map(|info: &LeaseInfo| Event::LeaseGranted {
                lease: lease(info.lease),
                member,
                lane: load.lane(info.lane),
                start: info.start,
                end: info.end,
            });
            load.record_all(granted);
        }
        Rebalance::Released(leases) | Rebalance::Lost(leases) => {
            let ended = leases.iter().map(|info| Event::LeaseEnded {
                lease: lease(info.lease),
            });
            load.record_all(ended);
        }
        _ => {}
    }
}
