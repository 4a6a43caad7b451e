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

/// Decompresses `stored` into `out`, whose content is replaced. `out` never grows beyond `limit`
/// bytes by more than one.
///
/// # Errors
/// [`BatchError::Decompress`] if the bytes are damaged or give more than `limit` bytes.
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

fn failed(error: impl std::fmt::Display) -> BatchError {
    BatchError::Decompress(error.to_string())
}

fn within(bytes: usize, limit: usize) -> Result<(), BatchError> {
    if bytes > limit {
        return Err(failed(format_args!("more than {limit} bytes")));
    }
    Ok(())
}

fn read_all(decoder: impl Read, limit: usize, out: &mut Vec<u8>) -> Result<(), BatchError> {
    let room = ((limit - out.len()) as u64).saturating_add(1);
    decoder.take(room).read_to_end(out).map_err(failed)?;
    within(out.len(), limit)
}

fn unzstd(stored: &[u8], limit: usize, out: &mut Vec<u8>) -> Result<(), BatchError> {
    let mut rest = stored;
    // A batch may hold several frames, one after the other.
    while !rest.is_empty() {
        let mut decoder =
            ruzstd::decoding::StreamingDecoder::new_with_max_window_size(&mut rest, window(limit))
                .map_err(failed)?;
        let room = ((limit - out.len()) as u64).saturating_add(1);
        (&mut decoder).take(room).read_to_end(out).map_err(failed)?;
        within(out.len(), limit)?;
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
    out.resize(start + bytes, 0);
    let written = snap::raw::Decoder::new()
        .decompress(block, &mut out[start..])
        .map_err(failed)?;
    out.truncate(start + written);
    Ok(())
}
