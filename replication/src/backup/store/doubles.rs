//! Groups of which a broker has both a replica in its store and a file of its own, as after an end in the middle of
//! a take-over, or after one whose disk did not let the replica go. One of the two stands: the one that is whole.
//!
//! A record names the broker once, and means whichever of the two is whole. So a short replica in the store hides no
//! whole file, and an answer that only one of the two cannot give now is no proof that the broker has lost the group.

use bytes::Bytes;

use crate::backup::copy::Life;
use crate::ids::CopyId;
use crate::transport::{Checked, Refusal, Reply, Request};

use super::ReplicaStore;
use crate::backup::owner_files::Beside;

/// Whether a refusal says that there is nothing, or too little. The others say nothing of what is there.
fn proves_loss(refusal: &Refusal) -> bool {
    matches!(refusal, Refusal::Short { .. } | Refusal::Unknown)
}

impl ReplicaStore {
    /// The file of a group of which the store has a replica that is not known to be whole.
    fn file_beside(&self, id: &CopyId) -> Option<&dyn Beside> {
        let replica = self.held(id).ok()?;
        if replica.state.lock().life == Life::Flushed {
            return None;
        }
        let beside = self.beside.get().filter(|beside| beside.has(id));
        beside.map(|beside| &**beside)
    }

    /// What was `read` from the store's replica from `address` on, with what the file beside it has behind the replica's
    /// valid end. Below that end both are the same.
    pub(super) fn with_file(
        &self,
        request: Request,
        read: Result<Bytes, Refusal>,
    ) -> Result<Reply, Refusal> {
        let Request::Read { copy, address, .. } = request else {
            return read.map(Reply::Bytes);
        };
        let Some(beside) = self.file_beside(&copy) else {
            return read.map(Reply::Bytes);
        };
        let read = match read {
            // Its bytes are going, and perhaps some have not gone yet.
            Err(refusal) if proves_loss(&refusal) => return beside.handle(request),
            read => read?,
        };
        let scanned = self.held(&copy)?.scan(self.incarnation, &self.faults, None);
        let valid = scanned.map_or(0, |scanned| scanned.end.address);
        let known = (valid.saturating_sub(address) as usize).min(read.len());
        if known == read.len() {
            return Ok(Reply::Bytes(read));
        }
        let rest = Request::Read {
            copy,
            address: address + known as u64,
            len: (read.len() - known) as u32,
        };
        match beside.handle(rest) {
            // A file that ends there as well says nothing: what lies behind damage in the replica may be of use.
            Ok(Reply::Bytes(rest)) if rest.iter().any(|byte| *byte != 0) => {
                let both = [&read[..known], &rest[..]].concat();
                Ok(Reply::Bytes(both.into()))
            }
            Err(refusal) if !proves_loss(&refusal) => Err(refusal),
            _ => Ok(Reply::Bytes(read)),
        }
    }

    /// What a check of the store's replica has found, or one of the file beside it where the replica is not right.
    pub(super) fn or_check_file(
        &self,
        request: Request,
        checked: Result<Checked, Refusal>,
    ) -> Result<Reply, Refusal> {
        let Request::Check { copy, .. } = &request else {
            return checked.map(Reply::Checked);
        };
        if matches!(&checked, Ok(checked) if checked.wrong.is_none()) {
            return checked.map(Reply::Checked);
        }
        let Some(beside) = self.file_beside(copy) else {
            return checked.map(Reply::Checked);
        };
        match beside.handle(request) {
            Ok(Reply::Checked(of_file)) if of_file.wrong.is_none() => Ok(Reply::Checked(of_file)),
            Err(refusal) if !proves_loss(&refusal) => Err(refusal),
            _ => checked.map(Reply::Checked),
        }
    }

    /// Answers for a closed group of which the store's replica is `short`. A recovery makes the own file whole and
    /// leaves the replica that it was made from as it was, so where there is a file that is whole up to `length`, and
    /// durable, that file stands for the group and the replica goes. A file that cannot be brought to a disk that
    /// fails may be whole all the same, and the broker does not say that it has lost the group.
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
            match proves_loss(&refusal) {
                true => short,
                false => refusal,
            }
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
