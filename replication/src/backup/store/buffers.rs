//! The table of buffers that links may write, and what network cards know of them.

use std::collections::HashMap;
use std::sync::Arc;

use super::ReplicaStore;
use crate::backup::copy::{Copy, Region, failed};
use crate::backup::registrar::{Registrar, Registration};
use crate::ids::{BrokerId, BufferKey};
use crate::transport::Refusal;

/// A buffer that a link may write.
#[derive(Debug)]
pub(super) struct Entry {
    /// Dropped first, so that no card writes what belongs to nobody any more.
    registration: Option<Box<dyn Registration>>,
    pub(super) primary: BrokerId,
    pub(super) region: Region,
}

/// Buffers by key.
pub(super) type Buffers = HashMap<BufferKey, Entry>;

/// Buffers registered for one request and not in the table yet.
pub(super) type Registrations = HashMap<BufferKey, Box<dyn Registration>>;

/// Whether a primary may be in the middle of writing what is taken from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taking {
    /// It may: its connections are destroyed first.
    ByForce,
    /// It has seen all its writes complete, and says so.
    WhenDone,
}

impl ReplicaStore {
    /// Lets network cards at buffers that are opened from now on. The first one stays.
    pub fn register_with(&self, registrar: Arc<dyn Registrar>) {
        let _first_stays = self.registrar.set(registrar);
    }

    /// True if there is a buffer that `primary` may write.
    pub fn has_buffers_of(&self, primary: BrokerId) -> bool {
        let known = self.buffers.read();
        known.values().any(|entry| entry.primary == primary)
    }

    /// A key for `bytes` reserved bytes of `copy` at `address`: any, or what the card gives.
    pub(super) fn key_for(
        &self,
        copy: &Copy,
        primary: BrokerId,
        address: u64,
        bytes: u64,
        registrations: &mut Registrations,
    ) -> Result<BufferKey, Refusal> {
        let Some(registrar) = self.registrar.get() else {
            return Ok(BufferKey(rand::random()));
        };
        let window = match copy.memory.window(address, bytes) {
            Ok(window) => window,
            Err(error) if error.kind() == std::io::ErrorKind::Unsupported => {
                return Ok(BufferKey(rand::random()));
            }
            Err(error) => return Err(failed(error)),
        };
        let (key, registration) = registrar.register(primary, window).map_err(failed)?;
        registrations.insert(key, registration);
        Ok(key)
    }

    /// Enters buffers of `copy` that are not known yet. To be called while its state is locked and
    /// open, so that whoever ends its life finds them here.
    pub(super) fn enter(
        &self,
        copy: &Arc<Copy>,
        primary: BrokerId,
        buffers: &[crate::transport::Buffer],
        registrations: &mut Registrations,
    ) {
        let mut known = self.buffers.write();
        for buffer in buffers {
            known.entry(buffer.key).or_insert_with(|| Entry {
                registration: registrations.remove(&buffer.key),
                primary,
                region: Region {
                    copy: copy.clone(),
                    address: buffer.address,
                    bytes: buffer.bytes,
                },
            });
        }
    }

    /// Takes all buffers of `copy` from the table, so that their keys mean nothing.
    pub(super) fn forget_buffers(&self, copy: &Copy, taking: Taking) -> Result<(), Refusal> {
        let keys: Vec<_> = copy.state.lock().buffers.iter().map(|b| b.key).collect();
        self.forget_keys(taking, &keys)
    }

    /// Takes `which` from the table, as [`forget_keys`](Self::forget_keys) does. None of them may be
    /// entered any more: who ends a copy's life does that first.
    pub(super) fn forget_where(
        &self,
        taking: Taking,
        which: impl Fn(&Entry) -> bool,
    ) -> Result<(), Refusal> {
        let known = self.buffers.read();
        let found = known.iter().filter(|(_, entry)| which(entry));
        let keys: Vec<_> = found.map(|(key, _)| *key).collect();
        drop(known);
        self.forget_keys(taking, &keys)
    }

    /// Takes `keys` from the table and from the cards. When this returns without an error nobody
    /// writes them any more; after an error they stay known, and asked again it is tried again.
    pub(super) fn forget_keys(&self, taking: Taking, keys: &[BufferKey]) -> Result<(), Refusal> {
        let mut known = self.buffers.write();
        let entries = keys.iter().filter_map(|key| known.get(key));
        let mut primaries: Vec<_> = entries
            .filter(|entry| entry.registration.is_some())
            .map(|entry| entry.primary)
            .collect();
        primaries.sort_unstable();
        primaries.dedup();
        let mut result = Ok(());
        let mut take = || {
            for key in keys {
                let Some(entry) = known.get_mut(key) else {
                    continue;
                };
                match entry.registration.as_mut().map_or(Ok(()), |r| r.end()) {
                    Ok(()) => {
                        known.remove(key);
                    }
                    Err(error) => {
                        tracing::error!(%error, copy = %entry.region.copy.spec.copy, "a buffer could not be taken from the network card");
                        result = Err(failed(error));
                    }
                }
            }
        };
        match self.registrar.get() {
            Some(registrar) if taking == Taking::ByForce && !primaries.is_empty() => {
                registrar.disconnect(&primaries, &mut take);
            }
            _ => take(),
        }
        result
    }
}
