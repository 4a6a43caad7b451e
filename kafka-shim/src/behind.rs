//! Batches behind one that failed.
//!
//! A producer has several batches on their way. When one of them is told to be sent again, those
//! behind it were sent before the producer knew, and find a gap in the sequence:
//!
//! ```text
//! producer ── R0 R1 R2 ──▶ broker     R0 has its place; the broker's lease ends
//!          ◀── R0: not the leader     it may be stored all the same
//!          ◀── R1: not the leader     it has no place
//!                                     the lease is back
//!          ◀── R2: not the leader     a gap, but only because R1 failed
//! ```
//!
//! Were R2 told that its sequence is out of order, librdkafka would begin a new epoch and number R0
//! and R1 anew, so that no broker knows them again: R0 would be stored twice. So a gap behind a
//! failed batch is answered as that batch was: ask for the leader and send it again.

use std::collections::HashMap;

use kafka_protocol::error::ResponseError;

use crate::errors;
use crate::topic::TopicRef;

/// Gaps in a row that are taken to be of batches that were on their way; a client keeps at most five
/// there. Further ones are the producer's own, and it is told.
const ON_THEIR_WAY: u32 = 16;
/// Producers and partitions remembered per connection. A connection that fails for more of them has all
/// forgotten: they are told of the gap, as without this.
const MOST: usize = 4096;

/// What failed last on a connection, by topic, partition and producer, with the gaps answered since.
#[derive(Debug, Default)]
pub(crate) struct Failed {
    since: HashMap<(TopicRef, i32, i64), u32>,
}

impl Failed {
    /// The number to answer a batch with that came to `code`. Answers have to pass here in their order. `producer` is
    /// negative for a batch without sequence.
    pub(crate) fn answer(
        &mut self,
        topic: &TopicRef,
        partition: i32,
        producer: i64,
        code: i16,
    ) -> i16 {
        let nothing_to_do = code == errors::NONE && self.since.is_empty();
        if nothing_to_do || producer < 0 {
            return code;
        }
        let key = (topic.clone(), partition, producer);
        if code == errors::NONE {
            self.since.remove(&key);
            return code;
        }
        if !is_gap(code) {
            if self.since.len() >= MOST {
                self.since.clear();
            }
            self.since.insert(key, 0);
            return code;
        }
        match self.since.get_mut(&key) {
            Some(gaps) if *gaps < ON_THEIR_WAY => {
                *gaps += 1;
                ResponseError::NotLeaderOrFollower.code()
            }
            Some(_) => {
                self.since.remove(&key);
                code
            }
            None => code,
        }
    }
}

fn is_gap(code: i16) -> bool {
    [
        ResponseError::OutOfOrderSequenceNumber,
        ResponseError::UnknownProducerId,
    ]
    .iter()
    .any(|gap| gap.code() == code)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GAP: i16 = 45;
    const UNKNOWN: i16 = 59;
    const NOT_LEADER: i16 = 6;
    const FEW: i16 = 19;

    fn topic() -> TopicRef {
        TopicRef::Name("t".into())
    }

    #[test]
    fn a_gap_that_nothing_explains_is_told() {
        let mut failed = Failed::default();
        assert_eq!(failed.answer(&topic(), 0, 7, GAP), GAP);
        failed.answer(&topic(), 0, 7, FEW);
        // Another partition, another producer.
        assert_eq!(failed.answer(&topic(), 1, 7, GAP), GAP);
        assert_eq!(failed.answer(&topic(), 0, 8, UNKNOWN), UNKNOWN);
    }

    #[test]
    fn behind_a_failure_a_gap_is_sent_again_until_the_batch_has_its_place() {
        let mut failed = Failed::default();
        assert_eq!(failed.answer(&topic(), 0, 7, FEW), FEW);
        assert_eq!(failed.answer(&topic(), 0, 7, GAP), NOT_LEADER);
        assert_eq!(failed.answer(&topic(), 0, 7, UNKNOWN), NOT_LEADER);
        assert_eq!(failed.answer(&topic(), 0, 7, 0), 0);
        assert_eq!(failed.answer(&topic(), 0, 7, GAP), GAP);
    }

    #[test]
    fn a_producer_that_leaves_a_batch_out_learns_it() {
        let mut failed = Failed::default();
        failed.answer(&topic(), 0, 7, FEW);
        let answers = (0..ON_THEIR_WAY).map(|_| failed.answer(&topic(), 0, 7, GAP));
        assert!(answers.into_iter().all(|code| code == NOT_LEADER));
        assert_eq!(failed.answer(&topic(), 0, 7, GAP), GAP);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut failed = Failed::default();
        for producer in 0..3 * MOST as i64 {
            failed.answer(&topic(), 0, producer, FEW);
            assert!(failed.since.len() <= MOST);
        }
        // Without a sequence there is no gap.
        let mut failed = Failed::default();
        failed.answer(&topic(), 0, -1, FEW);
        assert!(failed.since.is_empty());
    }
}
