//! What the file holds besides records: its format, and what the last commit left.

use std::path::Path;

use kera_protocol::batch::crc32c;
use kera_records::key;
use prost::Message;
use redb::{ReadTransaction, TableDefinition, TableError};
use uuid::Uuid;

use super::file::file_error;
use crate::error::MetadataError;
use crate::image::corrupt;

/// The format of a new file, and the newest that this build reads. Raised when an older build could no longer
/// use the file; fields may be added to records without it. Version 2 added the floor of epochs. Version 3 says that
/// records may be of cluster version 1; older files become one when that is finalized, and not before, so that there
/// is a way back. Versions 4 to 9 say the same of cluster versions 2 to 7.
pub(super) const FORMAT_VERSION: u32 = 9;
/// The format of a file whose records any build reads that knows the floor of epochs.
const BEFORE_VERSIONS: u32 = 2;

/// All records, under the bytes of their keys.
pub(super) const RECORDS: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("records");
/// Broker settings, under the bytes of their keys. Apart from the records, among which older builds accept
/// no kind of key that they do not know; not counted in the summary. Absent until the first was changed.
const SETTINGS: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("settings");
/// Rules of access, likewise.
const RULES: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("rules");

/// Users, likewise.
const USERS: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("users");

/// Quotas, likewise.
const QUOTAS: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("quotas");

/// Pins, likewise.
const PINS: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("pins");

/// The table of a key that lies apart, and not among the records.
pub(super) fn table_apart(
    key: &[u8],
) -> Option<TableDefinition<'static, &'static [u8], &'static [u8]>> {
    match *key.first()? {
        key::SETTINGS => Some(SETTINGS),
        key::RULES => Some(RULES),
        key::USERS => Some(USERS),
        key::QUOTAS => Some(QUOTAS),
        key::PIN => Some(PINS),
        _ => None,
    }
}
/// The kinds of keys that lie apart.
pub(super) const APART: [u8; 5] = [key::SETTINGS, key::RULES, key::USERS, key::QUOTAS, key::PIN];

/// Holds one value, the summary. Apart from the records, so that any format finds it.
pub(super) const META: TableDefinition<'static, &str, &[u8]> =
    TableDefinition::new("kera-metadata");
const SUMMARY_KEY: &str = "summary";

/// What stands in the file beside the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Summary {
    /// Random id made when the file was.
    pub(super) cluster: Uuid,
    /// Revision of the last transaction.
    pub(super) revision: u64,
    /// How many values the records table holds.
    pub(super) values: u64,
    /// The file's format.
    pub(super) format: u32,
}

impl Summary {
    /// The cluster version that a file of this format has at least.
    pub(super) fn cluster_version(&self) -> u32 {
        self.format.saturating_sub(BEFORE_VERSIONS)
    }

    /// Says that records may be of this cluster version from now on.
    pub(super) fn finalize(&mut self, cluster_version: u32) {
        let format = (BEFORE_VERSIONS + cluster_version).min(FORMAT_VERSION);
        self.format = self.format.max(format);
    }
}

#[derive(Clone, PartialEq, Message)]
struct SummaryMessage {
    #[prost(uint32, tag = "1")]
    format_version: u32,
    #[prost(bytes = "vec", tag = "2")]
    cluster: Vec<u8>,
    #[prost(uint64, tag = "3")]
    revision: u64,
    #[prost(uint64, tag = "4")]
    values: u64,
}

/// `[crc32c u32 LE][prost message]`.
pub(super) fn encode_summary(summary: &Summary) -> Vec<u8> {
    let message = SummaryMessage {
        format_version: summary.format,
        cluster: summary.cluster.as_bytes().to_vec(),
        revision: summary.revision,
        values: summary.values,
    }
    .encode_to_vec();
    let mut out = crc32c(&message).to_le_bytes().to_vec();
    out.extend_from_slice(&message);
    out
}

fn decode_summary(path: &Path, bytes: &[u8]) -> Result<Summary, MetadataError> {
    let message = bytes
        .split_first_chunk::<4>()
        .filter(|(checksum, rest)| u32::from_le_bytes(**checksum) == crc32c(rest))
        .and_then(|(_, rest)| SummaryMessage::decode(rest).ok())
        .ok_or_else(|| corrupt(path, "its summary does not match its checksum".into()))?;
    if message.format_version > FORMAT_VERSION {
        return Err(MetadataError::NewerFormat {
            path: path.to_path_buf(),
            found: message.format_version,
            supported: FORMAT_VERSION,
        });
    }
    let cluster = Uuid::from_slice(&message.cluster)
        .map_err(|_| corrupt(path, "its id is not 16 bytes long".into()))?;
    Ok(Summary {
        cluster,
        revision: message.revision,
        values: message.values,
        // What is written from now on has the floor of epochs.
        format: message.format_version.max(BEFORE_VERSIONS),
    })
}

/// The summary of a file, after its format was found to be readable.
pub(super) fn read_summary(
    path: &Path,
    transaction: &ReadTransaction,
) -> Result<Summary, MetadataError> {
    let missing = || {
        corrupt(
            path,
            "it is a redb file without Kera's tables, of another program".into(),
        )
    };
    let meta = match transaction.open_table(META) {
        Err(TableError::TableDoesNotExist(_)) => return Err(missing()),
        other => other.map_err(|e| file_error(path, e))?,
    };
    let value = meta
        .get(SUMMARY_KEY)
        .map_err(|e| file_error(path, e))?
        .ok_or_else(missing)?;
    decode_summary(path, value.value())
}

/// Writes the summary into the table that belongs to it.
pub(super) fn write_summary(
    path: &Path,
    meta: &mut redb::Table<'_, &'static str, &'static [u8]>,
    summary: &Summary,
) -> Result<(), MetadataError> {
    meta.insert(SUMMARY_KEY, encode_summary(summary).as_slice())
        .map_err(|e| file_error(path, e))?;
    Ok(())
}
