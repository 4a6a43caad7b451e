//! What a batch costs its client and the broker's front: the checksum, encoding and decoding, by
//! size and by codec.
//!
//! Records are 100 bytes, made of what compresses about as logs do: words, numbers and identifiers.

use std::hint::black_box;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use criterion::{
    BenchmarkId, Criterion, Throughput, criterion_group, criterion_main, measurement::Measurement,
};
use kera_protocol::batch::{
    BatchBuilder, Compression, HEADER_BYTES, NewRecord, ProducerStamp, Records, crc32c, verify,
};

const CODECS: [Compression; 5] = [
    Compression::None,
    Compression::Lz4,
    Compression::Zstd,
    Compression::Snappy,
    Compression::Gzip,
];
/// Of a batch before it is compressed.
const BATCH_BYTES: [usize; 2] = [16 << 10, 128 << 10];
/// Most bytes of a batch when it is decompressed.
const LIMIT: usize = 1 << 20;
const KEY: [u8; 8] = *b"client-7";

fn group<'a, M: Measurement>(
    c: &'a mut Criterion<M>,
    name: &str,
) -> criterion::BenchmarkGroup<'a, M> {
    let mut group = c.benchmark_group(name);
    group
        .sample_size(20)
        .measurement_time(Duration::from_secs(1))
        .warm_up_time(Duration::from_millis(300));
    group
}

/// Values that make records of 100 bytes with [`KEY`], enough for a batch of `bytes`.
fn values(bytes: usize) -> Vec<Vec<u8>> {
    let mut state = 0x6b65_7261_u64;
    (0..bytes / 100)
        .map(|n| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let mut value = format!(
                "time={} level=info id={state:016x} path=/orders/{} took={}",
                1_700_000_000_000_u64 + n as u64,
                state >> 54,
                state >> 58,
            )
            .into_bytes();
            value.resize(84, b' ');
            value
        })
        .collect()
}

fn encode(buffer: BytesMut, values: &[Vec<u8>], compression: Compression) -> Bytes {
    let mut builder = BatchBuilder::from_buffer(buffer);
    for (timestamp, value) in (1_700_000_000_000..).zip(values) {
        let record = NewRecord {
            key: Some(&KEY),
            value: Some(value),
            headers: &[],
            timestamp,
        };
        builder.push(&record).expect("room");
    }
    builder
        .finish(compression, ProducerStamp::NONE)
        .expect("records")
}

fn checksums(c: &mut Criterion) {
    let mut group = group(c, "crc32c");
    for bytes in [1 << 10, 4 << 10, 16 << 10, 128 << 10, 1 << 20] {
        let data: Vec<u8> = (0..bytes).map(|n| (n * 31) as u8).collect();
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(
            BenchmarkId::from_parameter(format!("{} KiB", bytes >> 10)),
            |b| {
                b.iter(|| crc32c(black_box(&data)));
            },
        );
    }
    group.finish();
}

/// From records to the bytes that are sent, checksum included.
fn encodes(c: &mut Criterion) {
    let mut group = group(c, "batch encode");
    for bytes in BATCH_BYTES {
        let values = values(bytes);
        group.throughput(Throughput::Elements(values.len() as u64));
        for codec in CODECS {
            let id = BenchmarkId::new(
                format!("{codec:?}").to_lowercase(),
                format!("{} KiB", bytes >> 10),
            );
            group.bench_function(id, |b| {
                // As a producer does, which has its buffers already.
                b.iter_batched(
                    || BytesMut::with_capacity(bytes + HEADER_BYTES),
                    |buffer| encode(buffer, black_box(&values), codec),
                    criterion::BatchSize::LargeInput,
                );
            });
        }
    }
    group.finish();
}

/// From the bytes that were received to every record, checksum included.
fn decodes(c: &mut Criterion) {
    let mut group = group(c, "batch decode");
    for bytes in BATCH_BYTES {
        let values = values(bytes);
        group.throughput(Throughput::Elements(values.len() as u64));
        for codec in CODECS {
            let batch = encode(BytesMut::new(), &values, codec);
            let mut scratch = Vec::new();
            let id = BenchmarkId::new(
                format!("{codec:?}").to_lowercase(),
                format!("{} KiB", bytes >> 10),
            );
            group.bench_function(id, |b| {
                b.iter(|| {
                    let batch = black_box(&batch[..]);
                    verify(batch).expect("undamaged");
                    let records = Records::open(batch, LIMIT, &mut scratch).expect("a batch");
                    let mut visited = 0;
                    for record in records {
                        let record = record.expect("a record");
                        visited += black_box(record.value).map_or(0, <[u8]>::len);
                    }
                    assert_eq!(visited, values.len() * 84);
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, checksums, encodes, decodes);
criterion_main!(benches);
