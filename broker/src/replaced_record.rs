//! Records that are replaced as a whole: settings of a broker or of all, rules of access, users, quotas.

use std::sync::Arc;

use kera_metadata::{
    Compare, MetadataError, MetadataStore, QuotasRecord, RulesRecord, SettingsRecord, Transaction,
    UsersRecord, Write,
};
use kera_protocol::error::{ErrorCode, WireError};

use crate::store_calls::{blocking, metadata_error};

/// Attempts to change a record that others change at the same time.
const ATTEMPTS: u32 = 16;

/// A record that is replaced as a whole.
pub(crate) trait Replaced: Clone + Send + 'static {
    /// What people call what is in it; there are several.
    const NAME: &'static str;

    /// Its revision, or that of the record that it is to replace.
    fn revision(&mut self) -> &mut u64;

    /// Writes it.
    fn put(self) -> Write;
}

impl Replaced for SettingsRecord {
    const NAME: &'static str = "the settings";

    fn revision(&mut self) -> &mut u64 {
        &mut self.revision
    }

    fn put(self) -> Write {
        Write::PutSettings(self)
    }
}

impl Replaced for RulesRecord {
    const NAME: &'static str = "the rules of access";

    fn revision(&mut self) -> &mut u64 {
        &mut self.revision
    }

    fn put(self) -> Write {
        Write::PutRules(self)
    }
}

impl Replaced for UsersRecord {
    const NAME: &'static str = "users";

    fn revision(&mut self) -> &mut u64 {
        &mut self.revision
    }

    fn put(self) -> Write {
        Write::PutUsers(self)
    }
}

impl Replaced for QuotasRecord {
    const NAME: &'static str = "quotas";

    fn revision(&mut self) -> &mut u64 {
        &mut self.revision
    }

    fn put(self) -> Write {
        Write::PutQuotas(self)
    }
}

/// What a store answers to `read`.
///
/// # Errors
/// The metadata store's.
pub(crate) async fn read_record<R: Send + 'static>(
    store: &Arc<dyn MetadataStore>,
    read: impl FnOnce(&dyn MetadataStore) -> Result<R, MetadataError> + Send + 'static,
) -> Result<R, WireError> {
    let store = store.clone();
    blocking(move || read(&*store).map_err(|error| metadata_error(&error))).await
}

/// Changes the record that `read` reads: `change` makes the record that is to be of the one that is, anew each time that
/// others were faster, and answers with whether there is anything to write. What was written is taken in by `take`. The
/// record as it is then, and the answer.
///
/// # Errors
/// Those of `change`, [`ErrorCode::Overloaded`] if others are faster again and again, or what the metadata store
/// answers.
pub(crate) async fn change_record<R: Replaced, T>(
    store: &Arc<dyn MetadataStore>,
    read: impl Fn(&dyn MetadataStore) -> Result<R, MetadataError> + Copy + Send + 'static,
    mut change: impl FnMut(&mut R) -> Result<(T, bool), WireError>,
    take: impl FnOnce(&R),
) -> Result<(R, T), WireError> {
    for _ in 0..ATTEMPTS {
        let mut record = read_record(store, read).await?;
        let (answer, is_other) = change(&mut record)?;
        if !is_other {
            return Ok((record, answer));
        }
        let (writing, wanted) = (store.clone(), record.clone());
        if let Some(revision) = blocking(move || write(&*writing, wanted)).await? {
            *record.revision() = revision;
            take(&record);
            return Ok((record, answer));
        }
    }
    let text = format!(
        "{} were changed by others at the same time, again and again; try again",
        R::NAME
    );
    Err(WireError::new(ErrorCode::Overloaded, text))
}

/// Writes a record over that of its revision, which it has then; `None` if that has been replaced by now.
fn write(store: &dyn MetadataStore, mut record: impl Replaced) -> Result<Option<u64>, WireError> {
    let revision = *record.revision();
    let write = record.put();
    let compare = Compare::revision(write.key(), revision);
    match store.commit(Transaction::new(vec![compare], vec![write])) {
        Ok(committed) => Ok(Some(committed.revision)),
        Err(MetadataError::Conflict(_)) => Ok(None),
        Err(error) => Err(metadata_error(&error)),
    }
}
