//! The brokers that share a cluster's metadata store, as the file `BROKERS` of a data directory remembers them: a store that is put back
//! to an older state does not name those that were added since.
//!
//! A line `kera brokers 1`, then a line for each broker: its number, the id of its data directory, and its address.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use kera_metadata::{BrokerRecord, Role};
use uuid::Uuid;

/// The file's name.
pub(crate) const FILE: &str = "BROKERS";
const HEADER: &str = "kera brokers 1";

/// A broker that shares the store, as a directory remembers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KnownBroker {
    pub(crate) store_id: Uuid,
    pub(crate) address: String,
}

/// Those that are `known`, by number, with what is recorded of brokers now; replica stores are none.
pub(crate) fn with<'a>(
    known: &BTreeMap<u32, KnownBroker>,
    recorded: impl IntoIterator<Item = &'a BrokerRecord>,
) -> BTreeMap<u32, KnownBroker> {
    let mut all = known.clone();
    for broker in recorded.into_iter().filter(|b| b.role == Role::Broker) {
        let known = KnownBroker {
            store_id: broker.store_id,
            address: broker.address.clone(),
        };
        all.insert(broker.id, known);
    }
    all
}

/// The file's text.
pub(crate) fn text(all: &BTreeMap<u32, KnownBroker>) -> String {
    let lines = all.iter().map(|(id, known)| {
        let KnownBroker { store_id, address } = known;
        format!("{id} {store_id} {address}\n")
    });
    format!("{HEADER}\n{}", lines.collect::<String>())
}

/// What the file in directory `path` says; nothing if there is none.
///
/// # Errors
/// For people: it cannot be read, or is damaged.
pub(crate) fn read(path: &Path) -> Result<BTreeMap<u32, KnownBroker>, String> {
    let text = match fs::read_to_string(path.join(FILE)) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(format!("{FILE} cannot be read: {error}")),
    };
    let mut lines = text.lines();
    let known = |line: &str| {
        let mut words = line.splitn(3, ' ');
        let id = words.next()?.parse().ok()?;
        let store_id = words.next()?.parse().ok()?;
        let address = words.next()?.to_owned();
        Some((id, KnownBroker { store_id, address }))
    };
    let is_whole = lines.next() == Some(HEADER);
    let all: Option<_> = lines.map(known).collect();
    all.filter(|_| is_whole).ok_or_else(|| {
        format!(
            "its file {FILE} is damaged; restore it from a backup of the directory, or remove it: it is needed only after the cluster's metadata store was put back to an older state"
        )
    })
}
