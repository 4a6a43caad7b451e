//! What an append costs: check, place, copy, pump and move the head, by threads and by how many
//! share a group. Checksums on receipt are not in it (see `batch`).
//!
//! `discard` files throw the bytes away, so that only the broker's own work is measured; `disk`
//! files lie below the target directory.

mod support;

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kera_log_segments::group::AckPolicy;
use kera_protocol::batch::BatchHeader;
use support::{Bench, batch};

/// Appends `iterations` batches from `threads` threads, each to its lane; returns the time it took. With
/// `tidy`, full groups are closed and freed on the way.
fn run(
    bench: &Bench,
    iterations: u64,
    threads: u64,
    lane_of: fn(u64) -> u32,
    bytes: usize,
    tidy: bool,
) -> Duration {
    static PRODUCERS: AtomicU64 = AtomicU64::new(1);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let count = iterations / threads + u64::from(thread < iterations % threads);
            scope.spawn(move || {
                let mut batch = batch(bytes, PRODUCERS.fetch_add(1, Ordering::Relaxed) as i64);
                let mut header = BatchHeader::peek(&batch).expect("a batch");
                let mut sequence = 0;
                for at in 0..count {
                    black_box(bench.append(
                        lane_of(thread),
                        &mut batch,
                        &mut header,
                        &mut sequence,
                    ));
                    // As the broker's thread for it does.
                    if tidy && at % 4096 == 4095 {
                        bench.tidy();
                    }
                }
            });
        }
    });
    let took = begun.elapsed();
    if tidy {
        bench.tidy();
    }
    took
}

fn appends(c: &mut Criterion) {
    let mut group = c.benchmark_group("append");
    group
        .sample_size(10)
        .measurement_time(Duration::from_secs(2))
        .warm_up_time(Duration::from_millis(300));
    for (name, ack) in [
        ("memory", AckPolicy::Memory),
        ("written", AckPolicy::Written),
    ] {
        for bytes in [1 << 10, 16 << 10, 128 << 10] {
            for threads in [1, 2, 8] {
                group.throughput(Throughput::Bytes(bytes as u64));
                for (shared, lane_of) in [
                    ("one group", (|_| 0) as fn(u64) -> u32),
                    ("many groups", |thread| thread as u32),
                ] {
                    let id = BenchmarkId::new(
                        format!("{name} discard {} KiB {shared}", bytes >> 10),
                        threads,
                    );
                    group.bench_function(id, |b| {
                        let bench = Bench::discarding(ack, 8);
                        b.iter_custom(|iterations| {
                            run(&bench, iterations, threads, lane_of, bytes, true)
                        });
                    });
                }
            }
        }
    }
    group.finish();
}

fn appends_to_disk(c: &mut Criterion) {
    let mut group = c.benchmark_group("append to disk");
    group
        .sample_size(10)
        .measurement_time(Duration::from_secs(1))
        .warm_up_time(Duration::from_millis(100));
    for bytes in [16 << 10, 128 << 10] {
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(format!("written {} KiB", bytes >> 10), |b| {
            b.iter_custom(|iterations| {
                run(
                    &Bench::on_disk(AckPolicy::Written, 1),
                    iterations,
                    1,
                    |_| 0,
                    bytes,
                    false,
                )
            });
        });
    }
    group.finish();
}

criterion_group!(benches, appends, appends_to_disk);
criterion_main!(benches);
