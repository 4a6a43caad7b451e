//! The batch header: reading, checking and patching it, in O(1) but for the checksum.

use crate::ids::{Epoch, Ordinal};

/// Bytes of a batch header; records follow.
pub const HEADER_BYTES: usize = 61;

/// No batch is larger, whatever a stream allows: 64 MiB.
pub const MAX_BATCH_BYTES: usize = 64 << 20;

/// No batch may claim to hold more records than fit so many bytes: 256 MiB. Readers decompress no more.
pub const MAX_DECOMPRESSED_BYTES: usize = 256 << 20;

/// Where the bytes that the CRC covers begin.
const CRC_START: usize = 21;
/// Bytes before the point from which the length field counts.
const LENGTH_BASE: usize = 12;
pub(super) const ATTRIBUTE_CODEC: i16 = 0x07;
const ATTRIBUTE_APPEND_TIME: i16 = 0x08;
const ATTRIBUTE_TRANSACTIONAL: i16 = 0x10;
const ATTRIBUTE_CONTROL: i16 = 0x20;
pub(super) const ATTRIBUTE_DELETE_HORIZON: i16 = 0x40;

/// How a batch's records are compressed. The broker stores and serves them as they came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Compression {
    /// As they are.
    #[default]
    None = 0,
    /// RFC 1952.
    Gzip = 1,
    /// Snappy, raw or in xerial's framing.
    Snappy = 2,
    /// The LZ4 frame format.
    Lz4 = 3,
    /// RFC 8878.
    Zstd = 4,
}

/// Why bytes are not a batch that can be stored or read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// Fewer bytes than the header, or than the header says.
    #[error("batch is cut short: {have} of {need} bytes")]
    Truncated {
        /// Bytes needed.
        need: usize,
        /// Bytes there are.
        have: usize,
    },
    /// The length field is below a header's or above the limit.
    #[error("batch length {0} is not between {HEADER_BYTES} and {MAX_BATCH_BYTES} bytes")]
    BadLength(i64),
    /// Another record format.
    #[error("batch has magic {0}, only 2 is supported")]
    BadMagic(i8),
    /// The bytes were damaged.
    #[error("batch checksum is {computed:#010x}, its header says {stored:#010x}")]
    BadCrc {
        /// As the header has it.
        stored: u32,
        /// Over the bytes.
        computed: u32,
    },
    /// The header contradicts itself.
    #[error("batch is inconsistent: {0}")]
    Inconsistent(&'static str),
    /// An unknown codec number.
    #[error("batch has unknown compression {0}")]
    UnknownCompression(u8),
    /// Records that do not decompress.
    #[error("batch does not decompress: {0}")]
    Decompress(String),
    /// Records that take more than so many bytes when they are decompressed.
    #[error("batch takes more than the {0} bytes allowed when it is decompressed")]
    TooLarge(usize),
    /// A time that is too far from the broker's clock.
    #[error(
        "record time {timestamp} (ms) lies {by} ms {direction} the broker's clock, the stream takes at most {limit} ms: set the sender's clock or unit right, or alter the stream's {key}"
    )]
    BadTimestamp {
        /// The record's.
        timestamp: i64,
        /// How far it lies from the broker's clock, in milliseconds.
        by: u64,
        /// "ahead of" or "behind".
        direction: &'static str,
        /// How far it may.
        limit: u64,
        /// The setting that says so.
        key: &'static str,
    },
    /// A record without a key, for a stream that is compacted by key.
    #[error(
        "record {index} has no key, and the stream keeps the newest record of each key (cleanup = compact): give it a key"
    )]
    NoKey {
        /// Index within the batch.
        index: u32,
    },
    /// Records that do not follow the format.
    #[error("record {index} is malformed: {reason}")]
    BadRecord {
        /// Index within the batch.
        index: u32,
        /// What is wrong with it.
        reason: &'static str,
    },
}

/// A decoded batch header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// Ordinal of the first record; meaningless before the broker has patched it.
    pub base_ordinal: Ordinal,
    /// Bytes of the whole batch, header included.
    pub total_bytes: usize,
    /// Epoch of the group; meaningless before the broker has patched it.
    pub epoch: Epoch,
    /// The CRC-32C as stored.
    pub crc: u32,
    /// The attribute bits as stored.
    pub attributes: i16,
    /// Ordinals the batch spans, less one.
    pub last_ordinal_delta: u32,
    /// What the records' times are counted from, milliseconds since 1970: the first record's, or the
    /// [delete horizon](Self::delete_horizon).
    pub base_timestamp: i64,
    /// Highest timestamp, milliseconds since 1970.
    pub max_timestamp: i64,
    /// Producer id, -1 for none.
    pub producer_id: i64,
    /// Producer epoch, -1 for none.
    pub producer_epoch: i16,
    /// Sequence of the first record within (producer, lane), -1 for none.
    pub base_sequence: i32,
    /// Records in the batch; 0 only where compaction left none.
    pub record_count: u32,
}

