//! A lane that does not go on although something waits, told for people: which group its head waits for, what
//! that group's life is at, and how far each of its copies is.

use std::fmt::{self, Display};
use std::time::Duration;

use kera_log_segments::group_life::GroupStage;
use kera_protocol::ids::GroupId;

use crate::ids::{BrokerId, CopyId};

/// How far one copy of a group is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaStands {
    /// The broker that holds it.
    pub holder: BrokerId,
    /// All below this address is there.
    pub durable: u64,
    /// All below this address is in its memory, or in the owner's file, which follows where the owner remembers bytes.
    pub written: u64,
    /// Why it does not count any more, if so.
    pub lost: Option<String>,
    /// What ships to it says; none for this broker's own file.
    pub way: Option<WayStands>,
}

/// How far one replica of a group is that is not closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaPosition {
    /// The group.
    pub group: GroupId,
    /// The broker.
    pub broker: BrokerId,
    /// The address at which the group ends so far.
    pub end: u64,
    /// Below this address all is in its memory, or in the owner's file; none if nobody knows.
    pub placed: Option<u64>,
    /// Below this address all is on its disk; none where nobody waits for that.
    pub flushed: Option<u64>,
    /// Why it does not count any more, if so.
    pub lost: Option<String>,
}

/// What a shipper knows of the way to one copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WayStands {
    /// It does not say.
    Silent,
    /// It ships to the backup, and to this copy if there is a `copy`.
    Ships {
        /// Its connection.
        link: &'static str,
        /// Submissions under way, of whatever groups.
        submissions: usize,
        /// Their bytes.
        in_flight: u64,
        /// The group's part.
        copy: Option<ShipmentStands>,
    },
}

/// How far a group is on its way to one copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShipmentStands {
    /// Handed to the connection up to here.
    pub shipped: u64,
    /// Placed in the backup's memory up to here; a synced group waits until this is flushed as well.
    pub placed: u64,
    /// The backup has reserved memory up to here.
    pub reserved: u64,
    /// A request for more memory is under way.
    pub is_opening: bool,
    /// It waits for its turn.
    pub is_queued: bool,
    /// Bytes that have left memory are being read, or wait until others were.
    pub is_reading: bool,
}

impl Display for ReplicaStands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} has {}", self.holder, self.durable)?;
        if let Some(reason) = &self.lost {
            return write!(f, ", lost: {reason}");
        }
        match &self.way {
            None => f.write_str(", its own file"),
            Some(WayStands::Silent) => f.write_str(", what ships to it does not say where it is"),
            Some(WayStands::Ships {
                link,
                submissions,
                in_flight,
                copy,
            }) => {
                write!(
                    f,
                    ", {link}, submissions {submissions} of {in_flight} bytes"
                )?;
                match copy {
                    None => f.write_str(", the group is not shipped there"),
                    Some(copy) => copy.fmt(f),
                }
            }
        }
    }
}

impl Display for ShipmentStands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (shipped, placed, reserved) = (self.shipped, self.placed, self.reserved);
        write!(f, ", shipped {shipped} of {reserved}, placed {placed}")?;
        if self.is_opening {
            f.write_str(", asks for memory")?;
        }
        if self.is_queued {
            f.write_str(", queued")?;
        }
        if self.is_reading {
            f.write_str(", reads its file")?;
        }
        Ok(())
    }
}

/// A lane that has not gone on for a while although something waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standstill {
    /// The group that everything behind it waits for.
    pub group: CopyId,
    /// Since when it has come no further.
    pub lasted: Duration,
    /// Its bytes end here.
    pub end: u64,
    /// Below this address every copy has it.
    pub durable: u64,
    /// Nothing more is appended to it.
    pub is_frozen: bool,
    /// Groups behind it.
    pub behind: usize,
    /// What its life is at.
    pub stage: GroupStage,
    /// Why that takes long, if it knows.
    pub trouble: Option<String>,
    /// Its copies; none while it is not recorded.
    pub copies: Vec<ReplicaStands>,
}

impl Display for Standstill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.stage)?;
        if let Some(trouble) = &self.trouble {
            write!(f, " ({trouble})")?;
        }
        let kind = if self.is_frozen { "ended" } else { "open" };
        write!(
            f,
            "; {kind} at {}, acknowledged {}, groups behind it {}",
            self.end, self.durable, self.behind
        )?;
        self.copies
            .iter()
            .try_for_each(|copy| write!(f, "; {copy}"))
    }
}

/// Where a lane was when it was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) group: CopyId,
    pub(super) durable: u64,
}

/// What is remembered between two looks at a lane.
#[derive(Debug, Default)]
pub(super) struct Watched {
    pub(super) mark: Option<Mark>,
    /// When it was there first.
    pub(super) since: Duration,
    /// When somebody was told.
    told: Option<Duration>,
}

impl Watched {
    /// How long the lane has been at `mark`, if that is `patience` or more and nobody was told within
    /// `again`.
    pub(super) fn looked(
        &mut self,
        mark: Option<Mark>,
        now: Duration,
        (patience, again): (Duration, Duration),
    ) -> Option<Duration> {
        if self.mark != mark {
            *self = Self {
                mark,
                since: now,
                told: None,
            };
        }
        let lasted = now.saturating_sub(self.since);
        let early = lasted < patience;
        let told = |told| now.saturating_sub(told) < again;
        if mark.is_none() || early || self.told.is_some_and(told) {
            return None;
        }
        self.told = Some(now);
        Some(lasted)
    }
}

/// That a lane does not go on, in short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StillLane {
    /// Since when it has come no further.
    pub lasted: Duration,
    /// What the group that everything waits for is at.
    pub stage: GroupStage,
    /// Why that takes long, if it knows.
    pub trouble: Option<String>,
    /// The brokers whose copies lack bytes and are waited for.
    pub behind: Vec<BrokerId>,
}

impl Display for StillLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.stage)?;
        if let Some(trouble) = &self.trouble {
            write!(f, " ({trouble})")?;
        }
        for (at, broker) in self.behind.iter().enumerate() {
            let before = if at == 0 { ", missing at " } else { " and " };
            write!(f, "{before}{broker}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use kera_protocol::ids::{Epoch, GroupId, StreamId, StreamletId};

    use super::*;
    use crate::ids::StreamletKey;

    const LIMITS: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(30));

    fn at(durable: u64) -> Option<Mark> {
        let group = CopyId {
            streamlet: StreamletKey {
                stream: StreamId::from_slice(&[7; 16]).expect("16 bytes"),
                streamlet: StreamletId(1),
            },
            group: GroupId(3),
            epoch: Epoch(1),
            generation: 0,
        };
        Some(Mark { group, durable })
    }

    #[test]
    fn whoever_stands_still_is_told_of_after_a_while_and_then_seldom() {
        let mut watched = Watched::default();
        let mut told = Vec::new();
        for second in 0..=70 {
            let now = Duration::from_secs(second);
            if let Some(lasted) = watched.looked(at(10), now, LIMITS) {
                told.push(lasted.as_secs());
            }
        }
        assert_eq!(told, [5, 35, 65]);
    }

    #[test]
    fn whoever_goes_on_or_has_nothing_to_do_is_not_told_of() {
        let mut watched = Watched::default();
        for second in 0..60 {
            let now = Duration::from_secs(second);
            assert_eq!(watched.looked(at(second), now, LIMITS), None);
        }
        for second in 60..120 {
            let now = Duration::from_secs(second);
            assert_eq!(watched.looked(None, now, LIMITS), None);
        }
        let now = Duration::from_secs(120);
        assert_eq!(watched.looked(at(59), now, LIMITS), None, "it began now");
    }
}
