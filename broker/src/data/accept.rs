//! What a stream asks of batches beyond what every stream asks: times near the broker's, records that can
//! be read, records with keys. Most streams ask for nothing of it, and then none of this runs.

use kera_protocol::batch::{
    BatchError, BatchHeader, Compression, MAX_BATCH_BYTES, check_keys, check_records,
    check_timestamps,
};
use kera_streamlet::Settings;
use parking_lot::{Mutex, MutexGuard};

use crate::clock::wall_ms;

/// Records of a batch that is read in full may take so many bytes when they are decompressed.
const MOST_BYTES: usize = MAX_BATCH_BYTES;
/// Memory for decompressed records that is kept for the next batch.
const KEPT_BYTES: usize = 1 << 20;
/// Memory for decompressed records: at most two batches are decompressed at once, over all connections.
static SCRATCH: [Mutex<Vec<u8>>; 2] = [Mutex::new(Vec::new()), Mutex::new(Vec::new())];

/// Checks a batch that is intact by the rules of its stream, of which there are some.
///
/// # Errors
/// The rule that is broken.
pub fn check(settings: &Settings, header: &BatchHeader, batch: &[u8]) -> Result<(), BatchError> {
    let rules = &settings.rules;
    // Where the broker stamps, the sender's times are of no interest.
    if (rules.before_max_ms, rules.after_max_ms) != (0, 0) && !settings.append_time {
        let now = wall_ms() as i64;
        check_timestamps(header, now, rules.before_max_ms, rules.after_max_ms)?;
    }
    if rules.full || rules.keyed {
        let look: Look = if rules.keyed {
            check_keys
        } else {
            check_records
        };
        let batch = &batch[..header.total_bytes];
        match header.compression()? {
            Compression::None => look(batch, MOST_BYTES, &mut Vec::new())?,
            // It may take as long as a write to a slow disk.
            _ => tokio::task::block_in_place(|| read_compressed(batch, look))?,
        }
    }
    Ok(())
}

/// Reads every record of a batch, with so much memory and so many bytes at most.
type Look = fn(&[u8], usize, &mut Vec<u8>) -> Result<(), BatchError>;

fn read_compressed(batch: &[u8], look: Look) -> Result<(), BatchError> {
    let free = SCRATCH.iter().find_map(Mutex::try_lock);
    let mut scratch: MutexGuard<'_, Vec<u8>> = free.unwrap_or_else(|| SCRATCH[0].lock());
    let outcome = look(batch, MOST_BYTES, &mut scratch);
    scratch.clear();
    scratch.shrink_to(KEPT_BYTES);
    outcome
}