impl BatchHeader {
    /// Decodes the header at the start of `bytes` and checks that it does not contradict itself.
    /// Does not need the records to be there and does not check the CRC.
    ///
    /// # Errors
    /// [`BatchError`] naming the first field that cannot be right.
    pub fn peek(bytes: &[u8]) -> Result<Self, BatchError> {
        let Some(head) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Err(BatchError::Truncated {
                need: HEADER_BYTES,
                have: bytes.len(),
            });
        };
        let magic = head[16] as i8;
        if magic != 2 {
            return Err(BatchError::BadMagic(magic));
        }
        let length = i32::from_be_bytes(field(head, 8)) as i64 + LENGTH_BASE as i64;
        if length < HEADER_BYTES as i64 || length > MAX_BATCH_BYTES as i64 {
            return Err(BatchError::BadLength(length));
        }
        let last_ordinal_delta = i32::from_be_bytes(field(head, 23));
        let record_count = i32::from_be_bytes(field(head, 57));
        if record_count < 0 {
            return Err(BatchError::Inconsistent("its record count is negative"));
        }
        if last_ordinal_delta < 0 || last_ordinal_delta < record_count - 1 {
            return Err(BatchError::Inconsistent("more records than ordinals"));
        }
        let base_ordinal = i64::from_be_bytes(field(head, 0));
        let epoch = i32::from_be_bytes(field(head, 12));
        Ok(Self {
            base_ordinal: base_ordinal as u64,
            total_bytes: length as usize,
            epoch: Epoch(epoch as u32),
            crc: u32::from_be_bytes(field(head, 17)),
            attributes: i16::from_be_bytes(field(head, 21)),
            last_ordinal_delta: last_ordinal_delta as u32,
            base_timestamp: i64::from_be_bytes(field(head, 27)),
            max_timestamp: i64::from_be_bytes(field(head, 35)),
            producer_id: i64::from_be_bytes(field(head, 43)),
            producer_epoch: i16::from_be_bytes(field(head, 51)),
            base_sequence: i32::from_be_bytes(field(head, 53)),
            record_count: record_count as u32,
        })
    }

    /// How the records are compressed.
    ///
    /// # Errors
    /// [`BatchError::UnknownCompression`] for a codec number that has no meaning.
    pub fn compression(&self) -> Result<Compression, BatchError> {
        match self.attributes & ATTRIBUTE_CODEC {
            0 => Ok(Compression::None),
            1 => Ok(Compression::Gzip),
            2 => Ok(Compression::Snappy),
            3 => Ok(Compression::Lz4),
            4 => Ok(Compression::Zstd),
            other => Err(BatchError::UnknownCompression(other as u8)),
        }
    }

    /// Ordinal after the batch's last.
    pub fn next_ordinal(&self) -> Ordinal {
        self.base_ordinal.wrapping_add(self.ordinals())
    }

    /// Ordinals the batch spans. Equals the record count but in compacted batches.
    pub fn ordinals(&self) -> u64 {
        self.last_ordinal_delta as u64 + 1
    }

    /// True if an idempotent producer sent it.
    pub fn is_idempotent(&self) -> bool {
        self.producer_id >= 0
    }

    /// From when on its records without a value, and its markers, may go, milliseconds since 1970. Compaction
    /// writes it where the base timestamp was (KIP-534).
    pub fn delete_horizon(&self) -> Option<i64> {
        (self.attributes & ATTRIBUTE_DELETE_HORIZON != 0).then_some(self.base_timestamp)
    }

    /// Sequence of the last record. Sequences wrap from `i32::MAX` to 0, as Kafka's do.
    pub fn last_sequence(&self) -> i32 {
        wrap_sequence(self.base_sequence, self.last_ordinal_delta)
    }

    /// True if the timestamps are the broker's.
    pub fn is_append_time(&self) -> bool {
        self.attributes & ATTRIBUTE_APPEND_TIME != 0
    }

    /// True if the batch belongs to a transaction.
    pub fn is_transactional(&self) -> bool {
        self.attributes & ATTRIBUTE_TRANSACTIONAL != 0
    }

    /// True if the batch is a marker and not data.
    pub fn is_control(&self) -> bool {
        self.attributes & ATTRIBUTE_CONTROL != 0
    }
}

