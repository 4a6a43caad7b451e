//! Finding an ordinal or a time: in the sparse index, and down to the batch.

mod support;

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use kera_log_segments::footer::{INDEX_STRIDE, SparseIndex};
use kera_log_segments::group::AckPolicy;
use kera_protocol::batch::BatchHeader;
use kera_protocol::ids::LaneId;
use kera_streamlet::{LaneReadSpec, Located};
use support::{Bench, batch};

fn lookups(c: &mut Criterion) {
    // A full group of the default size: 128 MiB, an entry each 64 KiB.
    let mut index = SparseIndex::default();
    let steps = (128 << 20) / INDEX_STRIDE;
    for step in 0..steps {
        index.note(step * 650, 96 + step * INDEX_STRIDE, step as i64 * 10);
    }
    let mut at = 0u64;
    let mut next = move |below: u64| {
        at = at
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (at >> 33) % below
    };
    c.bench_function("index/ordinal", |b| {
        b.iter(|| black_box(index.floor_ordinal(next(steps * 650))))
    });
    c.bench_function("index/time", |b| {
        b.iter(|| black_box(index.floor_time(next(steps * 10) as i64)))
    });
}

fn reads(c: &mut Criterion) {
    let bench = Bench::on_disk(AckPolicy::Written, 1);
    let mut bytes = batch(16 << 10, 1);
    let mut header = BatchHeader::peek(&bytes).expect("a batch");
    let mut sequence = 0;
    for _ in 0..4000 {
        bench.append(0, &mut bytes, &mut header, &mut sequence);
    }
    let lane = LaneId(0);
    let head = bench.streamlet.head(lane).expect("a lane").ordinal();
    let read = |from: Located| {
        let spec = LaneReadSpec {
            lane,
            from,
            end_ordinal: u64::MAX,
            max_bytes: 64 << 10,
            cached_only: false,
        };
        bench.streamlet.read(spec).expect("a read")
    };
    let near = Located {
        ordinal: head - u64::from(header.record_count),
        at: None,
    };
    c.bench_function("read/the last batch, from memory", |b| {
        b.iter(|| black_box(read(near)))
    });
    let first = read(Located {
        ordinal: head - 2 * u64::from(header.record_count),
        at: None,
    });
    let _ = first;
    c.bench_function("read/64 KiB anywhere, from the page cache", |b| {
        let mut at = 0;
        b.iter(|| {
            at = (at + 7919 * u64::from(header.record_count)) % head;
            black_box(read(Located {
                ordinal: at,
                at: None,
            }))
        });
    });
}

criterion_group!(benches, lookups, reads);
criterion_main!(benches);
