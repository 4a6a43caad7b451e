//! Members of the group that keeps the order of keys, which come and go.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kera_consumer::{Batch, ConsumeError, Consumer, Order, Start};
use kera_history::payload;
use tokio::time::{sleep, timeout};

use super::{GROUP_NAME, Shared};
use crate::dice::Dice;
use crate::load::{Load, PATIENCE};
use crate::os;

/// Without batches for so long, what was read is committed.
const IDLE: Duration = Duration::from_millis(200);

/// One member.
struct Member {
    shared: Arc<Shared>,
    consumer: Consumer,
    /// By lease, the last batch that was read and not committed.
    uncommitted: BTreeMap<u64, Batch>,
}

/// A member after the other, until `is_over`.
pub async fn run(shared: Arc<Shared>, mut dice: Dice, is_over: Arc<AtomicBool>) {
    let over = || is_over.load(Ordering::SeqCst);
    while !over() {
        let Some(mut member) = Member::open(&shared).await else {
            return;
        };
        let until = os::now() + Duration::from_millis(dice.between(1_000, 40_000));
        // Some commit each batch.
        let often = *dice.one(&[100, 100, 1_000]);
        // The last one stays to the end.
        while !over() && (os::now() < until || shared.load.is_stopping()) {
            let commits = dice.chance(often);
            if let Err(error) = member.step(commits).await {
                let text = format!("a consumer by key ended: {error}");
                return shared.load.complain(text);
            }
        }
        // Some vanish with their work uncommitted.
        if !dice.chance(400) || over() {
            member.close().await;
        }
    }
}

/// Waits until all that was written is committed.
pub async fn drain(shared: Arc<Shared>) {
    let (mut least, mut since) = (u64::MAX, os::now());
    loop {
        let left = shared.keys.left();
        if left == 0 {
            return;
        }
        if left < least {
            (least, since) = (left, os::now());
        }
        if os::now() - since > PATIENCE {
            let text = format!("{left} records are not consumed by key");
            return shared.load.complain(text);
        }
        sleep(IDLE).await;
    }
}

impl Member {
    async fn open(shared: &Arc<Shared>) -> Option<Self> {
        let opened = Consumer::builder()
            .bootstrap(&shared.load.bootstrap)
            .stream(shared.name())
            .group(GROUP_NAME)
            .order(Order::Key)
            .start(Start::Earliest)
            .session(Duration::from_secs(3))
            .manual_commit()
            .retry(Load::retry())
            .open()
            .await;
        match opened {
            Ok(consumer) => Some(Self {
                shared: shared.clone(),
                consumer,
                uncommitted: BTreeMap::new(),
            }),
            Err(error) => {
                let text = format!("a consumer by key cannot join: {error}");
                shared.load.complain(text);
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
        let lease = batch.lease().unwrap_or_default();
        for record in batch.records() {
            let known = record.ok().and_then(|record| {
                let key = std::str::from_utf8(record.key?).ok()?.parse().ok()?;
                let number = payload::decode(record.value?).ok()?.seq;
                Some((record.ordinal, key, number))
            });
            match known {
                Some((ordinal, key, number)) => {
                    if !self.shared.keys.got(lease, ordinal, key, number) {
                        os::log(&format!(
                            "COMPLAINT record {number} of key {key} came at ordinal {ordinal} under lease {lease}"
                        ));
                    }
                }
                None => self.shared.load.complain(format!(
                    "a record by key of lane {} after ordinal {} is none that was written",
                    batch.lane(),
                    batch.first_ordinal()
                )),
            }
        }
    }

    async fn commit_all(&mut self) -> Result<(), ConsumeError> {
        for (lease, batch) in std::mem::take(&mut self.uncommitted) {
            let next = batch.next_ordinal();
            self.shared.keys.asks(lease, next);
            match self.consumer.commit(&batch).await {
                Ok(()) => self.shared.keys.settles(lease, next),
                // The records come again, to someone.
                Err(ConsumeError::StaleLease { .. }) => {}
                Err(error) => pass(error)?,
            }
        }
        Ok(())
    }

    async fn close(mut self) {
        let load = self.shared.load.clone();
        if let Err(error) = self.commit_all().await {
            load.complain(format!("a consumer by key cannot commit: {error}"));
        }
        if let Err(error) = self.consumer.close().await {
            load.complain(format!("a consumer by key cannot close: {error}"));
        }
    }
}

/// Errors that pass are none; some must never be.
fn pass(error: ConsumeError) -> Result<(), ConsumeError> {
    let passes = error.is_retryable() && !matches!(error, ConsumeError::Corrupt { .. });
    if passes { Ok(()) } else { Err(error) }
}
