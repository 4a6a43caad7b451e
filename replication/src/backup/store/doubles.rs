//! Groups of which a broker has both a replica in its store and a file of its own, as after an end in the middle of
//! a take-over. One of the two stands: the one that is whole.

use crate::backup::copy::Life;
use crate::ids::CopyId;
use crate::transport::{Refusal, Reply, Request};

use super::ReplicaStore;

impl ReplicaStore {
    /// Answers for a closed group of which the store's replica is `short`. A recovery makes the own file whole and
    /// leaves the replica that it was made from as it was, so where there is a file that is whole up to `length`, and
    /// durable, that file stands for the group and the replica goes.
    pub(super) fn flush_file_instead(
        &self,
        id: &CopyId,
        length: u64,
        short: Refusal,
    ) -> Result<Reply, Refusal> {
        let beside = self.beside.get().filter(|beside| beside.has(id));
        let Some((beside, replica)) = beside.zip(self.held(id).ok()) else {
            return Err(short);
        };
        // Whoever completes it from now on makes it another one, which stays.
        let version = replica.state.lock().version;
        let flush = Request::flush_closed(*id, length);
        let flushed = beside.handle(flush).map_err(|refusal| {
            tracing::debug!(copy = %id, %refusal, "the file beside a short replica does not stand for it");
            short
        })?;
        let epoch = self
            .control
            .lock()
            .seals
            .sealed(&id.streamlet)
            .max(id.epoch);
        match self.free(id, epoch, Some(version)) {
            Ok(()) => {
                tracing::info!(copy = %id, "this broker has the group whole in a file of its own and short in its store, as after an end in the middle of a take-over; the replica in the store is removed");
            }
            Err(error) => {
                tracing::info!(copy = %id, %error, "a short replica of a group that is in a file of this broker as well is not removed yet");
            }
        }
        Ok(flushed)
    }

    /// Has files beside the store removed whose groups it has whole on its disk: those that were found at the last
    /// list. A broker that was killed while it made its copies its own files, and owns them no more, has both.
    pub fn part_with_doubles(&self) {
        let doubles = std::mem::take(&mut *self.doubles.lock());
        let Some(beside) = self.beside.get() else {
            return;
        };
        for (id, version) in doubles {
            let Ok(copy) = self.held(&id) else {
                continue;
            };
            // Nobody frees or completes it meanwhile.
            let _turn = copy.flushing.lock();
            if copy.state.lock().life != Life::Flushed {
                continue;
            }
            if let Ok(scanned) = copy.scan(self.incarnation, &self.faults, None) {
                beside.superseded(&id, version, scanned.end.address);
            }
        }
    }
}
