//! Of which transactions a lane takes batches.

use std::collections::HashMap;

use kera_protocol::batch::BatchHeader;
use kera_protocol::ids::Ordinal;

use super::TransactionError;

/// Grants of one lane; more are not taken, and their producers are told to try again.
const MAX_GRANTS: usize = 16_384;
/// How long a coordinator's no is believed, and how long it is remembered that a transaction ended: longer than an
/// answer that says otherwise may be on its way.
const REFUSED_MS: u64 = 2_000;
const ENDED_MS: u64 = 60_000;

/// What a coordinator says of a producer's transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The producer.
    pub producer: i64,
    /// Its epoch.
    pub epoch: i16,
    /// Which of its transactions it is, counted by the coordinator.
    pub number: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Open,
    Ended,
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    epoch: i16,
    number: u64,
    standing: Standing,
    since_ms: u64,
    /// Where its marker ends, or the lane ended when the end of what has nothing here was asked for first.
    until: Option<Ordinal>,
    /// What the producer has open from below this on is an earlier transaction, which has ended.
    ended_before: Ordinal,
}

/// What is known of producers' transactions, by producer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grants {
    known: HashMap<i64, Known>,
}

impl Grants {
    /// Whether a transaction may begin with this batch.
    ///
    /// # Errors
    /// [`TransactionError`].
    pub fn check(&self, header: &BatchHeader, now_ms: u64) -> Result<(), TransactionError> {
        let producer = header.producer_id;
        let unverified = TransactionError::Unverified { producer };
        let known = self.known.get(&producer).ok_or(unverified)?;
        match known.standing {
            Standing::Open if known.epoch == header.producer_epoch => Ok(()),
            Standing::Refused
                if known.epoch == header.producer_epoch
                    && now_ms.saturating_sub(known.since_ms) < REFUSED_MS =>
            {
                Err(TransactionError::NotOpen { producer })
            }
            _ => Err(unverified),
        }
    }

    /// Whether a batch may be of the transaction that its producer has open since `first`. That is not said by the open one
    /// alone: the lane may have lost the marker of the transaction before, and not been told yet.
    ///
    /// # Errors
    /// [`TransactionError`].
    pub fn check_open(
        &self,
        header: &BatchHeader,
        first: Ordinal,
        now_ms: u64,
    ) -> Result<(), TransactionError> {
        self.check(header, now_ms)?;
        let producer = header.producer_id;
        let known = self.known.get(&producer);
        match known.is_some_and(|known| known.ended_before <= first) {
            true => Ok(()),
            false => Err(TransactionError::Unverified { producer }),
        }
    }

    /// Takes a grant. Transactions of the producer that began before `ended_before` have ended. False if there is no room,
    /// or the transaction has ended here meanwhile.
    pub fn open(&mut self, grant: Grant, ended_before: Ordinal, now_ms: u64) -> bool {
        // A refusal keeps the number of the last transaction that ended here.
        if let Some(known) = self.known.get(&grant.producer)
            && (known.number > grant.number
                || (known.number == grant.number && known.standing != Standing::Open))
        {
            return false;
        }
        let is_taken = self.put(grant, Standing::Open, now_ms);
        if let Some(known) = self.known.get_mut(&grant.producer).filter(|_| is_taken) {
            known.ended_before = ended_before;
        }
        is_taken
    }

    /// Notes that the coordinator knows of no such transaction. A grant that came meanwhile stands.
    pub fn refuse(&mut self, producer: i64, epoch: i16, now_ms: u64) {
        let stands = self.known.get(&producer).map(|known| known.standing);
        if stands == Some(Standing::Open) {
            return;
        }
        let number = self.known.get(&producer).map_or(0, |known| known.number);
        let grant = Grant {
            producer,
            epoch,
            number,
        };
        self.put(grant, Standing::Refused, now_ms);
    }

    /// Ends a transaction, and with it those before, in a lane that has come to `next`. `None` if a later one is known;
    /// else how far the lane must be durable for it where nothing of it is open: as far as when that was asked first. A
    /// repeated request does not wait for what others have appended since.
    pub fn end(&mut self, grant: Grant, next: Ordinal, now_ms: u64) -> Option<Ordinal> {
        let known = self.known.get(&grant.producer);
        if known.is_some_and(|known| known.number > grant.number) {
            return None;
        }
        let same =
            known.filter(|known| known.number == grant.number && known.standing == Standing::Ended);
        let until = same.and_then(|known| known.until).unwrap_or(next);
        self.put(grant, Standing::Ended, now_ms);
        self.ends_at(grant.producer, grant.number, until);
        Some(until)
    }

    /// Notes where the marker of a transaction that has ended here ends.
    pub fn ends_at(&mut self, producer: i64, number: u64, until: Ordinal) {
        if let Some(known) = self.known.get_mut(&producer)
            && (known.number, known.standing) == (number, Standing::Ended)
        {
            known.until = Some(until);
        }
    }

    fn put(&mut self, grant: Grant, standing: Standing, now_ms: u64) -> bool {
        if self.known.len() >= MAX_GRANTS && !self.known.contains_key(&grant.producer) {
            self.known.retain(|_, known| {
                known.standing == Standing::Open || now_ms < known.since_ms + ENDED_MS
            });
            if self.known.len() >= MAX_GRANTS {
                return false;
            }
        }
        let known = Known {
            epoch: grant.epoch,
            number: grant.number,
            standing,
            since_ms: now_ms,
            until: None,
            ended_before: 0,
        };
        self.known.insert(grant.producer, known);
        true
    }
}
