//! The recovery scan of a group that a killed broker left open: below the durable mark only headers
//! are walked, above it checksums are checked.

mod support;

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use kera_log_segments::group::AckPolicy;
use kera_log_segments::io::OpenHow;
use kera_log_segments::scan::{ScanSpec, scan};
use kera_protocol::batch::BatchHeader;
use kera_protocol::ids::Incarnation;
use support::{Bench, batch};

const GROUP: u64 = 64 << 20;

fn scans(c: &mut Criterion) {
    let mut group = c.benchmark_group("scan");
    group
        .sample_size(10)
        .measurement_time(Duration::from_secs(2))
        .throughput(Throughput::Bytes(GROUP));
    for bytes in [1 << 10, 16 << 10, 128 << 10] {
        let bench = Bench::on_disk(AckPolicy::Written, 1);
        let mut data = batch(bytes, -1);
        let mut header = BatchHeader::peek(&data).expect("a batch");
        let mut sequence = 0;
        let mut last = None;
        for _ in 0..GROUP / data.len() as u64 {
            last = Some(bench.append(0, &mut data, &mut header, &mut sequence));
        }
        let of = last.expect("an append").group;
        of.write_mark(&Incarnation::default()).expect("a mark");
        let file = bench
            .env
            .io
            .open(&of.spec().path, OpenHow::ReadOnly, false)
            .expect("the file");
        let marked = ScanSpec::default();
        let unmarked = ScanSpec {
            verify_all: true,
            ..ScanSpec::default()
        };
        for (name, spec) in [("below the mark", &marked), ("above the mark", &unmarked)] {
            group.bench_function(format!("{} KiB batches {name}", bytes >> 10), |b| {
                b.iter(|| {
                    let scanned = scan(&*file, spec, |_, _| {}).expect("a group");
                    assert_eq!(scanned.end, of.end());
                    black_box(scanned)
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, scans);
criterion_main!(benches);
