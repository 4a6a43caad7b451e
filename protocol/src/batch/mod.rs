//! The batch: Kafka's record batch v2, byte for byte, everywhere (wire, memory, disk, backup).
//!
//! ```text
//! offset  bytes  field                     covered by the CRC
//!  0       8     base ordinal              no: the broker writes it in place
//!  8       4     length of what follows    no
//! 12       4     epoch of the group        no: the broker writes it in place
//! 16       1     magic, always 2           no
//! 17       4     CRC-32C of all below      -
//! 21       2     attributes                yes
//! 23       4     last ordinal delta        yes
//! 27       8     base timestamp, ms        yes
//! 35       8     max timestamp, ms         yes
//! 43       8     producer id, -1: none     yes
//! 51       2     producer epoch            yes
//! 53       4     base sequence             yes
//! 57       4     record count              yes
//! 61       -     records                   yes
//! ```
//! All numbers are big-endian, as Kafka has them.

mod builder;
mod codec;
mod compacted;
mod header;
mod marker;
mod record;
mod validate;
mod varint;

pub use builder::{BatchBuilder, NewRecord, ProducerStamp, next_sequence, write_stamp};
pub use codec::{compress, decompress};
pub use compacted::{MAX_EMPTY_ORDINALS, emptied, empty, extend, rebuild};
pub use header::{
    BatchError, BatchHeader, Compression, HEADER_BYTES, MAX_BATCH_BYTES, MAX_DECOMPRESSED_BYTES,
    crc32c, length_turned_back, patch, patch_append_time, verify,
};
pub use marker::{Marker, mark_transactional};
pub use record::{Header, Headers, MIN_RECORD_BYTES, Record, Records};
pub use validate::{
    Batches, batches, check_keys, check_produced, check_records, check_timestamps, validate_records,
};
