//! The four compressions, in the forms Kafka's clients read and write.

use std::io::{Read, Write};

use super::header::{BatchError, Compression};

/// What the snappy-java library puts before its blocks: magic, version 1, compatible with 1.
const XERIAL_HEADER: [u8; 16] = [
    0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0, 0, 0, 0, 1, 0, 0, 0, 1,
];
const XERIAL_MAGIC_BYTES: usize = 8;
/// Uncompressed bytes of a xerial block, as snappy-java cuts them.
const XERIAL_BLOCK_BYTES: usize = 32 << 10;
/// Bytes that are reserved at first for what is decompressed.
const FIRST_BYTES: usize = 4 << 10;

/// Compresses `records`. Snappy is written in xerial's framing, which every Kafka client reads; LZ4
/// with independent blocks, which Java's demands.
pub fn compress(compression: Compression, records: &[u8]) -> Vec<u8> {
    // Writing to memory does not fail; should an encoder refuse, the caller sends the records as
    // they are, because an empty result stands for "not smaller".
    match compression {
        Compression::None => Some(records.to_vec()),
        Compression::Gzip => gzip(records),
        Compression::Snappy => snappy(records),
        Compression::Lz4 => lz4(records),
        Compression::Zstd => Some(ruzstd::encoding::compress_to_vec(
            records,
            ruzstd::encoding::CompressionLevel::Fastest,
        )),
    }
    .unwrap_or_else(|| records.to_vec())
}

fn gzip(records: &[u8]) -> Option<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(records).ok()?;
    encoder.finish().ok()
}

fn snappy(records: &[u8]) -> Option<Vec<u8>> {
    let mut out = XERIAL_HEADER.to_vec();
    let mut encoder = snap::raw::Encoder::new();
    for block in records.chunks(XERIAL_BLOCK_BYTES) {
        let compressed = encoder.compress_vec(block).ok()?;
        out.extend_from_slice(&(compressed.len() as u32).to_be_bytes());
        out.extend_from_slice(&compressed);
    }
    Some(out)
}

fn lz4(records: &[u8]) -> Option<Vec<u8>> {
    let info = lz4_flex::frame::FrameInfo::new()
        .block_size(lz4_flex::frame::BlockSize::Max64KB)
        .block_mode(lz4_flex::frame::BlockMode::Independent);
    let mut encoder = lz4_flex::frame::FrameEncoder::with_frame_info(info, Vec::new());
    encoder.write_all(records).ok()?;
    encoder.finish().ok()
}

/// Decompresses `stored` into `out`, whose content is replaced. The memory of `out` never grows beyond
/// `limit` bytes by more than one, or beyond what it has at first.
///
/// # Errors
/// [`BatchError::Decompress`] if the bytes are damaged, [`BatchError::TooLarge`] if they give more than
/// `limit` bytes.
pub fn decompress(
    compression: Compression,
    stored: &[u8],
    limit: usize,
    out: &mut Vec<u8>,
) -> Result<(), BatchError> {
    out.clear();
    match compression {
        Compression::None => {
            within(stored.len(), limit)?;
            out.extend_from_slice(stored);
            Ok(())
        }
        Compression::Gzip => read_all(flate2::read::MultiGzDecoder::new(stored), limit, out),
        Compression::Snappy => unsnappy(stored, limit, out),
        Compression::Lz4 => read_all(lz4_flex::frame::FrameDecoder::new(stored), limit, out),
        Compression::Zstd => unzstd(stored, limit, out),
    }
}

/// How a gzip member begins: magic, and deflate as the method.
const GZIP_START: [u8; 3] = [0x1f, 0x8b, 8];
const LZ4_MAGIC: u32 = 0x184d_2204;
const ZSTD_MAGIC: u32 = 0xfd2f_b528;
/// The first of the sixteen magics of frames that are skipped.
const ZSTD_SKIPPED: u32 = 0x184d_2a50;

