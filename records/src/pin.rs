//! Pins: positions in a stream that something still needs, such as a savepoint of a job, and that retention is to spare.

use kera_protocol::ids::{LaneId, Ordinal, StreamId, StreamletId};

use crate::numbered::numbered;

/// Most pins of a stream. Brokers that make pins at the same time may exceed it by one each.
pub const MAX_PINS: usize = 100;
/// Most positions of all pins of a stream together: 10,000 lanes may have [`MAX_PINS`].
pub const MAX_PIN_POSITIONS: usize = 1_000_000;
/// Most bytes of a pin's name.
pub const MAX_PIN_NAME: usize = 200;
/// Most bytes of what a pin is for, and of the name of its owner.
pub const MAX_PIN_TEXT: usize = 512;
/// Milliseconds that a pin counts for whose maker names no bound: a week.
pub const DEFAULT_PIN_AGE_MS: u64 = 7 * 24 * 3600 * 1000;
/// Bytes that a pin may hold back whose maker names no bound.
pub const DEFAULT_PIN_BYTES: u64 = 10 << 30;

numbered! {
    /// What retention does about a pin.
    PinPolicy {
        /// It deletes what the pin needs, and tells.
        Warn = 1 "warn",
        /// It keeps what the pin needs, within the pin's bounds.
        Wait = 2 "wait",
    }
}

numbered! {
    /// Why records are gone that a pin needs.
    LossCause {
        /// Retention was due, and the pin's policy is [`PinPolicy::Warn`].
        Retention = 1 "retention",
        /// Retention was due, and the pin was older than its bound.
        Age = 2 "age",
        /// Retention was due, and would have had to hold back more bytes than the pin's bound.
        Bytes = 3 "bytes",
        /// The lane was trimmed beyond the pin's position.
        Trim = 4 "trim",
    }
}

/// Names a pin.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PinKey {
    /// The stream.
    pub stream: StreamId,
    /// The pin's name, of which a stream has one at most.
    pub name: String,
}

/// The first records that a pin has lost. It holds nothing back any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinLoss {
    /// The streamlet.
    pub streamlet: StreamletId,
    /// Its lane.
    pub lane: LaneId,
    /// The pin's position there: records from here on are gone, or are about to go.
    pub ordinal: Ordinal,
    /// Why.
    pub cause: LossCause,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
}

/// Positions in a stream that something still needs: every record at or above them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinRecord {
    /// The stream.
    pub stream: StreamId,
    /// The pin's name.
    pub name: String,
    /// What it is for, such as a job; may be empty.
    pub job: String,
    /// Who made it, as `User:NAME`.
    pub owner: String,
    /// When its positions were set, in milliseconds since 1970.
    pub created_ms: u64,
    /// Of each partition, by its number: the least ordinal that is needed. Lanes that came later are needed from 0 on.
    pub positions: Vec<Ordinal>,
    /// It holds nothing back once it is this old, in milliseconds.
    pub max_age_ms: u64,
    /// It holds nothing back once that would be more bytes than this, over all lanes.
    pub max_bytes: u64,
    /// What retention does about it.
    pub policy: PinPolicy,
    /// Set once records are gone that it needs.
    pub lost: Option<PinLoss>,
    /// Revision of the transaction that wrote this.
    pub revision: u64,
}

impl PinRecord {
    /// Its key.
    pub fn key(&self) -> PinKey {
        PinKey {
            stream: self.stream,
            name: self.name.clone(),
        }
    }

    /// The least ordinal that it needs of a lane, in a stream of so many streamlets.
    pub fn position(&self, streamlets: u32, streamlet: StreamletId, lane: LaneId) -> Ordinal {
        let partition = u64::from(lane.0) * u64::from(streamlets) + u64::from(streamlet.0);
        let partition = usize::try_from(partition).unwrap_or(usize::MAX);
        self.positions.get(partition).copied().unwrap_or(0)
    }

    /// How long ago its positions were set, in milliseconds.
    pub fn age_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.created_ms)
    }

    /// # Errors
    /// What is wrong with the record by itself.
    pub fn check(&self) -> Result<(), String> {
        check_pin_name(&self.name)?;
        for (what, text) in [("what it is for", &self.job), ("its owner", &self.owner)] {
            if text.len() > MAX_PIN_TEXT || text.chars().any(char::is_control) {
                return Err(format!(
                    "{what} has {} bytes, or a control character; at most {MAX_PIN_TEXT} bytes are kept",
                    text.len()
                ));
            }
        }
        if self.max_age_ms == 0 || self.max_bytes == 0 {
            return Err("a bound of its age or of its bytes is 0; name one above that".to_owned());
        }
        Ok(())
    }
}

/// Checks the name of a pin.
///
/// # Errors
/// What is wrong with it.
pub fn check_pin_name(name: &str) -> Result<(), String> {
    let is_odd = |c: char| c.is_control() || c.is_whitespace();
    if name.is_empty() || name.len() > MAX_PIN_NAME || name.chars().any(is_odd) {
        let shown: String = name.chars().take(64).collect();
        return Err(format!(
            "a pin cannot be named {shown:?}: names have 1 to {MAX_PIN_NAME} bytes without blanks and control characters"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pin(positions: &[Ordinal]) -> PinRecord {
        PinRecord {
            stream: StreamId(uuid::Uuid::from_u128(7)),
            name: "chk-1".to_owned(),
            job: "orders job".to_owned(),
            owner: "User:ann".to_owned(),
            created_ms: 1_000,
            positions: positions.to_vec(),
            max_age_ms: DEFAULT_PIN_AGE_MS,
            max_bytes: DEFAULT_PIN_BYTES,
            policy: PinPolicy::Wait,
            lost: None,
            revision: 0,
        }
    }

    #[test]
    fn positions_are_by_partition_and_later_lanes_begin_at_0() {
        let pin = pin(&[10, 20, 11, 21]);
        let at = |streamlet, lane| pin.position(2, StreamletId(streamlet), LaneId(lane));
        assert_eq!([at(0, 0), at(1, 0), at(0, 1), at(1, 1)], [10, 20, 11, 21]);
        assert_eq!(at(0, 2), 0);
        assert_eq!(at(1, u32::MAX), 0);
        assert_eq!((pin.age_ms(1_500), pin.age_ms(400)), (500, 0));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert_eq!(pin(&[]).check(), Ok(()));
        let changes: [fn(&mut PinRecord); 7] = [
            |pin| pin.name.clear(),
            |pin| pin.name = "a b".to_owned(),
            |pin| pin.name = "n".repeat(MAX_PIN_NAME + 1),
            |pin| pin.job = "a\nb".to_owned(),
            |pin| pin.owner = "n".repeat(MAX_PIN_TEXT + 1),
            |pin| pin.max_age_ms = 0,
            |pin| pin.max_bytes = 0,
        ];
        for change in changes {
            let mut changed = pin(&[]);
            change(&mut changed);
            assert!(changed.check().is_err(), "{changed:?}");
        }
    }
}