/// `sequence + delta` in Kafka's arithmetic, which wraps from `i32::MAX` to 0.
pub(crate) fn wrap_sequence(sequence: i32, delta: u32) -> i32 {
    ((sequence as i64 + delta as i64) & i32::MAX as i64) as i32
}

/// Decodes the header at the start of `bytes` and checks the CRC over the whole batch. Bytes after
/// the batch are not looked at.
///
/// # Errors
/// [`BatchError`] if the bytes are not one whole, undamaged batch.
pub fn verify(bytes: &[u8]) -> Result<BatchHeader, BatchError> {
    let header = BatchHeader::peek(bytes)?;
    if bytes.len() < header.total_bytes {
        return Err(BatchError::Truncated {
            need: header.total_bytes,
            have: bytes.len(),
        });
    }
    let computed = crc32c(&bytes[CRC_START..header.total_bytes]);
    if computed != header.crc {
        return Err(BatchError::BadCrc {
            stored: header.crc,
            computed,
        });
    }
    Ok(header)
}

/// The bytes of the batch at the start of `bytes`, if its checksum fits once one bit of its length is turned back. The length
/// is not covered by the checksum, so damage to it alone leaves the rest of the batch whole. `None` if no such length of at
/// most `bytes.len()` fits. For batches that [`verify`] refuses; costs one pass over `bytes`.
pub fn length_turned_back(bytes: &[u8]) -> Option<usize> {
    let head = bytes.first_chunk::<HEADER_BYTES>()?;
    let length = u32::from_be_bytes(field(head, 8));
    let stored = u32::from_be_bytes(field(head, 17));
    let lengths = (0..u32::BITS).map(|bit| length ^ (1 << bit));
    let totals =
        lengths.filter_map(|length| usize::try_from(length).ok()?.checked_add(LENGTH_BASE));
    let most = bytes.len().min(MAX_BATCH_BYTES);
    let mut totals: Vec<usize> = totals
        .filter(|t| (HEADER_BYTES..=most).contains(t))
        .collect();
    totals.sort_unstable();
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    let mut at = CRC_START;
    totals.into_iter().find(|total| {
        digest.update(&bytes[at..*total]);
        at = *total;
        digest.finalize() as u32 == stored
    })
}

/// Writes base ordinal and epoch in place. O(1): both lie before the bytes that the CRC covers.
///
/// # Panics
/// If `bytes` is shorter than a header.
pub fn patch(bytes: &mut [u8], base_ordinal: Ordinal, epoch: Epoch) {
    bytes[0..8].copy_from_slice(&(base_ordinal as i64).to_be_bytes());
    bytes[12..16].copy_from_slice(&(epoch.0 as i32).to_be_bytes());
}

/// Stamps the whole batch with the broker's clock (Kafka's `LogAppendTime`): sets the attribute and
/// the max timestamp, which readers then take for every record, and writes a new CRC.
///
/// # Panics
/// If `bytes` is not exactly one batch.
pub fn patch_append_time(bytes: &mut [u8], now_ms: i64) {
    let attributes = i16::from_be_bytes([bytes[21], bytes[22]]) | ATTRIBUTE_APPEND_TIME;
    bytes[21..23].copy_from_slice(&attributes.to_be_bytes());
    bytes[35..43].copy_from_slice(&now_ms.to_be_bytes());
    seal(bytes);
}

/// What a batch is made beside data on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Marked {
    /// A transaction's data.
    Transactional,
    /// A transaction's end.
    Control,
}

/// Sets the attributes of one whole batch, and writes its CRC.
pub(crate) fn mark(bytes: &mut [u8], as_what: Marked) {
    let bits = match as_what {
        Marked::Transactional => ATTRIBUTE_TRANSACTIONAL,
        Marked::Control => ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL,
    };
    let attributes = i16::from_be_bytes([bytes[21], bytes[22]]) | bits;
    bytes[21..23].copy_from_slice(&attributes.to_be_bytes());
    seal(bytes);
}

/// Writes the CRC of one whole batch into its header.
pub(crate) fn seal(bytes: &mut [u8]) {
    let crc = crc32c(&bytes[CRC_START..]);
    bytes[17..21].copy_from_slice(&crc.to_be_bytes());
}

/// CRC-32C (Castagnoli) of `bytes`, as batches, segment headers and slots use it.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

fn field<const N: usize>(head: &[u8; HEADER_BYTES], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&head[at..at + N]);
    out
}