/// The most bytes that `stored` may decompress to, by its length, its codec and its first bytes alone.
///
/// A codec's ratio is bounded by its format: deflate gives at most 258 bytes for 2 bits, snappy 64 for 3
/// bytes, LZ4 255 for one, and zstd a block of 128 KiB for 4.
///
/// # Errors
/// [`BatchError::Inconsistent`] if nothing of the codec begins so.
pub(super) fn most_bytes(compression: Compression, stored: &[u8]) -> Result<usize, BatchError> {
    let wrong = |what| Err(BatchError::Inconsistent(what));
    if stored.is_empty() {
        return wrong("its records are missing");
    }
    let first = stored
        .first_chunk()
        .map_or(0, |four| u32::from_le_bytes(*four));
    let ratio = match compression {
        Compression::None => 1,
        Compression::Gzip if !stored.starts_with(&GZIP_START) => {
            return wrong("its records are not gzip, as its attributes say");
        }
        Compression::Gzip => 1032,
        Compression::Lz4 if first != LZ4_MAGIC => {
            return wrong("its records are no LZ4 frame, as its attributes say");
        }
        Compression::Lz4 => 255,
        Compression::Zstd if first != ZSTD_MAGIC && first & !0xf != ZSTD_SKIPPED => {
            return wrong("its records are not zstd, as its attributes say");
        }
        Compression::Zstd => 32 << 10,
        Compression::Snappy => {
            let most = stored.len().saturating_mul(22);
            if stored.starts_with(&XERIAL_HEADER[..XERIAL_MAGIC_BYTES]) {
                return Ok(most);
            }
            // A raw block begins with the bytes that it gives.
            return match snap::raw::decompress_len(stored) {
                Ok(bytes) if bytes <= most => Ok(bytes),
                _ => wrong("its records are not snappy, as its attributes say"),
            };
        }
    };
    Ok(stored.len().saturating_mul(ratio))
}

fn failed(error: impl std::fmt::Display) -> BatchError {
    BatchError::Decompress(error.to_string())
}

fn within(bytes: usize, limit: usize) -> Result<(), BatchError> {
    if bytes > limit {
        return Err(BatchError::TooLarge(limit));
    }
    Ok(())
}

fn read_all(mut decoder: impl Read, limit: usize, out: &mut Vec<u8>) -> Result<(), BatchError> {
    // Twice as much at a time, as a vector grows by itself, but never beyond the limit.
    loop {
        let room = (limit - out.len()).saturating_add(1);
        let more = out.capacity().max(FIRST_BYTES).min(room);
        out.reserve_exact(more);
        let spare = (out.capacity() - out.len()).min(room);
        let read = decoder
            .by_ref()
            .take(spare as u64)
            .read_to_end(out)
            .map_err(failed)?;
        within(out.len(), limit)?;
        if read < spare {
            return Ok(());
        }
    }
}

fn unzstd(stored: &[u8], limit: usize, out: &mut Vec<u8>) -> Result<(), BatchError> {
    let mut rest = stored;
    // A batch may hold several frames, one after the other.
    while !rest.is_empty() {
        let decoder =
            ruzstd::decoding::StreamingDecoder::new_with_max_window_size(&mut rest, window(limit))
                .map_err(failed)?;
        read_all(decoder, limit, out)?;
    }
    Ok(())
}

/// A window is memory that a frame's header asks for. Encoders round it up to a power of two, so it
/// may be larger than the records that fill it.
fn window(limit: usize) -> u64 {
    (limit.clamp(1 << 20, 1 << 30) as u64).next_power_of_two()
}

fn unsnappy(stored: &[u8], limit: usize, out: &mut Vec<u8>) -> Result<(), BatchError> {
    if !stored.starts_with(&XERIAL_HEADER[..XERIAL_MAGIC_BYTES]) {
        return unsnappy_block(stored, limit, out);
    }
    let mut rest = stored
        .get(XERIAL_HEADER.len()..)
        .ok_or_else(|| failed("snappy header is cut short"))?;
    while !rest.is_empty() {
        let (length, blocks) = rest
            .split_first_chunk::<4>()
            .ok_or_else(|| failed("snappy block length is cut short"))?;
        let (block, after) = blocks
            .split_at_checked(u32::from_be_bytes(*length) as usize)
            .ok_or_else(|| failed("snappy block is cut short"))?;
        unsnappy_block(block, limit, out)?;
        rest = after;
    }
    Ok(())
}

fn unsnappy_block(block: &[u8], limit: usize, out: &mut Vec<u8>) -> Result<(), BatchError> {
    let bytes = snap::raw::decompress_len(block).map_err(failed)?;
    let start = out.len();
    within(start.saturating_add(bytes), limit)?;
    if out.capacity() < start + bytes {
        let more = bytes.max(start).min(limit - start);
        out.reserve_exact(more);
    }
    out.resize(start + bytes, 0);
    let written = snap::raw::Decoder::new()
        .decompress(block, &mut out[start..])
        .map_err(failed)?;
    out.truncate(start + written);
    Ok(())
}
