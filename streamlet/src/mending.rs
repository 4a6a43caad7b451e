//! Damage in a closed group's own file, met while looking for a place in it: what another copy has is
//! fetched, and looked at once more. Reads do the same in [`crate::read`].

use std::io::ErrorKind;

use kera_log_segments::group::Group;
use kera_log_segments::read::ReadError;
use kera_log_segments::replicas::Mending;
use kera_log_segments::sync::Arc;
use kera_protocol::ids::{LaneId, Ordinal};

use crate::read::{LaneReadError, Located};
use crate::streamlet::Streamlet;

/// Why a place was not found, and in which group that was met.
#[derive(Debug)]
pub(crate) struct Met {
    group: Option<Arc<Group>>,
    error: LaneReadError,
}

impl Met {
    pub(crate) fn in_group(group: &Arc<Group>, error: ReadError) -> Self {
        Self {
            group: Some(group.clone()),
            error: error.into(),
        }
    }
}

impl From<LaneReadError> for Met {
    fn from(error: LaneReadError) -> Self {
        Self { group: None, error }
    }
}

/// True for what another copy may be free of; false for what a moment or a trim explains.
pub(crate) fn is_damage(error: &ReadError) -> bool {
    match error {
        ReadError::Damaged { .. } => true,
        ReadError::WouldBlock => false,
        // Also a file that somebody removed: the first time it is looked up again.
        ReadError::Io { .. } => true,
    }
}

/// Whether a closed group's own file is not there at all: after a change of owner history is fetched by and by,
/// and what is read sooner is fetched then.
fn is_absent(error: &ReadError) -> bool {
    matches!(error, ReadError::Io { error, .. } if error.kind() == ErrorKind::NotFound)
}

/// Says why another copy of a group is looked for.
pub(crate) fn tell(group: &Group, error: &ReadError) {
    let (id, file) = (group.id(), group.spec().path.display());
    if is_absent(error) {
        tracing::info!(group = %id, %file, "this broker has no file of a closed group that a reader asks for; fetching it from another replica");
    } else {
        tracing::warn!(group = %id, %file, %error, "a closed group's own file is damaged; looking for another replica");
    }
}

impl Streamlet {
    /// Where the first record at or after `timestamp` (milliseconds) is; the head if there is none.
    ///
    /// Waits for the disk and, where that is damaged, for another copy.
    ///
    /// # Errors
    /// [`LaneReadError`].
    pub fn find_time(&self, lane: LaneId, timestamp: i64) -> Result<Located, LaneReadError> {
        self.find_time_from(lane, timestamp, 0)
    }

    /// As [`Self::find_time`], for who must not wait for another copy.
    ///
    /// # Errors
    /// [`LaneReadError`], also for damage that could be mended.
    pub fn find_time_here(&self, lane: LaneId, timestamp: i64) -> Result<Located, LaneReadError> {
        self.look_for_time(lane, timestamp, 0)
            .map_err(|met| met.error)
    }

    /// As [`Self::find_time`], of the batches with ordinals at or above `from`.
    pub(crate) fn find_time_from(
        &self,
        lane: LaneId,
        timestamp: i64,
        from: Ordinal,
    ) -> Result<Located, LaneReadError> {
        self.mending(lane, || self.look_for_time(lane, timestamp, from))
    }

    /// The place of the batch that holds `ordinal`, and the ordinal after some
    /// whole durable batches from there: where a range lease may be cut. At least one batch, else
    /// within both limits. `None` at the head.
    ///
    /// Waits for the disk and, where that is damaged, for another copy.
    ///
    /// # Errors
    /// [`LaneReadError`].
    pub fn batch_boundary(
        &self,
        lane: LaneId,
        ordinal: Ordinal,
        max_bytes: usize,
        max_ordinals: u64,
    ) -> Result<Option<(Located, Ordinal)>, LaneReadError> {
        self.mending(lane, || {
            self.look_for_boundary(lane, ordinal, max_bytes, max_ordinals)
        })
    }

    /// As [`Self::batch_boundary`], for who must not wait for another copy.
    ///
    /// # Errors
    /// [`LaneReadError`], also for damage that could be mended.
    pub fn batch_boundary_here(
        &self,
        lane: LaneId,
        ordinal: Ordinal,
        max_bytes: usize,
        max_ordinals: u64,
    ) -> Result<Option<(Located, Ordinal)>, LaneReadError> {
        let found = self.look_for_boundary(lane, ordinal, max_bytes, max_ordinals);
        found.map_err(|met| met.error)
    }

    /// Looks, and where what it meets may be mended from another copy, does that and looks again, as
    /// long as each time it is another group.
    fn mending<T>(
        &self,
        lane: LaneId,
        look: impl Fn() -> Result<T, Met>,
    ) -> Result<T, LaneReadError> {
        let mut last = None;
        loop {
            let Met { group, error } = match look() {
                Ok(found) => return Ok(found),
                Err(met) => met,
            };
            let group = group.filter(|group| self.is_mendable(group) && last != Some(group.id()));
            let (Some(group), LaneReadError::Group(damage)) = (group, &error) else {
                return Err(error);
            };
            if !is_damage(damage) {
                return Err(error);
            }
            tell(&group, damage);
            match self.mend(lane, &group) {
                Mending::Done => {}
                Mending::NotYet => return Err(error.awaited()),
                Mending::Nowhere => return Err(error),
            }
            last = Some(group.id());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use super::*;

    #[test]
    fn a_file_that_is_not_there_is_not_called_damaged() {
        let io = |kind: ErrorKind| ReadError::Io {
            file: "1.0.log".into(),
            error: Error::from(kind),
        };
        let (absent, broken) = (io(ErrorKind::NotFound), io(ErrorKind::Other));
        // Another copy is looked for in either case.
        assert!(is_damage(&absent) && is_damage(&broken));
        assert!(is_absent(&absent) && !is_absent(&broken));
    }
}
