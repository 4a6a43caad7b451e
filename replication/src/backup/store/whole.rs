//! What is whole of a copy, by its bytes alone.

use kera_log_segments::scan::{ScanError, Scanned};
use kera_protocol::batch::BatchHeader;
use kera_protocol::ids::GroupId;

use super::ReplicaStore;
use crate::backup::copy::{failed, is_lost};
use crate::ids::{CopyId, StreamletKey};
use crate::transport::Refusal;

impl ReplicaStore {
    /// Whether a replica of a group as appended was freed here by an owner's word, since no record named it any more, and
    /// there is none now. False for one of which that is not remembered.
    pub fn was_removed(&self, streamlet: StreamletKey, group: GroupId) -> bool {
        if self.is_hidden(&streamlet) {
            return false;
        }
        let control = self.control.lock();
        let mut copies = control.copies.range(CopyId::all_of(streamlet));
        let is_here = copies.any(|(id, _)| (id.group, id.generation) == (group, 0));
        !is_here && control.seals.was_removed(&streamlet, group)
    }

    /// How far a copy is whole, of whatever life it is and whatever is recorded of it: for who has lost the records. `visit`
    /// sees the header and the address of each whole batch. `None` if it is not here, nothing of it is whole, or less
    /// than was known to be on its disk. Takes as long as reading all of it.
    ///
    /// # Errors
    /// [`Refusal::Failed`]: the disk does not answer.
    pub fn whole(
        &self,
        id: &CopyId,
        visit: impl FnMut(&BatchHeader, u64),
    ) -> Result<Option<Scanned>, Refusal> {
        let copy = self.control.lock().copies.get(id).cloned();
        let Some(copy) = copy.filter(|copy| copy.still_here().is_ok()) else {
            return Ok(None);
        };
        let reached = match copy.mark() {
            Ok(mark) => mark.synced.max(mark.written),
            Err(error) if is_lost(&error) => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        match copy.walk(self.incarnation, &self.faults, None, visit) {
            Ok(scanned) => Ok((scanned.end.address >= reached).then_some(scanned)),
            Err(ScanError::Io(error)) if !is_lost(&error) => Err(failed(error)),
            Err(_) => Ok(None),
        }
    }
}
